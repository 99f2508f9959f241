//! The entries of the kernel that are ours: their model, and the one trait that touches them.

mod codec;
pub mod host;
mod iptables;
mod netlink;
mod nftables;
mod settings;

pub use netlink::NetlinkKernel;
#[doc(hidden)]
pub use netlink::read_datagram;
pub(crate) use netlink::service;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;

use crate::model::entry::{Chain, ChainName, Entry, KernelState, Key, LinkName, TableName};
use crate::model::node::Facts;
use crate::plan::diff::Op;
use crate::plan::scope::Scope;

/// An operation that the kernel did not carry out, and its words for why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub op: Op,
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of a table or a chain, its name is enough.
        write!(f, "{:#}: {}", self.op, self.reason)
    }
}

/// Something that the kernel told without being asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The kernel holds this entry now.
    Holds(Entry),
    /// The kernel no longer holds an entry of this key.
    Lost(Key),
    /// This link, or an address of it, was made, changed or removed. With a link much else can
    /// vanish without a word: only a dump tells.
    LinkChanged(LinkName),
    /// Something in this table was made, changed or removed: only a dump tells what it holds now.
    TableChanged(TableName),
    /// This chain of iptables, or the host's chain that leads to it, may have other rules or
    /// another policy now: only a reading tells. The legacy kind notifies of nothing.
    ChainChanged(ChainName),
    /// Messages were lost: only a dump tells.
    Overrun,
    /// For a while nobody listened, because too much was changed by ourselves: only a dump tells
    /// what others changed meanwhile.
    Unheard,
}

/// The entries of the kernel, the facts of this host, and what changes in either.
///
/// Chains of iptables are read and written by programs: where there are any in a scope or among
/// ops, those are waited for. Whoever cannot wait leaves them to [`Chains`].
pub trait Kernel {
    type Chains: Chains;

    /// The chains of the same host.
    fn chains(&self) -> Self::Chains;

    /// Reads what the kernel holds of `scope`: the links of ours with all that sits on them, the
    /// tables and chains of ours, and the main table's routes into its networks, whoever made
    /// them. What is as in `known` takes no memory of its own.
    fn dump(
        &mut self,
        scope: &Scope,
        known: &KernelState,
    ) -> impl Future<Output = io::Result<KernelState>>;

    /// Carries out `ops` in their order; returns those refused. One refusal stops no other.
    ///
    /// # Errors
    /// The conversation with the kernel broke: which ops were carried out is unknown.
    fn apply(&mut self, ops: &[Op]) -> impl Future<Output = io::Result<Vec<Refused>>>;

    /// The next thing the kernel tells. Cancel safe: nothing is lost if the future is dropped.
    fn observe(&mut self) -> impl Future<Output = io::Result<Observation>>;

    /// Reads links, addresses and default routes, and the way to `reach`.
    fn facts(&mut self, reach: Option<IpAddr>) -> impl Future<Output = io::Result<Facts>>;

    /// As [`Self::facts`] and [`Self::dump`], from one listing of what both need.
    fn read(
        &mut self,
        reach: Option<IpAddr>,
        scope: &Scope,
        known: &KernelState,
    ) -> impl Future<Output = io::Result<(Facts, KernelState)>>;
}

/// The chains of iptables. The programs that read and write them take their time, or hang.
pub trait Chains: Clone + 'static {
    /// Reads those of `names` that may have changed since they were read in the generation `seen`.
    fn read(
        self,
        names: BTreeSet<ChainName>,
        seen: Option<Generation>,
    ) -> impl Future<Output = Reading> + 'static;

    /// Carries out `ops`, all of them of chains, in their order; returns those refused.
    fn carry_out(self, ops: Vec<Op>) -> impl Future<Output = Vec<Refused>> + 'static;
}

/// What was read of chains.
#[derive(Debug)]
pub struct Reading {
    /// Those that were looked for.
    pub names: BTreeSet<ChainName>,
    /// Those of them that are there.
    pub found: Vec<Chain>,
    /// Those of them whose chain `FORWARD` drops what no rule accepts, there or not.
    pub dropping: BTreeSet<ChainName>,
    /// Those of them that cannot be read, and whose chain `FORWARD` may drop: why.
    pub unread: BTreeMap<ChainName, String>,
    /// In which they were read, if that is known.
    pub generation: Option<Generation>,
}

/// Of the whole rule set of nftables: in the same generation, nothing in it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);
