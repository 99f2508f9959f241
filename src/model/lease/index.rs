//! An index of the subnets and VTEP MACs that leases claim, and of the lease that holds each.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::LeaseId;
use crate::mac::MacAddr;
use crate::model::prefix::{Family, Prefix};

/// A property that only one of several leases can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claimed {
    /// Overlapping subnets conflict, too.
    Subnet(Prefix),
    /// Per family, because each family has its own device.
    Mac(Family, MacAddr),
}

/// The order of precedence: of the leases with the same claim, the one of lowest rank holds it.
/// First come leases that the store lists, then those whose public IP the MAC is derived from, then
/// those that held it before the others were added, then the oldest.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) missing: bool,
    /// Whether the claim is a MAC that is not derived from the lease's public IP.
    pub(super) borrowed: bool,
    /// The sequence number among the MAC claims since the last full listing; 0 if it was listed.
    pub(super) arrival: u64,
    pub(super) created: u64,
    pub(super) id: LeaseId,
}

/// The claims of all leases that are valid by themselves.
///
/// A lease depends only on the holders of its claims and on the holders of subnets that overlap its
/// own. A lease that holds nothing therefore affects no other lease, however many claim the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    claims: BTreeSet<(Claimed, Rank)>,
    /// The number of subnets of each length: only these lengths are searched for overlaps.
    lengths: BTreeMap<(Family, u8), usize>,
    lowest: Rank,
    /// The number of claims that were visited.
    #[cfg(test)]
    pub(super) visited: std::cell::Cell<usize>,
}

impl Claimed {
    const fn subnet(self) -> Option<Prefix> {
        match self {
            Self::Subnet(subnet) => Some(subnet),
            Self::Mac(..) => None,
        }
    }
}

impl Index {
    pub(super) fn insert(&mut self, claimed: Claimed, rank: Rank) {
        if self.claims.insert((claimed, rank))
            && let Some(subnet) = claimed.subnet()
        {
            *self.lengths.entry(length(subnet)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, claim: &(Claimed, Rank)) {
        if self.claims.remove(claim)
            && let Some(subnet) = claim.0.subnet()
            && let Some(count) = self.lengths.get_mut(&length(subnet))
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length(subnet));
            }
        }
    }

    pub(super) fn holder(&self, claimed: Claimed) -> Option<&Rank> {
        self.claimants(claimed).next()
    }

    /// The lease that prevents one of rank `rank` from holding `subnet`: the holder of `subnet`, or
    /// else the first overlapping one, of which there may be thousands.
    pub(super) fn before(&self, subnet: Prefix, rank: &Rank) -> Option<&LeaseId> {
        let same = self.holder(Claimed::Subnet(subnet)).filter(|holder| *holder < rank);
        let overlapping = || self.overlapping(subnet).find(|holder| *holder < rank);
        same.or_else(overlapping).map(|holder| &holder.id)
    }

    /// The leases whose result depends on the holder of `claimed`.
    pub(super) fn dependents(&self, claimed: Claimed) -> impl Iterator<Item = &LeaseId> {
        let subnet = claimed.subnet().into_iter();
        let overlapping = subnet.flat_map(|subnet| self.overlapping(subnet));
        self.claimants(claimed).chain(overlapping).map(|rank| &rank.id)
    }

    /// The holders of the subnets that start with the address `base`.
    pub(super) fn starting_at(&self, base: IpAddr) -> impl Iterator<Item = &LeaseId> {
        let family = Family::of(base);
        let lengths = self.lengths.range((family, 0)..=(family, u8::MAX));
        let subnets = lengths.filter_map(move |((_, len), _)| Prefix::holding(base, *len));
        let subnets = subnets.filter(move |subnet| subnet.base() == base);
        let holders = subnets.filter_map(|subnet| self.holder(Claimed::Subnet(subnet)));
        holders.map(|holder| &holder.id)
    }

    fn claimants(&self, claimed: Claimed) -> impl Iterator<Item = &Rank> {
        let from = self.claims.range((claimed, self.lowest.clone())..);
        let same = from.take_while(move |(other, _)| *other == claimed);
        same.map(|(_, rank)| rank).inspect(|_| self.count())
    }

    /// The holders of other subnets that overlap `subnet`.
    fn overlapping(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        self.containing(subnet).chain(self.inside(subnet))
    }

    fn containing(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        let (family, len) = (subnet.family(), subnet.prefix_len());
        let shorter = self.lengths.range((family, 0)..(family, len));
        let outer = shorter.filter_map(move |((_, len), _)| Prefix::holding(subnet.base(), *len));
        outer.filter_map(|outer| self.holder(Claimed::Subnet(outer)))
    }

    fn inside(&self, subnet: Prefix) -> impl Iterator<Item = &Rank> {
        let from = self.claims.range((Claimed::Subnet(subnet), self.lowest.clone())..);
        let inside = from.map_while(move |(claimed, rank)| {
            let inner = claimed.subnet().filter(|inner| subnet.contains(inner.base()))?;
            Some((inner, rank))
        });
        let inside = inside.inspect(|_| self.count());
        let mut last = subnet;
        let first = inside.filter(move |(inner, _)| std::mem::replace(&mut last, *inner) != *inner);
        first.map(|(_, rank)| rank)
    }

    #[cfg_attr(not(test), allow(clippy::unused_self, clippy::missing_const_for_fn))]
    fn count(&self) {
        #[cfg(test)]
        self.visited.set(self.visited.get() + 1);
    }
}

fn length(subnet: Prefix) -> (Family, u8) {
    (subnet.family(), subnet.prefix_len())
}
