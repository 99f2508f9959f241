//! What probes say of paths, and whom to probe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Control;
use super::changes::Changes;
use crate::model::entry::{Entry, Key, Route};
use crate::model::lease::{Endpoint, Lease, LeaseId, Peer};
use crate::model::path::{Detour, Path, Verdict};
use crate::model::status::{PathStatus, ProbeStatus, WayStatus};
use crate::plan::backend;
use crate::plan::desired::Standing;
use crate::probe::{Judgement, Local, ProbeChannels, ProbeEvent, Subject, Target};

/// What is known of paths, and how it comes to be known.
#[derive(Debug, Default)]
pub(super) struct Paths {
    channels: Option<ProbeChannels>,
    state: State,
    /// By the first address of a subnet; with the public IP that the verdict was about.
    verdicts: BTreeMap<IpAddr, (IpAddr, Verdict)>,
    /// How often silence was doubted, by the first address of a subnet.
    rounds: BTreeMap<IpAddr, u32>,
    /// The first addresses of each lease's subnets.
    peers: BTreeMap<LeaseId, Vec<IpAddr>>,
}

/// Whether paths are probed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Soon: what was in the tunnel before us stays there until then.
    #[default]
    Starting,
    On,
    /// Not, and why.
    Off(String),
}

impl Paths {
    fn verdict(&self, endpoint: &Endpoint) -> Verdict {
        match self.verdicts.get(&endpoint.subnet.base()) {
            Some((public_ip, verdict)) if *public_ip == endpoint.public_ip => *verdict,
            Some(_) | None => Verdict::Pending,
        }
    }

    fn apply_judgement(&mut self, judgement: &Judgement) {
        let Judgement { peer, public_ip, verdict } = *judgement;
        match verdict {
            Verdict::Pending => drop(self.verdicts.remove(&peer)),
            known => drop(self.verdicts.insert(peer, (public_ip, known))),
        }
    }

    /// Tells whom to probe instead of what these leases had before.
    fn follow(&mut self, local: Option<&Local>, leases: Vec<(&LeaseId, Vec<(IpAddr, Target)>)>) {
        let Some(channels) = &self.channels else { return };
        let peers = &mut self.peers;
        channels.targets.send_if_modified(|targets| {
            let mut is_news = targets.local.as_ref() != local;
            targets.local = local.cloned();
            let known = leases.iter().flat_map(|(_, known)| known);
            let known: BTreeSet<IpAddr> = known.map(|(address, _)| *address).collect();
            // All that is old goes first: a subnet may move from one lease to another in one change.
            for old in leases.iter().filter_map(|(id, _)| peers.remove(*id)).flatten() {
                is_news |= !known.contains(&old) && targets.peers.remove(&old).is_some();
            }
            for (id, known) in leases.into_iter().filter(|(_, known)| !known.is_empty()) {
                peers.insert(id.clone(), known.iter().map(|(address, _)| *address).collect());
                for (address, target) in known {
                    is_news |= targets.peers.insert(address, target) != Some(target);
                }
            }
            is_news
        });
    }
}

impl Control {
    pub(super) fn probes_reported(&mut self, event: ProbeEvent) -> Changes {
        match event {
            // The plan says which peers to probe.
            ProbeEvent::Channels(channels) => self.paths.channels = Some(channels),
            ProbeEvent::On => {
                self.paths.state = State::On;
                return Changes::default();
            }
            // A path that is known to fail does not work again because it is no longer probed.
            ProbeEvent::Off(reason) => self.paths.state = State::Off(reason),
            ProbeEvent::Judged(judgements) => {
                self.apply_judgements(&judgements);
                return Changes::default();
            }
        }
        Changes { plan: true, ..Changes::default() }
    }

