//! Damaged foreign records; `tests/fuzz` tries far more of them.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tweed::kernel::read_datagram;
use tweed::model::path::Path;
use tweed::model::probe_secret::Secret;
use tweed::plan::trace::{Delivery, Hop, HopKind, HopState, PeerQuestion, Trace, TracedPacket};
use tweed::probe::{Packet, PacketKind, Stamp, encode_question, encode_trace};
use tweed::store::etcd::read_snapshot;
use tweed::store::kube::read_node;

use crate::{cases, records};

const LEASES: &[u8] = include_bytes!("../fuzz/seeds/lease/two");
const NODE: &[u8] = include_bytes!("../fuzz/seeds/node/one");

/// Seeds of fuzz targets whose input has further parts: at the start, a byte per flag, the address
/// of the sender of a probe, or the head of a list; at the end, the end of a list.
const NETLINK: &[u8] = include_bytes!("../fuzz/seeds/netlink/vxlan_node");
const PROBE: &[u8] = include_bytes!("../fuzz/seeds/probe/request");
const TRACE_REQUEST: &[u8] = include_bytes!("../fuzz/seeds/probe/trace_request");
const TRACE_ANSWER: &[u8] = include_bytes!("../fuzz/seeds/probe/trace_answer");
const SNAPSHOT: &[u8] = include_bytes!("../fuzz/seeds/snapshot/two");

/// One change of a text.
#[derive(Clone, Debug)]
enum Damage {
    Replaced(u8),
    Removed(usize),
    Repeated(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<u8>().prop_map(Damage::Replaced),
        (1..20_usize).prop_map(Damage::Removed),
        (1..400_usize).prop_map(Damage::Repeated),
    ]
}

fn damaged(text: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    vec((any::<Index>(), damage()), 0..6).prop_map(|changes| {
        let mut text = text.to_vec();
        for (at, change) in changes {
            let at = at.index(text.len());
            match change {
                Damage::Replaced(byte) => text[at] = byte,
                Damage::Removed(count) => {
                    drop(text.drain(at..(at + count).min(text.len() - 1).max(at)));
                }
                Damage::Repeated(count) => {
                    let part = text[at..].iter().copied().cycle().take(count).collect::<Vec<_>>();
                    text.splice(at..at, part);
                }
            }
        }
        text
    })
}

/// Mutations of an invalid seed find little.
#[test]
fn the_seeds_of_the_fuzz_targets_are_valid() {
    let datagram = NETLINK.strip_prefix(&[1, 1, 0, 0, 0]).unwrap();
    let observations = read_datagram(&datagram[..datagram.len() - 3]);
    let shown = format!("{observations:?}");
    for entry in ["10.244.3.0", "10.244.1.0", "172.16.0.9"] {
        assert!(shown.contains(entry), "no {entry} in {shown}");
    }

    let secret = Secret::new(&[7; Secret::LENGTH]);
    let stamp = Some(Stamp { session: 11, count: 13 });
    let [from, to] = [[10, 244, 2, 0], [10, 244, 1, 0]].map(IpAddr::from);
    let ip = |text: &str| text.parse().unwrap();
    let traced =
        TracedPacket { source: ip("10.244.2.7"), destination: ip("10.244.1.9"), size: 1450 };
    let question = PeerQuestion { packet: traced, arrives_by: Some(Path::Tunnel) };
    let hop = |hop, state, text: &str| Hop { hop, state, text: text.to_owned() };
    let hops = vec![
        hop(HopKind::Guard, HopState::Passed, "accepts packets"),
        hop(HopKind::Route, HopState::Dropped, "no route"),
    ];
    let (leaves_by, delivery) = (Some(Path::Tunnel), Delivery::Dropped);
    let trace = Trace { packet: traced, translated_to: None, leaves_by, hops, delivery };
    for (seed, kind, content) in [
        (PROBE, PacketKind::Request, Vec::new()),
        (TRACE_REQUEST, PacketKind::TraceRequest, encode_question(question)),
        (TRACE_ANSWER, PacketKind::TraceAnswer, encode_trace(&trace)),
    ] {
        let path = Path::Direct;
        let packet = Packet { kind, path, nonce: 7, from, to, stamp, takes_direct: true };
        let packet = packet.encode(&content, &secret, 0);
        let sealed = packet.strip_prefix(b"tw\x01").unwrap();
        let sent = &sealed[..sealed.len() - Secret::SEAL];
        assert_eq!(seed, [&[1, 10, 244, 2, 0], sent].concat());
    }

    let deflated = miniz_oxide::deflate::compress_to_vec(&SNAPSHOT[1..], 1);
    let checksum = crc32fast::hash(&deflated).to_be_bytes();
    let snapshot = [&b"tweed leases 1\n"[..], &checksum, &deflated].concat();
    assert_eq!(read_snapshot(&snapshot).unwrap().len(), 2);
    assert_eq!(SNAPSHOT[0], 0);
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn damaged_leases_of_etcd_displace_no_other_lease(text in damaged(LEASES)) {
        records::check(records::leases(&text));
    }

    #[test]
    fn damaged_nodes_displace_no_other_lease(text in damaged(NODE)) {
        records::check(text.split(|byte| *byte == b'\n').filter_map(read_node).collect());
    }

    #[test]
    fn no_datagram_of_netlink_makes_the_readers_panic(
        messages in vec((16..120_u16, vec(any::<u8>(), 0..120)), 1..4),
    ) {
        let frame = |(kind, payload): &(u16, Vec<u8>)| {
            let length = u32::try_from(16 + payload.len()).unwrap();
            let mut frame = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], payload].concat();
            frame.resize(frame.len().next_multiple_of(4), 0);
            frame
        };
        drop(read_datagram(&messages.iter().flat_map(frame).collect::<Vec<_>>()));
    }
}
