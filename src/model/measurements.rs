//! What the daemon counts and measures for Prometheus, in addition to its status.

use std::collections::BTreeMap;

use tweed_http::page::Histogram;

use crate::model::entry::EntryKind;
use crate::model::path::Path;
use crate::model::prefix::Family;

/// The figures of the loop.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Entries that were lost or changed, and restored.
    pub repairs: BTreeMap<EntryKind, u64>,
    /// Changes of the path to a peer: the new path, if there is one, and the reason.
    pub path_changes: BTreeMap<(Option<Path>, PathChangeReason), u64>,
    /// From the first event of a pass of the loop until its operations are applied, in seconds.
    pub event_to_kernel: Histogram,
    /// The times of full reads of the kernel state, in seconds.
    pub dumps: Histogram,
    /// The share of lost probes of each peer, at this moment.
    pub loss: Histogram,
    /// The last round-trip time of each peer, at this moment, in seconds.
    pub round_trip: Histogram,
    pub subnets: Vec<SubnetUsage>,
    pub rollout: RolloutPhase,
}

/// Why the path to a peer has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathChangeReason {
    /// The results of probes.
    Probes,
    /// The lease of the peer.
    Peer,
    /// The config or the host of this node.
    Node,
}

impl PathChangeReason {
    pub const ALL: [Self; 3] = [Self::Probes, Self::Peer, Self::Node];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Probes => "probes",
            Self::Peer => "peer",
            Self::Node => "node",
        }
    }
}

/// How far this node follows a staged change of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutPhase {
    /// The config has no rollout.
    #[default]
    None,
    /// This node is not selected yet.
    Waiting,
    /// This node is selected, and the change is not applied yet.
    Pending,
    Applied,
}

impl RolloutPhase {
    pub const ALL: [Self; 4] = [Self::None, Self::Waiting, Self::Pending, Self::Applied];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Applied => "applied",
        }
    }
}

/// The subnets of the cluster's network in one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetUsage {
    pub family: Family,
    pub used: u128,
    pub free: u128,
}

impl SubnetUsage {
    /// Whether 90 % or more are used.
    pub const fn is_nearly_exhausted(&self) -> bool {
        self.free <= self.used.saturating_add(self.free) / 10
    }
}
