//! `tweedctl connectivity test`: which nodes do not reach which, by the results of all probes and,
//! with `--pods`, by pings from a throw-away pod.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use super::evidence::ClusterNode;
use super::pings::{PingedPeer, PodPings, ping_from_pod};
use super::read;
use crate::model::lease::LeaseId;
use crate::model::path::{PeerReachability, ReachabilityState};
use crate::model::prefix::Family;
use crate::model::report::{self, Exception, FailingPeer, PeerGroup};
use crate::model::status::{LeaseStatus, PeerStatus};
use crate::operator::layout::{TextTable, Tone, age, counted, lasting, or_dash, summary, wrap};
use crate::operator::node::{self, CniFolders, Unanswered};
use crate::operator::output::{Selection, WatchFlag, is_named, numeric};
use crate::operator::store::StoreFlags;
use crate::operator::{Answer, Error, ExitStatus};
use crate::store::operator::StoreContents;

const STATES: &str = "\
Each node asks its peers by small and by full-size probes, in each address
family. The results are read from the nodes' reports in the store; those of
this node from its daemon, if it runs.

With --pods, a network namespace on this node, joined by the CNI plugins as
runtimes do, sends pings of 84 bytes and of its MTU to the host of each peer,
each up to three times, and is removed again. It needs root and the daemon.

Exit codes:
  0  no pair of nodes fails
  1  something of the pod is left, or it cannot be created, or a signal came
  2  the command line is invalid
  3  neither the store nor the daemon of this node can be read; with --pods,
     no daemon, no CNI config, or no permission
  5  a pair is degraded, unreachable or without a path";

/// Before the name of the node, as the source of a pod's pairs.
const POD: &str = "pod on ";

#[derive(Debug, Subcommand)]
pub(in crate::operator) enum ConnectivityCommand {
    /// Lists the pairs of nodes that do not reach each other, with the cause
    Test(ConnectivityOptions),
}

#[derive(Debug, Args)]
#[command(after_help = STATES)]
pub(in crate::operator) struct ConnectivityOptions {
    /// List all pairs, not only those that fail
    #[arg(long)]
    all: bool,
    /// Also ping each peer from a throw-away pod on this node
    #[arg(long, conflicts_with = "interval")]
    pods: bool,
    #[command(flatten)]
    cni: CniFolders,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    pub(in crate::operator) watch: WatchFlag,
    #[command(flatten)]
    store: StoreFlags,
}

/// Every pair of nodes, in each direction, or those that fail.
#[derive(Debug, Default, Serialize)]
pub(in crate::operator) struct Connectivity {
    pairs: Vec<NodePair>,
    /// The number of pairs in each state, also of those that are not listed.
    totals: BTreeMap<PairState, usize>,
    not_counted: Vec<NotCounted>,
    /// The number of pairs that do not fail and are not named in reports: if only some pairs are
    /// asked for, it is not known whether these are among them.
    unnamed: usize,
    /// None without `--pods`.
    pub(super) pods: Option<PodResults>,
    /// Why only the results of this node are listed.
    store_error: Option<String>,
    #[serde(skip)]
    now: Timestamp,
}

/// How a throw-away pod of this node reaches the hosts of the peers.
#[derive(Debug, Serialize)]
pub(super) struct PodResults {
    /// Of the pod.
    addresses: Vec<IpAddr>,
    /// Of the pings: small and full-size, in bytes with the IP header.
    sizes: [u16; 2],
    pairs: Vec<NodePair>,
    totals: BTreeMap<PairState, usize>,
    /// What could not be removed.
    left: Vec<String>,
}

/// How a node reaches another one.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct NodePair {
    from: String,
    to: String,
    family: Option<Family>,
    state: PairState,
    cause: Option<String>,
    since: Option<Timestamp>,
}

/// The state of a pair; the worst is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum PairState {
    Reachable,
    Unknown,
    Degraded,
    Unreachable,
    /// The peer is skipped, or its lease is rejected.
    NoPath,
}

/// A node whose results are not known.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct NotCounted {
    node: String,
    reason: String,
}

