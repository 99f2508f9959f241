//! The choice of interface and addresses, case by case.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::model::node::tests::{address, interface};
use crate::model::node::{Lifetime, RouteLookup};

const V4: &[Family] = &[Family::V4];
const BOTH: &[Family] = &Family::ALL;

fn host() -> Facts {
    Facts {
        interfaces: vec![
            interface("lo", &["127.0.0.1/8", "::1/128"]),
            interface("eth0", &["10.0.0.5/24", "10.0.0.6/24", "fe80::1/64", "fd00::5/64"]),
            interface("eth1", &["192.168.9.5/24"]),
        ],
        default_routes: vec![
            (Family::V4, Some(LinkName::new("eth0"))),
            (Family::V6, Some(LinkName::new("eth0"))),
        ],
        ..Facts::default()
    }
}

fn choose(facts: &Facts, options: &InterfaceOptions, families: &[Family]) -> String {
    match Node::select(facts, options, families) {
        Ok(node) => {
            let uplinks = node.uplinks.iter().map(|u| format!("{} as {}", u.address, u.public_ip));
            format!("{} {}", node.interface, uplinks.collect::<Vec<_>>().join(", "))
        }
        Err(error) => error.to_string(),
    }
}

fn named(names: &[&str]) -> InterfaceOptions {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    InterfaceOptions { names, ..InterfaceOptions::default() }
}

fn regex(pattern: &str) -> InterfaceOptions {
    InterfaceOptions { regexes: vec![Regex::new(pattern).unwrap()], ..InterfaceOptions::default() }
}

#[test]
fn without_options_the_default_route_decides() {
    let options = InterfaceOptions::default();
    assert_eq!(choose(&host(), &options, V4), "eth0 10.0.0.5 as 10.0.0.5");
    assert_eq!(choose(&host(), &options, BOTH), "eth0 10.0.0.5 as 10.0.0.5, fd00::5 as fd00::5");
}

#[test]
fn the_first_name_or_address_that_fits_wins() {
    assert_eq!(choose(&host(), &named(&["eth9", "eth1"]), V4), "eth1 192.168.9.5 as 192.168.9.5");
    assert_eq!(choose(&host(), &named(&["10.0.0.6"]), V4), "eth0 10.0.0.6 as 10.0.0.6");
    assert_eq!(
        choose(&host(), &named(&["fd00::5"]), BOTH),
        "eth0 10.0.0.5 as 10.0.0.5, fd00::5 as fd00::5"
    );
}

#[test]
fn a_regex_is_tried_on_addresses_and_then_on_names() {
    assert_eq!(choose(&host(), &regex(r"192\.168\."), V4), "eth1 192.168.9.5 as 192.168.9.5");
    assert_eq!(choose(&host(), &regex(r"0\.6$"), V4), "eth0 10.0.0.6 as 10.0.0.6");
    assert_eq!(choose(&host(), &regex("th1"), V4), "eth1 192.168.9.5 as 192.168.9.5");
    assert_eq!(
        choose(&host(), &regex("5$"), BOTH),
        "eth0 10.0.0.5 as 10.0.0.5, fd00::5 as fd00::5"
    );
}

#[test]
fn can_reach_uses_the_kernels_interface_and_source() {
    let source = "10.0.0.6".parse().ok();
    let facts =
        Facts { reach: Some(RouteLookup { link: LinkName::new("eth0"), source }), ..host() };
    let options =
        InterfaceOptions { can_reach: "8.8.8.8".parse().ok(), ..InterfaceOptions::default() };
    assert_eq!(choose(&facts, &options, V4), "eth0 10.0.0.6 as 10.0.0.6");
    assert_eq!(
        choose(&host(), &options, V4),
        "no interface can be used: --iface-can-reach 8.8.8.8: this host has no route to it"
    );
}

#[test]
fn a_public_ip_alone_must_be_on_this_host() {
    let options =
        InterfaceOptions { public_ip: "192.168.9.5".parse().ok(), ..InterfaceOptions::default() };
    assert_eq!(choose(&host(), &options, V4), "eth1 192.168.9.5 as 192.168.9.5");
    let options =
        InterfaceOptions { public_ip: "203.0.113.9".parse().ok(), ..InterfaceOptions::default() };
    assert_eq!(
        choose(&host(), &options, V4),
        "no interface can be used: without --iface, --public-ip 203.0.113.9 is not an address of this host"
    );
}

