//! The state of each node, judged by its own report and by those of its peers. A node whose peers
//! fail only because of another node is ready: otherwise one dead node would hide all others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use crate::model::lease::{Lease, LeaseId};
use crate::model::path::{PeerReachability, ReachabilityState, UnreachableCause};
use crate::model::report::{FailingPeer, ReportSummary};
use crate::operator::layout::{age, counted};
use crate::store::etcd::key;
use crate::store::operator::StoredReport;

/// A lease, with the report of its node.
#[derive(Debug)]
pub(super) struct ClusterNode {
    pub(super) lease: Lease,
    pub(super) report: Option<StoredReport>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum NodeState {
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
pub(super) struct Evidence<'a> {
    nodes: BTreeMap<&'a LeaseId, &'a ClusterNode>,
    /// The nodes whose reports are fresh and have results of probes.
    witnesses: BTreeSet<&'a LeaseId>,
    /// By how many of these each node is reported.
    reported: BTreeMap<&'a LeaseId, Reported>,
    /// The nodes that explain the failing peers of others.
    causes: BTreeSet<&'a LeaseId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// As unreachable.
    unreachable: usize,
    /// As unreachable or degraded.
    failing: usize,
}

impl ClusterNode {
    /// The node's name, else its public IP; the IPv4 one if it has two.
    pub(super) fn name(&self) -> String {
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
    pub(super) fn fresh(&self) -> Option<&ReportSummary> {
        let StoredReport { report, age } = self.report.as_ref()?;
        (!report.is_stale(*age)).then_some(report)
    }
}

impl NodeState {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::NotReady => "not-ready",
            Self::Degraded => "degraded",
            Self::Unreachable => "unreachable",
            Self::Stale => "stale",
            Self::Dead => "dead",
            Self::NoReport => "no-report",
        }
    }

    /// Whether the operator should look at the node.
    pub(super) const fn is_failing(self) -> bool {
        match self {
            Self::NotReady | Self::Degraded | Self::Unreachable | Self::Stale | Self::Dead => true,
            Self::Ready | Self::NoReport => false,
        }
    }
}

impl<'a> Evidence<'a> {
    pub(super) fn of(nodes: &'a [ClusterNode]) -> Self {
        let witnesses = nodes.iter().filter(|node| node.fresh().is_some_and(has_probed));
        let mut evidence = Self {
            witnesses: witnesses.map(|node| &node.lease.id).collect(),
            nodes: nodes.iter().map(|node| (&node.lease.id, node)).collect(),
            reported: BTreeMap::new(),
            causes: BTreeSet::new(),
        };
        for node in nodes {
            evidence.note(node);
        }
        evidence.causes = nodes
            .iter()
            .filter(|node| evidence.is_cause(node))
            .map(|node| &node.lease.id)
            .collect();
        evidence
    }

    /// Counts the peers that fail for `node`, unless the cause is the node itself.
    fn note(&mut self, node: &'a ClusterNode) {
        let Some(report) = node.fresh().filter(|_| !self.is_alone(node)) else { return };
        let mut failing: BTreeMap<&LeaseId, bool> = BTreeMap::new();
        for peer in &report.failing_peers {
            // A peer has up to two address families.
            *failing.entry(&peer.lease).or_default() |= is_unreachable(peer);
        }
        for (lease, is_unreachable) in failing {
            let reported = self.reported.entry(lease).or_default();
            reported.failing += 1;
            reported.unreachable += usize::from(is_unreachable);
        }
    }

    /// Whether it reaches no peer while there are other nodes that could be reached.
    fn is_alone(&self, node: &ClusterNode) -> bool {
        let has_no_answer = |peer: &FailingPeer| {
            let cause = UnreachableCause::AllSilent;
            peer.reachability.without_time()
                == PeerReachability::Unreachable { cause, since_ms: None }
        };
        let report = node.fresh().filter(|_| self.others(node) > 0);
        report.is_some_and(|report| report.failing_peers.iter().any(has_no_answer))
    }

    fn is_cause(&self, node: &ClusterNode) -> bool {
        let is_stale = node.report.is_some() && node.fresh().is_none();
        is_stale || self.is_alone(node) || self.is_most(node, self.reported(node).failing)
    }

