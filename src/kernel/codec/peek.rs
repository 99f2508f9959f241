//! A look at the bytes of a message that spares parsing it: a host may have far more routes than ours.

use std::net::IpAddr;

use netlink_packet_core::{NetlinkBuffer, NlasIterator};
use nix::libc::{RTA_DST, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWNEIGH, RTM_NEWROUTE};

use super::ip_address;
use crate::model::prefix::Prefix;

/// Bytes of `struct rtmsg`.
const HEADER: usize = 12;

/// Whether `frame` may speak of something of ours: false only for routes that lead elsewhere than
/// into `networks`, and for neighbours and learnt MAC addresses of links other than `tunnels`.
pub(crate) fn may_concern(frame: &[u8], networks: &[Prefix], tunnels: &[u32]) -> bool {
    if let Some(route) = route(frame) {
        return destination(route).is_some_and(|d| networks.iter().any(|it| it.contains(d)));
    }
    neighbour(frame).and_then(link_index).is_none_or(|index| tunnels.contains(&index))
}

/// Whether `frame` may be a default route.
pub(crate) fn may_be_default(frame: &[u8]) -> bool {
    route(frame).is_none_or(|route| route.get(1) == Some(&0))
}

/// The payload, if it is a route.
fn route(frame: &[u8]) -> Option<&[u8]> {
    payload(frame, [RTM_NEWROUTE, RTM_DELROUTE])
}

/// The payload, if it is a neighbour or an entry of a forwarding table.
fn neighbour(frame: &[u8]) -> Option<&[u8]> {
    payload(frame, [RTM_NEWNEIGH, RTM_DELNEIGH])
}

fn payload(frame: &[u8], kinds: [u16; 2]) -> Option<&[u8]> {
    let frame = NetlinkBuffer::new_checked(frame).ok()?;
    kinds.contains(&frame.message_type()).then(|| frame.payload())
}

/// `ndm_ifindex` of `struct ndmsg`.
fn link_index(neighbour: &[u8]) -> Option<u32> {
    neighbour.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)
}

fn destination(route: &[u8]) -> Option<IpAddr> {
    let attributes = NlasIterator::new(route.get(HEADER..)?).map_while(Result::ok);
    let octets = attributes.filter(|attribute| attribute.kind() == RTA_DST);
    octets.map(|attribute| ip_address(attribute.value())).next()?
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
    use netlink_packet_route::route::{RouteAttribute, RouteMessage};
    use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

    use super::*;
    use crate::kernel::codec::{Body, Message};

    fn frame(destination: &str) -> Vec<u8> {
        let destination: Prefix = destination.parse().unwrap();
        let mut message = RouteMessage::default();
        message.header.destination_prefix_length = destination.prefix_len();
        if destination.prefix_len() > 0 {
            message.attributes.push(RouteAttribute::Destination(destination.base().into()));
        }
        serialized(RouteNetlinkMessage::NewRoute(message))
    }

    fn serialized(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = Message::from(Body::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn routes_elsewhere_are_of_no_concern() {
        let networks = ["10.244.0.0/16".parse().unwrap(), "fd00:10::/48".parse().unwrap()];
        for ours in ["10.244.0.0/16", "10.244.7.0/24", "fd00:10:0:7::/64"] {
            assert!(may_concern(&frame(ours), &networks, &[]), "{ours}");
        }
        for other in ["0.0.0.0/0", "10.245.0.0/24", "fd00:11::/64"] {
            assert!(!may_concern(&frame(other), &networks, &[]), "{other}");
        }
    }

    #[test]
    fn only_a_route_without_a_prefix_may_be_a_default_route() {
        assert!(may_be_default(&frame("0.0.0.0/0")));
        assert!(!may_be_default(&frame("10.0.0.0/8")));
    }

    #[test]
    fn what_is_no_route_is_left_to_the_parser() {
        for bytes in [&[][..], &[0; 16], &frame("10.0.0.0/8")[..15]] {
            assert!(may_concern(bytes, &[], &[]) && may_be_default(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn what_bridges_learn_of_pods_is_of_no_concern() {
        let learnt = |index: u32| {
            let mut message = NeighbourMessage::default();
            message.header.family = AddressFamily::Bridge;
            message.header.ifindex = index;
            message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]));
            serialized(RouteNetlinkMessage::NewNeighbour(message))
        };
        assert!(may_concern(&learnt(7), &[], &[7]));
        assert!(!may_concern(&learnt(8), &[], &[7]));
    }
}
