//! The invariants: each is a sentence, and a function that judges a cluster by it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
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
    /// The nodes that have got the address of another one, or the disk.
    moved: BTreeSet<usize>,
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
        Self {
            debts: vec![JOIN; nodes],
            pods: vec![None; nodes],
            copied: Vec::new(),
            moved: BTreeSet::new(),
        }
    }

    /// What a fault excuses. Daemons that end, stop or do not reach the store, and edits of the
    /// config, excuse nothing.
    pub fn take(&mut self, act: &Act, cluster: &Cluster) {
        match act {
            Act::PowerOff(node) => self.excuse(*node, JOIN),
            Act::DeleteLease(node) => {
                self.excuse(*node, JOIN);
                // The subnet is free: a copy may be the first to claim it.
                let copies = self.copied.iter().filter(|(_, original)| original == node);
                self.moved.extend(copies.flat_map(|(copy, original)| [*copy, *original]));
            }
            Act::Reinstall(node) => self.forget(*node),
            // They have no pods any more, and may get each the subnet of the other one.
            Act::SwapAddresses(one, other) => {
                for node in [*one, *other] {
                    self.forget(node);
                    self.moved.insert(node);
                }
            }
            Act::LoseEntry(node, _)
            | Act::FlushTables(node)
            | Act::LinkDown(node, _)
            | Act::LinkUp(node, _) => self.excuse(*node, REPAIR),
            Act::Copy(node, MachineId::Kept) => {
                let (original, copy) = (&cluster.nodes[*node], self.debts.len() - 1);
                if is_running(original) && original.remembers() && !self.moved.contains(node) {
                    self.copied.push((copy, *node));
                    self.excuse(*node, COPIED);
                } else {
                    // Whichever of the two starts first has the subnet.
                    self.moved.extend([*node, copy]);
                    self.excuse(*node, JOIN);
                }
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

    fn forget(&mut self, node: usize) {
        self.excuse(node, JOIN);
        self.pods[node] = None;
    }

    fn excuse(&mut self, node: usize, time: Duration) {
        if let Some(debt) = self.debts.get_mut(node) {
            *debt = (*debt).max(time);
        }
    }

    /// `time` has passed, in which nodes may have run undisturbed.
    pub fn pass(&mut self, time: Duration, cluster: &Cluster) {
        cluster.look_for_pods();
        // Until it ends for the first time, it may take the place of the original for a moment.
        for (copy, original) in self.copied.clone() {
            if cluster.nodes[copy].ends.is_empty() {
                self.excuse(original, COPIED);
            }
        }
        let is_store_usable = cluster.etcd.health() == Health::Up && cluster.is_configured();
        let segment = cluster.network.segment.borrow();
        let is_undisturbed = |node: &Node| {
            let is_connected =
                segment.hosts[node.index].is_up && node.link.state() == LinkState::Open;
            is_store_usable && is_connected && (node.is_running() || self.may_end(node))
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
        let is_judged = |node: &&Node| {
            self.debts[node.index].is_zero()
                && (!self.may_end(node) || (is_running(node) && node.ends.is_empty()))
        };
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

    /// A copy has to end. So has its original, if the store has the lease of the copy again, and a
    /// node with a new address whose subnet is that of the node which has the previous address.
    fn may_end(&self, node: &Node) -> bool {
        let mut copied = self.copied.iter().flat_map(|(copy, original)| [copy, original]);
        self.moved.contains(&node.index) || copied.any(|index| *index == node.index)
    }

    /// Of a machine and its copies, those stay that run when the first copy is made.
    fn copies(&self, cluster: &Cluster) -> Option<Violation> {
        let mut copied = self.copied.iter().filter(|(_, original)| !self.moved.contains(original));
        let (copy, original) = copied.find(|(copy, _)| is_running(&cluster.nodes[*copy]))?;
        let ends = cluster.nodes[*original].ends.join("; ");
        let detail = format!("n{} runs, and n{} {ends}", copy + 1, original + 1);
        Some(violation(COPIES, cluster, detail))
    }

    fn ended(&self, cluster: &Cluster) -> Option<Violation> {
        let mut nodes = cluster.nodes.iter().filter(|node| !self.may_end(node));
        let (index, reason) = nodes.find_map(|node| Some((node.index, node.ends.first()?)))?;
        Some(violation(RUNNING, cluster, format!("n{}: {reason}", index + 1)))
    }

    fn stopped(&self, cluster: &Cluster) -> Option<Violation> {
        let mut nodes = cluster.nodes.iter().filter(|node| !self.may_end(node));
        let node = nodes.find(|node| !is_running(node))?;
        Some(violation(READY, cluster, format!("n{} does not run", node.index + 1)))
    }

    /// Judges the end of a history, after its faults.
    pub async fn end(&mut self, cluster: &mut Cluster) -> Option<Violation> {
        let found = self
            .ended(cluster)
            .or_else(|| self.leases(cluster))
            .or_else(|| foreign(cluster))
            .or_else(|| self.stopped(cluster))
            .or_else(|| self.copies(cluster));
        match found {
            Some(found) => Some(found),
            None => self.views(cluster).await.or_else(|| self.leftovers(cluster)),
        }
    }

    /// The number of peers that each node has. A node that has ended has a lease until its TTL is
    /// over.
    fn peers(&self, cluster: &Cluster) -> RangeInclusive<usize> {
        let running = running(cluster).count() - 1;
        let leases = cluster.leases().len() - 1;
        running..=if self.moved.is_empty() { running } else { leases.max(running) }
    }

    fn leases(&self, cluster: &Cluster) -> Option<Violation> {
        let leases = cluster.leases();
        let wrong = running(cluster).find_map(|node| {
            let address = format!("\"{}\"", node.address);
            let own: Vec<&str> = leases
                .iter()
                .filter(|(_, value)| value.contains(&address))
                .map(|(key, _)| key.as_str())
                .collect();
            let name = node.pods().map(|it| format!("{}-{}", it.base(), it.prefix_len()));
            let is_right = match (&own[..], &name) {
                ([key], Some(name)) => key.ends_with(name.as_str()),
                // The lease of the node that had the address before ends with its TTL.
                (keys, Some(name)) if self.moved.contains(&node.index) => {
                    keys.iter().any(|key| key.ends_with(name.as_str()))
                }
                _ => false,
            };
            (!is_right).then(|| format!("n{} with {name:?} has {own:?}", node.index + 1))
        });
        wrong.map(|detail| violation(LEASES, cluster, detail))
    }

    async fn views(&self, cluster: &mut Cluster) -> Option<Violation> {
        let peers = self.peers(cluster);
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
            let reached = status.reachability.reachable + status.reachability.degraded;
            let is_reached = reached >= *peers.start();
            let is_counted = peers.contains(&status.peers.total()) && status.peers.missing == 0;
            if !is_reached || !is_counted {
                let detail =
                    format!("n{}: {:?} {:?}", index + 1, status.reachability, status.peers);
                return Some(violation(VIEWS, cluster, detail));
            }
        }
        None
    }

    fn leftovers(&self, cluster: &Cluster) -> Option<Violation> {
        let peers = self.peers(cluster);
        running(cluster).find_map(|node| {
            let counted = node.kernel.read_state(|state| {
                let entries = state.entries();
                entries.filter(|entry| matches!(entry.key(), Key::Fdb(..))).count()
            });
            let detail =
                format!("n{} has {counted} forwarding entries for {peers:?} peers", node.index + 1);
            (!peers.contains(&counted)).then(|| violation(LEFTOVERS, cluster, detail))
        })
    }
}

/// Whether its daemon runs and has a subnet.
fn is_running(node: &Node) -> bool {
    node.is_running() && node.pods().is_some()
}

fn violation(invariant: &'static str, cluster: &Cluster, detail: String) -> Violation {
    Violation { invariant, at: cluster.age(), detail }
}

fn running(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.nodes.iter().filter(|node| is_running(node))
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

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, at, detail } = self;
        write!(f, "after {:.3}s, not true: {invariant}: {detail}", at.as_secs_f64())
    }
}
