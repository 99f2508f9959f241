//! The probe state of all peers: when each is probed next, and its verdict.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::pace::{Budget, Pace};
use super::subject::{Question, Subject, Target};
use super::verdict::Rules;
use crate::model::config::Probe;

/// The intervals within which a peer has to answer for the first time. A slow peer on a busy
/// machine must not be taken for flannel, which never answers.
const SILENCE: u32 = 5;

/// Times are relative to the start of probing.
#[derive(Debug)]
pub struct Board {
    interval: Duration,
    rules: Rules,
    /// Keyed by the first address of the peer's subnet.
    subjects: BTreeMap<IpAddr, Subject>,
    /// When each peer is probed next.
    turns: BTreeSet<(Duration, IpAddr)>,
    /// The number of the last probe.
    number: u64,
    budget: Budget,
    /// The peers whose next probe is counted in the budget already.
    reserved: BTreeSet<IpAddr>,
    /// The peers whose verdict has changed.
    judged: BTreeSet<IpAddr>,
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
            number: 0,
            budget: Budget::default(),
            reserved: BTreeSet::new(),
            judged: BTreeSet::new(),
        }
    }

    /// Applies changes of the peers to probe; `None` removes a peer. The state of a peer whose
    /// target changed is reset.
    pub fn follow(&mut self, changes: &BTreeMap<IpAddr, Option<Target>>, now: Duration) {
        for (peer, target) in changes {
            let known = self.subjects.get(peer).map(|subject| subject.target);
            match target {
                _ if known == *target => {}
                Some(target) => self.start_over(*peer, *target, now),
                None => self.remove(*peer),
            }
        }
    }

    /// Resets the state of these peers, and probes them again from the start.
    pub fn ask_again(&mut self, peers: &BTreeSet<IpAddr>, now: Duration) {
        for peer in peers {
            if let Some(Subject { target, .. }) = self.subjects.get(peer).copied() {
                self.start_over(*peer, target, now);
            }
        }
    }

    /// When the next probe is due; none while no peer is probed.
    pub fn next(&self) -> Option<Duration> {
        self.turns.first().map(|(at, _)| *at)
    }

    /// The probes that are due. `random` returns any number.
    pub fn questions(&mut self, now: Duration, mut random: impl FnMut() -> u64) -> Vec<Question> {
        let mut questions = Vec::new();
        while let Some((at, peer)) = self.turns.first().copied().filter(|(at, _)| *at <= now) {
            self.turns.remove(&(at, peer));
            questions.extend(self.turn(peer, now, &mut random));
        }
        questions
    }

    /// Counts a probe that was sent at `sent` as lost: it was not answered in time.
    pub fn lose(&mut self, question: &Question, sent: Duration, now: Duration) {
        let rules = self.rules;
        let Some(subject) = self.subject_of(question) else { return };
        subject.take_loss(question, sent);
        let pace = subject.pace(rules);
        self.judge(question.peer, now);
        if pace == Pace::Doubtful {
            self.hurry(question.peer, now);
        }
    }

    /// Counts a probe that was sent at `sent` as answered. `random` is any number.
    pub fn answer(&mut self, question: &Question, sent: Duration, now: Duration, random: u64) {
        let rules = self.rules;
        let Some(subject) = self.subject_of(question) else { return };
        let before = subject.pace(rules);
        subject.take_answer(question, sent, now);
        self.judge(question.peer, now);
        self.slow_down(question.peer, before, now, random);
    }

    /// Records a probe or a late answer from `peer`. If the peer was silent, it is probed again at
    /// once.
    pub fn hear(&mut self, peer: IpAddr, now: Duration) {
        let Some(subject) = self.subjects.get_mut(&peer) else { return };
        subject.hear(now);
        if subject.pace(self.rules) == Pace::Silent {
            self.judge(peer, now);
            self.take_turn_at(peer, now);
        }
    }

    /// The peers whose verdict has changed since the last call.
    pub fn take_judged(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.judged)
    }

    pub fn subject(&self, peer: IpAddr) -> Option<&Subject> {
        self.subjects.get(&peer)
    }

    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        self.subjects.values()
    }

    /// The peer of `question`, unless its target has changed since.
    fn subject_of(&mut self, question: &Question) -> Option<&mut Subject> {
        self.subjects.get_mut(&question.peer).filter(|subject| subject.counts(question))
    }

    fn start_over(&mut self, peer: IpAddr, target: Target, now: Duration) {
        let (known, last) = (self.subjects.get(&peer), self.number);
        let subject =
            known.map_or_else(|| Subject::new(target, last), |known| known.renewed(target, last));
        if known.is_some_and(|known| known.verdict != subject.verdict) {
            self.judged.insert(peer);
        }
        self.subjects.insert(peer, subject);
        self.take_turn_at(peer, now);
    }

    fn remove(&mut self, peer: IpAddr) {
        let Some(subject) = self.subjects.remove(&peer) else { return };
        self.turns.remove(&(subject.turn, peer));
        self.judged.remove(&peer);
        self.reserved.remove(&peer);
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
        // `Silent` depends on elapsed time, too.
        self.judge(peer, now);
        let question = |(path, size)| {
            self.number += 1;
            Question { number: self.number, peer, public_ip, path, size }
        };
        asks.into_iter().map(question).collect()
    }

    /// Moves the next probe of a peer whose path is known now to a random time in the usual
    /// interval, so that not all peers are probed at once.
    fn slow_down(&mut self, peer: IpAddr, before: Pace, now: Duration, random: u64) {
        let pace = self.subjects.get(&peer).map(|subject| subject.pace(self.rules));
        if before == Pace::Unjudged && pace == Some(Pace::Steady) {
            let share = u32::try_from(random % 1000).unwrap_or(0);
            self.take_turn_at(peer, now + self.interval(Pace::Steady) * share / 1000);
        }
    }

    /// Probes `peer` earlier, if its next probe is later than that of a doubtful path would be.
    fn hurry(&mut self, peer: IpAddr, now: Duration) {
        let soon = now + self.interval(Pace::Doubtful);
        if self.subjects.get(&peer).is_some_and(|subject| subject.turn > soon) {
            self.take_turn_at(peer, now);
        }
    }

    fn judge(&mut self, peer: IpAddr, now: Duration) {
        let Some(subject) = self.subjects.get_mut(&peer) else { return };
        if subject.judge(self.rules, now) {
            self.judged.insert(peer);
        }
    }

    fn take_turn_at(&mut self, peer: IpAddr, at: Duration) {
        let Some(subject) = self.subjects.get_mut(&peer) else { return };
        let before = std::mem::replace(&mut subject.turn, at);
        self.turns.remove(&(before, peer));
        self.turns.insert((at, peer));
    }

    fn interval(&self, pace: Pace) -> Duration {
        pace.interval(self.interval, self.subjects.len())
    }
}

/// From 0.9 to 1.1 times `interval`, so that thousands of nodes do not probe in step.
fn jittered(interval: Duration, random: u64) -> Duration {
    let share = u32::try_from(random % 201).unwrap_or(0);
    interval * (900 + share) / 1000
}
