//! What preflight goes by: what this node is to do, and what its host is like.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use tweed_netlink::nftables::Outcome;

use crate::model::config::Tunnel;
use crate::model::entry::LinkName;
use crate::model::lease::Lease;
use crate::model::local::Local;
use crate::model::node::{Interface, Uplink};
use crate::model::policy::Forward;
use crate::model::prefix::{Family, Prefix};
use crate::plan::backend;

use super::unit::Unit;

/// What a node is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    pub families: Vec<Family>,
    /// Of the pods; none if they are not known yet.
    pub networks: Vec<Prefix>,
    /// Of the pods of this node, likewise.
    pub subnets: Vec<Prefix>,
    /// The link towards the peers.
    pub underlay: Option<LinkName>,
    /// The tunnel's devices, and what their headers take of each packet, in bytes.
    pub tunnels: Vec<(LinkName, u32)>,
    pub packets: Packets,
    pub ports: Vec<Port>,
    /// The peers on our link, of each family.
    pub neighbours: BTreeMap<Family, usize>,
    /// The largest packet of pods, in bytes; none if it is not known yet.
    pub pod_mtu: Option<u32>,
    /// Whether the daemon lets packets of pods through where iptables drops.
    pub forward: Forward,
}

/// Whether packets of one peer may come and go by different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packets {
    ByOneWay,
    ByTwoWays,
}

/// A UDP port, and what listens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Tunnel(u16),
    Probes(u16),
}

/// What the host is like.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Below `/proc/sys`, by their names with slashes; what does not exist is missing.
    pub sysctls: BTreeMap<String, String>,
    pub links: Vec<Interface>,
    /// Other daemons of flannel's network.
    pub rivals: Vec<Rival>,
    pub sockets: Vec<Socket>,
    /// All chains of nftables that decide what is let through; iptables-nft has them there too.
    pub chains: Vec<ForeignChain>,
    /// Tables of iptables that nobody sees through nftables.
    pub legacy_tables: Vec<String>,
    pub nftables: Module,
    pub vxlan: Module,
    pub systemd: Systemd,
    /// The API server as a service, where this runs in a pod of Kubernetes.
    pub service: Option<IpAddr>,
}

/// Another daemon that keeps the same routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rival {
    Process(Process),
    /// It answers for its health on this TCP port; its process cannot be seen from here.
    Health(u16),
}

/// A process that is no good company.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub place: Place,
}

/// Whose network a process lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Ours,
    /// It may not be looked at.
    Unknown,
}

/// Somebody listens for UDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub port: u16,
    pub owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A daemon of ours.
    Tweed,
    Process(u32, String),
    /// The kernel, for a tunnel of somebody's; or a process that may not be looked at.
    Unknown,
}

/// Whether the kernel has something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Module {
    #[default]
    Unknown,
    /// It is there, or is loaded when it is needed.
    Available,
    Missing,
}

/// A chain of nftables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChain {
    /// None is both.
    pub family: Option<Family>,
    pub table: String,
    pub name: String,
    /// What becomes of forwarded packets at its end; none for a chain that only others lead to.
    pub policy: Option<Outcome>,
    pub rules: Vec<ForeignRule>,
}

/// For packets of which all is known that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignRule {
    /// Networks in which the source has to be, and the destination; none is any.
    pub source: Option<Prefix>,
    pub destination: Option<Prefix>,
    pub then: Outcome,
}

/// The parts of systemd that touch links; those that do not run have no files.
#[derive(Clone, Debug, Default)]
pub struct Systemd {
    /// Of networkd itself, its drop-ins included.
    pub networkd: Option<Unit>,
    /// In the order in which networkd looks for one that fits.
    pub networks: Vec<Unit>,
    /// The same of udev.
    pub links: Vec<Unit>,
}

impl Needs {
    /// Of a node that is known, whose peers have these public IPs.
    pub fn of(local: &Local, peers: &[IpAddr]) -> Self {
        let Local { config, node, .. } = local;
        let tunnel = &config.backend.tunnel;
        let families: Vec<Family> = node.uplinks.iter().map(Uplink::family).collect();
        let two_ways = config.mixed || tunnel.direct_routing;
        let tunnels = families.iter().filter(|_| config.has_tunnel());
        let probes = config.probing().map(|probe| Port::Probes(probe.port));
        let port = config.has_tunnel().then_some(Port::Tunnel(tunnel.port));
        let is_near = |family, ip| Family::of(ip) == family && node.is_adjacent(ip);
        let on_link =
            |family: &Family| (*family, peers.iter().filter(|ip| is_near(*family, **ip)).count());
        Self {
            networks: config.networks().collect(),
            subnets: local.own.iter().flat_map(Lease::subnets).collect(),
            underlay: Some(node.interface.clone()),
            tunnels: tunnels.map(|family| device(*family, tunnel.vni)).collect(),
            packets: if two_ways { Packets::ByTwoWays } else { Packets::ByOneWay },
            ports: port.into_iter().chain(probes).collect(),
            neighbours: families.iter().map(on_link).collect(),
            pod_mtu: backend::pod_mtu(&backend::networks(local)),
            forward: local.policy.forward,
            families,
        }
    }

    /// Of a node before its first start, behind `underlay` and for pods of `networks`, if that is
    /// known: with flannel's defaults.
    pub fn before_the_first_start(underlay: Option<LinkName>, networks: &[Prefix]) -> Self {
        let named = networks.iter().map(|network| network.family());
        let mut families: Vec<Family> = named.collect::<BTreeSet<_>>().into_iter().collect();
        if families.is_empty() {
            families.push(Family::V4);
        }
        let tunnels = families.iter().map(|family| device(*family, Tunnel::DEFAULT_VNI));
        Self {
            tunnels: tunnels.collect(),
            families,
            networks: networks.to_vec(),
            subnets: Vec::new(),
            underlay,
            packets: Packets::ByOneWay,
            ports: vec![Port::Tunnel(Tunnel::DEFAULT_PORT)],
            neighbours: BTreeMap::new(),
            pod_mtu: None,
            forward: Forward::Accept,
        }
    }
}

impl Host {
    pub(crate) fn link(&self, name: &LinkName) -> Option<&Interface> {
        self.links.iter().find(|link| link.name == *name)
    }

    pub(crate) fn number(&self, sysctl: &str) -> Option<usize> {
        self.sysctls.get(sysctl)?.parse().ok()
    }
}

impl Port {
    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Tunnel(number) | Self::Probes(number) => number,
        }
    }
}

fn device(family: Family, vni: u32) -> (LinkName, u32) {
    (LinkName::tunnel(family, vni), backend::overhead(family))
}
