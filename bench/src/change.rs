//! New and removed routes and new nexthop objects in the kernel's messages.

use std::iter;
use std::net::Ipv4Addr;

const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
const NEW_NEXTHOP: u16 = 104;
const INET: u8 = 2;
const DESTINATION: u16 = 1;

/// Something that the kernel has created, replaced or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// An IPv4 route to this `/24` was created or replaced.
    Route(Ipv4Addr),
    /// An IPv4 route to this `/24` was removed.
    Removed(Ipv4Addr),
    Nexthop,
}

/// All that a datagram of netlink tells of them.
pub(super) fn changes(datagram: &[u8]) -> impl Iterator<Item = Change> {
    messages(datagram).filter_map(|(kind, body)| match kind {
        NEW_ROUTE => route(body).map(Change::Route),
        DEL_ROUTE => route(body).map(Change::Removed),
        NEW_NEXTHOP => Some(Change::Nexthop),
        _ => None,
    })
}

/// The type and the body of each message.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let (length, _) = rest.split_first_chunk()?;
        let (message, after) = divide(rest, u32::from_ne_bytes(*length))?;
        rest = after;
        let (kind, _) = message.get(4..)?.split_first_chunk()?;
        Some((u16::from_ne_bytes(*kind), message.get(16..)?))
    })
}

/// The first address of the `/24` that an IPv4 route leads to.
fn route(body: &[u8]) -> Option<Ipv4Addr> {
    let ([INET, 24, ..], attributes) = body.split_first_chunk::<12>()? else { return None };
    let (_, destination) = attributes_of(attributes).find(|(kind, _)| *kind == DESTINATION)?;
    let octets: [u8; 4] = destination.try_into().ok()?;
    Some(octets.into())
}

fn attributes_of(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let (length, _) = rest.split_first_chunk()?;
        let (attribute, after) = divide(rest, u16::from_ne_bytes(*length).into())?;
        rest = after;
        let (kind, _) = attribute.get(2..)?.split_first_chunk()?;
        Some((u16::from_ne_bytes(*kind), attribute.get(4..)?))
    })
}

/// So many bytes, and what follows behind the padding.
fn divide(bytes: &[u8], length: u32) -> Option<(&[u8], &[u8])> {
    let length = usize::try_from(length).ok()?;
    let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((bytes.get(..length)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&length.to_ne_bytes(), &kind.to_ne_bytes(), value, &padding].concat()
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + body.len()).unwrap();
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], body].concat()
    }

    fn route_to(family: u8, length: u8, base: [u8; 4]) -> Vec<u8> {
        let head = [family, length, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0];
        let body = [&head[..], &attribute(15, &[9]), &attribute(DESTINATION, &base)].concat();
        message(NEW_ROUTE, &body)
    }

    #[test]
    fn routes_and_new_nexthops_are_reported_and_nothing_else() {
        let datagram = [
            route_to(INET, 24, [10, 129, 0, 0]),
            message(DEL_ROUTE, &route_to(INET, 24, [10, 129, 7, 0])[16..]),
            route_to(INET, 9, [10, 128, 0, 0]),
            route_to(10, 24, [10, 129, 8, 0]),
            message(NEW_NEXTHOP, &[0; 8]),
            route_to(INET, 24, [10, 129, 1, 0]),
        ];
        let route = |third| Change::Route(Ipv4Addr::new(10, 129, third, 0));
        let found: Vec<_> = changes(&datagram.concat()).collect();
        let removed = Change::Removed(Ipv4Addr::new(10, 129, 7, 0));
        assert_eq!(found, [route(0), removed, Change::Nexthop, route(1)]);
    }

    #[test]
    fn a_message_that_is_cut_off_is_left_out() {
        let whole = route_to(INET, 24, [10, 129, 0, 0]);
        for length in 0..whole.len() {
            assert_eq!(changes(&whole[..length]).count(), 0, "{length}");
        }
        // Nor does a length of nothing keep it busy for ever.
        assert_eq!(changes(&[0; 64]).count(), 0);
    }
}