    fn apply_judgements(&mut self, judgements: &[Judgement]) {
        self.derive_peers();
        for judgement in judgements {
            self.paths.apply_judgement(judgement);
        }
        let judged: BTreeSet<IpAddr> = judgements.iter().map(|judgement| judgement.peer).collect();
        let is_affected = |endpoint: &Endpoint| {
            let peer = endpoint.subnet.base();
            judged.contains(&peer)
                && self.detour(endpoint) != self.inputs.detours.get(&peer).copied()
        };
        let leases = self.inputs.peers.leases();
        let affected = leases.filter(|lease| lease.endpoints.iter().any(is_affected));
        let affected: BTreeSet<LeaseId> = affected.map(|lease| lease.id.clone()).collect();
        let failed_before = self.failed_detours();
        self.revise(&affected);
        self.log_detours(failed_before);
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

    /// What was not answered before an edit or another lease says little of now: a peer that would
    /// leave the tunnel for that alone is asked anew.
    pub(super) fn doubt_silence(&mut self, ids: &BTreeSet<LeaseId>) {
        if self.paths.verdicts.is_empty() {
            return;
        }
        let leases = ids.iter().filter_map(|id| self.inputs.peers.lease(id));
        let endpoints = leases.flat_map(|lease| &lease.endpoints);
        let doubted = endpoints.filter(|endpoint| {
            self.paths.verdict(endpoint) == Verdict::Silent && self.is_tunnelled(endpoint)
        });
        let doubted: Vec<IpAddr> = doubted.map(|endpoint| endpoint.subnet.base()).collect();
        for peer in doubted {
            self.paths.verdicts.remove(&peer);
            *self.paths.rounds.entry(peer).or_default() += 1;
        }
    }

    /// Which of these peers are to be reached through the tunnel although they are on our link. A
    /// lease that is rejected may have a subnet that begins as that of an accepted one: it is ignored.
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

    pub(super) fn apply_detours(&mut self, detours: Vec<(IpAddr, Option<Detour>)>) {
        for (peer, detour) in detours {
            let before = match detour {
                Some(detour) => self.inputs.detours.insert(peer, detour),
                None => self.inputs.detours.remove(&peer),
            };
            self.changes.save |= before != detour;
            let is_fallback = matches!(detour, Some(Detour::Failed(_)));
            self.held.statistics.fallbacks += u64::from(is_fallback && before != detour);
        }
    }

    /// Who comes after those of these leases that are gone is judged anew.
    pub(super) fn forget_paths(&mut self, ids: &BTreeSet<LeaseId>) {
        let followed = ids.iter().filter_map(|id| self.paths.peers.get_key_value(id));
        let gone = followed.filter(|(id, _)| self.inputs.peers.lease(id).is_none());
        for peer in gone.flat_map(|(_, peers)| peers) {
            self.paths.verdicts.remove(peer);
            self.paths.rounds.remove(peer);
            self.changes.save |= self.inputs.detours.remove(peer).is_some();
        }
    }

    fn detour(&self, endpoint: &Endpoint) -> Option<Detour> {
        let config = self.inputs.config.as_ref()?;
        config.probing()?;
        let must_answer = backend::must_answer(config, endpoint);
        match (self.paths.verdict(endpoint), &self.paths.state) {
            (Verdict::Bad(cause), _) => Some(Detour::Failed(cause)),
            (Verdict::Silent, _) => must_answer.then_some(Detour::Unanswered),
            (Verdict::Pending, State::Starting | State::On) => {
                let stays = self.programmed_path(endpoint).map(|path| path == Path::Tunnel);
                stays.unwrap_or(must_answer).then_some(Detour::Unproven)
            }
            (Verdict::Pending, State::Off(_)) | (Verdict::Good, _) => None,
        }
    }

    /// Whether packets to the peer go through the tunnel as it is.
    fn is_tunnelled(&self, endpoint: &Endpoint) -> bool {
        self.programmed_path(endpoint) == Some(Path::Tunnel)
    }

    /// The path that packets to the peer take now; none without a route.
    fn programmed_path(&self, endpoint: &Endpoint) -> Option<Path> {
        let metric = Route::default_metric(endpoint.subnet.family());
        let key = Key::Route(endpoint.subnet, metric);
        let Some(Entry::Route(route)) = self.held.actual.get(&key) else { return None };
        // Of a route by way of a nexthop object the kernel need not tell the link.
        let nexthop = route.nexthop.and_then(|id| self.held.actual.get(&Key::Nexthop(id)));
        let link = route.link.as_ref().or_else(|| nexthop?.link());
        let is_tunnel = link.is_some_and(|link| self.derived.scope.tunnels.contains(link));
        Some(if is_tunnel { Path::Tunnel } else { Path::Direct })
    }

    /// Passes on to the probe task what has become of these leases.
    pub(super) fn follow_targets(&mut self, standings: &[(LeaseId, Option<Standing>)]) {
        let Some(local) = self.inputs.local() else { return };
        let probed =
            Local::of(&local, backend::pod_mtu(&self.derived.networks).unwrap_or_default());
        let known = |lease: &Arc<Lease>| {
            let ours =
                lease.endpoints.iter().filter(|it| local.node.uplink(it.subnet.family()).is_some());
            let round = |peer: IpAddr| self.paths.rounds.get(&peer).copied().unwrap_or_default();
            let target = |it: &Endpoint| Target::of(&local, it, round(it.subnet.base()));
            ours.map(|it| (it.subnet.base(), target(it))).collect()
        };
        let leases = standings.iter().map(|(id, standing)| {
            let believed = standing.as_ref().and_then(Standing::believed);
            (id, believed.filter(|_| probed.is_some()).map(known).unwrap_or_default())
        });
        let leases = leases.collect();
        self.paths.follow(probed.as_ref(), leases);
    }

    /// Why paths are not probed although the config asks for it.
    pub(super) fn probes_remark(&self) -> Option<String> {
        self.inputs.config.as_ref()?.probing()?;
        match &self.paths.state {
            State::Off(reason) => Some(format!("paths are not probed: {reason}")),
            State::Starting | State::On => None,
        }
    }

    pub(super) fn probe_status(&self) -> Option<ProbeStatus> {
        self.inputs.config.as_ref()?.probing()?;
        let findings = self.paths.channels.as_ref()?.findings.borrow();
        let mut status = ProbeStatus { counts: findings.counts, ..ProbeStatus::default() };
        match &self.paths.state {
            State::Starting => "starting".clone_into(&mut status.state),
            State::On => "on".clone_into(&mut status.state),
            State::Off(reason) => {
                "off".clone_into(&mut status.state);
                status.reason = Some(reason.clone());
            }
        }
        for subject in findings.subjects.values().filter(|subject| subject.target.direct) {
            match subject.verdict {
                Verdict::Pending => status.pending += 1,
                Verdict::Silent => status.silent += 1,
                Verdict::Good => status.good += 1,
                Verdict::Bad(_) => status.bad += 1,
            }
        }
        Some(status)
    }

    /// What the probes of one peer found.
    pub(super) fn path_status(&self, endpoint: &Endpoint) -> Option<PathStatus> {
        let findings = self.paths.channels.as_ref()?.findings.borrow();
        let subject = findings.subjects.get(&endpoint.subnet.base())?;
        let way = |path| way_status(subject, path, findings.epoch.elapsed());
        let Subject { target: Target { direct, tunnel, .. }, .. } = subject;
        Some(PathStatus {
            verdict: self.paths.verdict(endpoint),
            direct: direct.then(|| way(Path::Direct)),
            tunnel: tunnel.then(|| way(Path::Tunnel)),
        })
    }
}

/// What the probes of `subject` by `path` found, at the moment `now`.
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