#[test]
fn behind_nat_packets_leave_from_the_interface_address() {
    let options = InterfaceOptions { public_ip: "203.0.113.9".parse().ok(), ..named(&["eth0"]) };
    let node = Node::select(&host(), &options, V4).unwrap();
    let uplink = node.uplink(Family::V4).unwrap();
    assert_eq!(uplink.public_ip.to_string(), "203.0.113.9");
    assert_eq!(uplink.source.to_string(), "10.0.0.5");
    assert_eq!(uplink.others, ["10.0.0.6".parse::<IpAddr>().unwrap()]);
    let node = Node::select(&host(), &named(&["eth0"]), V4).unwrap();
    assert_eq!(node.uplink(Family::V4).unwrap().others, [] as [IpAddr; 0]);
}

#[test]
fn the_address_with_the_longest_lifetime_is_preferred() {
    let mut facts = host();
    let eth0 = facts.interfaces.get_mut(1).unwrap();
    for (own, lifetime) in eth0.addresses.iter_mut().zip([Lifetime::Dynamic, Lifetime::Permanent]) {
        own.lifetime = lifetime;
    }
    assert_eq!(choose(&facts, &named(&["eth0"]), V4), "eth0 10.0.0.6 as 10.0.0.6");
}

#[test]
fn each_failed_choice_is_reported() {
    let options = InterfaceOptions { names: vec!["eth9".into()], ..regex("^wlan") };
    assert_eq!(
        choose(&host(), &options, V4),
        "no interface can be used: --iface eth9 is not an interface of this host (there are lo, eth0, eth1); \
         --iface-regex ^wlan matches no interface (there are lo, eth0, eth1)"
    );
    assert_eq!(
        choose(&host(), &named(&["eth1"]), BOTH),
        "no interface can be used: interface eth1 has no usable IPv6 address"
    );
    assert_eq!(
        choose(&Facts::default(), &InterfaceOptions::default(), V4),
        "no interface can be used: there is no IPv4 default route, and --iface is not given"
    );
}

#[test]
fn an_address_in_a_prefix_of_the_interface_is_adjacent() {
    let node = Node::select(&host(), &named(&["eth0"]), V4).unwrap();
    assert!(node.is_adjacent("10.0.0.77".parse().unwrap()));
    assert!(!node.is_adjacent("192.168.9.7".parse().unwrap()));
}

#[test]
fn no_node_is_adjacent_by_a_host_prefix_or_without_layer_2() {
    let cloud = Facts { interfaces: vec![interface("eth0", &["10.0.0.5/32"])], ..host() };
    let node = Node::select(&cloud, &named(&["eth0"]), V4).unwrap();
    assert!(!node.is_adjacent("10.0.0.5".parse().unwrap()));
    let mut tunnel = interface("wg0", &["10.0.0.5/24"]);
    tunnel.layer2 = false;
    let vpn = Facts { interfaces: vec![tunnel], ..host() };
    let node = Node::select(&vpn, &named(&["wg0"]), V4).unwrap();
    assert!(!node.is_adjacent("10.0.0.77".parse().unwrap()));
}

fn again(facts: &Facts, node: &Node) -> String {
    let node = node.select_again(facts, &InterfaceOptions::default(), V4);
    node.map_or_else(
        |error| error.to_string(),
        |node| format!("{} {}", node.interface, node.uplink(Family::V4).unwrap().address),
    )
}

#[test]
fn a_choice_stays_as_long_as_it_is_usable() {
    let node = Node::select(&host(), &InterfaceOptions::default(), V4).unwrap();
    let mut facts = host();
    facts.interfaces.get_mut(1).unwrap().addresses.insert(0, address("10.0.0.4/24"));
    facts.default_routes.insert(0, (Family::V4, Some(LinkName::new("eth1"))));
    assert_eq!(again(&facts, &node), "eth0 10.0.0.5");
    facts.interfaces.get_mut(1).unwrap().addresses.retain(|own| *own != address("10.0.0.5/24"));
    assert_eq!(again(&facts, &node), "eth1 192.168.9.5");
}

#[test]
fn a_choice_that_stays_includes_other_changes() {
    let node = Node::select(&host(), &InterfaceOptions::default(), V4).unwrap();
    let mut facts = host();
    facts.interfaces.get_mut(1).unwrap().mtu = 9000;
    let node = node.select_again(&facts, &InterfaceOptions::default(), V4).unwrap();
    assert_eq!(node.mtu, 9000);
}

