//! The peers under probe: what probing depends on, and what is known of one peer.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::pace::Pace;
use super::verdict::{Rules, Size, Track, judge};
use crate::model::config::Probe;
use crate::model::lease::Endpoint;
use crate::model::local::Local as NodeLocal;
use crate::model::path::{Path, ProbeVerdict};
use crate::model::prefix::Family;

/// All that probing depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// None while paths are not to be probed.
    pub local: Option<Local>,
    /// By the first address of the peer's subnet.
    pub peers: BTreeMap<IpAddr, Target>,
}

/// This node, as its probes show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    pub probe: Probe,
    /// The first addresses of our subnets, one per family.
    pub addresses: BTreeMap<Family, IpAddr>,
    /// The largest packet of pods, in bytes: that of a large probe with its headers.
    pub pod_mtu: u32,
}

/// A peer in one address family, and the ways there are to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub public_ip: IpAddr,
    /// Whether it is on our link.
    pub direct: bool,
    /// Whether its tunnel is one of ours.
    pub tunnel: bool,
}

impl Local {
    /// None while paths are not to be probed.
    pub fn of(local: &NodeLocal, pod_mtu: u32) -> Option<Self> {
        let own = local.own.as_ref()?;
        let probe = local.config.probing()?.clone();
        let address = |endpoint: &Endpoint| (endpoint.subnet.family(), endpoint.subnet.base());
        let addresses = own.endpoints.iter().map(address).collect();
        Some(Self { probe, addresses, pod_mtu })
    }
}

impl Target {
    pub fn of(local: &NodeLocal, endpoint: &Endpoint) -> Self {
        let vni = local.config.backend.tunnel.vni;
        let is_ours = |theirs: Option<u32>| theirs.is_none_or(|theirs| theirs == vni);
        Self {
            public_ip: endpoint.public_ip,
            direct: local.node.is_adjacent(endpoint.public_ip),
            tunnel: endpoint.vtep.is_some_and(|vtep| is_ours(vtep.vni)),
        }
    }
}

/// A question to a peer. The probe task sends it, and reports what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Questions are counted in the order in which they are asked.
    pub number: u64,
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub path: Path,
    pub size: Size,
}

/// A peer, what is known of the ways to it, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pub target: Target,
    pub direct: Track,
    pub tunnel: Track,
    pub verdict: ProbeVerdict,
    /// When it has its next turn.
    pub(super) turn: Duration,
    /// Questions up to this number do not count: they were about another target.
    asked_before: u64,
    /// When anything first came from it: then it is not flannel, and answers probes from then on.
    spoke: Option<Duration>,
    /// When it was first asked.
    begun: Option<Duration>,
    turns: u32,
    /// Times that its direct path went bad of late.
    relapses: u32,
    /// When its direct path last went bad.
    failed: Duration,
}

/// The tunnel that stands by is asked at every so many turns.
const STANDBY: u32 = 4;
/// Who has been good for so long is trusted like anybody else.
const FORGIVEN: Duration = Duration::from_secs(600);
/// A path that flaps has to prove itself ever longer, up to so many doublings.
const MOST_DOUBLINGS: u32 = 3;

impl Subject {
    /// A peer of which nothing is known; `last` is the number of the last question to any peer.
    pub(super) fn new(target: Target, last: u64) -> Self {
        Self {
            target,
            direct: Track::default(),
            tunnel: Track::default(),
            verdict: ProbeVerdict::Pending,
            turn: Duration::ZERO,
            asked_before: last,
            spoke: None,
            begun: None,
            turns: 0,
            relapses: 0,
            failed: Duration::ZERO,
        }
    }

    /// The same node as `self`, of which nothing else is known any more.
    pub(super) fn renewed(&self, target: Target, last: u64) -> Self {
        let is_same = self.target.public_ip == target.public_ip;
        Self { spoke: self.spoke.filter(|_| is_same), turn: self.turn, ..Self::new(target, last) }
    }

    /// Whether what became of `question` says anything about this target.
    pub(super) const fn counts(&self, question: &Question) -> bool {
        question.number > self.asked_before
    }

