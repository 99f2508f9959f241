//! The report that each node writes for the operator: read by `tweedctl`, never by peers.

mod failing;
mod groups;
mod quality;

pub use failing::{FailingPeer, failing_peers};
pub use groups::{PeerGroup, groups};
pub use quality::Quality;

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tweed_cni::bridge::pods::Pod;

use crate::excerpt;
use crate::model::config::BackendType;
use crate::model::entry::LinkName;
use crate::model::lease::LeaseId;
use crate::model::node::Node;
use crate::model::path::{Cause, Fallback, Fallbacks, Path, ProbeVerdict};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::{PeerCounts, PeerStatus, ReachabilityCounts};

/// The state of one node at one time. Versions read each other's reports and skip unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub version: String,
    pub lease: LeaseId,
    #[serde(skip_serializing_if = "Option::is_none")]
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
    pub pending: Option<String>,
    /// Why the newest config is invalid.
    pub invalid: Option<String>,
    /// The links whose reverse-path filter is strict: a change of paths waits for them.
    #[serde(default)]
    pub strict_filters: Vec<LinkName>,
    /// The largest packet of pods, in bytes. The MTU of the underlay is in `node`.
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
    /// All peers, by path and reachability.
    #[serde(default)]
    pub groups: Vec<PeerGroup>,
    /// Peers on the same link whose direct path fails, used or not, keyed by the first address of
    /// their subnets; only the first few.
    #[serde(default)]
    pub failing: Fallbacks,
    /// None while nothing is probed.
    pub quality: Option<Quality>,
    /// Peers whose path differs from the config; only the first few.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    #[serde(default)]
    pub exceptions_total: usize,
    /// The interval at which the report is refreshed, in seconds; none in a version that does not.
    pub refresh_seconds: Option<u64>,
    /// None in the loop's report, and in older versions.
    pub daemon: Option<DaemonState>,
}

/// What the daemon knows about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonState {
    pub started: Timestamp,
    pub ready: bool,
    /// The first reason why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
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

/// The maximum size of a report, in bytes. A store that is never compacted keeps each version.
pub const LARGEST: usize = 16 * 1024;

/// A report that was not refreshed for this many intervals is stale.
const MISSED: u32 = 3;

/// The interval at which each of `nodes` nodes refreshes its report: together, at most 20 per
/// second. In steps, so that a new node rarely changes the reports of all others.
pub fn refresh_interval(nodes: usize) -> Duration {
    let steps = u64::try_from(nodes.div_ceil(200)).unwrap_or(u64::MAX);
    Duration::from_secs(steps.saturating_mul(10).max(60))
}

impl NodeReport {
    /// The report as JSON of at most [`LARGEST`] bytes. If necessary it names only failing peers;
    /// then fewer exceptions, failing peers and pods; then fewer failed paths. The totals stay.
    pub fn encode(&self) -> String {
        let mut report = self.clone();
        loop {
            // Texts, numbers and addresses always have a JSON form, so this cannot fail.
            let json = serde_json::to_string(&report).unwrap_or_default();
            if json.len() <= LARGEST || !report.shorten() {
                return json;
            }
        }
    }

    /// Names less. Returns false if there is nothing left that could be omitted.
    fn shorten(&mut self) -> bool {
        if self.groups.iter().any(|group| !group.peers.is_empty()) {
            self.groups.iter_mut().for_each(|group| group.peers.clear());
            return true;
        }
        let named = self.exceptions.len().max(self.other_mtu.pods.len());
        let named = named.max(self.failing_peers.len());
        if named > 0 {
            let fewer = named * 7 / 8;
            self.exceptions.truncate(fewer);
            self.failing_peers.truncate(fewer);
            self.other_mtu.pods.truncate(fewer);
            return true;
        }
        self.failing.pop_last().is_some()
    }

    /// Replaces how long peers have been failing by since when. A peer that fails in `before`, too,
    /// keeps the time from there: reports differ only if the peers do.
    #[must_use]
    pub fn dated(mut self, before: Option<&Self>, now: Timestamp) -> Self {
        for peer in &mut self.failing_peers {
            let known =
                before.and_then(|before| before.failing_peers.iter().find(|it| it.is(peer)));
            peer.since = known.map_or_else(|| peer.start(now), |known| known.since);
            peer.reachability = peer.reachability.without_time();
        }
        self
    }

