//! The probe state of one peer, and the inputs of probing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::pace::Pace;
use super::verdict::{ProbeSize, Thresholds, Track, judge};
use crate::model::config::Probe;
use crate::model::lease::Endpoint;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Path, ProbeVerdict};
use crate::model::prefix::Family;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// None while probing is off.
    pub local: Option<LocalProber>,
    /// Keyed by the first address of the peer's subnet.
    pub peers: BTreeMap<IpAddr, Target>,
}

/// This node as the sender of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalProber {
    pub probe: Probe,
    /// The first addresses of our subnets, one per family.
    pub addresses: BTreeMap<Family, IpAddr>,
    /// The largest packet of pods, in bytes: the size of a large probe, headers included.
    pub pod_mtu: u32,
}

/// A peer in one address family, and the paths to it that can be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub public_ip: IpAddr,
    pub direct: bool,
    /// Whether it has a tunnel that this node can use.
    pub tunnel: bool,
}

impl LocalProber {
    /// None while probing is off.
    pub fn of(local: &NodeInputs, pod_mtu: u32) -> Option<Self> {
        let own = local.own.as_ref()?;
        let probe = local.config.probing()?.clone();
        let address = |endpoint: &Endpoint| (endpoint.subnet.family(), endpoint.subnet.base());
        let addresses = own.endpoints.iter().map(address).collect();
        Some(Self { probe, addresses, pod_mtu })
    }
}

impl Target {
    pub fn of(local: &NodeInputs, endpoint: &Endpoint) -> Self {
        let vni = local.config.backend.tunnel.vni;
        let is_ours = |theirs: Option<u32>| theirs.is_none_or(|theirs| theirs == vni);
        Self {
            public_ip: endpoint.public_ip,
            direct: local.node.is_adjacent(endpoint.public_ip),
            tunnel: endpoint.vtep.is_some_and(|vtep| is_ours(vtep.vni)),
        }
    }
}

/// A probe of a peer. The probe task sends it and reports the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Probes are numbered in the order in which they are created.
    pub number: u64,
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub path: Path,
    pub size: ProbeSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeState {
    pub target: Target,
    pub direct: Track,
    pub tunnel: Track,
    pub verdict: ProbeVerdict,
    pub(super) turn: Duration,
    /// Results of probes up to this number are ignored: they were sent to another target.
    ignored_until: u64,
    /// When its first packet arrived. From then on it is known to answer probes, unlike flannel.
    first_packet: Option<Duration>,
    first_probe: Option<Duration>,
    turns: u32,
    recent_failures: u32,
    failed: Duration,
}

/// While the direct path is used, every how many rounds the tunnel is probed, too.
const STANDBY: u32 = 4;
/// After this long without a failure, earlier failures no longer count.
const RECENT: Duration = Duration::from_secs(600);
/// Each recent failure doubles the number of answers that a path needs to recover, up to this many
/// doublings.
const MOST_DOUBLINGS: u32 = 3;

impl ProbeState {
    /// A peer whose state is unknown; `last` is the number of the last probe of any peer.
    pub(super) fn new(target: Target, last: u64) -> Self {
        Self {
            target,
            direct: Track::default(),
            tunnel: Track::default(),
            verdict: ProbeVerdict::Pending,
            turn: Duration::ZERO,
            ignored_until: last,
            first_packet: None,
            first_probe: None,
            turns: 0,
            recent_failures: 0,
            failed: Duration::ZERO,
        }
    }

    /// The same peer with a new target: its state is reset.
    pub(super) fn renewed(&self, target: Target, last: u64) -> Self {
        let is_same = self.target.public_ip == target.public_ip;
        Self {
            first_packet: self.first_packet.filter(|_| is_same),
            turn: self.turn,
            ..Self::new(target, last)
        }
    }

    /// Whether the result of `request` is about the current target.
    pub(super) const fn counts(&self, request: &ProbeRequest) -> bool {
        request.number > self.ignored_until
    }

