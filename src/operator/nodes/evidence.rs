//! The state of each node, judged by its own report and by those of its peers, for all commands.
//! A node whose peers fail only because of another node is ready: otherwise one dead node would hide
//! all others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::lease::{Lease, LeaseId, Record};
use crate::model::path::{PeerReachability, ReachabilityState, UnreachableCause};
use crate::model::report::{Exception, FailingPeer, NodeReport, PeerGroup};
use crate::operator::layout::{counted, lasting};
use crate::store::etcd::key;
use crate::store::operator::StoredReport;

/// A lease, with the report of its node.
#[derive(Debug)]
pub(in crate::operator) struct ClusterNode {
    pub(in crate::operator) lease: Lease,
    pub(in crate::operator) report: Option<StoredReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::operator) enum NodeState {
    Ready,
    NotReady,
    /// It does not reach some peers or loses packets to them, or most peers lose packets to it.
    Degraded,
    /// Most peers do not reach it, or it reaches none.
    Unreachable,
    /// Its report is not refreshed.
    Stale,
    /// Its report is not refreshed, and peers do not reach it.
    Dead,
    NoReport,
}

/// What the nodes report about each other.
pub(in crate::operator) struct Evidence<'a> {
    nodes: BTreeMap<&'a LeaseId, &'a ClusterNode>,
    /// The nodes whose reports are fresh and have results of probes.
    witnesses: BTreeSet<&'a LeaseId>,
    /// By how many of these each node is reported.
    reported: BTreeMap<&'a LeaseId, Reported>,
    /// The nodes that explain the failing peers of others.
    causes: BTreeSet<&'a LeaseId>,
    /// The peers that these are: one per address family.
    explained: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// As unreachable.
    pub(super) unreachable: usize,
    /// As unreachable or degraded.
    failing: usize,
}

impl ClusterNode {
    /// Each lease with the report of its node. Ignores records without a lease, reservations that no
    /// node has taken, and reports of nodes that no longer have a lease.
    pub(in crate::operator) fn all(
        records: impl IntoIterator<Item = Record>,
        reports: impl IntoIterator<Item = StoredReport>,
    ) -> Vec<Self> {
        let reports = reports.into_iter().map(|stored| (stored.report.lease.clone(), stored));
        let mut reports: BTreeMap<_, _> = reports.collect();
        let leases = records.into_iter().filter_map(|record| record.lease.ok());
        let leases = leases.filter(|lease| !lease.is_vacant());
        leases.map(|lease| Self { report: reports.remove(&lease.id), lease }).collect()
    }

    /// The node's name, else its public IP; the IPv4 one if it has two.
    pub(in crate::operator) fn name(&self) -> String {
        let reported = || self.report.as_ref()?.report.name.clone();
        // In Kubernetes, the name of a lease is that of its node.
        let is_subnet = !key::claimed(&self.lease.id).is_empty();
        let public_ip = || Some(self.lease.endpoints.first()?.public_ip.to_string());
        let published = || public_ip().filter(|_| is_subnet);
        reported().or_else(published).unwrap_or_else(|| self.lease.id.to_string())
    }

    /// The time since its report was refreshed.
    pub(super) fn age(&self) -> Option<Duration> {
        self.report.as_ref()?.age
    }

    /// Its report, if it is refreshed in time.
    pub(super) fn fresh(&self) -> Option<&NodeReport> {
        let StoredReport { report, age } = self.report.as_ref()?;
        (!report.is_stale(*age)).then_some(report)
    }

    fn is_stale(&self) -> bool {
        self.report.is_some() && self.fresh().is_none()
    }
}

impl NodeState {
    /// Whether the operator should look at the node.
    pub(in crate::operator) const fn is_failing(self) -> bool {
        match self {
            Self::NotReady | Self::Degraded | Self::Unreachable | Self::Stale | Self::Dead => true,
            Self::Ready | Self::NoReport => false,
        }
    }
}