/// Peers know the address that a node had before; a virtual address that was added since comes first
/// by flannel's rules.
#[test]
fn a_restart_keeps_the_address_unless_an_option_names_another() {
    let before = Node::select(&host(), &InterfaceOptions::default(), V4).unwrap();
    let mut facts = host();
    let eth0 = facts.interfaces.iter_mut().find(|it| it.name == before.interface).unwrap();
    *eth0 = interface("eth0", &["10.0.0.99/24", "10.0.0.5/24", "fd00::5/64"]);
    let address = |options: &InterfaceOptions| {
        before.select_after_restart(&facts, options, V4).unwrap().uplinks[0].address.to_string()
    };
    assert_eq!(choose(&facts, &InterfaceOptions::default(), V4), "eth0 10.0.0.99 as 10.0.0.99");
    assert_eq!(address(&InterfaceOptions::default()), "10.0.0.5");
    assert_eq!(address(&named(&["eth0"])), "10.0.0.5");
    assert_eq!(address(&named(&["10.0.0.99"])), "10.0.0.99");
    assert_eq!(address(&named(&["eth1"])), "192.168.9.5");
    // A VPN adds a default route that is preferred.
    let vpn = (Family::V4, Some(LinkName::new("eth1")));
    let preferred = Facts {
        default_routes: [vec![vpn.clone()], facts.default_routes.clone()].concat(),
        ..facts.clone()
    };
    let kept = before.select_after_restart(&preferred, &InterfaceOptions::default(), V4).unwrap();
    assert_eq!(kept.uplinks[0].address.to_string(), "10.0.0.5");
    let moved = Facts { default_routes: vec![vpn], ..facts.clone() };
    let moved = before.select_after_restart(&moved, &InterfaceOptions::default(), V4).unwrap();
    assert_eq!(moved.uplinks[0].address.to_string(), "192.168.9.5");
    // Another family is added.
    let both = before.select_after_restart(&facts, &InterfaceOptions::default(), BOTH).unwrap();
    let both: Vec<_> = both.uplinks.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(both, ["10.0.0.5", "fd00::5"]);
    let eth0 = facts.interfaces.iter_mut().find(|it| it.name == before.interface).unwrap();
    *eth0 = interface("eth0", &["10.0.0.99/24"]);
    let moved = before.select_after_restart(&facts, &InterfaceOptions::default(), V4).unwrap();
    assert_eq!(moved.uplinks[0].address.to_string(), "10.0.0.99");
}

#[test]
fn one_family_is_followed_while_the_other_has_no_address() {
    let options = InterfaceOptions::default();
    let before = Node::select(&host(), &options, BOTH).unwrap();
    let mut facts = host();
    let eth0 = facts.interfaces.iter_mut().find(|it| it.name == before.interface).unwrap();
    *eth0 = Interface { mtu: 1400, ..interface("eth0", &["10.0.1.7/24", "fe80::1/64"]) };
    assert!(before.select_again(&facts, &options, BOTH).is_err());
    let node = before.select_in_part(&facts, &options).unwrap();
    let addresses: Vec<_> = node.uplinks.iter().map(|it| it.address.to_string()).collect();
    assert_eq!(
        (addresses.as_slice(), node.mtu),
        (&["10.0.1.7".to_owned(), "fd00::5".to_owned()][..], 1400)
    );
    let on_link: Vec<_> = node.on_link.iter().map(ToString::to_string).collect();
    assert_eq!(on_link, ["10.0.1.0/24", "fe80::/64", "fd00::/64"]);
    // Not another address than the one that the options name.
    assert_eq!(before.select_in_part(&facts, &named(&["10.0.0.5"])), None);
    let eth0 = facts.interfaces.iter_mut().find(|it| it.name == before.interface).unwrap();
    *eth0 = interface("eth0", &[]);
    assert_eq!(before.select_in_part(&facts, &options), None);
}

#[test]
fn links_of_the_segment_are_those_whose_prefix_contains_an_address_of_the_interface() {
    let mut facts = host();
    for (name, address) in [
        ("wlan0", "10.0.0.77/24"),
        ("wide", "10.0.0.78/16"),
        ("other", "10.0.1.7/24"),
        ("cni0", "fe80::77/64"),
        ("point", "10.0.0.5/32"),
    ] {
        facts.interfaces.push(interface(name, &[address]));
    }
    let node = Node::select(&facts, &named(&["eth0"]), BOTH).unwrap();
    let found: Vec<_> = node.on_segment.iter().map(LinkName::as_str).collect();
    assert_eq!(found, ["wlan0", "wide"]);
}
