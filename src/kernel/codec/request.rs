//! Questions to the kernel: which objects it is to list.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Kind;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage};

use super::message::Body;
use super::nexthop::NexthopMessage;
use crate::model::prefix::Family;

pub(crate) fn links() -> Body {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])];
    Kind::GetLink(message).into()
}

/// The addresses of every link.
pub(crate) fn addresses() -> Body {
    Kind::GetAddress(AddressMessage::default()).into()
}

pub(crate) fn addresses_of(index: u32) -> Body {
    let mut message = AddressMessage::default();
    message.header.index = index;
    Kind::GetAddress(message).into()
}

pub(crate) fn neighbours_of(index: u32) -> Body {
    let mut message = NeighbourMessage::default();
    message.attributes = vec![NeighbourAttribute::IfIndex(index)];
    Kind::GetNeighbour(message).into()
}

pub(crate) fn fdb_of(index: u32) -> Body {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    Kind::GetNeighbour(message).into()
}

/// The routes of the main table.
pub(crate) fn routes(family: Family) -> Body {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family.unspecified());
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    Kind::GetRoute(message).into()
}

/// All nexthop objects of the host.
pub(crate) fn nexthops() -> Body {
    Body::GetNexthop(NexthopMessage::any())
}

/// The route that a packet to `address` would take.
pub(crate) fn route_to(address: IpAddr) -> Body {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(address);
    message.header.destination_prefix_length = Family::of(address).width();
    message.attributes = vec![RouteAttribute::Destination(address.into())];
    Kind::GetRoute(message).into()
}

pub(super) fn address_family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
