//! The kinds of accidents.

use clap::ValueEnum;

use crate::cluster::Setup;
use crate::store::StoreKind;

/// What the dice throw: an act, and mostly the act that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// An operator edits the network config
    Edit,
    /// The config is deleted, malformed or of another network, and corrected
    Mistake,
    /// A migration is finished: `Mixed` is turned off, and mostly on again later
    Finish,
    /// An operator migrates the cluster by `tweedctl migrate`, and so may another one
    Migrate,
    /// A daemon is killed, and started
    Kill,
    /// A daemon is killed, and started while it does not reach the store
    KillAlone,
    /// A newer daemon replaces one, and finds its checkpoint
    Upgrade,
    /// SIGSTOP and SIGCONT
    Stop,
    /// A machine loses power, and is started
    PowerCut,
    /// A machine loses power, and is started while it does not reach the store
    PowerCutAlone,
    /// A machine is installed again
    Reinstall,
    /// A daemon is started with an older disk
    RestoreDisk,
    /// The disk of a machine is full
    DiskFull,
    /// The disk of a machine is put into another one
    Copy,
    /// A machine is added
    Join,
    /// A machine is removed for good
    Leave,
    /// `tweedd` replaces flanneld on a node
    TakeOver,
    /// Two machines get each the address of the other one
    SwapAddresses,
    /// A running machine gets another address
    Readdress,
    /// The store cannot be reached from a node, or its answers are lost
    StoreLink,
    /// etcd is down
    EtcdDown,
    /// etcd has no leader
    Leaderless,
    /// etcd answers late
    SlowEtcd,
    /// etcd forgets its history
    Compact,
    /// etcd is restored from a backup, mostly after it was down
    RestoreEtcd,
    /// An operator deletes a lease
    DeleteLease,
    /// An operator reserves the subnet of a node for it
    ReserveLease,
    /// Another program removes an entry of tweed
    LoseEntry,
    /// `nft flush ruleset`
    FlushTables,
    /// A link goes down, and up again
    LinkDown,
    /// The interface of a node disappears, and is there again
    RecreateInterface,
    /// The kernel drops notifications, or a conversation with it fails
    BreakKernel,
    /// The kernel refuses to change routes
    RefuseRoutes,
    /// Another program makes the reverse-path filters strict
    StrictFilters,
    /// Nothing arrives from one node at another one
    CutSegment,
    /// The segment drops packets with addresses of pods from one node to another one
    CutDirect,
    /// The segment drops packets with addresses of pods
    DropPods,
    /// All daemons are killed, and started at one moment
    KillAll,
    /// All machines and the store lose power, and are started one by one
    Blackout,
    /// Another program changes an entry of tweed
    ChangeEntry,
    /// A machine loses its addresses, and has them again
    LoseAddresses,
    /// The MTU of the interface of a node changes
    ChangeMtu,
    /// The quota of etcd is used up: it refuses to write
    EtcdFull,
    /// An etcd lease ends, with the lease of a node
    ExpireLease,
    /// A Node is deleted, and registered again, mostly with another podCIDR
    Rejoin,
    /// Another program lets `FORWARD` drop packets without a rule
    DropForwarded,
    /// A daemon is started with its disk of the beginning while it does not reach the store
    RestoreAlone,
    /// The backend is edited where `Mixed` is off
    EditFinished,
}

impl Fault {
    /// Two machines with one name cannot be in Kubernetes, which has no etcd leases of nodes. Flanneld repairs little of what others
    /// change, and remembers nothing.
    pub(crate) const fn is_possible(self, setup: &Setup) -> bool {
        match (self, setup.flannel) {
            (Self::TakeOver, flannel) => flannel.is_some(),
            (Self::Copy | Self::ExpireLease, None) => matches!(setup.store, StoreKind::Etcd),
            (Self::Rejoin, None) => matches!(setup.store, StoreKind::Kubernetes),
            (_, None) => true,
            (fault, Some(_)) => matches!(
                fault,
                Self::Edit
                    | Self::Mistake
                    | Self::Kill
                    | Self::KillAlone
                    | Self::Stop
                    | Self::PowerCut
                    | Self::DiskFull
                    | Self::Join
                    | Self::StoreLink
                    | Self::EtcdDown
                    | Self::Leaderless
                    | Self::SlowEtcd
                    | Self::Compact
                    | Self::CutSegment
            ),
        }
    }

    /// Whether it may start a flanneld, or a node that a running one has to add. With another backend
    /// in the config or in the lease, it does not.
    pub(crate) const fn may_start_flanneld(self) -> bool {
        matches!(self, Self::Kill | Self::KillAlone | Self::PowerCut | Self::Join)
    }
}
