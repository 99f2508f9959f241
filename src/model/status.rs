//! The status of the daemon, for health checks, metrics and `tweedctl`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::lease::{Lease, LeaseId};
use crate::model::path::{Path, PeerReachability, ProbeVerdict, ReachabilityState};
use crate::model::policy::Guard;
use crate::model::prefix::{Family, Prefix};

/// Counters since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    pub created: u64,
    pub replaced: u64,
    pub removed: u64,
    /// Full reads of the kernel state.
    pub dumps: u64,
    /// How often notifications of the kernel were lost.
    pub overruns: u64,
    /// Edits of the network config, including the first read.
    pub edits: u64,
    /// How often a peer on the same link was moved to the tunnel because its direct path failed.
    pub fallbacks: u64,
    /// How often a tunnel device got a new MAC address, because another node may have the old one.
    pub mac_changes: u64,
}

impl Statistics {
    /// The operations that the kernel has applied.
    pub const fn operations(&self) -> u64 {
        self.created + self.replaced + self.removed
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub ready: bool,
    /// Why it is not ready, and other warnings.
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
    #[serde(default)]
    pub reachability: ReachabilityCounts,
    /// The subnets and public IPs of the first unreachable peers.
    #[serde(default)]
    pub unreachable: Vec<String>,
    /// Leases that conflict with another lease or with this node, by the kind of conflict: see
    /// [`crate::model::lease::Rejected::conflict`].
    #[serde(default)]
    pub conflicts: BTreeMap<String, usize>,
    /// The firewall that has rules of tweed, and why it was chosen; none if there are no rules.
    pub firewall: Option<FirewallStatus>,
    /// The tables and chains that masquerade and forward packets of pods.
    #[serde(default)]
    pub tables: Vec<TableStatus>,
    /// None without a tunnel, or if no protection is requested.
    pub guard: Option<GuardStatus>,
    /// The settings of devices that are shown, see [`crate::model::entry::SettingPolicy`].
    #[serde(default)]
    pub settings: Vec<SettingStatus>,
    /// The number of entries that the kernel should hold.
    pub desired: usize,
    /// Operations that the kernel rejected, and why.
    pub refused: Vec<String>,
    /// None while probing is off.
    pub probes: Option<ProbeStatus>,
    pub statistics: Statistics,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallStatus {
    /// `nftables` or `iptables`.
    pub name: String,
    pub reason: String,
}

/// A table of nftables, or a chain of iptables, that tweed maintains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStatus {
    /// The name as an argument of `nft list table` or `iptables -S`.
    pub name: String,
    /// Whether the kernel has it in the desired form.
    pub programmed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingStatus {
    pub link: String,
    /// What the device does by it.
    #[serde(default)]
    pub effect: String,
    /// Whether the kernel has this setting.
    pub programmed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    pub asked: Guard,
    pub applied: bool,
    pub tables: Vec<TableStatus>,
    /// The number of addresses that may send through the tunnel.
    pub admitted: usize,
    /// Why the kernel rejected it.
    pub refused: Option<String>,
}

/// The newest config of the store, and how far it is applied here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// The revision in the store; 0 without a config.
    pub revision: u64,
    /// The position of this node in the rollout, if there is one.
    pub rollout: Option<String>,
    /// The part that is not applied yet, and why.
    pub pending: Option<String>,
    /// Why the config is invalid.
    pub invalid: Option<String>,
}

/// The peers by path. One with two address families counts once: as skipped if one family has no
/// path, else by the tunnel if one family is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerCounts {
    pub direct: usize,
    pub tunnel: usize,
    // Reports in the store may have the former names.
    #[serde(alias = "left_out")]
    pub skipped: usize,
    #[serde(alias = "set_aside")]
    pub rejected: usize,
    /// Peers that the store no longer lists and that are still routed; 0 before its first list.
    pub missing: usize,
}

impl PeerCounts {
    pub const fn total(&self) -> usize {
        // Missing peers are also counted by their paths.
        self.direct + self.tunnel + self.skipped + self.rejected
    }
}

/// The peers with a path, by whether they answer by it. One with two address families counts once,
/// in the worse state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachabilityCounts {
    pub reachable: usize,
    pub degraded: usize,
    pub unreachable: usize,
    pub unknown: usize,
}