/// What a node knows about its peers.
struct Results {
    failing: Vec<FailingPeer>,
    groups: Vec<PeerGroup>,
    without_path: Vec<Exception>,
}

/// The results of this node, from its daemon.
pub(super) struct OwnResults {
    pub(super) lease: Option<LeaseId>,
    pub(super) peers: Vec<PeerStatus>,
}

pub(in crate::operator) async fn answer(
    options: &ConnectivityOptions,
    socket: &Path,
) -> Result<Connectivity, Error> {
    let ConnectivityOptions { all, pods, cni, selection, store, .. } = options;
    let contents = read(&store.open(socket).await?).await;
    let own = OwnResults::ask(socket).await;
    let (nodes, store_error) = match (contents, &own) {
        (Ok(StoreContents { records, reports, .. }), _) => {
            (ClusterNode::all(records, reports), None)
        }
        (Err(error), Ok(_)) => (Vec::new(), Some(error.to_string())),
        (Err(error), Err(unanswered)) => {
            return Err(Error::Unavailable(format!("{error}; and {unanswered}")));
        }
    };
    let pods = match &own {
        _ if !pods => None,
        Ok(own) => {
            let pings = ping_from_pod(&cni.places(Path::new("/")), &own.peers).await?;
            Some(PodResults::of(pings, own, &names(&nodes, Some(own))))
        }
        Err(unanswered) => {
            let why = format!("--pods reads the peers from the daemon: {unanswered}");
            return Err(Error::Unavailable(why));
        }
    };
    let connectivity = Connectivity::of(&nodes, own.as_ref().ok(), Timestamp::now());
    let connectivity = Connectivity { pods, store_error, ..connectivity };
    let name = selection.node.as_ref().map(|name| {
        let unknown = || Error::Usage(format!("no node {name} has a lease"));
        known_as(name, &nodes, own.as_ref().ok()).ok_or_else(unknown)
    });
    let connectivity = match (name.transpose()?, selection.family) {
        (None, None) => connectivity,
        (name, family) => connectivity.only(name.as_deref(), family),
    };
    Ok(if *all { connectivity } else { connectivity.failing_only() })
}

/// The name in pairs of the node that is named by name, public IP, subnet or lease.
pub(super) fn known_as(
    name: &str,
    nodes: &[ClusterNode],
    own: Option<&OwnResults>,
) -> Option<String> {
    let node = nodes.iter().find(|node| {
        let public_ips = node.lease.endpoints.iter().map(|endpoint| endpoint.public_ip);
        node.name() == name || is_named(name, &node.lease.id, public_ips, node.lease.subnets())
    });
    let peer = || {
        let mut peers = own.into_iter().flat_map(|own| &own.peers);
        peers.find(|peer| is_named(name, &peer.lease, peer.public_ip, peer.subnet))
    };
    node.map(ClusterNode::name).or_else(|| peer().map(peer_name))
}

/// Without a store, only the daemon has the addresses.
fn peer_name(peer: &PeerStatus) -> String {
    peer.public_ip.map_or_else(|| peer.lease.to_string(), |ip| ip.to_string())
}

impl OwnResults {
    async fn ask(socket: &Path) -> Result<Self, Unanswered> {
        let peers = node::ask(socket, "/peers").await?;
        let leases: Vec<LeaseStatus> = node::ask(socket, "/leases").await?;
        let own = leases.into_iter().find(|lease| lease.own);
        Ok(Self { lease: own.map(|status| status.lease.id), peers })
    }

    fn name<'a>(&self, names: &'a BTreeMap<LeaseId, String>) -> &'a str {
        let name = self.lease.as_ref().and_then(|lease| names.get(lease));
        name.map_or("this node", String::as_str)
    }

    /// What the probes of this node show about a peer that its pod does not reach.
    fn probed(&self, peer: &PingedPeer) -> Option<String> {
        let family = Some(peer.subnet.family());
        let known = self.peers.iter().find(|it| it.lease == peer.lease && it.family == family)?;
        match known.reachability? {
            PeerReachability::Reachable => Some(
                "the probes of this node are answered: find what drops packets of pods with \
                 tweedctl trace and doctor"
                    .to_owned(),
            ),
            failing => failing.cause().map(|cause| format!("probes of this node: {cause}")),
        }
    }
}

