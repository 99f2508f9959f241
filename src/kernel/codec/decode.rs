//! Netlink messages as entries.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::super::state::{
    Address, Entry, Fdb, Key, Link, LinkKind, LinkName, Neighbour, Route, Vxlan,
};
use super::{Links, family, route_address};
use crate::mac::MacAddr;
use crate::prefix::{Family, Prefix};

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::kernel) enum Told {
    Holds(Entry),
    Lost(Key),
    /// A link of this index and name is there, or changed.
    Link(u32, LinkName),
    /// The link of this index and name is gone.
    NoLink(u32, LinkName),
}

/// None if the message is about nothing that we model.
pub(in crate::kernel) fn told(message: &RouteNetlinkMessage, links: &Links) -> Option<Told> {
    match message {
        RouteNetlinkMessage::NewRoute(message) => route(message, links).map(Told::Holds),
        RouteNetlinkMessage::DelRoute(message) => lost(route(message, links)?),
        RouteNetlinkMessage::NewNeighbour(message) => neighbour(message, links),
        RouteNetlinkMessage::DelNeighbour(message) => match neighbour(message, links)? {
            Told::Holds(entry) => lost(entry),
            told @ (Told::Lost(_) | Told::Link(..) | Told::NoLink(..)) => Some(told),
        },
        RouteNetlinkMessage::NewAddress(message) => address(message, links).map(Told::Holds),
        RouteNetlinkMessage::DelAddress(message) => lost(address(message, links)?),
        RouteNetlinkMessage::NewLink(message) => Some(Told::Link(message.header.index, name(message)?)),
        RouteNetlinkMessage::DelLink(message) => Some(Told::NoLink(message.header.index, name(message)?)),
        _ => None,
    }
}

#[allow(clippy::unnecessary_wraps, reason = "it ends the arms of `told`")]
fn lost(entry: Entry) -> Option<Told> {
    Some(Told::Lost(entry.key()))
}

fn name(message: &LinkMessage) -> Option<LinkName> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(LinkName::new(name.clone())),
        _ => None,
    })
}

/// None for a link without a name.
pub(in crate::kernel) fn link(message: &LinkMessage, links: &Links) -> Option<Link> {
    let (mut mtu, mut mac, mut kind) = (0, MacAddr::new([0; 6]), LinkKind::Other(String::new()));
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::Address(octets) => mac = MacAddr::new(octets.as_slice().try_into().ok()?),
            LinkAttribute::LinkInfo(info) => kind = link_kind(info, links),
            _ => {}
        }
    }
    let up = message.header.flags.contains(LinkFlags::Up);
    Some(Link { name: name(message)?, kind, mtu, mac, up })
}

fn link_kind(info: &[LinkInfo], links: &Links) -> LinkKind {
    let kind = info.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    });
    let data = info.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    match (kind, data) {
        (Some(InfoKind::Vxlan), Some(data)) => LinkKind::Vxlan(vxlan(data, links)),
        (Some(kind), _) => LinkKind::Other(kind.to_string()),
        (None, _) => LinkKind::Other(String::new()),
    }
}

fn vxlan(data: &[InfoVxlan], links: &Links) -> Vxlan {
    let mut vxlan = Vxlan {
        vni: 0,
        underlay: None,
        local: None,
        port: 0,
        learning: false,
        gbp: false,
        group: None,
        l2miss: false,
    };
    for attribute in data {
        match attribute {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Link(index) => vxlan.underlay = links.name(*index).cloned(),
            InfoVxlan::Local(v4) => vxlan.local = Some(IpAddr::V4(*v4)),
            InfoVxlan::Local6(v6) => vxlan.local = Some(IpAddr::V6(*v6)),
            InfoVxlan::Group(v4) => vxlan.group = Some(IpAddr::V4(*v4)),
            InfoVxlan::Group6(v6) => vxlan.group = Some(IpAddr::V6(*v6)),
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            InfoVxlan::L2Miss(l2miss) => vxlan.l2miss = *l2miss,
            InfoVxlan::Gbp => vxlan.gbp = true,
            _ => {}
        }
    }
    vxlan
}

fn address(message: &AddressMessage, links: &Links) -> Option<Entry> {
    let link = links.name(message.header.index)?.clone();
    let prefix_len = message.header.prefix_len;
    // On a link with two ends, one attribute names the other end; the local one is ours.
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let plain = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    let address = local.or(plain).filter(|address| !is_link_local(*address))?;
    Some(Entry::Address(Address { link, address, prefix_len }))
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// An entry that lost its MAC address is as good as lost.
fn neighbour(message: &NeighbourMessage, links: &Links) -> Option<Told> {
    let link = links.name(message.header.ifindex)?.clone();
    let (mut destination, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => destination = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => destination = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(octets) => {
                mac = octets.as_slice().try_into().ok().map(MacAddr::new);
            }
            _ => {}
        }
    }
    let state = message.header.state;
    if message.header.family == AddressFamily::Bridge {
        let is_own = message.header.flags.contains(NeighbourFlags::Own);
        let mac = mac.filter(|mac| is_own && mac.is_unicast())?;
        // What the device learned by itself ages by itself.
        let stays = matches!(state, NeighbourState::Permanent | NeighbourState::Noarp);
        let entry = destination.filter(|_| stays).map(|destination| {
            Told::Holds(Entry::Fdb(Fdb { link: link.clone(), mac, destination }))
        });
        return Some(entry.unwrap_or(Told::Lost(Key::Fdb(link, mac))));
    }
    let address = destination.filter(|_| state != NeighbourState::Noarp)?;
    let is_known = !matches!(state, NeighbourState::Failed | NeighbourState::Incomplete);
    let entry = mac.filter(|_| is_known).map(|mac| {
        let permanent = state == NeighbourState::Permanent;
        Told::Holds(Entry::Neighbour(Neighbour { link: link.clone(), address, mac, permanent }))
    });
    Some(entry.unwrap_or(Told::Lost(Key::Neighbour(link, address))))
}

/// None for what is not in the main table, or chosen by more than its destination.
fn route(message: &RouteMessage, links: &Links) -> Option<Entry> {
    let header = &message.header;
    let family = family(header.address_family)?;
    let mut table = u32::from(header.table);
    let (mut base, mut metric) = (family.unspecified(), 0);
    let (mut gateway, mut link) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => base = route_address(address)?,
            RouteAttribute::Gateway(address) => gateway = route_address(address),
            RouteAttribute::Oif(index) => link = links.name(*index).cloned(),
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let is_plain = header.tos == 0 && !header.flags.contains(RouteFlags::Cloned);
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) || !is_plain {
        return None;
    }
    let is_unicast = header.kind == RouteType::Unicast;
    Some(Entry::Route(Route {
        destination: Prefix::holding(base, header.destination_prefix_length)?,
        metric,
        gateway: gateway.filter(|_| is_unicast),
        link: link.filter(|_| is_unicast),
        onlink: header.flags.contains(RouteFlags::Onlink),
        protocol: header.protocol.into(),
    }))
    .filter(|_| family == Family::of(base))
}
