//! The nodes that share an address, a subnet or a MAC address with another node, by mistake in most
//! cases. Such a node judges the leases of others by its own values; all others judge alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::mac::MacAddr;
use crate::model::lease::Lease;
use crate::model::node_inputs::NodeInputs;
use crate::model::prefix::{Family, Prefix};

/// The values that should be unique to one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    addresses: BTreeSet<IpAddr>,
    macs: BTreeSet<(Family, MacAddr)>,
    subnets: Vec<Prefix>,
}

impl Values {
    /// Those of a lease, and of its node if that reports.
    pub(super) fn of(lease: &Lease, local: Option<&NodeInputs>) -> Self {
        let mut values = Self { subnets: lease.subnets().collect(), ..Self::default() };
        for endpoint in &lease.endpoints {
            let source = endpoint.vtep.and_then(|vtep| vtep.source);
            values.addresses.extend([Some(endpoint.public_ip), source].into_iter().flatten());
            let mac = endpoint.vtep.map(|vtep| (endpoint.subnet.family(), vtep.mac));
            values.macs.extend(mac);
        }
        if let Some(local) = local {
            let uplinks = local.node.uplinks.iter();
            values.addresses.extend(uplinks.flat_map(|it| [it.public_ip, it.source, it.address]));
            values.macs.extend(local.macs.iter().map(|(family, mac)| (*family, *mac)));
        }
        values
    }
}

/// The positions of all nodes that may judge a lease differently from others: a value of theirs is
/// that of another node, or lies in a subnet of pods, or in one of `networks`.
pub(super) fn positions(nodes: &[Values], networks: &[Prefix]) -> BTreeSet<usize> {
    let mut found = shared(nodes.iter().map(|node| &node.addresses));
    found.extend(shared(nodes.iter().map(|node| &node.macs)));
    let subnets = nodes.iter().enumerate();
    let subnets = subnets.flat_map(|(at, node)| node.subnets.iter().map(move |it| (*it, at)));
    let mut subnets: Vec<(Prefix, usize)> = subnets.collect();
    subnets.sort_by_key(|(subnet, _)| (subnet.base(), subnet.prefix_len()));
    // Those that lie in no other one; in their order, none overlaps another.
    let mut outer: Vec<(Prefix, usize)> = Vec::new();
    for (subnet, at) in subnets {
        match outer.last() {
            Some((around, other)) if around.covers(subnet) => found.extend([at, *other]),
            Some(_) | None => outer.push((subnet, at)),
        }
    }
    for (at, node) in nodes.iter().enumerate() {
        for address in &node.addresses {
            let behind = outer.partition_point(|(subnet, _)| subnet.base() <= *address);
            let around = behind.checked_sub(1).and_then(|last| outer.get(last));
            if let Some((_, owner)) = around.filter(|(subnet, _)| subnet.contains(*address)) {
                found.extend([at, *owner]);
            }
            if networks.iter().any(|network| network.contains(*address)) {
                found.insert(at);
            }
        }
    }
    found
}

/// The positions of the sets that have a value in common with another one.
fn shared<'a, T: Copy + Ord + 'a>(sets: impl Iterator<Item = &'a BTreeSet<T>>) -> BTreeSet<usize> {
    let mut first: BTreeMap<T, usize> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    for (at, set) in sets.enumerate() {
        for value in set {
            match first.get(value) {
                Some(other) => shared.extend([*other, at]),
                None => {
                    first.insert(*value, at);
                }
            }
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with these addresses and this subnet, and the MAC address that ends with `mac`.
    fn node(addresses: &[&str], subnet: &str, mac: &str) -> Values {
        Values {
            addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            macs: [(Family::V4, MacAddr::derived_from(mac))].into(),
            subnets: vec![subnet.parse().unwrap()],
        }
    }

    fn found(changed: Values) -> Vec<usize> {
        let nodes = [
            node(&["172.16.0.1"], "10.244.1.0/24", "a"),
            node(&["172.16.0.2"], "10.244.2.0/24", "b"),
            changed,
        ];
        positions(&nodes, &["10.244.0.0/16".parse().unwrap()]).into_iter().collect()
    }

    #[test]
    fn nodes_with_values_of_their_own_are_alike() {
        assert_eq!(found(node(&["172.16.0.3", "172.16.1.3"], "10.244.3.0/24", "c")), [0; 0]);
    }

    #[test]
    fn a_value_of_another_node_is_found_on_both() {
        assert_eq!(found(node(&["172.16.0.2"], "10.244.3.0/24", "c")), [1, 2]);
        assert_eq!(found(node(&["172.16.0.3"], "10.244.3.0/24", "a")), [0, 2]);
        assert_eq!(found(node(&["172.16.0.3"], "10.244.2.0/25", "c")), [1, 2]);
        assert_eq!(found(node(&["172.16.0.3"], "10.244.0.0/22", "c")), [0, 1, 2]);
    }

    #[test]
    fn an_address_among_pods_is_found_on_both_nodes() {
        assert_eq!(found(node(&["10.244.1.9"], "10.244.3.0/24", "c")), [0, 2]);
        assert_eq!(found(node(&["10.244.9.9"], "10.244.3.0/24", "c")), [2]);
        assert_eq!(found(node(&["172.16.0.2"], "172.16.0.0/24", "c")), [0, 1, 2]);
    }
}
