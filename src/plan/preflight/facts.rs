//! The inputs of preflight: what this node needs, and the state of its host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tweed_netlink::nftables::FilterChain;

use crate::model::checkpoint::Checkpoint;
use crate::model::config::Tunnel;
use crate::model::entry::LinkName;
use crate::model::lease::Lease;
use crate::model::node::{Interface, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::policy::Forward;
use crate::model::prefix::{Family, Prefix};
use crate::plan::backend;

use super::cni::Cni;
use super::unit::Unit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    pub families: Vec<Family>,
    /// The pod networks; empty if they are not known yet.
    pub networks: Vec<Prefix>,
    /// The subnets of this node; empty if they are not known yet.
    pub subnets: Vec<Prefix>,
    /// The link towards the peers.
    pub underlay: Option<LinkName>,
    /// The tunnel devices.
    pub tunnels: Vec<LinkName>,
    pub routing: Routing,
    /// Whether routes refer to nexthop objects.
    pub nexthops: bool,
    pub ports: Vec<Port>,
    /// The number of peers on the same link, per address family.
    pub neighbours: BTreeMap<Family, usize>,
    /// The largest packet of pods, in bytes; none if it is not known yet.
    pub pod_mtu: Option<u32>,
    /// Whether the daemon adds accept rules where iptables drops packets of pods.
    pub forward: Forward,
}

/// Whether packets to and from one peer may use different paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    Symmetric,
    Asymmetric,
}

/// A UDP port by its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Tunnel(u16),
    Probes(u16),
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    /// The values below `/proc/sys`, keyed by names with slashes. Names that do not exist are
    /// missing.
    pub sysctls: BTreeMap<String, String>,
    pub links: Vec<Interface>,
    /// Daemons of flannel, which keep the same routes.
    pub other_daemons: Vec<OtherDaemon>,
    pub sockets: Vec<Socket>,
    /// All nftables chains that decide on forwarded packets, including those of iptables-nft.
    pub chains: Vec<FilterChain>,
    /// Tables of iptables-legacy, which are not visible through nftables.
    pub legacy_tables: Vec<String>,
    /// Whether the kernel is known not to support it, not even as a module; likewise VXLAN.
    pub lacks_nftables: bool,
    pub lacks_vxlan: bool,
    pub systemd: Systemd,
    /// The service address of the API server, if this process runs in a pod of Kubernetes.
    pub service: Option<IpAddr>,
    pub cni: Cni,
    /// What could not be read.
    pub unread: Vec<Unread>,
}

/// A part of the host that could not be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// For a sentence, as its subject, in the plural.
    pub what: &'static str,
    pub place: String,
    pub obstacle: Obstacle,
}

/// Why a part of the host could not be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No permission.
    Forbidden,
    /// This process runs in a pod of Kubernetes, which does not share it.
    Pod,
    /// An error of the kernel.
    Failed(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherDaemon {
    /// The ID of a process in this network namespace.
    Process(u32),
    /// It answers health checks on this TCP port; its process is not visible from here.
    Health(u16),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub port: u16,
    pub owner: Owner,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Tweed,
    Process(u32, String),
    /// The kernel, for the tunnel of another program; or a process that may not be inspected.
    Unknown,
}

/// The systemd files that configure links. Services that do not run have none.
#[derive(Clone, Debug, Default)]
pub struct Systemd {
    /// None if it is not known.
    pub version: Option<u32>,
    /// The configuration of networkd itself, drop-ins included.
    pub networkd: Option<Unit>,
    /// In the order in which networkd matches them.
    pub networks: Vec<Unit>,
    /// The link files of udev, in the order in which udev matches them.
    pub links: Vec<Unit>,
}

impl Needs {
    /// The needs of a running node.
    pub fn of(inputs: &Checkpoint) -> Self {
        let local = &inputs.local;
        let NodeInputs { config, node, .. } = local;
        let tunnel = &config.backend.tunnel;
        let families: Vec<Family> = node.uplinks.iter().map(Uplink::family).collect();
        let two_ways = config.mixed || tunnel.direct_routing;
        let tunnels = families.iter().filter(|_| config.has_tunnel());
        let probes = config.probing().map(|probe| Port::Probes(probe.port));
        let port = config.has_tunnel().then_some(Port::Tunnel(tunnel.port));
        let on_link = |family: &Family| {
            let near = |ip: &IpAddr| Family::of(*ip) == *family && node.is_adjacent(*ip);
            (*family, inputs.public_ips().filter(near).count())
        };
        Self {
            networks: config.networks().collect(),
            subnets: local.own.iter().flat_map(Lease::subnets).collect(),
            underlay: Some(node.interface.clone()),
            tunnels: tunnels.map(|family| LinkName::tunnel(*family, tunnel.vni)).collect(),
            routing: if two_ways { Routing::Asymmetric } else { Routing::Symmetric },
            nexthops: node.nexthops,
            ports: port.into_iter().chain(probes).collect(),
            neighbours: families.iter().map(on_link).collect(),
            pod_mtu: backend::pod_mtu(&backend::backends(local)),
            forward: local.policy.forward,
            families,
        }
    }

    /// The needs of a node before its first start, with flannel's defaults for everything but
    /// `underlay` and `networks`.
    pub fn before_the_first_start(underlay: Option<LinkName>, networks: &[Prefix]) -> Self {
        let named = networks.iter().map(|network| network.family());
        let mut families: Vec<Family> = named.collect::<BTreeSet<_>>().into_iter().collect();
        if families.is_empty() {
            families.push(Family::V4);
        }
        let tunnels = families.iter().map(|it| LinkName::tunnel(*it, Tunnel::DEFAULT_VNI));
        Self {
            tunnels: tunnels.collect(),
            families,
            networks: networks.to_vec(),
            subnets: Vec::new(),
            underlay,
            routing: Routing::Symmetric,
            nexthops: true,
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
