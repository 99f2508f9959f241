//! Chains of iptables. Their text is one line, each rule in the syntax of `iptables-save(8)`; the
//! short form is the name alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Condition, Key, KeyRef, Kind, Match, Ownership, Ports, Removal, Rule, Side, Verdict};
use crate::model::prefix::Family;

/// The two variants of iptables: neither sees the rules of the other.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Iptables {
    /// The variant that stores its rules in nftables.
    #[default]
    Nft,
    Legacy,
}

/// The built-in chain that jumps to a chain of tweed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// `POSTROUTING`, before all rules that masquerade.
    EarlyPostrouting,
    Postrouting,
    Forward,
}

/// A chain with a name that flannel or tweed uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChainName {
    pub iptables: Iptables,
    pub family: Family,
    pub base: Base,
}

/// A chain with its rules, and the one rule that jumps to it. They are replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: ChainName,
    pub rules: Vec<Rule>,
    /// The number of rules in it, or jumping to it, that tweed does not write; never set by tweed.
    pub foreign: usize,
    /// What the host does with unmatched packets. Tweed does not set it.
    pub base_policy: BasePolicy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BasePolicy {
    #[default]
    Accept,
    /// They are dropped unless a rule accepts them.
    Drop,
}

impl Iptables {
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

impl Base {
    pub const ALL: [Self; 3] = [Self::EarlyPostrouting, Self::Postrouting, Self::Forward];

    pub const fn table(self) -> &'static str {
        match self {
            Self::EarlyPostrouting | Self::Postrouting => "nat",
            Self::Forward => "filter",
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EarlyPostrouting | Self::Postrouting => "POSTROUTING",
            Self::Forward => "FORWARD",
        }
    }

    /// Whether flanneld creates and maintains the chain that this jumps to.
    pub const fn is_flannels(self) -> bool {
        matches!(self, Self::Postrouting | Self::Forward)
    }

    pub const fn chain(self) -> &'static str {
        match self {
            Self::EarlyPostrouting => "TWEED-POSTRTG",
            Self::Postrouting => "FLANNEL-POSTRTG",
            Self::Forward => "FLANNEL-FWD",
        }
    }

    pub const fn comment(self) -> &'static str {
        match self {
            Self::EarlyPostrouting => "tweedd fixed source",
            Self::Postrouting => "flanneld masq",
            Self::Forward => "flanneld forward",
        }
    }
}

impl ChainName {
    /// The chains that a node may have, including those of an earlier run and of flanneld.
    pub fn all() -> impl Iterator<Item = Self> {
        let named = |iptables, family| Base::ALL.map(|base| Self { iptables, family, base });
        let of_both = move |iptables| Family::ALL.into_iter().flat_map(move |f| named(iptables, f));
        Iptables::ALL.into_iter().flat_map(of_both)
    }

    /// The program that lists and changes such chains.
    pub fn program(self) -> String {
        format!("{}-{}", self.family.iptables(), self.iptables)
    }
}

impl Chain {
    pub const fn of(name: ChainName, rules: Vec<Rule>) -> Self {
        Self { name, rules, foreign: 0, base_policy: BasePolicy::Accept }
    }
}

impl fmt::Display for Iptables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Kind for Chain {
    const LOCAL: bool = true;
    const REMOVAL: Removal = Removal::AfterRules;
    const OWNERSHIP: Ownership = Ownership::Unmarked;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Chain(self.name)
    }

    /// `base_policy` is not compared: it is a property of the host.
    fn is_met_by(&self, have: &Self) -> bool {
        *self == Self { base_policy: self.base_policy, ..have.clone() }
    }
}

/// A rule in the syntax of `iptables(8)`, with this comment.
pub(crate) struct Specification<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) comment: Option<&'a str>,
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -t {} {}", self.program(), self.base.table(), self.base.chain())
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {}", self.name)?;
        if f.alternate() {
            return Ok(());
        }
        f.write_str(" {")?;
        for rule in &self.rules {
            write!(f, " {};", Specification { rule, comment: None })?;
        }
        f.write_str(" }")?;
        if self.foreign > 0 {
            write!(f, " and {} of another form", self.foreign)?;
        }
        f.write_str(match self.base_policy {
            BasePolicy::Accept => "",
            BasePolicy::Drop => " before a drop",
        })
    }
}

impl fmt::Display for Specification<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Other conditions are ignored: the rules that protect the tunnel exist only in nftables.
        let not = |test: &Match| if *test == Match::Is { "" } else { "! " };
        for condition in &self.rule.conditions {
            if let Condition::Address(side, test, network) = condition {
                let flag = if *side == Side::Source { "-s" } else { "-d" };
                write!(f, "{}{flag} {network} ", not(test))?;
            }
        }
        for condition in &self.rule.conditions {
            if let Condition::Marked(test, mark) = condition {
                write!(f, "-m mark {}--mark {mark:#x}/{mark:#x} ", not(test))?;
            }
        }
        if let Some(comment) = self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        match &self.rule.verdict {
            Verdict::Drop => f.write_str("-j DROP"),
            Verdict::Reject => f.write_str("-j REJECT"),
            Verdict::Untrack => f.write_str("-j NOTRACK"),
            Verdict::Accept => f.write_str("-j ACCEPT"),
            Verdict::Return => f.write_str("-j RETURN"),
            Verdict::Jump(chain) => write!(f, "-j {chain}"),
            Verdict::Goto(chain) => write!(f, "-g {chain}"),
            Verdict::Mark(mark) => write!(f, "-j MARK --set-xmark {mark:#x}/{mark:#x}"),
            Verdict::Unmark(mark) => write!(f, "-j MARK --set-xmark 0x0/{mark:#x}"),
            Verdict::Masquerade(ports) => write!(f, "-j MASQUERADE{}", chosen(*ports)),
            Verdict::SourceNat { to, ports } => {
                write!(f, "-j SNAT --to-source {to}{}", chosen(*ports))
            }
            // Only nftables has maps.
            Verdict::DestinationNat(..) => f.write_str("-j DNAT"),
        }
    }
}

const fn chosen(ports: Ports) -> &'static str {
    match ports {
        Ports::Kept => "",
        Ports::FullyRandom => " --random-fully",
    }
}
