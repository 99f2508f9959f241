//! Whose an entry is, entry by entry.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::mac::MacAddr;
use crate::model::entry::{
    Base, Fdb, Iptables, Link, LinkKind, Neighbour, PROTOCOL, PROTOCOL_BOOT, SettingKind, Table,
};
use crate::model::prefix::Family;

const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

fn scope() -> Scope {
    Scope {
        tunnels: [LinkName::new("flannel.1")].into(),
        underlay: Some(LinkName::new("eth0")),
        tables: [table_name("tweed.1")].into(),
        chains: ChainName::all().collect(),
        extent: Extent::Spare,
        networks: vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/48".parse().unwrap()],
        subnets: vec!["10.244.1.0/24".parse().unwrap(), "fd00:244:0:1::/64".parse().unwrap()],
        gateways: ["172.16.0.9".parse().unwrap()].into(),
        retired: Vec::new(),
    }
}

fn table_name(name: &str) -> TableName {
    TableName { family: Family::V4, name: name.to_owned() }
}

#[derive(Debug, PartialEq, Eq)]
enum Whose {
    /// Outside of the scope: not even read.
    Nobodys,
    /// Read, since it may be in the way, and never removed.
    Others,
    Ours,
}

fn whose(entry: &Entry) -> Whose {
    match (scope().covers(entry), scope().owns(entry)) {
        (true, true) => Whose::Ours,
        (true, false) => Whose::Others,
        (false, false) => Whose::Nobodys,
        (false, true) => panic!("{entry} is removed without having been read"),
    }
}

/// `10.244.3.0/24 via GATEWAY dev LINK`, made by `protocol`.
fn route(gateway: &str, link: &str, protocol: u8) -> Route {
    let destination = "10.244.3.0/24".parse().unwrap();
    Route { protocol, ..Route::via(destination, gateway.parse().unwrap(), LinkName::new(link)) }
}

#[test]
fn a_route_with_our_mark_is_ours_wherever_it_leads() {
    for link in ["flannel.1", "eth0", "eth9"] {
        assert_eq!(whose(&Entry::Route(route("172.16.0.77", link, PROTOCOL))), Whose::Ours);
    }
}

#[test]
fn a_route_outside_of_the_network_is_nobodys() {
    let destination = "10.245.3.0/24".parse().unwrap();
    let outside = Route { destination, ..route("172.16.0.9", "eth0", PROTOCOL) };
    assert_eq!(whose(&Entry::Route(outside)), Whose::Nobodys);
    let destination = "10.0.0.0/8".parse().unwrap();
    let around = Route { destination, ..route("172.16.0.9", "eth0", PROTOCOL) };
    assert_eq!(whose(&Entry::Route(around)), Whose::Nobodys);
}

#[test]
fn an_unmarked_route_of_flannels_shape_is_ours() {
    let tunnelled = route("10.244.3.0", "flannel.1", PROTOCOL_BOOT).onlink();
    assert_eq!(whose(&Entry::Route(tunnelled)), Whose::Ours);
    let direct = route("172.16.0.9", "eth0", PROTOCOL_BOOT);
    assert_eq!(whose(&Entry::Route(direct)), Whose::Ours);
}

#[test]
fn an_unmarked_route_of_another_shape_is_somebody_elses() {
    let cases = [
        route("10.244.3.0", "flannel.1", PROTOCOL_BOOT),
        route("10.244.3.1", "flannel.1", PROTOCOL_BOOT).onlink(),
        route("10.244.3.0", "flannel.2", PROTOCOL_BOOT).onlink(),
        route("172.16.0.1", "eth0", PROTOCOL_BOOT),
        Route { gateway: None, ..route("172.16.0.9", "eth0", PROTOCOL_BOOT) },
        Route { gateway: None, link: None, ..route("172.16.0.9", "eth0", PROTOCOL_BOOT) },
    ];
    for case in cases {
        assert_eq!(whose(&Entry::Route(case.clone())), Whose::Others, "{case}");
    }
}

#[test]
fn a_route_with_another_mark_is_somebody_elses_whatever_its_shape() {
    let tunnelled = route("10.244.3.0", "flannel.1", 4).onlink();
    assert_eq!(whose(&Entry::Route(tunnelled)), Whose::Others);
}

#[test]
fn what_sits_on_our_device_is_ours_unless_it_is_of_its_own_making() {
    let on = |link: &str, permanent| {
        let address = "10.244.3.0".parse().unwrap();
        Entry::Neighbour(Neighbour { link: LinkName::new(link), address, mac: MAC, permanent })
    };
    assert_eq!(whose(&on("flannel.1", true)), Whose::Ours);
    assert_eq!(whose(&on("flannel.1", false)), Whose::Others);
    assert_eq!(whose(&on("eth0", true)), Whose::Nobodys);
    let fdb = |link: &str| {
        let destination = "172.16.0.9".parse().unwrap();
        Entry::Fdb(Fdb { link: LinkName::new(link), mac: MAC, destination })
    };
    assert_eq!(whose(&fdb("flannel.1")), Whose::Ours);
    assert_eq!(whose(&fdb("br0")), Whose::Nobodys);
}

#[test]
fn an_address_of_the_network_on_our_device_is_ours() {
    let address = |address: &str| {
        let (link, prefix_len) = (LinkName::new("flannel.1"), 32);
        Entry::Address(Address { link, address: address.parse().unwrap(), prefix_len })
    };
    assert_eq!(whose(&address("10.244.9.0")), Whose::Ours);
    assert_eq!(whose(&address("192.168.7.1")), Whose::Others);
}

