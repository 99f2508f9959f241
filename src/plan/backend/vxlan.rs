//! The tunnel, of the vxlan backend and of `Mixed`, with the same entries as flannel, and when its
//! device is unused.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;

use super::{Nexthops, PathPlan, Unreachable};
use crate::model::config::BackendType;
use crate::model::entry::{
    Element, Entry, Fdb, Link, LinkKind, LinkName, Neighbour, Route, SettingKind, Table, TableName,
    Vxlan,
};
use crate::model::lease::{Endpoint, Lease, Vtep};
use crate::model::node::{Sysctls, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Path;
use crate::model::prefix::{Family, Prefix};
use crate::plan::allow_list::{self, Guarded};

/// The paths to peers through the tunnel of one address family.
pub(super) struct TunnelPaths {
    device: LinkName,
    vni: u32,
    nexthops: Nexthops,
    /// The table that lists the peers that may send into the tunnel.
    guard: Option<Arc<TableName>>,
}

impl TunnelPaths {
    pub(super) fn new(local: &NodeInputs, uplink: &Uplink, nexthops: Nexthops) -> Self {
        let vni = local.config.backend.tunnel.vni;
        let guard = guard(local, uplink).map(|table| table.name);
        Self { device: LinkName::tunnel(uplink.family(), vni), vni, nexthops, guard }
    }

    /// The path to `peer` through the tunnel, whatever its backend.
    pub(super) fn to(&self, peer: &Endpoint) -> Result<PathPlan, Unreachable> {
        let mut entries = self.vtep_entries(peer)?;
        let route = Route::via(peer.subnet, peer.subnet.base(), self.device.clone());
        entries.extend(self.nexthops.program(route.onlink(), Path::Tunnel));
        Ok(PathPlan { path: Path::Tunnel, entries, fallback: None })
    }

    /// The entries that keep the tunnel to `peer` usable in addition to a direct route. Probes use
    /// it, and a peer whose direct path fails returns to the tunnel with one replaced route.
    pub(super) fn standby(&self, peer: &Endpoint) -> Result<Vec<Arc<Entry>>, Unreachable> {
        let mut entries = self.vtep_entries(peer)?;
        let destination = Prefix::host(peer.subnet.base());
        let route = Route::via(destination, peer.subnet.base(), self.device.clone());
        entries.push(Arc::new(Entry::Route(Route { gateway: None, ..route })));
        Ok(entries)
    }

    /// The entries that accept packets of `peer` on any path; empty if there is no allow list.
    pub(super) fn admit(&self, peer: &Endpoint) -> impl Iterator<Item = Arc<Entry>> {
        let addresses = [Some(peer.public_ip), peer.vtep.and_then(|vtep| vtep.source)];
        let element = |table: &Arc<TableName>, address| {
            Arc::new(Entry::Element(Element { table: Arc::clone(table), address }))
        };
        self.guard.iter().flat_map(move |table| {
            addresses.into_iter().flatten().map(move |address| element(table, address))
        })
    }

    /// The forwarding and neighbour entries of the VTEP of `peer`.
    fn vtep_entries(&self, peer: &Endpoint) -> Result<Vec<Arc<Entry>>, Unreachable> {
        let vtep = peer.vtep.ok_or(Unreachable::NoVtep)?;
        if let Some(theirs) = vtep.vni.filter(|vni| *vni != self.vni) {
            return Err(Unreachable::VniDiffers { ours: self.vni, theirs });
        }
        let (link, address) = (self.device.clone(), peer.subnet.base());
        let neighbour = Neighbour { link, address, mac: vtep.mac, permanent: true };
        let link = self.device.clone();
        let fdb = Fdb { link, mac: vtep.mac, destination: peer.public_ip };
        Ok([Entry::Fdb(fdb), Entry::Neighbour(neighbour)].map(Arc::new).into())
    }
}

/// The tunnel device, its settings and address, and the guard of the tunnel; without the address as
/// long as no lease is held.
pub(super) fn entries(local: &NodeInputs, uplink: &Uplink) -> impl Iterator<Item = Entry> {
    let link = device(local, uplink);
    let name = link.name.clone();
    let address = super::own_address(local, uplink.family(), name.clone());
    let settings = settings(local).map(move |kind| Entry::Setting(kind.off(&name)));
    let guard = guard(local, uplink);
    let renewal = guard.as_ref().and_then(allow_list::renewal).map(Entry::Renewal);
    let guard = guard.map(Entry::Table).into_iter().chain(renewal);
    [Entry::Link(link)].into_iter().chain(settings).chain(address).chain(guard)
}

pub(super) fn device(local: &NodeInputs, uplink: &Uplink) -> Link {
    let (family, tunnel) = (uplink.family(), &local.config.backend.tunnel);
    let vxlan = Vxlan {
        vni: tunnel.vni,
        underlay: Some(local.node.interface.clone()),
        local: Some(uplink.source),
        port: tunnel.port,
        learning: tunnel.learning,
        gbp: tunnel.gbp,
        ..Vxlan::default()
    };
    let mac = local.macs.get(&family).copied();
    Link {
        name: LinkName::tunnel(family, tunnel.vni),
        kind: LinkKind::Vxlan(Box::new(vxlan)),
        // The kernel refuses more than the interface can carry.
        mtu: tunnel.mtu.unwrap_or(u32::MAX).min(local.node.mtu).saturating_sub(overhead(family)),
        mac: mac.unwrap_or_else(|| Vtep::derived_mac(uplink.public_ip, tunnel.vni)),
        up: true,
    }
}

/// The settings of the device that are turned off.
fn settings(local: &NodeInputs) -> impl Iterator<Item = SettingKind> {
    // Router advertisements rarely arrive through a tunnel to unicast peers, so the setting is
    // skipped if it cannot be written.
    let accept_ra = local.node.sysctls == Sysctls::Writable;
    let policy = &local.policy;
    let checksums =
        policy.checksums.are_computed(policy.guard, local.node.kernel.spoils_checksums());
    let checksums = checksums.then_some(SettingKind::TxChecksum);
    accept_ra.then_some(SettingKind::AcceptRa).into_iter().chain(checksums)
}

/// The table that protects the tunnel; none if it is not protected.
fn guard(local: &NodeInputs, uplink: &Uplink) -> Option<Table> {
    let network = local.config.networks().find(|network| network.family() == uplink.family())?;
    let (tunnel, node) = (&local.config.backend.tunnel, &local.node);
    let underlays = [slice::from_ref(&node.interface), &node.on_segment].concat();
    let underlays = underlays.as_slice();
    let (device, ends) = (&LinkName::tunnel(uplink.family(), tunnel.vni), &ends(local, uplink));
    let probe_port = local.config.probing().map(|probe| probe.port);
    let looks_back_early = node.kernel.looks_back_before_routing();
    let guarded =
        Guarded { tunnel, device, underlays, probe_port, ends, network, looks_back_early };
    Some(allow_list::table(local.policy.guard?, guarded))
}

/// The addresses that peers send to: the public IP and all addresses of the interface, since a
/// cloud may translate the public IP to any of them. While the public IP changes, the lease still
/// has the old one.
fn ends(local: &NodeInputs, uplink: &Uplink) -> Vec<IpAddr> {
    let published = local.own.as_ref().and_then(|own| own.endpoint(uplink.family()));
    let published = published.map(|endpoint| endpoint.public_ip);
    let all = [uplink.public_ip, uplink.source, uplink.address].into_iter().chain(published);
    all.chain(uplink.others.iter().copied()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The tunnel devices to remove: this node no longer sends through them, and none of `peers` may
/// send to them. `peers` has to be complete.
pub fn retired<'a>(local: &NodeInputs, mut peers: impl Iterator<Item = &'a Lease>) -> Vec<Link> {
    let may_send = |peer: &Lease| peer.endpoints.iter().any(may_tunnel);
    if local.config.has_tunnel() || peers.any(may_send) {
        return Vec::new();
    }
    local.node.uplinks.iter().map(|uplink| device(local, uplink)).collect()
}

/// Whether the node at `peer` may send to us through the tunnel. With `Mixed`, a host-gw node has a
/// VTEP, and a route through the tunnel to the first address of our subnet: for its probes, and for
/// its answers on connections of our host that began in the tunnel.
const fn may_tunnel(peer: &Endpoint) -> bool {
    match peer.backend.supported() {
        Some(BackendType::HostGw) => peer.vtep.is_some(),
        Some(BackendType::Vxlan) => true,
        None => false,
    }
}

/// The bytes that the tunnel adds to a packet: Ethernet, VXLAN, UDP and the outer IP header.
pub const fn overhead(family: Family) -> u32 {
    match family {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}
