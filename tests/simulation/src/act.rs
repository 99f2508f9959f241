//! What happens to a cluster: faults, their ends, and what operators do. A seed decides the acts of
//! a history before it begins, so that a history can be repeated without some of them.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::network::LinkState;

/// An act, and when it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Duration,
    pub act: Act,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// `kill -9` of the daemon of this node.
    Kill(usize),
    Start(usize),
    /// SIGSTOP, and SIGCONT.
    Stop(usize),
    Continue(usize),
    /// The machine loses power: what its kernel held is gone.
    PowerOff(usize),
    PowerOn(usize),
    /// The state of the connection between this node and etcd.
    StoreLink(usize, LinkState),
    Etcd(EtcdAct),
    /// An operator deletes the lease of this node.
    DeleteLease(usize),
    /// An operator edits the network config.
    Configure(Config),
    /// Another program removes the entry of this number, of those of tweed.
    LoseEntry(usize, usize),
    /// `nft flush ruleset`.
    FlushTables(usize),
    Segment(SegmentAct),
    /// The disk of this node is copied, and put back later, while its daemon does not run.
    BackUpDisk(usize),
    RestoreDisk(usize),
    /// The machine is installed again: empty disk, another machine id, the same address.
    Reinstall(usize),
    /// The disk of this node is put into another machine, which is started.
    Copy(usize, MachineId),
    /// This link of a node goes down, or up again.
    LinkDown(usize, Device),
    LinkUp(usize, Device),
    /// A machine is added.
    Join,
    /// Both machines lose power, and get the address of the other one.
    SwapAddresses(usize, usize),
    /// DHCP gives a running machine this address, unless a machine has it.
    Readdress(usize, u8),
    /// The interface of a node disappears and is there again, without its routes.
    RecreateInterface(usize),
    Kernel(usize, KernelAct),
}

/// What happens to the conversation of a daemon with its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelAct {
    /// Its buffer is full: it drops notifications, and reports that.
    Overrun,
    /// The next dump or batch fails; of a batch, half is applied.
    Interrupt,
    /// The socket of notifications breaks this often.
    Deafen(u32),
    /// It refuses to change routes, or no longer does.
    RefuseRoutes,
    AllowRoutes,
}

/// What happens to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdAct {
    Down,
    Leaderless,
    Slow(Duration),
    Up,
    Compact,
    /// A copy of its data is made, and put back later.
    BackUp,
    Restore,
}

/// What happens to the segment between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentAct {
    /// Nothing arrives from the first node at the second one.
    Cut(usize, usize),
    Join(usize, usize),
    /// It drops packets with addresses of pods, or no longer does.
    DropPods,
    PassPods,
}

/// Whether a copied disk still has the machine id of the original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineId {
    Kept,
    New,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Underlay,
    Tunnel,
}

/// A network config with `Mixed`, or what an operator's mistake leaves of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// The key is deleted.
    Missing,
    /// No JSON.
    Malformed,
    Vxlan,
    HostGw,
    /// To host-gw, this percentage of the hashes.
    Rollout(u8),
}

/// Until then, the cluster is left alone.
pub const CALM: Duration = Duration::from_secs(15);
/// From then on, nothing new happens, and everything ends that is not over.
pub const FAULTS: Duration = Duration::from_secs(70);
/// A history's length.
pub const LENGTH: Duration = Duration::from_secs(120);

/// The acts of the history with this seed, for this number of nodes, in their order.
pub fn acts(seed: u64, nodes: usize) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (focus, turn) = (rng.random_range(0..nodes), any_time(&mut rng));
    let mut dice = Dice { rng, nodes, focus, turn, last: None, steps: Vec::new() };
    if dice.rng.random_bool(EDITED) {
        let config = dice.config();
        dice.add(turn, Act::Configure(config));
    }
    for _ in 0..dice.rng.random_range(1..=7) {
        let at = dice.time();
        dice.throw(at);
    }
    let mut steps = dice.steps;
    steps.sort_by_key(|step| step.at);
    steps
}

