//! All peers under probe: whom to ask when, what is still unanswered, and the verdicts.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::judge::Rules;
use super::pace::{Budget, Pace, patience};
use super::{Judgement, Subject, Target};
use crate::model::config::Probe;
use crate::model::path::Path;

/// So many intervals a peer may take to answer for the first time: a busy machine is not flannel.
const SILENCE: u32 = 5;

/// Times are counted from the start of probing.
#[derive(Debug)]
pub struct Board {
    interval: Duration,
    rules: Rules,
    /// By the first address of the peer's subnet.
    subjects: BTreeMap<IpAddr, Subject>,
    /// When each of them has its next turn.
    turns: BTreeSet<(Duration, IpAddr)>,
    turn_of: BTreeMap<IpAddr, Duration>,
    unanswered: BTreeMap<u64, Asked>,
    /// Until when answers are waited for, the earliest first.
    expiry: BTreeSet<(Duration, u64)>,
    budget: Budget,
    /// Whose next turn has its room already.
    reserved: BTreeSet<IpAddr>,
    judged: Vec<Judgement>,
    touched: BTreeSet<IpAddr>,
}

/// A question to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub path: Path,
    pub size: Size,
    pub nonce: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As short as can be.
    Small,
    /// As large as pods' packets can be.
    Large,
}

/// A question that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) peer: IpAddr,
    pub(super) path: Path,
    pub(super) size: Size,
    pub(super) at: Duration,
}