#[test]
fn on_the_loopback_only_the_first_address_of_another_subnet_is_ours_to_remove() {
    let on = |link: &str, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let (link, prefix_len) = (LinkName::new(link), Family::of(address).width());
        Entry::Address(Address { link, address, prefix_len })
    };
    for stays in ["10.244.1.0", "fd00:244:0:1::"] {
        assert_eq!(whose(&on("lo", stays)), Whose::Others, "{stays}");
        let everything = Scope { extent: Extent::Everything, ..scope() };
        assert!(everything.owns(&on("lo", stays)), "{stays}");
    }
    for former in ["10.244.9.0", "fd00:244:0:9::"] {
        assert_eq!(whose(&on("lo", former)), Whose::Ours, "{former}");
        let without_lease = Scope { subnets: Vec::new(), ..scope() };
        assert!(!without_lease.owns(&on("lo", former)), "{former}");
    }
    for foreign in ["10.244.9.1", "fd00:244:0:9::1"] {
        assert_eq!(whose(&on("lo", foreign)), Whose::Others, "{foreign}");
        let everything = Scope { extent: Extent::Everything, ..scope() };
        assert!(!everything.owns(&on("lo", foreign)), "{foreign}");
    }
    for foreign in ["127.0.0.1", "10.245.9.0", "::1", "fd00::"] {
        assert_eq!(whose(&on("lo", foreign)), Whose::Nobodys, "{foreign}");
    }
    assert_eq!(whose(&on("lo1", "10.244.9.0")), Whose::Nobodys);
    let wide = Address {
        link: LinkName::loopback(),
        address: "10.244.9.0".parse().unwrap(),
        prefix_len: 24,
    };
    assert_eq!(whose(&Entry::Address(wide)), Whose::Nobodys);
}

#[test]
fn devices_and_settings_are_corrected_but_never_removed() {
    let link = LinkName::new("flannel.1");
    let kind = LinkKind::Other("vxlan".into());
    let device = Link { name: link.clone(), kind, mtu: 1450, mac: MAC, up: true };
    assert_eq!(whose(&Entry::Link(device)), Whose::Others);
    let filter = |link: &str| Entry::Setting(SettingKind::ReversePath.on(&LinkName::new(link)));
    assert_eq!(whose(&filter("eth0")), Whose::Others);
    assert_eq!(whose(&filter("flannel.1")), Whose::Others);
    assert_eq!(whose(&filter("eth9")), Whose::Nobodys);
    assert_eq!(whose(&Entry::Setting(SettingKind::AcceptRa.on(&link))), Whose::Others);
}

#[test]
fn two_scopes_that_differ_in_gateways_alone_read_the_same() {
    let other = Scope { gateways: BTreeSet::new(), ..scope() };
    assert!(scope().sees_the_same(&other));
    let other = Scope { underlay: None, ..scope() };
    assert!(!scope().sees_the_same(&other));
}

fn device(name: &str, mtu: u32, mac: MacAddr) -> Link {
    let kind = LinkKind::Vxlan(Box::new(crate::model::entry::Vxlan {
        vni: 1,
        underlay: Some(LinkName::new("eth0")),
        local: Some("172.16.0.5".parse().unwrap()),
        port: 8472,
        learning: false,
        gbp: false,
        group: None,
        l2miss: false,
    }));
    Link { name: LinkName::new(name), kind, mtu, mac, up: true }
}

#[test]
fn only_exactly_our_device_is_ours_and_only_once_it_is_retired() {
    let ours = device("flannel.1", 1450, MAC);
    let retired = Scope { retired: vec![ours.clone()], ..scope() };
    assert!(!scope().owns(&Entry::Link(ours.clone())));
    assert!(retired.owns(&Entry::Link(ours.clone())));
    assert!(retired.owns(&Entry::Link(device("flannel.1", 1400, MAC))));
    let other = MacAddr::new([2, 0, 0, 0, 0, 8]);
    assert!(!retired.owns(&Entry::Link(device("flannel.1", 1450, other))));
    let foreign = Link { kind: LinkKind::Other("bridge".to_owned()), ..ours };
    assert!(!retired.owns(&Entry::Link(foreign)));
}

#[test]
fn a_chain_that_saves_packets_is_ours_only_when_everything_goes() {
    let name = ChainName { iptables: Iptables::Nft, family: Family::V4, base: Base::Forward };
    let spare = Chain::of(name, Vec::new());
    let needed = Chain { otherwise: Otherwise::Dropped, ..spare.clone() };
    let everything = Scope { extent: Extent::Everything, ..scope() };
    assert!(scope().owns(&Entry::Chain(spare.clone())) && everything.owns(&Entry::Chain(spare)));
    assert!(!scope().owns(&Entry::Chain(needed.clone())));
    assert!(everything.owns(&Entry::Chain(needed)));
}

#[test]
fn a_table_of_our_name_is_ours_whoever_filled_it() {
    let table = |name| {
        let chains = std::collections::BTreeMap::new();
        Entry::Table(Table { name: table_name(name).into(), chains, foreign: 3 })
    };
    assert_eq!(whose(&table("tweed.1")), Whose::Ours);
    assert_eq!(whose(&table("tweed.2")), Whose::Nobodys);
    assert_eq!(whose(&table("kube-proxy")), Whose::Nobodys);
}
