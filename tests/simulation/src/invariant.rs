//! The invariants: each is a sentence, and a function that judges a cluster by it.

use std::fmt;
use std::time::Duration;

use tweed::model::entry::{Entry, Key};
use tweed::model::prefix::Prefix;

use crate::act::{Act, EtcdAct, MachineId, SegmentAct};
use crate::cluster::Cluster;
use crate::etcd::Health;
use crate::network::LinkState;
use crate::node::{Node, foreign_route};

/// The judgement of an invariant on a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub at: Duration,
    pub detail: String,
}

/// Judges a history while it happens.
pub struct Judge {
    /// How long each node still has to run undisturbed until its paths are judged again.
    debts: Vec<Duration>,
    /// Where the pods of each node are. They stay there.
    pods: Vec<Option<Prefix>>,
    /// The copies with the machine id of another node, and that node.
    copied: Vec<(usize, usize)>,
}

const PATHS: &str = "pods of two nodes reach each other";
const SUBNETS: &str = "the subnet of a node never changes";
const RUNNING: &str = "no daemon ends by itself";
const COPIES: &str = "a copy of a machine ends while the original runs";
const READY: &str = "each node is ready once faults are over";
const VIEWS: &str = "the views of a daemon agree with the packets once faults are over";
const LEASES: &str = "each node has one lease";
const FOREIGN: &str = "nothing foreign is touched";
const LEFTOVERS: &str = "nothing is left over";

/// The time in which the daemon of a node repairs its kernel.
const REPAIR: Duration = Duration::from_secs(3);
/// The time in which a node gets its lease and programs its peers, and these learn of it.
const JOIN: Duration = Duration::from_secs(30);
/// The time after the end of a copy in which the original's paths are repaired.
const COPIED: Duration = Duration::from_secs(2);

impl Judge {
    pub fn new(nodes: usize) -> Self {
        Self { debts: vec![JOIN; nodes], pods: vec![None; nodes], copied: Vec::new() }
    }

    /// What a fault excuses. Daemons that end, stop or do not reach the store, and edits of the
    /// config, excuse nothing.
    pub fn take(&mut self, act: &Act) {
        match act {
            Act::PowerOff(node) | Act::DeleteLease(node) => self.excuse(*node, JOIN),
            Act::Reinstall(node) => {
                self.excuse(*node, JOIN);
                self.pods[*node] = None;
            }
            Act::LoseEntry(node, _)
            | Act::FlushTables(node)
            | Act::LinkDown(node, _)
            | Act::LinkUp(node, _) => self.excuse(*node, REPAIR),
            Act::Copy(node, MachineId::Kept) => {
                self.copied.push((self.debts.len() - 1, *node));
                self.excuse(*node, COPIED);
            }
            Act::Etcd(EtcdAct::Restore) | Act::Segment(SegmentAct::DropPods) => {
                (0..self.debts.len()).for_each(|node| self.excuse(node, JOIN));
            }
            Act::Kill(_)
            | Act::Start(_)
            | Act::Stop(_)
            | Act::Continue(_)
            | Act::PowerOn(_)
            | Act::StoreLink(..)
            | Act::Etcd(
                EtcdAct::Down
                | EtcdAct::Leaderless
                | EtcdAct::Slow(_)
                | EtcdAct::Up
                | EtcdAct::Compact
                | EtcdAct::BackUp,
            )
            | Act::Configure(_)
            | Act::Segment(SegmentAct::Cut(..) | SegmentAct::Join(..) | SegmentAct::PassPods)
            | Act::BackUpDisk(_)
            | Act::RestoreDisk(_)
            | Act::Copy(_, MachineId::New)
            | Act::Join => {}
        }
    }

    /// A machine was added.
    pub fn add(&mut self) {
        self.debts.push(JOIN);
        self.pods.push(None);
    }

    fn excuse(&mut self, node: usize, time: Duration) {
        if let Some(debt) = self.debts.get_mut(node) {
            *debt = (*debt).max(time);
        }
    }

    /// `time` has passed, in which nodes may have run undisturbed.
    pub fn pass(&mut self, time: Duration, cluster: &Cluster) {
        cluster.look_for_pods();
        // Until it ends, it may take the place of the original for a moment.
        for (copy, original) in self.copied.clone() {
            if cluster.nodes[copy].is_running() {
                self.excuse(original, COPIED);
            }
        }
        let is_etcd_up = cluster.etcd.health() == Health::Up;
        let segment = cluster.network.segment.borrow();
        let is_undisturbed = |node: &Node| {
            let is_connected =
                segment.hosts[node.index].is_up && node.link.state() == LinkState::Open;
            is_etcd_up && is_connected && (node.is_running() || node.is_copy)
        };
        // A node waits for what others publish.
        if cluster.nodes.iter().all(is_undisturbed) {
            self.debts.iter_mut().for_each(|debt| *debt = debt.saturating_sub(time));
        }
    }

    /// Judges this moment.
    pub fn look(&mut self, cluster: &Cluster) -> Option<Violation> {
        self.paths(cluster).or_else(|| self.subnets(cluster))
    }

