//! The dice: a seed decides all acts of a history before it begins, so that the history can be
//! repeated without some of them.

use std::time::Duration;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::act::{
    Act, Backend, ClusterId, Config, Device, EtcdAct, InterfaceAct, KernelAct, MachineId, Order,
    SegmentAct, Stages, Step,
};
use crate::cluster::Setup;
use crate::fault::Fault;
use crate::invariant::SAVED;
use crate::network::LinkState;
use crate::packets::stack::Stack;
use crate::store::StoreKind;

/// Until then, the cluster is left alone.
pub const CALM: Duration = Duration::from_secs(15);
/// From then on, nothing new happens, and everything ends that is not over.
pub const FAULTS: Duration = Duration::from_secs(70);
/// A history's length.
pub const LENGTH: Duration = Duration::from_secs(120);
/// Faults within this time meet. Half of them happen within it before or after one moment.
pub const AROUND: Duration = Duration::from_secs(5);

/// How histories are thrown.
#[derive(Clone, Debug)]
pub struct Dice {
    pub nodes: usize,
    /// Only these faults happen. At least one.
    pub faults: Vec<Fault>,
    /// Only this store is used; if none, the seed decides.
    pub store: Option<StoreKind>,
    /// Pods have addresses of these families; if none, the seed decides.
    pub stack: Option<Stack>,
    /// Whether all clusters begin with flanneld, and not only some.
    pub flannel: bool,
}

/// A history before it is played.
#[derive(Clone, Debug)]
pub struct Script {
    pub setup: Setup,
    /// In the order of time.
    pub steps: Vec<Step>,
    pub thrown: Vec<(Duration, Fault)>,
}

impl Dice {
    /// All faults, for this number of nodes.
    pub fn new(nodes: usize) -> Self {
        let faults = Fault::value_variants().to_vec();
        Self { nodes, faults, store: None, stack: None, flannel: false }
    }

    /// The history with this seed.
    pub fn throw(&self, seed: u64) -> Script {
        let mut rng = StdRng::seed_from_u64(seed);
        let (focus, turn) = (rng.random_range(0..self.nodes), any_time(&mut rng));
        let store = self.store.unwrap_or(match seed % 2 {
            0 => StoreKind::Etcd,
            _ => StoreKind::Kubernetes,
        });
        let stack = self.stack.unwrap_or(match seed / 2 % 4 {
            0 | 1 => Stack::V4,
            2 => Stack::Dual,
            _ => Stack::V6,
        });
        let is_wide = seed / 128 % 2 == 1;
        let mut setup = Setup { nodes: self.nodes, store, stack, flannel: None, is_wide };
        let is_wanted = self.faults.contains(&Fault::TakeOver);
        if self.flannel || is_wanted && (seed / 8).is_multiple_of(WITH_FLANNEL) {
            let backends = [Backend::Vxlan, Backend::DirectRouting, Backend::HostGw];
            setup.flannel = Some(backends[rng.random_range(0..backends.len())]);
            // What is taken over at last has to be complete by the end.
            setup.is_wide = false;
            // Nodes without IPv4 all have the same address in etcd.
            if stack == Stack::V6 && store == StoreKind::Etcd {
                setup.stack = Stack::V4;
            }
        }
        // In Kubernetes, some nodes may have a config with another backend before others have `Mixed`.
        let beside_flannel =
            setup.flannel == Some(Backend::Vxlan) && store == StoreKind::Etcd && rng.random();
        let is_possible =
            |it: &Fault| it.is_possible(&setup) && !(beside_flannel && it.may_start_flanneld());
        let faults = self.faults.iter().copied().filter(is_possible).collect();
        let script = Script { setup, steps: Vec::new(), thrown: Vec::new() };
        let mut throw =
            Throw { rng, dice: self, faults, focus, turn, last: None, beside_flannel, script };
        // Before the daemons start: flanneld reads it.
        let config = if beside_flannel { Config::Mixed(Backend::Vxlan) } else { throw.config() };
        throw.add(Duration::ZERO, Act::Configure(config));
        if throw.rng.random_bool(EDITED) && self.faults.contains(&Fault::Edit) {
            throw.happen(turn, Fault::Edit);
        }
        if setup.flannel.is_some() {
            for node in 0..self.nodes {
                throw.take_over(node);
            }
        }
        let number = if throw.faults.is_empty() { 0 } else { throw.rng.random_range(1..=7) };
        for _ in 0..number {
            let (at, fault) = (throw.time(), throw.fault());
            throw.happen(at, fault);
        }
        let mut script = throw.script;
        script.steps.sort_by_key(|step| step.at);
        script.keep_one_network();
        script
    }
}

