//! Links: tweed's VXLAN devices, and any other link with the same name.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NlasIterator, ParseableParametrized};
use netlink_packet_route::link::{
    InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::libc::{IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, IFLA_OPERSTATE};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVxlan};
use tweed_netlink::Frame;

use super::links::{KnownLink, Links};
use super::{Body, Request, Unencodable, flagged};
use crate::mac::MacAddr;
use crate::model::entry::{Link, LinkKind, LinkName, Vxlan};
use crate::plan::diff::Op;

/// Used in place of an index for a setting of all links.
pub(crate) const ALL_LINKS: u32 = u32::MAX;

/// The size of `struct ifinfomsg`, in bytes.
const HEADER: usize = 16;

/// The size of `struct netconfmsg` with padding, in bytes.
const SETTING_HEADER: usize = 4;
/// From `linux/netconf.h`.
const INDEX: u16 = 1;
const REVERSE_PATH: u16 = 3;

/// Requests identify links by name: a link to be created has no index yet.
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
        Op::Remove(_) => {
            let named = LinkUnspec::new_with_name(link.name.as_str()).build();
            vec![flagged(&RouteNetlinkMessage::DelLink(named), 0)]
        }
    }))
}

/// Creates the whole device in one request, so that no partial device exists.
fn create(link: &Link, links: &Links) -> Result<LinkMessage, Unencodable> {
    let vxlan = vxlan(link)?;
    let mut device = settings(LinkVxlan::new(link.name.as_str(), vxlan.vni), link)
        .address(link.mac.octets().to_vec())
        .txqueuelen(0)
        .ttl(0)
        .tos(0)
        .learning(vxlan.learning)
        .proxy(false)
        .rsc(false)
        .l2miss(vxlan.l2miss)
        .l3miss(false)
        .udp_csum(true)
        .udp_zero_csum6_tx(false)
        .udp_zero_csum6_rx(false)
        .port(vxlan.port);
    if let Some(underlay) = &vxlan.underlay {
        device = device.dev(links.index(underlay)?);
    }
    device = match vxlan.local {
        Some(IpAddr::V4(v4)) => device.local(v4),
        Some(IpAddr::V6(v6)) => device.local6(v6),
        None => device,
    };
    device = match vxlan.group {
        Some(IpAddr::V4(v4)) => device.group(v4),
        Some(IpAddr::V6(v6)) => device.group6(v6),
        None => device,
    };
    // This attribute is a flag: its presence is its value.
    Ok(if vxlan.gbp { device.gbp() } else { device }.build())
}

/// Updates the VXLAN attributes that can change while traffic flows. The kernel does not accept an
/// MTU in the same request.
fn correct(link: &Link) -> Result<LinkMessage, Unencodable> {
    let device = LinkMessageBuilder::<LinkVxlan>::new(link.name.as_str());
    Ok(device.learning(vxlan(link)?.learning).build())
}

/// Setting a link's address, even to the same value, makes the kernel flush its neighbours.
fn set(link: &Link, links: &Links) -> LinkMessage {
    let device = settings(LinkUnspec::new_with_name(link.name.as_str()), link);
    if links.get(&link.name).is_some_and(|known| known.mac == link.mac) {
        device.build()
    } else {
        device.address(link.mac.octets().to_vec()).build()
    }
}

fn settings<T>(device: LinkMessageBuilder<T>, link: &Link) -> LinkMessageBuilder<T> {
    let device = device.mtu(link.mtu);
    if link.up { device.up() } else { device.down() }
}

fn vxlan(link: &Link) -> Result<&Vxlan, Unencodable> {
    match &link.kind {
        LinkKind::Vxlan(vxlan) => Ok(vxlan),
        LinkKind::Other(kind) => Err(Unencodable::NotOurs(kind.clone())),
    }
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
    let info = attribute!(message, LinkAttribute::LinkInfo(info) => Some(info.as_slice()));
    let mut kind = "none".to_owned();
    for info in info.unwrap_or_default() {
        match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => {
                return LinkKind::Vxlan(Box::new(decode_vxlan(data, links)));
            }
            LinkInfo::Kind(name) => kind = name.to_string(),
            _ => {}
        }
    }
    LinkKind::Other(kind)
}

fn decode_vxlan(attributes: &[InfoVxlan], links: &Links) -> Vxlan {
    let mut vxlan = Vxlan::default();
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

/// The link that `body` lists, as [`Links`] has it.
pub(crate) fn listed(body: &Body) -> Option<(LinkName, KnownLink)> {
    let Body::Rtnl(RouteNetlinkMessage::NewLink(message)) = body else { return None };
    let (index, is_up) = (message.header.index, message.header.flags.contains(LinkFlags::Up));
    let (mac, mtu, has_carrier) = (mac(message), mtu(message), !has_lost_carrier(message));
    Some((name(message)?, KnownLink { index, mac, is_up, has_carrier, mtu }))
}

/// Virtual links often report an unknown state, so only an explicit loss counts.
pub(super) fn has_lost_carrier(message: &LinkMessage) -> bool {
    message.attributes.iter().any(|attribute| {
        matches!(attribute, LinkAttribute::OperState(State::Down | State::LowerLayerDown))
    })
}

pub(crate) fn name(message: &LinkMessage) -> Option<LinkName> {
    attribute!(message, LinkAttribute::IfName(name) => Some(LinkName::new(name.as_str())))
}

pub(super) fn mtu(message: &LinkMessage) -> u32 {
    attribute!(message, LinkAttribute::Mtu(mtu) => Some(*mtu)).unwrap_or(0)
}

/// All zero for links whose address is not a MAC address.
fn mac(message: &LinkMessage) -> MacAddr {
    let mac = attribute!(message, LinkAttribute::Address(mac) => mac.as_slice().try_into().ok());
    MacAddr::new(mac.unwrap_or_default())
}

/// Parses only the required attributes: an unknown attribute of a driver must not hide the link.
pub(super) fn parse(payload: &[u8]) -> Option<LinkMessage> {
    let wanted = [IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_MTU, IFLA_OPERSTATE];
    let mut message = LinkMessage::default();
    message.header = LinkHeader::parse(payload).ok()?;
    message.attributes = NlasIterator::new(payload.get(HEADER..)?)
        .map_while(Result::ok)
        .filter(|attribute| wanted.contains(&attribute.kind()))
        .filter_map(|attribute| {
            LinkAttribute::parse_with_param(&attribute, AddressFamily::Unspec).ok()
        })
        .collect();
    Some(message)
}

/// The index of the link whose reverse-path filter has changed; none for other settings. The value
/// is read from the setting's file.
pub(super) fn changed_filter(frame: &Frame<'_>) -> Option<u32> {
    let attributes = frame.attributes(SETTING_HEADER)?;
    attributes.get(REVERSE_PATH)?;
    attributes.u32(INDEX)
}
