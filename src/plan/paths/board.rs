//! The probe state of all peers: when each is probed next, its verdict, and whether it is reachable.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::pace::{Budget, Pace};
use super::reachability::reachability;
use super::state::{ProbeRequest, ProbeState, Target, UsedPath};
use super::verdict::Thresholds;
use crate::model::config::Probe;
use crate::model::path::{PeerReachability, ReachabilityState, UnreachableCause};
use crate::model::prefix::Family;
use crate::model::status::ReachabilityCounts;

/// The intervals within which a peer has to answer for the first time. A slow peer on a busy
/// machine must not be taken for flannel, which never answers.
const SILENCE: u32 = 5;

/// Times are relative to the start of probing.
#[derive(Debug, Default)]
pub struct Board {
    interval: Duration,
    thresholds: Thresholds,
    /// Keyed by the first address of the peer's subnet.
    /// Boxed: a state is large, and nodes of the map are half empty.
    states: BTreeMap<IpAddr, Box<ProbeState>>,
    schedule: BTreeSet<(Duration, IpAddr)>,
    number: u64,
    budget: Budget,
    /// While the budget is spent, when the next probes may be sent.
    resumes: Duration,
    changed: BTreeSet<IpAddr>,
    /// The peers by the path in use.
    counts: BTreeMap<Family, ReachabilityCounts>,
    /// The degraded and unreachable peers.
    failing: BTreeSet<IpAddr>,
    /// The peers whose reachability has changed.
    moved: BTreeSet<IpAddr>,
}

impl Board {
    pub fn new(probe: &Probe) -> Self {
        Self {
            interval: probe.interval,
            thresholds: Thresholds {
                failures: probe.failure_threshold,
                successes: probe.success_threshold,
                silence: probe.interval * SILENCE,
            },
            ..Self::default()
        }
    }

    /// Probes `peer`, or not any more. The state of a peer whose target changed is reset.
    pub fn update_target(&mut self, peer: IpAddr, target: Option<Target>, now: Duration) {
        let known = self.states.get(&peer).map(|state| state.target);
        match target {
            _ if known == target => {}
            Some(target) => self.start_over(peer, target, now),
            None => self.remove(peer),
        }
    }

    /// Records the path that packets to `peer` take now; its results are kept.
    pub fn use_path(&mut self, peer: IpAddr, used: Option<UsedPath>, now: Duration) {
        if let Some(state) = self.states.get_mut(&peer) {
            state.used = used;
            self.assess(peer, now);
        }
    }

    /// Resets the state of these peers, and probes them again from the start.
    pub fn restart(&mut self, peers: &BTreeSet<IpAddr>, now: Duration) {
        for peer in peers {
            if let Some(target) = self.states.get(peer).map(|state| state.target) {
                self.start_over(*peer, target, now);
            }
        }
    }

    /// When the next probe may be sent; none while no peer is probed.
    pub fn next(&self) -> Option<Duration> {
        self.schedule.first().map(|(at, _)| self.resumes.max(*at))
    }

    /// The probes that are due, as far as the budget allows. `random` returns any number.
    pub fn requests(
        &mut self,
        now: Duration,
        mut random: impl FnMut() -> u64,
    ) -> Vec<ProbeRequest> {
        let mut requests = Vec::new();
        while let Some((_, peer)) = self.schedule.first().copied().filter(|(at, _)| *at <= now) {
            let Some(more) = self.turn(peer, now, &mut random) else { break };
            requests.extend(more);
        }
        requests
    }

    /// Counts a probe that was sent at `sent` as lost: it was not answered in time.
    pub fn record_loss(&mut self, request: &ProbeRequest, sent: Duration, now: Duration) {
        let thresholds = self.thresholds;
        let Some(state) = self.state_of(request) else { return };
        state.record_loss(request, sent);
        let pace = state.pace(thresholds);
        self.judge(request.peer, now);
        if pace == Pace::Doubtful {
            self.hurry(request.peer, now);
        }
    }

