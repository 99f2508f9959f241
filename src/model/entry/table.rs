//! Tables of nftables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use tweed_netlink::nftables::{Hook, Ports};

use super::LinkName;
use crate::model::prefix::{Family, Prefix};

/// What the set of peers is called.
pub const PEERS: &str = "peers";

/// What the set is called that a [`Renewal`] is in.
pub const RENEWED: &str = "renewed";

/// Tables of different families may have the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    pub family: Family,
    pub name: String,
}

/// A table with everything in it but for the elements of its set: it is replaced as a whole. With
/// it go the elements.
///
/// It has the set of peers if a rule refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: Arc<TableName>,
    /// Where packets come to it, and what is done with them there, rule by rule.
    pub chains: BTreeMap<Hook, Vec<Rule>>,
    /// How much of it is in no form of ours; never set by us.
    pub foreign: usize,
}

/// An address in the set of peers that a table has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub table: Arc<TableName>,
    pub address: IpAddr,
}

/// As long as this is in a table, its rules drop packets: then a daemon keeps its set of peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub table: Arc<TableName>,
    /// So long after it was put, the kernel removes it.
    pub timeout: Duration,
    /// So long from now on.
    pub left: Duration,
}

/// What is done with packets for which all of it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is true of their mark.
    pub marked: Option<Marked>,
    pub source: Option<Match>,
    pub destination: Option<Match>,
    /// What else is true of them.
    pub also: Vec<Condition>,
    pub verdict: Verdict,
}

/// Whether a packet has all of these bits of its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    With(u32),
    Without(u32),
}

/// What may be true of a packet of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It goes to this port of UDP.
    UdpTo(u16),
    /// Its table has no [`Renewal`].
    Unrenewed,
    /// It is long enough for a VXLAN header, and that has this VNI.
    Vni(u32),
    /// Likewise, and that has another.
    OtherVni(u32),
    /// It came by this link.
    CameBy(LinkName),
    /// It came by a link by which its source is routed.
    CameAsRouted,
    /// It came by another.
    CameUnrouted,
    /// Its source is in the table's set of peers.
    FromPeer(Family),
    /// Its destination is.
    ToPeer(Family),
}

/// Whether an address is in a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Is(Prefix),
    IsNot(Prefix),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody is told.
    Drop,
    /// The connection is not taken note of; the rules behind are asked.
    Untrack,
    /// No rule behind is asked, in this chain.
    Accept,
    /// Likewise; what the chain does with all others is done.
    Return,
    /// The packet loses these bits of its mark; the rules behind are asked.
    Unmark(u32),
    /// The source becomes the address of the interface that the packet leaves by. The kernel ends
    /// the connection once its packets leave by another.
    Masquerade(Ports),
    /// The source becomes this address, whatever interface the packets leave by.
    SourceNat { to: IpAddr, ports: Ports },
}

impl Table {
    /// Whether it has the set of peers.
    pub fn has_peers(&self) -> bool {
        let asks = |condition: &Condition| {
            matches!(condition, Condition::FromPeer(_) | Condition::ToPeer(_))
        };
        self.asks(asks)
    }

    /// Whether it drops packets only as long as it has a [`Renewal`].
    pub fn is_renewed(&self) -> bool {
        self.asks(|condition| *condition == Condition::Unrenewed)
    }

    fn asks(&self, what: impl Fn(&Condition) -> bool) -> bool {
        self.chains.values().flatten().any(|rule| rule.also.iter().any(&what))
    }
}

impl Renewal {
    /// So long packets are dropped after a daemon has ended.
    pub const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
    /// It is put again when this part of its time is over.
    const PARTS: u32 = 24;

    pub const fn of(table: Arc<TableName>) -> Self {
        Self { table, timeout: Self::TIMEOUT, left: Self::TIMEOUT }
    }

    /// Whether it is time to put it again.
    pub fn is_due(&self) -> bool {
        self.left + self.timeout / Self::PARTS < self.timeout
    }
}

impl Rule {
    pub const fn of_all(verdict: Verdict) -> Self {
        Self { marked: None, source: None, destination: None, also: Vec::new(), verdict }
    }

    pub const fn between(source: Match, destination: Match, verdict: Verdict) -> Self {
        let (source, destination) = (Some(source), Some(destination));
        Self { marked: None, source, destination, also: Vec::new(), verdict }
    }

    /// Of packets for which all of `also` is true.
    pub fn of(also: impl Into<Vec<Condition>>, verdict: Verdict) -> Self {
        Self { also: also.into(), ..Self::of_all(verdict) }
    }
}