    fn reported(&self, node: &ClusterNode) -> Reported {
        self.reported.get(&node.lease.id).copied().unwrap_or_default()
    }

    /// The number of other nodes that could report about `node`.
    fn others(&self, node: &ClusterNode) -> usize {
        self.witnesses.len() - usize::from(self.witnesses.contains(&node.lease.id))
    }

    fn is_most(&self, node: &ClusterNode, count: usize) -> bool {
        count * 2 > self.others(node)
    }

    pub(super) fn unreachable_from(&self, node: &ClusterNode) -> usize {
        self.reported(node).unreachable
    }

    pub(super) fn name(&self, lease: &LeaseId) -> String {
        self.nodes.get(lease).map_or_else(|| lease.to_string(), |node| node.name())
    }

    /// The state of `node`, and why it is in this state.
    pub(super) fn verdict(&self, node: &ClusterNode) -> (NodeState, Option<String>) {
        let Reported { unreachable, failing } = self.reported(node);
        let from = |count: usize| format!("from {count} of {} nodes", self.others(node));
        if node.report.is_some() && node.fresh().is_none() {
            let time = node.age().map_or_else(String::new, |time| {
                format!(" for {}", age(time.as_millis().try_into().unwrap_or(u64::MAX)))
            });
            return if unreachable > 0 {
                let reason = format!(
                    "its report is not refreshed{time}, and it is not reached {}: its host or its \
                     daemon is down",
                    from(unreachable)
                );
                (NodeState::Dead, Some(reason))
            } else {
                let reason = format!(
                    "its report is not refreshed{time}: its daemon is down, or does not reach the \
                     store"
                );
                (NodeState::Stale, Some(reason))
            };
        }
        if self.is_alone(node) {
            return (NodeState::Unreachable, Some(UnreachableCause::AllSilent.to_string()));
        }
        if self.is_most(node, unreachable) {
            return (
                NodeState::Unreachable,
                Some(format!("it is not reached {}", from(unreachable))),
            );
        }
        let Some(report) = node.fresh() else {
            return (NodeState::NoReport, Some(SILENT.to_owned()));
        };
        if let Some(daemon) = report.daemon.as_ref().filter(|daemon| !daemon.ready) {
            return (NodeState::NotReady, daemon.reason.clone());
        }
        if self.is_most(node, failing) {
            return (
                NodeState::Degraded,
                Some(format!("packets to it are lost {}", from(failing))),
            );
        }
        match self.own_failure(report) {
            Some(reason) => (NodeState::Degraded, Some(reason)),
            None => (NodeState::Ready, None),
        }
    }

    /// The peers that fail for this node, and are not the cause themselves.
    fn own_failure(&self, report: &ReportSummary) -> Option<String> {
        let total = report.reachability.unreachable + report.reachability.degraded;
        let mut unexplained =
            report.failing_peers.iter().filter(|peer| !self.causes.contains(&peer.lease));
        if let Some(first) = unexplained.next() {
            let (name, state) = (self.name(&first.lease), first.reachability.state().as_str());
            let since = first.since.map(|since| format!(" since {since}")).unwrap_or_default();
            let cause = first.reachability.cause().unwrap_or_default();
            let more = match unexplained.count() {
                0 => String::new(),
                more => format!("; {} in addition", counted(more, "failing peer")),
            };
            return Some(format!("{name} is {state}{since}: {cause}{more}"));
        }
        // A report names only the first ones; one node may be two peers, one per address family.
        let endpoints =
            |lease: &&LeaseId| self.nodes.get(*lease).map(|it| it.lease.endpoints.len());
        let explained: usize = self.causes.iter().filter_map(endpoints).sum();
        (total > explained).then(|| format!("{} fail", counted(total, "peer")))
    }
}

/// Why a lease has no report.
const SILENT: &str = "it sends no report: it runs flannel or an older tweedd, or may not write its \
                      report";

fn has_probed(report: &ReportSummary) -> bool {
    report.reachability.total() > report.reachability.unknown
}

fn is_unreachable(peer: &FailingPeer) -> bool {
    peer.reachability.state() == ReachabilityState::Unreachable
}
