//! The sockets of one address family, which send probes like packets of the kernel and of pods.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recvfrom,
    sendto, setsockopt, socket, sockopt,
};
use tokio::net::UdpSocket;

use super::datagram::{datagram, echo_reply, echo_request};
use crate::model::prefix::Family;

/// Receives probes, and sends them by both paths.
#[derive(Debug)]
pub struct Wire {
    family: Family,
    port: u16,
    socket: UdpSocket,
    /// Sends packets with their IP header.
    raw: OwnedFd,
    /// Receives replies to echo requests, and all other ICMP messages of this host: open only while
    /// a reply is awaited.
    echoes: Option<OwnedFd>,
}

/// Sends echo requests by the routes of the network namespace that it was opened in, and receives
/// the replies.
#[derive(Debug)]
pub struct EchoWire {
    family: Family,
    raw: OwnedFd,
    echoes: OwnedFd,
}

/// Why a [`Wire`] cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NoWire {
    #[error("opening {0} raw sockets is not permitted: give the daemon CAP_NET_RAW")]
    NotAllowed(Family),
    #[error("{0} raw sockets cannot be opened")]
    NoRawSocket(Family, #[source] Errno),
    #[error("UDP port {1} of {0} is in use: set Probe.Port to a free one")]
    InUse(Family, u16),
    #[error("cannot listen on UDP port {1} of {0}")]
    NoPort(Family, u16, #[source] io::Error),
    #[error("cannot open a netlink socket for next hops")]
    NoNetlink(#[source] io::Error),
}

/// The size of send and receive buffers, in bytes; the kernel drops packets beyond it.
const BACKLOG: usize = 1 << 20;
/// What is read of an echo reply: an IPv4 header with options, and the nonce.
const ECHO: usize = 60 + 16;

impl Wire {
    pub fn open(family: Family, port: u16) -> Result<Self, NoWire> {
        let raw = open_raw(family).map_err(|errno| NoWire::raw(family, errno))?;
        let socket = listen(family, port).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => NoWire::InUse(family, port),
            _ => NoWire::NoPort(family, port, error),
        })?;
        Ok(Self { family, port, socket, raw, echoes: None })
    }

    /// Waits until there may be a packet.
    pub async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// The length and the source of the next packet, if there is one.
    pub fn received(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        self.socket.try_recv_from(buffer).ok()
    }

    /// Sends by the kernel's route to `to`, which uses the tunnel.
    pub fn send_by_tunnel(&self, to: IpAddr, payload: &[u8]) -> io::Result<()> {
        self.socket.try_send_to(payload, SocketAddr::new(to, self.port)).map(drop)
    }

    /// A packet for [`send_raw`](Self::send_raw).
    pub fn datagram(&self, from: IpAddr, to: IpAddr, payload: &[u8]) -> io::Result<Vec<u8>> {
        datagram(from, to, self.port, payload).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// An ICMP echo request for [`send_raw`](Self::send_raw), whose reply can be received from now
    /// on.
    pub fn echo_request(&mut self, from: IpAddr, to: IpAddr, nonce: u64) -> io::Result<Vec<u8>> {
        if self.echoes.is_none() {
            self.echoes = Some(open_echoes(self.family)?);
        }
        echo_request(from, to, nonce, 0).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Sends a packet with IP header to `next_hop`: the kernel routes by this address, not by the
    /// destination in the packet.
    pub fn send_raw(&self, next_hop: IpAddr, packet: &[u8]) -> io::Result<()> {
        send_raw(&self.raw, next_hop, packet)
    }

    /// The sources and nonces of the echo replies that have arrived, at most `most` messages.
    pub fn echoed(&self, most: usize) -> Vec<(IpAddr, u64)> {
        self.echoes.as_ref().map_or_else(Vec::new, |echoes| replies(echoes, self.family, most))
    }

    /// No reply is awaited any more.
    pub fn close_echoes(&mut self) {
        self.echoes = None;
    }
}

impl EchoWire {
    pub fn open(family: Family) -> Result<Self, NoWire> {
        let raw = |errno| NoWire::raw(family, errno);
        let echoes = open_echoes(family).map_err(raw)?;
        enlarge(&echoes);
        Ok(Self { family, raw: open_raw(family).map_err(raw)?, echoes })
    }

    pub const fn family(&self) -> Family {
        self.family
    }

    /// Sends an echo request of `size` bytes with the IP header, which is never fragmented.
    pub fn send(&self, from: IpAddr, to: IpAddr, nonce: u64, size: u16) -> io::Result<()> {
        let packet = echo_request(from, to, nonce, size).ok_or(io::ErrorKind::InvalidInput)?;
        send_raw(&self.raw, to, &packet)
    }

    /// As [`Wire::echoed`].
    pub fn echoed(&self, most: usize) -> Vec<(IpAddr, u64)> {
        replies(&self.echoes, self.family, most)
    }
}

impl NoWire {
    const fn raw(family: Family, errno: Errno) -> Self {
        match errno {
            Errno::EPERM | Errno::EACCES => Self::NotAllowed(family),
            other => Self::NoRawSocket(family, other),
        }
    }
}

fn send_raw(raw: &OwnedFd, next_hop: IpAddr, packet: &[u8]) -> io::Result<()> {
    let next_hop = SockaddrStorage::from(SocketAddr::new(next_hop, 0));
    sendto(raw.as_raw_fd(), packet, &next_hop, MsgFlags::MSG_DONTWAIT)?;
    Ok(())
}

/// The sources and nonces of the replies that have arrived, at most `most` messages.
fn replies(echoes: &OwnedFd, family: Family, most: usize) -> Vec<(IpAddr, u64)> {
    let mut buffer = [0; ECHO];
    let mut replies = Vec::new();
    for _ in 0..most {
        // Only the start is needed: the rest of a longer reply is dropped.
        let received = recvfrom::<SockaddrStorage>(echoes.as_raw_fd(), &mut buffer);
        let Ok((length, source)) = received else { break };
        let nonce = buffer.get(..length).and_then(|bytes| echo_reply(family, bytes));
        replies.extend(source.and_then(|it| address(&it)).zip(nonce));
    }
    replies
}

fn address(source: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = source.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
    v4.or_else(|| source.as_sockaddr_in6().map(|it| IpAddr::from(it.ip())))
}

fn open_echoes(family: Family) -> nix::Result<OwnedFd> {
    let protocol = match family {
        Family::V4 => SockProtocol::Icmp,
        Family::V6 => SockProtocol::IcmpV6,
    };
    open(family, SockType::Raw, Some(protocol))
}

/// A socket of this protocol sends whole packets and receives nothing.
fn open_raw(family: Family) -> nix::Result<OwnedFd> {
    let raw = open(family, SockType::Raw, Some(SockProtocol::Raw))?;
    enlarge(&raw);
    Ok(raw)
}

fn open(family: Family, kind: SockType, protocol: Option<SockProtocol>) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let domain = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    socket(domain, kind, flags, protocol)
}

/// Large, because packets to many unresolved neighbours wait together. Without the permission to
/// exceed the system's limit, that limit applies.
fn enlarge(socket: &impl AsFd) {
    let _ = setsockopt(socket, sockopt::RcvBufForce, &BACKLOG);
    let _ = setsockopt(socket, sockopt::SndBufForce, &BACKLOG);
}

fn listen(family: Family, port: u16) -> io::Result<UdpSocket> {
    let listener = open(family, SockType::Datagram, None)?;
    if family == Family::V6 {
        setsockopt(&listener, sockopt::Ipv6V6Only, &true)?;
    }
    enlarge(&listener);
    let any = SockaddrStorage::from(SocketAddr::new(family.unspecified(), port));
    bind(listener.as_raw_fd(), &any)?;
    UdpSocket::from_std(listener.into())
}
