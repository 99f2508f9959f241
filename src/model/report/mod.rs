//! The report that each node writes for the operator: read by `tweedctl`, never by peers.

mod quality;

pub use quality::Quality;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tweed_cni::bridge::pods::Pod;

use crate::excerpt;
use crate::model::config::BackendType;
use crate::model::entry::LinkName;
use crate::model::lease::LeaseId;
use crate::model::node::Node;
use crate::model::path::{Fallback, Fallbacks, Path, PeerReachability, ProbeVerdict};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::{PeerCounts, PeerStatus, ReachabilityCounts};

/// The state of one node at one time. Versions read each other's reports and skip unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub version: String,
    pub lease: LeaseId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub node: Node,
    /// One per family, IPv4 first.
    pub subnets: Vec<Prefix>,
    /// The backend in use, which may differ from the config.
    pub backend: BackendType,
    /// Whether `Mixed` is applied, which may differ from the config.
    pub mixed: bool,
    /// The store revision of the newest config that was read, applied or not.
    #[serde(default)]
    pub config_revision: u64,
    /// Whether the node uses `Backend` of the config, not `Rollout.From`.
    #[serde(default)]
    pub follows: bool,
    /// The part of the newest config that is not applied yet, and why.
    #[serde(default)]
    pub pending: Option<String>,
    /// Why the newest config is invalid.
    #[serde(default)]
    pub invalid: Option<String>,
    /// The links whose reverse-path filter is strict: a change of paths waits for them.
    #[serde(default)]
    pub strict_filters: Vec<LinkName>,
    /// The largest packet of pods, in bytes. The MTU of the underlay is in `node`.
    #[serde(default)]
    pub pod_mtu: Option<u32>,
    /// The pods whose MTU differs from `pod_mtu`.
    #[serde(default)]
    pub other_mtu: OtherMtu,
    /// Whether every translated (NAT) connection of this node survives a change of path.
    #[serde(default)]
    pub keeps_connections: bool,
    #[serde(default)]
    pub peers: PeerCounts,
    #[serde(default)]
    pub reachability: ReachabilityCounts,
    /// The unreachable peers, then the degraded ones; only the first few.
    #[serde(default)]
    pub failing_peers: Vec<FailingPeer>,
    /// Peers on the same link whose direct path fails, used or not, keyed by the first address of
    /// their subnets; only the first few.
    #[serde(default)]
    pub failing: Fallbacks,
    /// None while nothing is probed.
    #[serde(default)]
    pub quality: Option<Quality>,
    /// Peers whose path differs from the config; only the first few.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    #[serde(default)]
    pub exceptions_total: usize,
}

/// A peer that is degraded or unreachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailingPeer {
    pub lease: LeaseId,
    pub family: Option<Family>,
    #[serde(flatten)]
    pub reachability: PeerReachability,
}

/// A peer whose path differs from the config: skipped, rejected, on another path, or refused by the
/// kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    pub lease: LeaseId,
    pub family: Option<Family>,
    /// None if the peer is unreachable.
    pub path: Option<Path>,
    pub reason: String,
    /// Whether probes in progress will decide if it stays an exception.
    #[serde(default)]
    pub probing: bool,
}

/// Pods that were created with another MTU than new pods get. They keep it until they are
/// recreated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherMtu {
    pub total: usize,
    /// As many as a report may contain.
    pub pods: Vec<Pod>,
}

impl From<Vec<Pod>> for OtherMtu {
    fn from(mut pods: Vec<Pod>) -> Self {
        let total = pods.len();
        pods.truncate(MOST);
        Self { total, pods }
    }
}

