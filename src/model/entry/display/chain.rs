//! Chains on one line, each rule as `iptables-save(8)` prints it; the short form is the name alone.

use std::fmt;

use crate::model::entry::{Chain, ChainName, Marked, Match, Otherwise, Ports, Rule, Verdict};

/// A rule in the words of `iptables(8)`, with this comment.
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
        f.write_str(match self.otherwise {
            Otherwise::Accepted => "",
            Otherwise::Dropped => " before a drop",
        })
    }
}

impl fmt::Display for Specification<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What guards the tunnel is for nftables alone.
        let Rule { marked, source, destination, also: _, verdict } = self.rule;
        for (flag, condition) in [("-s", source), ("-d", destination)] {
            match condition {
                Some(Match::Is(prefix)) => write!(f, "{flag} {prefix} ")?,
                Some(Match::IsNot(prefix)) => write!(f, "! {flag} {prefix} ")?,
                None => {}
            }
        }
        match marked {
            Some(Marked::With(mark)) => write!(f, "-m mark --mark {mark:#x}/{mark:#x} ")?,
            Some(Marked::Without(mark)) => write!(f, "-m mark ! --mark {mark:#x}/{mark:#x} ")?,
            None => {}
        }
        if let Some(comment) = self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        match verdict {
            Verdict::Drop => f.write_str("-j DROP"),
            Verdict::Untrack => f.write_str("-j NOTRACK"),
            Verdict::Accept => f.write_str("-j ACCEPT"),
            Verdict::Return => f.write_str("-j RETURN"),
            Verdict::Unmark(mark) => write!(f, "-j MARK --set-xmark 0x0/{mark:#x}"),
            Verdict::Masquerade(ports) => write!(f, "-j MASQUERADE{}", chosen(*ports)),
            Verdict::SourceNat { to, ports } => {
                write!(f, "-j SNAT --to-source {to}{}", chosen(*ports))
            }
        }
    }
}

const fn chosen(ports: Ports) -> &'static str {
    match ports {
        Ports::Kept => "",
        Ports::FullyRandom => " --random-fully",
    }
}