impl ReachabilityCounts {
    pub const fn total(&self) -> usize {
        self.reachable + self.degraded + self.unreachable + self.unknown
    }

    pub const fn of(&mut self, state: ReachabilityState) -> &mut usize {
        match state {
            ReachabilityState::Reachable => &mut self.reachable,
            ReachabilityState::Degraded => &mut self.degraded,
            ReachabilityState::Unreachable => &mut self.unreachable,
            ReachabilityState::Unknown => &mut self.unknown,
        }
    }
}

/// One peer, in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub lease: LeaseId,
    pub family: Option<Family>,
    pub subnet: Option<Prefix>,
    pub public_ip: Option<IpAddr>,
    pub backend: String,
    /// None if it is skipped or rejected; `reason` has the cause.
    pub path: Option<Path>,
    /// Why it has no path, or why the path is not direct.
    pub reason: Option<String>,
    /// Whether the kernel has all entries of the path.
    pub programmed: bool,
    /// Whether the peer answers by the path; none without a path.
    pub reachability: Option<PeerReachability>,
    /// The results of its probes; none while it is not probed.
    pub probes: Option<PathStatus>,
}

/// A summary of the probes of all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// `on`, `off` or `starting`.
    pub state: String,
    pub reason: Option<String>,
    /// The number of direct paths with each verdict.
    pub good: usize,
    pub bad: usize,
    pub silent: usize,
    pub pending: usize,
    #[serde(flatten)]
    pub counts: ProbeCounts,
}

/// The results of the probes of one peer, in one address family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The verdict on the direct path.
    pub verdict: ProbeVerdict,
    /// None if it is not on the same link.
    pub direct: Option<ProbeResults>,
    /// None if it has no tunnel.
    pub tunnel: Option<ProbeResults>,
}

/// The results of large probes by one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResults {
    /// The number of recent probes that are counted; 0 before the first packet of the peer.
    pub asked: u32,
    /// The number of those that were not answered in time.
    pub lost: u32,
    /// The round-trip time of the last answered one, in microseconds.
    pub round_trip_us: Option<u64>,
    /// The time since the last answer, in milliseconds.
    pub answered_ms_ago: Option<u64>,
}

/// One record of the store; without endpoints if no valid lease was ever read from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    #[serde(flatten)]
    pub lease: Lease,
    pub own: bool,
    /// A reservation has no term: it stays until it is deleted.
    pub reservation: bool,
    /// Why it is rejected, or what is wrong with its record.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub ready: bool,
    pub reasons: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    /// Not contacted yet.
    #[default]
    Unknown,
    Reachable,
    /// Reachable, but a value in it is too large for a lease: which one, and what to do.
    OversizedValue(String),
    /// Reachable, but it rejected an optional request: which one, and why.
    OptionalRefused(String),
    /// Reachable, but it refuses a request that the lease of this node needs: a sentence with the
    /// reason.
    RequestRefused(String),
    /// Reachable, but it has no subnet for this node, whatever the checkpoint has: a sentence with the
    /// reason.
    NoSubnet(String),
    /// Reachable, but it refuses to list the leases: a sentence with the reason.
    ListRefused(String),
    /// Unreachable, and why.
    Unreachable(String),
}

impl StoreState {
    /// Whether the store is reachable and lists the leases. Otherwise nothing may be removed.
    pub const fn is_reachable(&self) -> bool {
        match self {
            Self::Reachable
            | Self::OversizedValue(_)
            | Self::OptionalRefused(_)
            | Self::RequestRefused(_)
            | Self::NoSubnet(_) => true,
            Self::Unknown | Self::ListRefused(_) | Self::Unreachable(_) => false,
        }
    }
}

/// Counters of probe packets since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    pub asked: u64,
    pub answered: u64,
    /// Probes of peers that were answered.
    pub served: u64,
    /// Packets that were rejected: from an unknown source, replayed, answers to no probe, or probes
    /// beyond the rate limit of their peer.
    pub rejected: u64,
    /// Packets that the kernel failed to send.
    pub unsent: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_applied_operations_count() {
        let statistics =
            Statistics { created: 4, replaced: 2, removed: 3, dumps: 9, ..Statistics::default() };
        assert_eq!(statistics.operations(), 9);
    }
}
