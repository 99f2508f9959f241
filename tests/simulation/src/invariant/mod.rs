//! The invariants: each is a sentence, and a function that judges a cluster by it.

mod arrivals;
mod end;
mod identity;
mod load;
mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use self::arrivals::Arrivals;
use self::load::Load;
use self::repair::Spoiled;
pub(crate) use self::repair::own_entries;
use crate::act::{Act, EtcdAct, InterfaceAct, KernelAct, SegmentAct};
use crate::cluster::Cluster;
use crate::network::LinkState;
use crate::node::Node;
use crate::packets::stack::Pods;
use crate::store::{Health, Store};

/// The judgement of an invariant on a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub at: Duration,
    pub detail: String,
}

/// Judges a history while it happens.
pub struct Judge {
    /// Whether a node has its subnet by its name, whatever its address and its disk are.
    is_named: bool,
    /// How long a node has to run undisturbed until it has joined.
    join: Duration,
    /// Of the whole cluster: all nodes have to run undisturbed.
    debts: Vec<Debt>,
    /// Of one node: only it has to run undisturbed.
    repairs: Vec<Debt>,
    /// Where the pods of each node are. They stay there.
    pods: Vec<Option<Pods>>,
    /// The copies with the machine id of another node, and that node.
    copied: Vec<(usize, usize)>,
    /// The nodes that have got the address of another one, or the disk.
    moved: BTreeSet<usize>,
    /// How long nothing has disturbed any node, or changed in the store, and all disks have had
    /// space.
    calm: Duration,
    /// Whether nodes of different backends reach each other: all have read that they should.
    is_mixed: bool,
    /// The text of the network config, and when it was edited last.
    config: Option<String>,
    edited: Option<Duration>,
    /// When nodes of different backends no longer had to reach each other.
    divided: Duration,
    /// From when on two nodes know that no direct path leads from one to the other.
    cut: BTreeMap<(usize, usize), Duration>,
    /// How long each daemon has read the store at a stretch since it started, up to the time after which
    /// it has read all.
    reading: BTreeMap<usize, Duration>,
    /// All leases, and the config.
    store: Option<Vec<(String, String)>>,
    /// The nodes that lost power when their checkpoint was up to date: they reach all others
    /// without the store.
    alone: BTreeSet<usize>,
    /// The nodes whose kernel refuses to change routes.
    refused: BTreeSet<usize>,
    /// The nodes whose disk is full, or was: how long it takes until they save their checkpoint.
    full: BTreeMap<usize, Duration>,
    /// The addresses of the nodes when their disks were copied.
    backups: BTreeMap<usize, u8>,
    /// The addresses of the nodes when etcd was copied.
    copied_store: Vec<u8>,
    copied_store_at: Duration,
    /// When an operator deleted the lease of a node, or its term ended. The node has another one since.
    freed: BTreeMap<usize, Duration>,
    /// The machines that lost what they knew, and how many leases they may have since.
    forgotten: BTreeMap<usize, usize>,
    /// The nodes that recognise their lease in a restored etcd only by their address.
    unproved: BTreeSet<usize>,
    /// The nodes that may have got another subnet, because their Node was deleted.
    rejoined: BTreeSet<usize>,
    /// The nodes that have, or had, an address.
    addresses: BTreeMap<u8, BTreeSet<usize>>,
    arrivals: Arrivals,
    load: Load,
    spoiled: Option<Spoiled>,
    /// How long nothing at all has happened, so that kernels are as their daemons want them.
    settled: Duration,
}

/// How long a node has to run undisturbed, at a stretch, until its paths are judged again.
#[derive(Clone, Copy, Default)]
struct Debt {
    whole: Duration,
    left: Duration,
}

impl Debt {
    /// `time` has passed, in which it may be paid.
    fn pass(&mut self, time: Duration, is_paid: bool) {
        if is_paid {
            self.left = self.left.saturating_sub(time);
        } else if !self.left.is_zero() {
            self.left = self.whole;
        }
    }
}

const PATHS: &str = "pods of two nodes reach each other";
const CONNECTIONS: &str = "connections of nodes, and by ports of nodes, with pods stay open";
const SUBNETS: &str = "the subnet of a node never changes";
const REPAIRED: &str = "what other programs remove or change in a kernel is there again";
const LOAD: &str = "a daemon asks its store and its kernel a limited number of times";

