//! The desired kernel state, and the entries that each peer adds to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::entry::{Entry, KernelState, Key};
use crate::model::lease::{Lease, LeaseId, Peer, Peers, Rejected};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Fallbacks;
use crate::plan::backend::{self, Backend, PeerPlan};

/// The result of validating and planning one lease of the store: if it is accepted, the plan has its
/// path, or why it is unreachable.
pub type LeasePlan = Result<(Arc<Lease>, PeerPlan), Rejected>;

/// The result for each lease; `None` for a lease that is gone.
pub type LeasePlans = Vec<(LeaseId, Option<LeasePlan>)>;

/// Plans those of `peers` whose lease is accepted.
pub fn plan_leases<'a>(
    peers: impl Iterator<Item = (&'a LeaseId, Option<Peer<'a>>)>,
    backends: &[Backend],
    fallbacks: &Fallbacks,
) -> LeasePlans {
    let plan =
        |lease: &Arc<Lease>| (Arc::clone(lease), backend::plan_peer(backends, lease, fallbacks));
    peers.map(|(id, peer)| (id.clone(), peer.map(|peer| peer.map(plan)))).collect()
}

/// The desired kernel state, updated peer by peer.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    state: KernelState,
    peers: BTreeMap<LeaseId, LeasePlan>,
    /// Entries that several leases share, and by how many: nodes with one public IP, or behind one.
    shared: BTreeMap<Key, usize>,
    conflicts: BTreeSet<LeaseId>,
}

impl Desired {
    /// Plans everything at once, for callers that do not update the plan later.
    pub fn plan(local: &NodeInputs, peers: &mut Peers, fallbacks: &Fallbacks) -> Self {
        let backends = backend::backends(local);
        peers.validate_by(local.rules());
        Self::new(backend::plan_local(local), plan_leases(peers.all(), &backends, fallbacks))
    }

    /// Combines the entries of this node with those of all peers.
    pub fn new(mut local: KernelState, lease_plans: LeasePlans) -> Self {
        let known = lease_plans.into_iter().filter_map(|(id, lease_plan)| Some((id, lease_plan?)));
        let peers: BTreeMap<LeaseId, LeasePlan> = known.collect();
        local.extend(peers.values().flat_map(entries).cloned());
        let mut all: Vec<_> = peers.values().flat_map(entries).filter_map(shareable).collect();
        all.sort_unstable();
        let same = all.chunk_by(|one, other| one == other).filter(|same| same.len() > 1);
        let shared = same.filter_map(|same| Some((same.first()?.clone(), same.len()))).collect();
        let conflicts = peers.iter().filter(|(_, lease_plan)| conflicts_with_us(lease_plan));
        let conflicts = conflicts.map(|(id, _)| id.clone()).collect();
        Self { state: local, peers, shared, conflicts }
    }

    /// Replaces the plan of each listed peer; `None` removes the peer. Returns the keys that
    /// may differ now.
    pub fn revise(&mut self, changes: LeasePlans) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        // Old entries are removed first: a subnet may move from one lease to another in one change.
        for (id, _) in &changes {
            let old = self.peers.remove(id);
            self.conflicts.remove(id);
            for entry in old.iter().flat_map(entries) {
                if self.releases(entry) {
                    self.state.remove(&entry.key());
                }
                touched.insert(entry.key());
            }
        }
        let new =
            || changes.iter().filter_map(|(_, lease_plan)| lease_plan.as_ref()).flat_map(entries);
        for entry in new() {
            touched.insert(entry.key());
            self.put(entry);
        }
        for (id, lease_plan) in changes.into_iter().filter_map(|(id, new)| Some((id, new?))) {
            if conflicts_with_us(&lease_plan) {
                self.conflicts.insert(id.clone());
            }
            self.peers.insert(id, lease_plan);
        }
        touched
    }

    fn put(&mut self, entry: &Arc<Entry>) {
        let is_there = self.state.insert(Arc::clone(entry)).is_some();
        if let Some(shared) = shareable(entry).filter(|_| is_there) {
            *self.shared.entry(shared).or_insert(1) += 1;
        }
    }

    /// Removes one use of `entry`; returns whether no lease needs it any more.
    fn releases(&mut self, entry: &Arc<Entry>) -> bool {
        let Some(shared) = shareable(entry) else { return true };
        let Some(leases) = self.shared.get_mut(&shared) else { return true };
        *leases -= 1;
        if *leases == 1 {
            self.shared.remove(&shared);
        }
        false
    }

    pub const fn state(&self) -> &KernelState {
        &self.state
    }

    pub const fn peers(&self) -> &BTreeMap<LeaseId, LeasePlan> {
        &self.peers
    }

    pub const fn conflicts(&self) -> &BTreeSet<LeaseId> {
        &self.conflicts
    }
}

fn entries(lease_plan: &LeasePlan) -> impl Iterator<Item = &Arc<Entry>> {
    lease_plan.iter().flat_map(|(_, plan)| plan.entries())
}

/// The key of an entry that several leases may ask for.
fn shareable(entry: &Arc<Entry>) -> Option<Key> {
    matches!(entry.as_ref(), Entry::Element(_) | Entry::Fdb(_)).then(|| entry.key())
}

const fn conflicts_with_us(lease_plan: &LeasePlan) -> bool {
    use Rejected::{OurAddress, OurMac, OverlapsOurs};
    matches!(lease_plan, Err(OverlapsOurs(..) | OurAddress(_) | OurMac(_)))
}
