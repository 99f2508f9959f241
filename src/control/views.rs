//! The loop's responses to queries.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::oneshot;
use tweed_http::page::Histogram;

use super::Control;
use super::apply::is_guard;
use crate::model::checkpoint::{Checkpoint, HostId};
use crate::model::config::Pool;
use crate::model::entry::{Entry, Key, Setting};
use crate::model::event::EventPage;
use crate::model::lease::{Endpoint, Lease, LeaseId, Rejected};
use crate::model::measurements::{Measurements, SubnetUsage};
use crate::model::path::Path;
use crate::model::prefix::Prefix;
use crate::model::report::{
    NodeReport, OtherMtu, Quality, exceptions, failing, failing_peers, groups, refresh_interval,
};
use crate::model::status::{
    FirewallStatus, GuardStatus, LeaseStatus, PeerCounts, PeerStatus, SettingStatus, Statistics,
    Status, TableStatus,
};
use crate::plan::backend::{self, PathPlan, PeerPlan, Unreachable};
use crate::plan::paths::{Board, ProbeState};
use crate::plan::trace::{PeerQuestion, Trace};

/// A query to the loop, with the channel for its response.
#[derive(Debug)]
pub enum Query {
    Status(oneshot::Sender<Status>),
    Metrics(oneshot::Sender<(Status, Measurements)>),
    Peers(oneshot::Sender<Vec<PeerStatus>>),
    Leases(oneshot::Sender<Vec<LeaseStatus>>),
    /// The events after that of this sequence number.
    Events(u64, oneshot::Sender<EventPage>),
    /// None until a lease is held.
    Report(oneshot::Sender<Option<NodeReport>>),
    /// All inputs of the plan; none until all are known.
    Checkpoint(oneshot::Sender<Option<Checkpoint>>),
    /// Asks the peer whose subnet begins with this address what happens to a packet.
    Peer(IpAddr, PeerQuestion, oneshot::Sender<Result<oneshot::Receiver<Trace>, String>>),
}

impl Control {
    /// The response is dropped if the task that asked has ended.
    pub(super) fn answer(&self, query: Query) {
        match query {
            Query::Status(reply) => drop(reply.send(self.status())),
            Query::Metrics(reply) => drop(reply.send((self.status(), self.measurements()))),
            Query::Peers(reply) => drop(reply.send(self.peers())),
            Query::Leases(reply) => drop(reply.send(self.leases())),
            Query::Events(after, reply) => drop(reply.send(self.recorder.after(after))),
            Query::Report(reply) => drop(reply.send(self.node_report())),
            Query::Checkpoint(reply) => drop(reply.send(self.checkpoint())),
            Query::Peer(peer, question, reply) => {
                drop(reply.send(self.ask_peer(peer, question)));
            }
        }
    }

    /// All inputs of the plan; none until all are known.
    pub(super) fn checkpoint(&self) -> Option<Checkpoint> {
        let local = self.inputs.local()?;
        let rules = local.rules();
        let leases = self.inputs.peers.leases().filter(|lease| !rules.is_own(&lease.id));
        let fallbacks = self.inputs.fallbacks.clone();
        // The host ID is added by the task that saves the checkpoint.
        let host = HostId::default();
        Some(Checkpoint { leases: leases.cloned().collect(), local, fallbacks, host })
    }

