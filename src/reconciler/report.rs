//! What the loop tells the outside, and the answers it gives.

use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Reconciler, Standing};
use crate::backend::{self, PeerPlan};
use crate::checkpoint::Checkpoint;
use crate::kernel::Kernel;
use crate::kernel::state::Entry;
use crate::lease::{Lease, LeaseAttributes, LeaseId, Rejected};
use crate::prefix::Prefix;
use crate::status::{LeaseStatus, PeerCounts, PeerStatus, Query, Readiness, Status};

/// How far the daemon has come. Others wait for it: the lease, subnet.env, systemd, health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What to publish, once the device can receive what it will attract.
    pub attributes: Option<LeaseAttributes>,
    /// What pods can use, once device and address are in place.
    pub usable: Option<Usable>,
    pub readiness: Readiness,
}

/// What pods of this node can be made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// All pods' addresses, one prefix per family, IPv4 first.
    pub networks: Vec<Prefix>,
    /// Those of this node, likewise.
    pub subnets: Vec<Prefix>,
    /// The largest packet of pods, in bytes.
    pub mtu: u32,
}

/// The channels out of the loop.
#[derive(Debug)]
pub struct Outputs {
    pub progress: watch::Sender<Progress>,
    /// When the loop last went round.
    pub heartbeat: watch::Sender<Instant>,
    /// Counted up to have the leases read again.
    pub read_again: watch::Sender<u64>,
    /// Counted up when a checkpoint would differ from the last one.
    pub changed: watch::Sender<u64>,
}

impl Outputs {
    pub(super) fn read_again(&self) {
        self.read_again.send_modify(|count| *count += 1);
    }
}

impl<K: Kernel> Reconciler<K> {
    /// Tells the outside how far we have come.
    pub(super) fn report(&mut self) {
        self.outputs.heartbeat.send_replace(Instant::now());
        self.log_readiness();
        let progress = Progress {
            attributes: self.publishable(),
            usable: self.usable(),
            readiness: self.readiness(),
        };
        self.outputs.progress.send_if_modified(|last| {
            let changed = *last != progress;
            *last = progress;
            changed
        });
        self.report_change();
    }

