//! Decodes links and addresses as host facts.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage as M;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkLayerType};

use super::links::Links;
use super::{Body, address, link};
use crate::model::entry::LinkName;
use crate::model::node::{Interface, InterfaceAddress, Lifetime};

/// The interface that `body` lists, without its addresses.
pub(crate) fn interface(body: &Body) -> Option<Interface> {
    let Body::Rtnl(M::NewLink(message)) = body else { return None };
    let flags = message.header.flags;
    let carries_frames =
        matches!(message.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Infiniband);
    let no_neighbours = LinkFlags::Loopback | LinkFlags::Pointopoint | LinkFlags::Noarp;
    Some(Interface {
        name: link::name(message)?,
        mtu: link::mtu(message),
        up: flags.contains(LinkFlags::Up) && !link::has_lost_carrier(message),
        layer2: carries_frames && !flags.intersects(no_neighbours),
        addresses: Vec::new(),
    })
}

/// The address that `body` lists, and its link.
pub(crate) fn interface_address(
    body: &Body,
    links: &Links,
) -> Option<(LinkName, InterfaceAddress)> {
    let Body::Rtnl(M::NewAddress(message)) = body else { return None };
    let flags = flags(message);
    let address = address::local(message)?;
    let address = InterfaceAddress {
        address,
        prefix_len: message.header.prefix_len,
        usable: !flags.intersects(AddressFlags::Deprecated | AddressFlags::Tentative),
        lifetime: lifetime(address, flags),
    };
    Some((links.name(message.header.index)?.clone(), address))
}

fn lifetime(address: IpAddr, flags: AddressFlags) -> Lifetime {
    // In IPv4 the same bit marks a secondary address of the subnet.
    if address.is_ipv6() && flags.contains(AddressFlags::Secondary) {
        Lifetime::Temporary
    } else if flags.contains(AddressFlags::Permanent) {
        Lifetime::Permanent
    } else {
        Lifetime::Dynamic
    }
}

/// The header contains only the first eight flags.
fn flags(message: &AddressMessage) -> AddressFlags {
    let long = attribute!(message, AddressAttribute::Flags(flags) => Some(*flags));
    long.unwrap_or_else(|| AddressFlags::from_bits_retain(message.header.flags.bits().into()))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    fn carries_neighbours(kind: LinkLayerType, flags: LinkFlags) -> bool {
        let mut message = LinkMessage::default();
        (message.header.link_layer_type, message.header.flags) = (kind, flags);
        message.attributes = vec![LinkAttribute::IfName("ib0".into())];
        interface(&Body::Rtnl(M::NewLink(message))).unwrap().layer2
    }

    #[test]
    fn ethernet_and_infiniband_have_neighbours_on_layer_2() {
        for kind in [LinkLayerType::Ether, LinkLayerType::Infiniband] {
            assert!(carries_neighbours(kind, LinkFlags::Up | LinkFlags::Broadcast), "{kind:?}");
            for without in [LinkFlags::Loopback, LinkFlags::Pointopoint, LinkFlags::Noarp] {
                assert!(!carries_neighbours(kind, LinkFlags::Up | without), "{kind:?} {without:?}");
            }
        }
        for kind in [LinkLayerType::Loopback, LinkLayerType::Ppp, LinkLayerType::Netlink] {
            assert!(!carries_neighbours(kind, LinkFlags::Up), "{kind:?}");
        }
    }
}
