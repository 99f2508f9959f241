//! Tables of nftables, and the elements of their sets. Their text is one line in the syntax of
//! `nft(8)`; the short form is the name alone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use tweed_netlink::nftables::{Hook, Ports};

use super::{Key, KeyRef, Kind, KindPolicy, LinkName, Ownership, Removal};
use crate::model::prefix::{Family, Prefix};

pub const PEERS: &str = "peers";

/// The name of the set that contains a [`Renewal`].
pub const RENEWED: &str = "renewed";

/// Tables of different families may have equal names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    pub family: Family,
    pub name: String,
}

/// A table with all its contents except the elements of its sets. It is replaced as a whole, which
/// removes the elements.
///
/// It has the set of peers if a rule refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub name: Arc<TableName>,
    /// The rules at each hook, in order.
    pub chains: BTreeMap<Hook, Vec<Rule>>,
    /// The number of objects in it that tweed does not write; never set by tweed.
    pub foreign: usize,
}

/// An address in the set of peers of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub table: Arc<TableName>,
    pub address: IpAddr,
}

/// A timer in a table. While it is present, the rules drop packets: a daemon keeps the set of peers
/// up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub table: Arc<TableName>,
    /// The time after which the kernel removes it.
    pub timeout: Duration,
    pub left: Duration,
}

/// A verdict for packets that match all of these conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub marked: Option<Marked>,
    pub source: Option<Match>,
    pub destination: Option<Match>,
    pub also: Vec<RuleCondition>,
    pub verdict: Verdict,
}

/// Whether a packet has all of these mark bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    With(u32),
    Without(u32),
}

/// A condition on a packet of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleCondition {
    UdpTo(u16),
    /// Its table has no [`Renewal`].
    Unrenewed,
    /// It is long enough for a VXLAN header, with this VNI.
    Vni(u32),
    /// It is long enough for a VXLAN header, with another VNI.
    OtherVni(u32),
    FromLink(LinkName),
    /// It arrived on a link that has the route to its source.
    FromRoutedLink,
    /// It arrived on a link that does not have the route to its source.
    FromUnroutedLink,
    /// The source is in the table's set of peers.
    FromPeer(Family),
    /// The destination is in the table's set of peers.
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
    /// Dropped without a notification of the sender.
    Drop,
    /// The connection is not tracked; evaluation continues.
    Untrack,
    Accept,
    /// Evaluation of this chain ends, and its policy applies.
    Return,
    /// Clears these mark bits; evaluation continues.
    Unmark(u32),
    /// The source becomes the address of the interface that the packet leaves by. The kernel ends
    /// the connection once its packets leave by another interface.
    Masquerade(Ports),
    /// The source becomes this address, whichever interface the packets leave by.
    SourceNat {
        to: IpAddr,
        ports: Ports,
    },
}

impl Table {
    pub fn has_peers(&self) -> bool {
        use RuleCondition::{FromPeer, ToPeer};
        self.asks(|condition| matches!(condition, FromPeer(_) | ToPeer(_)))
    }

    /// Whether it drops packets only while it has a [`Renewal`].
    pub fn is_renewed(&self) -> bool {
        self.asks(|condition| *condition == RuleCondition::Unrenewed)
    }

    fn asks(&self, what: impl Fn(&RuleCondition) -> bool) -> bool {
        self.chains.values().flatten().any(|rule| rule.also.iter().any(&what))
    }
}

impl Renewal {
    /// How long packets are dropped after the daemon has ended.
    pub const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
    /// It is renewed after this fraction of its timeout.
    const PARTS: u32 = 24;

    pub const fn of(table: Arc<TableName>) -> Self {
        Self { table, timeout: Self::TIMEOUT, left: Self::TIMEOUT }
    }

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

    pub fn of(also: impl Into<Vec<RuleCondition>>, verdict: Verdict) -> Self {
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

    /// The remaining time is not compared, because it changes continuously.
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

/// The keyword of `nft(8)` for a family's tables and addresses.
pub(crate) const fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

const fn kind(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// The name of the chain, and its hook.
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
        write!(f, "{} {}", nft_family(self.family), self.name)
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
                    write!(f, "{} {field} {prefix} ", nft_family(prefix.family()))?;
                }
                Some(Match::IsNot(prefix)) => {
                    write!(f, "{} {field} != {prefix} ", nft_family(prefix.family()))?;
                }
                None => {}
            }
        }
        self.verdict.fmt(f)
    }
}

impl fmt::Display for RuleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UdpTo(port) => write!(f, "udp dport {port}"),
            Self::Unrenewed => write!(f, "meta l4proto != @{RENEWED}"),
            // nft(8) has no keyword for the VNI: these are raw bits at an offset from the UDP
            // header.
            Self::Vni(vni) => write!(f, "@th,96,24 {vni:#x}"),
            Self::OtherVni(vni) => write!(f, "@th,96,24 != {vni:#x}"),
            Self::FromLink(link) => write!(f, "iifname \"{link}\""),
            Self::FromRoutedLink => f.write_str("fib saddr . iif oif exists"),
            Self::FromUnroutedLink => f.write_str("fib saddr . iif oif missing"),
            Self::FromPeer(family) => write!(f, "{} saddr @{PEERS}", nft_family(*family)),
            Self::ToPeer(family) => write!(f, "{} daddr @{PEERS}", nft_family(*family)),
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
