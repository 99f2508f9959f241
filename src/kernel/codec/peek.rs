//! Filters messages by their bytes, without parsing: a host may have far more foreign routes than
//! tweed's.

use nix::libc::{RTA_DST, RTM_DELNEIGH, RTM_DELROUTE, RTM_NEWNEIGH, RTM_NEWROUTE};
use tweed_netlink::Frame;

use crate::model::prefix::Prefix;

/// The size of `struct rtmsg`, in bytes.
const HEADER: usize = 12;

/// Whether `frame` may concern an entry of tweed: false only for routes to destinations outside
/// `networks`, and for neighbours and learnt MAC addresses on links other than `tunnels`.
pub(crate) fn may_concern(frame: &Frame<'_>, networks: &[Prefix], tunnels: &[u32]) -> bool {
    match frame.kind {
        RTM_NEWROUTE | RTM_DELROUTE => {
            let destination = frame.attributes(HEADER).and_then(|all| all.ip(RTA_DST));
            destination.is_some_and(|it| networks.iter().any(|network| network.contains(it)))
        }
        RTM_NEWNEIGH | RTM_DELNEIGH => {
            link_index(frame.payload).is_none_or(|index| tunnels.contains(&index))
        }
        _ => true,
    }
}

/// Whether `frame` may be a default route.
pub(crate) fn may_be_default(frame: &Frame<'_>) -> bool {
    !matches!(frame.kind, RTM_NEWROUTE | RTM_DELROUTE) || frame.payload.get(1) == Some(&0)
}

/// `ndm_ifindex` of `struct ndmsg`.
fn link_index(neighbour: &[u8]) -> Option<u32> {
    neighbour.get(4..8)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage};
    use netlink_packet_route::route::{RouteAttribute, RouteMessage};
    use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
    use nix::libc::RTM_NEWLINK;
    use tweed_netlink::Message;

    use super::*;
    use crate::kernel::codec::flagged;

    fn route(destination: &str) -> Vec<u8> {
        let destination: Prefix = destination.parse().unwrap();
        let mut message = RouteMessage::default();
        message.header.destination_prefix_length = destination.prefix_len();
        if destination.prefix_len() > 0 {
            message.attributes.push(RouteAttribute::Destination(destination.base().into()));
        }
        flagged(&RouteNetlinkMessage::NewRoute(message), 0).finish(0, 0)
    }

    fn concerns(datagram: &[u8], networks: &[Prefix], tunnels: &[u32]) -> bool {
        Frame::all(datagram).any(|frame| may_concern(&frame, networks, tunnels))
    }

    fn is_default(datagram: &[u8]) -> bool {
        Frame::all(datagram).any(|frame| may_be_default(&frame))
    }

    #[test]
    fn routes_outside_the_networks_are_ignored() {
        let networks = ["10.244.0.0/16".parse().unwrap(), "fd00:10::/48".parse().unwrap()];
        for ours in ["10.244.0.0/16", "10.244.7.0/24", "fd00:10:0:7::/64"] {
            assert!(concerns(&route(ours), &networks, &[]), "{ours}");
        }
        for other in ["0.0.0.0/0", "10.245.0.0/24", "fd00:11::/64"] {
            assert!(!concerns(&route(other), &networks, &[]), "{other}");
        }
    }

    #[test]
    fn only_a_route_without_a_prefix_may_be_a_default_route() {
        assert!(is_default(&route("0.0.0.0/0")));
        assert!(!is_default(&route("10.0.0.0/8")));
    }

    #[test]
    fn other_messages_are_left_to_the_parser() {
        let link = Message::new(RTM_NEWLINK, 0, &[]).finish(0, 0);
        assert!(concerns(&link, &[], &[]) && is_default(&link));
    }

    #[test]
    fn mac_addresses_learnt_by_bridges_are_ignored() {
        let learnt = |index: u32| {
            let mut message = NeighbourMessage::default();
            message.header.family = AddressFamily::Bridge;
            message.header.ifindex = index;
            message.attributes.push(NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 1]));
            flagged(&RouteNetlinkMessage::NewNeighbour(message), 0).finish(0, 0)
        };
        assert!(concerns(&learnt(7), &[], &[7]));
        assert!(!concerns(&learnt(8), &[], &[7]));
    }
}
