//! Tests that encoded entries are decoded unchanged.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use netlink_packet_core::DefaultNla;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::NeighbourState;
use nix::libc::{IFLA_LINKINFO, IFLA_STATS64};
use proptest::prelude::*;

use super::links::KnownLink;
use super::*;
use crate::mac::MacAddr;
use crate::model::entry::{
    Address, Fdb, Key, Link, LinkKind, Neighbour, Nexthop, NexthopId, PROTOCOL, Route, RouteKind,
    Vxlan,
};
use crate::model::prefix::{Family, Prefix};

fn links() -> Links {
    ["lo", "eth0", "flannel.1"].into_iter().map(LinkName::new).enumerate().map(numbered).collect()
}

fn numbered((position, name): (usize, LinkName)) -> (LinkName, KnownLink) {
    let index = u32::try_from(position).unwrap() + 1;
    let mac = MacAddr::new([0; 6]);
    (name, KnownLink { index, mac, is_up: true, has_carrier: true, mtu: 1500 })
}

fn link_name() -> impl Strategy<Value = LinkName> {
    prop_oneof![Just("eth0"), Just("flannel.1")].prop_map(LinkName::new)
}

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr::new).prop_filter("unicast", |mac| mac.is_unicast())
}

/// Addresses that are neither assigned by the kernel nor shared by several hosts.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = (0x0a00_0000_u32..0x0aff_ffff).prop_map(|bits| IpAddr::V4(bits.into()));
    let v6 =
        any::<u64>().prop_map(|bits| IpAddr::V6(((0xfd00_u128 << 112) | u128::from(bits)).into()));
    prop_oneof![v4, v6]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (address(), 1..=32_u8).prop_map(|(address, len)| Prefix::holding(address, len).unwrap())
}

