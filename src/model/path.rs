//! The paths to a peer, the results of probing them, the reasons for a fallback to the tunnel, and
//! whether the peer is reachable.

use std::collections::BTreeMap;
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
    pub const ALL: [Self; 2] = [Self::Direct, Self::Tunnel];

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
    /// The peer has answered on no path: it runs flannel, or its daemon is down. If its lease names
    /// vxlan, or if its direct path failed before this daemon started, it is reached through the
    /// tunnel; otherwise the direct path is used.
    Silent,
    Good,
    Bad(Cause),
}

/// Why the direct path to a peer is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    #[error("its direct path is not verified yet: waiting for answers to direct probes")]
    Unproven,
    #[error("its direct path fails: {0}")]
    Failed(Cause),
    #[error("it has never answered a probe: it may run flannel, which may drop direct packets")]
    Unanswered,
}

/// Keyed by the first address of the peer's subnet.
pub type Fallbacks = BTreeMap<IpAddr, Fallback>;

/// How a direct path fails while the tunnel to the same peer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    #[error("probes through the tunnel are answered, direct ones are not")]
    NoAnswer,
    /// Large probes have the size of the largest pod packets.
    #[error("small probes are answered, large ones are not")]
    LargeLost,
}

/// Whether a peer answers probes by the path in use. Whether the kernel holds that path is a fact of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum PeerReachability {
    /// The last probe was answered.
    Reachable,
    Degraded {
        cause: DegradedCause,
    },
    Unreachable {
        cause: UnreachableCause,
        /// How long ago the first of the unanswered probes was sent, in milliseconds; none in the
        /// node's report, which has the time instead.
        #[serde(skip_serializing_if = "Option::is_none")]
        since_ms: Option<u64>,
    },
    Unknown {
        cause: UnknownCause,
    },
}

/// A [`PeerReachability`] without its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReachabilityState {
    Reachable,
    Degraded,
    Unreachable,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum DegradedCause {
    /// Large probes are lost.
    #[error("5 % or more of the last 100 probes were lost")]
    Loss,
    #[error("small probes are answered, large ones are not: check the MTU of the underlay")]
    LargeLost,
    #[error("its direct path fails, so the tunnel is used")]
    DirectFails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum UnreachableCause {
    /// The tunnel is in use.
    #[error(
        "direct probes are answered, those through the tunnel are not: check whether a firewall \
         drops the UDP port of the tunnel"
    )]
    TunnelSilent,
    /// The direct path is in use.
    #[error(
        "probes through the tunnel are answered, direct ones are not: check whether the network \
         drops packets with addresses of pods"
    )]
    DirectSilent,
    #[error(
        "its packets arrive here, and probes to it are not answered in time: packets in one \
         direction are lost or late"
    )]
    OneDirection,
    #[error("no probe and no ping is answered: its host is down, or a firewall drops the packets")]
    PeerSilent,
    /// No peer of this family answers, so the cause is probably on this node.
    #[error("no peer answers: check the link and the firewall of this node")]
    AllSilent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownCause {
    #[error("paths are not probed")]
    ProbesOff,
    #[error("not enough probes have been sent yet")]
    TooEarly,
    #[error("it has never answered a probe: it may run flannel, or be unreachable")]
    NeverAnswered,
    #[error(
        "its host answers pings by the same path, and no probe is answered: its daemon is down, or \
         a firewall drops the probes"
    )]
    DaemonSilent,
}

impl PeerReachability {
    pub const fn state(&self) -> ReachabilityState {
        match self {
            Self::Reachable => ReachabilityState::Reachable,
            Self::Degraded { .. } => ReachabilityState::Degraded,
            Self::Unreachable { .. } => ReachabilityState::Unreachable,
            Self::Unknown { .. } => ReachabilityState::Unknown,
        }
    }

    /// The same without `since_ms`, which differs at each moment.
    #[must_use]
    pub const fn without_time(self) -> Self {
        match self {
            Self::Unreachable { cause, .. } => Self::Unreachable { cause, since_ms: None },
            Self::Reachable | Self::Degraded { .. } | Self::Unknown { .. } => self,
        }
    }

    /// Subjects by reachability, regardless of times, in the order of their first.
    pub fn groups<T>(subjects: impl IntoIterator<Item = (Self, T)>) -> Vec<(Self, Vec<T>)> {
        // There are only a few states and causes, but possibly thousands of subjects.
        let mut groups: Vec<(Self, Vec<T>)> = Vec::new();
        for (reachability, subject) in subjects {
            let reachability = reachability.without_time();
            match groups.iter_mut().find(|(group, _)| *group == reachability) {
                Some((_, subjects)) => subjects.push(subject),
                None => groups.push((reachability, vec![subject])),
            }
        }
        groups
    }

    /// How long the peer has been unreachable, in milliseconds.
    pub const fn since_ms(&self) -> Option<u64> {
        match self {
            Self::Unreachable { since_ms, .. } => *since_ms,
            Self::Reachable | Self::Degraded { .. } | Self::Unknown { .. } => None,
        }
    }

    /// Why the peer is not reachable, or why that is not known.
    pub fn cause(&self) -> Option<String> {
        match self {
            Self::Reachable => None,
            Self::Degraded { cause } => Some(cause.to_string()),
            Self::Unreachable { cause, .. } => Some(cause.to_string()),
            Self::Unknown { cause } => Some(cause.to_string()),
        }
    }
}

impl ReachabilityState {
    /// The name in status output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reachable => "reachable",
            Self::Degraded => "degraded",
            Self::Unreachable => "unreachable",
            Self::Unknown => "unknown",
        }
    }

    /// Of two, the one that an operator has to know first.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        let rank = |state| match state {
            Self::Reachable => 0,
            Self::Unknown => 1,
            Self::Degraded => 2,
            Self::Unreachable => 3,
        };
        if rank(self) < rank(other) { other } else { self }
    }

    /// Whether the operator should look at the peer.
    pub const fn is_failing(self) -> bool {
        match self {
            Self::Degraded | Self::Unreachable => true,
            Self::Reachable | Self::Unknown => false,
        }
    }
}
