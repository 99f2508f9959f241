//! Addresses on links.

use std::net::IpAddr;

use netlink_packet_route::address::{
    AddressAttribute, AddressHeader, AddressMessage, AddressScope,
};

use super::Unencodable;
use super::links::Links;
use crate::model::entry::{Address, Entry};
use crate::model::prefix::is_link_local;

/// Equals `ip addr add ADDRESS/LEN dev LINK`. On the loopback, `scope host` keeps the kernel from
/// choosing the address as the source of new IPv4 connections.
pub(super) fn encode(address: &Address, links: &Links) -> Result<AddressMessage, Unencodable> {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: address.address.into(),
        prefix_len: address.prefix_len,
        scope: if address.link.is_loopback() { AddressScope::Host } else { AddressScope::Universe },
        index: links.index(&address.link)?,
        ..AddressHeader::default()
    };
    message.attributes =
        vec![AddressAttribute::Local(address.address), AddressAttribute::Address(address.address)];
    Ok(message)
}

/// None for link-local addresses, which the kernel assigns to every link.
pub(super) fn decode(message: &AddressMessage, links: &Links) -> Option<Entry> {
    let address = local(message).filter(|address| !is_link_local(*address))?;
    let link = links.name(message.header.index)?.clone();
    Some(Entry::Address(Address { link, address, prefix_len: message.header.prefix_len }))
}

/// The link's own address; on a point-to-point link, the other attribute is the peer's address.
pub(super) fn local(message: &AddressMessage) -> Option<IpAddr> {
    attribute!(message, AddressAttribute::Local(address) => Some(*address))
        .or_else(|| attribute!(message, AddressAttribute::Address(address) => Some(*address)))
}
