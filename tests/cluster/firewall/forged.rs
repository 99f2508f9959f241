//! Forged tunnel packets, from any sender.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use tweed_lab::{Family, Namespace, Node, Pod, eventually, listen};

use crate::fixture::cluster::PATIENCE;

/// The port of flannel's tunnels.
pub const PORT: u16 = 8472;
pub const VNI: u32 = 1;
/// The port that the pod listens on.
pub const INNER_PORT: u16 = 7004;
/// The number of packets sent where none may be delivered.
const MANY: u32 = 20;

/// A forged packet to a pod through the tunnel of its node.
#[derive(Clone, Debug)]
pub struct Forged {
    node: SocketAddr,
    mac: [u8; 6],
    /// Source and destination of the inner packet.
    inner: (IpAddr, IpAddr),
    pod: Namespace,
}

impl Forged {
    /// To `pod` on `node`, with `claimed` as the source of the inner packet.
    pub fn to(node: &Node, pod: &Pod, claimed: IpAddr) -> Result<Self> {
        let family = Family::of(claimed);
        let device = match family {
            Family::V4 => "flannel.1",
            Family::V6 => "flannel-v6.1",
        };
        Ok(Self {
            node: SocketAddr::new(node.address(family)?, PORT),
            mac: mac(node, device)?,
            inner: (claimed, pod.address(family)?),
            pod: pod.namespace().clone(),
        })
    }

    /// Whether the packet is delivered to the pod when `from` sends it, with `source` if given.
    pub fn arrives(&self, from: &Namespace, source: Option<IpAddr>) -> Result<()> {
        let (receiver, sender) = (self.receiver()?, self.sender(from, source)?);
        let received = || {
            sender.send_to(&self.packet(1), self.node)?;
            ensure!(numbers(&receiver)?.contains(&1), "nothing arrives");
            Ok::<_, anyhow::Error>(())
        };
        eventually(PATIENCE, received).map(drop)
    }

    /// Whether the packet is lost, although one from `trusted` is delivered a moment later.
    pub fn is_lost(
        &self,
        from: &Namespace,
        source: Option<IpAddr>,
        trusted: &Namespace,
    ) -> Result<()> {
        let (receiver, sender) = (self.receiver()?, self.sender(from, source)?);
        for _ in 0..MANY {
            sender.send_to(&self.packet(1), self.node)?;
        }
        let (trusted, mut received) = (self.sender(trusted, None)?, BTreeSet::new());
        eventually(PATIENCE, || {
            trusted.send_to(&self.packet(2), self.node)?;
            received.extend(numbers(&receiver)?);
            ensure!(received.contains(&2), "not even what a peer sends arrives");
            Ok::<_, anyhow::Error>(())
        })?;
        ensure!(!received.contains(&1), "it arrives");
        Ok(())
    }

    /// Sends it once to another node.
    pub fn send_to(&self, node: SocketAddr, from: &Namespace) -> Result<()> {
        self.sender(from, None)?.send_to(&self.packet(1), node).map(drop).context("sending")
    }

