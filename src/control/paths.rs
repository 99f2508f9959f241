//! The path verdicts: which peers are probed, and how the results change their paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::Control;
use super::changes::Changes;
use crate::model::entry::{Entry, Key, Route};
use crate::model::lease::{Endpoint, LeaseId, Peer};
use crate::model::path::{Detour, Path, ProbeVerdict};
use crate::model::status::{PathStatus, ProbeStatus, WayStatus};
use crate::plan::backend;
use crate::plan::desired::Standing;
use crate::plan::paths::{Board, Local, Question, Subject, Target};
use crate::probe::{ProbeChannels, ProbeEvent};

/// The state of path probing.
#[derive(Debug)]
pub(super) struct Paths {
    channels: Option<ProbeChannels>,
    state: State,
    /// The verdicts; none before probing starts. They are kept while probing is off: a failed path
    /// is not assumed to work because probes stopped.
    board: Option<Board>,
    /// The zero point of the board's timestamps.
    epoch: Instant,
    /// The lease of each peer, by the base address of its subnet.
    leases: BTreeMap<IpAddr, LeaseId>,
}

/// State of probing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
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
            state: State::default(),
            board: None,
            epoch: Instant::now(),
            leases: BTreeMap::new(),
        }
    }

    fn verdict(&self, endpoint: &Endpoint) -> ProbeVerdict {
        let subject = self.board.as_ref().and_then(|board| board.subject(endpoint.subnet.base()));
        let subject = subject.filter(|it| it.target.public_ip == endpoint.public_ip);
        subject.map_or(ProbeVerdict::Pending, |subject| subject.verdict)
    }

    /// Changes the board and updates its next deadline.
    fn revise(&mut self, revise: impl FnOnce(&mut Board)) {
        let Some(board) = &mut self.board else { return };
        revise(board);
        if let Some(channels) = &self.channels {
            let due = board.next().map(|at| self.epoch + at);
            channels.due.send_if_modified(|last| std::mem::replace(last, due) != due);
        }
    }

    /// Sends the questions due at `at`. A question that does not fit in the queue counts as lost.
    fn ask(&mut self, at: Duration) {
        let mut questions = Vec::new();
        self.revise(|board| questions = board.questions(at, rand::random));
        let Some(channels) = &self.channels else { return };
        let is_unsent = |question: &Question| channels.questions.try_send(*question).is_err();
        let unsent: Vec<Question> = questions.into_iter().filter(is_unsent).collect();
        for question in unsent {
            tracing::debug!(peer = %question.peer, "a probe was not sent: too many wait");
            self.revise(|board| board.lose(&question, at, at));
        }
    }

    /// Starts or stops probing these peers; without `local`, all probing stops.
    fn follow(&mut self, local: Option<&Local>, changes: &BTreeMap<IpAddr, Option<Target>>) {
        if let Some(channels) = &self.channels {
            channels.targets.send_if_modified(|targets| {
                let mut is_changed = targets.local.as_ref() != local;
                targets.local = local.cloned();
                for (peer, target) in changes {
                    let before = match target {
                        Some(target) => targets.peers.insert(*peer, *target),
                        None => targets.peers.remove(peer),
                    };
                    is_changed |= before != *target;
                }
                is_changed
            });
        }
        if let Some(local) = local {
            if self.state == State::On {
                self.board.get_or_insert_with(|| Board::new(&local.probe));
            }
            let now = self.epoch.elapsed();
            self.revise(|board| board.follow(changes, now));
        }
    }
}

impl Control {
    pub(super) fn probes_reported(&mut self, event: ProbeEvent) -> Changes {
        let (paths, plan) = (&mut self.paths, Changes { plan: true, ..Changes::default() });
        let epoch = paths.epoch;
        let since = |at: Instant| at.saturating_duration_since(epoch);
        match event {
            // The plan determines which peers to probe.
            ProbeEvent::Channels(channels) => {
                paths.channels = Some(channels);
                return plan;
            }
            ProbeEvent::Off(reason) => {
                paths.state = State::Off(reason);
                return plan;
            }
            // Earlier results are discarded: the plan creates a new board.
            ProbeEvent::On => {
                (paths.state, paths.board) = (State::On, None);
                return plan;
            }
            ProbeEvent::Answered { question, sent, at } => paths.revise(|board| {
                board.answer(&question, since(sent), since(at), rand::random());
            }),
            ProbeEvent::Lost { question, sent, at } => {
                paths.revise(|board| board.lose(&question, since(sent), since(at)));
            }
            ProbeEvent::Heard { peer, at } => paths.revise(|board| board.hear(peer, since(at))),
            ProbeEvent::Due { at } => paths.ask(since(at)),
        }
        let judged = self.paths.board.as_mut().map(Board::take_judged).unwrap_or_default();
        if judged.is_empty() { Changes::default() } else { self.apply_verdicts(&judged) }
    }

