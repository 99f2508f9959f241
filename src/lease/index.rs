//! Which leases stand in each other's way: those whose subnets overlap, and those that share a MAC address.

use std::collections::{BTreeMap, BTreeSet};

use super::{Endpoint, Lease, LeaseId};
use crate::mac::MacAddr;
use crate::prefix::{Family, Prefix};

#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    subnets: BTreeSet<(Prefix, LeaseId)>,
    /// How many subnets there are of each length: no other can hold one.
    lengths: BTreeMap<(Family, u8), usize>,
    /// By family: each has a device of its own.
    macs: BTreeSet<(Family, MacAddr, LeaseId)>,
    /// The empty one, which comes before every other.
    first: LeaseId,
}

impl Index {
    pub(super) fn insert(&mut self, lease: &Lease) {
        for subnet in lease.subnets() {
            if self.subnets.insert((subnet, lease.id.clone())) {
                *self.lengths.entry((subnet.family(), subnet.prefix_len())).or_default() += 1;
            }
        }
        self.macs.extend(macs(lease).map(|(family, mac)| (family, mac, lease.id.clone())));
    }

    pub(super) fn remove(&mut self, lease: &Lease) {
        for subnet in lease.subnets() {
            if self.subnets.remove(&(subnet, lease.id.clone())) {
                self.count_down((subnet.family(), subnet.prefix_len()));
            }
        }
        for (family, mac) in macs(lease) {
            self.macs.remove(&(family, mac, lease.id.clone()));
        }
    }

    /// The leases whose standing may depend on `lease`, itself included if it is indexed.
    pub(super) fn related(&self, lease: &Lease) -> BTreeSet<LeaseId> {
        self.overlapping(lease).chain(self.sharing_mac(lease)).cloned().collect()
    }

    pub(super) fn overlapping<'a>(&'a self, lease: &'a Lease) -> impl Iterator<Item = &'a LeaseId> {
        lease.subnets().flat_map(|subnet| self.around(subnet).chain(self.inside(subnet)))
    }

    pub(super) fn sharing_mac<'a>(&'a self, lease: &'a Lease) -> impl Iterator<Item = &'a LeaseId> {
        macs(lease).flat_map(|(family, mac)| self.holding_mac(family, mac))
    }

    pub(super) fn holding_mac(
        &self,
        family: Family,
        mac: MacAddr,
    ) -> impl Iterator<Item = &LeaseId> {
        let from = self.macs.range((family, mac, self.first.clone())..);
        from.take_while(move |(of, held, _)| (*of, *held) == (family, mac)).map(|(_, _, id)| id)
    }

    /// Those whose subnet holds all of `subnet` and more.
    fn around(&self, subnet: Prefix) -> impl Iterator<Item = &LeaseId> {
        let (family, len) = (subnet.family(), subnet.prefix_len());
        let shorter = self.lengths.range((family, 0)..(family, len));
        let outer = shorter.filter_map(move |((_, len), _)| Prefix::holding(subnet.base(), *len));
        outer.flat_map(|outer| {
            let from = self.subnets.range((outer, self.first.clone())..);
            from.take_while(move |(other, _)| *other == outer).map(|(_, id)| id)
        })
    }

    fn inside(&self, subnet: Prefix) -> impl Iterator<Item = &LeaseId> {
        let from = self.subnets.range((subnet, self.first.clone())..);
        from.take_while(move |(other, _)| subnet.contains(other.base())).map(|(_, id)| id)
    }

    fn count_down(&mut self, length: (Family, u8)) {
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }
}

fn macs(lease: &Lease) -> impl Iterator<Item = (Family, MacAddr)> + '_ {
    let mac = |endpoint: &Endpoint| Some((endpoint.subnet.family(), endpoint.vtep?.mac));
    lease.endpoints.iter().filter_map(mac)
}