    /// Counts a probe that was sent at `sent` as answered. `random` is any number.
    pub fn record_answer(
        &mut self,
        request: &ProbeRequest,
        sent: Duration,
        now: Duration,
        random: u64,
    ) {
        let thresholds = self.thresholds;
        let Some(state) = self.state_of(request) else { return };
        let before = state.pace(thresholds);
        let last = state.used_track();
        state.record_answer(request, sent, now);
        let track = state.used_track();
        let is_echoed_again = last.is_echoed() != Some(true) && track.is_echoed() == Some(true);
        let is_back = last.is_silent() && (!track.is_silent() || is_echoed_again);
        self.judge(request.peer, now);
        self.slow_down(request.peer, before, now, random);
        if is_back {
            // The answer may have been to a small probe, or to an echo request.
            self.schedule_at(request.peer, now);
        }
    }

    /// Records whether `peer` answers direct probes; without `Mixed`, it may not.
    pub fn record_direct(&mut self, peer: IpAddr, takes_direct: bool, now: Duration) {
        if let Some(state) = self.states.get_mut(&peer) {
            state.record_direct(takes_direct, now);
        }
    }

    /// Records a probe or a late answer from `peer`. If the peer or only its daemon was silent, it is
    /// probed again at once. The packet may be a replayed one: many of them cause no more probes than
    /// a doubtful path.
    pub fn record_packet(&mut self, peer: IpAddr, now: Duration) {
        let Some(state) = self.states.get_mut(&peer) else { return };
        state.record_packet(now);
        let is_daemon_back = state.used_track().is_echoed() == Some(true);
        if is_daemon_back || state.pace(self.thresholds) == Pace::Silent {
            self.judge(peer, now);
            self.check_back(peer, now);
        }
    }

    /// Whether the peer is reachable by the path in use; none if there is no such path.
    pub fn reachability(&self, peer: IpAddr, now: Duration) -> Option<PeerReachability> {
        let state = self.states.get(&peer)?;
        let known = reachability(state, state.used?, self.thresholds, now);
        Some(match known {
            PeerReachability::Unreachable { cause: UnreachableCause::PeerSilent, since_ms }
                if self.is_alone(Family::of(peer)) =>
            {
                PeerReachability::Unreachable { cause: UnreachableCause::AllSilent, since_ms }
            }
            known => known,
        })
    }

    /// The degraded and unreachable peers.
    pub fn failing(&self) -> impl Iterator<Item = IpAddr> {
        self.failing.iter().copied()
    }

