//! Nexthop objects, which no netlink crate knows: the message and its meaning.

use std::net::IpAddr;

use netlink_packet_core::NlasIterator;

use super::links::Links;
use super::request::address_family;
use super::{Unencodable, ip_address};
use crate::model::entry::{Entry, Nexthop, NexthopId};

pub(super) const RTM_NEWNEXTHOP: u16 = 104;
pub(super) const RTM_DELNEXTHOP: u16 = 105;
pub(super) const RTM_GETNEXTHOP: u16 = 106;

/// Of `linux/nexthop.h`.
const NHA_ID: u16 = 1;
const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
/// Of `linux/rtnetlink.h`.
const RTNH_F_ONLINK: u32 = 4;

/// Bytes of `struct nhmsg`.
const HEADER: usize = 8;
/// Bytes of `struct nlattr`, before its value.
const ATTRIBUTE: usize = 4;

/// One message about one nexthop object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NexthopMessage {
    family: u8,
    protocol: u8,
    flags: u32,
    id: Option<u32>,
    link: Option<u32>,
    gateway: Option<IpAddr>,
}

impl NexthopMessage {
    /// All objects: what a dump asks for.
    pub(super) fn any() -> Self {
        Self::default()
    }

    /// All that a removal may say.
    pub(super) fn named(id: NexthopId) -> Self {
        Self { id: Some(id.get()), ..Self::default() }
    }

    pub(crate) fn id(&self) -> Option<NexthopId> {
        self.id.map(NexthopId::new)
    }

    /// The number of whoever made it.
    pub(crate) const fn protocol(&self) -> u8 {
        self.protocol
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, attributes) = bytes.split_first_chunk::<HEADER>()?;
        let [family, _scope, protocol, _, flags @ ..] = *header;
        let flags = u32::from_ne_bytes(flags);
        let mut message = Self { family, protocol, flags, ..Self::default() };
        for attribute in NlasIterator::new(attributes).map_while(Result::ok) {
            let value = attribute.value();
            match attribute.kind() {
                NHA_ID => message.id = number(value),
                NHA_OIF => message.link = number(value),
                NHA_GATEWAY => message.gateway = ip_address(value),
                _ => {}
            }
        }
        Some(message)
    }

    /// How many [`Self::bytes`] there are.
    pub(super) fn length(&self) -> usize {
        let numbers = [self.id, self.link].iter().flatten().count();
        let gateway = self.gateway.map_or(0, |gateway| match gateway {
            IpAddr::V4(_) => ATTRIBUTE + 4,
            IpAddr::V6(_) => ATTRIBUTE + 16,
        });
        HEADER + numbers * (ATTRIBUTE + 4) + gateway
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let [a, b, c, d] = self.flags.to_ne_bytes();
        let mut bytes = Vec::with_capacity(self.length());
        bytes.extend([self.family, 0, self.protocol, 0, a, b, c, d]);
        let numbers = [(NHA_ID, self.id), (NHA_OIF, self.link)];
        for (kind, value) in numbers {
            append(&mut bytes, kind, value.map(u32::to_ne_bytes).as_ref().map(<[u8; 4]>::as_slice));
        }
        match self.gateway {
            Some(IpAddr::V4(v4)) => append(&mut bytes, NHA_GATEWAY, Some(&v4.octets())),
            Some(IpAddr::V6(v6)) => append(&mut bytes, NHA_GATEWAY, Some(&v6.octets())),
            None => {}
        }
        bytes
    }
}

pub(super) fn encode(nexthop: &Nexthop, links: &Links) -> Result<NexthopMessage, Unencodable> {
    Ok(NexthopMessage {
        family: nexthop.gateway.map_or(0, |gateway| address_family(gateway).into()),
        protocol: nexthop.protocol,
        flags: if nexthop.onlink { RTNH_F_ONLINK } else { 0 },
        id: Some(nexthop.id.get()),
        link: nexthop.link.as_ref().map(|link| links.index(link)).transpose()?,
        gateway: nexthop.gateway,
    })
}

/// Of a kind that we never make (a group, a blackhole), only its number and whose it is.
pub(super) fn decode(message: &NexthopMessage, links: &Links) -> Option<Entry> {
    Some(Entry::Nexthop(Nexthop {
        id: message.id()?,
        gateway: message.gateway,
        link: message.link.and_then(|index| links.name(index).cloned()),
        onlink: message.flags & RTNH_F_ONLINK != 0,
        protocol: message.protocol,
    }))
}

/// No value needs padding: all lengths are multiples of four.
fn append(bytes: &mut Vec<u8>, kind: u16, value: Option<&[u8]>) {
    let Some(value) = value else { return };
    let length = u16::try_from(ATTRIBUTE + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}