/// The time in which the daemon of a node repairs its kernel.
const REPAIR: Duration = Duration::from_secs(3);
/// The time in which a node gets its lease and programs its peers, and these learn of it. While
/// etcd does not answer, clients wait for at most 30 s between two attempts.
const JOIN: Duration = Duration::from_secs(35);
/// A distant etcd looks busy: a node polls it four times, for some seconds in all, before it lists the
/// leases.
const JOIN_FAR_APART: Duration = Duration::from_secs(45);
/// The time in which a new cluster is complete.
const START: Duration = Duration::from_secs(14);
const START_FAR_APART: Duration = Duration::from_secs(30);
/// The time in which probes find that a direct path fails.
const PROBED: Duration = Duration::from_secs(8);
/// The time after which a change in the store is in each checkpoint.
pub(crate) const SAVED: Duration = Duration::from_secs(15);
/// The time after which a checkpoint is saved that could not be.
const SAVED_AGAIN: Duration = Duration::from_secs(35);
/// The time after which each node that reads the store has read a changed config.
const READ: Duration = Duration::from_secs(10);
/// The time after the end of a copy in which the original's paths are repaired.
const COPIED: Duration = Duration::from_secs(2);

impl Judge {
    pub fn new(cluster: &Cluster) -> Self {
        let mut judge = Self {
            is_named: matches!(cluster.store, Store::Kubernetes(_)),
            join: if cluster.setup.is_wide { JOIN_FAR_APART } else { JOIN },
            debts: Vec::new(),
            repairs: Vec::new(),
            pods: Vec::new(),
            copied: Vec::new(),
            moved: BTreeSet::new(),
            calm: Duration::ZERO,
            is_mixed: true,
            config: None,
            edited: None,
            divided: Duration::ZERO,
            cut: BTreeMap::new(),
            reading: BTreeMap::new(),
            store: None,
            alone: BTreeSet::new(),
            refused: BTreeSet::new(),
            full: BTreeMap::new(),
            backups: BTreeMap::new(),
            copied_store: Vec::new(),
            copied_store_at: Duration::ZERO,
            freed: BTreeMap::new(),
            forgotten: BTreeMap::new(),
            unproved: BTreeSet::new(),
            rejoined: BTreeSet::new(),
            addresses: BTreeMap::new(),
            arrivals: Arrivals::default(),
            load: Load::default(),
            spoiled: None,
            settled: Duration::ZERO,
        };
        let start = if cluster.setup.is_wide { START_FAR_APART } else { START };
        cluster.nodes.iter().for_each(|node| judge.watch(node, start));
        judge
    }

    /// What a fault excuses. Daemons that end, stop or do not reach the store, and edits of the
    /// config, excuse nothing.
    pub fn take(&mut self, act: &Act, cluster: &Cluster) {
        self.disturb();
        match act {
            Act::PowerOff(node)
            | Act::Reinstall(node)
            | Act::Readdress(node, _)
            | Act::BackUpDisk(node)
            | Act::RestoreDisk(node) => self.take_machine(act, *node, cluster),
            Act::SwapAddresses(one, other) => self.swap([*one, *other], cluster),
            Act::Copy(node, id) => self.copy(*node, *id, cluster),
            Act::Leave(node) => self.free(*node),
            Act::Deregister(node) | Act::Register(node, _) => {
                self.need_store(*node);
                self.rejoined.insert(*node);
            }
            Act::DeleteLease(node) | Act::ExpireLease(node) => {
                self.need_store(*node);
                self.free(*node);
                self.freed.insert(*node, cluster.age());
            }
            Act::Etcd(EtcdAct::BackUp) => {
                self.copied_store_at = cluster.age();
                self.copied_store = cluster.nodes.iter().map(|node| node.address).collect();
            }
            Act::Etcd(EtcdAct::Restore(_)) => self.restore_etcd(cluster),
            Act::Segment(act) => self.take_segment(*act, cluster),
            Act::Configure(_) | Act::Migrate(_) => self.configure(cluster),
            Act::Kernel(node, KernelAct::RefuseRoutes) => {
                self.refused.insert(*node);
                self.excuse(*node, self.join);
            }
            Act::Kernel(node, KernelAct::AllowRoutes) => {
                self.refused.remove(node);
            }
            Act::FillDisk(node) => {
                self.full.insert(*node, Duration::MAX);
            }
            Act::FreeDisk(node) => {
                self.full.insert(*node, SAVED_AGAIN);
            }
            // A daemon that has not heard of the peers since it started replaces nothing.
            Act::ChangeEntry(node, _) if !self.has_read(*node) => self.need_store(*node),
            // Another MTU costs no packet.
            Act::Interface(_, InterfaceAct::Mtu(_)) => {}
            Act::LoseEntry(node, _)
            | Act::ChangeEntry(node, _)
            | Act::FlushTables(node)
            | Act::Kernel(node, KernelAct::MakeStrict | KernelAct::DropForwarded)
            | Act::Interface(node, _) => self.repairs[*node] = Debt { whole: REPAIR, left: REPAIR },
            Act::TakeOver(node) | Act::Upgrade(node) | Act::Start(node) | Act::PowerOn(node) => {
                self.reading.remove(node);
                self.start(&cluster.nodes[*node], cluster);
            }
            Act::Join => self.start(&cluster.nodes[self.debts.len() - 1], cluster),
            Act::Kill(node) => self.note_unsaved(*node, cluster),
            Act::Stop(_)
            | Act::Continue(_)
            | Act::StoreLink(..)
            | Act::ReserveLease(_)
            | Act::Etcd(_)
            | Act::Kernel(..) => {}
        }
    }

