//! Tables of nftables, and the elements of their sets. Their text is one line in the syntax of
//! `nft(8)`; the short form is the name alone.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use tweed_netlink::nftables::{Condition, Hook, Match, Ports, Rule, Side, Verdict};

use super::{Key, KeyRef, Kind, Removal};
use crate::model::prefix::Family;

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

impl Table {
    pub fn has_peers(&self) -> bool {
        let refers = |one: &_| matches!(one, Condition::AddressIn(_, _, set, _) if set == PEERS);
        self.has_condition(refers)
    }

    /// Whether it drops packets only while it has a [`Renewal`].
    pub fn is_renewed(&self) -> bool {
        self.has_condition(|one| matches!(one, Condition::ProtocolIn(_, set) if set == RENEWED))
    }

    fn has_condition(&self, is_it: impl Fn(&Condition) -> bool) -> bool {
        self.chains.values().flatten().any(|rule| rule.conditions.iter().any(&is_it))
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

impl Kind for Table {
    const LOCAL: bool = true;
    const REMOVAL: Removal = Removal::AfterRules;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Table(&self.name)
    }
}

impl Kind for Renewal {
    const LOCAL: bool = true;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Renewal(&self.table)
    }

    /// The remaining time is not compared, because it changes continuously.
    fn is_met_by(&self, have: &Self) -> bool {
        *self == Self { left: self.left, ..have.clone() }
    }
}

impl Kind for Element {
    fn key_ref(&self) -> KeyRef<'_> {
        Key::Element(&self.table, self.address)
    }
}

/// The name of the chain at `hook`, with its type and priority.
pub(crate) const fn nft_chain(hook: Hook) -> [&'static str; 2] {
    match hook {
        Hook::RawPrerouting => ["prerouting", "filter hook prerouting priority raw"],
        Hook::RawOutput => ["output", "filter hook output priority raw"],
        Hook::Untranslated => ["untranslated", "filter hook prerouting priority dstnat - 11"],
        Hook::OutputUntranslated => ["own-untranslated", "filter hook output priority dstnat - 11"],
        Hook::EarlyDestinationNat => ["destination", "nat hook prerouting priority dstnat - 1"],
        Hook::EarlyOutputNat => ["own-destination", "nat hook output priority dstnat - 1"],
        Hook::Translated => ["translated", "filter hook prerouting priority dstnat + 10"],
        Hook::OutputTranslated => ["own-translated", "filter hook output priority dstnat + 10"],
        Hook::Input => ["input", "filter hook input priority filter"],
        Hook::EarlySourceNat => ["fixed-source", "nat hook postrouting priority srcnat - 1"],
        Hook::SourceNat => ["postrouting", "nat hook postrouting priority srcnat"],
        Hook::Forward => ["forward", "filter hook forward priority filter"],
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.keyword(), self.name)
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
            let family = self.name.family.to_string().to_lowercase();
            write!(f, " set {PEERS} {{ type {family}_addr; }};")?;
        }
        if self.is_renewed() {
            write!(f, " set {RENEWED} {{ type inet_proto; flags timeout; }};")?;
        }
        for (hook, rules) in &self.chains {
            let [name, kind] = nft_chain(*hook);
            write!(f, " chain {name} {{ type {kind}; policy accept;")?;
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
