//! Packets of peers, as if they had arrived.

use std::net::Ipv4Addr;

use super::*;
use crate::model::config::Probe;
use crate::plan::paths::Target;
use crate::probe::{ProbeChannels, Stamp, channels};

const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 0));

fn exchange() -> (Exchange, ProbeChannels, Orders) {
    let local = LocalProber { probe: Probe::default(), addresses: BTreeMap::new(), pod_mtu: 1450 };
    let (channels, orders) = channels();
    channels.targets.send_modify(|targets| targets.local = Some(local.clone()));
    let secret = Secret::new(&[1; Secret::LENGTH]);
    (Exchange::open(local, secret).unwrap(), channels, orders)
}

/// The same, with an address of this node and a peer to probe.
fn exchange_with(target: Target) -> (Exchange, Targets) {
    let (mut exchange, ..) = exchange();
    exchange.local.addresses.insert(Family::V4, OWN);
    let peers = BTreeMap::from([(request().peer, target)]);
    let targets = Targets { local: Some(exchange.local.clone()), peers };
    (exchange, targets)
}

fn request() -> ProbeRequest {
    let (peer, public_ip) = (IpAddr::from([10, 244, 2, 0]), IpAddr::from([172, 16, 0, 2]));
    ProbeRequest { number: 1, peer, public_ip, path: Path::Direct, kind: ProbeKind::Large }
}

#[tokio::test(start_paused = true)]
async fn a_nonce_answers_one_request_of_one_peer_by_one_path() {
    let (mut exchange, _channels, _orders) = exchange();
    let ProbeRequest { peer, path, .. } = request();
    let nonce = exchange.expect(request());
    let packet = Packet::new(PacketKind::Answer, path, nonce, peer, OWN);
    assert!(!exchange.take_answer(Packet { from: OWN, ..packet }));
    assert!(!exchange.take_answer(Packet { path: Path::Tunnel, ..packet }));
    assert!(!exchange.take_answer(Packet { nonce: nonce.wrapping_add(1), ..packet }));
    assert!(exchange.take_answer(packet));
    assert!(!exchange.take_answer(packet), "it was answered already");
}

#[tokio::test(start_paused = true)]
async fn stamps_grow() {
    let (mut exchange, _channels, _orders) = exchange();
    let packet = Packet::new(PacketKind::Request, Path::Direct, 7, OWN, request().peer);
    let secret = Secret::new(&[1; Secret::LENGTH]);
    let outgoing =
        Outgoing { packet, gateway: request().public_ip, content: Vec::new(), length: 0, secret };
    let counts = [(); 2].map(|()| {
        let bytes = exchange.encode(&outgoing);
        let (packet, _) = Packet::open(&bytes, &exchange.keyring).unwrap();
        packet.stamp.unwrap().count
    });
    assert!(counts[0] < counts[1], "{counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_started_with_the_new_secret_is_asked_with_it() {
    let [old, new] = [1, 2].map(|byte| Secret::new(&[byte; Secret::LENGTH]));
    let (peer, public_ip) = (request().peer, request().public_ip);
    let (mut exchange, targets) = exchange_with(Target { public_ip, direct: true, tunnel: true });
    exchange.take_secret(new.clone());
    let asked_with = |exchange: &Exchange| exchange.keyring.secret_for(peer).clone();
    let asks = Packet::new(PacketKind::Request, Path::Direct, 7, peer, OWN);
    assert!(exchange.take(&asks.encode(&[], &old, 0), SocketAddr::new(peer, 8475), &targets));
    assert!(asked_with(&exchange).is_same(&old), "the peer may not have read the new one");
    let spoofed = Packet { from: OWN, ..asks };
    assert!(!exchange.take(&spoofed.encode(&[], &new, 0), SocketAddr::new(peer, 8475), &targets));
    assert!(asked_with(&exchange).is_same(&old));
    assert!(exchange.take(&asks.encode(&[], &new, 0), SocketAddr::new(peer, 8475), &targets));
    assert!(asked_with(&exchange).is_same(&new));
    assert!(exchange.take(&asks.encode(&[], &old, 0), SocketAddr::new(peer, 8475), &targets));
    assert!(asked_with(&exchange).is_same(&new), "a recorded packet takes it back");
}

#[tokio::test(start_paused = true)]
async fn replayed_answers_of_alternating_sessions_are_reported_at_a_limited_rate() {
    let (mut exchange, ..) = exchange();
    let ProbeRequest { peer, path, .. } = request();
    let replayed = |session| {
        let stamp = Some(Stamp { session, count: 7 });
        Packet { stamp, ..Packet::new(PacketKind::Answer, path, 7, peer, OWN) }
    };
    tokio::time::advance(Duration::from_secs(60)).await;
    for number in 0..10_000 {
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!exchange.take_answer(replayed(number % 2)));
    }
    let reports = exchange.reports.len();
    assert!((100..=120).contains(&reports), "{reports} in ten seconds");
}

#[tokio::test(start_paused = true)]
async fn a_request_is_lost_once_after_the_timeout() {
    let (mut exchange, _channels, mut orders) = exchange();
    tokio::time::advance(Duration::from_secs(60)).await;
    exchange.expect(request());
    let sent = Instant::now();
    let pause = exchange.run(&mut orders).await;
    let Some(Pause::Reports(reports)) = pause else { panic!("no report") };
    assert!(matches!(reports[..], [ProbeEvent::Lost { sent: at, .. }] if at == sent));
    let late = sent.elapsed().saturating_sub(exchange.timeout());
    assert!(late < Duration::from_millis(5), "{late:?}");
    assert!(exchange.awaited.is_empty() && exchange.expiry.is_empty());
}
