//! Tests that the kernel in memory follows the rules of the real one.

#![allow(clippy::unwrap_used)]

use futures::FutureExt;

use super::*;
use tweed::mac::MacAddr;
use tweed::model::entry::{Link, LinkKind, Neighbour, Route, Vxlan};
use tweed::model::node::{InterfaceAddress, Lifetime};

const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

fn eth0() -> LinkName {
    LinkName::new("eth0")
}

fn tunnel() -> LinkName {
    LinkName::new("flannel.1")
}

fn kernel() -> ModelKernel {
    let address = "172.16.0.5".parse().unwrap();
    let address =
        InterfaceAddress { address, prefix_len: 24, usable: true, lifetime: Lifetime::Permanent };
    let interface =
        Interface { name: eth0(), mtu: 1500, up: true, layer2: true, addresses: vec![address] };
    ModelKernel::new(Facts { interfaces: vec![interface], ..Facts::default() })
}

fn device() -> Entry {
    let vxlan = Vxlan {
        vni: 1,
        underlay: Some(eth0()),
        local: None,
        port: 8472,
        learning: false,
        gbp: false,
        group: None,
        l2miss: false,
    };
    let kind = LinkKind::Vxlan(Box::new(vxlan));
    Entry::Link(Link { name: tunnel(), kind, mtu: 1450, mac: MAC, up: true })
}

fn route(destination: &str, gateway: &str, link: LinkName) -> Route {
    Route::via(destination.parse().unwrap(), gateway.parse().unwrap(), link)
}

fn neighbour() -> Entry {
    let address = "10.244.3.0".parse().unwrap();
    Entry::Neighbour(Neighbour { link: tunnel(), address, mac: MAC, permanent: true })
}

fn apply(kernel: &ModelKernel, ops: &[Op]) -> Vec<String> {
    let refused = kernel.clone().apply(ops).now_or_never().unwrap().unwrap();
    refused.into_iter().map(|refused| refused.reason).collect()
}

fn notifications(kernel: &ModelKernel) -> Vec<Observation> {
    let next = || kernel.clone().observe().now_or_never().map(Result::unwrap);
    std::iter::from_fn(next).collect()
}

#[test]
fn an_entry_needs_its_device() {
    let kernel = kernel();
    let refused = apply(&kernel, &[Op::Create(neighbour().into())]);
    assert_eq!(refused, ["Cannot find device flannel.1"]);
    let refused = apply(&kernel, &[Op::Create(device().into()), Op::Create(neighbour().into())]);
    assert_eq!(refused, Vec::<String>::new());
    assert_eq!(apply(&kernel, &[Op::Create(device().into())]), ["File exists"]);
}

#[test]
fn a_gateway_must_be_on_the_link() {
    let near = Entry::Route(route("10.244.3.0/24", "172.16.0.9", eth0()));
    let far = Entry::Route(route("10.244.4.0/24", "172.17.0.9", eth0()));
    let refused = apply(&kernel(), &[Op::Create(far.into()), Op::Create(near.into())]);
    assert_eq!(refused, ["Nexthop has invalid gateway"]);
}

#[test]
fn a_link_that_goes_down_loses_its_ipv4_routes_silently() {
    let kernel = kernel();
    let v4 = Entry::Route(route("10.244.3.0/24", "10.244.3.0", tunnel()).onlink());
    let v6 = Entry::Route(route("fd00:3::/64", "fd00:3::", tunnel()).onlink());
    let ops = [device(), neighbour(), v4.clone(), v6.clone()].map(|entry| Op::Create(entry.into()));
    apply(&kernel, &ops);
    notifications(&kernel);
    kernel.link_down(&tunnel());
    let words = [Observation::Lost(v6.key()), Observation::LinkChanged(tunnel())];
    assert_eq!(notifications(&kernel), words);
    kernel.link_up(&tunnel());
    for entry in [v4, v6, neighbour()] {
        assert_eq!(kernel.state().get(&entry.key()), None);
    }
    assert_eq!(kernel.state().get(&device().key()), Some(&device()));
}

#[test]
fn a_removed_device_loses_its_entries() {
    let kernel = kernel();
    apply(&kernel, &[Op::Create(device().into()), Op::Create(neighbour().into())]);
    kernel.remove_interface(&eth0());
    assert!(kernel.state().is_empty());
}

#[test]
fn only_exactly_this_entry_is_removed() {
    let kernel = kernel();
    let ours = route("10.244.3.0/24", "172.16.0.9", eth0());
    let theirs = Entry::Route(Route { protocol: 4, ..ours.clone() });
    kernel.set(theirs.clone());
    assert_eq!(apply(&kernel, &[Op::Remove(Entry::Route(ours).into())]), Vec::<String>::new());
    assert_eq!(kernel.state().get(&theirs.key()), Some(&theirs));
}

#[test]
fn too_many_messages_are_one_overrun() {
    let kernel = kernel();
    for _ in 0..=BACKLOG {
        kernel.set(Entry::Route(route("10.244.3.0/24", "172.16.0.9", eth0())));
    }
    assert_eq!(notifications(&kernel), [Observation::Overrun]);
}
