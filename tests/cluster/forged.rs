//! Packets that look as if a tunnel had brought them, sent by anybody.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};
use tweed_lab::{Family, Namespace, Node, Pod, eventually, listen};

use crate::cluster::PATIENCE;

/// Of flannel's tunnels.
pub const PORT: u16 = 8472;
pub const VNI: u32 = 1;
/// Where the pod listens.
const INNER_PORT: u16 = 7004;
/// So many are sent where none is to arrive.
const MANY: u32 = 20;

/// A way into a pod through the tunnel of its node.
#[derive(Clone, Debug)]
pub struct Forged {
    node: SocketAddr,
    mac: [u8; 6],
    /// Who the inner packet says it is from, and whom it is for.
    inner: (IpAddr, IpAddr),
    vni: u32,
    pod: Namespace,
}

impl Forged {
    /// To `pod` on `node`; `claimed` is what the inner packet has as its source.
    pub fn to(node: &Node, pod: &Pod, claimed: IpAddr) -> Result<Self> {
        let family = Family::of(claimed);
        let device = match family {
            Family::V4 => "flannel.1",
            Family::V6 => "flannel-v6.1",
        };
        let mac = node.link(device)?.with_context(|| format!("no {device}"))?.mac;
        let octets: Vec<u8> =
            mac.split(':').map(|octet| u8::from_str_radix(octet, 16)).collect::<Result<_, _>>()?;
        Ok(Self {
            node: SocketAddr::new(node.address(family)?, PORT),
            mac: octets.as_slice().try_into()?,
            inner: (claimed, pod.address(family)?),
            vni: VNI,
            pod: pod.namespace().clone(),
        })
    }

    /// Whether what is sent from `from`, by the address `source` if there is one, comes to the pod.
    pub fn arrives(&self, from: &Namespace, source: Option<IpAddr>) -> Result<()> {
        let (ears, mouth) = (self.ears()?, self.mouth(from, source)?);
        let heard = || {
            mouth.send_to(&self.packet(1), self.node)?;
            ensure!(numbers(&ears)?.contains(&1), "nothing arrives");
            Ok::<_, anyhow::Error>(())
        };
        eventually(PATIENCE, heard).map(drop)
    }

    /// Whether it does not, although what comes from `trusted` does, a moment later.
    pub fn is_lost(
        &self,
        from: &Namespace,
        source: Option<IpAddr>,
        trusted: &Namespace,
    ) -> Result<()> {
        let (ears, mouth) = (self.ears()?, self.mouth(from, source)?);
        for _ in 0..MANY {
            mouth.send_to(&self.packet(1), self.node)?;
        }
        let (trusted, mut heard) = (self.mouth(trusted, None)?, BTreeSet::new());
        eventually(PATIENCE, || {
            trusted.send_to(&self.packet(2), self.node)?;
            heard.extend(numbers(&ears)?);
            ensure!(heard.contains(&2), "not even what a peer sends arrives");
            Ok::<_, anyhow::Error>(())
        })?;
        ensure!(!heard.contains(&1), "it arrives");
        Ok(())
    }

    /// Sends it once to another node.
    pub fn send_to(&self, node: SocketAddr, from: &Namespace) -> Result<()> {
        self.mouth(from, None)?.send_to(&self.packet(1), node).map(drop).context("sending")
    }

    fn mouth(&self, from: &Namespace, source: Option<IpAddr>) -> Result<UdpSocket> {
        let any = match self.node {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Ok(from.within(|| UdpSocket::bind((source.unwrap_or(any), 0)))??)
    }

    fn ears(&self) -> Result<UdpSocket> {
        let ears = self.pod.within(|| listen(SocketAddr::new(self.inner.1, INNER_PORT)))??;
        ears.set_nonblocking(true)?;
        Ok(ears)
    }

    fn packet(&self, number: u8) -> Vec<u8> {
        let [_, vni @ ..] = self.vni.to_be_bytes();
        let ether_type: [u8; 2] = if self.node.is_ipv4() { [0x08, 0] } else { [0x86, 0xdd] };
        let vxlan = [&[8, 0, 0, 0], &vni[..], &[0]].concat();
        let ethernet = [&self.mac[..], &[2, 0, 0, 0, 0, 0x66], &ether_type].concat();
        [vxlan, ethernet, datagram(self.inner, number)].concat()
    }
}

/// What has come.
fn numbers(ears: &UdpSocket) -> Result<BTreeSet<u8>> {
    let (mut numbers, mut buffer) = (BTreeSet::new(), [0; 1]);
    loop {
        match ears.recv(&mut buffer) {
            Ok(_) => numbers.insert(buffer[0]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(numbers),
            Err(error) => bail!(error),
        };
    }
}

/// IP and UDP around one byte.
fn datagram((source, destination): (IpAddr, IpAddr), number: u8) -> Vec<u8> {
    let length: u16 = 8 + 1;
    let port = INNER_PORT.to_be_bytes();
    let udp = |sum: u16| {
        [&port[..], &port, &length.to_be_bytes(), &sum.to_be_bytes(), &[number]].concat()
    };
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = |sum: u16| {
                let [high, low] = (20 + length).to_be_bytes();
                let start = [0x45, 0, high, low, 0, 0, 0, 0, 64, 17];
                let ends = [source.octets(), destination.octets()].concat();
                [&start[..], &sum.to_be_bytes(), &ends].concat()
            };
            // In IPv4, UDP may do without a sum.
            [header(checksum(&header(0))), udp(0)].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ends = [source.octets(), destination.octets()].concat();
            let pseudo = [&ends[..], &[0, 0], &length.to_be_bytes(), &[0, 0, 0, 17], &udp(0)];
            let [high, low] = length.to_be_bytes();
            let header = [0x60, 0, 0, 0, high, low, 17, 64];
            [&header[..], &ends, &udp(checksum(&pseudo.concat()))].concat()
        }
        _ => Vec::new(),
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
