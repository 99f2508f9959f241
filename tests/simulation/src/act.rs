//! What happens to a cluster: faults, their ends, and what operators do.

use std::fmt;
use std::time::Duration;

use tweed::model::entry::LinkName;

use crate::network::LinkState;
use crate::packets::stack::{Stack, UNDERLAY, tunnel};

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
    /// `tweedd` replaces flanneld on this node.
    TakeOver(usize),
    /// A newer daemon replaces that of this node, and finds the checkpoint of the older one.
    Upgrade(usize),
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
    /// An operator reserves the subnet of this node for it: its lease has no term any more.
    ReserveLease(usize),
    /// The etcd lease of this node ends, with all its keys.
    ExpireLease(usize),
    /// An operator edits the network config.
    Configure(Config),
    /// An operator runs a command of `tweedctl migrate`.
    Migrate(Order),
    /// Another program removes the entry of this number, of those of tweed.
    LoseEntry(usize, usize),
    /// Another program changes the entry of this number, of those of tweed.
    ChangeEntry(usize, usize),
    /// `nft flush ruleset`.
    FlushTables(usize),
    Segment(SegmentAct),
    /// The disk of this node is copied, and put back later, while its daemon does not run.
    BackUpDisk(usize),
    RestoreDisk(usize),
    /// The disk of this node is full: no checkpoint can be saved.
    FillDisk(usize),
    FreeDisk(usize),
    /// The machine is installed again: empty disk, another machine id, the same address.
    Reinstall(usize),
    /// The disk of this node is put into another machine, which is started.
    Copy(usize, MachineId),
    /// A machine is added.
    Join,
    /// A machine is switched off for good, and removed from the store.
    Leave(usize),
    /// The Node of a machine is deleted in Kubernetes, and its pods with it.
    Deregister(usize),
    /// The kubelet of a machine registers it again, with the subnet of this number.
    Register(usize, usize),
    /// Both machines lose power, and get the address of the other one.
    SwapAddresses(usize, usize),
    /// DHCP gives a running machine addresses with this last byte, unless a machine has them.
    Readdress(usize, u8),
    Interface(usize, InterfaceAct),
    Kernel(usize, KernelAct),
}

/// What happens to the interface of a node, or to its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceAct {
    /// This link goes down, or up again.
    Down(Device),
    Up(Device),
    /// It has no address any more, or has its own again.
    LoseAddresses,
    ReturnAddresses,
    /// It gets this MTU.
    Mtu(u32),
    /// It disappears and is there again, without its routes.
    Recreate,
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
    /// Another program makes the reverse-path filters strict.
    MakeStrict,
    /// Another program lets `FORWARD` of iptables-nft drop packets without a rule.
    DropForwarded,
}

/// What happens to etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdAct {
    Down,
    Leaderless,
    /// It refuses to write: its quota is used up.
    Full,
    Slow(Duration),
    Up,
    Compact,
    /// A copy of its data is made, and put back later.
    BackUp,
    Restore(ClusterId),
}

/// Whether a restored etcd has the id of the former one: that follows from the flags of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterId {
    Kept,
    New,
}

/// What happens to the segment between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentAct {
    /// Nothing arrives from the first node at the second one.
    Cut(usize, usize),
    Join(usize, usize),
    /// Nothing that the first node sends to the second one outside of a tunnel arrives, or it does again.
    CutDirect(usize, usize),
    JoinDirect(usize, usize),
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

/// A network config, mostly with `Mixed`, or what an operator's mistake leaves of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Config {
    /// The key is deleted.
    Missing,
    /// With the typo of this number: no node accepts it.
    Malformed(usize),
    /// With another network, without `Mixed`.
    OtherNetwork,
    Mixed(Backend),
    /// To host-gw, this percentage of the hashes.
    Rollout(u8),
    /// Without `Mixed`: a migration to this backend is finished.
    Finished(Backend),
}

/// A command of `tweedctl migrate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To this backend.
    Start(Backend),
    Next,
    Pause,
    /// All stages, or the last one.
    Rollback(Stages),
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    All,
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Vxlan,
    /// The same, with direct routes on the segment.
    DirectRouting,
    HostGw,
}

impl Act {
    /// The node in whose kernel it removes or changes entries.
    pub(crate) const fn spoils(&self) -> Option<usize> {
        match self {
            Self::LoseEntry(node, _) | Self::ChangeEntry(node, _) | Self::FlushTables(node) => {
                Some(*node)
            }
            _ => None,
        }
    }

    /// Whether a node may start without its checkpoint, or after a boot, or as another one.
    pub(crate) const fn may_forget_subnet(&self) -> bool {
        matches!(
            self,
            Self::PowerOff(_)
                | Self::DeleteLease(_)
                | Self::ExpireLease(_)
                | Self::Etcd(EtcdAct::Restore(_))
                | Self::RestoreDisk(_)
                | Self::FillDisk(_)
                | Self::Reinstall(_)
                | Self::Copy(..)
                | Self::Join
                | Self::SwapAddresses(..)
                | Self::Readdress(..)
                | Self::Upgrade(_)
        )
    }
}

