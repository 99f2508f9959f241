//! `tweedctl nodes`: every node of the cluster, from its lease and its report in the store.

pub(super) mod connectivity;
pub(super) mod evidence;
mod pings;
mod pod;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use self::evidence::{ClusterNode, Evidence, NodeState};
use super::layout::{TextTable, Tone, age, listed, or_dash, summary, wrap};
use super::output::{WatchFlag, is_named, numeric};
use super::store::{StoreFlags, unavailable};
use super::{Answer, Error, ExitStatus};
use crate::model::lease::LeaseId;
use crate::model::path::ReachabilityState;
use crate::model::prefix::{Family, Prefix};
use crate::model::report::{DaemonState, FailingPeer, NodeReport, PeerGroup};
use crate::model::status::ReachabilityCounts;
use crate::store::ClusterStore;
use crate::store::operator::StoreContents;

const STATES: &str = "\
States, from the node's report and those of its peers:
  ready        the daemon is ready, and reaches its peers
  not-ready    the daemon is not ready
  degraded     it does not reach some peers, or loses packets to them
  unreachable  most peers do not reach it, or it reaches none
  stale        its report has missed three refreshes, 3 minutes or longer
  dead         the same, and most peers do not reach it
  no-report    flannel, an older tweedd, or no right to write a report

Exit codes:
  0  every node is ready or has no report
  1  a node is not ready
  2  the command line is invalid, or --node names no node
  3  the store cannot be read
  5  a node is degraded, unreachable, stale or dead";

#[derive(Debug, Args)]
#[command(after_help = STATES)]
pub(super) struct NodesOptions {
    /// Only not-ready, degraded, unreachable, stale and dead nodes
    #[arg(long)]
    failing: bool,
    /// Only this node, by name, public IP, subnet or lease
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    pub(super) watch: WatchFlag,
    #[command(flatten)]
    store: StoreFlags,
}

/// The nodes of the cluster, or some of them.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct NodeList {
    pub(super) rows: Vec<NodeRow>,
    /// Of all nodes, also those that are not listed.
    #[serde(skip)]
    totals: Totals,
    #[serde(skip)]
    now: Timestamp,
}

#[derive(Debug, Serialize)]
pub(super) struct NodeRow {
    /// As in [`ClusterNode::name`].
    name: String,
    state: NodeState,
    /// Why it is in this state.
    reason: Option<String>,
    version: Option<String>,
    backend: Option<String>,
    mixed: Option<bool>,
    /// The largest packet of pods, in bytes.
    mtu: Option<u32>,
    ready: Option<bool>,
    /// The number of its peers in each state.
    peers: Option<ReachabilityCounts>,
    /// The unreachable peers, then the degraded ones; only the first few.
    failing_peers: Vec<FailingRow>,
    /// All peers, by path and state; their names only in a small cluster.
    groups: Vec<PeerGroup>,
    /// The number of nodes that report it as unreachable.
    unreachable_from: usize,
    /// The time since its report was refreshed, in seconds.
    seen_seconds_ago: Option<u64>,
    /// When its daemon was started.
    started: Option<Timestamp>,
    public_ips: Vec<IpAddr>,
    subnets: Vec<Prefix>,
    lease: LeaseId,
}

/// A peer that a node does not reach, or loses packets to.
#[derive(Debug, Serialize)]
struct FailingRow {
    name: String,
    lease: LeaseId,
    family: Option<Family>,
    state: ReachabilityState,
    cause: Option<String>,
    since: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct Totals {
    states: BTreeMap<NodeState, usize>,
    versions: BTreeSet<String>,
}

pub(super) async fn answer(options: &NodesOptions, socket: &Path) -> Result<NodeList, Error> {
    let mut list = NodeList::read(&options.store.open(socket).await?).await?;
    if let Some(name) = &options.node {
        list.rows.retain(|row| row.is_named(name));
        if list.rows.is_empty() {
            return Err(Error::Usage(format!("no node {name} has a lease")));
        }
    }
    list.rows.retain(|row| !options.failing || row.state.is_failing());
    Ok(list)
}

/// Config, leases and reports of all nodes.
pub(super) async fn read(store: &impl ClusterStore) -> Result<StoreContents, Error> {
    store.read().await.map_err(|away| unavailable(store, &away))
}

/// The node that has a lease.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) name: String,
    pub(super) state: NodeState,
    pub(super) reason: Option<String>,
}

