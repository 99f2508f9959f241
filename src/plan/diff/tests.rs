//! The operation for each kind of difference; `tests/properties.rs` has the general properties.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::mac::MacAddr;
use crate::model::entry::{Fdb, Neighbour, Route};
use crate::plan::scope::Extent;

const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

fn name() -> LinkName {
    LinkName::new("flannel.1")
}

fn device() -> Link {
    let vxlan = Vxlan {
        vni: 1,
        underlay: Some(LinkName::new("eth0")),
        local: "172.16.0.5".parse().ok(),
        port: 8472,
        learning: false,
        gbp: false,
        group: None,
        l2miss: false,
    };
    Link { name: name(), kind: LinkKind::Vxlan(Box::new(vxlan)), mtu: 1450, mac: MAC, up: true }
}

/// The device with one changed attribute.
fn device_with(change: impl FnOnce(&mut Vxlan)) -> Link {
    let mut link = device();
    if let LinkKind::Vxlan(vxlan) = &mut link.kind {
        change(vxlan);
    }
    link
}

fn peer() -> [Entry; 3] {
    let gateway = "10.244.3.0".parse().unwrap();
    let destination = "172.16.0.9".parse().unwrap();
    let route = Route::via("10.244.3.0/24".parse().unwrap(), gateway, name()).onlink();
    [
        Entry::Fdb(Fdb { link: name(), mac: MAC, destination }),
        Entry::Neighbour(Neighbour { link: name(), address: gateway, mac: MAC, permanent: true }),
        Entry::Route(route),
    ]
}

fn scope() -> Scope {
    Scope {
        tunnels: [name()].into(),
        underlay: Some(LinkName::new("eth0")),
        tables: BTreeSet::new(),
        chains: BTreeSet::new(),
        extent: Extent::Spare,
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        subnets: Vec::new(),
        gateways: BTreeSet::new(),
        leaving: BTreeSet::new(),
        retired: Vec::new(),
    }
}

fn ops(desired: &[Entry], actual: &[Entry]) -> Vec<String> {
    let state = |entries: &[Entry]| entries.iter().cloned().collect::<KernelState>();
    let ops = diff(&state(desired), &state(actual), &scope());
    ops.iter().map(|op| op.to_string().split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn dependencies_of_an_entry_are_created_first_and_removed_last() {
    assert_eq!(ops(&peer(), &[]), ["+ fdb", "+ neigh", "+ route"]);
    assert_eq!(ops(&[], &peer()), ["- route", "- neigh", "- fdb"]);
    assert_eq!(ops(&peer(), &peer()), Vec::<String>::new());
}

#[test]
fn a_route_that_changes_is_replaced_not_removed() {
    let gateway = "172.16.0.9".parse().unwrap();
    let destination = "10.244.3.0/24".parse().unwrap();
    let direct = Entry::Route(Route::via(destination, gateway, LinkName::new("eth0")));
    assert_eq!(ops(&[direct], &peer()), ["~ route", "- neigh", "- fdb"]);
}

#[test]
fn a_device_is_corrected_in_place_where_the_kernel_can() {
    let want = [Entry::Link(device())];
    let correctable = [
        Link { mtu: 1400, ..device() },
        Link { mac: MacAddr::new([2, 0, 0, 0, 0, 1]), ..device() },
        Link { up: false, ..device() },
        device_with(|vxlan| vxlan.learning = true),
    ];
    for have in correctable {
        assert_eq!(ops(&want, &[Entry::Link(have.clone())]), ["~ link"], "{have}");
    }
}

#[test]
fn a_device_that_cannot_be_corrected_is_recreated_with_its_entries() {
    let [fdb, neighbour, route] = peer();
    let want = [Entry::Link(device()), fdb, neighbour, route];
    let others = [
        device_with(|vxlan| vxlan.vni = 2),
        device_with(|vxlan| vxlan.underlay = None),
        device_with(|vxlan| vxlan.local = None),
        device_with(|vxlan| vxlan.port = 4789),
        device_with(|vxlan| vxlan.gbp = true),
        device_with(|vxlan| vxlan.group = "239.1.1.1".parse().ok()),
        device_with(|vxlan| vxlan.l2miss = true),
        Link { kind: LinkKind::Other("dummy".into()), ..device() },
    ];
    for have in others {
        let mut actual = want.clone();
        actual[0] = Entry::Link(have.clone());
        let recreated = ["- link", "+ link", "+ fdb", "+ neigh", "+ route"];
        assert_eq!(ops(&want, &actual), recreated, "{have}");
    }
}

#[test]
fn a_device_that_is_not_desired_is_kept() {
    assert_eq!(ops(&[], &[Entry::Link(device())]), Vec::<String>::new());
}