/// Faults that meet are rare if all times and nodes are equally likely: half of them happen to one
/// node, and half of them around one moment, mostly the time of an edit of the config. Some repeat
/// the kind of the fault before.
struct Dice {
    rng: StdRng,
    nodes: usize,
    focus: usize,
    turn: Duration,
    /// The kind of the last fault.
    last: Option<u32>,
    steps: Vec<Step>,
}

impl Dice {
    fn node(&mut self) -> usize {
        if self.rng.random() { self.focus } else { self.rng.random_range(0..self.nodes) }
    }

    fn other(&mut self, node: usize) -> usize {
        (node + self.rng.random_range(1..self.nodes)) % self.nodes
    }

    fn time(&mut self) -> Duration {
        if self.rng.random() {
            return any_time(&mut self.rng);
        }
        let (before, later) = (self.turn.saturating_sub(AROUND), self.rng.random::<f64>());
        (before + (AROUND * 2).mul_f64(later)).clamp(CALM, FAULTS)
    }

    /// A fault at `at`, and its end.
    fn throw(&mut self, at: Duration) {
        let end = self.end(at);
        let node = self.node();
        match self.kind() {
            0 => self.pair((at, Act::Kill(node)), (end, Act::Start(node))),
            1 => self.pair((at, Act::Stop(node)), (end, Act::Continue(node))),
            2 => self.pair((at, Act::PowerOff(node)), (end, Act::PowerOn(node))),
            3 => {
                let state = self.one_of([LinkState::Cut, LinkState::AnswersLost]);
                let open = Act::StoreLink(node, LinkState::Open);
                self.pair((at, Act::StoreLink(node, state)), (end, open));
            }
            4 => self.pair((at, Act::Etcd(EtcdAct::Down)), (end, Act::Etcd(EtcdAct::Up))),
            5 => self.pair((at, Act::Etcd(EtcdAct::Leaderless)), (end, Act::Etcd(EtcdAct::Up))),
            6 => {
                let time = Duration::from_millis(self.rng.random_range(50..3000));
                self.pair((at, Act::Etcd(EtcdAct::Slow(time))), (end, Act::Etcd(EtcdAct::Up)));
            }
            7 => self.add(at, Act::Etcd(EtcdAct::Compact)),
            8 => self.pair((at, Act::Etcd(EtcdAct::BackUp)), (end, Act::Etcd(EtcdAct::Restore))),
            9 => self.add(at, Act::DeleteLease(node)),
            10 | 11 => {
                let config = self.config();
                self.add(at, Act::Configure(config));
            }
            12 => {
                let number = self.rng.random_range(0..1000);
                self.add(at, Act::LoseEntry(node, number));
            }
            13 => self.add(at, Act::FlushTables(node)),
            14 => {
                let other = self.other(node);
                let [cut, join] = [SegmentAct::Cut, SegmentAct::Join].map(|act| act(node, other));
                self.pair((at, Act::Segment(cut)), (end, Act::Segment(join)));
            }
            15 => self.pair(
                (at, Act::Segment(SegmentAct::DropPods)),
                (end, Act::Segment(SegmentAct::PassPods)),
            ),
            16 => self.pair((at, Act::Reinstall(node)), (end, Act::PowerOn(node))),
            17 => {
                let id = self.one_of([MachineId::Kept, MachineId::New]);
                self.add(at, Act::Copy(node, id));
            }
            18 => {
                let device = self.one_of([Device::Underlay, Device::Tunnel]);
                self.pair((at, Act::LinkDown(node, device)), (end, Act::LinkUp(node, device)));
            }
            19 => self.add(at, Act::Join),
            20 => {
                let mistake = self.one_of([Config::Missing, Config::Malformed]);
                let correction = Act::Configure(self.config());
                self.pair((at, Act::Configure(mistake)), (end, correction));
            }
            21 => {
                let other = self.other(node);
                self.pair((at, Act::SwapAddresses(node, other)), (end, Act::PowerOn(node)));
                self.add(end, Act::PowerOn(other));
            }
            22 => {
                let address = self.rng.random_range(1..=LAST_ADDRESS);
                self.add(at, Act::Readdress(node, address));
            }
            23 => self.add(at, Act::RecreateInterface(node)),
            24 => {
                let breaks = KernelAct::Deafen(self.rng.random_range(1..20));
                let act = self.one_of([KernelAct::Overrun, KernelAct::Interrupt, breaks]);
                self.add(at, Act::Kernel(node, act));
            }
            25 => self.pair(
                (at, Act::Kernel(node, KernelAct::RefuseRoutes)),
                (end, Act::Kernel(node, KernelAct::AllowRoutes)),
            ),
            26 => self.roll_back(node, at, end),
            27 => self.begin_alone((at, Act::Kill(node)), Act::Start(node), end, node),
            _ => self.begin_alone((at, Act::PowerOff(node)), Act::PowerOn(node), end, node),
        }
    }

