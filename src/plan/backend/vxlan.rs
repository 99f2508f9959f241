//! The vxlan backend: a VXLAN tunnel to every peer, with the same entries as flannel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::{HostGwNetwork, Network, Nexthops, PathPlan, Unreachable};
use crate::mac::MacAddr;
use crate::model::config::BackendType;
use crate::model::config::Tunnel;
use crate::model::entry::{
    Element, Entry, Fdb, KernelState, Link, LinkKind, LinkName, Neighbour, Route, SettingKind,
    TableName, Vxlan,
};
use crate::model::lease::{Endpoint, Vtep};
use crate::model::node::{Sysctls, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Path};
use crate::model::prefix::{Family, Prefix};
use crate::plan::allow_list::{self, Guarded};

pub(super) struct VxlanNetwork {
    pub(super) tunnel: Tunnel,
    pub(super) device: LinkName,
    pub(super) underlay: LinkName,
    uplink: Uplink,
    mac: MacAddr,
    mtu: u32,
    subnet: Option<Prefix>,
    nexthops: Nexthops,
    direct: HostGwNetwork,
    guard: Option<GuardTable>,
    checksums_computed: bool,
    sysctls: Sysctls,
}

/// The table that protects the tunnel, and the timer without which it stops dropping packets.
struct GuardTable {
    name: Arc<TableName>,
    entries: Vec<Arc<Entry>>,
}

impl VxlanNetwork {
    pub(super) fn new(local: &NodeInputs, uplink: &Uplink) -> Self {
        let tunnel = local.config.backend.tunnel.clone();
        let family = uplink.family();
        let outer = tunnel.mtu.unwrap_or(local.node.mtu);
        let mac = local.macs.get(&family).copied();
        Self {
            device: LinkName::tunnel(family, tunnel.vni),
            underlay: local.node.interface.clone(),
            mac: mac.unwrap_or_else(|| Vtep::derived_mac(uplink.public_ip, tunnel.vni)),
            mtu: outer.saturating_sub(overhead(family)),
            subnet: local.own.as_ref().and_then(|own| own.endpoint(family)).map(|e| e.subnet),
            nexthops: Nexthops::new(local, family),
            direct: HostGwNetwork::new(local, uplink),
            guard: GuardTable::new(local, uplink),
            checksums_computed: local
                .policy
                .checksums
                .are_computed(local.policy.guard, local.node.spoils_checksums),
            sysctls: local.node.sysctls,
            uplink: uplink.clone(),
            tunnel,
        }
    }

    /// The address of the tunnel device, assigned to `link`.
    pub(super) fn address_on(&self, link: LinkName) -> Option<Arc<Entry>> {
        Some(Arc::new(Entry::Address(super::tunnel_address(self.subnet?, link))))
    }

    /// The path to `peer` through the tunnel, whatever its backend.
    pub(super) fn tunnelled(&self, peer: &Endpoint) -> Result<PathPlan, Unreachable> {
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

    /// The forwarding and neighbour entries of the VTEP of `peer`.
    fn vtep_entries(&self, peer: &Endpoint) -> Result<Vec<Arc<Entry>>, Unreachable> {
        let vtep = peer.vtep.ok_or(Unreachable::NoVtep)?;
        if let Some(theirs) = vtep.vni.filter(|vni| *vni != self.tunnel.vni) {
            return Err(Unreachable::VniDiffers { ours: self.tunnel.vni, theirs });
        }
        let (link, address) = (self.device.clone(), peer.subnet.base());
        let neighbour = Neighbour { link, address, mac: vtep.mac, permanent: true };
        let link = self.device.clone();
        let fdb = Fdb { link, mac: vtep.mac, destination: peer.public_ip };
        Ok([Entry::Fdb(fdb), Entry::Neighbour(neighbour)].map(Arc::new).into())
    }

    /// The path to a `vxlan` peer: direct only if `DirectRouting` is on and the peer is on the
    /// link.
    fn preferred(&self, peer: &Endpoint) -> Result<PathPlan, Unreachable> {
        if self.tunnel.direct_routing {
            self.direct.direct(peer).or_else(|_| self.tunnelled(peer))
        } else {
            self.tunnelled(peer)
        }
    }

    fn link(&self) -> Link {
        let device = Vxlan {
            vni: self.tunnel.vni,
            underlay: Some(self.underlay.clone()),
            local: Some(self.uplink.source),
            port: self.tunnel.port,
            learning: self.tunnel.learning,
            gbp: self.tunnel.gbp,
            group: None,
            l2miss: false,
        };
        let kind = LinkKind::Vxlan(Box::new(device));
        Link { name: self.device.clone(), kind, mtu: self.mtu, mac: self.mac, up: true }
    }
}

impl Network for VxlanNetwork {
    fn family(&self) -> Family {
        self.uplink.family()
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    fn local(&self) -> KernelState {
        let link = self.device.clone();
        // Router advertisements rarely arrive through a tunnel to unicast peers, so the setting is
        // skipped if it cannot be written.
        let accept_ra = (self.sysctls == Sysctls::Writable).then_some(SettingKind::AcceptRa);
        let checksum = self.checksums_computed.then_some(SettingKind::TxChecksum);
        let settings = accept_ra.into_iter().chain(checksum);
        std::iter::once(Entry::Link(self.link()))
            .chain(settings.map(|kind| Entry::Setting(kind.off(&link))))
            .map(Arc::new)
            .chain(self.address_on(link.clone()))
            .chain(self.guard.iter().flat_map(|guard| guard.entries.iter().cloned()))
            .collect()
    }

    fn admit(&self, peer: &Endpoint) -> Vec<Arc<Entry>> {
        let Some(guard) = &self.guard else { return Vec::new() };
        let admitted = [Some(peer.public_ip), peer.vtep.and_then(|vtep| vtep.source)];
        let element = |address| Entry::Element(Element { table: Arc::clone(&guard.name), address });
        admitted.into_iter().flatten().map(|address| Arc::new(element(address))).collect()
    }

    fn towards(&self, peer: &Endpoint, _: Option<Fallback>) -> Result<PathPlan, Unreachable> {
        match super::supported(peer)? {
            BackendType::Vxlan => self.preferred(peer),
            BackendType::HostGw => {
                Err(Unreachable::BackendDiffers { ours: "vxlan", theirs: "host-gw" })
            }
        }
    }
}

impl GuardTable {
    fn new(local: &NodeInputs, uplink: &Uplink) -> Option<Self> {
        let network =
            local.config.networks().find(|network| network.family() == uplink.family())?;
        let (tunnel, underlay) = (&local.config.backend.tunnel, &local.node.interface);
        let (device, ends) = (&LinkName::tunnel(uplink.family(), tunnel.vni), &ends(local, uplink));
        let probe_port = local.config.probing().map(|probe| probe.port);
        let guarded = Guarded { tunnel, device, underlay, probe_port, ends, network };
        let table = allow_list::table(local.policy.guard?, guarded);
        let (name, renewal) =
            (Arc::clone(&table.name), allow_list::renewal(&table).map(Entry::Renewal));
        let entries = [Entry::Table(table)].into_iter().chain(renewal).map(Arc::new).collect();
        Some(Self { name, entries })
    }
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

/// The bytes that the tunnel adds to a packet: Ethernet, VXLAN, UDP and the outer IP header.
pub const fn overhead(family: Family) -> u32 {
    match family {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}
