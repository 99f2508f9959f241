//! The backends, and the plan: the kernel entries for this node and for each peer.

mod host_gw;
mod mixed;
mod nexthops;
mod retired;
mod vxlan;

pub use retired::retired;
pub use vxlan::overhead;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::config::{BackendType, NetworkConfig};
use crate::model::entry::{Address, Entry, KernelState, LinkName, Route, SettingKind, TableName};
use crate::model::lease::{Endpoint, EndpointAttributes, Lease, LeaseAttributes, Rules, Vtep};
use crate::model::node::Uplink;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Fallbacks, Path};
use crate::model::prefix::{Family, Prefix};
use crate::plan::scope::{Extent, Scope};
use crate::plan::{allow_list, masquerade};
use host_gw::HostGwNetwork;
use mixed::MixedNetwork;
use nexthops::Nexthops;
use vxlan::VxlanNetwork;

/// A backend for one address family. Pure: it returns the desired entries and never changes the
/// kernel.
pub trait Network: Send {
    fn family(&self) -> Family;

    /// The largest packet that pods may send, in bytes.
    fn mtu(&self) -> u32;

    /// The device and the other entries of this node; without the address as long as no lease is
    /// held.
    fn local(&self) -> KernelState;

    /// The entries that accept packets of `peer` on any path; empty if there is no allow list.
    fn admit(&self, _peer: &Endpoint) -> Vec<Arc<Entry>> {
        Vec::new()
    }

    /// The entries for the path to `peer`; through the tunnel if there is a fallback and it is
    /// usable.
    fn towards(&self, peer: &Endpoint, fallback: Option<Fallback>)
    -> Result<PathPlan, Unreachable>;
}

/// The path to a peer, and its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPlan {
    pub path: Path,
    pub entries: Vec<Arc<Entry>>,
    /// Why this is not the direct path.
    pub fallback: Option<Fallback>,
}

/// Why a peer has no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    #[error("its backend is {theirs}, ours is {ours}, and Mixed is off")]
    BackendDiffers { ours: &'static str, theirs: &'static str },
    #[error("this version does not support its backend {0:?}")]
    UnknownBackend(String),
    #[error("gateway {gateway} is not on the link of {link}")]
    NotOnLink { gateway: IpAddr, link: LinkName },
    #[error("it published no VTEP")]
    NoVtep,
    #[error("its VTEP has VNI {theirs}, ours has {ours}")]
    VniDiffers { ours: u32, theirs: u32 },
    #[error("it has no address family in common with this node")]
    NoCommonFamily,
    #[error("{direct}, and {tunnel}")]
    NeitherPath { direct: Box<Unreachable>, tunnel: Box<Unreachable> },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerPlan {
    /// A path, or why there is none, for each address family that both nodes have.
    pub paths: Vec<(Family, Result<PathPlan, Unreachable>)>,
    /// The entries that accept its packets.
    pub admission: Vec<Arc<Entry>>,
}

impl PeerPlan {
    pub fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let paths = self.paths.iter().filter_map(|(_, path)| path.as_ref().ok());
        self.admission.iter().chain(paths.flat_map(|path| &path.entries))
    }

    /// Why there is no path, for each family without one.
    pub fn without_path(&self) -> impl Iterator<Item = &Unreachable> {
        self.paths.iter().filter_map(|(_, path)| path.as_ref().err())
    }
}

/// The networks of this node, one per enabled family. Only this function chooses an implementation by backend.
pub fn networks(local: &NodeInputs) -> Vec<Box<dyn Network>> {
    let network = |uplink: &Uplink| -> Box<dyn Network> {
        let direct = HostGwNetwork::new(local, uplink);
        let tunnel = || VxlanNetwork::new(local, uplink);
        match (local.config.backend.kind, local.config.mixed) {
            (BackendType::Vxlan | BackendType::HostGw, true) => {
                Box::new(MixedNetwork::new(local, tunnel(), direct))
            }
            (BackendType::Vxlan, false) => Box::new(tunnel()),
            (BackendType::HostGw, false) => Box::new(direct),
        }
    };
    local.node.uplinks.iter().map(network).collect()
}

fn supported(peer: &Endpoint) -> Result<BackendType, Unreachable> {
    let unknown = || Unreachable::UnknownBackend(peer.backend.as_str().to_owned());
    peer.backend.supported().ok_or_else(unknown)
}

/// Whether `peer` gets a direct route only after it has answered a probe: its lease names vxlan,
/// and a flanneld with a strict reverse-path filter expects packets from the tunnel.
pub fn must_answer(config: &NetworkConfig, peer: &Endpoint) -> bool {
    let is_direct = config.backend.kind == BackendType::HostGw && config.probing().is_some();
    is_direct && peer.backend.supported() == Some(BackendType::Vxlan)
}

