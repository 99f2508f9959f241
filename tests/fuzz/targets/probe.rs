//! Packets at the probe port: unchanged, or with a valid seal of the cluster.

#![no_main]

use std::collections::BTreeMap;
use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use ring::hmac;
use tweed::excerpt;
use tweed::model::config::Probe;
use tweed::model::prefix::Family;
use tweed::plan::paths::{LocalProber, Target, Targets};
use tweed::plan::trace::TracedPacket;
use tweed::probe::{
    Keyring, LONGEST, Packet, PacketKind, SHORTEST, answer, decode_question, decode_trace, encode_question,
    encode_trace,
};
use tweed::model::probe_secret::Secret;

const SECRET: [u8; Secret::LENGTH] = [7; Secret::LENGTH];

fuzz_target!(|input: (bool, [u8; 4], &[u8])| {
    let (is_sealed, source, bytes) = input;
    let mut bytes = bytes.to_vec();
    if is_sealed {
        bytes.splice(0..0, *b"tw\x01");
        let seal = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SECRET), &bytes);
        bytes.extend(seal.as_ref());
    }
    let keyring = Keyring::new(Secret::new(&SECRET));
    let Some((packet, secret)) = Packet::open(&bytes, &keyring) else { return };
    assert!(is_sealed, "a seal was guessed");
    let content = Packet::content(&bytes);
    let encoded = packet.encode(&[], secret, bytes.len());
    assert_eq!(Packet::open(&encoded, &keyring).map(|(packet, _)| packet), Some(packet));
    let (own, peer) = (IpAddr::from([10, 244, 1, 0]), IpAddr::from([10, 244, 2, 0]));
    let public_ip = IpAddr::from([172, 16, 0, 2]);
    let addresses = BTreeMap::from([(Family::V4, own)]);
    let local = LocalProber { probe: Probe::default(), addresses, pod_mtu: 1450 };
    let target = Target { public_ip, direct: true, tunnel: true };
    let peers = BTreeMap::from([(peer, target)]);
    let targets = Targets { local: Some(local.clone()), peers };
    if let Some((answer, gateway)) = answer(packet, source.into(), &local, &targets) {
        let kind = match packet.kind {
            PacketKind::Request => PacketKind::Answer,
            PacketKind::TraceRequest => PacketKind::TraceAnswer,
            other => panic!("{other:?} is answered"),
        };
        assert_eq!((packet.from, packet.to, IpAddr::from(source)), (peer, own, peer));
        assert_eq!((answer.kind, answer.to, gateway), (kind, peer, public_ip));
    }
    if let Some(question) = decode_question(content) {
        assert_eq!(decode_question(&encode_question(question)), Some(question));
    }
    let traced = TracedPacket { source: peer, destination: own, size: 84 };
    if let Some(trace) = decode_trace(traced, content) {
        assert!(trace.hops.iter().all(|hop| excerpt::is_printable(&hop.text)));
        let again = encode_trace(&trace);
        assert!(SHORTEST + again.len() <= LONGEST);
        let decoded = decode_trace(traced, &again).expect("it was decoded");
        assert_eq!(decoded.hops.len(), trace.hops.len());
    }
});
