//! Addresses of links.

use std::net::IpAddr;

use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressMessage, AddressScope,
};

use super::links::Links;
use super::{Unencodable, address_family};
use crate::model::entry::{Address, Entry};
use crate::model::prefix::is_link_local;

/// As `ip addr add ADDRESS/LEN dev LINK` writes it; on the loopback with `scope host`, so that the
/// kernel does not choose it as the source of new IPv4 connections.
pub(super) fn encode(address: &Address, links: &Links) -> Result<AddressMessage, Unencodable> {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: address_family(address.address),
        prefix_len: address.prefix_len,
        scope: if address.link.is_loopback() { AddressScope::Host } else { AddressScope::Universe },
        index: links.index(&address.link)?,
        ..AddressHeader::default()
    };
    message.attributes =
        vec![AddressAttribute::Local(address.address), AddressAttribute::Address(address.address)];
    Ok(message)
}

/// None for the addresses that the kernel gives to every link by itself.
pub(super) fn decode(message: &AddressMessage, links: &Links) -> Option<Entry> {
    let address = local(message).filter(|address| !is_link_local(*address))?;
    let link = links.name(message.header.index)?.clone();
    Some(Entry::Address(Address { link, address, prefix_len: message.header.prefix_len }))
}

/// The link's own address: of two, the other is that of the far end.
pub(super) fn local(message: &AddressMessage) -> Option<IpAddr> {
    attribute!(message, AddressAttribute::Local(address) => Some(*address))
        .or_else(|| attribute!(message, AddressAttribute::Address(address) => Some(*address)))
}
