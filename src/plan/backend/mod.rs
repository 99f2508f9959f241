//! The backends, and the plan: the kernel entries for this node and for each peer.

mod host_gw;
mod vxlan;

pub use vxlan::{overhead, retired};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::config::BackendType;
use crate::model::entry::{
    Address, ChainName, Entry, KernelState, LinkName, Nexthop, NexthopId, Route, SettingKind,
    TableName,
};
use crate::model::lease::{Endpoint, EndpointAttributes, Lease, LeaseAttributes, Rules, Vtep};
use crate::model::node::Uplink;
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Fallbacks, Path};
use crate::model::prefix::{Family, Prefix};
use crate::plan::scope::{Extent, Scope};
use crate::plan::{allow_list, masquerade};
use host_gw::DirectPaths;
use vxlan::TunnelPaths;

/// The backend of this node in one address family. Pure: it returns the desired entries for a peer
/// and never changes the kernel.
pub struct Backend {
    kind: BackendType,
    mixed: bool,
    direct_routing: bool,
    family: Family,
    /// The largest packet that pods may send, in bytes.
    mtu: u32,
    direct: DirectPaths,
    /// None for host-gw without `Mixed`.
    tunnel: Option<TunnelPaths>,
    /// Whether the tunnel to a peer with a direct route stays usable: probes need it.
    has_standby: bool,
}

/// The network from which the ids of nexthop objects are derived; none if routes have their gateways
/// inline.
#[derive(Clone, Copy, Debug)]
struct Nexthops(Option<Prefix>);

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
    /// A path, or why there is none, for each address family that both nodes have; empty for a
    /// reservation that no node has taken.
    pub paths: Vec<(Family, Result<PathPlan, Unreachable>)>,
    /// The entries that accept its packets.
    pub admission: Vec<Arc<Entry>>,
}

impl PeerPlan {
    pub fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        let paths = self.paths.iter().filter_map(|(_, path)| path.as_ref().ok());
        self.admission.iter().chain(paths.flat_map(|path| &path.entries))
    }

    /// The path for packets of `family`; none if the peer is unreachable.
    pub fn path(&self, family: Family) -> Option<&PathPlan> {
        let (_, path) = self.paths.iter().find(|(of, _)| *of == family)?;
        path.as_ref().ok()
    }

    /// Why there is no path, for each family without one.
    pub fn without_path(&self) -> impl Iterator<Item = &Unreachable> {
        self.paths.iter().filter_map(|(_, path)| path.as_ref().err())
    }

    /// Whether this plan has a direct path where `before` has the tunnel because direct probes are
    /// not answered.
    pub fn takes_unanswered_path(&self, before: &Self) -> bool {
        Family::ALL.into_iter().any(|family| {
            let is_fallback = before.path(family).is_some_and(|path| path.fallback.is_some());
            is_fallback && self.path(family).is_some_and(|path| path.path == Path::Direct)
        })
    }
}

impl Backend {
    fn new(local: &NodeInputs, uplink: &Uplink) -> Self {
        let (NodeInputs { config, node, .. }, family) = (local, uplink.family());
        let nexthops = Nexthops::new(local, family);
        let mtu = match config.has_tunnel().then(|| vxlan::device(local, uplink).mtu) {
            // A packet may take either path.
            Some(mtu) if config.mixed => mtu.min(node.mtu),
            Some(mtu) => mtu,
            None => node.mtu,
        };
        Self {
            kind: config.backend.kind,
            mixed: config.mixed,
            direct_routing: config.backend.tunnel.direct_routing,
            family,
            mtu,
            direct: DirectPaths { node: node.clone(), nexthops },
            tunnel: config.has_tunnel().then(|| TunnelPaths::new(local, uplink, nexthops)),
            has_standby: config.comparing().is_some(),
        }
    }

    /// The entries for the path to `peer`; through the tunnel if there is a fallback and it is
    /// usable.
    fn to(&self, peer: &Endpoint, fallback: Option<Fallback>) -> Result<PathPlan, Unreachable> {
        let unknown = || Unreachable::UnknownBackend(peer.backend.as_str().to_owned());
        let theirs = peer.backend.supported().ok_or_else(unknown)?;
        if !self.mixed && theirs != self.kind && !peer.is_mixed() {
            let (ours, theirs) = (self.kind.as_str(), theirs.as_str());
            return Err(Unreachable::BackendDiffers { ours, theirs });
        }
        let are_tunnelled = (self.kind, theirs) == (BackendType::Vxlan, BackendType::Vxlan);
        match &self.tunnel {
            None => self.direct.to(peer),
            // A peer that has read `Mixed` before us accepts what our own backend sends.
            Some(tunnel) if (are_tunnelled || !self.mixed) && !self.direct_routing => {
                tunnel.to(peer)
            }
            Some(tunnel) if self.mixed => self.either(tunnel, peer, fallback),
            Some(tunnel) => self.direct.to(peer).or_else(|_| tunnel.to(peer)),
        }
    }