    fn take_segment(&mut self, act: SegmentAct, cluster: &Cluster) {
        match act {
            SegmentAct::DropPods => {
                (0..self.debts.len()).for_each(|node| self.need_probes(node, cluster));
            }
            SegmentAct::CutDirect(from, to) => {
                self.need_probes(from, cluster);
                self.need_probes(to, cluster);
                let have_read = self.has_read(from) && self.has_read(to);
                let time = if have_read { PROBED } else { self.join };
                self.cut.insert((from, to), cluster.age() + time);
            }
            SegmentAct::JoinDirect(from, to) => {
                self.cut.remove(&(from, to));
            }
            // Answers get back again, which show that direct packets do not.
            SegmentAct::Join(from, to) => {
                let segment = cluster.network.segment.borrow();
                if [(from, to), (to, from)].iter().any(|path| segment.drops_directly(*path)) {
                    self.need_probes(from, cluster);
                    self.need_probes(to, cluster);
                }
            }
            SegmentAct::Cut(..) | SegmentAct::PassPods => {}
        }
    }

    /// Without `Mixed`, nodes of different backends do not reach each other; nor do those that differ in
    /// `DirectRouting`, if their filters are strict. An edit that removes `Mixed` waits at nodes that have
    /// it, over restarts too, and an edit of the backend waits at nodes without `Mixed` until their next
    /// start.
    fn configure(&mut self, cluster: &Cluster) {
        let (was_mixed, before) = (self.is_mixed, self.edited);
        let text = cluster.config();
        if text != self.config {
            (self.config, self.edited) = (text, Some(cluster.age()));
        }
        let is_soon = before.is_some_and(|edited| cluster.age() < edited + READ);
        self.is_mixed &= cluster.is_mixed() != Some(false);
        if self.is_mixed {
            return;
        }
        if was_mixed {
            self.divided = cluster.age();
        }
        // A node may have applied the edit before this one, and not published it yet.
        if was_mixed && is_soon {
            self.all_need_store();
        }
        if cluster.is_mixed() == Some(true) {
            // Some nodes may have read `Mixed` and applied a second edit already.
            cluster.cut_off().into_iter().for_each(|node| self.need_store(node));
        } else if !cluster.is_uniform() {
            let without = cluster.nodes.iter().filter(|node| !node.is_mixed());
            without.for_each(|node| self.need_store(node.index));
        }
    }

    /// The direct paths that failed before the end of `Mixed`: both nodes know that, and keep the tunnel.
    fn cut_before_end(&self) -> BTreeSet<(usize, usize)> {
        let known = self.cut.iter().filter(|(_, from)| **from <= self.divided);
        known.map(|(path, _)| *path).collect()
    }

