//! The paths to a peer, the results of probing them, and the reasons for a fallback to the tunnel.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How packets are sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Not encapsulated, with the peer's public IP as the next hop.
    Direct,
    /// Encapsulated in VXLAN.
    Tunnel,
}

impl Path {
    /// The name in status output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
        }
    }
}

/// The result of probing the direct path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeVerdict {
    /// Not known yet.
    #[default]
    Pending,
    /// The peer has answered on no path: it runs flannel, or an older version of tweed. If its
    /// lease names vxlan, it is reached through the tunnel; otherwise the direct path is used.
    Silent,
    Good,
    Bad(Cause),
}

/// Why the direct path to a peer is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// Its probes have not been answered yet, and the tunnel is in use.
    Unproven,
    Failed(Cause),
    /// It has never answered a probe: stock flannel may drop what arrives directly.
    Unanswered,
}

/// Keyed by the first address of the peer's subnet.
pub type Fallbacks = BTreeMap<IpAddr, Fallback>;

/// How a direct path fails while the tunnel to the same peer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    NoAnswer,
    /// Small packets are answered, and those of the size of the largest pod packets are not.
    LargeLost,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unproven => f.write_str(
                "its direct path is not verified yet: waiting for answers to direct probes",
            ),
            Self::Failed(cause) => write!(f, "its direct path fails: {cause}"),
            Self::Unanswered => f.write_str(
                "it has never answered a probe: it may run flannel, which may drop direct packets",
            ),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "probes through the tunnel are answered, direct ones are not",
            Self::LargeLost => "small probes are answered, large ones are not",
        })
    }
}
