//! The probe state of one peer, and the inputs of probing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::pace::Pace;
use super::verdict::{Comparison, ProbeKind, Thresholds, Track, judge};
use crate::model::config::Probe;
use crate::model::lease::Endpoint;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Path, ProbeVerdict, ReachabilityState};
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
    /// `used` is the path in use: without `Mixed`, packets may not take the other one.
    pub fn of(local: &NodeInputs, endpoint: &Endpoint, used: Option<Path>) -> Self {
        if !local.config.mixed {
            let is_used = |path| used == Some(path);
            let (direct, tunnel) = (is_used(Path::Direct), is_used(Path::Tunnel));
            return Self { public_ip: endpoint.public_ip, direct, tunnel };
        }
        let vni = local.config.backend.tunnel.vni;
        let is_ours = |theirs: Option<u32>| theirs.is_none_or(|theirs| theirs == vni);
        Self {
            public_ip: endpoint.public_ip,
            direct: local.node.is_adjacent(endpoint.public_ip),
            tunnel: endpoint.vtep.is_some_and(|vtep| is_ours(vtep.vni)),
        }
    }
}

/// The path that packets to a peer take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedPath {
    pub path: Path,
    /// Whether this is the tunnel because the direct path fails.
    pub direct_fails: bool,
}

/// A probe of a peer. The probe task sends it and reports the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRequest {
    /// Probes are numbered in the order in which they are created.
    pub number: u64,
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub path: Path,
    pub kind: ProbeKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeState {
    pub target: Target,
    /// The results of each path, from the first one on: of thousands of peers, many wait for their
    /// first probe, and without `Mixed` only one path is probed.
    direct: Option<Box<Track>>,
    tunnel: Option<Box<Track>>,
    comparison: Comparison,
    pub verdict: ProbeVerdict,
    /// None if no packets are sent to the peer.
    pub(super) used: Option<UsedPath>,
    /// Whether the peer is reachable by the path in use, as last determined.
    pub(super) reachability: Option<ReachabilityState>,
    /// When the peer last reported that it answers no direct probes; none since it answers them.
    refused_direct: Option<Duration>,
    /// When the next probes are due, and when the last ones were sent.
    pub(super) turn: Duration,
    pub(super) last_turn: Duration,
    /// Results of probes up to this number are ignored: they were sent to another target.
    ignored_until: u64,
    /// When its first packet arrived. From then on it is known to answer probes, unlike flannel.
    pub(super) first_packet: Option<Duration>,
    pub(super) first_probe: Option<Duration>,
    turns: u32,
    recent_failures: u32,
    failed: Duration,
}

/// While the direct path is used, every how many rounds the tunnel is probed, too.
const STANDBY: u32 = 4;
/// The probes of a peer that does not answer, one per turn.
const UNREACHABLE: [ProbeKind; 4] =
    [ProbeKind::Large, ProbeKind::Small, ProbeKind::Large, ProbeKind::Echo];