    /// The daemon of a node starts, and may apply an edit of the backend.
    fn start(&mut self, node: &Node, cluster: &Cluster) {
        if !self.is_mixed && !node.is_mixed() && !cluster.follows_config() {
            self.need_store(node.index);
        }
    }

    /// A machine was added.
    pub fn add(&mut self, node: &Node) {
        self.watch(node, self.join);
    }

    fn watch(&mut self, node: &Node, time: Duration) {
        self.debts.push(Debt { whole: time, left: time });
        self.repairs.push(Debt::default());
        self.pods.push(None);
        self.note_address(node.index, node.address);
    }

    /// Only what the store has lets others reach this node, and it them.
    fn need_store(&mut self, node: usize) {
        self.excuse(node, self.join);
        self.alone.remove(&node);
        self.cut.retain(|(from, to), _| *from != node && *to != node);
    }

    /// Whether its daemon knows the leases and the secret of probes.
    fn has_read(&self, node: usize) -> bool {
        self.reading.get(&node).is_some_and(|time| *time >= self.join)
    }

    /// Probes show a path that fails to daemons that have their secret from the store, if their answers
    /// get back.
    fn need_probes(&mut self, node: usize, cluster: &Cluster) {
        let are_answered = cluster.network.segment.borrow().cut.is_empty();
        if are_answered && self.has_read(node) {
            self.excuse(node, PROBED);
            self.alone.remove(&node);
        } else {
            self.need_store(node);
        }
    }

    fn all_need_store(&mut self) {
        (0..self.debts.len()).for_each(|node| self.need_store(node));
    }

    fn excuse(&mut self, node: usize, time: Duration) {
        if let Some(debt) = self.debts.get_mut(node).filter(|debt| debt.left < time) {
            *debt = Debt { whole: time, left: time };
        }
    }

    /// `time` has passed, in which nodes may have run undisturbed.
    pub fn pass(&mut self, time: Duration, cluster: &Cluster) {
        cluster.look_for_pods();
        self.note_unknown_leases(cluster);
        // Until it ends for the first time, it may take the place of the original for a moment.
        for (copy, original) in self.copied.clone() {
            if cluster.nodes[copy].ends.is_empty() {
                self.excuse(original, COPIED);
            }
        }
        let is_store_usable = cluster.store.health() == Health::Up && cluster.is_mixed().is_some();
        let segment = cluster.network.segment.borrow();
        let runs = |node: &Node| {
            let is_up = segment.hosts[node.index].is_up && !self.refused.contains(&node.index);
            let has_ended = self.may_end(node) && !node.ends.is_empty();
            is_up && (node.is_running() || node.run.is_none() && has_ended)
        };
        let is_connected = |node: &Node| is_store_usable && node.link.state() == LinkState::Open;
        // A node waits for what others publish.
        let is_registered = self.rejoined.is_empty() || cluster.is_registered();
        let is_undisturbed =
            is_registered && cluster.members().all(|node| is_connected(node) && runs(node));
        let remembers = |node: &Node| node.remembers() && !self.full.contains_key(&node.index);
        let repairs = |node: &Node| runs(node) && (is_connected(node) || remembers(node));
        let repairing: Vec<bool> = cluster.nodes.iter().map(repairs).collect();
        let forwards = |node: &Node| {
            let is_up = segment.hosts[node.index].is_up && !self.refused.contains(&node.index);
            is_up && (node.is_running() || node.run.is_none() && !node.ends.is_empty())
        };
        for node in &cluster.nodes {
            let reading = self.reading.entry(node.index).or_default();
            let has_read = *reading >= self.join && node.run.is_some();
            if !has_read {
                let reads = node.is_running() && is_connected(node);
                *reading = if reads { *reading + time } else { Duration::ZERO };
            }
        }
        let is_forwarding = cluster.members().all(forwards);
        for (repair, is_paid) in self.repairs.iter_mut().zip(repairing) {
            repair.pass(time, is_paid);
        }
        for (node, debt) in self.debts.iter_mut().enumerate() {
            debt.pass(time, is_undisturbed || is_forwarding && self.alone.contains(&node));
        }
        let store = cluster.stored();
        self.full.values_mut().for_each(|left| *left = left.saturating_sub(time));
        self.full.retain(|_, left| !left.is_zero());
        let is_saved = self.store.as_ref() == Some(&store) && self.full.is_empty();
        let is_calm = is_undisturbed && cluster.is_configured() && is_saved;
        self.calm = if is_calm { self.calm + time } else { Duration::ZERO };
        self.settle(time, is_calm && segment.is_whole());
        self.store = Some(store);
        self.is_mixed |= cluster.is_mixed() == Some(true) && self.calm >= READ;
    }