    /// The direct path if `peer` is on the link and there is no fallback for it, else the tunnel.
    fn either(
        &self,
        tunnel: &TunnelPaths,
        peer: &Endpoint,
        fallback: Option<Fallback>,
    ) -> Result<PathPlan, Unreachable> {
        match (self.direct.to(peer), tunnel.to(peer)) {
            (Ok(_), Ok(tunnel)) if fallback.is_some() => Ok(PathPlan { fallback, ..tunnel }),
            (Ok(mut direct), _) => {
                if self.has_standby {
                    direct.entries.splice(0..0, tunnel.standby(peer).unwrap_or_default());
                }
                Ok(direct)
            }
            (Err(_), Ok(tunnel)) => Ok(tunnel),
            (Err(direct), Err(tunnel)) => {
                Err(Unreachable::NeitherPath { direct: Box::new(direct), tunnel: Box::new(tunnel) })
            }
        }
    }
}

impl Nexthops {
    fn new(local: &NodeInputs, family: Family) -> Self {
        let pool = local.config.pool(family).filter(|_| local.node.nexthops);
        Self(pool.map(|pool| pool.network))
    }

    /// `route`, and the nexthop object that holds its gateway.
    fn program(self, route: Route, path: Path) -> Vec<Arc<Entry>> {
        let id = self.0.and_then(|network| NexthopId::of(network, route.destination, path));
        let nexthop = id.map(|id| Nexthop {
            id,
            gateway: route.gateway,
            link: route.link.clone(),
            onlink: route.onlink,
            protocol: route.protocol,
        });
        let route = Route { nexthop: id, ..route };
        let entries = nexthop.map(Entry::Nexthop).into_iter().chain([Entry::Route(route)]);
        entries.map(Arc::new).collect()
    }
}

/// The backends of this node, one per enabled family.
pub fn backends(local: &NodeInputs) -> Vec<Backend> {
    local.node.uplinks.iter().map(|uplink| Backend::new(local, uplink)).collect()
}

/// Whether a node on `own` gives `peer` a direct route only after it has answered a probe: its lease
/// names vxlan, and a flanneld with a strict reverse-path filter expects packets from the tunnel.
pub fn must_answer(own: BackendType, peer: &Endpoint) -> bool {
    own == BackendType::HostGw && peer.backend.supported() == Some(BackendType::Vxlan)
}

/// The entries of this node.
pub fn plan_local(local: &NodeInputs) -> KernelState {
    let uplinks = local.node.uplinks.iter();
    let mut state: KernelState = uplinks.flat_map(|uplink| plan_family(local, uplink)).collect();
    if !local.config.mixed {
        state.extend(restored(&strict(local)));
    }
    state.extend(local.own.iter().flat_map(|own| pod_rules(local, own)));
    state
}

/// The entries of this node in the family of `uplink`.
fn plan_family(local: &NodeInputs, uplink: &Uplink) -> Vec<Entry> {
    let (NodeInputs { config, node, leaving, .. }, family) = (local, uplink.family());
    let has_tunnel = config.has_tunnel();
    let tunnel = has_tunnel.then(|| vxlan::entries(local, uplink));
    let mut entries: Vec<Entry> = tunnel.into_iter().flatten().collect();
    // Connections of this host that began in the tunnel have its address as their source. On the
    // loopback, the address outlives the device, which is removed once `Mixed` is off and no peer
    // needs it. Without a device, probes need it.
    let is_only_there = || config.probing().is_some() || leaving.contains(&family);
    if config.mixed || (!has_tunnel && is_only_there()) {
        entries.extend(own_address(local, family, LinkName::loopback()));
    }
    // While two nodes change paths one after the other, packets arrive by one path and the answers
    // leave by the other. A strict reverse-path filter would drop them. The filter exists for IPv4
    // only.
    if config.mixed && family == Family::V4 {
        let device = LinkName::tunnel(family, config.backend.tunnel.vni);
        let links = [&device, &node.interface];
        entries.extend(links.map(|link| Entry::Setting(SettingKind::ReversePath.off(link))));
    }
    entries
}