    /// A daemon or a machine stops, and starts again while the store is unreachable for it.
    fn begin_alone(&mut self, (at, stop): (Duration, Act), start: Act, end: Duration, node: usize) {
        let between = at + end.saturating_sub(at).mul_f64(self.rng.random());
        self.add(at, stop);
        self.add(at + Duration::from_millis(1), Act::StoreLink(node, LinkState::Cut));
        self.add(between.max(at + MOMENT), start);
        self.add(end.max(at + MOMENT * 2), Act::StoreLink(node, LinkState::Open));
    }

    fn kind(&mut self) -> u32 {
        let again = self.last.filter(|_| self.rng.random_bool(REPEATED));
        let kind = again.unwrap_or_else(|| self.rng.random_range(0..KINDS));
        self.last = Some(kind);
        kind
    }

    /// The daemon starts again with an older disk.
    fn roll_back(&mut self, node: usize, at: Duration, end: Duration) {
        let between = at + end.saturating_sub(at) / 2;
        self.add(at, Act::BackUpDisk(node));
        self.add(between, Act::Kill(node));
        self.add(between + Duration::from_millis(1), Act::RestoreDisk(node));
        self.add(end, Act::Start(node));
    }

    fn one_of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[self.rng.random_range(0..N)]
    }

    fn config(&mut self) -> Config {
        match self.rng.random_range(0..3) {
            0 => Config::Vxlan,
            1 => Config::HostGw,
            _ => Config::Rollout(self.rng.random_range(0..=100)),
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
        self.steps.push(Step { at, act });
    }
}

const MOMENT: Duration = Duration::from_millis(20);
/// How many kinds of faults there are.
const KINDS: u32 = 29;
/// How many faults are of the same kind as the one before.
const REPEATED: f64 = 0.2;
/// The last byte of the highest address that DHCP gives to a machine; the first machines of a
/// history have the lowest ones.
const LAST_ADDRESS: u8 = 12;
/// The distance from the chosen moment within which half of the faults happen.
const AROUND: Duration = Duration::from_secs(5);
/// How many histories have an edit of the config at this moment.
const EDITED: f64 = 0.7;

fn any_time(rng: &mut StdRng) -> Duration {
    CALM + FAULTS.saturating_sub(CALM).mul_f64(rng.random())
}

impl Config {
    /// The value of its key; none if the key is missing.
    pub fn text(self) -> Option<String> {
        let config = |rest: &str| format!(r#"{{"Network":"10.244.0.0/16","Mixed":true,{rest}}}"#);
        Some(match self {
            Self::Missing => return None,
            Self::Malformed => "{".to_owned(),
            Self::Vxlan => config(r#""Backend":{"Type":"vxlan"}"#),
            Self::HostGw => config(r#""Backend":{"Type":"host-gw"}"#),
            Self::Rollout(percent) => config(&format!(
                r#""Backend":{{"Type":"host-gw"}},"Rollout":{{"From":{{"Type":"vxlan"}},"Percent":{percent}}}"#
            )),
        })
    }
}

impl Act {
    /// What it is counted as.
    pub fn name(&self) -> String {
        let text = self.to_string();
        let words = text.split(' ').filter(|it| !it.starts_with(|it: char| it.is_ascii_digit()));
        words.filter(|it| !it.starts_with('n') || it.len() > 3).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3}s  {}", self.at.as_secs_f64(), self.act)
    }
}

impl Device {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Underlay => "eth0",
            Self::Tunnel => "flannel.1",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for EtcdAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("etcd down"),
            Self::Leaderless => f.write_str("etcd leaderless"),
            Self::Slow(time) => write!(f, "etcd slow {}ms", time.as_millis()),
            Self::Up => f.write_str("etcd up"),
            Self::Compact => f.write_str("etcd compact"),
            Self::BackUp => f.write_str("etcd back-up"),
            Self::Restore => f.write_str("etcd restore"),
        }
    }
}

