//! The rules of a chain. Their text is in the syntax of `nft(8)`.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use super::key::{Key, Side};
use crate::Family;

/// A verdict for packets that match all of these conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub conditions: Vec<Condition>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// An address of the packet is, or is not, in a network.
    Address(Side, Match, IpNetwork),
    /// An address of the packet is, or is not, in the set of this name and family.
    AddressIn(Side, Match, String, Family),
    /// The fields of this key are, or are not, in the set of this name.
    KeyIn(Key, Match, String),
    /// The protocol above IP is, or is not, in the set of this name.
    ProtocolIn(Match, String),
    /// The packet has, or does not have, all bits of this mark; others are ignored.
    Marked(Match, u32),
    /// It is a UDP packet to this port.
    UdpTo(u16),
    /// It is long enough for a VXLAN header, and has, or does not have, this VNI.
    Vni(Match, u32),
    /// It arrived on the link of this name.
    InputInterface(String),
    /// It leaves by the link of this name.
    OutputInterface(String),
    /// It arrived on a link that has, or does not have, the route to its source.
    ReversePath(Match),
    /// Its source is, or is not, an address of this host.
    LocalSource(Match),
    /// It belongs to a connection of this kind.
    Connection(Tracking),
    /// Every packet matches. Counts packets and bytes.
    Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Is,
    IsNot,
}

/// What conntrack knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// This is its first packet, or no packet has been answered yet.
    New,
    /// Its destination was translated.
    Translated,
}

/// What becomes of a packet at the end of a rule, or of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    /// Dropped without an error to the sender.
    Drop,
    /// Dropped; the sender receives an ICMP message: port unreachable.
    Reject,
    /// Evaluation of this chain ends: it continues behind the jump to it, or the policy applies.
    Return,
    /// To another chain, and back from its end.
    Jump(String),
    /// To another chain, and from its end to where this one came from.
    Goto(String),
    /// The connection is not tracked; evaluation continues.
    Untrack,
    /// Sets these mark bits; evaluation continues.
    Mark(u32),
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
    /// The destination becomes the address and port that the map of this name has for the key;
    /// evaluation continues if it has none.
    DestinationNat(Key, String),
}

/// What becomes of source ports under a new source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// They stay as they are, unless another connection has them.
    #[default]
    Kept,
    /// Chosen at random, so that two that choose at once hardly choose the same.
    FullyRandom,
}

impl Verdict {
    /// Whether it gives the packet another source.
    pub const fn translates(&self) -> bool {
        matches!(self, Self::Masquerade(_) | Self::SourceNat { .. })
    }
}

impl Rule {
    pub fn of(conditions: impl IntoIterator<Item = Condition>, verdict: Verdict) -> Self {
        Self { conditions: conditions.into_iter().collect(), verdict }
    }
}

impl Condition {
    pub fn source<N: Into<IpNetwork>>(test: Match, network: N) -> Self {
        Self::Address(Side::Source, test, network.into())
    }

    pub fn destination<N: Into<IpNetwork>>(test: Match, network: N) -> Self {
        Self::Address(Side::Destination, test, network.into())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conditions.iter().try_for_each(|condition| write!(f, "{condition} "))?;
        self.verdict.fmt(f)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(side, test, network) => {
                let family = Family::of(network.ip()).keyword();
                write!(f, "{family} {} {}{network}", side.keyword(), test.operator())
            }
            Self::AddressIn(side, test, set, family) => {
                write!(f, "{} {} {}@{set}", family.keyword(), side.keyword(), test.operator())
            }
            Self::KeyIn(key, test, set) => write!(f, "{key} {}@{set}", test.operator()),
            Self::LocalSource(test) => write!(f, "fib saddr type {}local", test.operator()),
            Self::Connection(Tracking::New) => f.write_str("ct state new"),
            Self::Connection(Tracking::Translated) => f.write_str("ct status dnat"),
            Self::ProtocolIn(test, set) => write!(f, "meta l4proto {}@{set}", test.operator()),
            Self::Marked(Match::Is, mark) => write!(f, "meta mark & {mark:#010x} == {mark:#010x}"),
            Self::Marked(Match::IsNot, mark) => {
                write!(f, "meta mark & {mark:#010x} != {mark:#010x}")
            }
            Self::UdpTo(port) => write!(f, "udp dport {port}"),
            // nft(8) has no keyword for the VNI: these are raw bits at an offset from the UDP
            // header.
            Self::Vni(test, vni) => write!(f, "@th,96,24 {}{vni:#x}", test.operator()),
            Self::InputInterface(link) => write!(f, "iifname \"{link}\""),
            Self::OutputInterface(link) => write!(f, "oifname \"{link}\""),
            Self::ReversePath(Match::Is) => f.write_str("fib saddr . iif oif exists"),
            Self::ReversePath(Match::IsNot) => f.write_str("fib saddr . iif oif missing"),
            Self::Counter => f.write_str("counter"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
            Self::Untrack => f.write_str("notrack"),
            Self::Mark(mark) => write!(f, "meta mark set meta mark | {mark:#010x}"),
            Self::Unmark(mark) => write!(f, "meta mark set meta mark & {:#010x}", !mark),
            Self::Masquerade(ports) => write!(f, "masquerade{}", ports.option()),
            Self::SourceNat { to, ports } => write!(f, "snat to {to}{}", ports.option()),
            Self::DestinationNat(key, map) => write!(f, "dnat to {key} map @{map}"),
        }
    }
}

impl Match {
    const fn operator(self) -> &'static str {
        match self {
            Self::Is => "",
            Self::IsNot => "!= ",
        }
    }
}

impl Ports {
    const fn option(self) -> &'static str {
        match self {
            Self::Kept => "",
            Self::FullyRandom => " fully-random",
        }
    }
}
