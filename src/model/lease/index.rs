//! What leases claim, subnets and VTEP MACs, and which lease has what several of them claim.

use std::collections::{BTreeMap, BTreeSet};

use super::LeaseId;
use crate::mac::MacAddr;
use crate::model::prefix::{Family, Prefix};

/// What only one of several leases can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claimed {
    /// Overlapping ones conflict, too.
    Subnet(Prefix),
    /// By family: each has a device of its own.
    Mac(Family, MacAddr),
}

/// The one rule of precedence: of the leases that claim the same, the lowest has it. One that the
/// store names, one to whose public IP a MAC belongs, one that had it before the others came, the
/// oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) missing: bool,
    /// Whether it is a MAC that is not derived from the lease's public IP.
    pub(super) borrowed: bool,
    /// The place among those that have claimed a MAC since the last full listing; 0 if it was listed.
    pub(super) came: u64,
    pub(super) created: u64,
    pub(super) id: LeaseId,
}

/// The claims of all leases that are allowed by themselves. A lease depends on the holder of what it
/// claims and on the holders of the subnets that overlap its own, on no other lease: so a lease that
/// holds nothing is of no concern to others, however many claim the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    claims: BTreeSet<(Claimed, Rank)>,
    /// How many subnets there are of each length: no other can hold one.
    lengths: BTreeMap<(Family, u8), usize>,
    /// It comes before every other.
    lowest: Rank,
    /// How many claims were looked at.
    #[cfg(test)]
    pub(super) looked_at: std::cell::Cell<usize>,
}

impl Index {
    pub(super) fn insert(&mut self, claimed: Claimed, rank: Rank) {
        if self.claims.insert((claimed, rank))
            && let Some(length) = length(claimed)
        {
            *self.lengths.entry(length).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, claim: &(Claimed, Rank)) {
        if self.claims.remove(claim)
            && let Some(length) = length(claim.0)
        {
            self.count_down(length);
        }
    }

    /// The claim of the lease that has it.
    pub(super) fn holder(&self, claimed: Claimed) -> Option<&Rank> {
        self.claimants(claimed).next()
    }

    /// The lease that keeps one of rank `rank` from having `subnet`: the holder of that, or else the
    /// first found of those that overlap it, of which there may be thousands.
    pub(super) fn before(&self, subnet: Prefix, rank: &Rank) -> Option<&LeaseId> {
        let same = self.holder(Claimed::Subnet(subnet)).filter(|holder| *holder < rank);
        let overlapping = || self.overlapping(subnet).find(|holder| *holder < rank);
        same.or_else(overlapping).map(|holder| &holder.id)
    }

    /// The leases whose standing depends on the holder of `claimed`.
    pub(super) fn dependents(&self, claimed: Claimed) -> impl Iterator<Item = &LeaseId> {
        let subnet = match claimed {
            Claimed::Subnet(subnet) => Some(subnet),
            Claimed::Mac(..) => None,
        };
        let overlapping = subnet.into_iter().flat_map(|subnet| self.overlapping(subnet));
        self.claimants(claimed).chain(overlapping).map(|rank| &rank.id)
    }

    fn claimants(&self, claimed: Claimed) -> impl Iterator<Item = &Rank> {
        let from = self.claims.range((claimed, self.lowest.clone())..);
        let same = from.take_while(move |(other, _)| *other == claimed);
        same.map(|(_, rank)| rank).inspect(|_| self.count())
    }

    /// The holders of the subnets that overlap `subnet` and are not the same.
    fn overlapping(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        self.around(subnet).chain(self.inside(subnet))
    }

    fn around(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        let (family, len) = (subnet.family(), subnet.prefix_len());
        let shorter = self.lengths.range((family, 0)..(family, len));
        let outer = shorter.filter_map(move |((_, len), _)| Prefix::holding(subnet.base(), *len));
        outer.filter_map(|outer| self.holder(Claimed::Subnet(outer)))
    }

    fn inside(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        let from = self.claims.range((Claimed::Subnet(subnet), self.lowest.clone())..);
        let inside = from.map_while(move |(claimed, rank)| match claimed {
            Claimed::Subnet(inner) if subnet.contains(inner.base()) => Some((*inner, rank)),
            Claimed::Subnet(_) | Claimed::Mac(..) => None,
        });
        let inside = inside.inspect(|_| self.count());
        let mut last = subnet;
        let first = inside.filter(move |(inner, _)| std::mem::replace(&mut last, *inner) != *inner);
        first.map(|(_, rank)| rank)
    }

    fn count_down(&mut self, length: (Family, u8)) {
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }

    #[cfg(test)]
    fn count(&self) {
        self.looked_at.set(self.looked_at.get() + 1);
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "only tests count")]
    const fn count(&self) {}
}

fn length(claimed: Claimed) -> Option<(Family, u8)> {
    match claimed {
        Claimed::Subnet(subnet) => Some((subnet.family(), subnet.prefix_len())),
        Claimed::Mac(..) => None,
    }
}
