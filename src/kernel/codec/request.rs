//! List requests to the kernel.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage as Kind;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage};
use tweed_netlink::Message;

pub(crate) use super::nexthop::list as nexthops;

use super::{address_family, flagged};
use crate::model::prefix::Family;

pub(crate) fn links() -> Message {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])];
    flagged(&Kind::GetLink(message), 0)
}

pub(crate) fn addresses() -> Message {
    flagged(&Kind::GetAddress(AddressMessage::default()), 0)
}

pub(crate) fn neighbours_of(index: u32) -> Message {
    let mut message = NeighbourMessage::default();
    message.attributes = vec![NeighbourAttribute::IfIndex(index)];
    flagged(&Kind::GetNeighbour(message), 0)
}

pub(crate) fn fdb_of(index: u32) -> Message {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    flagged(&Kind::GetNeighbour(message), 0)
}

/// Requests the routes of the main table.
pub(crate) fn routes(family: Family) -> Message {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family.unspecified());
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    flagged(&Kind::GetRoute(message), 0)
}

/// Requests the route that a packet to `address` would take.
pub(crate) fn route_to(address: IpAddr) -> Message {
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(address);
    message.header.destination_prefix_length = Family::of(address).width();
    message.attributes = vec![RouteAttribute::Destination(address.into())];
    flagged(&Kind::GetRoute(message), 0)
}