    /// The peers that became reachable, degraded, unreachable or unknown since the last call.
    pub fn take_moved(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.moved)
    }

    /// The peers whose verdict has changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.changed)
    }

    pub fn state(&self, peer: IpAddr) -> Option<&ProbeState> {
        self.states.get(&peer).map(Box::as_ref)
    }

    pub fn states(&self) -> impl Iterator<Item = &ProbeState> {
        self.states.values().map(Box::as_ref)
    }

    /// The peer of `request`, unless its target has changed since.
    fn state_of(&mut self, request: &ProbeRequest) -> Option<&mut ProbeState> {
        let state = self.states.get_mut(&request.peer)?;
        state.counts(request).then_some(state)
    }

    fn start_over(&mut self, peer: IpAddr, target: Target, now: Duration) {
        let (known, last) = (self.states.get(&peer), self.number);
        let state = known
            .map_or_else(|| ProbeState::new(target, last), |known| known.renewed(target, last));
        if known.is_some_and(|known| known.verdict != state.verdict) {
            self.changed.insert(peer);
        }
        self.states.insert(peer, Box::new(state));
        self.schedule_at(peer, now);
        self.assess(peer, now);
    }

    fn remove(&mut self, peer: IpAddr) {
        let Some(state) = self.states.remove(&peer) else { return };
        self.schedule.remove(&(state.turn, peer));
        self.changed.remove(&peer);
        self.count(peer, [state.reachability, None]);
    }

    /// The next probes of `peer`; none if the budget is spent.
    fn turn(
        &mut self,
        peer: IpAddr,
        now: Duration,
        random: &mut impl FnMut() -> u64,
    ) -> Option<Vec<ProbeRequest>> {
        let state = self.states.get_mut(&peer)?;
        let (pace, asks) = (state.pace(self.thresholds), state.requests(self.thresholds));
        if pace.is_limited() {
            let mut budget = self.budget;
            self.resumes = budget.reserve(asks.len(), now);
            if self.resumes > now {
                return None;
            }
            self.budget = budget;
        }
        state.take_turn(now);
        let public_ip = state.target.public_ip;
        let next = now + jittered(self.interval(pace), random());
        self.schedule_at(peer, next);
        // `Silent` depends on elapsed time, too.
        self.judge(peer, now);
        let request = |(path, kind)| {
            self.number += 1;
            ProbeRequest { number: self.number, peer, public_ip, path, kind }
        };
        Some(asks.into_iter().map(request).collect())
    }

    /// Moves the next probe of a peer whose path is known now to a random time in the usual
    /// interval, so that not all peers are probed at once.
    fn slow_down(&mut self, peer: IpAddr, before: Pace, now: Duration, random: u64) {
        let pace = self.states.get(&peer).map(|state| state.pace(self.thresholds));
        if before == Pace::Unjudged && pace == Some(Pace::Steady) {
            let share = u32::try_from(random % 1000).unwrap_or(0);
            self.schedule_at(peer, now + self.interval(Pace::Steady) * share / 1000);
        }
    }

    /// Probes `peer` earlier, if its next probe is later than that of a doubtful path would be.
    fn hurry(&mut self, peer: IpAddr, now: Duration) {
        let soon = now + self.interval(Pace::Doubtful);
        if self.states.get(&peer).is_some_and(|state| state.turn > soon) {
            self.schedule_at(peer, now);
        }
    }

    /// Probes `peer` at once, but not sooner after the last probes than a doubtful path.
    fn check_back(&mut self, peer: IpAddr, now: Duration) {
        let pause = self.interval(Pace::Doubtful);
        let Some(state) = self.states.get(&peer) else { return };
        let at = now.max(state.last_turn + pause);
        if at < state.turn {
            self.schedule_at(peer, at);
        }
    }

    fn judge(&mut self, peer: IpAddr, now: Duration) {
        let Some(state) = self.states.get_mut(&peer) else { return };
        if state.judge(self.thresholds, now) {
            self.changed.insert(peer);
        }
        self.assess(peer, now);
    }

    /// Determines again whether the peer is reachable.
    fn assess(&mut self, peer: IpAddr, now: Duration) {
        let Some(state) = self.states.get_mut(&peer) else { return };
        let known = state.used.map(|used| reachability(state, used, self.thresholds, now).state());
        let before = std::mem::replace(&mut state.reachability, known);
        self.count(peer, [before, known]);
    }

    fn count(&mut self, peer: IpAddr, [before, now]: [Option<ReachabilityState>; 2]) {
        if before == now {
            return;
        }
        let counts = self.counts.entry(Family::of(peer)).or_default();
        if let Some(before) = before {
            *counts.of(before) -= 1;
        }
        if let Some(now) = now {
            *counts.of(now) += 1;
        }
        if now.is_some_and(ReachabilityState::is_failing) {
            self.failing.insert(peer);
        } else {
            self.failing.remove(&peer);
        }
        self.moved.insert(peer);
    }

    /// Whether none of several peers of this family answers: then the cause is on this node.
    fn is_alone(&self, family: Family) -> bool {
        let counts = self.counts.get(&family).copied().unwrap_or_default();
        counts.unreachable > 1 && counts.reachable + counts.degraded == 0
    }

    fn schedule_at(&mut self, peer: IpAddr, at: Duration) {
        let Some(state) = self.states.get_mut(&peer) else { return };
        let before = std::mem::replace(&mut state.turn, at);
        self.schedule.remove(&(before, peer));
        self.schedule.insert((at, peer));
    }

    fn interval(&self, pace: Pace) -> Duration {
        pace.interval(self.interval, self.states.len())
    }
}

/// From 0.9 to 1.1 times `interval`, so that thousands of nodes do not probe in step.
fn jittered(interval: Duration, random: u64) -> Duration {
    let share = u32::try_from(random % 201).unwrap_or(0);
    interval * (900 + share) / 1000
}