impl fmt::Display for SegmentAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(from, to) => write!(f, "cut-segment {} {}", name(*from), name(*to)),
            Self::Join(from, to) => write!(f, "join-segment {} {}", name(*from), name(*to)),
            Self::DropPods => f.write_str("underlay drops pods"),
            Self::PassPods => f.write_str("underlay passes pods"),
        }
    }
}

fn name(index: usize) -> String {
    format!("n{}", index + 1)
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(node) => write!(f, "kill {}", name(*node)),
            Self::Start(node) => write!(f, "start {}", name(*node)),
            Self::Stop(node) => write!(f, "stop {}", name(*node)),
            Self::Continue(node) => write!(f, "continue {}", name(*node)),
            Self::PowerOff(node) => write!(f, "power-off {}", name(*node)),
            Self::PowerOn(node) => write!(f, "power-on {}", name(*node)),
            Self::StoreLink(node, state) => {
                let state = match state {
                    LinkState::Open => "open",
                    LinkState::Cut => "cut",
                    LinkState::AnswersLost => "answers-lost",
                };
                write!(f, "store-link {} {state}", name(*node))
            }
            Self::Etcd(act) => act.fmt(f),
            Self::DeleteLease(node) => write!(f, "delete-lease {}", name(*node)),
            Self::Configure(config) => match config {
                Config::Missing => f.write_str("config missing"),
                Config::Malformed => f.write_str("config malformed"),
                Config::Vxlan => f.write_str("config vxlan"),
                Config::HostGw => f.write_str("config host-gw"),
                Config::Rollout(percent) => write!(f, "config rollout {percent}"),
            },
            Self::LoseEntry(node, number) => write!(f, "lose-entry {} {number}", name(*node)),
            Self::FlushTables(node) => write!(f, "flush-tables {}", name(*node)),
            Self::Segment(act) => act.fmt(f),
            Self::BackUpDisk(node) => write!(f, "back-up-disk {}", name(*node)),
            Self::RestoreDisk(node) => write!(f, "restore-disk {}", name(*node)),
            Self::Reinstall(node) => write!(f, "reinstall {}", name(*node)),
            Self::Copy(node, MachineId::Kept) => write!(f, "copy {}", name(*node)),
            Self::Copy(node, MachineId::New) => write!(f, "copy {} with-new-id", name(*node)),
            Self::LinkDown(node, device) => write!(f, "link-down {} {device}", name(*node)),
            Self::LinkUp(node, device) => write!(f, "link-up {} {device}", name(*node)),
            Self::Join => f.write_str("join"),
            Self::SwapAddresses(one, other) => {
                write!(f, "swap-addresses {} {}", name(*one), name(*other))
            }
            Self::Readdress(node, address) => write!(f, "readdress {} {address}", name(*node)),
            Self::RecreateInterface(node) => write!(f, "recreate-interface {}", name(*node)),
            Self::Kernel(node, act) => match act {
                KernelAct::Overrun => write!(f, "overrun {}", name(*node)),
                KernelAct::Interrupt => write!(f, "interrupt {}", name(*node)),
                KernelAct::Deafen(times) => write!(f, "deafen {} {times}", name(*node)),
                KernelAct::RefuseRoutes => write!(f, "refuse-routes {}", name(*node)),
                KernelAct::AllowRoutes => write!(f, "allow-routes {}", name(*node)),
            },
        }
    }
}
