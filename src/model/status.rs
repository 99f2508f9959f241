//! What is known, for health, metrics and `tweedctl`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::lease::{Lease, LeaseId};
use crate::model::path::{Path, ProbeVerdict};
use crate::model::policy::Guard;
use crate::model::prefix::{Family, Prefix};

/// What the loop has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    pub created: u64,
    pub replaced: u64,
    pub removed: u64,
    /// Times that the kernel's state was read whole.
    pub dumps: u64,
    /// Times that messages of the kernel were lost.
    pub overruns: u64,
    /// Edits of the network config, the first reading included.
    #[serde(default)]
    pub edits: u64,
    /// Times that a peer on our link went into the tunnel because its direct path failed.
    #[serde(default)]
    pub fallbacks: u64,
    /// Times that a tunnel device got another MAC address: its old one may be another node's.
    #[serde(default)]
    pub mac_changes: u64,
}

/// The daemon at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub ready: bool,
    /// Why it is not ready, or what else an operator should know.
    pub reasons: Vec<String>,
    pub store: StoreState,
    pub backend: Option<String>,
    pub mixed: bool,
    #[serde(default)]
    pub config: ConfigStatus,
    pub interface: Option<String>,
    pub public_ips: Vec<IpAddr>,
    pub subnets: Vec<Prefix>,
    /// The largest packet of pods, in bytes.
    pub mtu: Option<u32>,
    pub peers: PeerCounts,
    /// Leases that conflict with another or with this node, by what they conflict about: see
    /// [`crate::model::lease::Rejected::conflict`].
    #[serde(default)]
    pub conflicts: BTreeMap<String, usize>,
    /// Which firewall has rules of ours, and why this one; none if none does.
    #[serde(default)]
    pub firewall: Option<FirewallStatus>,
    /// By which this node masquerades, and lets packets of pods through.
    #[serde(default)]
    pub tables: Vec<TableStatus>,
    /// None where there is no tunnel, or nothing that guards it is asked for.
    #[serde(default)]
    pub guard: Option<GuardStatus>,
    /// The tunnel's devices that compute checksums instead of leaving them to what is behind them.
    #[serde(default)]
    pub computing: Vec<ChecksumStatus>,
    /// Entries that the kernel should hold for us.
    pub desired: usize,
    /// Operations that the kernel refused, and why.
    pub refused: Vec<String>,
    /// None while paths are not to be probed.
    #[serde(default)]
    pub probes: Option<ProbeStatus>,
    pub statistics: Statistics,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallStatus {
    /// `nftables` or `iptables`.
    pub name: String,
    pub reason: String,
}

/// A table of nftables, or a chain of iptables, that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// As `nft list table` or `iptables -S` takes it.
    pub name: String,
    /// Whether the kernel holds it as it should be.
    pub programmed: bool,
}

/// A device that is to compute the checksums of what it sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChecksumStatus {
    pub link: String,
    /// Whether it does.
    pub programmed: bool,
}

/// What guards the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    pub asked: Guard,
    /// Whether the kernel does it.
    pub in_force: bool,
    pub tables: Vec<TableStatus>,
    /// Addresses that may send through the tunnel.
    pub admitted: usize,
    /// Why the kernel would not.
    pub refused: Option<String>,
}

/// The newest config of the store, and what of it is in force here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// The store's own count; 0 without a config.
    pub revision: u64,
    /// Where this node stands in the rollout, if there is one.
    pub rollout: Option<String>,
    /// What waits, and for what.
    pub pending: Option<String>,
    /// Why it cannot be used.
    pub invalid: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCounts {
    pub direct: usize,
    pub tunnel: usize,
    pub left_out: usize,
    pub set_aside: usize,
    /// No longer named by the store, and still routed.
    pub missing: usize,
}

impl PeerCounts {
    pub const fn total(&self) -> usize {
        // The missing ones are counted by their paths, too.
        self.direct + self.tunnel + self.left_out + self.set_aside
    }
}

/// One peer, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub lease: LeaseId,
    pub family: Option<Family>,
    pub subnet: Option<Prefix>,
    pub public_ip: Option<IpAddr>,
    pub backend: String,
    /// None if it is left out or set aside; `reason` says why.
    pub path: Option<Path>,
    /// Also why the path is not the direct one.
    pub reason: Option<String>,
    /// Whether the kernel holds everything that the path needs.
    pub programmed: bool,
    /// What its probes found; none while it is not probed.
    #[serde(default)]
    pub probes: Option<PathStatus>,
}

/// The probes of all peers at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// `on`, `off` or `starting`.
    pub state: String,
    pub reason: Option<String>,
    /// Direct paths, by their verdict.
    pub good: usize,
    pub bad: usize,
    pub silent: usize,
    pub pending: usize,
    #[serde(flatten)]
    pub counts: Counts,
}

/// What the probes of one peer found, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Of the direct path.
    pub verdict: ProbeVerdict,
    /// None if it is not on our link.
    pub direct: Option<WayStatus>,
    /// None if it has no tunnel.
    pub tunnel: Option<WayStatus>,
}

/// Large probes by one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayStatus {
    /// How many of the last ones are counted; none before the peer has probed paths itself.
    pub asked: u32,
    /// How many of them were not answered in time.
    pub lost: u32,
    /// Of the last one that was answered.
    pub round_trip_us: Option<u64>,
    /// Since the last answer.
    pub heard_ms_ago: Option<u64>,
}

/// One record of the store; without endpoints if no lease could ever be read from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    #[serde(flatten)]
    pub lease: Lease,
    pub own: bool,
    /// Has no term: stays until somebody deletes it.
    pub reservation: bool,
    /// Why it is set aside, or what is wrong with its record.
    pub reason: Option<String>,
}

/// Whether the daemon does its work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub ready: bool,
    pub reasons: Vec<String>,
}

/// Whether a store can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    /// Not asked yet.
    #[default]
    Unknown,
    Reachable,
    /// Reachable, but it holds what is too large for a lease: what that is and what to do.
    Holds(String),
    /// Reachable, but it refuses what nothing depends on: what that is and why.
    Refuses(String),
    /// Reachable, but it has no subnet for this node, and why.
    Lacks(String),
    /// It cannot be asked, and why.
    Waiting(String),
}

impl StoreState {
    /// Whether the store can be asked: only then may anything be removed.
    pub const fn is_reachable(&self) -> bool {
        match self {
            Self::Reachable | Self::Holds(_) | Self::Refuses(_) | Self::Lacks(_) => true,
            Self::Unknown | Self::Waiting(_) => false,
        }
    }
}

/// What came in and went out since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub asked: u64,
    pub answered: u64,
    /// Questions of peers that we answered.
    pub served: u64,
    /// Packets that no accepted peer can have sent, that were received before, that answer
    /// nothing, and questions beyond the limit of their peer.
    pub rejected: u64,
    /// Packets that the kernel would not send.
    pub unsent: u64,
}
