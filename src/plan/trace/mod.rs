//! What happens to a packet on this node, hop by hop, and where it is dropped: computed from the
//! plan and from what the kernel holds.

mod peer;
mod rules;
mod state;
mod walk;

pub use peer::{PeerHops, PeerQuestion, PeerRole, PeerTrace, WholeTrace};
pub use rules::translation;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::entry::KernelState;
use crate::model::lease::{Endpoint, Lease};
use crate::model::node::{Interface, RouteLookup};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Path, PeerReachability};
use crate::model::prefix::{Family, Prefix};
use crate::plan::backend::PeerPlan;
use crate::plan::desired::Desired;
use walk::Walk;

/// A packet that must not be fragmented, without a mark, and not to the port of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// In bytes, with its IP header.
    pub size: u32,
}

/// Why a packet cannot be traced on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untraceable {
    #[error("{0} and {1} are of different address families")]
    FamiliesDiffer(IpAddr, IpAddr),
    #[error("a packet of {size} bytes is not possible: the size is {smallest} to {LARGEST} bytes")]
    Size { size: u32, smallest: u32 },
    #[error("{0} is a multicast address: only packets to one host are traced")]
    Multicast(IpAddr),
    #[error("this node has no lease of {0} yet")]
    NoOwnLease(Family),
    #[error("{address} is in the network of pods {network}, and in no lease")]
    NoLease { address: IpAddr, network: Prefix },
    #[error("{0} is in no lease, and is not an address of this node")]
    UnknownSource(IpAddr),
    #[error(
        "packets from {source_ip} to {destination} do not pass this node: trace them on the node \
         {public_ip}, which has the subnet of {source_ip}"
    )]
    Elsewhere { source_ip: IpAddr, destination: IpAddr, public_ip: IpAddr },
}

/// The plan of this node, and the leases that it was computed from.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    pub local: &'a NodeInputs,
    pub leases: &'a [Arc<Lease>],
    pub desired: &'a Desired,
}

/// What the host and its kernel hold, and what its probes have shown.
pub struct HostState<'a> {
    pub actual: &'a KernelState,
    pub interfaces: &'a [Interface],
    /// The kernel's response for each of [`Question::lookups`]; none if it has no route, or rejects
    /// such packets.
    pub lookups: &'a BTreeMap<IpAddr, Option<RouteLookup>>,
    /// Whether the peer of [`Question::peer`] answers by the path in use; none without a daemon.
    pub probes: Option<PeerReachability>,
}

/// A packet that passes this node.
pub struct Question<'a> {
    packet: TracedPacket,
    planned: Planned<'a>,
    origin: PacketOrigin<'a>,
    target: PacketTarget<'a>,
}

enum PacketOrigin<'a> {
    /// A pod of this node, in this subnet.
    Pod(Prefix),
    /// This node itself.
    Host,
    /// A pod of this peer.
    Peer(PeerEnd<'a>),
}

enum PacketTarget<'a> {
    /// This subnet of this node, or an address of this node in it.
    Pod(Prefix),
    Host,
    Peer(PeerEnd<'a>),
    /// Not in the network of pods.
    Outside,
}

/// A node whose lease has one of the addresses.
struct PeerEnd<'a> {
    endpoint: &'a Endpoint,
    /// The planned path to it, which is also the one by which it sends; none if it is skipped.
    path: Option<Path>,
    /// Why its lease is rejected or skipped.
    reason: Option<String>,
}

/// The hops of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    #[serde(flatten)]
    pub packet: TracedPacket,
    /// The source address with which it leaves this node, if that is another one.
    pub translated_to: Option<IpAddr>,
    /// The path by which it leaves this node to a peer.
    pub leaves_by: Option<Path>,
    pub hops: Vec<Hop>,
    pub delivery: Delivery,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    pub hop: HopKind,
    pub state: HopState,
    pub text: String,
}

/// What becomes of the packet. Of two nodes that it passes, the greater one decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Delivery {
    /// No hop drops it, as far as they are examined.
    Delivered,
    /// It depends on what tweed does not read.
    Unknown,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HopState {
    Passed,
    /// On another host: computed from its lease.
    Planned,
    Dropped,
    Unknown,
}

/// A step of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HopKind {
    Pod,
    Host,
    Peer,
    Guard,
    Tunnel,
    /// The reverse-path filter.
    Filter,
    /// The rules of policy routing.
    Rule,
    Route,
    Nexthop,
    Mtu,
    Forward,
    Masquerade,
    Neighbour,
    Fdb,
    Underlay,
    /// The probes of the peer by the path in use.
    Probe,
    Outside,
}

/// The largest IP packet, in bytes.
const LARGEST: u32 = 65_535;

impl TracedPacket {
    pub fn parse(source: IpAddr, destination: IpAddr, size: u32) -> Result<Self, Untraceable> {
        let family = Family::of(source);
        if family != Family::of(destination) {
            return Err(Untraceable::FamiliesDiffer(source, destination));
        }
        // With the header of UDP or ICMP.
        let smallest = match family {
            Family::V4 => 28,
            Family::V6 => 48,
        };
        if !(smallest..=LARGEST).contains(&size) {
            return Err(Untraceable::Size { size, smallest });
        }
        if let Some(group) = [source, destination].into_iter().find(IpAddr::is_multicast) {
            return Err(Untraceable::Multicast(group));
        }
        Ok(Self { source, destination, size })
    }