/// The beginnings of the networks, and what a mistake makes of them.
const MISTAKEN: [(&str, &str); 2] = [("10.244.", "10.224."), ("fd00:244:", "fd00:224:")];

/// What stands in the config, and what a typo makes of it: no JSON, a value of another type, an unknown
/// backend, values out of range.
const TYPOS: [(&str, &str); 6] = [
    ("{", ""),
    (r#""Mixed":true"#, r#""Mixed":"true""#),
    (r#""vxlan""#, r#""vxlam""#),
    (r#""Type""#, r#""VNI":-1,"Type""#),
    (r#""Type""#, r#""Port":70000,"Type""#),
    ("}}", r#"},"Rollout":{"From":{"Type":"vxlan"},"Percent":101}}"#),
];

impl Config {
    /// The number of typos.
    pub const TYPOS: usize = TYPOS.len();

    /// Whether no node accepts this text.
    pub fn is_malformed(text: &str, stack: Stack) -> bool {
        let mut all = (0..Self::TYPOS).filter_map(|number| Self::Malformed(number).text(stack));
        all.any(|malformed| malformed == text.trim_end())
    }

    /// Whether this is the text of a config with another network.
    pub fn is_of_other_network(text: &str) -> bool {
        MISTAKEN.iter().any(|(_, wrong)| text.contains(wrong))
    }

    /// The value of its key; none if the key is missing.
    pub fn text(self, stack: Stack) -> Option<String> {
        let config = |mixed: bool, backend: Backend, rest: &str| {
            let (pools, kind) = (stack.pools(), backend.as_str());
            let direct = match backend {
                Backend::DirectRouting => r#","DirectRouting":true"#,
                Backend::Vxlan | Backend::HostGw => "",
            };
            format!(r#"{{{pools},"Mixed":{mixed},"Backend":{{"Type":"{kind}"{direct}}}{rest}}}"#)
        };
        Some(match self {
            Self::Missing => return None,
            Self::Malformed(number) => {
                let (right, wrong) = TYPOS[number];
                config(true, Backend::Vxlan, "").replace(right, wrong)
            }
            Self::OtherNetwork => {
                let config = config(false, Backend::Vxlan, "");
                MISTAKEN.iter().fold(config, |text, (right, wrong)| text.replace(right, wrong))
            }
            Self::Mixed(backend) => config(true, backend, ""),
            Self::Rollout(percent) => {
                let rollout =
                    format!(r#","Rollout":{{"From":{{"Type":"vxlan"}},"Percent":{percent}}}"#);
                config(true, Backend::HostGw, &rollout)
            }
            Self::Finished(backend) => config(false, backend, ""),
        })
    }
}

impl Order {
    /// The arguments of `tweedctl migrate`.
    pub(crate) fn arguments(self) -> &'static str {
        match self {
            Self::Start(Backend::Vxlan | Backend::DirectRouting) => {
                "start --to vxlan --timeout 20s"
            }
            Self::Start(Backend::HostGw) => "start --to host-gw --timeout 20s",
            Self::Next => "next --resume --hold 2s --auto-rollback --timeout 20s",
            Self::Pause => "pause",
            Self::Rollback(Stages::All) => "rollback --timeout 20s",
            Self::Rollback(Stages::Last) => "rollback --one-stage --timeout 20s",
            Self::Finish => "finish --timeout 20s",
        }
    }
}

impl Backend {
    /// `Backend.Type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vxlan | Self::DirectRouting => "vxlan",
            Self::HostGw => "host-gw",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vxlan | Self::HostGw => self.as_str(),
            Self::DirectRouting => "direct-routing",
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3}s  {}", self.at.as_secs_f64(), self.act)
    }
}

impl Device {
    /// The links of a node.
    pub fn links(self, stack: Stack) -> Vec<LinkName> {
        match self {
            Self::Underlay => vec![LinkName::new(UNDERLAY)],
            Self::Tunnel => stack.families().iter().copied().map(tunnel).collect(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Underlay => "underlay",
            Self::Tunnel => "tunnel",
        })
    }
}

impl fmt::Display for EtcdAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("etcd down"),
            Self::Leaderless => f.write_str("etcd leaderless"),
            Self::Full => f.write_str("etcd full"),
            Self::Slow(time) => write!(f, "etcd slow {}ms", time.as_millis()),
            Self::Up => f.write_str("etcd up"),
            Self::Compact => f.write_str("etcd compact"),
            Self::BackUp => f.write_str("etcd back-up"),
            Self::Restore(ClusterId::New) => f.write_str("etcd restore"),
            Self::Restore(ClusterId::Kept) => f.write_str("etcd restore with-its-id"),
        }
    }
}

impl fmt::Display for SegmentAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(from, to) => write!(f, "cut-segment {} {}", name(*from), name(*to)),
            Self::Join(from, to) => write!(f, "join-segment {} {}", name(*from), name(*to)),
            Self::CutDirect(from, to) => write!(f, "cut-direct {} {}", name(*from), name(*to)),
            Self::JoinDirect(from, to) => write!(f, "join-direct {} {}", name(*from), name(*to)),
            Self::DropPods => f.write_str("underlay drops pods"),
            Self::PassPods => f.write_str("underlay passes pods"),
        }
    }
}