impl Results {
    fn of_peers(peers: &[PeerStatus], now: Timestamp) -> Self {
        let failing = peers.iter().filter_map(|peer| {
            let reachability = peer.reachability.filter(|it| it.state().is_failing())?;
            let time = reachability.since_ms().map(Duration::from_millis);
            let since = time.and_then(|time| now.checked_sub(time).ok());
            let (lease, family) = (peer.lease.clone(), peer.family);
            Some(FailingPeer { lease, family, reachability, since })
        });
        let without_path = peers.iter().filter(|peer| peer.path.is_none()).map(|peer| Exception {
            lease: peer.lease.clone(),
            family: peer.family,
            path: None,
            reason: peer.reason.clone().unwrap_or_default(),
            probing: false,
        });
        Self {
            failing: failing.collect(),
            groups: report::groups(peers),
            without_path: without_path.collect(),
        }
    }

    /// Those of a report that is fresh, else why there are none.
    fn of_report(node: &ClusterNode) -> Result<Self, String> {
        let Some(report) = node.fresh() else {
            return Err(match &node.report {
                Some(_) => format!("its report is stale, not refreshed{}", lasting(node.age())),
                None => "it has no report".to_owned(),
            });
        };
        let without_path = report.exceptions.iter().filter(|peer| peer.path.is_none());
        Ok(Self {
            failing: report.failing_peers.clone(),
            groups: report.groups.clone(),
            without_path: without_path.cloned().collect(),
        })
    }
}

impl Connectivity {
    pub(super) fn of(nodes: &[ClusterNode], own: Option<&OwnResults>, now: Timestamp) -> Self {
        let mut connectivity = Self { now, ..Self::default() };
        let names = names(nodes, own);
        let this_node = own.and_then(|own| own.lease.clone());
        for node in nodes.iter().filter(|node| this_node.as_ref() != Some(&node.lease.id)) {
            match Results::of_report(node) {
                Ok(results) => connectivity.add(&node.name(), &results, &names),
                Err(reason) => {
                    connectivity.not_counted.push(NotCounted { node: node.name(), reason });
                }
            }
        }
        if let Some(own) = own {
            connectivity.add(own.name(&names), &Results::of_peers(&own.peers, now), &names);
        }
        sort(&mut connectivity.pairs);
        connectivity.not_counted.sort_by_cached_key(|it| numeric(&it.node));
        connectivity
    }

    /// The results of the node `from`.
    fn add(&mut self, from: &str, results: &Results, names: &BTreeMap<LeaseId, String>) {
        for group in &results.groups {
            *self.totals.entry(group.state.into()).or_default() += group.count;
        }
        let pair = pairs_from(from, names);
        self.pairs.extend(results.failing.iter().map(|peer| {
            let FailingPeer { lease, family, reachability, since } = peer;
            let state = Some(reachability.state()).into();
            NodePair { since: *since, ..pair(lease, *family, state, reachability.cause()) }
        }));
        self.pairs.extend(results.without_path.iter().map(|peer| {
            pair(&peer.lease, peer.family, PairState::NoPath, Some(peer.reason.clone()))
        }));
        // The others have no cause. Reports of large clusters do not name them.
        let others = results.groups.iter().map(|group| (group, PairState::from(group.state)));
        for (group, state) in others.filter(|(_, state)| !state.is_failing()) {
            let peers = group.peers.iter();
            self.pairs.extend(peers.map(|lease| pair(lease, group.family, state, None)));
        }
    }