impl NodeList {
    pub(super) async fn read(store: &impl ClusterStore) -> Result<Self, Error> {
        let StoreContents { records, reports, .. } = read(store).await?;
        Ok(Self::new(&ClusterNode::all(records, reports), Timestamp::now()))
    }

    pub(super) fn holder(&self, lease: &LeaseId) -> Option<Holder> {
        let row = self.rows.iter().find(|row| row.lease == *lease)?;
        Some(Holder { name: row.name.clone(), state: row.state, reason: row.reason.clone() })
    }

    pub(super) fn new(nodes: &[ClusterNode], now: Timestamp) -> Self {
        let evidence = Evidence::of(nodes);
        let named = nodes.iter().flat_map(|node| &node.report);
        let named: usize = named.map(|stored| stored.report.failing_peers.len()).sum();
        let most = if named > MANY { FEW } else { named };
        let mut rows: Vec<NodeRow> = nodes.iter().map(|node| row(node, &evidence, most)).collect();
        rows.sort_by_cached_key(|row| (numeric(&row.name), row.subnets.first().copied()));
        let mut totals = Totals::default();
        for row in &rows {
            *totals.states.entry(row.state).or_default() += 1;
            totals.versions.extend(row.version.clone());
        }
        Self { rows, totals, now }
    }

    fn write_table(
        &self,
        f: &mut fmt::Formatter<'_>,
        mut table: TextTable,
        cells: impl Fn(&NodeRow) -> Vec<String>,
    ) -> fmt::Result {
        if !self.rows.is_empty() {
            for row in &self.rows {
                let cells = cells(row);
                let cells: Vec<&dyn fmt::Display> =
                    cells.iter().map(|cell| cell as &dyn fmt::Display).collect();
                table.toned_row(row.state.into(), &cells, row.reason.clone());
            }
            table.fmt(f)?;
            writeln!(f)?;
        }
        // As in `5 nodes: 4 ready, 1 dead`.
        let mut totals = summary("node", &self.totals.states);
        if self.totals.versions.len() > 1 {
            let versions: Vec<&String> = self.totals.versions.iter().collect();
            totals = format!("{totals}; versions {}", listed(&versions, ""));
        }
        writeln!(f, "{}", wrap(&totals, 2))
    }
}

impl From<NodeState> for Tone {
    fn from(state: NodeState) -> Self {
        match state {
            NodeState::Ready | NodeState::NoReport => Self::Plain,
            NodeState::Degraded | NodeState::Stale => Self::Warning,
            NodeState::NotReady | NodeState::Unreachable | NodeState::Dead => Self::Bad,
        }
    }
}

impl Answer for NodeList {
    fn exit_status(&self) -> ExitStatus {
        let has = |is: fn(NodeState) -> bool| self.rows.iter().any(|row| is(row.state));
        if has(|state| state == NodeState::NotReady) {
            ExitStatus::Problems
        } else if has(NodeState::is_failing) {
            ExitStatus::Failing
        } else {
            ExitStatus::Done
        }
    }

    fn wide(&self) -> impl fmt::Display {
        Wide(self)
    }
}

/// All columns.
struct Wide<'a>(&'a NodeList);

