//! Neighbours and FDB entries, which share a message type.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage,
    NeighbourState,
};
use netlink_packet_route::route::RouteType;

use super::Unencodable;
use super::links::Links;
use crate::kernel::Observation;
use crate::mac::MacAddr;
use crate::model::entry::{Entry, Fdb, Key, LinkName, Neighbour};

pub(super) fn encode(
    neighbour: &Neighbour,
    links: &Links,
) -> Result<NeighbourMessage, Unencodable> {
    let header = NeighbourHeader {
        family: neighbour.address.into(),
        ifindex: links.index(&neighbour.link)?,
        state: if neighbour.permanent { NeighbourState::Permanent } else { NeighbourState::Stale },
        flags: NeighbourFlags::empty(),
        kind: RouteType::Unicast,
    };
    Ok(message(header, neighbour.address, neighbour.mac))
}

pub(super) fn encode_fdb(fdb: &Fdb, links: &Links) -> Result<NeighbourMessage, Unencodable> {
    let header = NeighbourHeader {
        family: AddressFamily::Bridge,
        ifindex: links.index(&fdb.link)?,
        state: NeighbourState::Permanent,
        flags: NeighbourFlags::Own,
        kind: RouteType::Unspec,
    };
    Ok(message(header, fdb.destination, fdb.mac))
}

fn message(header: NeighbourHeader, address: IpAddr, mac: MacAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header = header;
    message.attributes = vec![
        NeighbourAttribute::Destination(address.into()),
        NeighbourAttribute::LinkLayerAddress(mac.octets().to_vec()),
    ];
    message
}

pub(super) fn decode(message: &NeighbourMessage, links: &Links) -> Option<Observation> {
    let key = key(message, links)?;
    let entry = match &key {
        Key::Fdb(link, mac) => fdb(message, link, *mac),
        Key::Neighbour(link, address) => neighbour(message, link, *address),
        _ => None,
    };
    Some(entry.map_or(Observation::Lost(key), Observation::Holds))
}

/// The key that `message` concerns, present or removed; none for multicast and other irrelevant
/// entries.
pub(super) fn key(message: &NeighbourMessage, links: &Links) -> Option<Key> {
    let header = &message.header;
    let link = links.name(header.ifindex)?.clone();
    match header.family {
        AddressFamily::Bridge => {
            let mac = mac(message).filter(|mac| mac.is_unicast())?;
            header.flags.contains(NeighbourFlags::Own).then_some(Key::Fdb(link, mac))
        }
        AddressFamily::Inet | AddressFamily::Inet6 => {
            let address = destination(message).filter(|address| !address.is_multicast())?;
            let is_noise = header.state == NeighbourState::Noarp
                || header.flags.contains(NeighbourFlags::Proxy);
            (!is_noise).then_some(Key::Neighbour(link, address))
        }
        _ => None,
    }
}

fn fdb(message: &NeighbourMessage, link: &LinkName, mac: MacAddr) -> Option<Entry> {
    // An entry with its own port, VNI or link was not written by tweed.
    let is_plain = !message.attributes.iter().any(|attribute| {
        matches!(
            attribute,
            NeighbourAttribute::Port(_)
                | NeighbourAttribute::Vni(_)
                | NeighbourAttribute::IfIndex(_)
        )
    });
    // `bridge(8)` sets an additional bit.
    let is_permanent = u16::from(message.header.state) & u16::from(NeighbourState::Permanent) != 0;
    let destination = destination(message).filter(|_| is_plain && is_permanent)?;
    Some(Entry::Fdb(Fdb { link: link.clone(), mac, destination }))
}

fn neighbour(message: &NeighbourMessage, link: &LinkName, address: IpAddr) -> Option<Entry> {
    let permanent = match message.header.state {
        NeighbourState::Permanent => true,
        NeighbourState::Failed | NeighbourState::Incomplete | NeighbourState::None => return None,
        _ => false,
    };
    let mac = mac(message)?;
    Some(Entry::Neighbour(Neighbour { link: link.clone(), address, mac, permanent }))
}

fn mac(message: &NeighbourMessage) -> Option<MacAddr> {
    let read = |octets: &[u8]| octets.try_into().ok().map(MacAddr::new);
    attribute!(message, NeighbourAttribute::LinkLayerAddress(octets) => read(octets))
}

fn destination(message: &NeighbourMessage) -> Option<IpAddr> {
    match attribute!(message, NeighbourAttribute::Destination(to) => Some(to))? {
        NeighbourAddress::Inet(v4) => Some((*v4).into()),
        NeighbourAddress::Inet6(v6) => Some((*v6).into()),
        NeighbourAddress::Other(octets) => tweed_netlink::ip(octets),
        _ => None,
    }
}
