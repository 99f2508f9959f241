//! A history: what happens to a cluster, and how its invariants judge each moment.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::RngSeed;
use tweed::mac::MacAddr;
use tweed::model::entry::{
    Entry, Fdb, Key, Link, LinkName, Neighbour, Nexthop, Ownership, Route, RouteKind,
};
use tweed::model::prefix::Family;
use tweed::model::status::Status;

use crate::act::{Act, Device, EtcdAct, InterfaceAct, KernelAct, SegmentAct, Step};
use crate::cluster::{Cluster, Setup};
use crate::dice::{Dice, FAULTS, LENGTH, Script};
use crate::invariant::{Judge, Violation, own_entries};
use crate::network::LinkState;
use crate::packets::stack::{UNDERLAY, router};
use crate::store::{Health, Store, StoreBackup};

/// What became of a history.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of everything that happened: equal histories have equal ones.
    pub hash: u64,
    pub violation: Option<Violation>,
}

/// A history that an invariant rejects.
#[derive(Clone, Debug)]
pub struct Finding {
    pub seed: u64,
    pub setup: Setup,
    pub violation: Violation,
    /// The acts without which it would be accepted.
    pub steps: Vec<Step>,
}

/// How a daemon asks for an equal config.
const SPACE: &str = "edit the config again (a space is enough)";
/// When all nodes have read the last edit, and when those have that were installed far from the store.
const AGAIN: [Duration; 2] = [Duration::from_secs(85), Duration::from_secs(95)];
/// Longer than a daemon keeps leases that vanished together with its own.
const KEPT: Duration = Duration::from_secs(65);
/// Longer than a daemon keeps the tunnel device and its guard after it has forgotten the last such lease.
const RETIRED: Duration = Duration::from_secs(12);
/// The time in which a daemon that starts again changes its kernel, if it does.
const RESTARTED: Duration = Duration::from_secs(10);
/// The MAC address of no machine.
pub(crate) const UNKNOWN_MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 0xff]);
/// The beginning of the texts of all routes.
const ROUTES: &str = "route ";
/// How often pairs are looked at while nothing changes.
const GLANCE: Duration = Duration::from_millis(500);

/// Plays the history with this seed.
///
/// # Errors
/// The disk of the simulating machine.
pub fn play(seed: u64, dice: &Dice) -> io::Result<Outcome> {
    let script = dice.throw(seed);
    replay(seed, script.setup, &script.steps)
}

/// Plays these acts in such a cluster; all else follows from `seed`.
///
/// # Errors
/// The disk of the simulating machine.
pub fn replay(seed: u64, setup: Setup, steps: &[Step]) -> io::Result<Outcome> {
    in_virtual_time(seed, async {
        let mut history = History::begin(setup)?;
        let violation = history.run(steps).await?;
        Ok(Outcome { hash: history.hash.finish(), violation })
    })
}

fn in_virtual_time<T>(seed: u64, future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&seed.to_le_bytes()))
        .build()?;
    tweed::random::seed(seed);
    runtime.block_on(future)
}

/// What the judge finds if something happens after `time` that is neither a fault nor excused.
#[cfg(test)]
pub(crate) fn sabotage(
    setup: Setup,
    time: Duration,
    act: impl FnOnce(&mut Cluster, &mut Judge),
) -> Option<Violation> {
    let found = in_virtual_time(1, async {
        let mut history = History::begin(setup)?;
        if let Some(violation) = history.pass_until(time).await {
            return Ok(Some(violation));
        }
        act(&mut history.cluster, &mut history.judge);
        match history.pass_until(LENGTH).await {
            None => Ok(history.judge.end(&mut history.cluster).await),
            found => Ok(found),
        }
    });
    found.unwrap_or_else(|error| panic!("{error}"))
}

/// Skips as many acts as possible so that the same invariant still rejects the history.
///
/// # Errors
/// The disk of the simulating machine.
pub fn shrink(seed: u64, dice: &Dice, violation: Violation) -> io::Result<Finding> {
    let Script { mut steps, setup, .. } = dice.throw(seed);
    let (mut violation, mut at) = (violation, 0);
    while at < steps.len() {
        let mut fewer = steps.clone();
        fewer.remove(at);
        match replay(seed, setup, &fewer)?.violation {
            Some(same) if same.invariant == violation.invariant => {
                (steps, violation) = (fewer, same);
            }
            _ => at += 1,
        }
    }
    Ok(Finding { seed, setup, violation, steps })
}

