//! Why a peer on our link is reached through the tunnel for now.

use crate::model::config::{Kind, NetworkConfig};
use crate::model::lease::{BackendType, Endpoint};

/// Whether `peer` is reached directly only once it has answered a probe: its lease says vxlan, and
/// a flanneld that filters strictly expects its packets from the tunnel.
pub fn must_answer(config: &NetworkConfig, peer: &Endpoint) -> bool {
    let is_direct = config.backend.kind == Kind::HostGw && config.probing().is_some();
    is_direct && peer.backend == BackendType::Vxlan
}
