//! The cost of probing all peers by the tunnel, next to a daemon that does not probe.

use std::fmt::Display;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::libc::in_pktinfo;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt::Ipv4PacketInfo,
};
use serde::Deserialize;
use tweed::model::probe_secret::Secret;
use tweed::probe::{Keyring, Packet, PacketKind};
use tweed_lab::{Backend, Binaries, Daemon, Family, Node, eventually};

use crate::instruments::site::{Site, TIMEOUT};
use crate::report::sheet::{Sheet, megabytes, thousands, time};

const COUNTS: [u32; 3] = [10, 1000, 5000];
/// The network of the peers' public IPs, all of which one namespace has.
const PEERS: &str = "10.65.0.0/16";
const SECRET: &str = "/coreos.com/network/tweed/probe-secret";
const VXLAN_PORT: u16 = 8472;
/// Of a datagram of VXLAN: its header, two MAC addresses and a type, the IPv4 and the UDP header.
const HEADERS: usize = 8 + 14 + 20 + 8;
/// The responders look at this interval whether they shall end.
const POLL: Duration = Duration::from_millis(100);

/// What the daemon has used so far.
struct Used {
    processor: Duration,
    link: Link,
}

#[derive(Deserialize)]
struct Link {
    stats64: Directions,
}

#[derive(Deserialize)]
struct Directions {
    rx: Counters,
    tx: Counters,
}

#[derive(Clone, Copy, Deserialize)]
struct Counters {
    packets: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Status {
    reachability: Counts,
}

#[derive(Debug, Deserialize)]
struct Counts {
    reachable: u32,
}

pub(crate) fn run(binaries: &Binaries, seconds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "peers",
        "probes",
        "CPU per second",
        "packets sent per second",
        "received",
        "bytes sent per second",
        "received",
        "memory",
    ];
    sheet.table("Path probes of the tunnel, per second", &head)?;
    let seconds = u32::try_from(seconds)?;
    let mut site = Site::build(binaries, Backend::Vxlan, "")?;
    let crowd = site.bare.address(Family::V4)?;
    site.bare.ip(format!("route add local {PEERS} dev lo"))?;
    site.node.ip(format!("route add {PEERS} via {crowd}"))?;
    for count in COUNTS {
        site.grow(count)?;
        site.configure(r#""Probe":{"Enabled":false},"#)?;
        let daemon = site.start_daemon()?;
        daemon.wait_ready()?;
        show(count, "off", &measure(&site.node, &daemon, seconds)?, sheet)?;
        daemon.stop()?;

        site.configure("")?;
        let daemon = site.start_daemon()?;
        daemon.wait_ready()?;
        let secret = || site.etcd.get(SECRET)?.context("no secret");
        eventually(TIMEOUT, || secret().map(drop))?;
        let secret = Secret::parse(secret()?.value.as_bytes()).context("no valid secret")?;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let answer = || site.bare.namespace().within(|| answer(&secret, &is_over))?;
            let responders = scope.spawn(answer);
            let measured = are_known(&daemon, count)
                .and_then(|()| measure(&site.node, &daemon, seconds))
                .and_then(|cells| show(count, "on", &cells, sheet));
            is_over.store(true, Ordering::Relaxed);
            measured?;
            responders.join().map_err(|_| anyhow::anyhow!("the responders panicked"))?
        })?;
        daemon.stop()?;
    }
    Ok(())
}

fn are_known(daemon: &Daemon, count: u32) -> Result<()> {
    let are_known = || {
        let status: Status = serde_json::from_str(&daemon.ctl(&["status", "-o", "json"])?)?;
        ensure!(status.reachability.reachable == count, "{:?}", status.reachability);
        Ok(())
    };
    eventually(5 * TIMEOUT, are_known).map(drop)
}

/// A row of the table, after its first two cells.
fn measure(node: &Node, daemon: &Daemon, seconds: u32) -> Result<[String; 6]> {
    let before = Used::of(node, daemon)?;
    thread::sleep(Duration::from_secs(seconds.into()));
    let after = Used::of(node, daemon)?;
    let rate = |of: fn(&Directions) -> u64| {
        let counted = of(&after.link.stats64).saturating_sub(of(&before.link.stats64));
        thousands(counted.div_ceil(seconds.into()))
    };
    Ok([
        time(after.processor.saturating_sub(before.processor) / seconds),
        rate(|link| link.tx.packets),
        rate(|link| link.rx.packets),
        rate(|link| link.tx.bytes),
        rate(|link| link.rx.bytes),
        format!("{:.1} MB", megabytes(daemon.resident_kib()?)),
    ])
}

