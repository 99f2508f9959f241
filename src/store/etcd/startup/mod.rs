//! Admission control at start-up: limits the load of nodes that start at once on a busy etcd.

mod codec;
mod queue;
mod snapshot;

#[doc(hidden)]
pub use codec::read_snapshot;
pub(super) use snapshot::Proof;

use crate::random::random;
use crate::store::claim::{Allocation, Claim, Claimant, HeldLease};
use crate::store::etcd::EtcdSubnetManager;
use crate::store::etcd::ours::Own;
use crate::store::etcd::store::{Listing, Precondition, Stored};

/// Whether this request has created the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// This request has written it.
    Now,
    /// It may be from an earlier start, with pods on its subnet: it is never released.
    Before,
}

impl EtcdSubnetManager {
    /// The subnet that this node would allocate in an empty network, if etcd is busy and no other
    /// node holds it. It must be confirmed before it is used.
    pub(super) async fn reserve(
        &self,
        claimant: &Claimant<'_>,
        value: &[u8],
    ) -> Option<(Own, Since)> {
        if !self.store.client.is_busy().await {
            return None;
        }
        let Allocation::New(request) = claimant.claim(&[]).ok()?.allocation else { return None };
        let public_ip = *claimant.public_ips.first()?;
        // The key reserves both subnets only if they are the same slot of their pools.
        let subnets = request.allocate(Some(public_ip), random()).ok();
        let subnets = subnets.filter(|subnets| request.is_aligned(subnets))?;
        let mut own = self.new_own(claimant, &subnets, value).await;
        let since = self.write(&mut own, Precondition::Absent, Vec::new()).await.ok()?;
        Some((own, since))
    }
}

/// Whether `listing` contains `own` as written and permits it: this node has no other lease, and no
/// other key holds its subnets.
pub(super) fn is_confirmed(claimant: &Claimant<'_>, own: &Own, listing: &Listing) -> bool {
    let others: Vec<HeldLease> = listing.holdings().filter(|held| held.id != own.id).collect();
    let has_written = |it: &Stored| own.has_written(it) && it.mod_revision == own.mod_revision;
    let is_there = listing.get(&own.id).is_some_and(has_written);
    let subnets = own.subnets();
    let is_free = !others.iter().any(|held| subnets.iter().any(|own| held.overlaps(*own)));
    let is_chosen = |claim: &Claim<'_>| match &claim.allocation {
        Allocation::New(request) => claim.obsolete.is_empty() && !request.avoids(&subnets),
        Allocation::Existing(_) => false,
    };
    is_there && is_free && claimant.claim(&others).is_ok_and(|claim| is_chosen(&claim))
}
