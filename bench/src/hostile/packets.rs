//! Floods of packets at the probe port: garbage, and recorded probes of a peer.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use tweed::model::config::Probe;
use tweed::probe::SHORTEST;
use tweed_lab::{Family, Node};

use super::scene::Scene;

/// Per second.
pub(super) const RATE: u64 = 100_000;
/// Packets that are late by more than this part of a second are skipped.
const MOST_BEHIND: u64 = 50;
const STEP: Duration = Duration::from_millis(1);
/// Both nodes send several probes within this time.
const RECORDING: Duration = Duration::from_secs(3);
/// In microseconds.
const LOOK_UP: i64 = 100_000;
const FRAME: usize = 1 << 16;

/// Sends garbage that begins like a probe, so that the victim verifies the seal of each packet that
/// its queue accepts. Returns the number of packets sent.
pub(super) fn garbage(scene: &Scene, lasting: Duration) -> Result<u64> {
    let socket = socket_of_peer(scene)?;
    let mut bytes = [b"tw\x01".as_slice(), &[0; SHORTEST]].concat();
    let mut number = 0_u64;
    Ok(flood(lasting, || {
        number += 1;
        bytes.iter_mut().rev().zip(number.to_be_bytes()).for_each(|(byte, new)| *byte = new);
        socket.send(&bytes).map(drop)
    }))
}

/// Sends recorded probes of the peer to the victim, byte for byte. Returns the number of packets
/// sent.
pub(super) fn replays(scene: &Scene, lasting: Duration) -> Result<u64> {
    let recorded = record(&scene.victim)?;
    ensure!(!recorded.is_empty(), "the peer has sent no probe");
    let socket = socket_of_peer(scene)?;
    let mut probes = recorded.iter().cycle();
    Ok(flood(lasting, || match probes.next() {
        Some(probe) => socket.send(probe).map(drop),
        None => Ok(()),
    }))
}

/// A socket to the probe port of the victim, with the address of the peer's pods as the source: the
/// guard of the port drops packets from addresses that no peer has.
fn socket_of_peer(scene: &Scene) -> Result<UdpSocket> {
    let [victim, peer] = Scene::bases();
    scene.unknown.ip(format!("route add local {peer} dev lo"))?;
    let gateway = scene.victim.address(Family::V4)?;
    scene.unknown.ip(format!("route add {victim} via {gateway}"))?;
    let source = SocketAddr::new(peer, Probe::DEFAULT_PORT);
    let socket = scene.unknown.namespace().within(|| UdpSocket::bind(source))??;
    socket.connect((victim, Probe::DEFAULT_PORT))?;
    Ok(socket)
}

/// The probes of the peer that arrive by the direct path.
fn record(victim: &Node) -> Result<Vec<Vec<u8>>> {
    let [to, from] = Scene::bases();
    victim.namespace().within(|| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let all = SockProtocol::EthAll;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, LOOK_UP))?;
        let (started, mut probes, mut frame) = (Instant::now(), Vec::new(), vec![0; FRAME]);
        while started.elapsed() < RECORDING {
            if let Ok(length) = recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                probes.extend(frame.get(..length).and_then(|frame| probe_in(frame, from, to)));
            }
        }
        Ok(probes)
    })?
}

/// The payload of an Ethernet frame, if it is a probe between these addresses.
fn probe_in(frame: &[u8], from: IpAddr, to: IpAddr) -> Option<Vec<u8>> {
    let [0x08, 0x00, 0x45] = frame.get(12..15)? else { return None };
    let (header, udp) = frame.get(14..)?.split_at_checked(20)?;
    let address = |at: usize| {
        let octets: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
        Some(IpAddr::from(octets))
    };
    let port: [u8; 2] = udp.get(2..4)?.try_into().ok()?;
    let is_probe = header.get(9) == Some(&17) && u16::from_be_bytes(port) == Probe::DEFAULT_PORT;
    let is_between = address(12)? == from && address(16)? == to;
    (is_probe && is_between).then(|| udp.get(8..).map(<[u8]>::to_vec))?
}

/// Calls `attempt` [`RATE`] times a second; returns the number of successes.
pub(super) fn flood(lasting: Duration, mut attempt: impl FnMut() -> io::Result<()>) -> u64 {
    let (started, mut begun, mut sent) = (Instant::now(), 0, 0);
    while started.elapsed() < lasting {
        let due = due(started.elapsed());
        for _ in 0..(due - begun).min(RATE / MOST_BEHIND) {
            sent += u64::from(attempt().is_ok());
        }
        begun = due;
        std::thread::sleep(STEP);
    }
    sent
}

/// The number of packets that should have been sent after this time.
fn due(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX) / (1_000_000 / RATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept() {
        assert_eq!(due(Duration::from_secs(1)), RATE);
        assert_eq!(due(Duration::from_micros(25)), 2);
    }

    #[test]
    fn a_probe_differs_from_other_frames() {
        let [to, from] = [[10, 128, 1, 0], [10, 128, 2, 0]];
        let [high, low] = Probe::DEFAULT_PORT.to_be_bytes();
        let mut frame = vec![0; 14 + 20];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[14 + 9] = 17;
        frame[14 + 12..14 + 16].copy_from_slice(&from);
        frame[14 + 16..14 + 20].copy_from_slice(&to);
        frame.extend([high, low, high, low, 0, 11, 0, 0, b'a', b'b', b'c']);
        let read = |frame: &[u8]| probe_in(frame, from.into(), to.into());
        assert_eq!(read(&frame), Some(b"abc".to_vec()));
        assert_eq!(probe_in(&frame, to.into(), from.into()), None);
        frame[14 + 9] = 6;
        assert_eq!(read(&frame), None);
        assert_eq!(read(&frame[..30]), None);
    }
}