    fn status(&self) -> Status {
        let local = self.inputs.local();
        let readiness = self.readiness_of(&self.own_reasons());
        let uplinks = local.iter().flat_map(|local| &local.node.uplinks);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: readiness.ready,
            reasons: readiness.reasons,
            store: self.inputs.store.clone(),
            backend: local.as_ref().map(|local| local.config.backend.kind.as_str().to_owned()),
            mixed: local.as_ref().is_some_and(|local| local.config.mixed),
            interface: local.as_ref().map(|local| local.node.interface.to_string()),
            config: self.inputs.config_status(),
            public_ips: uplinks.map(|uplink| uplink.public_ip).collect(),
            subnets: self.inputs.own.iter().flat_map(Lease::subnets).collect(),
            mtu: backend::pod_mtu(&self.derived.backends),
            reachability: self.reachability_counts(),
            unreachable: self.first_unreachable(),
            peers: self.counts(),
            conflicts: self.conflicts(),
            firewall: self.firewall().map(|choice| FirewallStatus {
                name: choice.firewall.as_str().to_owned(),
                reason: choice.reason.to_owned(),
            }),
            tables: self.tables(Entry::is_rules),
            guard: self.guard_status(),
            settings: self.settings(),
            desired: self.derived.desired.state().len(),
            refused: self.state.refused.iter().map(|(_, why)| why.to_owned()).collect(),
            probes: self.probe_status(),
            statistics: Statistics { edits: self.inputs.edits, ..self.state.statistics },
        }
    }

    fn measurements(&self) -> Measurements {
        let probed = || self.current_board().into_iter().flat_map(Board::states);
        let mut loss = Histogram::of_shares();
        loss.extend(probed().filter_map(ProbeState::loss));
        let mut round_trip = Histogram::default();
        let times = probed().filter_map(ProbeState::round_trip);
        round_trip.extend(times.map(|time| time.as_secs_f64()));
        let (subnets, rollout) = (self.subnet_usage(), self.inputs.rollout_phase());
        Measurements { loss, round_trip, subnets, rollout, ..self.state.measured.clone() }
    }

    /// The subnets of each pool, as long as that of this node.
    pub(super) fn subnet_usage(&self) -> Vec<SubnetUsage> {
        let own = self.inputs.own.as_ref();
        let others = self.inputs.peers.leases().map(AsRef::as_ref);
        let others = others.filter(|lease| own.is_none_or(|own| own.id != lease.id));
        let leased: Vec<Prefix> = own.into_iter().chain(others).flat_map(Lease::subnets).collect();
        let usage = |pool: &Pool| self.usage_of(pool, leased.iter().copied());
        self.inputs.config.iter().flat_map(|config| &config.pools).map(usage).collect()
    }

    fn usage_of(&self, pool: &Pool, leased: impl Iterator<Item = Prefix>) -> SubnetUsage {
        let family = pool.network.family();
        let own = self.inputs.own.as_ref().and_then(|own| own.endpoint(family));
        let len = own.map_or(pool.subnet_len, |own| own.subnet.prefix_len());
        let (used, free) = pool.usage(leased, len);
        SubnetUsage { family, used, free }
    }

    /// Whether there are so few leases that no pool can be nearly exhausted, without reading them.
    pub(super) fn has_few_leases(&self) -> bool {
        let (_, leases) = self.inputs.peers.count_missing();
        let pools = self.inputs.config.iter().flat_map(|config| &config.pools);
        let mut free = pools.map(|pool| self.usage_of(pool, iter::empty()).free);
        free.all(|free| (leases as u128 + 1) < free / 10 * 9)
    }

    pub(super) fn tables(&self, concerns: impl Fn(&Entry) -> bool) -> Vec<TableStatus> {
        let name = |entry: &Entry| match entry {
            Entry::Table(table) => Some(table.name.to_string()),
            Entry::Chain(chain) => Some(chain.name.to_string()),
            _ => None,
        };
        let status = |entry: &Entry| {
            let programmed = self.holds(entry);
            name(entry).map(|name| TableStatus { name, programmed })
        };
        self.local_entries().filter(|entry| concerns(entry)).filter_map(status).collect()
    }

    pub(super) fn counts(&self) -> PeerCounts {
        let missing = self.inputs.peers.vanished();
        let mut counts = PeerCounts { missing, ..PeerCounts::default() };
        for lease_plan in self.derived.desired.peers().values() {
            let Ok((_, plan)) = lease_plan else {
                counts.rejected += 1;
                continue;
            };
            let paths = plan.paths.iter().map(|(_, planned)| planned.as_ref().map(|it| it.path));
            match paths.reduce(worse) {
                Some(Ok(Path::Direct)) => counts.direct += 1,
                Some(Ok(Path::Tunnel)) => counts.tunnel += 1,
                Some(Err(_)) => counts.skipped += 1,
                None => {}
            }
        }
        counts
    }

    /// The number of leases that conflict with another lease or with this node, by subject.
    fn conflicts(&self) -> BTreeMap<String, usize> {
        let lease_plans = self.derived.desired.peers().iter();
        let lease_plans = lease_plans.filter(|(id, _)| !self.inputs.peers.is_gone(id));
        let abouts = lease_plans.filter_map(|(_, it)| it.as_ref().err()?.conflict());
        let rival = self.inputs.rival.map(|rival| Rejected::OurAddress(rival.public_ip));
        let rival = rival.as_ref().and_then(Rejected::conflict);
        let mut conflicts = BTreeMap::new();
        for about in abouts.chain(rival) {
            *conflicts.entry(about.to_owned()).or_default() += 1;
        }
        conflicts
    }

    pub(super) fn peers(&self) -> Vec<PeerStatus> {
        let unmet = self.unmet();
        let peers = self.derived.desired.peers().iter();
        peers
            .flat_map(|(id, lease_plan)| match lease_plan {
                Err(reason) => vec![self.rejected(id, reason)],
                Ok((lease, plan)) => self.planned(lease, plan, &unmet),
            })
            .collect()
    }

    /// The keys that are desired and not met. A merge of both states is faster than a lookup per
    /// key.
    fn unmet(&self) -> BTreeSet<Key> {
        let both = self.derived.desired.state().merge_join(&self.state.actual);
        let unmet = both.filter_map(|(want, have)| {
            want.filter(|want| have.is_none_or(|have| !want.is_met_by(have)))
        });
        unmet.map(|entry| entry.key()).collect()
    }

    fn rejected(&self, id: &LeaseId, reason: &Rejected) -> PeerStatus {
        let endpoint = self.inputs.peers.lease(id).and_then(|lease| lease.endpoints.first());
        let family = endpoint.map(|endpoint| endpoint.subnet.family());
        let reason = Some(format!("rejected: {reason}"));
        PeerStatus { family, reason, ..peer_status(id, endpoint) }
    }

    fn planned(
        &self,
        lease: &Lease,
        PeerPlan { paths, .. }: &PeerPlan,
        unmet: &BTreeSet<Key>,
    ) -> Vec<PeerStatus> {
        let is_met = |entry: &Arc<Entry>| unmet.is_empty() || !unmet.contains(&entry.key());
        let status = |(family, planned): &(_, Result<backend::PathPlan, _>)| {
            let (endpoint, plan) = (lease.endpoint(*family), planned.as_ref().ok());
            PeerStatus {
                family: Some(*family),
                path: plan.map(|plan| plan.path),
                reachability: endpoint.and_then(|it| plan.map(|_| self.reachability(it))),
                reason: reason(planned),
                probes: endpoint.and_then(|endpoint| self.path_status(endpoint)),
                programmed: plan.is_some_and(|plan| plan.entries.iter().all(is_met)),
                ..peer_status(&lease.id, endpoint)
            }
        };
        paths.iter().map(status).collect()
    }

    fn leases(&self) -> Vec<LeaseStatus> {
        let rules = self.inputs.rules();
        let peers = &self.inputs.peers;
        let warning = |id: &LeaseId| {
            let malformed =
                peers.malformed(id).map(|why| format!("the last valid version is used: {why}"));
            malformed.or_else(|| peers.bad_source(id).map(|bad| bad.to_string()))
        };
        let reason = |id: &LeaseId| match self.derived.desired.peers().get(id) {
            Some(Err(reason)) => Some(format!("rejected: {reason}")),
            Some(Ok((lease, _))) if lease.is_vacant() => Some(vacancy(lease)),
            Some(Ok(_)) | None => warning(id),
        };
        let status = |id: &LeaseId| {
            let lease = peers.lease(id);
            LeaseStatus {
                own: rules.is_own(id),
                reservation: lease.is_some_and(|lease| lease.grant.is_none()),
                reason: reason(id),
                lease: lease.cloned().unwrap_or_else(|| Lease::unreadable(id.clone())),
            }
        };
        peers.ids().map(status).collect()
    }

    fn settings(&self) -> Vec<SettingStatus> {
        let status = |entry: &Entry| {
            let Entry::Setting(Setting { link, kind, .. }) = entry else { return None };
            let (link, effect) = (link.to_string(), kind.policy().effect?.to_owned());
            Some(SettingStatus { link, effect, programmed: self.holds(entry) })
        };
        self.local_entries().filter_map(status).collect()
    }

    /// None without a tunnel, or if no guard is requested.
    pub(super) fn guard_status(&self) -> Option<GuardStatus> {
        let asked = self.inputs.policy.guard?;
        self.inputs.config.as_ref().filter(|config| config.has_tunnel())?;
        let tables = self.tables(is_guard);
        let drops = self.is_met(|entry| matches!(entry, Entry::Renewal(_)));
        let admitted =
            self.state.actual.entries().filter(|entry| matches!(entry, Entry::Element(_)));
        Some(GuardStatus {
            asked,
            applied: !tables.is_empty() && drops && tables.iter().all(|table| table.programmed),
            tables,
            admitted: admitted.count(),
            refused: self.inputs.guarding.refused.clone(),
        })
    }

    /// This node's report to the operator; none until it holds a lease.
    pub(super) fn node_report(&self) -> Option<NodeReport> {
        let own = self.inputs.own.as_ref().filter(|_| self.inputs.acquired)?;
        let local = self.inputs.local()?;
        let peers = self.peers();
        let (quality, failing_peers) = (Quality::of_peers(&peers), failing_peers(&peers));
        let (counts, groups) = (self.counts(), groups(&peers));
        let refresh = refresh_interval(self.inputs.peers.leases().count());
        let (exceptions, exceptions_total) = exceptions(peers);
        Some(NodeReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            lease: own.id.clone(),
            name: self.inputs.identity.name.clone(),
            subnets: Lease::subnets(own).collect(),
            backend: local.config.backend.kind,
            mixed: local.config.mixed,
            config_revision: self.inputs.edit.revision(),
            follows: self.inputs.follows(),
            pending: self.inputs.pending(),
            invalid: self.inputs.edit.unusable(),
            strict_filters: self.inputs.strict_now.iter().cloned().collect(),
            pod_mtu: backend::pod_mtu(&self.derived.backends),
            // The task that publishes the report checks the pods.
            other_mtu: OtherMtu::default(),
            keeps_connections: local.policy.masquerade.is_some() && self.rules_are_met(),
            reachability: self.reachability_counts(),
            failing_peers,
            peers: counts,
            failing: failing(&self.inputs.fallbacks),
            exceptions,
            exceptions_total,
            quality,
            groups,
            refresh_seconds: Some(refresh.as_secs()),
            // Known to the task that publishes the report.
            daemon: None,
            node: local.node,
        })
    }
}

