//! The path verdicts: which peers are probed, and how the results change their paths.

mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::Control;
use super::changes::Changes;
use super::derived::Derived;
use super::reachability::LoggedPeers;
use crate::model::config::BackendType;
use crate::model::entry::{Entry, Key, Route};
use crate::model::event::EventKind;
use crate::model::lease::{Endpoint, Lease, LeaseId, Peer};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Cause, Fallback, Path, ProbeVerdict};
use crate::model::status::{PathStatus, ProbeResults, ProbeStatus};
use crate::plan::backend::{self, PeerPlan};
use crate::plan::desired::LeasePlan;
use crate::plan::paths::{Board, LocalProber, ProbeRequest, ProbeState, Target, UsedPath};
use crate::probe::{AnsweredTrace, AskedTrace, ProbeChannels, ProbeEvent};
use crate::random::random;

#[derive(Debug)]
pub(super) struct Paths {
    channels: Option<ProbeChannels>,
    state: Probing,
    /// The verdicts; none before probing starts. They are kept while probing is off: a failed path
    /// is not assumed to work because probes stopped.
    board: Option<Board>,
    /// The zero point of the board's timestamps.
    epoch: Instant,
    /// What was last recorded about the peers.
    pub(super) logged: LoggedPeers,
    /// Questions of peers about packets, which are answered at the end of the pass.
    asked: Vec<AskedTrace>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Probing {
    /// Probing is starting. Peers that used the tunnel before the restart stay there until then.
    #[default]
    Starting,
    On,
    /// Probing is off, with the reason.
    Off(String),
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            channels: None,
            state: Probing::default(),
            board: None,
            epoch: Instant::now(),
            logged: LoggedPeers::default(),
            asked: Vec::new(),
        }
    }

    /// The peers that became reachable, degraded, unreachable or unknown since the last call.
    pub(super) fn take_moved(&mut self) -> BTreeSet<IpAddr> {
        self.board.as_mut().map(Board::take_moved).unwrap_or_default()
    }

    pub(super) const fn is_starting(&self) -> bool {
        matches!(self.state, Probing::Starting)
    }

    /// The present time of the board.
    pub(super) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn verdict(&self, endpoint: &Endpoint) -> ProbeVerdict {
        let state = self.board.as_ref().and_then(|board| board.state(endpoint.subnet.base()));
        let state = state.filter(|it| it.target.public_ip == endpoint.public_ip);
        state.map_or(ProbeVerdict::Pending, |state| state.verdict)
    }

    /// Whether this process knows that the direct path works, or that it fails.
    fn is_judged(&self, peer: IpAddr) -> bool {
        let state = self.board.as_ref().and_then(|board| board.state(peer));
        state.is_some_and(|it| matches!(it.verdict, ProbeVerdict::Good | ProbeVerdict::Bad(_)))
    }

    /// Changes the board and updates its next deadline.
    fn revise(&mut self, revise: impl FnOnce(&mut Board)) {
        if let Some(board) = &mut self.board {
            revise(board);
            self.update_deadline();
        }
    }

    /// Forgets the verdicts, and with them the deadline: that of the next board may be the same.
    fn discard(&mut self) {
        self.board = None;
        self.update_deadline();
    }

    fn update_deadline(&self) {
        let next = self.board.as_ref().and_then(Board::next);
        let due = next.map(|at| self.epoch + at);
        if let Some(channels) = &self.channels {
            channels.due.send_if_modified(|last| std::mem::replace(last, due) != due);
        }
    }

    /// Sends the requests due at `at`. A request that does not fit in the queue counts as lost.
    fn ask(&mut self, at: Duration) {
        let mut requests = Vec::new();
        self.revise(|board| requests = board.requests(at, random));
        let Some(channels) = &self.channels else { return };
        let is_unsent = |request: &ProbeRequest| channels.requests.try_send(*request).is_err();
        let unsent: Vec<ProbeRequest> = requests.into_iter().filter(is_unsent).collect();
        for request in unsent {
            tracing::debug!(peer = %request.peer, "probe not sent: the queue is full");
            self.revise(|board| board.record_loss(&request, at, at));
        }
    }

    /// Sends an answer to a question of a peer; drops it if too many wait.
    fn answer(&self, answered: AnsweredTrace) {
        if let Some(channels) = &self.channels {
            drop(channels.answers.try_send(answered));
        }
    }

    /// Probes the peers of these plans, after `changes`.
    fn probe<'a>(
        &mut self,
        local: &NodeInputs,
        derived: &Derived,
        mut changes: ProbedPeers,
        plans: impl Iterator<Item = &'a LeasePlan>,
    ) {
        let mtu = backend::pod_mtu(&derived.backends).unwrap_or_default();
        let prober = LocalProber::of(local, mtu);
        let plans = plans.filter(|_| prober.is_some()).flatten();
        changes.extend(plans.flat_map(|(lease, plan)| probed(local, lease, plan)));
        self.update_targets(prober.as_ref(), &changes);
    }

    /// Starts or stops probing these peers; without `local`, all probing stops.
    fn update_targets(&mut self, local: Option<&LocalProber>, changes: &ProbedPeers) {
        if let Some(channels) = &self.channels {
            channels.targets.send_if_modified(|targets| {
                let mut is_changed = targets.local.as_ref() != local;
                targets.local = local.cloned();
                for (peer, probed) in changes {
                    let target = probed.map(|(target, _)| target);
                    let before = match target {
                        Some(target) => targets.peers.insert(*peer, target),
                        None => targets.peers.remove(peer),
                    };
                    is_changed |= before != target;
                }
                is_changed
            });
        }
        if let Some(local) = local {
            if self.state == Probing::On {
                self.board.get_or_insert_with(|| Board::new(&local.probe));
            }
            let now = self.now();
            self.revise(|board| {
                for (peer, probed) in changes {
                    board.update_target(*peer, probed.map(|(target, _)| target), now);
                    board.use_path(*peer, probed.and_then(|(_, used)| used), now);
                }
            });
        }
    }
}

