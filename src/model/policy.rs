//! What the operator's flags ask for, next to routes: masquerading, forwarding, and who may use the tunnel.

use serde::{Deserialize, Serialize};

use super::entry::Ports;

/// What the operator's flags ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// None if pods are known by their own addresses everywhere.
    pub masquerade: Option<Masquerade>,
    /// How packets that others mark for masquerading get a fixed source on their way to pods of
    /// other nodes, with `masquerade` or without.
    #[serde(default)]
    pub marked: Masquerade,
    #[serde(default)]
    pub forward: Forward,
    #[serde(default)]
    pub firewall: Preference,
    /// Whether who sends to an address of our subnet that no pod has is told so. Without the bridge
    /// that has the subnet, such packets would go back to where they came from, in circles.
    pub refuse_unused: bool,
    /// None if the tunnel, if there is one, is not guarded.
    #[serde(default)]
    pub guard: Option<Guard>,
    #[serde(default)]
    pub checksums: Checksums,
}

/// How what leaves the pods' network is given an address of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Masquerade {
    pub ports: Ports,
    /// Whoever marks a packet so masquerades it by rules of its own.
    pub mark: u32,
}

impl Default for Masquerade {
    /// As flannel and kube-proxy do it.
    fn default() -> Self {
        Self { ports: Ports::FullyRandom, mark: 1 << 14 }
    }
}

/// What becomes of packets that this node forwards from or to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    Accept,
    /// That is for others to say.
    #[default]
    Leave,
}

/// What the operator's flags say of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preference {
    /// Whatever suits the host.
    #[default]
    Any,
    Iptables,
}

/// What is done for the tunnel beside routing into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    pub connections: Connections,
    pub strangers: Strangers,
    pub pods: Pods,
}

impl Default for Guard {
    fn default() -> Self {
        Self { connections: Connections::Untracked, strangers: Strangers::Drop, pods: Pods::Drop }
    }
}

impl Guard {
    pub fn does_something(&self) -> bool {
        let Self { connections, strangers, pods } = self;
        (*connections, *strangers, *pods) != (Connections::Tracked, Strangers::LetIn, Pods::LetOut)
    }
}

/// Whether packets between the ends of the tunnel are connections to be kept track of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// There is a new one for each flow of pods, and nobody asks for them.
    Untracked,
    Tracked,
}

/// What becomes of packets of the tunnel that come from elsewhere than from believed peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strangers {
    Drop,
    /// Whoever reaches this node can send to its pods.
    LetIn,
}

/// What becomes of packets of the tunnel that pods send to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pods {
    /// Masqueraded, they would come from a peer.
    Drop,
    LetOut,
}

/// What becomes of the checksums of packets in the tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checksums {
    /// The tunnel's device computes them only where they would be spoilt behind it.
    #[default]
    WhereNeeded,
    /// It computes them: whoever sits behind it cannot.
    Computed,
    /// As somebody has set the device.
    Left,
}

impl Checksums {
    /// Whether the tunnel's device is to compute them. A kernel can spoil them only if it
    /// translates outer packets; those that are not tracked, it does not.
    pub fn are_computed(self, guard: Option<Guard>, kernel_spoils_them: bool) -> bool {
        let untracked = Some(Connections::Untracked);
        match self {
            Self::WhereNeeded => {
                kernel_spoils_them && guard.map(|guard| guard.connections) != untracked
            }
            Self::Computed => true,
            Self::Left => false,
        }
    }
}
