//! The desired state and what each peer contributes to it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::backend::{self, Detours, Local, Network, PeerPlan};
use crate::kernel::state::{Entry, KernelState, Key};
use crate::lease::{Lease, LeaseId, Peer, Peers, Rejected};

/// What became of one lease of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This is believed; the plan says how it is reached, or why not.
    Planned(Arc<Lease>, PeerPlan),
    /// Not believed.
    SetAside(Rejected),
}

impl Standing {
    /// Where `peer` stands.
    pub fn of(peer: Peer<'_>, networks: &[Box<dyn Network>], detours: &Detours) -> Self {
        match peer {
            Ok(lease) => {
                let plan = backend::plan_peer(networks, lease, detours);
                Self::Planned(Arc::clone(lease), plan)
            }
            Err(rejected) => Self::SetAside(rejected),
        }
    }

    /// The lease, if it is believed.
    pub const fn believed(&self) -> Option<&Arc<Lease>> {
        match self {
            Self::Planned(lease, _) => Some(lease),
            Self::SetAside(_) => None,
        }
    }
}

/// What the kernel should hold, kept up to date peer by peer.
#[derive(Clone, Debug, Default)]
pub struct Desired {
    state: KernelState,
    peers: BTreeMap<LeaseId, Standing>,
    /// The addresses that several leases name, and how many: each is let in once.
    shared: BTreeMap<IpAddr, usize>,
}

impl Desired {
    /// The whole plan at once, for those who do not keep it up to date.
    pub fn plan(local: &Local, peers: &Peers, detours: &Detours) -> Self {
        let networks = backend::networks(local);
        let rules = local.rules();
        let standing = |peer| Standing::of(peer, &networks, detours);
        let standings = peers.all(&rules).map(|(id, peer)| (id.clone(), peer.map(standing)));
        Self::new(backend::plan_local(local, &networks), standings)
    }

    /// What is desired for our own sake, and for that of all peers.
    pub fn new(
        mut local: KernelState,
        peers: impl IntoIterator<Item = (LeaseId, Option<Standing>)>,
    ) -> Self {
        let standings = peers.into_iter().filter_map(|(id, standing)| Some((id, standing?)));
        let peers: BTreeMap<LeaseId, Standing> = standings.collect();
        local.extend(peers.values().flat_map(entries).cloned());
        let mut admitted: Vec<_> = peers.values().flat_map(entries).filter_map(admission).collect();
        admitted.sort_unstable();
        let same = admitted.chunk_by(|one, other| one == other).filter(|same| same.len() > 1);
        let shared = same.filter_map(|same| Some((*same.first()?, same.len()))).collect();
        Self { state: local, peers, shared }
    }

    /// Puts each peer's new standing in the place of its old one; none removes the peer. Returns
    /// the keys that may differ now.
    pub fn revise(&mut self, changes: Vec<(LeaseId, Option<Standing>)>) -> BTreeSet<Key> {
        let mut touched = BTreeSet::new();
        // All that is old goes first: a subnet may move from one lease to another in one change.
        for (id, _) in &changes {
            let old = self.peers.remove(id);
            for entry in old.iter().flat_map(entries) {
                if self.releases(entry) {
                    self.state.remove(&entry.key());
                }
                touched.insert(entry.key());
            }
        }
        let new = || changes.iter().filter_map(|(_, standing)| standing.as_ref()).flat_map(entries);
        for entry in new() {
            touched.insert(entry.key());
            self.put(entry);
        }
        let standings = changes.into_iter().filter_map(|(id, standing)| Some((id, standing?)));
        self.peers.extend(standings);
        touched
    }

    fn put(&mut self, entry: &Arc<Entry>) {
        let is_there = self.state.insert(Arc::clone(entry)).is_some();
        if let Some(address) = admission(entry).filter(|_| is_there) {
            *self.shared.entry(address).or_insert(1) += 1;
        }
    }

    /// Whether nobody needs `entry` any more once one of those who do is gone.
    fn releases(&mut self, entry: &Arc<Entry>) -> bool {
        let Some(address) = admission(entry) else { return true };
        let Some(leases) = self.shared.get_mut(&address) else { return true };
        *leases -= 1;
        if *leases == 1 {
            self.shared.remove(&address);
        }
        false
    }

    pub const fn state(&self) -> &KernelState {
        &self.state
    }

    pub const fn peers(&self) -> &BTreeMap<LeaseId, Standing> {
        &self.peers
    }
}

/// What a peer contributes.
fn entries(standing: &Standing) -> impl Iterator<Item = &Arc<Entry>> {
    let plan = match standing {
        Standing::Planned(_, plan) => Some(plan),
        Standing::SetAside(_) => None,
    };
    plan.into_iter().flat_map(PeerPlan::entries)
}

/// The address that `entry` lets in.
fn admission(entry: &Arc<Entry>) -> Option<IpAddr> {
    match entry.as_ref() {
        Entry::Element(element) => Some(element.address),
        _ => None,
    }
}
