//! The kernel entries that tweed owns: their encoding, and the trait that reads and writes them.

mod codec;
pub mod host;
mod iptables;
mod netlink;
mod nftables;
mod settings;

pub use netlink::NetlinkKernel;
#[doc(hidden)]
pub use netlink::read_datagram;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;

use crate::model::entry::{Chain, ChainName, Entry, KernelState, Key, LinkName, TableName};
use crate::model::node::{Facts, Interface, RouteLookup};
use crate::model::prefix::Prefix;
use crate::plan::diff::Op;
use crate::plan::scope::Scope;

/// An operation that the kernel refused, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
// A table or chain is identified by its name.
#[error("{op:#}: {reason}")]
pub struct Refused {
    pub op: Op,
    pub reason: String,
}

/// A notification from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The kernel now holds this entry.
    Holds(Entry),
    /// The kernel no longer holds an entry with this key.
    Lost(Key),
    /// This link, or one of its addresses, was created, changed or removed. Entries on it may have
    /// been removed without a notification, so a dump must follow.
    LinkChanged(LinkName),
    /// The same, because of an address with this prefix on a link outside of the scope.
    AddressChanged(LinkName, Prefix),
    /// The contents of this table changed. A dump must follow.
    TableChanged(TableName),
    /// The rules or policy of this iptables chain, or of the host's chain that jumps to it, may
    /// have changed. A read must follow. Legacy iptables sends no notifications.
    ChainChanged(ChainName),
    /// Notifications were lost. A dump must follow.
    Overrun,
    /// Notifications were paused during a large change by tweed. A dump must follow to find foreign
    /// changes.
    Paused,
}

/// The kernel entries, the facts of this host, and changes of both. If a scope or ops contain
/// iptables chains, the calls wait for external programs. Callers that cannot wait use [`Chains`]
/// for those.
pub trait Kernel {
    type Chains: Chains;

    /// The chains of the same host.
    fn chains(&self) -> Self::Chains;

    /// Reads the kernel entries in `scope`: tweed's links with all entries on them, its tables and
    /// chains, and all routes of the main table into its networks, including foreign ones. Entries
    /// equal to those in `known` share their memory.
    fn dump(
        &mut self,
        scope: &Scope,
        known: &KernelState,
    ) -> impl Future<Output = io::Result<KernelState>>;

    /// Applies `ops` in order; returns the refused ones. A refusal does not stop later ops. Fails if
    /// the connection to the kernel fails: then it is unknown which ops were applied.
    fn apply(&mut self, ops: &[Op]) -> impl Future<Output = io::Result<Vec<Refused>>>;

    /// Returns the next notification. Cancel safe: no notification is lost if the future is
    /// dropped.
    fn observe(&mut self) -> impl Future<Output = io::Result<Observation>>;

    /// Reads links, addresses, default routes, and the route to `reach`.
    fn facts(&mut self, reach: Option<IpAddr>) -> impl Future<Output = io::Result<Facts>>;

    /// Like [`Self::facts`] and [`Self::dump`], with a single listing for both.
    fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        known: &KernelState,
    ) -> impl Future<Output = io::Result<(Facts, KernelState)>>;

    /// The links as the kernel last reported them, and their addresses, which are the only ones that
    /// are listed.
    fn interfaces(&mut self) -> impl Future<Output = io::Result<Vec<Interface>>>;

    /// The route to `address`; none if there is none, or if it rejects such packets.
    fn look_up(&mut self, address: IpAddr)
    -> impl Future<Output = io::Result<Option<RouteLookup>>>;
}

/// The iptables chains. The programs that read and write them may be slow, or hang.
pub trait Chains: Clone + 'static {
    /// Reads those of `names` that may have changed since the generation `seen`.
    fn read(
        self,
        names: BTreeSet<ChainName>,
        seen: Option<Generation>,
    ) -> impl Future<Output = Reading> + 'static;

    /// Applies `ops`, all on chains, in order; returns the refused ones.
    fn carry_out(self, ops: Vec<Op>) -> impl Future<Output = Vec<Refused>> + 'static;
}

/// The result of reading chains.
#[derive(Debug, Default)]
pub struct Reading {
    /// The chains that were requested.
    pub names: BTreeSet<ChainName>,
    /// The requested chains that exist.
    pub found: Vec<Chain>,
    /// The requested chains, existing or not, whose host chain `FORWARD` drops packets that no rule
    /// accepts.
    pub dropping: BTreeSet<ChainName>,
    /// The requested chains that cannot be read and whose host chain `FORWARD` may drop packets,
    /// with the reason.
    pub unread: BTreeMap<ChainName, String>,
    /// The generation of the read, if known.
    pub generation: Option<Generation>,
}

/// The generation of the nftables rule set. It changes with every change of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);
