//! Nexthop objects, which no netlink crate supports: message format and meaning.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use tweed_netlink::{Frame, Message};

use super::links::Links;
use super::{Body, Unencodable};
use crate::model::entry::{Entry, Nexthop, NexthopId, PROTOCOL};

pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_DELNEXTHOP: u16 = 105;
const RTM_GETNEXTHOP: u16 = 106;

/// From `linux/nexthop.h`.
const NHA_ID: u16 = 1;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
/// From `linux/rtnetlink.h`.
const RTNH_F_ONLINK: u32 = 4;

/// The size of `struct nhmsg`, in bytes.
const HEADER: usize = 8;

/// A nexthop object as reported by the kernel. An object of a kind that tweed never creates (a
/// group, a blackhole) has only an ID and a protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NexthopMessage {
    pub(super) id: Option<NexthopId>,
    /// The protocol number of the program that created it.
    protocol: u8,
    flags: u32,
    link: Option<u32>,
    gateway: Option<IpAddr>,
}

pub(super) fn parse(frame: &Frame<'_>) -> Option<NexthopMessage> {
    let [_family, _scope, protocol, _, flags @ ..] = *frame.payload.first_chunk::<HEADER>()?;
    let all = frame.attributes(HEADER)?;
    Some(NexthopMessage {
        id: all.u32(NHA_ID).map(NexthopId),
        protocol,
        flags: u32::from_ne_bytes(flags),
        link: all.u32(NHA_OIF),
        gateway: all.ip(NHA_GATEWAY),
    })
}

pub(crate) fn list() -> Message {
    Message::new(RTM_GETNEXTHOP, 0, &[0; HEADER])
}

pub(super) fn remove(id: NexthopId) -> Message {
    Message::new(RTM_DELNEXTHOP, 0, &[0; HEADER]).u32(NHA_ID, id.0)
}

pub(super) fn put(nexthop: &Nexthop, links: &Links, flags: u16) -> Result<Message, Unencodable> {
    let family = nexthop.gateway.map_or(0, |gateway| AddressFamily::from(gateway).into());
    let [a, b, c, d] = if nexthop.onlink { RTNH_F_ONLINK } else { 0 }.to_ne_bytes();
    let link = nexthop.link.as_ref().map(|link| links.index(link)).transpose()?;
    let header = [family, 0, nexthop.protocol, 0, a, b, c, d];
    Ok(Message::new(RTM_NEWNEXTHOP, flags.into(), &header)
        .u32(NHA_ID, nexthop.id.0)
        .with(link, |message, link| message.u32(NHA_OIF, link))
        .with(nexthop.gateway, |message, gateway| message.ip(NHA_GATEWAY, gateway)))
}

/// The ID in tweed's range that a foreign nexthop object uses.
pub(crate) fn taken(body: &Body) -> Option<NexthopId> {
    match body {
        Body::NewNexthop(nexthop) if nexthop.protocol != PROTOCOL => {
            nexthop.id.filter(|id| id.is_ours())
        }
        _ => None,
    }
}

pub(super) fn decode(message: &NexthopMessage, links: &Links) -> Option<Entry> {
    Some(Entry::Nexthop(Nexthop {
        id: message.id?,
        gateway: message.gateway,
        link: message.link.and_then(|index| links.name(index).cloned()),
        onlink: message.flags & RTNH_F_ONLINK != 0,
        protocol: message.protocol,
    }))
}
