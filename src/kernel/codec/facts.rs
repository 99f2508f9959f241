//! Netlink messages as facts of this host.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, State};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage};

use super::{Links, family, route_address};
use super::super::state::LinkName;
use crate::node::{Interface, InterfaceAddress, Lifetime, Reach};
use crate::prefix::Family;

pub(in crate::kernel) fn interface(message: &LinkMessage, links: &Links) -> Option<Interface> {
    let flags = message.header.flags;
    let (mut mtu, mut state) = (0, State::Unknown);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::OperState(now) => state = *now,
            _ => {}
        }
    }
    let without_frames = LinkFlags::Loopback | LinkFlags::Pointopoint | LinkFlags::Noarp;
    let is_ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    Some(Interface {
        name: links.name(message.header.index)?.clone(),
        mtu,
        up: flags.contains(LinkFlags::Up) && !matches!(state, State::Down | State::LowerLayerDown),
        layer2: is_ethernet && !flags.intersects(without_frames),
        addresses: Vec::new(),
    })
}

pub(in crate::kernel) fn add_address(interfaces: &mut [Interface], message: &AddressMessage, links: &Links) {
    let link = links.name(message.header.index);
    let interface = interfaces.iter_mut().find(|interface| Some(&interface.name) == link);
    if let (Some(interface), Some(address)) = (interface, interface_address(message)) {
        interface.addresses.push(address);
    }
}

fn interface_address(message: &AddressMessage) -> Option<InterfaceAddress> {
    let (mut local, mut plain) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => plain = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let address: IpAddr = local.or(plain)?;
    let lifetime = if flags.contains(AddressFlags::Permanent) {
        Lifetime::Permanent
    } else if address.is_ipv6() && flags.contains(AddressFlags::Secondary) {
        // The same bit means a privacy address in IPv6.
        Lifetime::Temporary
    } else {
        Lifetime::Dynamic
    };
    let usable = !flags.intersects(AddressFlags::Deprecated | AddressFlags::Tentative);
    Some(InterfaceAddress { address, prefix_len: message.header.prefix_len, usable, lifetime })
}

/// None if the route is not a default route of the main table.
pub(in crate::kernel) fn default_route(message: &RouteMessage, links: &Links) -> Option<(Family, Option<LinkName>)> {
    let header = &message.header;
    let is_default = header.destination_prefix_length == 0 && header.table == RouteHeader::RT_TABLE_MAIN;
    let family = family(header.address_family).filter(|_| is_default)?;
    Some((family, outgoing(message, links)))
}

pub(in crate::kernel) fn reach(message: &RouteMessage, links: &Links) -> Option<Reach> {
    let source = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::PrefSource(address) => route_address(address),
        _ => None,
    });
    Some(Reach { link: outgoing(message, links)?, source })
}

fn outgoing(message: &RouteMessage, links: &Links) -> Option<LinkName> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => links.name(*index).cloned(),
        _ => None,
    })
}
