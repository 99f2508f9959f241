//! Routes of the main table.

use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteScope, RouteType,
    RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::RouteMessageBuilder;

use super::links::Links;
use super::{Body, Unencodable};
use crate::model::entry::{Entry, LinkName, NexthopId, Route, RouteKind};
use crate::model::node::RouteLookup;
use crate::model::prefix::{Family, Prefix};

/// Equals flannel's request, except for the protocol number.
pub(super) fn encode(route: &Route, links: &Links) -> Result<RouteMessage, Unencodable> {
    let destination = route.destination;
    let invalid = |reason| Unencodable::Invalid(ToString::to_string(&reason));
    let message = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination.base(), destination.prefix_len())
        .map_err(invalid)?
        .protocol(route.protocol.into())
        .kind(kind(route.kind))
        .priority(route.metric);
    if let Some(nexthop) = route.nexthop {
        // The nexthop object contains the rest; the kernel rejects other attributes with it.
        return Ok(message.nhid(nexthop.0).build());
    }
    let mut message = if route.onlink { message.onlink() } else { message };
    if let Some(gateway) = route.gateway {
        message = message.gateway(gateway).map_err(invalid)?;
    }
    if let Some(link) = &route.link {
        message = message.output_interface(links.index(link)?);
    }
    Ok(message.build())
}

/// A route of another kind is only ever removed; the request then matches any kind.
const fn kind(kind: RouteKind) -> RouteType {
    match kind {
        RouteKind::Unicast => RouteType::Unicast,
        RouteKind::Unreachable => RouteType::Unreachable,
        RouteKind::Other => RouteType::Unspec,
    }
}

/// The kernel removes a route only if all attributes of the request match. Scope and type are not
/// known, so the request leaves them open.
pub(super) fn any_scope(mut message: RouteMessage) -> RouteMessage {
    message.header.scope = RouteScope::NoWhere;
    message.header.kind = RouteType::Unspec;
    message
}

/// None for routes of other tables, cached routes, and routes with a TOS.
pub(super) fn decode(message: &RouteMessage, links: &Links) -> Option<Entry> {
    let header = &message.header;
    let is_ours_to_read = table(message) == u32::from(RouteHeader::RT_TABLE_MAIN)
        && header.tos == 0
        && !header.flags.contains(RouteFlags::Cloned);
    if !is_ours_to_read {
        return None;
    }
    let destination = destination(message)?;
    let is_single = header.kind == RouteType::Unicast && !is_multipath(message);
    Some(Entry::Route(Route {
        kind: match header.kind {
            RouteType::Unicast if is_single => RouteKind::Unicast,
            RouteType::Unreachable => RouteKind::Unreachable,
            _ => RouteKind::Other,
        },
        destination,
        metric: attribute!(message, RouteAttribute::Priority(metric) => Some(*metric)).unwrap_or(0),
        gateway: gateway(message).filter(|_| is_single),
        link: outgoing(message, links).filter(|_| is_single),
        onlink: is_single && header.flags.contains(RouteFlags::Onlink),
        nexthop: attribute!(message, RouteAttribute::NhId(id) => Some(NexthopId(*id))),
        protocol: header.protocol.into(),
    }))
}

/// Whether several next hops share its traffic.
pub(super) fn is_multipath(message: &RouteMessage) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, RouteAttribute::MultiPath(_)))
}

/// The family and device, if `body` is a default route of the main table.
pub(crate) fn default_route(body: &Body, links: &Links) -> Option<(Family, Option<LinkName>)> {
    let Body::Rtnl(RouteNetlinkMessage::NewRoute(message)) = body else { return None };
    match decode(message, links)? {
        Entry::Route(route) if route.destination.prefix_len() == 0 => {
            let is_unicast = message.header.kind == RouteType::Unicast;
            is_unicast.then_some((route.destination.family(), route.link))
        }
        _ => None,
    }
}

/// The kernel's response to a route lookup.
pub(crate) fn reach(body: &Body, links: &Links) -> Option<RouteLookup> {
    let Body::Rtnl(RouteNetlinkMessage::NewRoute(message)) = body else { return None };
    let source = attribute!(message, RouteAttribute::PrefSource(source) => ip_address(source));
    Some(RouteLookup { link: outgoing(message, links)?, source })
}

fn table(message: &RouteMessage) -> u32 {
    let long = attribute!(message, RouteAttribute::Table(table) => Some(*table));
    long.unwrap_or_else(|| message.header.table.into())
}

fn destination(message: &RouteMessage) -> Option<Prefix> {
    let family = match message.header.address_family {
        AddressFamily::Inet => Family::V4,
        AddressFamily::Inet6 => Family::V6,
        _ => return None,
    };
    let base = attribute!(message, RouteAttribute::Destination(base) => ip_address(base));
    let len = message.header.destination_prefix_length;
    Prefix::holding(base.unwrap_or(family.unspecified()), len)
}

fn gateway(message: &RouteMessage) -> Option<IpAddr> {
    attribute!(
        message,
        RouteAttribute::Gateway(address) => ip_address(address),
        RouteAttribute::Via(RouteVia::Inet(v4)) => Some((*v4).into()),
        RouteAttribute::Via(RouteVia::Inet6(v6)) => Some((*v6).into()),
    )
}

fn outgoing(message: &RouteMessage, links: &Links) -> Option<LinkName> {
    attribute!(message, RouteAttribute::Oif(index) => links.name(*index).cloned())
}

fn ip_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}
