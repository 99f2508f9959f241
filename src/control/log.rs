//! What the log reports about this node and its peers, by name: one line for each event, up to
//! [`LINES`] of a kind per pass of the loop.

use std::sync::Arc;

use super::Control;
use super::derived::LeasePlans;
use crate::model::entry::Entry;
use crate::model::lease::{Endpoint, Lease, LeaseId};
use crate::model::measurements::PathChangeReason;
use crate::model::path::Path;
use crate::plan::backend::{PathPlan, PeerPlan};
use crate::plan::desired::LeasePlan;

/// The maximum number of lines of one kind in one pass of the loop.
pub(super) const LINES: usize = 10;

/// The peers added and removed since the last log lines.
#[derive(Debug, Default)]
pub(super) struct PeerNews {
    added: Vec<LeaseId>,
    /// With the name that only their former lease has.
    removed: Vec<(LeaseId, String)>,
}

impl Control {
    /// Counts and logs entries that were lost or changed, and are restored.
    pub(super) fn note_repairs(&mut self, repaired: &[Arc<Entry>]) {
        for entry in repaired {
            *self.state.measured.repairs.entry(entry.kind()).or_default() += 1;
        }
        for entry in repaired.iter().take(LINES) {
            let (kind, owner) = (entry.kind().name(), self.owner(entry));
            let lease = owner.map(|lease| lease.id.as_str());
            let (entry, peer) = (entry.to_string(), owner.map(lease_name));
            tracing::info!(kind, entry, lease, peer, "restored an entry that was lost or changed");
        }
        if repaired.len() > LINES {
            let more = repaired.len() - LINES;
            tracing::info!(more, "restored more entries that were lost or changed");
        }
    }

    /// The lease of the peer that needs `entry`; none for an entry of this node.
    fn owner(&self, entry: &Arc<Entry>) -> Option<&Lease> {
        let mut accepted = self.derived.desired.peers().values().flatten();
        let needs = |plan: &PeerPlan| plan.entries().any(|needed| needed == entry);
        accepted.find(|(_, plan)| needs(plan)).map(|(lease, _)| lease.as_ref())
    }

    /// Notes which peers `lease_plans` adds or removes, and whose path it changes.
    pub(super) fn note_paths(&mut self, lease_plans: &LeasePlans) {
        for (id, lease_plan) in lease_plans {
            let before = self.derived.desired.peers().get(id).and_then(accepted);
            match (before, lease_plan.as_ref().and_then(accepted)) {
                (None, None) => {}
                (None, Some(_)) => self.state.logged.peers.added.push(id.clone()),
                (Some((lease, _)), None) => {
                    self.state.logged.peers.removed.push((id.clone(), lease_name(lease)));
                }
                (Some(before), Some(now)) => {
                    for change in path_changes(before, now) {
                        *self.state.measured.path_changes.entry(change).or_default() += 1;
                    }
                }
            }
        }
    }

    /// Notes the peers whose lease is gone, and which a plan of all leases does not name.
    pub(super) fn note_gone(&mut self) {
        let planned = self.derived.desired.peers().iter();
        let gone = planned.filter(|(id, _)| self.inputs.peers.lease(id).is_none());
        let gone = gone.filter_map(|(id, plan)| Some((id.clone(), lease_name(accepted(plan)?.0))));
        self.state.logged.peers.removed.extend(gone);
    }

    pub(super) fn log_peers(&mut self) {
        let PeerNews { added, removed } = std::mem::take(&mut self.state.logged.peers);
        for (lease, peer) in removed.iter().take(LINES) {
            let lease = lease.as_str();
            tracing::info!(lease, peer, "peer removed");
        }
        for lease in added.iter().take(LINES) {
            let planned = self.derived.desired.peers().get(lease).and_then(accepted);
            let Some((of, plan)) = planned else { continue };
            let (lease, peer, path) = (lease.as_str(), lease_name(of), path_names(plan));
            tracing::info!(lease, peer, path, "peer added");
        }
        let more = |peers: usize| peers.saturating_sub(LINES);
        let (added, removed) = (more(added.len()), more(removed.len()));
        if added + removed > 0 {
            tracing::info!(added, removed, "more peers added or removed");
        }
    }

    /// Logs the applied backend, which may be the previous one if a change waits.
    pub(super) fn log_config(&mut self) {
        if self.state.failure.is_some() || self.changes.plan {
            return;
        }
        let Some(local) = self.inputs.local() else { return };
        let (kind, mixed) = (local.config.backend.kind, local.config.mixed);
        let before = self.state.logged.config.replace((kind, mixed));
        let is_edited = std::mem::take(&mut self.state.logged.edit);
        let (backend, revision) = (kind.as_str(), self.inputs.edit.revision());
        match before {
            Some((former, _)) if former != kind => {
                let from = former.as_str();
                tracing::info!(from, backend, mixed, revision, "this node changed its backend");
            }
            before if is_edited || before != Some((kind, mixed)) => {
                tracing::info!(backend, mixed, revision, "applied network config");
            }
            Some(_) | None => {}
        }
    }
}

/// As in `10.244.7.0/24 (172.16.0.7)`.
pub(super) fn endpoint_name(endpoint: &Endpoint) -> String {
    format!("{} ({})", endpoint.subnet, endpoint.public_ip)
}

fn lease_name(lease: &Lease) -> String {
    lease.endpoints.iter().map(endpoint_name).collect::<Vec<_>>().join(", ")
}

fn accepted(plan: &LeasePlan) -> Option<(&Lease, &PeerPlan)> {
    plan.as_ref().ok().map(|(lease, plan)| (lease.as_ref(), plan))
}

/// The path in each address family, or why there is none.
fn path_names(plan: &PeerPlan) -> String {
    let name = |path: &Result<PathPlan, _>| match path {
        Ok(planned) => planned.path.as_str().to_owned(),
        Err(reason) => format!("none: {reason}"),
    };
    plan.paths.iter().map(|(_, path)| name(path)).collect::<Vec<_>>().join(", ")
}

type PathChange = (Option<Path>, PathChangeReason);

fn path_changes(
    (old_lease, old): (&Lease, &PeerPlan),
    (lease, plan): (&Lease, &PeerPlan),
) -> Vec<PathChange> {
    let change = |(family, _): &(_, _)| {
        let (before, now) = (old.path(*family), plan.path(*family));
        let path = |planned: Option<&PathPlan>| planned.map(|planned| planned.path);
        let fallback = |planned: Option<&PathPlan>| planned.and_then(|planned| planned.fallback);
        let reason = if old_lease.endpoint(*family) != lease.endpoint(*family) {
            PathChangeReason::Peer
        } else if fallback(before) != fallback(now) {
            PathChangeReason::Probes
        } else {
            PathChangeReason::Node
        };
        (path(before) != path(now)).then_some((path(now), reason))
    };
    plan.paths.iter().filter_map(change).collect()
}
