//! Tables of nftables, and the elements of their sets. Their text is one line, which `nft(8)` reads
//! as it is; the short form is the name alone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use tweed_netlink::nftables::{Hook, Ports};

use super::{Key, KeyRef, Kind, KindPolicy, LinkName, Ownership, Removal};
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

impl Kind for Table {
    const POLICY: KindPolicy =
        KindPolicy { local: true, removal: Removal::AfterRules, ownership: Ownership::Owned };

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Table(&self.name)
    }
}

impl Kind for Renewal {
    const POLICY: KindPolicy =
        KindPolicy { local: true, removal: Removal::Delayed, ownership: Ownership::Owned };

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Renewal(&self.table)
    }

    /// Time passes.
    fn is_met_by(&self, have: &Self) -> bool {
        *self == Self { left: self.left, ..have.clone() }
    }
}

impl Kind for Element {
    const POLICY: KindPolicy =
        KindPolicy { local: false, removal: Removal::Delayed, ownership: Ownership::Owned };

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Element(&self.table, self.address)
    }
}

/// In the words of `nft(8)`, for a family's tables and addresses.
const fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// In the words of `nft(8)`, for what a set of addresses holds.
const fn kind(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// What the chain is called, and where packets come to it.
const fn head(hook: Hook) -> &'static str {
    match hook {
        Hook::RawPrerouting => {
            "prerouting { type filter hook prerouting priority raw; policy accept;"
        }
        Hook::RawOutput => "output { type filter hook output priority raw; policy accept;",
        Hook::Input => "input { type filter hook input priority filter; policy accept;",
        Hook::EarlySourceNat => {
            "fixed-source { type nat hook postrouting priority srcnat - 1; policy accept;"
        }
        Hook::SourceNat => {
            "postrouting { type nat hook postrouting priority srcnat; policy accept;"
        }
        Hook::Forward => "forward { type filter hook forward priority filter; policy accept;",
    }
}

const fn chosen(ports: Ports) -> &'static str {
    match ports {
        Ports::Kept => "",
        Ports::FullyRandom => " fully-random",
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word(self.family), self.name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.name)?;
        if f.alternate() {
            return Ok(());
        }
        f.write_str(" {")?;
        if self.has_peers() {
            write!(f, " set {PEERS} {{ type {}; }};", kind(self.name.family))?;
        }
        if self.is_renewed() {
            write!(f, " set {RENEWED} {{ type inet_proto; flags timeout; }};")?;
        }
        for (hook, rules) in &self.chains {
            write!(f, " chain {}", head(*hook))?;
            rules.iter().try_for_each(|rule| write!(f, " {rule};"))?;
            f.write_str(" };")?;
        }
        match self.foreign {
            0 => f.write_str(" }"),
            foreign => write!(f, " }} and {foreign} of another form"),
        }
    }
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} {RENEWED} {{ udp timeout {}s", self.table, self.timeout.as_secs())?;
        if self.left != self.timeout {
            write!(f, " expires {}s", self.left.as_secs())?;
        }
        f.write_str(" }")
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "element {} {PEERS} {{ {} }}", self.table, self.address)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.marked {
            Some(Marked::With(mark)) => write!(f, "meta mark & {mark:#010x} == {mark:#010x} ")?,
            Some(Marked::Without(mark)) => {
                write!(f, "meta mark & {mark:#010x} != {mark:#010x} ")?;
            }
            None => {}
        }
        self.also.iter().try_for_each(|condition| write!(f, "{condition} "))?;
        for (field, condition) in [("saddr", self.source), ("daddr", self.destination)] {
            match condition {
                Some(Match::Is(prefix)) => {
                    write!(f, "{} {field} {prefix} ", word(prefix.family()))?;
                }
                Some(Match::IsNot(prefix)) => {
                    write!(f, "{} {field} != {prefix} ", word(prefix.family()))?;
                }
                None => {}
            }
        }
        self.verdict.fmt(f)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UdpTo(port) => write!(f, "udp dport {port}"),
            Self::Unrenewed => write!(f, "meta l4proto != @{RENEWED}"),
            // nft(8) has no word for it: bits of the packet from the header of UDP on.
            Self::Vni(vni) => write!(f, "@th,96,24 {vni:#x}"),
            Self::OtherVni(vni) => write!(f, "@th,96,24 != {vni:#x}"),
            Self::CameBy(link) => write!(f, "iifname \"{link}\""),
            Self::CameAsRouted => f.write_str("fib saddr . iif oif exists"),
            Self::CameUnrouted => f.write_str("fib saddr . iif oif missing"),
            Self::FromPeer(family) => write!(f, "{} saddr @{PEERS}", word(*family)),
            Self::ToPeer(family) => write!(f, "{} daddr @{PEERS}", word(*family)),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Untrack => f.write_str("notrack"),
            Self::Accept => f.write_str("accept"),
            Self::Return => f.write_str("return"),
            Self::Unmark(mark) => write!(f, "meta mark set meta mark & {:#010x}", !mark),
            Self::Masquerade(ports) => write!(f, "masquerade{}", chosen(*ports)),
            Self::SourceNat { to, ports } => write!(f, "snat to {to}{}", chosen(*ports)),
        }
    }
}