/// The name of a machine.
pub(crate) fn name(index: usize) -> String {
    format!("n{}", index + 1)
}

impl InterfaceAct {
    /// As part of an act on this node.
    fn write(self, f: &mut fmt::Formatter<'_>, node: &str) -> fmt::Result {
        match self {
            Self::Down(device) => write!(f, "link-down {node} {device}"),
            Self::Up(device) => write!(f, "link-up {node} {device}"),
            Self::LoseAddresses => write!(f, "lose-addresses {node}"),
            Self::ReturnAddresses => write!(f, "return-addresses {node}"),
            Self::Mtu(mtu) => write!(f, "change-mtu {node} {mtu}"),
            Self::Recreate => write!(f, "recreate-interface {node}"),
        }
    }
}

impl KernelAct {
    /// As part of an act on this node.
    fn write(self, f: &mut fmt::Formatter<'_>, node: &str) -> fmt::Result {
        match self {
            Self::Overrun => write!(f, "overrun {node}"),
            Self::Interrupt => write!(f, "interrupt {node}"),
            Self::Deafen(times) => write!(f, "deafen {node} {times}"),
            Self::RefuseRoutes => write!(f, "refuse-routes {node}"),
            Self::AllowRoutes => write!(f, "allow-routes {node}"),
            Self::MakeStrict => write!(f, "make-strict {node}"),
            Self::DropForwarded => write!(f, "drop-forwarded {node}"),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(node) => write!(f, "kill {}", name(*node)),
            Self::Start(node) => write!(f, "start {}", name(*node)),
            Self::TakeOver(node) => write!(f, "take-over {}", name(*node)),
            Self::Upgrade(node) => write!(f, "upgrade {}", name(*node)),
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
            Self::ReserveLease(node) => write!(f, "reserve-lease {}", name(*node)),
            Self::Configure(config) => match config {
                Config::Missing => f.write_str("config missing"),
                Config::Malformed(number) => write!(f, "config malformed {number}"),
                Config::OtherNetwork => f.write_str("config other-network"),
                Config::Mixed(backend) => write!(f, "config {backend}"),
                Config::Rollout(percent) => write!(f, "config rollout {percent}"),
                Config::Finished(backend) => write!(f, "config {backend} alone"),
            },
            Self::Migrate(order) => write!(f, "migrate {}", order.arguments()),
            Self::LoseEntry(node, number) => write!(f, "lose-entry {} {number}", name(*node)),
            Self::ChangeEntry(node, number) => write!(f, "change-entry {} {number}", name(*node)),
            Self::ExpireLease(node) => write!(f, "expire-lease {}", name(*node)),
            Self::FlushTables(node) => write!(f, "flush-tables {}", name(*node)),
            Self::Segment(act) => act.fmt(f),
            Self::BackUpDisk(node) => write!(f, "back-up-disk {}", name(*node)),
            Self::FillDisk(node) => write!(f, "fill-disk {}", name(*node)),
            Self::FreeDisk(node) => write!(f, "free-disk {}", name(*node)),
            Self::RestoreDisk(node) => write!(f, "restore-disk {}", name(*node)),
            Self::Reinstall(node) => write!(f, "reinstall {}", name(*node)),
            Self::Copy(node, MachineId::Kept) => write!(f, "copy {}", name(*node)),
            Self::Copy(node, MachineId::New) => write!(f, "copy {} with-new-id", name(*node)),
            Self::Join => f.write_str("join"),
            Self::Leave(node) => write!(f, "leave {}", name(*node)),
            Self::Deregister(node) => write!(f, "deregister {}", name(*node)),
            Self::Register(node, number) => write!(f, "register {} {number}", name(*node)),
            Self::SwapAddresses(one, other) => {
                write!(f, "swap-addresses {} {}", name(*one), name(*other))
            }
            Self::Readdress(node, address) => write!(f, "readdress {} {address}", name(*node)),
            Self::Interface(node, act) => act.write(f, &name(*node)),
            Self::Kernel(node, act) => act.write(f, &name(*node)),
        }
    }
}
