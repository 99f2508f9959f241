//! What each node tells the operator about itself, beside its lease: read by `tweedctl`, never by peers.

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
use crate::model::path::{Detour, Detours, Path, ProbeVerdict};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::{PeerCounts, PeerStatus};

/// One node at one moment. Versions read each other's: what one does not know, it leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    pub version: String,
    pub lease: LeaseId,
    /// What operators call the node, where the store knows nodes by names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub node: Node,
    /// One per family, IPv4 first.
    pub subnets: Vec<Prefix>,
    /// In force, whatever the config asks for.
    pub backend: BackendType,
    /// In force, likewise.
    pub mixed: bool,
    /// The store's revision of the newest config that was seen, in force or not.
    #[serde(default)]
    pub config_revision: u64,
    /// Whether the node takes `Backend` of the config, not `Rollout.From`.
    #[serde(default)]
    pub follows: bool,
    /// What of the newest config waits, and for what.
    #[serde(default)]
    pub pending: Option<String>,
    /// Why the newest config cannot be used.
    #[serde(default)]
    pub invalid: Option<String>,
    /// The links whose reverse-path filter is strict now: a flip waits for them.
    #[serde(default)]
    pub strict_filters: Vec<LinkName>,
    /// The largest packet of pods, in bytes; that of the underlay stands in `node`.
    #[serde(default)]
    pub pod_mtu: Option<u32>,
    /// The pods that run with another one.
    #[serde(default)]
    pub other_mtu: OtherMtu,
    /// Whether every connection that is translated on this node outlives a change of path.
    #[serde(default)]
    pub keeps_connections: bool,
    #[serde(default)]
    pub peers: PeerCounts,
    /// The peers on the link whose direct path carries no packets, in use or not, by the first
    /// address of their subnets; the first few of them.
    #[serde(default)]
    pub failing: Detours,
    /// None where nothing is probed.
    #[serde(default)]
    pub quality: Option<Quality>,
    /// The peers that are not reached as the config says, the first few of them.
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    /// How many there are in all.
    #[serde(default)]
    pub exceptions_total: usize,
}

/// A peer that is not reached as the config says: left out, set aside, on another path, or refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exception {
    pub lease: LeaseId,
    pub family: Option<Family>,
    /// None if packets to it have no way at all.
    pub path: Option<Path>,
    pub reason: String,
    /// Its probes are about to tell whether it stays an exception.
    #[serde(default)]
    pub probing: bool,
}

/// Pods that were made with another MTU than new ones get, and keep it as long as they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherMtu {
    pub total: usize,
    /// As many as a report may hold.
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
        /// More are in the JSON.
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

/// A report stays small, however large the cluster and whatever is wrong in it.
const MOST: usize = 100;

/// The largest report, in bytes: a small part of what etcd and Kubernetes accept as one value.
pub const LARGEST: usize = 64 * 1024;

impl NodeReport {
    /// As JSON of at most [`LARGEST`] bytes, which names fewer exceptions and pods if it must; how
    /// many there are in all stays in it.
    pub fn encode(&self) -> String {
        let mut report = self.clone();
        loop {
            // Texts, numbers and addresses always have a JSON form.
            let json = serde_json::to_string(&report).unwrap_or_default();
            let named = report.exceptions.len().max(report.other_mtu.pods.len());
            if json.len() <= LARGEST || named == 0 {
                return json;
            }
            report.exceptions.truncate(named / 2);
            report.other_mtu.pods.truncate(named / 2);
        }
    }

    /// What a node has written, its texts cut; none if it is no report.
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

/// Those of `detours` that were found to fail, as many as a report may hold.
pub fn failing(detours: &Detours) -> Detours {
    let failed = detours.iter().filter(|(_, detour)| matches!(detour, Detour::Failed(_)));
    failed.take(MOST).map(|(peer, detour)| (*peer, *detour)).collect()
}

/// The exceptions among `peers`, those without any path first, and how many there are in all.
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
    // A peer that never answers a probe stays in the tunnel, as the config says.
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