/// As in JSON.
impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl<'a> Evidence<'a> {
    pub(in crate::operator) fn of(nodes: &'a [ClusterNode]) -> Self {
        let witnesses = nodes.iter().filter(|node| node.fresh().is_some_and(has_probed));
        let mut evidence = Self {
            witnesses: witnesses.map(|node| &node.lease.id).collect(),
            nodes: nodes.iter().map(|node| (&node.lease.id, node)).collect(),
            reported: BTreeMap::new(),
            causes: BTreeSet::new(),
            explained: 0,
        };
        for node in nodes {
            evidence.note(node);
        }
        let causes: Vec<_> = nodes.iter().filter(|node| evidence.is_cause(node)).collect();
        evidence.explained = causes.iter().map(|node| node.lease.endpoints.len()).sum();
        evidence.causes = causes.iter().map(|node| &node.lease.id).collect();
        evidence
    }

    /// Counts the peers that fail for `node`, unless the cause is the node itself.
    fn note(&mut self, node: &'a ClusterNode) {
        let Some(report) = node.fresh().filter(|_| !self.is_alone(node)) else { return };
        let mut failing: BTreeMap<&LeaseId, usize> = BTreeMap::new();
        for peer in &report.failing_peers {
            let is_unreachable = peer.reachability.state() == ReachabilityState::Unreachable;
            *failing.entry(&peer.lease).or_default() += usize::from(is_unreachable);
        }
        for (lease, unreachable) in failing {
            // The other address family may work.
            let families = self.nodes.get(lease).map_or(1, |peer| peer.lease.endpoints.len());
            let families = families.min(node.lease.endpoints.len());
            let reported = self.reported.entry(lease).or_default();
            reported.failing += 1;
            reported.unreachable += usize::from(unreachable >= families.max(1));
        }
    }

    /// Whether it reaches no peer while there are other nodes that could be reached.
    fn is_alone(&self, node: &ClusterNode) -> bool {
        let has_no_answer = |peer: &FailingPeer| {
            let cause = UnreachableCause::AllSilent;
            peer.reachability.without_time()
                == PeerReachability::Unreachable { cause, since_ms: None }
        };
        // The other address family may work.
        let answers = |group: &PeerGroup| {
            matches!(group.state, Some(ReachabilityState::Reachable | ReachabilityState::Degraded))
        };
        let report = node.fresh().filter(|_| self.others(node) > 0);
        report.is_some_and(|report| {
            report.failing_peers.iter().any(has_no_answer) && !report.groups.iter().any(answers)
        })
    }

    fn is_cause(&self, node: &ClusterNode) -> bool {
        node.is_stale() || self.is_alone(node) || self.is_most(node, self.reported(node).failing)
    }

    /// By how many other nodes it is reported.
    pub(super) fn reported(&self, node: &ClusterNode) -> Reported {
        self.reported.get(&node.lease.id).copied().unwrap_or_default()
    }

    /// The number of other nodes that could report about `node`.
    fn others(&self, node: &ClusterNode) -> usize {
        self.witnesses.len() - usize::from(self.witnesses.contains(&node.lease.id))
    }

    fn is_most(&self, node: &ClusterNode, count: usize) -> bool {
        count * 2 > self.others(node)
    }

    pub(super) fn name(&self, lease: &LeaseId) -> String {
        self.nodes.get(lease).map_or_else(|| lease.to_string(), |node| node.name())
    }

    /// The state of `node`, and why it is in this state.
    pub(in crate::operator) fn verdict(&self, node: &ClusterNode) -> (NodeState, Option<String>) {
        if let Some((state, reason)) = self.outage(node) {
            return (state, Some(reason));
        }
        if node.is_stale() {
            let reason = format!(
                "{}: its daemon is down, or does not reach the store",
                not_refreshed(node.age())
            );
            return (NodeState::Stale, Some(reason));
        }
        let Some(report) = node.fresh() else {
            return (NodeState::NoReport, Some(SILENT.to_owned()));
        };
        if let Some(daemon) = report.daemon.as_ref().filter(|daemon| !daemon.ready) {
            return (NodeState::NotReady, daemon.reason.clone());
        }
        let failing = self.reported(node).failing;
        if self.is_most(node, failing) {
            let reason = format!("packets to it are lost {}", self.from(node, failing));
            return (NodeState::Degraded, Some(reason));
        }
        match self.own_failure(report) {
            Some(reason) => (NodeState::Degraded, Some(reason)),
            None => (NodeState::Ready, None),
        }
    }

    /// The state of `node`, and the reason, if other nodes fail because of it.
    pub(in crate::operator) fn outage(&self, node: &ClusterNode) -> Option<(NodeState, String)> {
        let unreachable = self.reported(node).unreachable;
        let unreached = || format!("it is not reached {}", self.from(node, unreachable));
        if node.is_stale() {
            let reason = || {
                let time = not_refreshed(node.age());
                format!("{time}, and {}: its host or its daemon is down", unreached())
            };
            return self.is_most(node, unreachable).then(|| (NodeState::Dead, reason()));
        }
        if self.is_alone(node) {
            return Some((NodeState::Unreachable, UnreachableCause::AllSilent.to_string()));
        }
        self.is_most(node, unreachable).then(|| (NodeState::Unreachable, unreached()))
    }

    fn from(&self, node: &ClusterNode, count: usize) -> String {
        format!("from {count} of {} nodes", self.others(node))
    }

    /// The peers that fail for this node, and are not the cause themselves.
    fn own_failure(&self, report: &NodeReport) -> Option<String> {
        let is_cut_off = |it: &&Exception| it.path.is_none() && !self.causes.contains(&it.lease);
        let mut without_path = report.exceptions.iter().filter(is_cut_off);
        if let Some(first) = without_path.next() {
            let more = in_addition(without_path.count(), "peer");
            let name = self.name(&first.lease);
            return Some(format!("no path to {name}: {}{more}", first.reason));
        }
        let total = report.reachability.unreachable + report.reachability.degraded;
        let mut unexplained =
            report.failing_peers.iter().filter(|peer| !self.causes.contains(&peer.lease));
        if let Some(first) = unexplained.next() {
            let (name, state) = (self.name(&first.lease), first.reachability.state().as_str());
            let since = first.since.map(|since| format!(" since {since}")).unwrap_or_default();
            let cause = first.reachability.cause().unwrap_or_default();
            let more = in_addition(unexplained.count(), "failing peer");
            return Some(format!("{name} is {state}{since}: {cause}{more}"));
        }
        // A report names only the first ones.
        (total > self.explained).then(|| format!("{} fail", counted(total, "peer")))
    }
}

/// As in `; 2 peers in addition`; empty without any.
fn in_addition(more: usize, noun: &str) -> String {
    if more == 0 { String::new() } else { format!("; {} in addition", counted(more, noun)) }
}

/// Why a lease has no report.
const SILENT: &str = "it sends no report: it runs flannel or an older tweedd, or may not write its \
                      report";

fn not_refreshed(time: Option<Duration>) -> String {
    format!("its report is not refreshed{}", lasting(time))
}

fn has_probed(report: &NodeReport) -> bool {
    report.reachability.total() > report.reachability.unknown
}
