//! The operator's settings in addition to routes: masquerading, forwarding, tunnel protection.

use serde::{Deserialize, Serialize};

use super::entry::Ports;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// None if pods are routable everywhere by their own addresses.
    pub masquerade: Option<Masquerade>,
    /// How packets that other programs mark for masquerading get a fixed source on the way to pods
    /// of other nodes. Applies with or without `masquerade`.
    #[serde(default)]
    pub marked: Masquerade,
    #[serde(default)]
    pub forward: Forward,
    #[serde(default)]
    pub firewall: Preference,
    /// Whether packets to unused addresses of this node's subnet are answered with unreachable.
    /// Without the bridge that has the subnet, such packets would loop.
    pub refuse_unused: bool,
    /// None if the tunnel is not protected.
    pub guard: Option<Guard>,
    #[serde(default)]
    pub checksums: Checksums,
}

/// How packets that leave the pod network are masqueraded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    pub ports: Ports,
    /// The mark of packets that another program masquerades itself.
    pub mark: u32,
}

impl Default for Masquerade {
    /// The values of flannel and kube-proxy.
    fn default() -> Self {
        Self { ports: Ports::FullyRandom, mark: 1 << 14 }
    }
}

/// What to do with packets that this node forwards from or to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    Accept,
    /// Leave the decision to other programs.
    #[default]
    Leave,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preference {
    /// The one that suits the host.
    #[default]
    Any,
    Iptables,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    #[serde(rename = "connections")]
    pub conntrack: Conntrack,
    #[serde(rename = "strangers")]
    pub unknown_sources: UnknownSources,
    pub pods: Pods,
}

impl Guard {
    pub fn does_something(&self) -> bool {
        self.conntrack != Conntrack::Tracked
            || self.unknown_sources != UnknownSources::Accept
            || self.pods != Pods::Accept
    }
}

/// Whether conntrack tracks the outer packets of the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conntrack {
    /// Tracking would add one connection per flow of pods, and nothing uses these connections.
    #[default]
    Untracked,
    Tracked,
}

/// What to do with tunnel packets that do not come from accepted peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownSources {
    #[default]
    Drop,
    /// Any host that reaches this node can send to its pods.
    #[serde(rename = "let-in")]
    Accept,
}

/// What to do with tunnel packets that pods send to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pods {
    /// Otherwise masquerading would make them look like packets of a peer.
    #[default]
    Drop,
    #[serde(rename = "let-out")]
    Accept,
}

/// How the checksums of packets in the tunnel are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checksums {
    /// In software only where the kernel would corrupt them otherwise.
    #[default]
    WhereNeeded,
    /// Always in software, for networks whose hardware cannot compute them.
    Computed,
    /// The setting of the device is not changed.
    Left,
}

impl Checksums {
    /// Whether the tunnel device has to compute checksums in software. The kernel can corrupt them
    /// only if it translates (NAT) the outer packets, which it does not do if they are untracked.
    pub fn are_computed(self, guard: Option<Guard>, kernel_spoils_them: bool) -> bool {
        let untracked = Some(Conntrack::Untracked);
        match self {
            Self::WhereNeeded => {
                kernel_spoils_them && guard.map(|guard| guard.conntrack) != untracked
            }
            Self::Computed => true,
            Self::Left => false,
        }
    }
}
