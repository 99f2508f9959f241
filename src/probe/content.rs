//! Encodes and decodes what packets about a trace carry: the question, and the hops on the peer.

use std::net::Ipv6Addr;

use super::SHORTEST;
use super::packet::{address, code, decode, octets};
use crate::excerpt;
use crate::model::path::Path;
use crate::plan::trace::{Delivery, Hop, HopKind, HopState, PeerQuestion, Trace, TracedPacket};

/// The longest answer, in bytes: it fits into the packets of any network.
pub const LONGEST: usize = 1200;
/// The maximum number of hops; the first ones of more are not sent.
const HOPS: usize = 32;
/// Of an answer before its hops, in bytes.
const HEADER: usize = 19;
/// Of a hop without its text, in bytes.
const HOP: usize = 4;
/// The lengths in bytes to which long texts are cut, until all fit.
const CUTS: [usize; 6] = [600, 300, 150, 100, 60, 28];

/// Indexed by their codes.
const PATHS: [Option<Path>; 3] = [None, Some(Path::Direct), Some(Path::Tunnel)];
const DELIVERIES: [Delivery; 3] = [Delivery::Delivered, Delivery::Dropped, Delivery::Unknown];
const STATES: [HopState; 4] =
    [HopState::Passed, HopState::Planned, HopState::Dropped, HopState::Unknown];
const KINDS: [HopKind; 17] = [
    HopKind::Pod,
    HopKind::Host,
    HopKind::Peer,
    HopKind::Guard,
    HopKind::Tunnel,
    HopKind::Filter,
    HopKind::Rule,
    HopKind::Route,
    HopKind::Nexthop,
    HopKind::Mtu,
    HopKind::Forward,
    HopKind::Masquerade,
    HopKind::Neighbour,
    HopKind::Fdb,
    HopKind::Underlay,
    HopKind::Probe,
    HopKind::Outside,
];

pub fn encode_question(question: PeerQuestion) -> Vec<u8> {
    let PeerQuestion { packet, arrives_by } = question;
    let mut bytes = vec![code(&PATHS, &arrives_by)];
    bytes.extend(packet.size.to_be_bytes());
    bytes.extend(octets(packet.source));
    bytes.extend(octets(packet.destination));
    bytes
}

/// None if it is no question about a possible packet. More bytes may follow.
pub fn decode_question(bytes: &[u8]) -> Option<PeerQuestion> {
    let (path, rest) = bytes.split_first()?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (source, rest) = rest.split_first_chunk::<16>()?;
    let destination = address(*rest.first_chunk::<16>()?);
    let (arrives_by, size) = (decode(&PATHS, *path)?, u32::from_be_bytes(*size));
    let packet = TracedPacket::parse(address(*source), destination, size).ok()?;
    Some(PeerQuestion { packet, arrives_by })
}

