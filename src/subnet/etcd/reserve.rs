//! Takes a subnet from a busy etcd before all leases are read: thousands of nodes that start at
//! once shall not wait for each other's reading.

use super::Shared;
use super::ours::Own;
use super::store::{Condition, Listing, Outcome, Stored, Write};
use crate::subnet::allocate::Draw;
use crate::subnet::claim::{Claimant, Holding, Way};

impl Shared {
    /// The subnet that this node would take in an empty network, if etcd is busy and nobody has
    /// it. Nobody may rely on it before it is confirmed.
    pub(super) async fn reserve(&self, claimant: &Claimant<'_>, value: &[u8]) -> Option<Own> {
        if !self.store.client.is_busy().await {
            return None;
        }
        let Way::Create(wish) = claimant.claim(&[]).ok()?.way else { return None };
        let slot = Draw::SlotOf(*claimant.public_ips.first()?, rand::random());
        // The key of one family alone keeps others off only where both are in step.
        let subnets = wish.fulfil(slot).ok().filter(|subnets| wish.in_step(subnets))?;
        let own = self.new_own(claimant, subnets, value).await;
        let write = Write {
            id: own.id.clone(),
            value: own.value.clone(),
            grant: own.grant,
            condition: Condition::Absent(own.subnets.clone()),
            obsolete: Vec::new(),
        };
        match self.store.write(&write).await {
            Ok(Outcome::Written(revision)) => {
                Some(Own { created: revision.unsigned_abs(), mod_revision: revision, ..own })
            }
            // What is there already may be the lease of an earlier start, with pods on it: it is
            // never withdrawn, and claimed together with all others.
            Ok(Outcome::Refused(_)) | Err(_) => None,
        }
    }
}

/// Whether `own` is there as written and would have been taken had `listing` been read before: this
/// node has no other lease, and nobody stands in the way under another key.
pub(super) fn is_confirmed(claimant: &Claimant<'_>, own: &Own, listing: &Listing) -> bool {
    let holdings = listing.stored.iter().filter_map(Stored::holding);
    let others: Vec<Holding> = holdings.filter(|held| held.id != own.id).collect();
    let is_there = listing
        .stored
        .iter()
        .any(|stored| own.has_written(stored) && stored.mod_revision == own.mod_revision);
    let is_free = !others.iter().any(|held| own.subnets.iter().any(|own| held.overlaps(*own)));
    is_there
        && is_free
        && claimant
            .claim(&others)
            .is_ok_and(|claim| matches!(claim.way, Way::Create(_)) && claim.obsolete.is_empty())
}