struct History {
    cluster: Cluster,
    judge: Judge,
    hash: DefaultHasher,
    /// The revision of etcd up to which `hash` has its changes.
    revision: i64,
    store_backup: Option<StoreBackup>,
    disks: BTreeMap<usize, Vec<(PathBuf, Vec<u8>)>>,
}

impl History {
    fn begin(setup: Setup) -> io::Result<Self> {
        let mut cluster = Cluster::new(setup)?;
        cluster.configure(setup.config());
        (0..setup.nodes).for_each(|index| cluster.start(index));
        let judge = Judge::new(&cluster);
        Ok(Self {
            cluster,
            judge,
            hash: DefaultHasher::new(),
            revision: 0,
            store_backup: None,
            disks: BTreeMap::new(),
        })
    }

    async fn run(&mut self, steps: &[Step]) -> io::Result<Option<Violation>> {
        for step in steps {
            if let Some(violation) = self.pass_until(step.at).await {
                return Ok(Some(violation));
            }
            self.note(&step.to_string());
            let spoiled = step.act.spoils().filter(|it| self.judge.wants_all(*it, &self.cluster));
            let spoiled = spoiled.map(|it| (it, own_entries(&self.cluster.nodes[it])));
            self.perform(&step.act)?;
            self.judge.take(&step.act, &self.cluster);
            if let Some((node, before)) = spoiled {
                self.judge.spoil(node, &before, &self.cluster);
            }
        }
        if let Some(violation) = self.pass_until(FAULTS).await {
            return Ok(Some(violation));
        }
        self.heal()?;
        let asks = |it: &Status| it.config.pending.as_ref().is_some_and(|it| it.contains(SPACE));
        for time in AGAIN {
            if let Some(violation) = self.pass_until(time).await {
                return Ok(Some(violation));
            }
            if self.judge.any(&mut self.cluster, asks).await {
                self.cluster.write_again();
            }
        }
        // A daemon may still keep leases that vanished, because the store may have lost its data.
        let mut keeps_leases = false;
        for time in [LENGTH.saturating_sub(RETIRED), LENGTH] {
            if let Some(violation) = self.pass_until(time).await {
                return Ok(Some(violation));
            }
            keeps_leases |= self.judge.any(&mut self.cluster, |it| it.peers.missing > 0).await;
        }
        if keeps_leases && let Some(violation) = self.pass_until(LENGTH + KEPT).await {
            return Ok(Some(violation));
        }
        if let Some(violation) = self.judge.end(&mut self.cluster).await {
            return Ok(Some(violation));
        }
        self.restart().await;
        Ok(self.judge.restarted(&self.cluster))
    }

    /// Starts all daemons again.
    async fn restart(&mut self) {
        for index in 0..self.cluster.nodes.len() {
            if self.cluster.nodes[index].run.is_some() {
                self.cluster.kill(index);
                self.cluster.start(index);
            }
        }
        self.cluster.pass(RESTARTED, |_| None::<Violation>).await;
    }

    /// Lets time pass, and looks at all pairs whenever a kernel has changed.
    async fn pass_until(&mut self, end: Duration) -> Option<Violation> {
        while let Some(left) = end.checked_sub(self.cluster.age()).filter(|it| !it.is_zero()) {
            let time = left.min(GLANCE);
            let judge = &mut self.judge;
            let violation = self.cluster.pass(time, |cluster| judge.look(cluster)).await;
            self.judge.pass(time, &self.cluster);
            self.note_ops();
            let violation = violation.or_else(|| Judge::panicked(&self.cluster));
            if violation.is_some() {
                return violation;
            }
        }
        None
    }