    pub const fn track(&self, path: Path) -> &Track {
        match path {
            Path::Direct => &self.direct,
            Path::Tunnel => &self.tunnel,
        }
    }

    /// The numbers of large probes by `path` and of lost ones among them, within the window and
    /// since the first packet of the peer.
    pub fn window(&self, path: Path) -> (u32, u32) {
        self.first_packet.map_or((0, 0), |_| self.track(path).window())
    }

    pub(super) fn pace(&self, thresholds: Thresholds) -> Pace {
        let fails = |track: &Track| track.missed >= thresholds.failures;
        // If both paths fail, or there is no tunnel to compare with, faster probes would not help.
        let is_dead = fails(&self.direct) && (fails(&self.tunnel) || !self.target.tunnel);
        match self.verdict {
            _ if !self.target.direct => Pace::Steady,
            ProbeVerdict::Pending if is_dead && self.first_packet.is_some() => Pace::Steady,
            ProbeVerdict::Pending => Pace::Unjudged,
            ProbeVerdict::Good if self.direct.missed > 0 && !is_dead => Pace::Doubtful,
            ProbeVerdict::Silent => Pace::Silent,
            ProbeVerdict::Good | ProbeVerdict::Bad(_) => Pace::Steady,
        }
    }

    pub(super) fn requests(&self, thresholds: Thresholds) -> Vec<(Path, ProbeSize)> {
        let Target { direct, tunnel, .. } = self.target;
        let pace = self.pace(thresholds);
        let tunnel = tunnel && (!direct || pace.is_urgent() || self.turns.is_multiple_of(STANDBY));
        let doubtful = direct && pace.is_urgent() && self.direct.missed > 0;
        let requests = [
            (direct, (Path::Direct, ProbeSize::Large)),
            (doubtful, (Path::Direct, ProbeSize::Small)),
            (tunnel, (Path::Tunnel, ProbeSize::Large)),
        ];
        requests.into_iter().filter_map(|(wanted, request)| wanted.then_some(request)).collect()
    }

    pub(super) fn take_turn(&mut self, now: Duration) {
        self.first_probe.get_or_insert(now);
        self.turns = self.turns.wrapping_add(1);
    }

    /// Records that a packet of the peer arrived. Losses before its first packet are ignored: the
    /// peer may not have answered probes yet.
    pub(super) fn record_packet(&mut self, now: Duration) {
        if self.first_packet.is_none() {
            self.first_packet = Some(now);
            (self.direct, self.tunnel) = (Track::default(), Track::default());
        }
    }

    pub(super) fn take_answer(&mut self, request: &ProbeRequest, sent: Duration, now: Duration) {
        self.record_packet(now);
        self.track_mut(request.path).take_answer(request.size, sent, now);
    }

    pub(super) fn take_loss(&mut self, request: &ProbeRequest, sent: Duration) {
        if self.first_packet.is_none_or(|since| sent >= since) {
            self.track_mut(request.path).take_loss(request.size, sent);
        }
    }

    /// Updates the verdict; returns whether it has changed.
    pub(super) fn judge(&mut self, thresholds: Thresholds, now: Duration) -> bool {
        let first_probe = self.first_probe.filter(|_| self.first_packet.is_none());
        let silent_for = first_probe.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let successes =
            thresholds.successes << self.recent_failures.saturating_sub(1).min(MOST_DOUBLINGS);
        let thresholds = Thresholds { successes, ..thresholds };
        let last = self.verdict;
        self.verdict = judge(last, &self.direct, &self.tunnel, thresholds, silent_for);
        if matches!(self.verdict, ProbeVerdict::Bad(_)) && !matches!(last, ProbeVerdict::Bad(_)) {
            let is_first = now.saturating_sub(self.failed) > RECENT;
            self.recent_failures = if is_first { 1 } else { self.recent_failures + 1 };
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