    /// The pairs of one node, of one family, or both. Only these are counted.
    #[must_use]
    pub(super) fn only(mut self, node: Option<&str>, family: Option<Family>) -> Self {
        self.unnamed = self.totals.values().sum::<usize>().saturating_sub(self.pairs.len());
        let is_about = |name: &str| node.is_none_or(|node| node == name);
        let pods = self.pods.iter_mut().map(|pods| (&mut pods.pairs, &mut pods.totals));
        for (pairs, totals) in [(&mut self.pairs, &mut self.totals)].into_iter().chain(pods) {
            pairs.retain(|pair| {
                let from = pair.from.strip_prefix(POD).unwrap_or(&pair.from);
                (is_about(from) || is_about(&pair.to))
                    && (family.is_none() || pair.family == family)
            });
            *totals = totals_of(pairs);
        }
        self.not_counted.retain(|it| is_about(&it.node));
        self
    }

    #[must_use]
    pub(super) fn failing_only(mut self) -> Self {
        let pods = self.pods.iter_mut().map(|pods| &mut pods.pairs);
        for pairs in [&mut self.pairs].into_iter().chain(pods) {
            pairs.retain(|pair| pair.state.is_failing());
        }
        self
    }
}

impl PodResults {
    pub(super) fn of(pings: PodPings, own: &OwnResults, names: &BTreeMap<LeaseId, String>) -> Self {
        let from = format!("{POD}{}", own.name(names));
        let pair = pairs_from(&from, names);
        let pinged = pings.peers.iter().map(|peer| {
            let (state, cause) = outcome(peer, pings.sizes);
            let probed = own.probed(peer).filter(|_| state.is_failing());
            let cause = cause.map(|cause| [Some(cause), probed]);
            let cause = cause.map(|it| it.into_iter().flatten().collect::<Vec<_>>().join("; "));
            pair(&peer.lease, Some(peer.subnet.family()), state, cause)
        });
        let without_path = own
            .peers
            .iter()
            .filter(|peer| peer.path.is_none())
            .map(|peer| pair(&peer.lease, peer.family, PairState::NoPath, peer.reason.clone()));
        let mut pairs: Vec<NodePair> = pinged.chain(without_path).collect();
        sort(&mut pairs);
        let totals = totals_of(&pairs);
        let PodPings { addresses, sizes, left, .. } = pings;
        Self { addresses, sizes, pairs, totals, left }
    }
}

/// The state of the pair of the pod and a peer, and the cause.
fn outcome(peer: &PingedPeer, [small, large]: [u16; 2]) -> (PairState, Option<String>) {
    let (state, cause) = match (peer.from, peer.answered) {
        (None, _) => {
            let family = peer.subnet.family();
            (PairState::NoPath, format!("the CNI plugins gave the pod no {family} address"))
        }
        (Some(_), [true, true]) => return (PairState::Reachable, None),
        (Some(_), [true, false]) => (
            PairState::Degraded,
            format!(
                "pings of {small} bytes are answered, those of {large} bytes are not: check the \
                 MTU of the underlay"
            ),
        ),
        (Some(_), [false, true]) => (
            PairState::Degraded,
            format!("pings of {large} bytes are answered, those of {small} bytes are not"),
        ),
        (Some(_), [false, false]) => {
            (PairState::Unreachable, format!("no ping of {small} or {large} bytes is answered"))
        }
    };
    (state, Some(cause))
}

/// The names of all nodes. Without a store, only the daemon has the addresses of the peers.
fn names(nodes: &[ClusterNode], own: Option<&OwnResults>) -> BTreeMap<LeaseId, String> {
    let mut names: BTreeMap<LeaseId, String> =
        nodes.iter().map(|node| (node.lease.id.clone(), node.name())).collect();
    for peer in own.iter().flat_map(|own| &own.peers) {
        names.entry(peer.lease.clone()).or_insert_with(|| peer_name(peer));
    }
    names
}

/// Creates pairs of the node `from` and the node of a lease.
fn pairs_from(
    from: &str,
    names: &BTreeMap<LeaseId, String>,
) -> impl Fn(&LeaseId, Option<Family>, PairState, Option<String>) -> NodePair {
    move |lease, family, state, cause| {
        let to = names.get(lease).map_or_else(|| lease.to_string(), Clone::clone);
        NodePair { from: from.to_owned(), to, family, state, cause, since: None }
    }
}