/// The peers to probe by the first address of their subnets, and the paths that packets to them take
/// now; none for a peer that is not probed any more.
type ProbedPeers = BTreeMap<IpAddr, Option<(Target, Option<UsedPath>)>>;

impl Control {
    pub(super) fn probes_reported(&mut self, event: ProbeEvent) -> Changes {
        let paths = &mut self.paths;
        let epoch = paths.epoch;
        let since = |at: Instant| at.saturating_duration_since(epoch);
        let is_switch =
            matches!(event, ProbeEvent::Channels(_) | ProbeEvent::On | ProbeEvent::Off(_));
        match event {
            ProbeEvent::Channels(channels) => paths.channels = Some(channels),
            ProbeEvent::Off(reason) => {
                // Each attempt to start reports its failure.
                if paths.state != Probing::Off(reason.clone()) {
                    let sentence = format!("paths are not probed: {reason}");
                    self.recorder.note_own(EventKind::ProbesOff, sentence);
                }
                paths.state = Probing::Off(reason);
            }
            // Earlier results are discarded.
            ProbeEvent::On => {
                if paths.state != Probing::On {
                    self.recorder.note_own(EventKind::ProbesOn, "paths are probed".to_owned());
                }
                paths.state = Probing::On;
                paths.discard();
                self.inputs.keep_failures();
            }
            ProbeEvent::Answered { request, sent, at, takes_direct } => paths.revise(|board| {
                board.record_direct(request.peer, takes_direct, since(at));
                board.record_answer(&request, since(sent), since(at), random());
            }),
            ProbeEvent::Echoed { request, sent, at } => paths.revise(|board| {
                board.record_answer(&request, since(sent), since(at), random());
            }),
            ProbeEvent::Lost { request, sent, at } => {
                paths.revise(|board| board.record_loss(&request, since(sent), since(at)));
            }
            ProbeEvent::Alive { peer, at } => {
                paths.revise(|board| board.record_packet(peer, since(at)));
            }
            ProbeEvent::Due { at } => paths.ask(since(at)),
            ProbeEvent::Asked(asked) => {
                self.take_question(*asked);
                return Changes::default();
            }
        }
        // With `Mixed`, the paths of peers without a verdict depend on whether probing is on.
        let plan = is_switch && self.inputs.is_mixed();
        // A new plan determines which peers to probe, and knows which leases are gone.
        if is_switch && !plan && !self.changes.plan {
            self.probe_all();
        }
        let judged = self.paths.board.as_mut().map(Board::take_changed).unwrap_or_default();
        let mut changes = self.note_reachability();
        changes |= Changes { plan, report: is_switch, ..Changes::default() };
        if !judged.is_empty() {
            changes |= self.apply_verdicts(&judged);
        }
        changes
    }