fn vxlan() -> impl Strategy<Value = LinkKind> {
    let addresses = (proptest::option::of(address()), proptest::option::of(address()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (0..1_u32 << 24, proptest::option::of(link_name()), addresses, any::<u16>(), flags).prop_map(
        |(vni, underlay, (local, group), port, (learning, gbp, l2miss))| {
            LinkKind::Vxlan(Box::new(Vxlan {
                vni,
                underlay,
                local,
                port,
                learning,
                gbp,
                group,
                l2miss,
            }))
        },
    )
}

fn link() -> impl Strategy<Value = Entry> {
    (link_name(), vxlan(), any::<u32>(), mac(), any::<bool>())
        .prop_map(|(name, kind, mtu, mac, up)| Entry::Link(Link { name, kind, mtu, mac, up }))
}

fn own_address() -> impl Strategy<Value = Entry> {
    (link_name(), address(), 0..=32_u8).prop_map(|(link, address, prefix_len)| {
        Entry::Address(Address { link, address, prefix_len })
    })
}

fn fdb() -> impl Strategy<Value = Entry> {
    (link_name(), mac(), address())
        .prop_map(|(link, mac, destination)| Entry::Fdb(Fdb { link, mac, destination }))
}

fn neighbour() -> impl Strategy<Value = Entry> {
    (link_name(), address(), mac(), any::<bool>()).prop_map(|(link, address, mac, permanent)| {
        Entry::Neighbour(Neighbour { link, address, mac, permanent })
    })
}

fn route() -> impl Strategy<Value = Entry> {
    let way = (proptest::option::of(address()), proptest::option::of(link_name()));
    (prefix(), any::<u32>(), way, any::<bool>(), any::<u8>()).prop_map(
        |(destination, metric, (gateway, link), onlink, protocol)| {
            let nexthop = None;
            let kind = RouteKind::Unicast;
            // An IPv6 route cannot have an IPv4 gateway.
            let is_possible = |it: &IpAddr| it.is_ipv6() || destination.family() == Family::V4;
            let gateway = gateway.filter(is_possible);
            Entry::Route(Route {
                kind,
                destination,
                metric,
                gateway,
                link,
                onlink,
                nexthop,
                protocol,
            })
        },
    )
}

/// A route whose remaining attributes are in a nexthop object.
fn route_by_nexthop() -> impl Strategy<Value = Entry> {
    (prefix(), any::<u32>(), any::<u32>(), any::<u8>()).prop_map(
        |(destination, metric, id, protocol)| {
            let nexthop = Some(NexthopId(id));
            let route = Route {
                kind: RouteKind::Unicast,
                destination,
                metric,
                gateway: None,
                link: None,
                onlink: false,
                nexthop,
                protocol,
            };
            Entry::Route(route)
        },
    )
}

fn nexthop() -> impl Strategy<Value = Entry> {
    let way = (proptest::option::of(address()), proptest::option::of(link_name()));
    (any::<u32>(), way, any::<bool>(), any::<u8>()).prop_map(
        |(id, (gateway, link), onlink, protocol)| {
            let id = NexthopId(id);
            Entry::Nexthop(Nexthop { id, gateway, link, onlink, protocol })
        },
    )
}

fn dead_end() -> impl Strategy<Value = Entry> {
    prefix().prop_map(|destination| Entry::Route(Route::unreachable(destination)))
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        link(),
        own_address(),
        fdb(),
        neighbour(),
        nexthop(),
        route(),
        route_by_nexthop(),
        dead_end()
    ]
}

fn encoded(op: &Op) -> Message {
    let Ok(Request::Netlink(messages)) = encode(op, &links()) else { unreachable!("{op}") };
    messages.into_iter().next().unwrap()
}

/// The message as the receiver parses it.
fn received(datagram: &[u8]) -> Option<Body> {
    parse(&Frame::all(datagram).next().unwrap())
}

fn sent(op: &Op) -> Body {
    received(&encoded(op).finish(0, 0)).unwrap()
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_as_it_was(entry in entry()) {
        let message = sent(&Op::Create(entry.clone().into()));
        prop_assert_eq!(decode(&message, &links()), Some(Observation::Holds(entry)));
    }

    #[test]
    fn a_removal_names_the_key_it_removes(entry in entry()) {
        let message = sent(&Op::Remove(entry.clone().into()));
        if !matches!(entry, Entry::Link(_)) {
            prop_assert_eq!(decode(&message, &links()), Some(Observation::Lost(entry.key())));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..256),
        kind in prop_oneof![16..40_u16, 104..107_u16],
    ) {
        let mut bytes = bytes;
        bytes.splice(0..0, [0; 16]);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes.splice(0..4, length.to_ne_bytes());
        bytes.splice(4..6, kind.to_ne_bytes());
        let _ = received(&bytes).map(|body| decode(&body, &links()));
    }
}

fn a_route() -> Route {
    let gateway = "10.244.2.0".parse().unwrap();
    Route::via("10.244.2.0/24".parse().unwrap(), gateway, LinkName::new("flannel.1")).onlink()
}

fn a_neighbour() -> Neighbour {
    Neighbour {
        link: LinkName::new("flannel.1"),
        address: "10.244.2.0".parse().unwrap(),
        mac: MacAddr::new([2, 0, 0, 0, 0, 2]),
        permanent: true,
    }
}

#[test]
fn an_op_on_a_missing_link_names_it() {
    let route = Route { link: Some(LinkName::new("flannel.9")), ..a_route() };
    let unencodable = encode(&Op::Create(Entry::Route(route).into()), &links()).unwrap_err();
    assert_eq!(unencodable.to_string(), "there is no link flannel.9");
}

#[test]
fn a_route_has_tweeds_protocol_and_flannels_form() {
    let message = route::encode(&a_route(), &links()).unwrap();
    assert_eq!(u8::from(message.header.protocol), PROTOCOL);
    assert_eq!(message.header.table, 254);
    assert_eq!(a_route().metric, Route::default_metric(Family::V4));
}

#[test]
fn a_neighbour_without_a_mac_is_lost() {
    let mut message = neighbour::encode(&a_neighbour(), &links()).unwrap();
    message.header.state = NeighbourState::Failed;
    let body = Body::Rtnl(RouteNetlinkMessage::NewNeighbour(message));
    let key = Key::Neighbour(a_neighbour().link, a_neighbour().address);
    assert_eq!(decode(&body, &links()), Some(Observation::Lost(key)));
}

#[test]
fn an_appended_route_is_inactive() {
    let message = encoded(&Op::Create(Entry::Route(a_route()).into()));
    assert_eq!(received(&message.finish(0, NLM_F_APPEND.into())), None);
}

#[test]
fn a_route_of_another_table_or_tos_is_ignored() {
    for spoil in [
        (|message| message.header.table = 100)
            as fn(&mut netlink_packet_route::route::RouteMessage),
        |message| message.header.tos = 8,
    ] {
        let mut message = route::encode(&a_route(), &links()).unwrap();
        spoil(&mut message);
        assert_eq!(route::decode(&message, &links()), None);
    }
}

#[test]
fn an_unknown_attribute_does_not_hide_its_link() {
    let mut message = LinkMessage::default();
    message.header.index = 4;
    message.attributes = vec![
        // Too short for its type, as a newer driver might send it.
        LinkAttribute::Other(DefaultNla::new(IFLA_LINKINFO, vec![1, 2, 3, 4, 5])),
        LinkAttribute::Other(DefaultNla::new(IFLA_STATS64, vec![1])),
        LinkAttribute::IfName("eth0".to_owned()),
    ];
    let message = RouteNetlinkMessage::NewLink(message);
    let datagram = flagged(&message, 0).finish(0, 0);
    let payload = Frame::all(&datagram).next().unwrap().payload;
    let parsed = RouteNetlinkMessage::parse_with_param(payload, RTM_NEWLINK);
    assert!(parsed.is_err(), "the library would have given up");
    let (name, known) = listed_link(&received(&datagram).unwrap()).unwrap();
    assert_eq!((name, known.index), (LinkName::new("eth0"), 4));
}
