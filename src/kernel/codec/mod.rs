//! Between entries and netlink messages.

mod decode;
mod encode;
mod facts;

pub(super) use decode::{Told, link, told};
pub(super) use encode::{Unencodable, encode};
pub(super) use facts::{add_address, default_route, interface, reach};

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::NeighbourAddress;
use netlink_packet_route::route::RouteAddress;

use super::state::LinkName;
use crate::prefix::Family;

/// Which index the kernel gave to which link.
#[derive(Clone, Debug, Default)]
pub(super) struct Links(BTreeMap<u32, LinkName>);

impl Links {
    pub(super) fn name(&self, index: u32) -> Option<&LinkName> {
        self.0.get(&index)
    }

    pub(super) fn index(&self, name: &LinkName) -> Option<u32> {
        self.0.iter().find(|(_, other)| *other == name).map(|(index, _)| *index)
    }

    /// A link keeps its index when it is renamed.
    pub(super) fn insert(&mut self, index: u32, name: LinkName) -> Option<LinkName> {
        self.0.insert(index, name)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<LinkName> {
        self.0.remove(&index)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

pub(super) const fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

const fn family(family: AddressFamily) -> Option<Family> {
    match family {
        AddressFamily::Inet => Some(Family::V4),
        AddressFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}

const fn route_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

const fn neighbour_address(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    }
}