impl fmt::Display for OtherMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many are shown as text; the JSON has more.
        const SHOWN: usize = 5;
        let shown: Vec<String> =
            self.pods.iter().take(SHOWN).map(|pod| format!("{} ({})", pod.name, pod.mtu)).collect();
        f.write_str(&shown.join(", "))?;
        match self.total.saturating_sub(shown.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The maximum number of list entries. It limits the report's size in large or broken clusters.
const MOST: usize = 100;

/// The maximum size of a report, in bytes: a small part of what etcd and Kubernetes accept as one
/// value.
pub const LARGEST: usize = 64 * 1024;

impl NodeReport {
    /// The report as JSON of at most [`LARGEST`] bytes. If necessary it lists fewer exceptions,
    /// failing peers and pods; the totals stay.
    pub fn encode(&self) -> String {
        let mut report = self.clone();
        loop {
            // Texts, numbers and addresses always have a JSON form, so this cannot fail.
            let json = serde_json::to_string(&report).unwrap_or_default();
            let named = report.exceptions.len().max(report.other_mtu.pods.len());
            let named = named.max(report.failing_peers.len());
            if json.len() <= LARGEST || named == 0 {
                return json;
            }
            report.exceptions.truncate(named / 2);
            report.failing_peers.truncate(named / 2);
            report.other_mtu.pods.truncate(named / 2);
        }
    }

    /// Parses a report and cuts its texts; none if it is not a report.
    pub fn decode(json: &[u8]) -> Option<Self> {
        let mut value = serde_json::from_slice(json).ok()?;
        cut_texts(&mut value);
        serde_json::from_value(value).ok()
    }
}

fn cut_texts(value: &mut Value) {
    match value {
        Value::String(text) => *text = excerpt::sentence(text),
        Value::Array(values) => values.iter_mut().for_each(cut_texts),
        Value::Object(fields) => fields.values_mut().for_each(cut_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The failed paths among `fallbacks`, as many as a report may contain.
pub fn failing(fallbacks: &Fallbacks) -> Fallbacks {
    let failed = fallbacks.iter().filter(|(_, fallback)| matches!(fallback, Fallback::Failed(_)));
    failed.take(MOST).map(|(peer, fallback)| (*peer, *fallback)).collect()
}

/// The unreachable and degraded ones among `peers`, as many as a report may contain.
pub fn failing_peers(peers: &[PeerStatus]) -> Vec<FailingPeer> {
    let failing = peers.iter().filter_map(|peer| {
        let reachability = peer.reachability?.without_time();
        let is_failing = reachability.state().is_failing();
        let (lease, family) = (&peer.lease, peer.family);
        is_failing.then(|| FailingPeer { lease: lease.clone(), family, reachability })
    });
    let mut failing: Vec<FailingPeer> = failing.collect();
    failing.sort_by_key(|peer| std::cmp::Reverse(peer.reachability.state()));
    failing.truncate(MOST);
    failing
}

/// The exceptions among `peers`, unreachable ones first, and their total number.
pub fn exceptions(peers: impl IntoIterator<Item = PeerStatus>) -> (Vec<Exception>, usize) {
    let mut exceptions: Vec<Exception> = peers.into_iter().filter_map(exception).collect();
    let total = exceptions.len();
    exceptions.sort_by_key(|exception| exception.path.is_some());
    exceptions.truncate(MOST);
    (exceptions, total)
}

fn exception(peer: PeerStatus) -> Option<Exception> {
    let is_refused = peer.path.is_some() && !peer.programmed;
    let refused = is_refused.then(|| "the kernel does not hold its path".to_owned());
    // By the config, a peer that never answers a probe stays in the tunnel.
    let is_silent =
        peer.probes.as_ref().is_some_and(|probes| probes.verdict == ProbeVerdict::Silent);
    let is_as_planned = is_silent && peer.path == Some(Path::Tunnel);
    let reason = peer.reason.filter(|_| !is_as_planned).or(refused)?;
    let probing = peer.path == Some(Path::Tunnel)
        && peer.probes.is_some_and(|probes| probes.verdict == ProbeVerdict::Pending);
    Some(Exception { lease: peer.lease, family: peer.family, path: peer.path, reason, probing })
}

#[cfg(test)]
mod tests;