    /// Whether it differs from `before` in anything but readiness and the reachability of peers,
    /// for which no migration waits.
    pub fn concerns_migration(&self, before: &Self) -> bool {
        let relevant = |report: &Self| Self {
            reachability: ReachabilityCounts::default(),
            failing_peers: Vec::new(),
            groups: Vec::new(),
            refresh_seconds: None,
            daemon: None,
            ..report.clone()
        };
        relevant(self) != relevant(before)
    }

    /// Parses a report and cuts its texts; none if it is not a report.
    pub fn decode(json: &[u8]) -> Option<Self> {
        let report = serde_json::from_slice(json);
        let mut report: Self = report.or_else(|_| Self::decode_newer(json)).ok()?;
        // An id of a lease is cut by its type.
        let texts = [&mut report.version].into_iter();
        let texts = texts.chain(&mut report.name).chain(&mut report.pending);
        let texts = texts.chain(&mut report.invalid);
        let texts = texts.chain(report.daemon.iter_mut().filter_map(|it| it.reason.as_mut()));
        let texts = texts.chain(report.exceptions.iter_mut().map(|it| &mut it.reason));
        let texts = texts.chain(report.other_mtu.pods.iter_mut().map(|pod| &mut pod.name));
        texts.for_each(|text| *text = excerpt::sentence(text));
        for link in report.strict_filters.iter_mut().chain([&mut report.node.interface]) {
            *link = LinkName::new(excerpt::sentence(link.as_str()));
        }
        Some(report)
    }

    /// A report with values that this version does not know: peers with them are not listed, and a
    /// direct path fails, whatever the cause. The totals stay.
    fn decode_newer(json: &[u8]) -> serde_json::Result<Self> {
        let mut report: Value = serde_json::from_slice(json)?;
        retain_known::<FailingPeer>(report.get_mut("failing_peers"));
        retain_known::<PeerGroup>(report.get_mut("groups"));
        retain_known::<Exception>(report.get_mut("exceptions"));
        let failed = serde_json::to_value(Fallback::Failed(Cause::NoAnswer))?;
        let failing = report.get_mut("failing").and_then(Value::as_object_mut);
        let failing = failing.into_iter().flatten();
        for (_, fallback) in failing.filter(|(_, it)| Fallback::deserialize(&**it).is_err()) {
            fallback.clone_from(&failed);
        }
        serde_json::from_value(report)
    }

    /// Refers to leases by the ids that `known` returns, and keeps no spare memory: thousands of
    /// reports name the same leases.
    #[must_use]
    pub fn sharing<'a>(mut self, known: impl Fn(&LeaseId) -> Option<&'a LeaseId>) -> Self {
        let failing = self.failing_peers.iter_mut().map(|peer| &mut peer.lease);
        let exceptions = self.exceptions.iter_mut().map(|exception| &mut exception.lease);
        for lease in failing.chain(exceptions) {
            if let Some(known) = known(lease) {
                *lease = known.clone();
            }
        }
        self.failing_peers.shrink_to_fit();
        self
    }

    /// Whether the report has missed three refreshes, the last of which was this long ago; without
    /// a time, there was none.
    pub fn is_stale(&self, age: Option<Duration>) -> bool {
        let longest = |seconds| Duration::from_secs(seconds).saturating_mul(MISSED);
        self.refresh_seconds.is_some_and(|seconds| age.is_none_or(|age| age >= longest(seconds)))
    }
}

/// The failed paths among `fallbacks`, as many as a report may contain.
pub fn failing(fallbacks: &Fallbacks) -> Fallbacks {
    let failed = fallbacks.iter().filter(|(_, fallback)| matches!(fallback, Fallback::Failed(_)));
    failed.take(MOST).map(|(peer, fallback)| (*peer, *fallback)).collect()
}

/// The exceptions among `peers` and their total number: first those without a path, then those for
/// which a migration waits.
pub fn exceptions(peers: impl IntoIterator<Item = PeerStatus>) -> (Vec<Exception>, usize) {
    let mut exceptions: Vec<Exception> = peers.into_iter().filter_map(exception).collect();
    let total = exceptions.len();
    exceptions.sort_by_key(|exception| (exception.path.is_some(), !exception.probing));
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

fn retain_known<T: DeserializeOwned>(list: Option<&mut Value>) {
    if let Some(list) = list.and_then(Value::as_array_mut) {
        list.retain(|it| T::deserialize(it).is_ok());
    }
}

#[cfg(test)]
mod tests;