    fn paths(&self, cluster: &Cluster) -> Option<Violation> {
        let is_judged =
            |node: &&Node| self.debts[node.index].is_zero() && (!node.is_copy || node.is_running());
        let judged: Vec<usize> =
            cluster.nodes.iter().filter(is_judged).map(|node| node.index).collect();
        let cut = cluster.network.segment.borrow().cut.clone();
        let pairs = judged.iter().flat_map(|from| judged.iter().map(move |to| (*from, *to)));
        let mut pairs = pairs.filter(|(from, to)| from != to && !cut.contains(&(*from, *to)));
        let (from, to, lost) =
            pairs.find_map(|(from, to)| Some((from, to, cluster.loss(from, to)?)))?;
        let detail = format!("n{} → n{}: {lost:?}", from + 1, to + 1);
        Some(violation(PATHS, cluster, detail))
    }

    fn subnets(&mut self, cluster: &Cluster) -> Option<Violation> {
        let segment = cluster.network.segment.borrow();
        for (node, (known, host)) in self.pods.iter_mut().zip(&segment.hosts).enumerate() {
            match (*known, host.pods) {
                (Some(before), Some(now)) if before != now => {
                    let detail = format!("n{}: {before}, then {now}", node + 1);
                    return Some(violation(SUBNETS, cluster, detail));
                }
                (None, found) => *known = found,
                (Some(_), _) => {}
            }
        }
        None
    }

    /// A copy has to end. So has its original, if the store has the lease of the copy again.
    fn ended(&self, cluster: &Cluster) -> Option<Violation> {
        let may_end = |node: &&Node| {
            node.is_copy || self.copied.iter().any(|(_, original)| *original == node.index)
        };
        let mut nodes = cluster.nodes.iter().filter(|node| !may_end(node));
        let ended = |node: &Node| Some((node.index, node.run.as_ref()?.ended()?));
        let (index, reason) = nodes.find_map(ended)?;
        Some(violation(RUNNING, cluster, format!("n{}: {reason}", index + 1)))
    }

    /// Judges the end of a history, after its faults.
    pub async fn end(&mut self, cluster: &mut Cluster) -> Option<Violation> {
        if let Some(found) =
            self.ended(cluster).or_else(|| leases(cluster)).or_else(|| foreign(cluster))
        {
            return Some(found);
        }
        let copies = self.copied.iter().map(|(copy, _)| &cluster.nodes[*copy]);
        if let Some(copy) = copies.into_iter().find(|copy| copy.is_running()) {
            return Some(violation(COPIES, cluster, format!("n{} runs", copy.index + 1)));
        }
        views(cluster).await.or_else(|| leftovers(cluster))
    }
}

fn violation(invariant: &'static str, cluster: &Cluster, detail: String) -> Violation {
    Violation { invariant, at: cluster.age(), detail }
}

fn leases(cluster: &Cluster) -> Option<Violation> {
    let leases = cluster.leases();
    let wrong = running(cluster).find_map(|node| {
        let address = format!("\"{}\"", node.address);
        let own: Vec<&str> = leases
            .iter()
            .filter(|(_, value)| value.contains(&address))
            .map(|(key, _)| key.as_str())
            .collect();
        let name = node.pods().map(|it| format!("{}-{}", it.base(), it.prefix_len()));
        let is_right =
            matches!((&own[..], &name), ([key], Some(name)) if key.ends_with(name.as_str()));
        (!is_right).then(|| format!("n{} with {name:?} has {own:?}", node.index + 1))
    });
    wrong.map(|detail| violation(LEASES, cluster, detail))
}

/// The nodes whose daemon has not ended by itself.
fn running(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.nodes.iter().filter(|node| node.is_running())
}

fn foreign(cluster: &Cluster) -> Option<Violation> {
    let route = foreign_route()?;
    let key = Entry::Route(route.clone()).key();
    let is_there = |node: &&Node| {
        node.kernel
            .read_state(|state| matches!(state.get(&key), Some(Entry::Route(it)) if *it == route))
    };
    let touched = cluster.nodes.iter().find(|node| !is_there(node))?;
    Some(violation(FOREIGN, cluster, format!("n{} lost {route}", touched.index + 1)))
}

async fn views(cluster: &mut Cluster) -> Option<Violation> {
    let peers = running(cluster).count() - 1;
    let indices: Vec<usize> = running(cluster).map(|node| node.index).collect();
    for index in indices {
        let Some(run) = cluster.nodes[index].run.as_ref() else { continue };
        let status = run.status();
        let Some(status) = cluster.answer(status).await else {
            return Some(violation(READY, cluster, format!("n{} does not answer", index + 1)));
        };
        if !status.ready || !status.refused.is_empty() {
            let detail = format!("n{}: {:?} {:?}", index + 1, status.reasons, status.refused);
            return Some(violation(READY, cluster, detail));
        }
        let is_reached = status.reachability.reachable + status.reachability.degraded == peers;
        let is_counted = status.peers.total() == peers && status.peers.missing == 0;
        if !is_reached || !is_counted {
            let detail = format!("n{}: {:?} {:?}", index + 1, status.reachability, status.peers);
            return Some(violation(VIEWS, cluster, detail));
        }
    }
    None
}

fn leftovers(cluster: &Cluster) -> Option<Violation> {
    let peers = running(cluster).count() - 1;
    running(cluster).find_map(|node| {
        let counted = node.kernel.read_state(|state| {
            let entries = state.entries();
            entries.filter(|entry| matches!(entry.key(), Key::Fdb(..))).count()
        });
        let detail =
            format!("n{} has {counted} forwarding entries for {peers} peers", node.index + 1);
        (counted != peers).then(|| violation(LEFTOVERS, cluster, detail))
    })
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, at, detail } = self;
        write!(f, "after {:.3}s, not true: {invariant}: {detail}", at.as_secs_f64())
    }
}
