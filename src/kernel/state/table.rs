//! Tables of nftables.

use std::collections::BTreeMap;

pub use tweed_cni::nftables::{Hook, Ports};

use crate::prefix::{Family, Prefix};

/// Tables of different families may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    pub family: Family,
    pub name: String,
}

/// A table with everything in it: it is replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: TableName,
    /// Where packets come to it, and what is done with them there, rule by rule.
    pub chains: BTreeMap<Hook, Vec<Rule>>,
    /// How much of it is in no form of ours; never set by us.
    pub foreign: usize,
}

/// What is done with packets for which all of it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// They have all bits of this mark.
    pub marked: Option<u32>,
    pub source: Option<Match>,
    pub destination: Option<Match>,
    pub verdict: Verdict,
}

/// Whether an address is in a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Is(Prefix),
    IsNot(Prefix),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule behind is asked, in this chain.
    Accept,
    /// Likewise; what the chain does with all others is done.
    Return,
    /// The source becomes the address of the interface that the packet leaves by.
    Masquerade(Ports),
}

impl Rule {
    pub const fn of_all(verdict: Verdict) -> Self {
        Self { marked: None, source: None, destination: None, verdict }
    }

    pub const fn between(source: Match, destination: Match, verdict: Verdict) -> Self {
        let (source, destination) = (Some(source), Some(destination));
        Self { source, destination, ..Self::of_all(verdict) }
    }
}
