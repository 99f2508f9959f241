//! The leases that one simulated node knows, in a few bytes each, and fast to compare.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use tweed::model::lease::{Lease, LeaseId, LeaseUpdate, Record};
use tweed::model::prefix::number;
use tweed::store::etcd::key;

/// The leases a node has seen: a fingerprint by the first address of each subnet.
#[derive(Debug, Default)]
pub(super) struct View {
    fingerprints: HashMap<u32, u32>,
    sum: u64,
}

/// Equal for equal views, independent of the order of updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) leases: usize,
    sum: u64,
}

impl View {
    pub(super) fn apply(&mut self, update: &LeaseUpdate) {
        match update {
            LeaseUpdate::Snapshot(records) => {
                *self = Self::default();
                for record in records {
                    self.put(record);
                }
            }
            LeaseUpdate::Put(record) => self.put(record),
            LeaseUpdate::Remove(id) | LeaseUpdate::DeleteNode(id) => self.set(id, None),
        }
    }

    pub(super) fn put_lease(&mut self, lease: &Lease) {
        self.set(&lease.id, Some(fingerprint(lease)));
    }

    pub(super) fn digest(&self) -> Digest {
        Digest { leases: self.fingerprints.len(), sum: self.sum }
    }

    fn put(&mut self, record: &Record) {
        self.set(&record.id, record.lease.as_ref().ok().map(fingerprint));
    }

    fn set(&mut self, id: &LeaseId, new: Option<u32>) {
        let Some(place) = place(id) else { return };
        let old = match new {
            Some(new) => self.fingerprints.insert(place, new),
            None => self.fingerprints.remove(&place),
        };
        let mark = |print: Option<u32>| print.map_or(0, |print| hash(&(place, print)));
        self.sum = self.sum.wrapping_add(mark(new)).wrapping_sub(mark(old));
    }
}

/// Simulated nodes have IPv4 subnets only.
fn place(id: &LeaseId) -> Option<u32> {
    let first = *key::decode(id)?.first()?;
    u32::try_from(number(first.base())).ok()
}

fn fingerprint(lease: &Lease) -> u32 {
    let mut hasher = DefaultHasher::new();
    (lease.created, lease.grant).hash(&mut hasher);
    for endpoint in &lease.endpoints {
        (endpoint.public_ip, endpoint.backend.as_str()).hash(&mut hasher);
    }
    let [high, low] = [hasher.finish() >> 32, hasher.finish() & u64::from(u32::MAX)];
    u32::try_from(high ^ low).unwrap_or_default()
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use tweed::model::config::BackendType;
    use tweed::model::lease::Endpoint;

    use super::*;

    fn lease(number: u8, backend: BackendType) -> Lease {
        let subnet = format!("10.5.{number}.0/24").parse().unwrap();
        let public_ip = [192, 168, 0, number].into();
        Lease {
            id: key::encode(&[subnet]),
            endpoints: vec![Endpoint { subnet, public_ip, backend: backend.into(), vtep: None }],
            created: u64::from(number),
            grant: Some(i64::from(number)),
        }
    }

    fn record(number: u8, backend: BackendType) -> Record {
        let lease = lease(number, backend);
        Record { id: lease.id.clone(), lease: Ok(lease) }
    }

    fn vxlan(number: u8) -> Record {
        record(number, BackendType::Vxlan)
    }

    fn digest(updates: &[LeaseUpdate]) -> Digest {
        let mut view = View::default();
        for update in updates {
            view.apply(update);
        }
        view.digest()
    }

    #[test]
    fn a_view_is_independent_of_the_order() {
        let at_once = digest(&[LeaseUpdate::Snapshot(vec![vxlan(1), vxlan(2)])]);
        let host_gw = LeaseUpdate::Put(record(1, BackendType::HostGw));
        let one_by_one = digest(&[
            LeaseUpdate::Snapshot(vec![vxlan(3)]),
            LeaseUpdate::Put(vxlan(2)),
            host_gw,
            LeaseUpdate::Put(vxlan(1)),
            LeaseUpdate::Remove(vxlan(3).id),
        ]);
        assert_eq!(at_once, one_by_one);
        assert_eq!(at_once.leases, 2);
    }

    #[test]
    fn one_other_attribute_is_another_view() {
        let vxlan = digest(&[LeaseUpdate::Put(vxlan(1))]);
        let host_gw = digest(&[LeaseUpdate::Put(record(1, BackendType::HostGw))]);
        assert_ne!(vxlan, host_gw);
    }

    #[test]
    fn a_lease_has_the_fingerprint_of_its_record() {
        let mut view = View::default();
        view.put_lease(&lease(7, BackendType::Vxlan));
        assert_eq!(view.digest(), digest(&[LeaseUpdate::Put(vxlan(7))]));
    }

    #[test]
    fn a_second_snapshot_forgets_the_first() {
        let second = LeaseUpdate::Snapshot(vec![vxlan(2)]);
        let both = digest(&[LeaseUpdate::Snapshot(vec![vxlan(1)]), second.clone()]);
        assert_eq!(both, digest(&[second]));
    }
}