    /// A command of an operator that panics is judged whatever happens.
    pub fn panicked(cluster: &Cluster) -> Option<Violation> {
        let detail = "a command of tweedctl has panicked".to_owned();
        cluster.has_panicked().then(|| violation(end::RUNNING, cluster, detail))
    }

    /// Judges this moment.
    pub fn look(&mut self, cluster: &Cluster) -> Option<Violation> {
        self.configure(cluster);
        let asked = self.load.check(cluster).map(|detail| violation(LOAD, cluster, detail));
        let repaired =
            |judge: &mut Self| Some(violation(REPAIRED, cluster, judge.unrepaired(cluster)?));
        let found = asked.or_else(|| self.paths(cluster)).or_else(|| self.subnets(cluster));
        found.or_else(|| repaired(self))
    }

    fn paths(&mut self, cluster: &Cluster) -> Option<Violation> {
        let stays =
            |node: &Node| is_running(node) && node.ends.is_empty() && cluster.holds_lease(node);
        let is_judged = |node: &&Node| {
            let debts = [&self.debts[node.index], &self.repairs[node.index]];
            debts.iter().all(|debt| debt.left.is_zero()) && (!self.may_end(node) || stays(node))
        };
        let judged: Vec<usize> = cluster.members().filter(is_judged).map(|it| it.index).collect();
        let segment = cluster.network.segment.borrow();
        self.arrivals.check(segment.outline(), &judged);
        let pairs = judged.iter().flat_map(|from| judged.iter().map(move |to| (*from, *to)));
        // Without `Mixed`, a node has only one path to another.
        let (is_mixed, waiting) = (self.is_mixed, self.cut_before_end());
        let is_cut = |pair: &(usize, usize)| {
            let is_without_tunnel = !is_mixed && !waiting.contains(pair);
            // A node that gets no answers at all keeps its path.
            let has_no_answers = segment.cut.contains(&(pair.1, pair.0));
            let has_one_path = is_without_tunnel || has_no_answers;
            segment.cut.contains(pair) || has_one_path && segment.drops_directly(*pair)
        };
        let mut pairs = pairs.filter(|pair| pair.0 != pair.1 && !is_cut(pair));
        let mut found = |pair: (usize, usize), family| {
            if let Err(lost) = self.arrivals.send(cluster, pair, family) {
                return Some((PATHS, format!("{lost:?}")));
            }
            // A node that has read an edit with `Mixed` sends through the tunnel to the address that the
            // host of another one used before, while the filters of that one may still be strict.
            let is_mixed_again = !self.is_mixed && cluster.is_mixed() == Some(true);
            if is_mixed_again || is_cut(&(pair.1, pair.0)) {
                return None;
            }
            let failed = self.arrivals.exchange(cluster, pair, family).err()?;
            Some((CONNECTIONS, failed.to_string()))
        };
        let families = cluster.setup.stack.families().iter();
        let ((from, to), (invariant, detail)) = pairs.find_map(|pair| {
            families.clone().find_map(|family| Some((pair, found(pair, *family)?)))
        })?;
        let detail = format!("n{} → n{}: {detail}", from + 1, to + 1);
        Some(violation(invariant, cluster, detail))
    }

    fn subnets(&mut self, cluster: &Cluster) -> Option<Violation> {
        let segment = cluster.network.segment.borrow();
        for (node, (known, host)) in self.pods.iter_mut().zip(&segment.hosts).enumerate() {
            // No pods are there until it has joined.
            if self.rejoined.contains(&node) && !self.debts[node].left.is_zero() {
                *known = None;
            }
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
}

/// Whether its daemon runs and has a subnet.
fn is_running(node: &Node) -> bool {
    node.is_running() && node.pods().is_some()
}

fn violation(invariant: &'static str, cluster: &Cluster, detail: String) -> Violation {
    Violation { invariant, at: cluster.age(), detail }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, at, detail } = self;
        write!(f, "after {:.3}s, not true: {invariant}: {detail}", at.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
