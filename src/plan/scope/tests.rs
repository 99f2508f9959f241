//! Ownership, entry by entry.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use crate::mac::MacAddr;
use crate::model::entry::{
    Base, Element, Fdb, Iptables, Link, LinkKind, Neighbour, PROTOCOL, PROTOCOL_BOOT, Renewal,
    SettingKind, Table,
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
        leaving: BTreeSet::new(),
        retired: Vec::new(),
    }
}

fn table_name(name: &str) -> TableName {
    TableName { family: Family::V4, name: name.to_owned() }
}

#[derive(Debug, PartialEq, Eq)]
enum Class {
    /// Out of scope: not read.
    OutOfScope,
    /// Read, because it may conflict with an entry of tweed, and never removed.
    Foreign,
    Owned,
}

fn classify(entry: &Entry) -> Class {
    match (scope().covers(entry), scope().owns(entry)) {
        (true, true) => Class::Owned,
        (true, false) => Class::Foreign,
        (false, false) => Class::OutOfScope,
        (false, true) => panic!("{entry} is removed without having been read"),
    }
}

/// `10.244.3.0/24 via GATEWAY dev LINK`, made by `protocol`.
fn route(gateway: &str, link: &str, protocol: u8) -> Route {
    let destination = "10.244.3.0/24".parse().unwrap();
    Route { protocol, ..Route::via(destination, gateway.parse().unwrap(), LinkName::new(link)) }
}

#[test]
fn a_marked_route_is_owned_on_any_link() {
    for link in ["flannel.1", "eth0", "eth9"] {
        assert_eq!(classify(&Entry::Route(route("172.16.0.77", link, PROTOCOL))), Class::Owned);
    }
}

#[test]
fn a_route_outside_of_the_network_is_out_of_scope() {
    let destination = "10.245.3.0/24".parse().unwrap();
    let outside = Route { destination, ..route("172.16.0.9", "eth0", PROTOCOL) };
    assert_eq!(classify(&Entry::Route(outside)), Class::OutOfScope);
    let destination = "10.0.0.0/8".parse().unwrap();
    let around = Route { destination, ..route("172.16.0.9", "eth0", PROTOCOL) };
    assert_eq!(classify(&Entry::Route(around)), Class::OutOfScope);
}

#[test]
fn an_unmarked_route_in_flannels_form_is_owned() {
    let tunnelled = route("10.244.3.0", "flannel.1", PROTOCOL_BOOT).onlink();
    assert_eq!(classify(&Entry::Route(tunnelled)), Class::Owned);
    let direct = route("172.16.0.9", "eth0", PROTOCOL_BOOT);
    assert_eq!(classify(&Entry::Route(direct)), Class::Owned);
}

#[test]
fn an_unmarked_route_in_another_form_is_foreign() {
    let cases = [
        route("10.244.3.0", "flannel.1", PROTOCOL_BOOT),
        route("10.244.3.1", "flannel.1", PROTOCOL_BOOT).onlink(),
        route("10.244.3.0", "flannel.2", PROTOCOL_BOOT).onlink(),
        route("172.16.0.1", "eth0", PROTOCOL_BOOT),
        Route { gateway: None, ..route("172.16.0.9", "eth0", PROTOCOL_BOOT) },
        Route { gateway: None, link: None, ..route("172.16.0.9", "eth0", PROTOCOL_BOOT) },
    ];
    for case in cases {
        assert_eq!(classify(&Entry::Route(case.clone())), Class::Foreign, "{case}");
    }
}

#[test]
fn a_route_with_another_mark_is_foreign_in_any_form() {
    let tunnelled = route("10.244.3.0", "flannel.1", 4).onlink();
    assert_eq!(classify(&Entry::Route(tunnelled)), Class::Foreign);
}

#[test]
fn entries_on_our_device_are_owned_unless_the_kernel_made_them() {
    let on = |link: &str, permanent| {
        let address = "10.244.3.0".parse().unwrap();
        Entry::Neighbour(Neighbour { link: LinkName::new(link), address, mac: MAC, permanent })
    };
    assert_eq!(classify(&on("flannel.1", true)), Class::Owned);
    assert_eq!(classify(&on("flannel.1", false)), Class::Foreign);
    assert_eq!(classify(&on("eth0", true)), Class::OutOfScope);
    let fdb = |link: &str| {
        let destination = "172.16.0.9".parse().unwrap();
        Entry::Fdb(Fdb { link: LinkName::new(link), mac: MAC, destination })
    };
    assert_eq!(classify(&fdb("flannel.1")), Class::Owned);
    assert_eq!(classify(&fdb("br0")), Class::OutOfScope);
}

#[test]
fn an_address_of_the_network_on_our_device_is_owned() {
    let address = |address: &str| {
        let (link, prefix_len) = (LinkName::new("flannel.1"), 32);
        Entry::Address(Address { link, address: address.parse().unwrap(), prefix_len })
    };
    assert_eq!(classify(&address("10.244.9.0")), Class::Owned);
    assert_eq!(classify(&address("192.168.7.1")), Class::Foreign);
}

