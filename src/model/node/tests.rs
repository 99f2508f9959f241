//! Helpers that write interfaces, and tests of kernel versions and of a node as JSON.

#![allow(clippy::unwrap_used)]

use super::{Firewalls, Interface, InterfaceAddress, Lifetime, Node, Release};
use crate::model::entry::LinkName;

pub(crate) fn address(text: &str) -> InterfaceAddress {
    let (address, prefix_len) = text.split_once('/').unwrap();
    InterfaceAddress {
        address: address.parse().unwrap(),
        prefix_len: prefix_len.parse().unwrap(),
        usable: true,
        lifetime: Lifetime::Permanent,
    }
}

pub(crate) fn interface(name: &str, addresses: &[&str]) -> Interface {
    let addresses = addresses.iter().map(|text| address(text)).collect();
    Interface { name: LinkName::new(name), mtu: 1500, up: true, layer2: true, addresses }
}

#[test]
fn kernels_before_5_19_look_back_before_routing() {
    for (text, expected) in [("5.15.0-134-generic", true), ("5.18.9", true), ("5.19.0", false)] {
        assert_eq!(Release::parse(text).looks_back_before_routing(), expected, "{text}");
    }
}

#[test]
fn kernels_before_5_7_corrupt_checksums_and_an_invalid_version_does_not_count() {
    for old in ["4.18.0-553.el8_10.x86_64", "5.4.0-26-generic", "5.6.19", "3.10.0"] {
        assert!(Release::parse(old).spoils_checksums(), "{old}");
    }
    for new in ["5.7.0", "5.15.0-134-generic", "6.18.44-fc-v657", "5.10+", "", "next"] {
        assert!(!Release::parse(new).spoils_checksums(), "{new}");
    }
}

#[test]
fn only_firewalls_that_are_not_the_usual_ones_are_written() {
    let json = r#"{"interface":"eth0","mtu":1500,"layer2":true,"on_link":[],"uplinks":[]}"#;
    let node: Node = serde_json::from_str(json).unwrap();
    assert!(!serde_json::to_string(&node).unwrap().contains("firewalls"));
    let unusual = Firewalls { nftables: false, ..Firewalls::default() };
    let node = Node { firewalls: unusual, ..node };
    assert!(serde_json::to_string(&node).unwrap().contains(r#""firewalls":{"nftables":false"#));
}