/// The same if its kernel answers: whether that goes on must be known as soon.
const DAEMON_SILENT: [ProbeKind; 4] =
    [ProbeKind::Large, ProbeKind::Echo, ProbeKind::Small, ProbeKind::Echo];
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
            direct: None,
            tunnel: None,
            comparison: Comparison::default(),
            verdict: ProbeVerdict::Pending,
            used: None,
            reachability: None,
            refused_direct: None,
            turn: Duration::ZERO,
            last_turn: Duration::ZERO,
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
            used: self.used,
            reachability: self.reachability,
            turn: self.turn,
            ..Self::new(target, last)
        }
    }

    /// Whether the result of `request` is about the current target.
    pub(super) const fn counts(&self, request: &ProbeRequest) -> bool {
        request.number > self.ignored_until
    }

    pub fn track(&self, path: Path) -> Track {
        let track = match path {
            Path::Direct => &self.direct,
            Path::Tunnel => &self.tunnel,
        };
        track.as_deref().copied().unwrap_or_default()
    }

    /// The numbers of large probes by `path` and of lost ones among them, within the window and
    /// since the first packet of the peer.
    pub fn window(&self, path: Path) -> (u32, u32) {
        self.first_packet.map_or((0, 0), |_| self.track(path).window())
    }

    /// The share of lost probes by the path in use; none while it is not known.
    pub fn loss(&self) -> Option<f64> {
        let (asked, lost) = self.window(self.used?.path);
        (asked > 0).then(|| f64::from(lost) / f64::from(asked))
    }

    /// The last round-trip time by the path in use; none while nothing gets through.
    pub fn round_trip(&self) -> Option<Duration> {
        let track = self.used_track();
        track.round_trip.filter(|_| !track.is_silent())
    }

    pub(super) fn pace(&self, thresholds: Thresholds) -> Pace {
        let pace =
            if self.target.direct { self.direct_pace(thresholds) } else { self.tunnel_pace() };
        let track = self.used_track();
        match pace {
            // The losses of a peer that never answered are no evidence.
            Pace::Steady if self.first_packet.is_none() => pace,
            Pace::Steady if track.needs_echo() => Pace::Unjudged,
            Pace::Steady if track.is_doubtful(thresholds.failures) => Pace::Doubtful,
            Pace::Steady if track.is_watched() => Pace::Watched,
            pace => pace,
        }
    }

    /// How urgent the verdict on the direct path is.
    fn direct_pace(&self, thresholds: Thresholds) -> Pace {
        let fails = |track: Track| track.missed >= thresholds.failures;
        // If both paths fail, or there is no tunnel to compare with, faster probes would not help.
        let [direct, tunnel] = Path::ALL.map(|path| self.track(path));
        let is_dead = fails(direct) && (fails(tunnel) || !self.target.tunnel);
        match self.verdict {
            ProbeVerdict::Pending if is_dead && self.first_packet.is_some() => Pace::Steady,
            ProbeVerdict::Pending if self.refused_direct.is_some() => Pace::Steady,
            ProbeVerdict::Pending => Pace::Unjudged,
            ProbeVerdict::Good if direct.missed > 0 && !is_dead => Pace::Doubtful,
            ProbeVerdict::Silent => Pace::Silent,
            ProbeVerdict::Good | ProbeVerdict::Bad(_) => Pace::Steady,
        }
    }

    /// How urgent the first answer through the tunnel is, if no other path is probed.
    fn tunnel_pace(&self) -> Pace {
        let has_result = self.first_packet.is_some() && self.track(Path::Tunnel).known > 0;
        match self.verdict {
            _ if !self.target.tunnel || has_result => Pace::Steady,
            ProbeVerdict::Silent => Pace::Silent,
            ProbeVerdict::Pending | ProbeVerdict::Good | ProbeVerdict::Bad(_) => Pace::Unjudged,
        }
    }

    pub(super) fn requests(&self, thresholds: Thresholds) -> Vec<(Path, ProbeKind)> {
        let Target { direct, tunnel, .. } = self.target;
        if let Some(used) = self.used.filter(|used| self.track(used.path).needs_echo()) {
            return vec![(used.path, ProbeKind::Echo)];
        }
        let is_urgent = self.pace(thresholds).is_urgent();
        let is_turn_of_tunnel = !direct
            || is_urgent
            || self.is_used(Path::Tunnel)
            || self.turns.is_multiple_of(STANDBY);
        let paths = [(Path::Direct, direct), (Path::Tunnel, tunnel && is_turn_of_tunnel)];
        let paths = paths.into_iter().filter_map(|(path, is_probed)| is_probed.then_some(path));
        paths
            .flat_map(|path| self.kinds(path, is_urgent).into_iter().map(move |kind| (path, kind)))
            .collect()
    }

    /// The next probes by `path`. Small ones show whether only large ones are lost, echo requests
    /// whether only the daemon of the peer is silent.
    fn kinds(&self, path: Path, is_urgent: bool) -> Vec<ProbeKind> {
        let (track, is_used) = (self.track(path), self.is_used(path));
        // While nothing gets through, one probe per turn is enough.
        if is_used && !is_urgent && track.is_silent() {
            let is_echoed = track.is_echoed() == Some(true);
            let kinds = if is_echoed { DAEMON_SILENT } else { UNREACHABLE };
            let turn = self.turns.try_into().unwrap_or(0_usize);
            return kinds.into_iter().cycle().skip(turn % kinds.len()).take(1).collect();
        }
        let small = track.missed > 0 && (is_used || (is_urgent && path == Path::Direct));
        let kinds = [(true, ProbeKind::Large), (small, ProbeKind::Small)];
        kinds.into_iter().filter_map(|(is_wanted, kind)| is_wanted.then_some(kind)).collect()
    }

    fn is_used(&self, path: Path) -> bool {
        self.used.is_some_and(|used| used.path == path)
    }

    /// The results of the path in use, if there is one.
    pub(super) fn used_track(&self) -> Track {
        self.used.map(|used| self.track(used.path)).unwrap_or_default()
    }

    pub(super) fn take_turn(&mut self, now: Duration) {
        self.first_probe.get_or_insert(now);
        self.last_turn = now;
        self.turns = self.turns.wrapping_add(1);
    }

    /// Records that a packet of the peer arrived. Losses before its first packet are ignored: the
    /// peer may not have answered probes yet.
    pub(super) fn record_packet(&mut self, now: Duration) {
        [&mut self.direct, &mut self.tunnel]
            .into_iter()
            .flatten()
            .for_each(|it| it.record_packet());
        if self.first_packet.is_none() {
            self.first_packet = Some(now);
            (self.direct, self.tunnel) = (None, None);
            self.comparison = Comparison::default();
        }
    }

    /// Records whether the peer answers direct probes. Losses of direct probes that were sent before
    /// it reported that are no evidence: it has not applied `Mixed` yet, or no longer applies it.
    pub(super) fn record_direct(&mut self, takes_direct: bool, now: Duration) {
        if !takes_direct {
            self.direct = None;
            self.comparison.forget_direct();
        }
        self.refused_direct = (!takes_direct).then_some(now);
    }

    pub(super) fn record_answer(&mut self, request: &ProbeRequest, sent: Duration, now: Duration) {
        // The kernel of a peer shows nothing about its daemon.
        if request.kind != ProbeKind::Echo {
            self.record_packet(now);
        }
        self.track_mut(request.path).record_answer(request.kind, sent, now);
        if request.kind == ProbeKind::Large {
            self.comparison.record_answer(request.path, sent);
        }
    }

    pub(super) fn record_loss(&mut self, request: &ProbeRequest, sent: Duration) {
        let was_refused = request.path == Path::Direct && self.refused_direct > Some(sent);
        if !was_refused && self.first_packet.is_none_or(|since| sent >= since) {
            self.track_mut(request.path).record_loss(request.kind, sent);
            if request.kind == ProbeKind::Large {
                let carried = self.track(Path::Tunnel).large;
                self.comparison.record_loss(request.path, sent, carried);
            }
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
        let tracks = Path::ALL.map(|path| self.track(path));
        self.verdict = judge(last, tracks.each_ref(), &self.comparison, thresholds, silent_for);
        if matches!(self.verdict, ProbeVerdict::Bad(_)) && !matches!(last, ProbeVerdict::Bad(_)) {
            let is_first = now.saturating_sub(self.failed) > RECENT;
            self.recent_failures = if is_first { 1 } else { self.recent_failures + 1 };
            self.failed = now;
        }
        last != self.verdict
    }

    pub(super) fn track_mut(&mut self, path: Path) -> &mut Track {
        let track = match path {
            Path::Direct => &mut self.direct,
            Path::Tunnel => &mut self.tunnel,
        };
        track.get_or_insert_default()
    }
}