#[test]
fn on_the_loopback_only_the_first_address_of_another_subnet_is_owned() {
    let on = |link: &str, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let (link, prefix_len) = (LinkName::new(link), Family::of(address).width());
        Entry::Address(Address { link, address, prefix_len })
    };
    for stays in ["10.244.1.0", "fd00:244:0:1::"] {
        assert_eq!(classify(&on("lo", stays)), Class::Foreign, "{stays}");
        let everything = Scope { extent: Extent::Everything, ..scope() };
        assert!(everything.owns(&on("lo", stays)), "{stays}");
    }
    for former in ["10.244.9.0", "fd00:244:0:9::"] {
        assert_eq!(classify(&on("lo", former)), Class::Owned, "{former}");
        let without_lease = Scope { subnets: Vec::new(), ..scope() };
        assert!(!without_lease.owns(&on("lo", former)), "{former}");
    }
    for foreign in ["10.244.9.1", "fd00:244:0:9::1"] {
        assert_eq!(classify(&on("lo", foreign)), Class::Foreign, "{foreign}");
        let everything = Scope { extent: Extent::Everything, ..scope() };
        assert!(!everything.owns(&on("lo", foreign)), "{foreign}");
    }
    for foreign in ["127.0.0.1", "10.245.9.0", "::1", "fd00::"] {
        assert_eq!(classify(&on("lo", foreign)), Class::OutOfScope, "{foreign}");
    }
    assert_eq!(classify(&on("lo1", "10.244.9.0")), Class::OutOfScope);
    let wide = Address {
        link: LinkName::loopback(),
        address: "10.244.9.0".parse().unwrap(),
        prefix_len: 24,
    };
    assert_eq!(classify(&Entry::Address(wide)), Class::OutOfScope);
}

#[test]
fn devices_and_settings_are_corrected_but_never_removed() {
    let link = LinkName::new("flannel.1");
    let kind = LinkKind::Other("vxlan".into());
    let device = Link { name: link.clone(), kind, mtu: 1450, mac: MAC, up: true };
    assert_eq!(classify(&Entry::Link(device)), Class::Foreign);
    let filter = |link: &str| Entry::Setting(SettingKind::ReversePath.on(&LinkName::new(link)));
    assert_eq!(classify(&filter("eth0")), Class::Foreign);
    assert_eq!(classify(&filter("flannel.1")), Class::Foreign);
    assert_eq!(classify(&filter("eth9")), Class::OutOfScope);
    assert_eq!(classify(&Entry::Setting(SettingKind::AcceptRa.on(&link))), Class::Foreign);
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
fn only_exactly_our_device_is_owned_and_only_once_it_is_retired() {
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

/// The public IP changed while peers could still send into the tunnel.
#[test]
fn the_device_of_a_former_public_ip_is_owned_once_it_is_retired() {
    let ours = device("flannel.1", 1450, MAC);
    let LinkKind::Vxlan(vxlan) = ours.kind.clone() else { panic!("{ours} is no tunnel") };
    let ip = "172.16.0.77".parse().unwrap();
    let kind = LinkKind::Vxlan(Vxlan { local: Some(ip), ..(*vxlan).clone() }.into());
    let former = Link { kind, mac: Vtep::derived_mac(ip, vxlan.vni), ..ours.clone() };
    let retired = Scope { retired: vec![ours.clone()], ..scope() };
    assert!(retired.owns(&Entry::Link(former.clone())));
    assert!(!scope().owns(&Entry::Link(former.clone())));
    assert!(!retired.owns(&Entry::Link(Link { mac: MAC, ..former.clone() })));
    let kind = LinkKind::Vxlan(Vxlan { local: Some(ip), port: 4789, ..*vxlan }.into());
    assert!(!retired.owns(&Entry::Link(Link { kind, ..former })));
}

#[test]
fn a_device_that_peers_may_use_keeps_its_address_and_its_guard() {
    let guard = table_name("tweed-tunnel.1");
    let tables = [guard.clone(), table_name("tweed.1")];
    let present = Scope { tables: tables.clone().into(), ..scope() };
    let leaving = Scope { leaving: [LinkName::new("flannel.1")].into(), ..present.clone() };
    let address = |text: &str, prefix_len| {
        let (link, address) = (LinkName::new("flannel.1"), text.parse().unwrap());
        Entry::Address(Address { link, address, prefix_len })
    };
    let [guarding, other] = tables
        .map(|name| Entry::Table(Table { name: name.into(), chains: BTreeMap::new(), foreign: 0 }));
    let peer = "172.16.0.9".parse().unwrap();
    let element = Entry::Element(Element { table: guard.clone().into(), address: peer });
    let renewal = Entry::Renewal(Renewal::of(guard.into()));
    for entry in [address("10.244.1.0", 32), guarding, element, renewal] {
        assert!(present.owns(&entry) && !leaving.owns(&entry), "{entry}");
        assert!(Scope { extent: Extent::Everything, ..leaving.clone() }.owns(&entry), "{entry}");
    }
    for entry in [address("10.244.2.0", 32), address("10.244.1.0", 24), other] {
        assert!(leaving.owns(&entry), "{entry}");
    }
}

#[test]
fn a_chain_that_packets_depend_on_is_owned_only_when_everything_is_removed() {
    let name = ChainName { iptables: Iptables::Nft, family: Family::V4, base: Base::Forward };
    let spare = Chain::of(name, Vec::new());
    let needed = Chain { base_policy: BasePolicy::Drop, ..spare.clone() };
    let everything = Scope { extent: Extent::Everything, ..scope() };
    assert!(scope().owns(&Entry::Chain(spare.clone())) && everything.owns(&Entry::Chain(spare)));
    assert!(!scope().owns(&Entry::Chain(needed.clone())));
    assert!(everything.owns(&Entry::Chain(needed)));
}

#[test]
fn a_table_of_our_name_is_owned_whatever_it_holds() {
    let table = |name| {
        let chains = std::collections::BTreeMap::new();
        Entry::Table(Table { name: table_name(name).into(), chains, foreign: 3 })
    };
    assert_eq!(classify(&table("tweed.1")), Class::Owned);
    assert_eq!(classify(&table("tweed.2")), Class::OutOfScope);
    assert_eq!(classify(&table("kube-proxy")), Class::OutOfScope);
}
