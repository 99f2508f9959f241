//! Interfaces as tests write them.

#![allow(clippy::unwrap_used)]

use super::{Interface, InterfaceAddress, Lifetime};
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