fn show(count: u32, probes: &str, cells: &[String; 6], sheet: &mut Sheet) -> Result<()> {
    let (count, cells) = (thousands(count), cells.each_ref().map(|cell| cell as &dyn Display));
    let first: [&dyn Display; 2] = [&count, &probes];
    sheet.row(&[first.as_slice(), &cells].concat())
}

impl Used {
    fn of(node: &Node, daemon: &Daemon) -> Result<Self> {
        let links = node.namespace().ip_json("-statistics link show dev eth0")?;
        let link = links.into_iter().next().context("no eth0")?;
        Ok(Self { processor: daemon.process().processor_time()?, link })
    }
}

/// Answers requests through the tunnel in the name of every peer, until `is_over`.
fn answer(secret: &Secret, is_over: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, VXLAN_PORT))?;
    socket.set_read_timeout(Some(POLL))?;
    setsockopt(&socket, Ipv4PacketInfo, &true)?;
    let keyring = Keyring::new(secret.clone());
    let mut buffer = vec![0; 4096];
    while !is_over.load(Ordering::Relaxed) {
        let Some((length, peer)) = receive(&socket, &mut buffer)? else { continue };
        let frame = buffer.get_mut(..length).unwrap_or_default();
        if answered(frame, &keyring, secret).is_some() {
            send(&socket, frame, peer)?;
        }
    }
    Ok(())
}

/// The length of a datagram, and the peer's public IP that it was sent to; none after a while.
fn receive(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> Result<Option<(usize, (SockaddrIn, in_pktinfo))>> {
    let mut space = nix::cmsg_space!(in_pktinfo);
    let mut parts = [IoSliceMut::new(buffer)];
    let descriptor = socket.as_raw_fd();
    let message =
        match recvmsg::<SockaddrIn>(descriptor, &mut parts, Some(&mut space), MsgFlags::empty()) {
            Ok(message) => message,
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    let info = message.cmsgs()?.find_map(|it| match it {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(info),
        _ => None,
    });
    let (asker, info) = (message.address.context("no address")?, info.context("no receiver")?);
    Ok(Some((message.bytes, (asker, info))))
}

fn send(socket: &UdpSocket, frame: &[u8], peer: (SockaddrIn, in_pktinfo)) -> Result<()> {
    let (asker, received) = peer;
    let info = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: received.ipi_addr, ..received };
    let to = SockaddrIn::from(SocketAddrV4::new(asker.ip(), VXLAN_PORT));
    let from = [ControlMessage::Ipv4PacketInfo(&info)];
    sendmsg(socket.as_raw_fd(), &[IoSlice::new(frame)], &from, MsgFlags::empty(), Some(&to))?;
    Ok(())
}

/// Turns a request into its answer; none for any other frame.
fn answered(frame: &mut [u8], keyring: &Keyring, secret: &Secret) -> Option<()> {
    let (headers, payload) = frame.split_at_mut_checked(HEADERS)?;
    let (packet, _) = Packet::open(payload, keyring)?;
    let is_request = packet.kind == PacketKind::Request;
    let answer = is_request.then(|| packet.answered(false).encode(&[], secret, payload.len()))?;
    payload.copy_from_slice(answer.get(..payload.len())?);
    let (vxlan_and_macs, ip) = headers.split_at_mut_checked(22)?;
    swap(vxlan_and_macs.get_mut(8..20)?);
    // The checksum of the IPv4 header stays the same.
    swap(ip.get_mut(12..20)?);
    swap(ip.get_mut(20..24)?);
    // No checksum.
    ip.get_mut(26..28)?.fill(0);
    Some(())
}

/// Swaps the two halves.
fn swap(bytes: &mut [u8]) {
    let half = bytes.len() / 2;
    bytes.rotate_left(half);
}