    fn note_ops(&mut self) {
        let mut text = String::new();
        for node in &self.cluster.nodes {
            for op in node.kernel.take_log() {
                let _ = match op {
                    Ok(op) => writeln!(text, "n{} {op}", node.index + 1),
                    Err(refused) => writeln!(text, "n{} {refused}", node.index + 1),
                };
            }
        }
        text.extend(self.cluster.take_ended_commands());
        let (from, hash) = (self.revision + 1, &mut self.hash);
        match &self.cluster.store {
            Store::Etcd(etcd) => {
                self.revision = etcd.read(|state| {
                    let changes = state.since(from);
                    for (revision, event) in
                        changes.flat_map(|(at, it)| it.iter().map(move |it| (at, it)))
                    {
                        let kv = event.kv.as_ref().map(|kv| (&kv.key, &kv.value, kv.lease));
                        (revision, event.r#type, kv).hash(hash);
                    }
                    state.revision()
                });
            }
            Store::Kubernetes(kubernetes) => {
                (kubernetes.version(), kubernetes.leases()).hash(hash);
            }
        }
        self.note(&format!("{:?} {} {text}", self.cluster.age(), self.revision));
    }

    fn note(&mut self, text: &str) {
        text.hash(&mut self.hash);
    }

    /// Ends all faults that are not over.
    fn heal(&mut self) -> io::Result<()> {
        self.cluster.end_commands();
        self.cluster.store.set_health(Health::Up);
        let is_split = self.cluster.is_mixed() == Some(false) && !self.cluster.follows_config();
        let is_mistaken = !self.cluster.is_configured() || self.cluster.has_other_network();
        if is_split || is_mistaken {
            let config = self.cluster.setup.last_config();
            self.cluster.configure(config);
            self.judge.take(&Act::Configure(config), &self.cluster);
        }
        self.cluster.network.segment.borrow_mut().heal();
        for index in 0..self.cluster.nodes.len() {
            self.cluster.nodes[index].link.set(LinkState::Open);
            if self.cluster.nodes[index].has_left {
                self.set_up(index, false);
                continue;
            }
            self.set_stopped(index, false);
            self.cluster.nodes[index].kernel.allow(ROUTES);
            self.cluster.nodes[index].set_full(false)?;
            if !self.is_plugged_in(index) {
                self.plug_in(index);
            }
            self.cluster.register(index, index + 1);
            self.cluster.nodes[index].flannel = None;
            if self.cluster.nodes[index].run.is_none() {
                self.cluster.start(index);
            }
        }
        Ok(())
    }

    fn perform(&mut self, act: &Act) -> io::Result<()> {
        match act {
            Act::Kill(index) => self.cluster.kill(*index),
            Act::Start(index) => self.cluster.start(*index),
            Act::PowerOn(index) => {
                self.plug_in(*index);
                self.cluster.start(*index);
            }
            Act::Upgrade(index) => self.upgrade(*index),
            Act::TakeOver(index) => self.cluster.take_over(*index),
            Act::Stop(index) => self.set_stopped(*index, true),
            Act::Continue(index) => self.set_stopped(*index, false),
            Act::PowerOff(index) => self.power_off(*index),
            Act::StoreLink(index, state) => self.cluster.nodes[*index].link.set(*state),
            Act::Etcd(act) => self.change_etcd(*act),
            Act::DeleteLease(index) => self.cluster.delete_lease(*index),
            Act::ReserveLease(index) => self.cluster.reserve_lease(*index),
            Act::ExpireLease(index) => self.cluster.expire_lease(*index),
            Act::Configure(config) => self.cluster.configure(*config),
            Act::Migrate(order) => self.cluster.migrate(*order),
            Act::LoseEntry(index, number) => self.lose_entry(*index, *number),
            Act::ChangeEntry(index, number) => self.change_entry(*index, *number),
            Act::FlushTables(index) => self.flush_tables(*index),
            Act::Segment(act) => self.change_segment(*act),
            Act::BackUpDisk(index) => {
                self.disks.insert(*index, self.cluster.nodes[*index].back_up()?);
            }
            Act::Reinstall(index) => {
                self.power_off(*index);
                self.cluster.nodes[*index].reinstall()?;
            }
            Act::Copy(index, id) => {
                let last = self.add()?;
                let (originals, copy) = self.cluster.nodes.split_at_mut(last);
                copy[0].copy(&originals[*index], *id)?;
                self.cluster.start(last);
            }
            Act::Leave(index) => {
                if self.cluster.leave(*index) {
                    self.power_off(*index);
                }
            }
            Act::Deregister(index) => self.cluster.deregister(*index),
            Act::Register(index, number) => self.cluster.register(*index, *number),
            Act::Join => {
                let last = self.add()?;
                self.cluster.start(last);
            }
            Act::SwapAddresses(one, other) => {
                self.cluster.swap_addresses(*one, *other);
                self.power_off(*one);
                self.power_off(*other);
            }
            Act::Readdress(index, address) => self.cluster.readdress(*index, *address),
            Act::Interface(index, act) => self.change_interface(*index, *act),
            Act::Kernel(index, act) => self.change_kernel(*index, *act),
            Act::RestoreDisk(index) => self.restore_disk(*index)?,
            Act::FillDisk(index) => self.cluster.nodes[*index].set_full(true)?,
            Act::FreeDisk(index) => self.cluster.nodes[*index].set_full(false)?,
        }
        Ok(())
    }

    fn upgrade(&mut self, index: usize) {
        let node = &mut self.cluster.nodes[index];
        node.age_checkpoint();
        if node.run.is_some() {
            self.cluster.kill(index);
            self.cluster.start(index);
        }
    }

    fn restore_disk(&mut self, index: usize) -> io::Result<()> {
        let Some(files) = self.disks.remove(&index) else { return Ok(()) };
        let node = &self.cluster.nodes[index];
        node.restore(&files)?;
        if node.is_empty() {
            self.cluster.network.segment.borrow_mut().hosts[index].pods = None;
        }
        Ok(())
    }

    /// Adds a machine; returns its index.
    fn add(&mut self) -> io::Result<usize> {
        self.cluster.add()?;
        let last = self.cluster.nodes.len() - 1;
        self.judge.add(&self.cluster.nodes[last]);
        Ok(last)
    }

    fn power_off(&mut self, index: usize) {
        self.set_up(index, false);
        self.cluster.nodes[index].lose_power(&self.cluster.network);
        self.cluster.network.segment.borrow_mut().hosts[index].pods = None;
        self.cluster.nodes[index].add_foreign_route();
    }

    fn change_etcd(&mut self, act: EtcdAct) {
        let store = &self.cluster.store;
        match act {
            EtcdAct::Down => store.set_health(Health::Down),
            EtcdAct::Leaderless => store.set_health(Health::Leaderless),
            EtcdAct::Full => store.set_health(Health::Full),
            EtcdAct::Slow(time) => store.set_health(Health::Slow(time)),
            EtcdAct::Up => store.set_health(Health::Up),
            EtcdAct::Compact => store.compact(),
            EtcdAct::BackUp => self.store_backup = Some(store.back_up()),
            EtcdAct::Restore(id) => {
                if let Some(backup) = self.store_backup.take() {
                    let nodes: Vec<usize> = self.cluster.members().map(|it| it.index).collect();
                    store.restore(backup, &nodes, id);
                }
            }
        }
    }

    fn change_segment(&self, act: SegmentAct) {
        let mut segment = self.cluster.network.segment.borrow_mut();
        match act {
            SegmentAct::Cut(from, to) => {
                segment.cut.insert((from, to));
            }
            SegmentAct::Join(from, to) => {
                segment.cut.remove(&(from, to));
            }
            SegmentAct::CutDirect(from, to) => {
                segment.cut_direct.insert((from, to));
            }
            SegmentAct::JoinDirect(from, to) => {
                segment.cut_direct.remove(&(from, to));
            }
            SegmentAct::DropPods => segment.drops_pods = true,
            SegmentAct::PassPods => segment.drops_pods = false,
        }
    }

    fn change_interface(&self, index: usize, act: InterfaceAct) {
        let node = &self.cluster.nodes[index];
        match act {
            InterfaceAct::Down(device) => self.link_down(index, device),
            InterfaceAct::Up(device) => self.link_up(index, device),
            InterfaceAct::LoseAddresses => {
                self.set_up(index, false);
                node.lose_addresses();
            }
            InterfaceAct::ReturnAddresses => self.plug_in(index),
            InterfaceAct::Mtu(mtu) => node.change_mtu(mtu),
            InterfaceAct::Recreate => node.recreate_interface(),
        }
    }

    fn link_down(&self, index: usize, device: Device) {
        if device == Device::Underlay {
            self.set_up(index, false);
        }
        for link in device.links(self.cluster.setup.stack) {
            self.cluster.nodes[index].kernel.link_down(&link);
        }
    }

    fn link_up(&self, index: usize, device: Device) {
        if device == Device::Underlay {
            return self.plug_in(index);
        }
        for link in device.links(self.cluster.setup.stack) {
            self.cluster.nodes[index].kernel.link_up(&link);
        }
    }

    fn is_plugged_in(&self, index: usize) -> bool {
        self.cluster.network.segment.borrow().hosts[index].is_up
    }

    /// Its interface is up.
    fn plug_in(&self, index: usize) {
        if self.cluster.nodes[index].has_left {
            return;
        }
        self.set_up(index, true);
        let node = &self.cluster.nodes[index];
        node.plug_in();
    }

    fn change_kernel(&self, index: usize, act: KernelAct) {
        let node = &self.cluster.nodes[index];
        let kernel = &node.kernel;
        match act {
            KernelAct::MakeStrict => node.make_strict(),
            KernelAct::DropForwarded => node.drop_forwarded(),
            KernelAct::Overrun => kernel.overrun(),
            KernelAct::Interrupt => kernel.interrupt("interrupted"),
            KernelAct::Deafen(times) => kernel.deafen(times),
            KernelAct::RefuseRoutes => kernel.refuse(ROUTES, "no buffer space available"),
            KernelAct::AllowRoutes => kernel.allow(ROUTES),
        }
    }

    fn set_up(&self, index: usize, is_up: bool) {
        let mut segment = self.cluster.network.segment.borrow_mut();
        if let Some(host) = segment.hosts.get_mut(index) {
            host.is_up = is_up;
        }
    }

    fn set_stopped(&mut self, index: usize, is_stopped: bool) {
        if let Some(run) = &mut self.cluster.nodes[index].run {
            run.is_stopped = is_stopped;
        }
        if let Some(flannel) = &mut self.cluster.nodes[index].flannel {
            flannel.is_stopped = is_stopped;
        }
        if let Some(daemon) = self.cluster.network.daemons.borrow_mut().get_mut(&index) {
            daemon.is_stopped = is_stopped;
        }
    }

    fn lose_entry(&self, index: usize, number: usize) {
        let kernel = &self.cluster.nodes[index].kernel;
        let keys = kernel.read_state(|state| {
            let is_lost = |entry: &&Entry| !matches!(entry, Entry::Setting(_)) && is_owned(entry);
            state.entries().filter(is_lost).map(Entry::key).collect()
        });
        if let Some(key) = choose(keys, number) {
            kernel.lose(&key);
        }
    }

    fn change_entry(&self, index: usize, number: usize) {
        let kernel = &self.cluster.nodes[index].kernel;
        let changed = kernel.read_state(|state| {
            state.entries().filter(|entry| is_owned(entry)).filter_map(changed).collect()
        });
        if let Some(entry) = choose(changed, number) {
            kernel.set(entry);
        }
    }

    fn flush_tables(&self, index: usize) {
        let kernel = &self.cluster.nodes[index].kernel;
        let keys: Vec<Key> = kernel.read_state(|state| {
            let tables = state.entries().filter(|entry| matches!(entry, Entry::Table(_)));
            tables.map(Entry::key).collect()
        });
        for key in &keys {
            kernel.lose(key);
        }
    }
}

fn is_owned(entry: &Entry) -> bool {
    !matches!(entry.ownership(), Ownership::Foreign)
}

/// Any number chooses one.
fn choose<T>(mut items: Vec<T>, number: usize) -> Option<T> {
    (!items.is_empty()).then(|| items.swap_remove(number % items.len()))
}

/// What another program may make of an entry: it leads elsewhere.
fn changed(entry: &Entry) -> Option<Entry> {
    let link = Some(LinkName::new(UNDERLAY));
    Some(match entry.clone() {
        Entry::Route(route) if route.kind == RouteKind::Unicast => {
            let gateway = Some(router(route.destination.family()));
            Entry::Route(Route { gateway, link, nexthop: None, onlink: false, ..route })
        }
        Entry::Nexthop(nexthop) => {
            let gateway = nexthop.gateway.map(|gateway| router(Family::of(gateway)));
            Entry::Nexthop(Nexthop { gateway, link, ..nexthop })
        }
        Entry::Neighbour(neighbour) => {
            Entry::Neighbour(Neighbour { mac: UNKNOWN_MAC, ..neighbour })
        }
        Entry::Fdb(fdb) => {
            let destination = router(Family::of(fdb.destination));
            Entry::Fdb(Fdb { destination, ..fdb })
        }
        Entry::Link(link) => Entry::Link(Link { mtu: link.mtu - 100, ..link }),
        Entry::Setting(_)
        | Entry::Address(_)
        | Entry::Chain(_)
        | Entry::Table(_)
        | Entry::Renewal(_)
        | Entry::Element(_)
        | Entry::Route(_) => return None,
    })
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, setup, violation, .. } = self;
        let Setup { nodes, store, stack, flannel, is_wide } = setup;
        write!(f, "seed {seed} with {nodes} nodes, {store} and {stack}")?;
        f.write_str(if *is_wide { ", far apart" } else { "" })?;
        flannel.iter().try_for_each(|backend| write!(f, ", from flannel with {backend}"))?;
        writeln!(f, ": {violation}")?;
        self.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}
