//! The paths to a peer, what probes found about them, and why the direct one is not taken.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How packets to a peer travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// As they are, to the peer's public IP as the next hop.
    Direct,
    /// In VXLAN packets.
    Tunnel,
}

impl Path {
    /// The word in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Tunnel => "tunnel",
        }
    }
}

/// What the probes say of the direct path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeVerdict {
    /// Not known yet.
    #[default]
    Pending,
    /// The peer has not answered by any way: it is flannel, or an older version. If its lease says
    /// vxlan, it is reached through the tunnel; otherwise nothing speaks against the direct path.
    Silent,
    Good,
    Bad(Cause),
}

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

/// By the first address of the peer's subnet.
pub type Detours = BTreeMap<IpAddr, Detour>;

/// What is wrong with a direct path, while the tunnel to the same peer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    NoAnswer,
    /// Small packets are answered, those as large as pods may send are not.
    LargeLost,
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

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "probes through the tunnel are answered, direct ones are not",
            Self::LargeLost => "small probes are answered, large ones are not",
        })
    }
}
