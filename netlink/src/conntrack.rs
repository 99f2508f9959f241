//! Tracked connections: listed, and deleted one by one.
//!
//! The kernel is never asked to delete by a filter: those before 5.8 ignore it and delete all connections
//! of the family, and for IPv6 later ones delete those with other addresses than the ones asked for.

use std::net::SocketAddr;

use nix::libc::NFNL_SUBSYS_CTNETLINK;

use crate::Family;
use crate::attributes::Attributes;
use crate::frame::Frame;
use crate::message::{Message, word};

/// A connection of a protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// As IP numbers it.
    pub protocol: u8,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Where answers come from: the destination, or what it is translated to.
    pub answered_by: SocketAddr,
    /// Connections of different zones may have the same addresses; 0 if rules give none.
    pub zone: u16,
}

/// Of `linux/netfilter/nfnetlink_conntrack.h`.
const GET: i32 = 1;
const DELETE: i32 = 2;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
const FILTER_ORIGINAL: u16 = 1;
const HAS_NUMBER: u32 = 1 << 3;
const HAS_PORT: u32 = 1 << 5;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
const IP_V4_SOURCE: u16 = 1;
const IP_V4_DESTINATION: u16 = 2;
const IP_V6_SOURCE: u16 = 3;
const IP_V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// Of the header in front of the attributes, in bytes.
const HEADER: usize = 4;

/// Those of a protocol to one port, as far as the kernel knows such a question: older ones list all.
pub fn list(family: Family, protocol: u8, port: u16) -> Message {
    ask(family, HAS_NUMBER | HAS_PORT, |all| {
        all.u8(PROTOCOL_NUMBER, protocol).bytes(DESTINATION_PORT, &port.to_be_bytes())
    })
}

/// Those of a protocol; likewise.
pub fn list_protocol(family: Family, protocol: u8) -> Message {
    ask(family, HAS_NUMBER, |all| all.u8(PROTOCOL_NUMBER, protocol))
}

/// All of a family.
pub fn list_all(family: Family) -> Message {
    request(GET, family)
}

/// None for a connection without ports.
pub fn read(frame: &Frame<'_>) -> Option<Connection> {
    let all = frame.attributes(HEADER)?;
    let (original, reply) = (all.nested(TUPLE_ORIGINAL)?, all.nested(TUPLE_REPLY)?);
    // One of both directions, or of this one.
    let zone = all.get(ZONE).or_else(|| original.get(TUPLE_ZONE));
    let zone = zone.and_then(|zone| zone.try_into().ok()).map_or(0, u16::from_be_bytes);
    Some(Connection {
        protocol: original.nested(TUPLE_PROTOCOL)?.u8(PROTOCOL_NUMBER)?,
        source: address(original, [IP_V4_SOURCE, IP_V6_SOURCE], SOURCE_PORT)?,
        destination: address(original, [IP_V4_DESTINATION, IP_V6_DESTINATION], DESTINATION_PORT)?,
        answered_by: address(reply, [IP_V4_SOURCE, IP_V6_SOURCE], SOURCE_PORT)?,
        zone,
    })
}

impl Connection {
    /// Refused with ENOENT if there is no such connection.
    pub fn delete(&self) -> Message {
        let family = Family::of(self.source.ip());
        let [source, destination] = match family {
            Family::V4 => [IP_V4_SOURCE, IP_V4_DESTINATION],
            Family::V6 => [IP_V6_SOURCE, IP_V6_DESTINATION],
        };
        let deletion = request(DELETE, family).nest(TUPLE_ORIGINAL, |tuple| {
            tuple
                .nest(TUPLE_IP, |ip| {
                    ip.ip(source, self.source.ip()).ip(destination, self.destination.ip())
                })
                .nest(TUPLE_PROTOCOL, |all| {
                    all.u8(PROTOCOL_NUMBER, self.protocol)
                        .bytes(SOURCE_PORT, &self.source.port().to_be_bytes())
                        .bytes(DESTINATION_PORT, &self.destination.port().to_be_bytes())
                })
        });
        // A kernel without zones refuses the attribute.
        if self.zone == 0 { deletion } else { deletion.bytes(ZONE, &self.zone.to_be_bytes()) }
    }
}

/// For connections whose protocol and ports are as `protocol` writes them, as far as `has` names them.
fn ask(family: Family, has: u32, protocol: impl FnOnce(Message) -> Message) -> Message {
    request(GET, family)
        .nest(FILTER, |filter| filter.u32(FILTER_ORIGINAL, has))
        .nest(TUPLE_ORIGINAL, |tuple| tuple.nest(TUPLE_PROTOCOL, protocol))
}

fn request(message: i32, family: Family) -> Message {
    let kind = word(NFNL_SUBSYS_CTNETLINK << 8 | message);
    Message::new(kind, 0, &[family.protocol(), 0, 0, 0])
}

fn address(tuple: Attributes<'_>, ip: [u16; 2], port: u16) -> Option<SocketAddr> {
    let addresses = tuple.nested(TUPLE_IP)?;
    let address = ip.into_iter().find_map(|kind| addresses.ip(kind))?;
    let port = tuple.nested(TUPLE_PROTOCOL)?.get(port)?.try_into().ok()?;
    Some(SocketAddr::from((address, u16::from_be_bytes(port))))
}
