//! The host-gw backend: direct routes to peers on the same link.

use std::sync::Arc;

use super::{Network, Nexthops, PathPlan, Unreachable, tunnel_address};
use crate::model::config::BackendType;
use crate::model::entry::{Entry, KernelState, LinkName, Route};
use crate::model::lease::Endpoint;
use crate::model::node::{Node, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::{Fallback, Path};
use crate::model::prefix::Family;

pub(super) struct HostGwNetwork {
    node: Node,
    family: Family,
    nexthops: Nexthops,
    /// The address of the tunnel device, if the device still exists. On the loopback, the address
    /// stays when the device is removed.
    address: Option<Arc<Entry>>,
}

impl HostGwNetwork {
    pub(super) fn new(local: &NodeInputs, uplink: &Uplink) -> Self {
        let family = uplink.family();
        let subnet = local.own.as_ref().and_then(|own| own.endpoint(family)).map(|e| e.subnet);
        let subnet = subnet.filter(|_| local.leaving.contains(&family));
        let address = subnet.map(|subnet| tunnel_address(subnet, LinkName::loopback()));
        Self {
            node: local.node.clone(),
            family,
            nexthops: Nexthops::new(local, family),
            address: address.map(|address| Arc::new(Entry::Address(address))),
        }
    }

    /// The direct path to `peer`, whatever its backend.
    pub(super) fn direct(&self, peer: &Endpoint) -> Result<PathPlan, Unreachable> {
        let link = self.node.interface.clone();
        if !self.node.is_adjacent(peer.public_ip) {
            return Err(Unreachable::NotOnLink { gateway: peer.public_ip, link });
        }
        let route = Route::via(peer.subnet, peer.public_ip, link);
        let entries = self.nexthops.program(route, Path::Direct);
        Ok(PathPlan { path: Path::Direct, entries, fallback: None })
    }
}

impl Network for HostGwNetwork {
    fn family(&self) -> Family {
        self.family
    }

    fn mtu(&self) -> u32 {
        self.node.mtu
    }

    fn local(&self) -> KernelState {
        self.address.iter().cloned().collect()
    }

    fn towards(&self, peer: &Endpoint, _: Option<Fallback>) -> Result<PathPlan, Unreachable> {
        match super::supported(peer)? {
            BackendType::HostGw => self.direct(peer),
            BackendType::Vxlan => {
                Err(Unreachable::BackendDiffers { ours: "host-gw", theirs: "vxlan" })
            }
        }
    }
}
