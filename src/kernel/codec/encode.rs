//! Operations as netlink requests, in flannel's forms.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::super::Op;
use super::super::socket::Request;
use super::super::state::{
    Address, Entry, Fdb, Link, LinkKind, LinkName, Neighbour, Route, Vxlan,
};
use super::{Links, address_family, neighbour_address};
use crate::prefix::Family;

/// Why an operation is no netlink request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::kernel) enum Unencodable {
    #[error("there is no link {0}")]
    NoLink(LinkName),
    #[error("a link of type {0} is not ours to make")]
    ForeignKind(String),
    /// It goes another way.
    #[error("{0} is no netlink object")]
    Sysctl(String),
}

/// Replaces in one request what is there: nothing is ever removed and added again.
const PUT: u16 = NLM_F_CREATE | NLM_F_REPLACE;

pub(in crate::kernel) fn encode(op: &Op, links: &Links) -> Result<Request, Unencodable> {
    let index = |name: &LinkName| links.index(name).ok_or_else(|| Unencodable::NoLink(name.clone()));
    let removes = matches!(op, Op::Remove(_));
    Ok(match op.entry() {
        Entry::Link(link) => match op {
            Op::Create(_) => {
                (RouteNetlinkMessage::NewLink(new_link(link, links)?), NLM_F_CREATE | NLM_F_EXCL)
            }
            Op::Replace(_) => (RouteNetlinkMessage::SetLink(corrected(link, index(&link.name)?)), 0),
            Op::Remove(_) => {
                let mut message = LinkMessage::default();
                message.header.index = index(&link.name)?;
                (RouteNetlinkMessage::DelLink(message), 0)
            }
        },
        Entry::Address(entry) => {
            let message = address(entry, index(&entry.link)?);
            if removes {
                (RouteNetlinkMessage::DelAddress(message), 0)
            } else {
                (RouteNetlinkMessage::NewAddress(message), PUT)
            }
        }
        Entry::Fdb(entry) => neighbour_request(fdb(entry, index(&entry.link)?), removes),
        Entry::Neighbour(entry) => neighbour_request(neighbour(entry, index(&entry.link)?), removes),
        Entry::Route(entry) => {
            let link = entry.link.as_ref().map(index).transpose()?;
            let message = route(entry, link);
            if removes {
                (RouteNetlinkMessage::DelRoute(message), 0)
            } else {
                (RouteNetlinkMessage::NewRoute(message), PUT)
            }
        }
        sysctl @ (Entry::ReversePath(_) | Entry::AcceptRa(_)) => {
            return Err(Unencodable::Sysctl(sysctl.to_string()));
        }
    })
}

fn neighbour_request(message: NeighbourMessage, removes: bool) -> Request {
    if removes {
        (RouteNetlinkMessage::DelNeighbour(message), 0)
    } else {
        (RouteNetlinkMessage::NewNeighbour(message), PUT)
    }
}

fn new_link(link: &Link, links: &Links) -> Result<LinkMessage, Unencodable> {
    let LinkKind::Vxlan(vxlan) = &link.kind else {
        return Err(Unencodable::ForeignKind(link.kind.to_string()));
    };
    let underlay = vxlan.underlay.as_ref();
    let underlay = underlay
        .map(|name| links.index(name).ok_or_else(|| Unencodable::NoLink(name.clone())))
        .transpose()?;
    let mut message = LinkMessage::default();
    message.header.flags = if link.up { LinkFlags::Up } else { LinkFlags::empty() };
    message.header.change_mask = LinkFlags::Up;
    message.attributes = vec![
        LinkAttribute::IfName(link.name.to_string()),
        LinkAttribute::Mtu(link.mtu),
        LinkAttribute::TxQueueLen(0),
        LinkAttribute::Address(link.mac.octets().to_vec()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vxlan),
            LinkInfo::Data(InfoData::Vxlan(vxlan_data(vxlan, underlay))),
        ]),
    ];
    Ok(message)
}

fn vxlan_data(vxlan: &Vxlan, underlay: Option<u32>) -> Vec<InfoVxlan> {
    let local = vxlan.local.map(|local| match local {
        IpAddr::V4(v4) => InfoVxlan::Local(v4),
        IpAddr::V6(v6) => InfoVxlan::Local6(v6),
    });
    let fixed = [
        InfoVxlan::Id(vxlan.vni),
        InfoVxlan::Port(vxlan.port),
        InfoVxlan::Learning(vxlan.learning),
        InfoVxlan::Ttl(0),
        InfoVxlan::Tos(0),
        InfoVxlan::Proxy(false),
        InfoVxlan::Rsc(false),
        InfoVxlan::L2Miss(false),
        InfoVxlan::L3Miss(false),
    ];
    let gbp = vxlan.gbp.then_some(InfoVxlan::Gbp);
    fixed.into_iter().chain(local).chain(underlay.map(InfoVxlan::Link)).chain(gbp).collect()
}

/// Sets what a live device lets us set.
fn corrected(link: &Link, index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = if link.up { LinkFlags::Up } else { LinkFlags::empty() };
    message.header.change_mask = LinkFlags::Up;
    message.attributes =
        vec![LinkAttribute::Mtu(link.mtu), LinkAttribute::Address(link.mac.octets().to_vec())];
    if let LinkKind::Vxlan(vxlan) = &link.kind {
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vxlan),
            LinkInfo::Data(InfoData::Vxlan(vec![InfoVxlan::Learning(vxlan.learning)])),
        ]));
    }
    message
}

fn address(entry: &Address, index: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = address_family(Family::of(entry.address));
    message.header.prefix_len = entry.prefix_len;
    message.header.index = index;
    message.header.scope = AddressScope::Universe;
    message.header.flags = AddressHeaderFlags::empty();
    message.attributes =
        vec![AddressAttribute::Local(entry.address), AddressAttribute::Address(entry.address)];
    if entry.address.is_ipv6() {
        // The lease says that it is unique: nobody needs to be asked, and it is usable at once.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

fn fdb(entry: &Fdb, index: u32) -> NeighbourMessage {
    let mut message = permanent(AddressFamily::Bridge, index, entry.mac.octets());
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(NeighbourAttribute::Destination(neighbour_address(entry.destination)));
    message
}

fn neighbour(entry: &Neighbour, index: u32) -> NeighbourMessage {
    let family = address_family(Family::of(entry.address));
    let mut message = permanent(family, index, entry.mac.octets());
    message.attributes.push(NeighbourAttribute::Destination(neighbour_address(entry.address)));
    message
}

fn permanent(family: AddressFamily, index: u32, mac: [u8; 6]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.to_vec())];
    message
}

fn route(entry: &Route, link: Option<u32>) -> RouteMessage {
    let family = entry.destination.family();
    let mut message = RouteMessage::default();
    message.header.address_family = address_family(family);
    message.header.destination_prefix_length = entry.destination.prefix_len();
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::from(entry.protocol);
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.header.flags = if entry.onlink { RouteFlags::Onlink } else { RouteFlags::empty() };
    message.attributes = vec![RouteAttribute::Destination(entry.destination.base().into())];
    message.attributes.extend(entry.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    message.attributes.extend(link.map(RouteAttribute::Oif));
    if entry.metric != 0 {
        message.attributes.push(RouteAttribute::Priority(entry.metric));
    }
    message
}