impl fmt::Display for Wide<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = &[
            "NODE",
            "SUBNETS",
            "PUBLIC IPS",
            "BACKEND",
            "MIXED",
            "MTU",
            "STATE",
            "UNREACHABLE",
            "SEEN",
            "AGE",
            "VERSION",
        ];
        let Self(list) = self;
        list.write_table(f, TextTable::wide(heading), |row| {
            let mixed = row.mixed.map(|mixed| if mixed { "on" } else { "off" });
            let running = row.started.map(|started| list.now.duration_since(started));
            let running = running.and_then(|time| Duration::try_from(time).ok());
            vec![
                row.name.clone(),
                listed(&row.subnets, "-"),
                listed(&row.public_ips, "-"),
                or_dash(row.backend.as_ref()),
                or_dash(mixed),
                or_dash(row.mtu),
                row.state.to_string(),
                row.unreachable_peers(),
                row.seen(),
                or_dash(running.map(age)),
                or_dash(row.version.as_ref()),
            ]
        })
    }
}

impl fmt::Display for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = &["NODE", "SUBNET", "BACKEND", "MTU", "STATE", "UNREACHABLE", "SEEN"];
        self.write_table(f, TextTable::new(heading), |row| {
            vec![
                row.name.clone(),
                or_dash(row.subnets.first()),
                or_dash(row.backend.as_ref()),
                or_dash(row.mtu),
                row.state.to_string(),
                row.unreachable_peers(),
                row.seen(),
            ]
        })
    }
}

/// If the nodes of a cluster name more failing peers than this in all, each row has only [`FEW`].
const MANY: usize = 20_000;
const FEW: usize = 3;

/// The row of a node, with at most `most` failing peers.
fn row(node: &ClusterNode, evidence: &Evidence<'_>, most: usize) -> NodeRow {
    let (state, reason) = evidence.verdict(node);
    let report = node.report.as_ref().map(|stored| &stored.report);
    let published = node.lease.endpoints.first().map(|endpoint| endpoint.backend.as_str());
    let backend = report.map(|report| report.backend.as_str()).or(published);
    let daemon = report.and_then(|report| report.daemon.as_ref());
    let failing = |peer: &FailingPeer| FailingRow {
        name: evidence.name(&peer.lease),
        lease: peer.lease.clone(),
        family: peer.family,
        state: peer.reachability.state(),
        cause: peer.reachability.cause(),
        since: peer.since,
    };
    let failing_peers = report.iter().flat_map(|report| &report.failing_peers);
    NodeRow {
        name: node.name(),
        state,
        reason,
        version: report.map(|report| report.version.clone()),
        backend: backend.filter(|name| !name.is_empty()).map(str::to_owned),
        mixed: report.map(|report: &NodeReport| report.mixed),
        mtu: report.and_then(|report| report.pod_mtu),
        ready: daemon.map(|daemon| daemon.ready),
        peers: report.map(|report| report.reachability),
        failing_peers: failing_peers.take(most).map(failing).collect(),
        groups: report.map(|report| report.groups.clone()).unwrap_or_default(),
        unreachable_from: evidence.reported(node).unreachable,
        seen_seconds_ago: node.age().map(|age| age.as_secs()),
        started: daemon.map(|DaemonState { started, .. }| *started),
        public_ips: node.lease.endpoints.iter().map(|endpoint| endpoint.public_ip).collect(),
        subnets: node.lease.subnets().collect(),
        lease: node.lease.id.clone(),
    }
}

impl NodeRow {
    fn is_named(&self, name: &str) -> bool {
        let (public_ips, subnets) = (self.public_ips.iter().copied(), self.subnets.iter().copied());
        self.name == name || is_named(name, &self.lease, public_ips, subnets)
    }

    /// Unknown if none of its peers is probed.
    fn unreachable_peers(&self) -> String {
        let known = self.peers.filter(|peers| peers.total() > peers.unknown);
        or_dash(known.map(|peers| peers.unreachable))
    }

    fn seen(&self) -> String {
        or_dash(self.seen_seconds_ago.map(Duration::from_secs).map(age))
    }
}