fn totals_of(pairs: &[NodePair]) -> BTreeMap<PairState, usize> {
    let mut totals = BTreeMap::new();
    for pair in pairs {
        *totals.entry(pair.state).or_default() += 1;
    }
    totals
}

fn sort(pairs: &mut [NodePair]) {
    pairs.sort_by_cached_key(|it| (numeric(&it.from), numeric(&it.to), it.family));
}

impl PairState {
    const fn is_failing(self) -> bool {
        match self {
            Self::Reachable | Self::Unknown => false,
            Self::Degraded | Self::Unreachable | Self::NoPath => true,
        }
    }
}

impl fmt::Display for PairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reachable => "reachable",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Unreachable => "unreachable",
            Self::NoPath => "no path",
        })
    }
}

impl From<PairState> for Tone {
    fn from(state: PairState) -> Self {
        match state {
            PairState::Reachable | PairState::Unknown => Self::Plain,
            PairState::Degraded => Self::Warning,
            PairState::Unreachable | PairState::NoPath => Self::Bad,
        }
    }
}

impl From<Option<ReachabilityState>> for PairState {
    fn from(state: Option<ReachabilityState>) -> Self {
        match state {
            Some(ReachabilityState::Reachable) => Self::Reachable,
            Some(ReachabilityState::Degraded) => Self::Degraded,
            Some(ReachabilityState::Unreachable) => Self::Unreachable,
            Some(ReachabilityState::Unknown) => Self::Unknown,
            None => Self::NoPath,
        }
    }
}

impl Answer for Connectivity {
    fn exit_status(&self) -> ExitStatus {
        let pods = self.pods.iter().flat_map(|pods| pods.totals.keys());
        let is_failing = self.totals.keys().chain(pods).any(|state| state.is_failing())
            || self.pairs.iter().any(|pair| pair.state.is_failing());
        let is_left = self.pods.as_ref().is_some_and(|pods| !pods.left.is_empty());
        if is_left {
            ExitStatus::Problems
        } else if is_failing {
            ExitStatus::Failing
        } else {
            ExitStatus::Done
        }
    }
}

impl fmt::Display for Connectivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_pods = self.pods.iter().flat_map(|pods| &pods.pairs);
        let pairs: Vec<&NodePair> = self.pairs.iter().chain(of_pods).collect();
        if !pairs.is_empty() {
            let mut table = TextTable::new(&["FROM", "TO", "FAMILY", "STATE", "FOR"]);
            for NodePair { from, to, family, state, cause, since } in pairs {
                let time = since.map(|since| self.now.duration_since(since));
                let time = time.and_then(|time| Duration::try_from(time).ok());
                let (family, time) = (or_dash(*family), or_dash(time.map(age)));
                let cells: [&dyn fmt::Display; 5] = [from, to, &family, state, &time];
                table.toned_row((*state).into(), &cells, cause.clone());
            }
            table.fmt(f)?;
            writeln!(f)?;
        }
        if let Some(error) = &self.store_error {
            let text = format!("only the results of this node are shown: {error}");
            writeln!(f, "{}", wrap(&text, 2))?;
        }
        for NotCounted { node, reason } in &self.not_counted {
            writeln!(f, "{}", wrap(&format!("{node} is not counted: {reason}"), 2))?;
        }
        if self.unnamed > 0 {
            let pairs = counted(self.unnamed, "pair");
            let text = format!("{pairs} of the cluster do not fail, and reports do not name them");
            writeln!(f, "{}", wrap(&text, 2))?;
        }
        writeln!(f, "{}", summary("pair", &self.totals))?;
        let Some(PodResults { sizes: [small, large], totals, left, .. }) = &self.pods else {
            return Ok(());
        };
        let pods = summary("peer", totals);
        let text =
            format!("from a pod of this node, by pings of {small} and {large} bytes: {pods}");
        writeln!(f, "{}", wrap(&text, 2))?;
        left.iter().try_for_each(|left| writeln!(f, "{}", wrap(left, 2)))
    }
}
