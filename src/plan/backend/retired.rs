//! Tunnel devices that neither this node nor any peer needs any more.

use super::vxlan;
use crate::model::config::BackendType;
use crate::model::entry::Link;
use crate::model::lease::{Endpoint, Lease};
use crate::model::node_inputs::NodeInputs;

/// The tunnel devices to remove: this node no longer sends through them, and none of `peers` may
/// send to them. `peers` has to be complete.
pub fn retired<'a>(local: &NodeInputs, mut peers: impl Iterator<Item = &'a Lease>) -> Vec<Link> {
    let may_send = |peer: &Lease| peer.endpoints.iter().any(may_tunnel);
    if local.config.has_tunnel() || peers.any(may_send) {
        return Vec::new();
    }
    local.node.uplinks.iter().map(|uplink| vxlan::device(local, uplink)).collect()
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