    /// Of the way `path`.
    pub const fn track(&self, path: Path) -> &Track {
        match path {
            Path::Direct => &self.direct,
            Path::Tunnel => &self.tunnel,
        }
    }

    /// Of the last large questions by `path` since anything first came from the peer: how many there
    /// were, and how many of them were lost.
    pub fn window(&self, path: Path) -> (u32, u32) {
        self.spoke.map_or((0, 0), |_| self.track(path).window())
    }

    pub(super) fn pace(&self, rules: Rules) -> Pace {
        let fails = |track: &Track| track.missed >= rules.failures;
        // Where nothing can be compared, there is no hurry.
        let is_dead = fails(&self.direct) && (fails(&self.tunnel) || !self.target.tunnel);
        match self.verdict {
            _ if !self.target.direct => Pace::Steady,
            ProbeVerdict::Pending if is_dead && self.spoke.is_some() => Pace::Steady,
            ProbeVerdict::Pending => Pace::Unjudged,
            ProbeVerdict::Good if self.direct.missed > 0 && !is_dead => Pace::Doubtful,
            ProbeVerdict::Silent => Pace::Silent,
            ProbeVerdict::Good | ProbeVerdict::Bad(_) => Pace::Steady,
        }
    }

    /// What to ask in the next turn.
    pub(super) fn questions(&self, rules: Rules) -> Vec<(Path, Size)> {
        let Target { direct, tunnel, .. } = self.target;
        let pace = self.pace(rules);
        let tunnel = tunnel && (!direct || pace.is_urgent() || self.turns.is_multiple_of(STANDBY));
        let doubtful = direct && pace.is_urgent() && self.direct.missed > 0;
        let questions = [
            (direct, (Path::Direct, Size::Large)),
            (doubtful, (Path::Direct, Size::Small)),
            (tunnel, (Path::Tunnel, Size::Large)),
        ];
        questions.into_iter().filter_map(|(wanted, question)| wanted.then_some(question)).collect()
    }

    pub(super) fn take_turn(&mut self, now: Duration) {
        self.begun.get_or_insert(now);
        self.turns = self.turns.wrapping_add(1);
    }

    /// Takes any packet of it for a sign of life. What it left unanswered until then, before it
    /// probed paths itself, says nothing of the paths.
    pub(super) fn hear(&mut self, now: Duration) {
        if self.spoke.is_none() {
            self.spoke = Some(now);
            (self.direct, self.tunnel) = (Track::default(), Track::default());
        }
    }

    pub(super) fn take_answer(&mut self, question: &Question, sent: Duration, now: Duration) {
        self.hear(now);
        self.track_mut(question.path).take_answer(question.size, sent, now);
    }

    pub(super) fn take_loss(&mut self, question: &Question, sent: Duration) {
        if self.spoke.is_none_or(|spoke| sent >= spoke) {
            self.track_mut(question.path).take_loss(question.size, sent);
        }
    }

    /// Judges anew; returns whether the verdict has changed.
    pub(super) fn judge(&mut self, rules: Rules, now: Duration) -> bool {
        let begun = self.begun.filter(|_| self.spoke.is_none());
        let unheard = begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun));
        let successes = rules.successes << self.relapses.saturating_sub(1).min(MOST_DOUBLINGS);
        let rules = Rules { successes, ..rules };
        let last = self.verdict;
        self.verdict = judge(last, &self.direct, &self.tunnel, rules, unheard);
        if matches!(self.verdict, ProbeVerdict::Bad(_)) && !matches!(last, ProbeVerdict::Bad(_)) {
            let forgiven = now.saturating_sub(self.failed) > FORGIVEN;
            self.relapses = if forgiven { 1 } else { self.relapses + 1 };
            self.failed = now;
        }
        last != self.verdict
    }

    const fn track_mut(&mut self, path: Path) -> &mut Track {
        match path {
            Path::Direct => &mut self.direct,
            Path::Tunnel => &mut self.tunnel,
        }
    }
}