    fn sender(&self, from: &Namespace, source: Option<IpAddr>) -> Result<UdpSocket> {
        let any = match self.node {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Ok(from.within(|| UdpSocket::bind((source.unwrap_or(any), 0)))??)
    }

    fn receiver(&self) -> Result<UdpSocket> {
        let receiver = self.pod.within(|| listen(SocketAddr::new(self.inner.1, INNER_PORT)))??;
        receiver.set_nonblocking(true)?;
        Ok(receiver)
    }

    fn packet(&self, number: u8) -> Vec<u8> {
        tunnelled(self.mac, self.inner, &[number])
    }
}

/// The MAC address of a tunnel's device.
pub fn mac(node: &Node, device: &str) -> Result<[u8; 6]> {
    let mac = node.link(device)?.with_context(|| format!("no {device}"))?.mac;
    let octets: Vec<u8> =
        mac.split(':').map(|octet| u8::from_str_radix(octet, 16)).collect::<Result<_, _>>()?;
    Ok(octets.as_slice().try_into()?)
}

/// The VXLAN payload of UDP: a frame to `mac`, with a datagram from `inner.0` to `inner.1`.
pub fn tunnelled(mac: [u8; 6], inner: (IpAddr, IpAddr), payload: &[u8]) -> Vec<u8> {
    let [_, vni @ ..] = VNI.to_be_bytes();
    let ether_type: [u8; 2] = if inner.0.is_ipv4() { [0x08, 0] } else { [0x86, 0xdd] };
    let vxlan = [&[8, 0, 0, 0], &vni[..], &[0]].concat();
    let ethernet = [&mac[..], &[2, 0, 0, 0, 0, 0x66], &ether_type].concat();
    let datagram = Datagram { ends: inner, port: INNER_PORT, number: 1, payload };
    [vxlan, ethernet, datagram.packets(Shape::Whole).concat()].concat()
}

/// The numbers of the received packets.
fn numbers(receiver: &UdpSocket) -> Result<BTreeSet<u8>> {
    let (mut numbers, mut buffer) = (BTreeSet::new(), [0; 1]);
    loop {
        match receiver.recv(&mut buffer) {
            Ok(_) => numbers.insert(buffer[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(numbers),
            Err(error) => bail!(error),
        };
    }
}

/// UDP in IP; source and destination port are the same.
pub struct Datagram<'a> {
    /// Source and destination, of one family.
    pub ends: (IpAddr, IpAddr),
    pub port: u16,
    /// Distinguishes its fragments from those of other datagrams.
    pub number: u16,
    pub payload: &'a [u8],
}

/// How a datagram is divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Whole,
    /// The first of two fragments ends after the UDP header.
    Fragments,
    /// With padding options, for IPv6 in an extension header.
    Options,
}

const UDP: u8 = 17;
/// The size of a UDP header in bytes, which is all that the first fragment contains.
const FIRST: usize = 8;
/// The number of the IPv6 fragment header.
const FRAGMENT: u8 = 44;
const OPTIONS: u8 = 60;

impl Datagram<'_> {
    /// IP packets for a raw socket.
    pub fn packets(&self, shape: Shape) -> Vec<Vec<u8>> {
        let udp = self.udp();
        match shape {
            Shape::Whole => vec![self.packet(&udp, UDP, &[], Part::All)],
            Shape::Options => {
                vec![self.packet(&udp, OPTIONS, &[UDP, 0, 1, 4, 0, 0, 0, 0], Part::All)]
            }
            Shape::Fragments => {
                let (first, rest) = udp.split_at(FIRST);
                vec![
                    self.packet(first, FRAGMENT, &self.fragment(Part::First), Part::First),
                    self.packet(rest, FRAGMENT, &self.fragment(Part::Rest), Part::Rest),
                ]
            }
        }
    }

    /// The IPv6 fragment header.
    fn fragment(&self, part: Part) -> [u8; 8] {
        let [a, b] = part.offset(3, 1);
        let [c, d] = self.number.to_be_bytes();
        [UDP, 0, a, b, 0, 0, c, d]
    }

    /// `more` is an IPv6 extension header of type `next`; IPv4 does not use it.
    fn packet(&self, content: &[u8], next: u8, more: &[u8], part: Part) -> Vec<u8> {
        match self.ends {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let options: &[u8] = if next == OPTIONS { &[1, 1, 1, 0] } else { &[] };
                let words = u8::try_from(5 + options.len() / 4).unwrap_or_default();
                let length = 20 + options.len() + content.len();
                let [high, low] = u16::try_from(length).unwrap_or_default().to_be_bytes();
                let ([a, b], [c, d]) = (self.number.to_be_bytes(), part.offset(0, 1 << 13));
                let header = |sum: u16| {
                    let start = [0x40 | words, 0, high, low, a, b, c, d, 64, UDP];
                    let ends = [source.octets(), destination.octets()].concat();
                    [&start[..], &sum.to_be_bytes(), &ends, options].concat()
                };
                [header(checksum(&header(0))), content.to_vec()].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let length = u16::try_from(more.len() + content.len()).unwrap_or_default();
                let [high, low] = length.to_be_bytes();
                let header = [0x60, 0, 0, 0, high, low, next, 64];
                let ends = [source.octets(), destination.octets()].concat();
                [&header[..], &ends, more, content].concat()
            }
            _ => Vec::new(),
        }
    }

    fn udp(&self) -> Vec<u8> {
        let length = u16::try_from(8 + self.payload.len()).unwrap_or_default();
        let port = self.port.to_be_bytes();
        let udp = |sum: u16| {
            [&port[..], &port, &length.to_be_bytes(), &sum.to_be_bytes(), self.payload].concat()
        };
        match self.ends {
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ends = [source.octets(), destination.octets()].concat();
                let [high, low] = length.to_be_bytes();
                let pseudo = [&ends[..], &[0, 0, high, low, 0, 0, 0, UDP], &udp(0)];
                udp(checksum(&pseudo.concat()))
            }
            // In IPv4, the UDP checksum is optional.
            _ => udp(0),
        }
    }
}

/// The part of a datagram in one packet.
#[derive(Clone, Copy)]
enum Part {
    All,
    First,
    Rest,
}

impl Part {
    /// The offset in units of 8 bytes, shifted left by `shift` bits, plus `more` if more follows.
    fn offset(self, shift: u16, more: u16) -> [u8; 2] {
        let place = match self {
            Self::All => 0,
            Self::First => more,
            Self::Rest => 1 << shift,
        };
        place.to_be_bytes()
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or_default()));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}