fn peer_status(id: &LeaseId, endpoint: Option<&Endpoint>) -> PeerStatus {
    PeerStatus {
        lease: id.clone(),
        subnet: endpoint.map(|endpoint| endpoint.subnet),
        public_ip: endpoint.map(|endpoint| endpoint.public_ip),
        backend: endpoint.map(|it| it.backend.as_str().to_owned()).unwrap_or_default(),
        ..PeerStatus::default()
    }
}

/// What a reservation waits for that no node has taken.
fn vacancy(lease: &Lease) -> String {
    let waits = if lease.endpoints.is_empty() {
        "no node gets this subnet"
    } else {
        "the node with this public IP has not taken it yet"
    };
    format!("reserved: {waits}")
}

/// The reason why there is no path, or not the direct one.
fn reason(planned: &Result<PathPlan, Unreachable>) -> Option<String> {
    match planned {
        Ok(planned) => planned.fallback.map(|fallback| fallback.to_string()),
        Err(reason) => Some(format!("skipped: {reason}")),
    }
}

/// The path that a peer with both counts by.
fn worse<E>(one: Result<Path, E>, other: Result<Path, E>) -> Result<Path, E> {
    match (&one, &other) {
        (Err(_), _) | (Ok(Path::Tunnel), Ok(_)) => one,
        (Ok(_), Err(_) | Ok(Path::Tunnel | Path::Direct)) => other,
    }
}
