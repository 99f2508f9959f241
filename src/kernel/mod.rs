//! The entries of the kernel that are ours: their model, and the one trait that touches them.

mod codec;
mod diff;
mod display;
pub mod fake;
mod iptables;
mod netlink;
pub mod scope;
mod socket;
pub mod state;
mod sysctl;

pub use diff::{cleanup_ops, diff, diff_key, handover_ops};
pub use netlink::NetlinkKernel;
#[doc(hidden)]
pub use netlink::read_datagram;
pub(crate) use netlink::service;
pub use scope::{Extent, Scope};

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use crate::node::Facts;
use state::{Chain, ChainName, Entry, KernelState, Key, LinkName, TableName};

/// One change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The kernel has no entry of this key.
    Create(Arc<Entry>),
    /// The kernel has another entry of this key; it is replaced in one request, or corrected in place.
    Replace(Arc<Entry>),
    /// Removes exactly this entry. That it is gone already counts as success.
    Remove(Arc<Entry>),
}

impl Op {
    pub fn entry(&self) -> &Entry {
        match self {
            Self::Create(entry) | Self::Replace(entry) | Self::Remove(entry) => entry,
        }
    }

    /// What it does, in a word.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Replace(_) => "replace",
            Self::Remove(_) => "remove",
        }
    }
}

/// An operation that the kernel did not carry out, and its words for why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub op: Op,
    pub reason: String,
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