    /// Before all leases are known, a checkpoint would forget those of the last one.
    fn report_change(&mut self) {
        let knows_all = self.inputs.peers.is_complete() || self.inputs.remembered.is_some();
        if self.unsaved && knows_all && self.inputs.are_known() {
            self.unsaved = false;
            self.outputs.changed.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn answer(&self, query: Query) -> serde_json::Result<Box<RawValue>> {
        match query {
            Query::Status => to_raw_value(&self.status()),
            Query::Peers => to_raw_value(&self.peers()),
            Query::Leases => to_raw_value(&self.leases()),
            Query::Inputs => to_raw_value(&self.checkpoint()),
        }
    }

    /// Everything that the plan is made from; none before all of it is known.
    fn checkpoint(&self) -> Option<Checkpoint> {
        let local = self.inputs.local()?;
        let rules = local.rules();
        let leases = self.inputs.peers.leases().filter(|lease| !rules.is_own(&lease.id)).cloned();
        Some(Checkpoint { leases: leases.collect(), local })
    }

    /// Peers send to us as soon as they read our lease: not before the device is there to receive.
    fn publishable(&self) -> Option<LeaseAttributes> {
        let is_ready = self.inputs.confirmed && !self.inputs.lack_macs() && self.links_are_up();
        Some(self.inputs.local().filter(|_| is_ready)?.attributes())
    }

    fn usable(&self) -> Option<Usable> {
        let own = self.inputs.relied_on().filter(|_| self.local_is_met())?;
        let config = self.inputs.config.as_ref()?;
        Some(Usable {
            networks: config.networks().collect(),
            subnets: own.subnets().collect(),
            mtu: backend::pod_mtu(&self.networks)?,
        })
    }

    fn links_are_up(&self) -> bool {
        self.is_met(|entry| matches!(entry, Entry::Link(_)))
    }

    fn local_is_met(&self) -> bool {
        self.is_met(|entry| matches!(entry, Entry::Link(_) | Entry::Address(_)))
    }

    fn is_met(&self, concerns: impl Fn(&Entry) -> bool) -> bool {
        let mut wanted = self.local_entries().filter(|entry| concerns(entry));
        wanted.all(|entry| self.holds(entry))
    }

    fn holds(&self, entry: &Entry) -> bool {
        self.actual.get(&entry.key()).is_some_and(|have| entry.is_met_by(have))
    }

    /// The entries on our devices come first in the order of keys.
    fn local_entries(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.desired.state().entries();
        entries.take_while(|entry| {
            !matches!(
                entry,
                Entry::Fdb(_) | Entry::Neighbour(_) | Entry::Nexthop(_) | Entry::Route(_)
            )
        })
    }

    fn status(&self) -> Status {
        let local = self.inputs.local();
        let readiness = self.readiness();
        let uplinks = local.iter().flat_map(|local| &local.node.uplinks);
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: readiness.ready,
            reasons: readiness.reasons,
            store: self.inputs.store.clone(),
            backend: local.as_ref().map(|local| local.config.backend.kind.as_str().to_owned()),
            mixed: local.as_ref().is_some_and(|local| local.config.mixed),
            interface: local.as_ref().map(|local| local.node.interface.to_string()),
            public_ips: uplinks.map(|uplink| uplink.public_ip).collect(),
            subnets: self.inputs.own.iter().flat_map(Lease::subnets).collect(),
            mtu: backend::pod_mtu(&self.networks),
            peers: self.counts(),
            desired: self.desired.state().len(),
            refused: self.refused.iter().map(|(_, why)| why.to_owned()).collect(),
            statistics: self.statistics,
        }
    }

    fn counts(&self) -> PeerCounts {
        let mut counts =
            PeerCounts { missing: self.inputs.peers.missing().len(), ..PeerCounts::default() };
        for standing in self.desired.peers().values() {
            match standing {
                Standing::SetAside(_) => counts.set_aside += 1,
                Standing::Planned(PeerPlan(ways)) => {
                    for (_, way) in ways {
                        match way.as_ref().map(|way| way.path) {
                            Ok(backend::Path::Direct) => counts.direct += 1,
                            Ok(backend::Path::Tunnel) => counts.tunnel += 1,
                            Err(_) => counts.left_out += 1,
                        }
                    }
                }
            }
        }
        counts
    }

    fn peers(&self) -> Vec<PeerStatus> {
        let peers = self.desired.peers().iter();
        peers
            .flat_map(|(id, standing)| match standing {
                Standing::SetAside(reason) => vec![self.set_aside(id, reason)],
                Standing::Planned(plan) => self.planned(id, plan),
            })
            .collect()
    }

    fn set_aside(&self, id: &LeaseId, reason: &Rejected) -> PeerStatus {
        let endpoint = self.inputs.peers.lease(id).and_then(|lease| lease.endpoints.first());
        PeerStatus {
            lease: id.clone(),
            family: endpoint.map(|endpoint| endpoint.subnet.family()),
            subnet: endpoint.map(|endpoint| endpoint.subnet),
            public_ip: endpoint.map(|endpoint| endpoint.public_ip),
            backend: endpoint
                .map(|endpoint| endpoint.backend.as_str().to_owned())
                .unwrap_or_default(),
            path: None,
            reason: Some(format!("set aside: {reason}")),
            programmed: false,
        }
    }

    fn planned(&self, id: &LeaseId, PeerPlan(ways): &PeerPlan) -> Vec<PeerStatus> {
        let lease = self.inputs.peers.lease(id);
        let status = |(family, way): &(_, Result<backend::Way, _>)| {
            let endpoint = lease.and_then(|lease| lease.endpoint(*family));
            let holds = |entry: &Entry| self.holds(entry);
            PeerStatus {
                lease: id.clone(),
                family: Some(*family),
                subnet: endpoint.map(|endpoint| endpoint.subnet),
                public_ip: endpoint.map(|endpoint| endpoint.public_ip),
                backend: endpoint.map(|e| e.backend.as_str().to_owned()).unwrap_or_default(),
                path: way.as_ref().ok().map(|way| way.path),
                reason: way
                    .as_ref()
                    .err()
                    .map(|reason: &backend::Unreachable| format!("left out: {reason}")),
                programmed: way.as_ref().is_ok_and(|way| way.entries.iter().all(holds)),
            }
        };
        ways.iter().map(status).collect()
    }

    fn leases(&self) -> Vec<LeaseStatus> {
        let rules = self.inputs.rules();
        let reason = |id: &LeaseId| {
            let malformed =
                self.inputs.peers.malformed(id).map(|why| format!("kept as last read: {why}"));
            match self.desired.peers().get(id) {
                Some(Standing::SetAside(reason)) => Some(format!("set aside: {reason}")),
                Some(Standing::Planned(_)) | None => malformed,
            }
        };
        let status = |id: &LeaseId| {
            let lease = self.inputs.peers.lease(id);
            LeaseStatus {
                own: rules.is_own(id),
                reservation: lease.is_some_and(|lease| lease.grant.is_none()),
                reason: reason(id),
                lease: lease.cloned().unwrap_or_else(|| Lease::unreadable(id.clone())),
            }
        };
        self.inputs.peers.ids().map(status).collect()
    }
}