/// Without the packet, which the node that asks knows. Long texts are cut.
pub fn encode_trace(
    Trace { packet: _, translated_to, leaves_by, hops, delivery }: &Trace,
) -> Vec<u8> {
    let hops = hops.get(hops.len().saturating_sub(HOPS)..).unwrap_or_default();
    let room = LONGEST - SHORTEST - HEADER - hops.len() * HOP;
    let texts = |longest| hops.iter().map(move |hop| cut(&hop.text, longest));
    let fits = |longest: &usize| texts(*longest).map(|text| text.len()).sum::<usize>() <= room;
    let longest = CUTS.into_iter().find(fits).unwrap_or_default();
    let mut bytes = vec![code(&DELIVERIES, delivery), code(&PATHS, leaves_by)];
    bytes.extend(octets(translated_to.unwrap_or(Ipv6Addr::UNSPECIFIED.into())));
    bytes.push(hops.len().try_into().unwrap_or(u8::MAX));
    for (hop, text) in hops.iter().zip(texts(longest)) {
        bytes.extend([code(&KINDS, &hop.hop), code(&STATES, &hop.state)]);
        bytes.extend(u16::try_from(text.len()).unwrap_or_default().to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// None if it is no answer about `packet`. More bytes may follow.
pub fn decode_trace(packet: TracedPacket, bytes: &[u8]) -> Option<Trace> {
    let ([delivery, leaves_by], rest) = bytes.split_first_chunk()?;
    let (translated_to, rest) = rest.split_first_chunk()?;
    let (count, mut rest) = rest.split_first()?;
    let count = usize::from(*count);
    let mut hops = Vec::new();
    for _ in 0..count.min(HOPS + 1) {
        let (hop, next) = decode_hop(rest)?;
        hops.push(hop);
        rest = next;
    }
    let translated_to = Some(address(*translated_to)).filter(|it| !it.is_unspecified());
    let is_of_packet = translated_to.is_none_or(|it| it.is_ipv4() == packet.source.is_ipv4());
    let (delivery, leaves_by) = (decode(&DELIVERIES, *delivery)?, decode(&PATHS, *leaves_by)?);
    let trace = Trace { packet, translated_to, leaves_by, hops, delivery };
    (is_of_packet && count <= HOPS).then_some(trace)
}

/// The first hop, and what follows it. The peer wrote its text.
fn decode_hop(bytes: &[u8]) -> Option<(Hop, &[u8])> {
    let (codes, rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
    let [hop, state] = *codes;
    let text = excerpt::sentence(&String::from_utf8_lossy(text));
    Some((Hop { hop: decode(&KINDS, hop)?, state: decode(&STATES, state)?, text }, rest))
}

/// At most `longest` bytes, the mark of the cut included.
fn cut(text: &str, longest: usize) -> String {
    const MARK: char = '…';
    if text.len() <= longest {
        return text.to_owned();
    }
    let mut end = longest.saturating_sub(MARK.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::probe::hex;

    fn packet() -> TracedPacket {
        let [source, destination] = ["10.244.1.7", "10.244.3.9"].map(|it| it.parse().unwrap());
        TracedPacket { source, destination, size: 1450 }
    }

    fn hop(hop: HopKind, state: HopState, text: &str) -> Hop {
        Hop { hop, state, text: text.to_owned() }
    }

    fn trace(hops: Vec<Hop>) -> Trace {
        let (translated_to, leaves_by) = (None, Some(Path::Tunnel));
        Trace { packet: packet(), translated_to, leaves_by, hops, delivery: Delivery::Dropped }
    }

    fn any_trace() -> impl Strategy<Value = Trace> {
        let text = prop_oneof!["[ -~]{0,40}", "(?s).{0,700}"];
        let hop = (select(&KINDS), select(&STATES), text);
        let hop = hop.prop_map(|(hop, state, text)| Hop { hop, state, text });
        let source = proptest::option::of((1_u32..).prop_map(std::net::Ipv4Addr::from));
        let rest = (select(&PATHS), select(&DELIVERIES), source);
        (proptest::collection::vec(hop, 0..40), rest).prop_map(
            |(hops, (leaves_by, delivery, source))| {
                let translated_to = source.map(IpAddr::from);
                Trace { packet: packet(), translated_to, leaves_by, hops, delivery }
            },
        )
    }

    fn select<T: Copy + std::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = T> {
        proptest::sample::select(all)
    }

    #[test]
    fn the_bytes_of_a_question_are_these() {
        let question = PeerQuestion { packet: packet(), arrives_by: Some(Path::Tunnel) };
        let mapped = "00000000000000000000ffff";
        let expected = format!("02000005aa{mapped}0af40107{mapped}0af40309");
        assert_eq!(hex(&encode_question(question)), expected);
        assert_eq!(decode_question(&encode_question(question)), Some(question));
    }

    #[test]
    fn the_bytes_of_an_answer_are_these() {
        let hops = vec![
            hop(HopKind::Guard, HopState::Passed, "a"),
            hop(HopKind::Route, HopState::Dropped, "none"),
        ];
        let none = "00".repeat(16);
        let expected =
            format!("0102{none}02{}{}", "0300000161", "07020004".to_owned() + "6e6f6e65");
        assert_eq!(hex(&encode_trace(&trace(hops))), expected);
    }

    #[test]
    fn an_impossible_packet_is_no_question() {
        let bytes = |size: u32, source: &str| {
            let packet = TracedPacket { source: source.parse().unwrap(), size, ..packet() };
            encode_question(PeerQuestion { packet, arrives_by: None })
        };
        assert!(decode_question(&bytes(84, "10.244.1.7")).is_some());
        assert_eq!(decode_question(&bytes(27, "10.244.1.7")), None, "too small");
        assert_eq!(decode_question(&bytes(84, "fd00::7")), None, "another family");
        assert_eq!(decode_question(&bytes(84, "224.0.0.1")), None, "multicast");
        assert_eq!(decode_question(&bytes(84, "10.244.1.7")[..36]), None, "cut");
    }

    #[test]
    fn texts_of_a_peer_are_cut_and_escaped() {
        let hostile = "\u{1b}[2Jdelivered\n\u{202e}";
        let bytes = encode_trace(&trace(vec![hop(HopKind::Pod, HopState::Passed, hostile)]));
        let decoded = decode_trace(packet(), &bytes).unwrap();
        assert_eq!(decoded.hops[0].text, "\\u{1b}[2Jdelivered\\n\\u{202e}");
        // Another program may write longer ones, and text that is no UTF-8.
        let mut bytes = encode_trace(&trace(Vec::new()));
        bytes[HEADER - 1] = 1;
        bytes.extend([0, 0, 0xff, 0xff]);
        bytes.resize(bytes.len() + 0xffff, 0xff);
        let decoded = decode_trace(packet(), &bytes).unwrap();
        assert_eq!(decoded.hops[0].text.chars().count(), excerpt::SENTENCE);
    }

    #[test]
    fn too_many_hops_are_rejected() {
        let mut bytes = encode_trace(&trace(Vec::new()));
        for (count, is_accepted) in [(HOPS, true), (HOPS + 1, false), (255, false)] {
            bytes.resize(HEADER, 0);
            bytes[HEADER - 1] = count.try_into().unwrap();
            bytes.resize(HEADER + count * HOP, 0);
            assert_eq!(decode_trace(packet(), &bytes).is_some(), is_accepted, "{count}");
        }
    }

    proptest! {
        #[test]
        fn an_answer_fits_and_is_decoded_as_it_was(trace in any_trace()) {
            let bytes = encode_trace(&trace);
            prop_assert!(SHORTEST + bytes.len() <= LONGEST, "{}", bytes.len());
            let decoded = decode_trace(packet(), &bytes).unwrap();
            let sent = &trace.hops[trace.hops.len().saturating_sub(HOPS)..];
            prop_assert_eq!(decoded.hops.len(), sent.len());
            let is_short = sent.iter().map(|hop| hop.text.len()).sum::<usize>() < 900
                && sent.iter().all(|hop| hop.text.len() <= 600);
            for (one, other) in decoded.hops.iter().zip(sent) {
                prop_assert_eq!((one.hop, one.state), (other.hop, other.state));
                prop_assert!(excerpt::is_printable(&one.text));
                if is_short {
                    prop_assert_eq!(&one.text, &excerpt::sentence(&other.text));
                }
            }
            let rest = |trace: &Trace| (trace.leaves_by, trace.delivery, trace.translated_to);
            prop_assert_eq!(rest(&decoded), rest(&trace));
        }

        #[test]
        fn random_bytes_make_no_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1300)) {
            if let Some(question) = decode_question(&bytes) {
                prop_assert_eq!(decode_question(&encode_question(question)), Some(question));
            }
            if let Some(trace) = decode_trace(packet(), &bytes) {
                prop_assert!(trace.hops.iter().all(|hop| excerpt::is_printable(&hop.text)));
            }
        }
    }
}