/// The entries of this node.
pub fn plan_local(local: &NodeInputs, networks: &[Box<dyn Network>]) -> KernelState {
    let mut state: KernelState = networks.iter().flat_map(|network| network.local()).collect();
    if !local.config.mixed {
        state.extend(restored(&local.strict));
    }
    state.extend(local.own.iter().flat_map(|own| pod_rules(local, own)));
    state
}

/// The entries for pods that are not routes to peers, such as masquerade rules.
fn pod_rules(local: &NodeInputs, own: &Lease) -> Vec<Entry> {
    let rules = masquerade::rules(&local.policy, &local.config, &local.node.firewalls, own);
    let ends = own.subnets().filter(|_| local.policy.refuse_unused).map(Route::unreachable);
    rules.into_iter().chain(ends.map(Entry::Route)).collect()
}

/// Sets the reverse-path filters of these links back to strict, as before `Mixed` loosened them.
pub fn restored(strict: &BTreeSet<LinkName>) -> KernelState {
    strict.iter().map(|link| Entry::Setting(SettingKind::ReversePath.on(link))).collect()
}

/// The entries for `peer`. They depend only on `networks`, `peer` and the fallbacks for that peer.
pub fn plan_peer(networks: &[Box<dyn Network>], peer: &Lease, fallbacks: &Fallbacks) -> PeerPlan {
    let common = || {
        let end = |network| Some((network, peer.endpoint(Network::family(network))?));
        networks.iter().map(Box::as_ref).filter_map(end)
    };
    let path = |(network, endpoint): (&dyn Network, &Endpoint)| {
        let fallback = fallbacks.get(&endpoint.subnet.base()).copied();
        (network.family(), network.towards(endpoint, fallback))
    };
    let mut paths: Vec<_> = common().map(path).collect();
    paths.shrink_to_fit();
    if paths.is_empty() {
        let family = networks.first().map_or(Family::V4, |network| network.family());
        paths = vec![(family, Err(Unreachable::NoCommonFamily))];
    }
    let admission = common().flat_map(|(network, endpoint)| network.admit(endpoint)).collect();
    PeerPlan { paths, admission }
}

/// The largest packet that pods may send over every one of `networks`, in bytes.
pub fn pod_mtu(networks: &[Box<dyn Network>]) -> Option<u32> {
    networks.iter().map(|network| network.mtu()).min()
}

impl NodeInputs {
    /// What this node publishes in its lease.
    pub fn attributes(&self) -> LeaseAttributes {
        let vtep = |uplink: &Uplink| {
            let mac = self.macs.get(&uplink.family()).filter(|_| self.config.has_tunnel())?;
            let source = Some(uplink.source).filter(|source| *source != uplink.public_ip);
            Some(Vtep { vni: Some(self.config.backend.tunnel.vni), mac: *mac, source })
        };
        let endpoint = |uplink: &Uplink| EndpointAttributes {
            public_ip: uplink.public_ip,
            vtep: vtep(uplink),
        };
        LeaseAttributes {
            backend: self.config.backend.kind,
            endpoints: self.node.uplinks.iter().map(endpoint).collect(),
        }
    }

    /// The rules that decide which leases of peers are accepted.
    pub fn rules(&self) -> Rules {
        let uplinks = self.node.uplinks.iter();
        Rules {
            networks: self.config.networks().collect(),
            own: self.own.clone(),
            macs: if self.config.has_tunnel() { self.macs.clone() } else { BTreeMap::new() },
            addresses: uplinks
                .flat_map(|uplink| [uplink.public_ip, uplink.source, uplink.address])
                .collect(),
            on_link: self.node.on_link.clone(),
            pools: self.config.pools.clone(),
        }
    }

    /// Which kernel entries tweed reads and owns, given the public IPs of the peers.
    pub fn scope(&self, gateways: BTreeSet<IpAddr>) -> Scope {
        let tunnel_of =
            |uplink: &Uplink| LinkName::tunnel(uplink.family(), self.config.backend.tunnel.vni);
        Scope {
            tunnels: self.node.uplinks.iter().map(tunnel_of).collect(),
            underlay: Some(self.node.interface.clone()),
            tables: table_names(self.config.backend.tunnel.vni).collect(),
            chains: masquerade::chain_names(),
            extent: Extent::Spare,
            networks: self.config.networks().collect(),
            subnets: self.own.iter().flat_map(Lease::subnets).collect(),
            gateways,
            retired: Vec::new(),
        }
    }
}

/// The names of the tables that a node with this VNI may have, including those of an earlier run.
pub fn table_names(vni: u32) -> impl Iterator<Item = TableName> {
    masquerade::table_names(vni).into_iter().chain(allow_list::table_names(vni))
}

/// The address of the tunnel device of the node that has `subnet`, on `link`.
pub fn tunnel_address(subnet: Prefix, link: LinkName) -> Address {
    Address { link, address: subnet.base(), prefix_len: subnet.family().width() }
}