impl Script {
    /// A node that does not know its subnet gets one of the network of the config, and keeps it. So
    /// that nodes keep one network, none may forget its subnet where the network is another one. In
    /// Kubernetes, the daemon ends.
    fn keep_one_network(&mut self) {
        let may_forget = self.setup.flannel.is_some()
            || self.setup.store == StoreKind::Kubernetes
            || self.steps.iter().any(|step| step.act.may_forget_subnet());
        for step in self.steps.iter_mut().filter(|_| may_forget) {
            if step.act == Act::Configure(Config::OtherNetwork) {
                step.act = Act::Configure(Config::Malformed(0));
            }
        }
    }
}

/// Faults that meet are rare if all times and nodes are equally likely: half of them happen to one
/// node, and half of them around one moment, mostly the time of an edit of the config. Some repeat
/// the fault before.
struct Throw<'a> {
    rng: StdRng,
    dice: &'a Dice,
    /// Those that are possible with the store.
    faults: Vec<Fault>,
    focus: usize,
    turn: Duration,
    last: Option<Fault>,
    /// Whether a cluster that begins with flanneld changes to host-gw while some of its nodes have
    /// flanneld, which ignores that.
    beside_flannel: bool,
    script: Script,
}

impl Throw<'_> {
    fn fault(&mut self) -> Fault {
        let again = self.last.filter(|_| self.rng.random_bool(REPEATED));
        let faults = &self.faults;
        let fault = again.unwrap_or_else(|| faults[self.rng.random_range(0..faults.len())]);
        self.last = Some(fault);
        fault
    }

    fn node(&mut self) -> usize {
        if self.rng.random() { self.focus } else { self.rng.random_range(0..self.dice.nodes) }
    }

    fn other(&mut self, node: usize) -> usize {
        (node + self.rng.random_range(1..self.dice.nodes)) % self.dice.nodes
    }

    fn time(&mut self) -> Duration {
        if self.rng.random() {
            return any_time(&mut self.rng);
        }
        let (before, later) = (self.turn.saturating_sub(AROUND), self.rng.random::<f64>());
        (before + (AROUND * 2).mul_f64(later)).clamp(CALM, FAULTS)
    }

    fn happen(&mut self, at: Duration, fault: Fault) {
        self.script.thrown.push((at, fault));
        let (end, node) = (self.end(at), self.node());
        match fault {
            Fault::Edit | Fault::Mistake => self.edit(at, end, fault),
            Fault::Finish => self.finish(at, end),
            Fault::EditFinished => self.edit_finished(at, end),
            Fault::Migrate => self.migrate(at, end),
            Fault::Kill => self.pair((at, Act::Kill(node)), (end, Act::Start(node))),
            Fault::KillAlone => {
                self.begin_alone((at, Act::Kill(node)), Act::Start(node), end, node);
            }
            Fault::Upgrade => self.add(at, Act::Upgrade(node)),
            Fault::Stop => self.pair((at, Act::Stop(node)), (end, Act::Continue(node))),
            Fault::PowerCut => self.pair((at, Act::PowerOff(node)), (end, Act::PowerOn(node))),
            Fault::PowerCutAlone => {
                self.begin_alone((at, Act::PowerOff(node)), Act::PowerOn(node), end, node);
            }
            Fault::Reinstall => self.pair((at, Act::Reinstall(node)), (end, Act::PowerOn(node))),
            Fault::RestoreDisk => self.roll_back(node, at, end),
            Fault::RestoreAlone => self.restore_alone(node, at, end),
            Fault::DiskFull => self.pair((at, Act::FillDisk(node)), (end, Act::FreeDisk(node))),
            Fault::Copy
            | Fault::Join
            | Fault::Leave
            | Fault::Rejoin
            | Fault::TakeOver
            | Fault::SwapAddresses => self.change_members(node, at, end, fault),
            Fault::Readdress => {
                let address = self.rng.random_range(1..=LAST_ADDRESS);
                self.add(at, Act::Readdress(node, address));
            }
            Fault::KillAll => self.kill_all(at, end),
            Fault::Blackout => self.black_out(at, end),
            Fault::StoreLink
            | Fault::EtcdDown
            | Fault::Leaderless
            | Fault::EtcdFull
            | Fault::SlowEtcd
            | Fault::Compact
            | Fault::RestoreEtcd
            | Fault::DeleteLease
            | Fault::ReserveLease
            | Fault::ExpireLease => self.fail_store(node, at, end, fault),
            Fault::LoseEntry
            | Fault::ChangeEntry
            | Fault::FlushTables
            | Fault::LinkDown
            | Fault::LoseAddresses
            | Fault::ChangeMtu
            | Fault::RecreateInterface
            | Fault::BreakKernel
            | Fault::RefuseRoutes
            | Fault::StrictFilters
            | Fault::DropForwarded => self.fail_kernel(node, at, end, fault),
            Fault::CutSegment | Fault::CutDirect | Fault::DropPods => {
                self.fail_segment(node, at, end, fault);
            }
        }
    }

    fn change_members(&mut self, node: usize, at: Duration, end: Duration, fault: Fault) {
        match fault {
            Fault::Copy => {
                let id = self.one_of([MachineId::Kept, MachineId::New]);
                self.add(at, Act::Copy(node, id));
            }
            Fault::Join => self.add(at, Act::Join),
            Fault::Leave => self.leave(at, node),
            Fault::Rejoin => {
                let number = self.number_of_subnet(node);
                self.pair((at, Act::Deregister(node)), (end, Act::Register(node, number)));
            }
            Fault::TakeOver => self.add(at, Act::TakeOver(node)),
            _ => {
                let other = self.other(node);
                self.pair((at, Act::SwapAddresses(node, other)), (end, Act::PowerOn(node)));
                self.add(end, Act::PowerOn(other));
            }
        }
    }

    fn fail_segment(&mut self, node: usize, at: Duration, end: Duration, fault: Fault) {
        let other = self.other(node);
        let [begun, over] = match fault {
            Fault::CutSegment => [SegmentAct::Cut(node, other), SegmentAct::Join(node, other)],
            Fault::CutDirect => {
                [SegmentAct::CutDirect(node, other), SegmentAct::JoinDirect(node, other)]
            }
            _ => [SegmentAct::DropPods, SegmentAct::PassPods],
        };
        self.pair((at, Act::Segment(begun)), (end, Act::Segment(over)));
    }

    /// Mostly, while faults happen; else after them.
    fn take_over(&mut self, node: usize) {
        if self.rng.random_bool(TAKEN_OVER) {
            let at = self.time();
            self.script.thrown.push((at, Fault::TakeOver));
            self.add(at, Act::TakeOver(node));
        }
    }

    /// Only one: more than half of the nodes at once are not removed.
    fn leave(&mut self, at: Duration, node: usize) {
        if self.script.steps.iter().all(|step| !matches!(step.act, Act::Leave(_))) {
            self.add(at, Act::Leave(node));
        }
    }

    /// Its first one, or one that no other node has.
    fn number_of_subnet(&mut self, node: usize) -> usize {
        match self.rng.random_range(0..SUBNETS) {
            0 => node + 1,
            number => 100 + node * SUBNETS + number,
        }
    }

    fn edit(&mut self, at: Duration, end: Duration, fault: Fault) {
        let config = Act::Configure(self.config());
        if fault == Fault::Mistake {
            // Flanneld accepts some of what `tweedd` refuses.
            let typos = if self.script.setup.flannel.is_some() { 1 } else { Config::TYPOS };
            let malformed = Config::Malformed(self.rng.random_range(0..typos));
            let mistake = self.one_of([Config::Missing, malformed, Config::OtherNetwork]);
            self.pair((at, Act::Configure(mistake)), (end, config));
        } else {
            self.add(at, config);
        }
    }

    /// All nodes get one backend, and later only that.
    fn finish(&mut self, at: Duration, end: Duration) {
        let backend = self.one_of([Backend::Vxlan, Backend::DirectRouting, Backend::HostGw]);
        let between = self.between(at, end);
        self.add(at, Act::Configure(Config::Mixed(backend)));
        self.add(between, Act::Configure(Config::Finished(backend)));
        if self.rng.random_bool(UNFINISHED) {
            self.add(end, Act::Configure(Config::Mixed(backend)));
        }
    }

    /// All nodes get one backend, and then another one without `Mixed`, early enough to be in each checkpoint
    /// when faults end.
    fn edit_finished(&mut self, at: Duration, end: Duration) {
        let last = FAULTS.saturating_sub(SAVED);
        let (at, end) = (at.min(last), end.min(last));
        let backends = [Backend::Vxlan, Backend::DirectRouting, Backend::HostGw];
        let [first, second] = [(); 2].map(|()| self.one_of(backends));
        let between = self.between(at, end);
        self.add(at, Act::Configure(Config::Mixed(first)));
        self.add(between, Act::Configure(Config::Finished(first)));
        self.add(end, Act::Configure(Config::Finished(second)));
    }

    /// Commands from `at` to `end`, which may overlap.
    fn migrate(&mut self, at: Duration, end: Duration) {
        let to = self.one_of([Backend::Vxlan, Backend::HostGw]);
        self.add(at, Act::Migrate(Order::Start(to)));
        for _ in 0..self.rng.random_range(1..=COMMANDS) {
            let between = self.between(at, end);
            let order = self.one_of([
                Order::Next,
                Order::Next,
                Order::Next,
                Order::Finish,
                Order::Pause,
                Order::Rollback(Stages::Last),
                Order::Rollback(Stages::All),
            ]);
            self.add(between, Act::Migrate(order));
        }
        self.add(end, Act::Migrate(Order::Finish));
    }

    fn fail_store(&mut self, node: usize, at: Duration, end: Duration, fault: Fault) {
        let up = (end, Act::Etcd(EtcdAct::Up));
        match fault {
            Fault::StoreLink => {
                let state = self.one_of([LinkState::Cut, LinkState::AnswersLost]);
                let open = Act::StoreLink(node, LinkState::Open);
                self.pair((at, Act::StoreLink(node, state)), (end, open));
            }
            Fault::EtcdDown => self.pair((at, Act::Etcd(EtcdAct::Down)), up),
            Fault::Leaderless => self.pair((at, Act::Etcd(EtcdAct::Leaderless)), up),
            Fault::EtcdFull => self.pair((at, Act::Etcd(EtcdAct::Full)), up),
            Fault::SlowEtcd => {
                let time = Duration::from_millis(self.rng.random_range(50..3000));
                self.pair((at, Act::Etcd(EtcdAct::Slow(time))), up);
            }
            Fault::Compact => self.add(at, Act::Etcd(EtcdAct::Compact)),
            Fault::RestoreEtcd => self.restore_etcd(at, end),
            Fault::ExpireLease => self.add(at, Act::ExpireLease(node)),
            Fault::ReserveLease => self.add(at, Act::ReserveLease(node)),
            _ => self.add(at, Act::DeleteLease(node)),
        }
    }

    /// Mostly, etcd is down before it is restored. Dice of its own decide for how long, so that all other
    /// acts of a seed stay the same.
    fn restore_etcd(&mut self, at: Duration, end: Duration) {
        let id = self.one_of([ClusterId::Kept, ClusterId::New]);
        let restore = Act::Etcd(EtcdAct::Restore(id));
        self.pair((at, Act::Etcd(EtcdAct::BackUp)), (end, restore));
        let mut own = StdRng::seed_from_u64(end.subsec_nanos().into());
        if own.random_bool(DOWN_BEFORE) {
            let down = end.saturating_sub(at).mul_f64(own.random());
            // It is up at the moment of the restore, and in the order after it.
            let (down, up) = (end.saturating_sub(down), (end, Act::Etcd(EtcdAct::Up)));
            self.pair((down, Act::Etcd(EtcdAct::Down)), up);
        }
    }

    fn fail_kernel(&mut self, node: usize, at: Duration, end: Duration, fault: Fault) {
        match fault {
            Fault::LoseEntry => {
                let number = self.rng.random_range(0..1000);
                self.add(at, Act::LoseEntry(node, number));
            }
            Fault::ChangeEntry => {
                let number = self.rng.random_range(0..1000);
                self.add(at, Act::ChangeEntry(node, number));
            }
            Fault::LoseAddresses => {
                let [lost, back] = [InterfaceAct::LoseAddresses, InterfaceAct::ReturnAddresses];
                self.pair((at, Act::Interface(node, lost)), (end, Act::Interface(node, back)));
            }
            Fault::ChangeMtu => {
                let mtu = self.one_of(MTUS);
                self.add(at, Act::Interface(node, InterfaceAct::Mtu(mtu)));
            }
            Fault::FlushTables => self.add(at, Act::FlushTables(node)),
            Fault::LinkDown => {
                let device = self.one_of([Device::Underlay, Device::Tunnel]);
                let [down, up] = [InterfaceAct::Down(device), InterfaceAct::Up(device)];
                self.pair((at, Act::Interface(node, down)), (end, Act::Interface(node, up)));
            }
            Fault::StrictFilters => self.add(at, Act::Kernel(node, KernelAct::MakeStrict)),
            Fault::DropForwarded => self.add(at, Act::Kernel(node, KernelAct::DropForwarded)),
            Fault::RecreateInterface => {
                self.add(at, Act::Interface(node, InterfaceAct::Recreate));
            }
            Fault::BreakKernel => {
                let breaks = KernelAct::Deafen(self.rng.random_range(1..20));
                let act = self.one_of([KernelAct::Overrun, KernelAct::Interrupt, breaks]);
                self.add(at, Act::Kernel(node, act));
            }
            _ => self.pair(
                (at, Act::Kernel(node, KernelAct::RefuseRoutes)),
                (end, Act::Kernel(node, KernelAct::AllowRoutes)),
            ),
        }
    }

    /// A daemon or a machine stops, and starts again while the store is unreachable for it.
    fn begin_alone(&mut self, (at, stop): (Duration, Act), start: Act, end: Duration, node: usize) {
        let between = self.between(at, end);
        self.add(at, stop);
        self.add(at + Duration::from_millis(1), Act::StoreLink(node, LinkState::Cut));
        self.add(between.max(at + MOMENT), start);
        self.add(end.max(at + MOMENT * 2), Act::StoreLink(node, LinkState::Open));
    }

    fn kill_all(&mut self, at: Duration, end: Duration) {
        for node in 0..self.dice.nodes {
            self.pair((at, Act::Kill(node)), (end, Act::Start(node)));
        }
    }

    fn black_out(&mut self, at: Duration, end: Duration) {
        self.add(at, Act::Etcd(EtcdAct::Down));
        for node in 0..self.dice.nodes {
            let up = self.between(at, end);
            self.pair((at, Act::PowerOff(node)), (up, Act::PowerOn(node)));
        }
        let up = self.between(at, end);
        self.add(up, Act::Etcd(EtcdAct::Up));
    }

    fn between(&mut self, at: Duration, end: Duration) -> Duration {
        at + end.saturating_sub(at).mul_f64(self.rng.random())
    }

    /// The daemon starts again with an older disk.
    fn roll_back(&mut self, node: usize, at: Duration, end: Duration) {
        let between = at + end.saturating_sub(at) / 2;
        self.add(at, Act::BackUpDisk(node));
        self.add(between, Act::Kill(node));
        self.add(between + Duration::from_millis(1), Act::RestoreDisk(node));
        self.add(end, Act::Start(node));
    }

    /// The same with the disk of the beginning, and without the store.
    fn restore_alone(&mut self, node: usize, at: Duration, end: Duration) {
        self.add(CALM, Act::BackUpDisk(node));
        self.begin_alone((at, Act::Kill(node)), Act::Start(node), end, node);
        self.add(at + MOMENT / 2, Act::RestoreDisk(node));
    }

    fn one_of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[self.rng.random_range(0..N)]
    }

    /// Flanneld reads the config when it starts, and the backend decides which peers it knows.
    fn config(&mut self) -> Config {
        let rollout = Config::Rollout(self.rng.random_range(0..=100));
        let [tunnel, direct] = [Backend::Vxlan, Backend::HostGw].map(Config::Mixed);
        match self.script.setup.flannel {
            Some(_) if self.beside_flannel => self.one_of([tunnel, direct, rollout]),
            Some(backend) => self.one_of([Config::Mixed(backend), Config::Finished(backend)]),
            None => self.one_of([tunnel, Config::Mixed(Backend::DirectRouting), direct, rollout]),
        }
    }

    /// Short ones are as frequent as long ones.
    fn end(&mut self, at: Duration) -> Duration {
        let left = FAULTS.saturating_sub(at).as_secs_f64();
        at + Duration::from_secs_f64(left * self.rng.random::<f64>().powi(2)).max(MOMENT)
    }

    fn pair(&mut self, (at, act): (Duration, Act), (end, over): (Duration, Act)) {
        self.add(at, act);
        self.add(end, over);
    }

    fn add(&mut self, at: Duration, act: Act) {
        self.script.steps.push(Step { at, act });
    }
}

/// How many commands at most are between the first and the last one of a migration.
const COMMANDS: usize = 6;
/// One of this many clusters begins with flanneld.
const WITH_FLANNEL: u64 = 16;
/// How many nodes `tweedd` takes over while faults happen.
const TAKEN_OVER: f64 = 0.7;
const MOMENT: Duration = Duration::from_millis(20);
/// How many faults are the same as the one before.
const REPEATED: f64 = 0.2;
/// The last byte of the highest address that DHCP gives to a machine; the first machines of a
/// history have the lowest ones.
const LAST_ADDRESS: u8 = 12;
/// The MTUs that interfaces get: that of a tunnel below, the usual one, that of jumbo frames.
const MTUS: [u32; 3] = [1400, 1500, 9000];
/// How many subnets a node may get.
const SUBNETS: usize = 4;
/// How many histories have an edit of the config at this moment.
const EDITED: f64 = 0.7;
/// How many finished migrations are taken back.
const UNFINISHED: f64 = 0.7;
/// How many restored etcds were down until then.
const DOWN_BEFORE: f64 = 0.7;

fn any_time(rng: &mut StdRng) -> Duration {
    CALM + FAULTS.saturating_sub(CALM).mul_f64(rng.random())
}
