//! Links: VXLAN devices of ours, and whatever else bears their name.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NlasIterator, ParseableParametrized};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc::{IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, IFLA_OPERSTATE};

use super::links::{Known, Links};
use super::{Request, Unencodable, flagged};
use crate::mac::MacAddr;
use crate::model::entry::{Link, LinkKind, LinkName, Vxlan};
use crate::plan::diff::Op;

/// Links go by name here: the index of one that is yet to be made is unknown.
pub(super) fn encode(op: &Op, link: &Link, links: &Links) -> Result<Request, Unencodable> {
    Ok(Request::Netlink(match op {
        Op::Create(_) => {
            let message = RouteNetlinkMessage::NewLink(create(link, links)?);
            vec![flagged(&message, NLM_F_CREATE | NLM_F_EXCL)]
        }
        Op::Replace(_) => [correct(link)?, set(link, links)]
            .map(RouteNetlinkMessage::NewLink)
            .map(|message| flagged(&message, 0))
            .into(),
        Op::Remove(_) => vec![flagged(&RouteNetlinkMessage::DelLink(named(&link.name)), 0)],
    }))
}

/// The whole device in one request: it never exists half made.
fn create(link: &Link, links: &Links) -> Result<LinkMessage, Unencodable> {
    let mut message = settings(link);
    message.attributes.push(mac_attribute(link));
    message.attributes.push(LinkAttribute::TxQueueLen(0));
    message.attributes.push(vxlan_info(vxlan_attributes(vxlan(link)?, links)?));
    Ok(message)
}

/// Of what makes it a VXLAN device, the part that can be changed while traffic flows. The kernel
/// takes no MTU in the same request.
fn correct(link: &Link) -> Result<LinkMessage, Unencodable> {
    let mut message = named(&link.name);
    message.attributes.push(vxlan_info(vec![InfoVxlan::Learning(vxlan(link)?.learning)]));
    Ok(message)
}

/// The kernel forgets all neighbours of a link whose address is set, be it to what it was.
fn set(link: &Link, links: &Links) -> LinkMessage {
    let mut message = settings(link);
    if links.mac(&link.name) != Some(link.mac) {
        message.attributes.push(mac_attribute(link));
    }
    message
}

fn settings(link: &Link) -> LinkMessage {
    let mut message = named(&link.name);
    message.header.change_mask = LinkFlags::Up;
    message.header.flags = if link.up { LinkFlags::Up } else { LinkFlags::empty() };
    message.attributes.push(LinkAttribute::Mtu(link.mtu));
    message
}

fn mac_attribute(link: &Link) -> LinkAttribute {
    LinkAttribute::Address(link.mac.octets().to_vec())
}

fn named(name: &LinkName) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.as_str().to_owned())];
    message
}

fn vxlan(link: &Link) -> Result<&Vxlan, Unencodable> {
    match &link.kind {
        LinkKind::Vxlan(vxlan) => Ok(vxlan),
        LinkKind::Other(kind) => Err(Unencodable::NotOurs(kind.clone())),
    }
}

fn vxlan_info(attributes: Vec<InfoVxlan>) -> LinkAttribute {
    LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Vxlan),
        LinkInfo::Data(InfoData::Vxlan(attributes)),
    ])
}