    const fn family(&self) -> Family {
        Family::of(self.source)
    }
}

/// An address of this node.
enum Here {
    Pod,
    Host,
}

impl Here {
    const fn origin<'a>(self, own: Prefix) -> PacketOrigin<'a> {
        match self {
            Self::Pod => PacketOrigin::Pod(own),
            Self::Host => PacketOrigin::Host,
        }
    }

    const fn target<'a>(self, own: Prefix) -> PacketTarget<'a> {
        match self {
            Self::Pod => PacketTarget::Pod(own),
            Self::Host => PacketTarget::Host,
        }
    }
}

impl<'a> Planned<'a> {
    /// The subnet of this node in the family of the packet.
    fn own(&self, family: Family) -> Result<&'a Endpoint, Untraceable> {
        let own = self.local.own.as_ref().and_then(|own| own.endpoint(family));
        own.ok_or(Untraceable::NoOwnLease(family))
    }

    /// Whether `address` is in `own`, the subnet of this node, or is this node itself.
    fn here(&self, own: Prefix, address: IpAddr) -> Option<Here> {
        if own.contains(address) {
            return Some(Here::Pod);
        }
        let mut uplinks = self.local.node.uplinks.iter();
        let is_host = uplinks.any(|it| [it.address, it.public_ip, it.source].contains(&address));
        is_host.then_some(Here::Host)
    }

    /// The peer whose lease has `address`; of several, the one whose lease is accepted.
    fn peer(&self, address: IpAddr) -> Option<PeerEnd<'a>> {
        let family = Family::of(address);
        let has = |lease: &'a Lease| {
            lease.endpoint(family).filter(|endpoint| endpoint.subnet.contains(address))
        };
        let plans = self.desired.peers();
        let accepted = plans
            .values()
            .flatten()
            .find_map(|(lease, plan)| Some(PeerEnd::accepted(has(lease)?, plan)));
        accepted.or_else(|| {
            let (lease, endpoint) =
                self.leases.iter().find_map(|lease| Some((lease, has(lease)?)))?;
            let rejected = plans.get(&lease.id).and_then(|plan| plan.as_ref().err());
            let has_tunnel = endpoint.vtep.is_some() && self.local.config.has_tunnel();
            let path = if has_tunnel { Path::Tunnel } else { Path::Direct };
            let reason = rejected.map(|why| format!("its lease is rejected: {why}"));
            Some(PeerEnd { endpoint, path: Some(path), reason })
        })
    }
}

impl<'a> Question<'a> {
    pub fn of(packet: TracedPacket, planned: Planned<'a>) -> Result<Self, Untraceable> {
        let TracedPacket { source, destination, .. } = packet;
        let own = planned.own(packet.family())?.subnet;
        let origin = if let Some(here) = planned.here(own, source) {
            here.origin(own)
        } else {
            let peer = planned.peer(source).ok_or(Untraceable::UnknownSource(source))?;
            if !own.contains(destination) {
                let public_ip = peer.endpoint.public_ip;
                return Err(Untraceable::Elsewhere { source_ip: source, destination, public_ip });
            }
            PacketOrigin::Peer(peer)
        };
        let mut networks = planned.local.config.networks();
        let target = if let Some(here) = planned.here(own, destination) {
            here.target(own)
        } else if let Some(peer) = planned.peer(destination) {
            PacketTarget::Peer(peer)
        } else if let Some(network) = networks.find(|network| network.contains(destination)) {
            return Err(Untraceable::NoLease { address: destination, network });
        } else {
            PacketTarget::Outside
        };
        Ok(Self { packet, planned, origin, target })
    }

    /// The addresses for which the kernel has to be asked for its route.
    pub fn lookups(&self) -> impl Iterator<Item = IpAddr> {
        [self.packet.destination].into_iter().chain(self.peer().map(|peer| peer.public_ip))
    }

    /// The peer from which the packet comes, or to which it goes.
    pub const fn peer(&self) -> Option<&'a Endpoint> {
        match (&self.origin, &self.target) {
            (PacketOrigin::Peer(peer), _) | (_, PacketTarget::Peer(peer)) => Some(peer.endpoint),
            (
                PacketOrigin::Pod(_) | PacketOrigin::Host,
                PacketTarget::Pod(_) | PacketTarget::Host | PacketTarget::Outside,
            ) => None,
        }
    }

    pub fn answer(&self, host: &HostState<'_>) -> Trace {
        Walk::new(self, host).finish()
    }
}

impl<'a> PeerEnd<'a> {
    fn accepted(endpoint: &'a Endpoint, plan: &PeerPlan) -> Self {
        let path = plan.path(endpoint.subnet.family()).map(|planned| planned.path);
        let skipped = plan.without_path().next().filter(|_| path.is_none());
        let reason = skipped.map(|why| format!("it is skipped: {why}"));
        Self { endpoint, path, reason }
    }
}

impl HopKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Host => "host",
            Self::Peer => "peer",
            Self::Guard => "guard",
            Self::Tunnel => "tunnel",
            Self::Filter => "filter",
            Self::Rule => "rule",
            Self::Route => "route",
            Self::Nexthop => "nexthop",
            Self::Mtu => "mtu",
            Self::Forward => "forward",
            Self::Masquerade => "masquerade",
            Self::Neighbour => "neighbour",
            Self::Fdb => "fdb",
            Self::Underlay => "underlay",
            Self::Probe => "probe",
            Self::Outside => "outside",
        }
    }
}