impl Board {
    pub fn new(probe: &Probe) -> Self {
        Self {
            interval: probe.interval,
            rules: Rules {
                failures: probe.failure_threshold,
                successes: probe.success_threshold,
                silence: probe.interval * SILENCE,
            },
            subjects: BTreeMap::new(),
            turns: BTreeSet::new(),
            turn_of: BTreeMap::new(),
            unanswered: BTreeMap::new(),
            expiry: BTreeSet::new(),
            budget: Budget::default(),
            reserved: BTreeSet::new(),
            judged: Vec::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Probes these peers from now on, and no others. What changed is unknown again.
    pub fn follow(&mut self, peers: &BTreeMap<IpAddr, Target>, now: Duration) {
        let gone: Vec<IpAddr> =
            self.subjects.keys().filter(|peer| !peers.contains_key(peer)).copied().collect();
        for peer in gone {
            self.subjects.remove(&peer);
            self.touched.insert(peer);
            self.reserved.remove(&peer);
            self.end_turns(peer);
        }
        for (peer, target) in peers {
            let known = self.subjects.get(peer);
            if known.is_none_or(|subject| subject.target != *target) {
                let anew = known.map_or_else(|| Subject::new(*target), |it| it.anew(*target));
                self.subjects.insert(*peer, anew);
                self.unanswered.retain(|_, asked| asked.peer != *peer);
                self.note(*peer);
                self.take_turn_at(*peer, now);
            }
        }
    }

    /// When something is to be done next; none while there is nobody to probe.
    pub fn next(&self) -> Option<Duration> {
        let turn = self.turns.first().map(|(at, _)| *at);
        let expiry = self.expiry.first().map(|(at, _)| *at);
        turn.into_iter().chain(expiry).min()
    }

    /// The questions that are due. `random` gives any number, and the same one hardly ever again.
    pub fn questions(&mut self, now: Duration, mut random: impl FnMut() -> u64) -> Vec<Question> {
        self.expire(now);
        let mut questions = Vec::new();
        while let Some((at, peer)) = self.turns.first().copied().filter(|(at, _)| *at <= now) {
            self.turns.remove(&(at, peer));
            questions.extend(self.turn(peer, now, &mut random));
        }
        questions
    }

    /// Takes an answer in; returns whether there was such a question.
    pub fn answer(&mut self, peer: IpAddr, path: Path, nonce: u64, now: Duration) -> bool {
        let is_expected = |asked: &Asked| asked.peer == peer && asked.path == path;
        if !self.unanswered.get(&nonce).is_some_and(is_expected) {
            return false;
        }
        let Some(asked) = self.unanswered.remove(&nonce) else { return false };
        self.expiry.remove(&(asked.at + patience(self.interval), nonce));
        let Some(subject) = self.subjects.get_mut(&peer) else { return false };
        let before = subject.pace(self.rules);
        subject.take_answer(&asked, now);
        self.judge(peer, now);
        self.slow_down(peer, before, now, nonce);
        true
    }

    /// A peer has asked us, or answers too late. If we took it for one that never answers, it is
    /// asked again at once.
    pub fn hear(&mut self, peer: IpAddr, now: Duration) {
        let Some(subject) = self.subjects.get_mut(&peer) else { return };
        subject.hear(now);
        if subject.pace(self.rules) == Pace::Silent {
            self.judge(peer, now);
            self.take_turn_at(peer, now);
        }
    }

    /// The verdicts that have changed since the last call.
    pub fn take_judgements(&mut self) -> Vec<Judgement> {
        std::mem::take(&mut self.judged)
    }

    /// The peers of whom something new is known since the last call; none for those that are gone.
    pub fn take_touched(&mut self) -> Vec<(IpAddr, Option<Subject>)> {
        let touched = std::mem::take(&mut self.touched).into_iter();
        touched.map(|peer| (peer, self.subjects.get(&peer).copied())).collect()
    }

    fn turn(
        &mut self,
        peer: IpAddr,
        now: Duration,
        random: &mut impl FnMut() -> u64,
    ) -> Vec<Question> {
        let Some(subject) = self.subjects.get_mut(&peer) else { return Vec::new() };
        let (pace, asks) = (subject.pace(self.rules), subject.questions(self.rules));
        if pace.is_urgent() && !self.reserved.remove(&peer) {
            let slot = self.budget.reserve(asks.len(), now);
            if slot > now {
                self.reserved.insert(peer);
                self.take_turn_at(peer, slot);
                return Vec::new();
            }
        }
        subject.take_turn(now);
        let public_ip = subject.target.public_ip;
        let next = now + jittered(self.interval(pace), random());
        self.take_turn_at(peer, next);
        // Silence depends on the clock too.
        self.judge(peer, now);
        let question = |(path, size)| Question { peer, public_ip, path, size, nonce: random() };
        let questions: Vec<Question> = asks.into_iter().map(question).collect();
        for question in &questions {
            self.expect(question, now);
        }
        questions
    }

    fn expect(&mut self, question: &Question, now: Duration) {
        let Question { peer, path, size, nonce, .. } = *question;
        self.unanswered.insert(nonce, Asked { peer, path, size, at: now });
        self.expiry.insert((now + patience(self.interval), nonce));
    }

    /// Counts as lost what was not answered in time.
    fn expire(&mut self, now: Duration) {
        while let Some((at, nonce)) = self.expiry.first().copied().filter(|(at, _)| *at <= now) {
            self.expiry.remove(&(at, nonce));
            let Some(asked) = self.unanswered.remove(&nonce) else { continue };
            let Some(subject) = self.subjects.get_mut(&asked.peer) else { continue };
            subject.take_loss(&asked);
            let pace = subject.pace(self.rules);
            self.judge(asked.peer, now);
            if pace == Pace::Doubtful {
                self.hurry(asked.peer, now);
            }
        }
    }

    /// Who is known now has a turn some time in the usual interval: not all at once.
    fn slow_down(&mut self, peer: IpAddr, before: Pace, now: Duration, random: u64) {
        let pace = self.subjects.get(&peer).map(|subject| subject.pace(self.rules));
        if before == Pace::Unjudged && pace == Some(Pace::Steady) {
            let share = u32::try_from(random % 1000).unwrap_or(0);
            self.take_turn_at(peer, now + self.interval(Pace::Steady) * share / 1000);
        }
    }

    /// Brings the next turn of `peer` forward, if it is further off than one of doubt would be.
    fn hurry(&mut self, peer: IpAddr, now: Duration) {
        let soon = now + self.interval(Pace::Doubtful);
        if self.turn_of.get(&peer).is_some_and(|at| *at > soon) {
            self.take_turn_at(peer, now);
        }
    }

    fn judge(&mut self, peer: IpAddr, now: Duration) {
        let Some(subject) = self.subjects.get_mut(&peer) else { return };
        self.touched.insert(peer);
        if subject.judge(self.rules, now) {
            self.note(peer);
        }
    }

    fn note(&mut self, peer: IpAddr) {
        self.touched.insert(peer);
        let Some(Subject { target, verdict, .. }) = self.subjects.get(&peer) else { return };
        let (public_ip, verdict) = (target.public_ip, *verdict);
        self.judged.push(Judgement { peer, public_ip, verdict });
    }

    fn take_turn_at(&mut self, peer: IpAddr, at: Duration) {
        self.end_turns(peer);
        self.turns.insert((at, peer));
        self.turn_of.insert(peer, at);
    }

    fn end_turns(&mut self, peer: IpAddr) {
        if let Some(at) = self.turn_of.remove(&peer) {
            self.turns.remove(&(at, peer));
        }
    }

    fn interval(&self, pace: Pace) -> Duration {
        pace.interval(self.interval, self.subjects.len())
    }
}

/// From nine to eleven tenths of `interval`: thousands of nodes must not keep in step.
fn jittered(interval: Duration, random: u64) -> Duration {
    let share = u32::try_from(random % 201).unwrap_or(0);
    interval * (900 + share) / 1000
}