fn vxlan_attributes(vxlan: &Vxlan, links: &Links) -> Result<Vec<InfoVxlan>, Unencodable> {
    let mut attributes = vec![
        InfoVxlan::Id(vxlan.vni),
        InfoVxlan::Ttl(0),
        InfoVxlan::Tos(0),
        InfoVxlan::Learning(vxlan.learning),
        InfoVxlan::Proxy(false),
        InfoVxlan::Rsc(false),
        InfoVxlan::L2Miss(vxlan.l2miss),
        InfoVxlan::L3Miss(false),
        InfoVxlan::UDPCsum(true),
        InfoVxlan::UDPZeroCsumTX(false),
        InfoVxlan::UDPZeroCsumRX(false),
        InfoVxlan::Port(vxlan.port),
    ];
    if let Some(underlay) = &vxlan.underlay {
        attributes.push(InfoVxlan::Link(links.index(underlay)?));
    }
    attributes.extend(vxlan.local.map(|local| match local {
        IpAddr::V4(v4) => InfoVxlan::Local(v4),
        IpAddr::V6(v6) => InfoVxlan::Local6(v6),
    }));
    attributes.extend(vxlan.group.map(|group| match group {
        IpAddr::V4(v4) => InfoVxlan::Group(v4),
        IpAddr::V6(v6) => InfoVxlan::Group6(v6),
    }));
    // A flag: its presence is its value.
    attributes.extend(vxlan.gbp.then_some(InfoVxlan::Gbp));
    Ok(attributes)
}

pub(super) fn decode(message: &LinkMessage, links: &Links) -> Option<Link> {
    Some(Link {
        name: name(message)?,
        kind: kind(message, links),
        mtu: mtu(message),
        mac: mac(message),
        up: message.header.flags.contains(LinkFlags::Up),
    })
}

fn kind(message: &LinkMessage, links: &Links) -> LinkKind {
    let info: &[LinkInfo] = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(info) => Some(info.as_slice()),
            _ => None,
        })
        .unwrap_or_default();
    let data = info.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(data)) => Some(data),
        _ => None,
    });
    let kind = info.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind.to_string()),
        _ => None,
    });
    match data {
        Some(data) => LinkKind::Vxlan(Box::new(decode_vxlan(data, links))),
        None => LinkKind::Other(kind.unwrap_or_else(|| "none".to_owned())),
    }
}

fn decode_vxlan(attributes: &[InfoVxlan], links: &Links) -> Vxlan {
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
    for attribute in attributes {
        match attribute {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Link(index) => vxlan.underlay = links.name(*index).cloned(),
            InfoVxlan::Local(v4) => vxlan.local = Some((*v4).into()),
            InfoVxlan::Local6(v6) => vxlan.local = Some((*v6).into()),
            InfoVxlan::Group(v4) => vxlan.group = Some((*v4).into()),
            InfoVxlan::Group6(v6) => vxlan.group = Some((*v6).into()),
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            InfoVxlan::L2Miss(l2miss) => vxlan.l2miss = *l2miss,
            InfoVxlan::Gbp => vxlan.gbp = true,
            _ => {}
        }
    }
    vxlan
}

/// The link as it is kept among [`Links`].
pub(crate) fn known(message: &LinkMessage) -> Option<(LinkName, Known)> {
    Some((name(message)?, Known { index: message.header.index, mac: mac(message) }))
}

pub(crate) fn name(message: &LinkMessage) -> Option<LinkName> {
    message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(LinkName::new(name.as_str())),
        _ => None,
    })
}

pub(super) fn mtu(message: &LinkMessage) -> u32 {
    let mtu = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    });
    mtu.unwrap_or(0)
}

/// All zero for links whose address is no MAC address.
fn mac(message: &LinkMessage) -> MacAddr {
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(octets) => octets.as_slice().try_into().ok(),
        _ => None,
    });
    MacAddr::new(mac.unwrap_or_default())
}

/// Reads what we need of a link and nothing else: an attribute that nobody here knows, of some
/// driver's own, must not make a link invisible.
pub(super) fn parse(payload: &[u8]) -> Option<LinkMessage> {
    let wanted = [IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, IFLA_OPERSTATE];
    let mut message = LinkMessage::default();
    message.header = LinkHeader::parse(payload).ok()?;
    message.attributes = NlasIterator::new(payload.get(HEADER_LEN..)?)
        .map_while(Result::ok)
        .filter(|attribute| wanted.contains(&attribute.kind()))
        .filter_map(|attribute| {
            LinkAttribute::parse_with_param(&attribute, AddressFamily::Unspec).ok()
        })
        .collect();
    Some(message)
}

/// Of `struct ifinfomsg`, in bytes.
const HEADER_LEN: usize = 16;
