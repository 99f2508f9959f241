//! Why a peer on our link is reached through the tunnel for now.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::config::{Kind, NetworkConfig};
use crate::lease::{BackendType, Endpoint};
use crate::probe::Cause;

/// By the first address of the peer's subnet.
pub type Detours = BTreeMap<IpAddr, Detour>;

/// What speaks against the direct path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detour {
    /// Its probes have not been answered yet, and the tunnel is in use.
    Unproven,
    Failed(Cause),
    /// It has never answered a probe: stock flannel may drop what arrives directly.
    Unanswered,
}

/// Whether `peer` is reached directly only once it has answered a probe: its lease says vxlan, and
/// a flanneld that filters strictly expects its packets from the tunnel.
pub fn must_answer(config: &NetworkConfig, peer: &Endpoint) -> bool {
    let is_direct = config.backend.kind == Kind::HostGw && config.probing().is_some();
    is_direct && peer.backend == BackendType::Vxlan
}

impl fmt::Display for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unproven => {
                f.write_str("its direct path is not proven: answers to direct probes are awaited")
            }
            Self::Failed(cause) => write!(f, "its direct path fails: {cause}"),
            Self::Unanswered => f.write_str(
                "it has never answered a probe: it may run flannel, which may drop direct packets",
            ),
        }
    }
}
