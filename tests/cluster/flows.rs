//! Packets that each begin a new flow, and the source address that receivers see.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt};
use tweed_lab::{Namespace, is_silence, listen, overruns_at};

/// Buffers packets while the machine is busy, in bytes.
const BUFFER: usize = 32 << 20;
/// Upper limit for packets in transit.
const UNDER_WAY: Duration = Duration::from_millis(500);
/// The interface of nodes and pods.
const UPLINK: &str = "eth0";
const MOST_BEHIND: Duration = Duration::from_millis(20);
const RESEND: Duration = Duration::from_millis(100);
/// A path that was never used may first have to resolve neighbours.
const FIRST: Duration = Duration::from_secs(15);

/// The source that `to` sees of a packet that `from` sends to `target`; `own` is the source that
/// the sender binds to.
pub fn source_seen(
    (from, own): (&Namespace, Option<IpAddr>),
    to: &Namespace,
    target: SocketAddr,
) -> Result<IpAddr> {
    let receiver = to.within(|| receiver(target))??;
    receiver.set_read_timeout(Some(RESEND))?;
    let sender = from.within(|| UdpSocket::bind((own.unwrap_or(any(target)), 0)))??;
    if target.ip().is_multicast() {
        // Otherwise the packet would use the link that has the source address.
        setsockopt(&sender, sockopt::BindToDevice, &UPLINK.into())?;
    }
    let (started, mut buffer) = (Instant::now(), [0; 4]);
    while started.elapsed() < FIRST {
        sender.send_to(&[0; 4], target)?;
        match receiver.recv_from(&mut buffer) {
            Ok((_, source)) => return Ok(source.ip()),
            Err(error) if is_silence(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("nothing arrives")
}

/// A sequence of flows.
pub struct Flows {
    sending: Arc<AtomicBool>,
    receiving: Arc<AtomicBool>,
    sender: JoinHandle<Result<u64>>,
    receiver: JoinHandle<Result<BTreeMap<IpAddr, u64>>>,
    to: Namespace,
    /// Those before the first packet.
    overruns: u64,
}

/// The numbers of packets sent, received by source, and dropped because the machine was too busy.
#[derive(Debug)]
pub struct Tally {
    pub sent: u64,
    pub came: BTreeMap<IpAddr, u64>,
    pub overruns: u64,
}

impl Flows {
    /// `rate` new flows per second.
    pub fn start(from: &Namespace, to: &Namespace, target: SocketAddr, rate: u32) -> Result<Self> {
        source_seen((from, None), to, target).context("warming up")?;
        let (sending, receiving) =
            (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
        let socket = to.within(|| receiver(target))??;
        let is_on = Arc::clone(&receiving);
        let receiver = std::thread::spawn(move || count(&socket, &is_on));
        let (is_on, namespace) = (Arc::clone(&sending), from.clone());
        let sender = std::thread::spawn(move || namespace.within(|| send(target, rate, &is_on))?);
        let (to, overruns) = (to.clone(), overruns_at([to])?);
        Ok(Self { sending, receiving, sender, receiver, to, overruns })
    }

    pub fn finish(self) -> Result<Tally> {
        self.sending.store(false, Ordering::SeqCst);
        let sent = self.sender.join().map_err(|_| anyhow!("the sender panicked"))??;
        self.receiving.store(false, Ordering::SeqCst);
        let came = self.receiver.join().map_err(|_| anyhow!("the receiver panicked"))??;
        let overruns = overruns_at([&self.to])?.saturating_sub(self.overruns);
        Ok(Tally { sent, came, overruns })
    }
}

/// Each new socket has a new source port.
fn send(target: SocketAddr, rate: u32, is_on: &AtomicBool) -> Result<u64> {
    let (interval, mut due, mut sent) = (Duration::from_secs(1) / rate, Instant::now(), 0);
    while is_on.load(Ordering::SeqCst) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let socket = UdpSocket::bind((any(target), 0))?;
        socket.send_to(&[1; 4], target)?;
        sent += 1;
        // A sender far behind its schedule skips packets instead of flooding the kernel's queues.
        due += interval * if due.elapsed() > MOST_BEHIND { 20 } else { 1 };
    }
    Ok(sent)
}

fn count(socket: &UdpSocket, is_on: &AtomicBool) -> Result<BTreeMap<IpAddr, u64>> {
    let (mut came, mut buffer) = (BTreeMap::new(), [0; 4]);
    loop {
        match socket.recv_from(&mut buffer) {
            // Warm-up packets are not counted.
            Ok((_, source)) if buffer[0] == 1 => *came.entry(source.ip()).or_default() += 1,
            Ok(_) => {}
            Err(error) if is_silence(&error) && is_on.load(Ordering::SeqCst) => {}
            Err(error) if is_silence(&error) => return Ok(came),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Listens on the port of `target`, because address translation may change the address.
fn receiver(target: SocketAddr) -> Result<UdpSocket> {
    let socket = listen(SocketAddr::new(any(target), target.port()))?;
    socket.set_read_timeout(Some(UNDER_WAY))?;
    join(&socket, target)?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER))?;
    Ok(socket)
}

/// A receiver of multicast must join the group.
fn join(socket: &UdpSocket, target: SocketAddr) -> Result<()> {
    match target.ip() {
        IpAddr::V4(group) if group.is_multicast() => {
            socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
        }
        IpAddr::V6(group) if group.is_multicast() => {
            socket.join_multicast_v6(&group, if_nametoindex(UPLINK)?)?;
        }
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    Ok(())
}

fn any(target: SocketAddr) -> IpAddr {
    match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