    /// Plans again for leases whose fallback changes by these verdicts.
    fn apply_verdicts(&mut self, judged: &BTreeSet<IpAddr>) -> Changes {
        let mut changes = self.derive_peers();
        let is_affected = |endpoint: &Endpoint| {
            self.detour(endpoint) != self.inputs.detours.get(&endpoint.subnet.base()).copied()
        };
        let leases = judged.iter().filter_map(|peer| self.paths.leases.get(peer));
        let leases = leases.filter_map(|id| self.inputs.peers.lease(id));
        let affected = leases.filter(|lease| lease.endpoints.iter().any(is_affected));
        let affected: BTreeSet<LeaseId> = affected.map(|lease| lease.id.clone()).collect();
        if !affected.is_empty() {
            let failed_before = self.failed_detours();
            changes |= self.revise(&affected);
            self.log_detours(failed_before);
        }
        changes
    }

    fn failed_detours(&self) -> usize {
        let detours = self.inputs.detours.values();
        detours.filter(|detour| matches!(detour, Detour::Failed(_))).count()
    }

    fn log_detours(&self, before: usize) {
        let failed = self.failed_detours();
        if failed > before {
            tracing::warn!(peers = failed, "direct paths do not carry packets: using the tunnel");
        } else if failed < before {
            tracing::info!(peers = failed, "direct paths carry packets again");
        }
    }