    /// Plans again for leases whose fallback changes by these verdicts.
    fn apply_verdicts(&mut self, judged: &BTreeSet<IpAddr>) -> Changes {
        for peer in judged.iter().filter(|peer| self.paths.is_judged(**peer)) {
            self.inputs.failed_before.forget(*peer);
        }
        let mut changes = self.derive_peers();
        let own = self.comparing();
        let is_affected = |endpoint: &Endpoint| {
            let fallback = own.and_then(|own| self.fallback(own, endpoint));
            fallback != self.inputs.fallbacks.get(&endpoint.subnet.base()).copied()
        };
        let leases = judged.iter().filter_map(|peer| self.lease_at(*peer));
        let affected = leases.filter(|lease| lease.endpoints.iter().any(is_affected));
        let affected: BTreeSet<LeaseId> = affected.map(|lease| lease.id.clone()).collect();
        if !affected.is_empty() {
            changes |= self.revise(&affected);
        }
        changes
    }

    /// Probes that failed before a config edit or a new lease are no evidence now, nor are those of before
    /// probing began. Peers that are in the tunnel only because of them are probed again.
    pub(super) fn probe_silent(&mut self, ids: &BTreeSet<LeaseId>) {
        if self.paths.board.is_none() {
            return;
        }
        let leases = ids.iter().filter_map(|id| self.inputs.peers.lease(id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let doubted = endpoints.filter(|endpoint| self.is_doubted(endpoint));
        let doubted: BTreeSet<IpAddr> = doubted.map(|endpoint| endpoint.subnet.base()).collect();
        for peer in &doubted {
            self.inputs.failed_before.forget(*peer);
        }
        let now = self.paths.now();
        self.paths.revise(|board| board.restart(&doubted, now));
    }

    /// Whether the peer is in the tunnel without a verdict of this process that keeps it there.
    fn is_doubted(&self, endpoint: &Endpoint) -> bool {
        let is_unjudged = match self.paths.verdict(endpoint) {
            ProbeVerdict::Silent => true,
            ProbeVerdict::Pending => self.inputs.failed_before.cause(endpoint).is_some(),
            ProbeVerdict::Good | ProbeVerdict::Bad(_) => false,
        };
        is_unjudged && self.programmed_path(endpoint) == Some(Path::Tunnel)
    }

    /// The peers on the same link that must be reached through the tunnel. Rejected leases are
    /// ignored: their subnet may have the same base address as an accepted one.
    pub(super) fn fallbacks<'a>(
        &self,
        peers: impl Iterator<Item = Option<Peer<'a>>>,
    ) -> Vec<(IpAddr, Option<Fallback>)> {
        let Some(own) = self.comparing() else {
            return self.inputs.fallbacks.keys().map(|peer| (*peer, None)).collect();
        };
        let endpoints = peers.filter_map(|peer| peer?.ok()).flat_map(|lease| &lease.endpoints);
        endpoints.map(|endpoint| (endpoint.subnet.base(), self.fallback(own, endpoint))).collect()
    }

    pub(super) fn apply_fallbacks(
        &mut self,
        fallbacks: Vec<(IpAddr, Option<Fallback>)>,
    ) -> Changes {
        let mut changes = Changes::default();
        for (peer, fallback) in fallbacks {
            let before = match fallback {
                Some(fallback) => self.inputs.fallbacks.insert(peer, fallback),
                None => self.inputs.forget_fallback(peer),
            };
            let is_news = before != fallback;
            changes.save |= is_news;
            changes.edit |= is_news;
            let is_failure = matches!(fallback, Some(Fallback::Failed(_)));
            self.state.statistics.fallbacks += u64::from(is_failure && is_news);
        }
        changes
    }

    /// Discards the probe results of leases that are gone, so that a later peer starts without a
    /// verdict.
    pub(super) fn forget_paths(&mut self, ids: &BTreeSet<LeaseId>) {
        let gone = ids.iter().filter(|id| self.inputs.peers.lease(id).is_none());
        let gone: Vec<_> = gone.map(|id| (id.clone(), None)).collect();
        if gone.is_empty() {
            return;
        }
        let peers: Vec<IpAddr> = gone.iter().flat_map(|(id, _)| self.peers_of(id)).collect();
        for peer in peers {
            self.inputs.forget_fallback(peer);
        }
        self.follow_targets(&gone);
    }

    /// The backend of this node, if probes decide between the direct path and the tunnel.
    fn comparing(&self) -> Option<BackendType> {
        self.inputs.config.as_ref()?.comparing()?;
        self.inputs.backend()
    }

    fn fallback(&self, own: BackendType, endpoint: &Endpoint) -> Option<Fallback> {
        let must_answer = backend::must_answer(own, endpoint);
        match (self.paths.verdict(endpoint), &self.paths.state, self.failed_before(endpoint)) {
            (ProbeVerdict::Bad(cause), ..)
            | (ProbeVerdict::Pending | ProbeVerdict::Silent, _, Some(cause)) => {
                Some(Fallback::Failed(cause))
            }
            (ProbeVerdict::Silent, _, None) => must_answer.then_some(Fallback::Unanswered),
            (ProbeVerdict::Pending, Probing::Off(_), None) => {
                let stays = self.programmed_path(endpoint) != Some(Path::Direct);
                (must_answer && stays).then_some(Fallback::Unanswered)
            }
            (ProbeVerdict::Pending, Probing::Starting | Probing::On, None) => {
                let stays = self.programmed_path(endpoint).map(|path| path == Path::Tunnel);
                stays.unwrap_or(must_answer).then_some(Fallback::Unproven)
            }
            (ProbeVerdict::Good, ..) => None,
        }
    }

    /// How the direct path failed before probing began, unless it is in use: the kernel's state is newer
    /// than the checkpoint.
    fn failed_before(&self, endpoint: &Endpoint) -> Option<Cause> {
        let cause = self.inputs.failed_before.cause(endpoint);
        cause.filter(|_| self.programmed_path(endpoint) != Some(Path::Direct))
    }

    /// The path that packets to the peer take now; none without a route.
    fn programmed_path(&self, endpoint: &Endpoint) -> Option<Path> {
        let metric = Route::default_metric(endpoint.subnet.family());
        let key = Key::Route(endpoint.subnet, metric);
        let Some(Entry::Route(route)) = self.state.actual.get(&key) else { return None };
        // For a route with a nexthop object, the kernel may omit the link.
        let nexthop = route.nexthop.and_then(|id| self.state.actual.get(&Key::Nexthop(id)));
        let link = route.link.as_ref().or_else(|| nexthop?.link());
        let is_tunnel = link.is_some_and(|link| self.derived.scope.tunnels.contains(link));
        Some(if is_tunnel { Path::Tunnel } else { Path::Direct })
    }

    /// The peers of the lease `id`, as planned.
    fn peers_of(&self, id: &LeaseId) -> impl Iterator<Item = IpAddr> {
        let accepted = self.derived.desired.peers().get(id).into_iter().flatten();
        let peers = accepted.flat_map(|(lease, _)| &lease.endpoints);
        peers.map(|endpoint| endpoint.subnet.base())
    }

    /// The accepted lease of a peer, by the first address of its subnet.
    pub(super) fn lease_at(&self, peer: IpAddr) -> Option<&Lease> {
        let mut ids = self.inputs.peers.starting_at(peer);
        let accepted = ids.find_map(|id| self.derived.desired.peers().get(id)?.as_ref().ok());
        accepted.map(|(lease, _)| lease.as_ref())
    }

    /// Probes the peers of these leases as their new plans require.
    pub(super) fn follow_targets(&mut self, lease_plans: &[(LeaseId, Option<LeasePlan>)]) {
        // Old targets are removed first: one change may move a subnet from one lease to another.
        let old = lease_plans.iter().flat_map(|(id, _)| self.peers_of(id));
        let changes: ProbedPeers = old.map(|peer| (peer, None)).collect();
        let Some(local) = self.inputs.local() else { return };
        let new = lease_plans.iter().filter_map(|(_, lease_plan)| lease_plan.as_ref());
        self.paths.probe(&local, &self.derived, changes, new);
    }

    /// Probes the peers of the present plan.
    fn probe_all(&mut self) {
        let Some(local) = self.inputs.local() else { return };
        let plans = self.derived.desired.peers().values();
        self.paths.probe(&local, &self.derived, ProbedPeers::new(), plans);
    }

    /// The board, while peers are probed.
    pub(super) fn current_board(&self) -> Option<&Board> {
        let is_current = self.paths.state == Probing::On && self.is_probing();
        self.paths.board.as_ref().filter(|_| is_current)
    }

    pub(super) fn is_probing(&self) -> bool {
        self.inputs.config.as_ref().is_some_and(|config| config.probing().is_some())
    }

    /// The reason why paths are not probed although the config requests it.
    pub(super) fn probes_warning(&self) -> Option<String> {
        self.inputs.config.as_ref()?.probing()?;
        match &self.paths.state {
            Probing::Off(reason) => Some(format!("paths are not probed: {reason}")),
            Probing::Starting | Probing::On => None,
        }
    }

    pub(super) fn probe_status(&self) -> Option<ProbeStatus> {
        self.inputs.config.as_ref()?.probing()?;
        let counts = *self.paths.channels.as_ref()?.counts.borrow();
        let (state, reason) = match &self.paths.state {
            Probing::Starting => ("starting", None),
            Probing::On => ("on", None),
            Probing::Off(reason) => ("off", Some(reason.clone())),
        };
        let mut status =
            ProbeStatus { counts, state: state.to_owned(), reason, ..ProbeStatus::default() };
        let probed = self.paths.board.iter().flat_map(Board::states);
        for probed in probed.filter(|it| it.target.direct) {
            match probed.verdict {
                ProbeVerdict::Pending => status.pending += 1,
                ProbeVerdict::Silent => status.silent += 1,
                ProbeVerdict::Good => status.good += 1,
                ProbeVerdict::Bad(_) => status.bad += 1,
            }
        }
        Some(status)
    }

    /// The probe results of one peer.
    pub(super) fn path_status(&self, endpoint: &Endpoint) -> Option<PathStatus> {
        let state = self.paths.board.as_ref()?.state(endpoint.subnet.base())?;
        let results = |path| probe_results(state, path, self.paths.now());
        let ProbeState { target: Target { direct, tunnel, .. }, .. } = state;
        Some(PathStatus {
            verdict: self.paths.verdict(endpoint),
            direct: direct.then(|| results(Path::Direct)),
            tunnel: tunnel.then(|| results(Path::Tunnel)),
        })
    }
}

/// The peers of `lease` that can be probed: one for each address family in which this node has a subnet.
fn probed<'a>(
    local: &'a NodeInputs,
    lease: &'a Lease,
    plan: &'a PeerPlan,
) -> impl Iterator<Item = (IpAddr, Option<(Target, Option<UsedPath>)>)> {
    let is_possible = |it: &&Endpoint| {
        let family = it.subnet.family();
        let own = local.own.as_ref().and_then(|own| own.endpoint(family));
        own.is_some() && local.node.uplink(family).is_some()
    };
    lease.endpoints.iter().filter(is_possible).map(|endpoint| {
        let used = plan.path(endpoint.subnet.family()).map(|planned| UsedPath {
            path: planned.path,
            direct_fails: matches!(planned.fallback, Some(Fallback::Failed(_))),
        });
        let target = Target::of(local, endpoint, used.map(|used| used.path));
        (endpoint.subnet.base(), Some((target, used)))
    })
}

/// The probe results of `state` by `path` at the time `now`.
fn probe_results(state: &ProbeState, path: Path, now: Duration) -> ProbeResults {
    let (track, (asked, lost)) = (state.track(path), state.window(path));
    let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let ago = |answered_at| number(now.saturating_sub(answered_at).as_millis());
    ProbeResults {
        asked,
        lost,
        round_trip_us: track.round_trip.map(|time| number(time.as_micros())),
        answered_ms_ago: track.answered_at.map(ago),
    }
}
