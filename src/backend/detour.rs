//! Why a peer on our link is reached through the tunnel for now.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

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
}

impl fmt::Display for Detour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unproven => {
                f.write_str("its direct path is not proven: answers to direct probes are awaited")
            }
            Self::Failed(cause) => write!(f, "its direct path fails: {cause}"),
        }
    }
}