/// The address of the tunnel device, assigned to `link`; none as long as no lease is held.
fn own_address(local: &NodeInputs, family: Family, link: LinkName) -> Option<Entry> {
    let own = local.own.as_ref()?.endpoint(family)?;
    Some(Entry::Address(tunnel_address(own.subnet, link)))
}

/// The entries for pods that are not routes to peers, such as masquerade rules.
fn pod_rules(local: &NodeInputs, own: &Lease) -> Vec<Entry> {
    let rules = masquerade::rules(&local.policy, &local.config, &local.node.firewalls, own);
    let ends = own.subnets().filter(|_| local.policy.refuse_unused).map(Route::unreachable);
    rules.into_iter().chain(ends.map(Entry::Route)).collect()
}

/// The links that get their strict reverse-path filter back. Through a tunnel device that the config
/// no longer has, peers may still send packets whose answers take the direct path.
fn strict(local: &NodeInputs) -> BTreeSet<LinkName> {
    let (config, families) = (&local.config, local.node.uplinks.iter().map(Uplink::family));
    let vni = config.backend.tunnel.vni;
    let tunnels = families.filter(|_| !config.has_tunnel());
    let tunnels: BTreeSet<_> = tunnels.map(|family| LinkName::tunnel(family, vni)).collect();
    local.strict.difference(&tunnels).cloned().collect()
}

/// Sets the reverse-path filters of these links back to strict, as before `Mixed` loosened them.
pub fn restored(strict: &BTreeSet<LinkName>) -> KernelState {
    strict.iter().map(|link| Entry::Setting(SettingKind::ReversePath.on(link))).collect()
}

/// The entries for `peer`. They depend only on `backends`, `peer` and the fallbacks for that peer.
pub fn plan_peer(backends: &[Backend], peer: &Lease, fallbacks: &Fallbacks) -> PeerPlan {
    if peer.is_vacant() {
        return PeerPlan::default();
    }
    let common = || backends.iter().filter_map(move |it| Some((it, peer.endpoint(it.family)?)));
    let path = |(backend, endpoint): (&Backend, &Endpoint)| {
        let fallback = fallbacks.get(&endpoint.subnet.base()).copied();
        (backend.family, backend.to(endpoint, fallback))
    };
    let mut paths: Vec<_> = common().map(path).collect();
    paths.shrink_to_fit();
    if paths.is_empty() {
        let family = backends.first().map_or(Family::V4, |backend| backend.family);
        paths = vec![(family, Err(Unreachable::NoCommonFamily))];
    }
    let admitting = common().filter_map(|(backend, end)| Some(backend.tunnel.as_ref()?.admit(end)));
    PeerPlan { paths, admission: admitting.flatten().collect() }
}

/// The largest packet that pods may send by every one of `backends`, in bytes.
pub fn pod_mtu(backends: &[Backend]) -> Option<u32> {
    backends.iter().map(|backend| backend.mtu).min()
}

impl NodeInputs {
    /// What this node publishes in its lease.
    pub fn attributes(&self) -> LeaseAttributes {
        let is_on_vxlan = self.config.backend.kind == BackendType::Vxlan;
        let mixed = self.config.mixed && is_on_vxlan && self.was_on_host_gw;
        let vtep = |uplink: &Uplink| {
            let mac = self.macs.get(&uplink.family()).filter(|_| self.config.has_tunnel())?;
            let source = Some(uplink.source).filter(|source| *source != uplink.public_ip);
            Some(Vtep { vni: Some(self.config.backend.tunnel.vni), mac: *mac, source, mixed })
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
        let vni = self.config.backend.tunnel.vni;
        let tunnel_of = |uplink: &Uplink| LinkName::tunnel(uplink.family(), vni);
        Scope {
            tunnels: self.node.uplinks.iter().map(tunnel_of).collect(),
            underlay: Some(self.node.interface.clone()),
            tables: table_names(vni).collect(),
            chains: ChainName::all().collect(),
            extent: Extent::Spare,
            networks: self.config.networks().collect(),
            subnets: self.own.iter().flat_map(Lease::subnets).collect(),
            gateways,
            leaving: self.leaving.iter().map(|it| LinkName::tunnel(*it, vni)).collect(),
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
