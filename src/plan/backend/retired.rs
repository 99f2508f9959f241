//! Tunnel devices that neither this node nor any peer needs any more.

use super::vxlan;
use crate::model::config::BackendType;
use crate::model::entry::Link;
use crate::model::lease::{Endpoint, Lease};
use crate::model::node_inputs::NodeInputs;

/// The tunnel devices to remove: this node no longer sends through them, and none of `peers` may
/// send to them. `peers` has to be complete.
pub fn retired<'a>(local: &NodeInputs, mut peers: impl Iterator<Item = &'a Lease>) -> Vec<Link> {
    let may_send = |peer: &Lease| peer.endpoints.iter().any(|end| may_tunnel(local, end));
    if local.config.has_tunnel() || peers.any(may_send) {
        return Vec::new();
    }
    local.node.uplinks.iter().map(|uplink| vxlan::device(local, uplink)).collect()
}

/// Whether the node at `peer` may send to us through the tunnel. A host-gw node does not if we are
/// on its link, and cannot without a VTEP.
fn may_tunnel(local: &NodeInputs, peer: &Endpoint) -> bool {
    peer.backend.supported().is_some_and(|backend| match backend {
        BackendType::HostGw => peer.vtep.is_some() && !local.node.is_adjacent(peer.public_ip),
        BackendType::Vxlan => true,
    })
}