    /// Probes that failed before a config edit or a new lease are no evidence now. Peers that would
    /// leave the tunnel only because of them are probed again.
    pub(super) fn doubt_silence(&mut self, ids: &BTreeSet<LeaseId>) {
        if self.paths.board.is_none() {
            return;
        }
        let leases = ids.iter().filter_map(|id| self.inputs.peers.lease(id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let doubted = endpoints.filter(|endpoint| {
            self.paths.verdict(endpoint) == ProbeVerdict::Silent
                && self.programmed_path(endpoint) == Some(Path::Tunnel)
        });
        let doubted: BTreeSet<IpAddr> = doubted.map(|endpoint| endpoint.subnet.base()).collect();
        let now = self.paths.epoch.elapsed();
        self.paths.revise(|board| board.ask_again(&doubted, now));
    }

    /// The peers on the same link that must be reached through the tunnel. Rejected leases are
    /// ignored: their subnet may have the same base address as an accepted one.
    pub(super) fn detours<'a>(
        &self,
        peers: impl Iterator<Item = Option<Peer<'a>>>,
    ) -> Vec<(IpAddr, Option<Detour>)> {
        if self.inputs.config.as_ref().is_none_or(|config| config.probing().is_none()) {
            return self.inputs.detours.keys().map(|peer| (*peer, None)).collect();
        }
        let endpoints = peers.filter_map(|peer| peer?.ok()).flat_map(|lease| &lease.endpoints);
        endpoints.map(|endpoint| (endpoint.subnet.base(), self.detour(endpoint))).collect()
    }

    pub(super) fn apply_detours(&mut self, detours: Vec<(IpAddr, Option<Detour>)>) -> Changes {
        let mut changes = Changes::default();
        for (peer, detour) in detours {
            let before = match detour {
                Some(detour) => self.inputs.detours.insert(peer, detour),
                None => self.inputs.detours.remove(&peer),
            };
            changes.save |= before != detour;
            let is_fallback = matches!(detour, Some(Detour::Failed(_)));
            self.held.statistics.fallbacks += u64::from(is_fallback && before != detour);
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
        let peers: Vec<IpAddr> = gone.iter().flat_map(|(id, _)| self.probed(id)).collect();
        for peer in peers {
            self.inputs.detours.remove(&peer);
        }
        self.follow_targets(&gone);
    }

    fn detour(&self, endpoint: &Endpoint) -> Option<Detour> {
        let config = self.inputs.config.as_ref()?;
        config.probing()?;
        let must_answer = backend::must_answer(config, endpoint);
        match (self.paths.verdict(endpoint), &self.paths.state) {
            (ProbeVerdict::Bad(cause), _) => Some(Detour::Failed(cause)),
            (ProbeVerdict::Silent, _) => must_answer.then_some(Detour::Unanswered),
            (ProbeVerdict::Pending, State::Starting | State::On) => {
                let stays = self.programmed_path(endpoint).map(|path| path == Path::Tunnel);
                stays.unwrap_or(must_answer).then_some(Detour::Unproven)
            }
            (ProbeVerdict::Pending, State::Off(_)) | (ProbeVerdict::Good, _) => None,
        }
    }

    /// The path that packets to the peer take now; none without a route.
    fn programmed_path(&self, endpoint: &Endpoint) -> Option<Path> {
        let metric = Route::default_metric(endpoint.subnet.family());
        let key = Key::Route(endpoint.subnet, metric);
        let Some(Entry::Route(route)) = self.held.actual.get(&key) else { return None };
        // For a route with a nexthop object, the kernel may omit the link.
        let nexthop = route.nexthop.and_then(|id| self.held.actual.get(&Key::Nexthop(id)));
        let link = route.link.as_ref().or_else(|| nexthop?.link());
        let is_tunnel = link.is_some_and(|link| self.derived.scope.tunnels.contains(link));
        Some(if is_tunnel { Path::Tunnel } else { Path::Direct })
    }

    /// The probed peers of the lease `id`.
    fn probed(&self, id: &LeaseId) -> impl Iterator<Item = IpAddr> {
        let standing = self.derived.desired.peers().get(id).and_then(Standing::believed);
        let peers = standing.into_iter().flat_map(|lease| &lease.endpoints);
        let peers = peers.map(|endpoint| endpoint.subnet.base());
        peers.filter(move |peer| self.paths.leases.get(peer) == Some(id))
    }

    /// Probes the current endpoints of these leases instead of the previous ones.
    pub(super) fn follow_targets(&mut self, standings: &[(LeaseId, Option<Standing>)]) {
        let Some(local) = self.inputs.local() else { return };
        let mtu = backend::pod_mtu(&self.derived.networks).unwrap_or_default();
        let probed = Local::of(&local, mtu);
        // Old targets are removed first: one change may move a subnet from one lease to another.
        let old = standings.iter().flat_map(|(id, _)| self.probed(id));
        let mut changes: BTreeMap<_, _> = old.map(|peer| (peer, None)).collect();
        for peer in changes.keys() {
            self.paths.leases.remove(peer);
        }
        for (id, standing) in standings.iter().filter(|_| probed.is_some()) {
            let lease = standing.as_ref().and_then(Standing::believed);
            let endpoints = lease.into_iter().flat_map(|lease| &lease.endpoints);
            for it in endpoints.filter(|it| local.node.uplink(it.subnet.family()).is_some()) {
                self.paths.leases.insert(it.subnet.base(), id.clone());
                changes.insert(it.subnet.base(), Some(Target::of(&local, it)));
            }
        }
        self.paths.follow(probed.as_ref(), &changes);
    }

    /// The reason why paths are not probed although the config requests it.
    pub(super) fn probes_remark(&self) -> Option<String> {
        self.inputs.config.as_ref()?.probing()?;
        match &self.paths.state {
            State::Off(reason) => Some(format!("paths are not probed: {reason}")),
            State::Starting | State::On => None,
        }
    }

    pub(super) fn probe_status(&self) -> Option<ProbeStatus> {
        self.inputs.config.as_ref()?.probing()?;
        let counts = *self.paths.channels.as_ref()?.counts.borrow();
        let mut status = ProbeStatus { counts, ..ProbeStatus::default() };
        match &self.paths.state {
            State::Starting => "starting".clone_into(&mut status.state),
            State::On => "on".clone_into(&mut status.state),
            State::Off(reason) => {
                "off".clone_into(&mut status.state);
                status.reason = Some(reason.clone());
            }
        }
        let subjects = self.paths.board.iter().flat_map(Board::subjects);
        for subject in subjects.filter(|subject| subject.target.direct) {
            match subject.verdict {
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
        let subject = self.paths.board.as_ref()?.subject(endpoint.subnet.base())?;
        let way = |path| way_status(subject, path, self.paths.epoch.elapsed());
        let Subject { target: Target { direct, tunnel, .. }, .. } = subject;
        Some(PathStatus {
            verdict: self.paths.verdict(endpoint),
            direct: direct.then(|| way(Path::Direct)),
            tunnel: tunnel.then(|| way(Path::Tunnel)),
        })
    }
}

/// The probe results of `subject` by `path` at the time `now`.
fn way_status(subject: &Subject, path: Path, now: Duration) -> WayStatus {
    let (track, (asked, lost)) = (subject.track(path), subject.window(path));
    let number = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    let ago = |heard| number(now.saturating_sub(heard).as_millis());
    WayStatus {
        asked,
        lost,
        round_trip_us: track.round_trip.map(|time| number(time.as_micros())),
        heard_ms_ago: track.heard.map(ago),
    }
}
