//! Tables on one line, which `nft(8)` reads as it is; the short form is the name alone.

use std::fmt;

use crate::model::entry::{
    Condition, Element, Hook, Marked, Match, PEERS, Ports, RENEWED, Renewal, Rule, Table,
    TableName, Verdict,
};
use crate::model::prefix::Family;

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
