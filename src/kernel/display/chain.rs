//! Chains on one line, each rule as `iptables-save(8)` prints it; the short form is the name alone.

use std::fmt;

use crate::kernel::state::{Chain, ChainName, Match, Otherwise, Ports, Rule, Verdict};

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
        if let Some(mark) = marked {
            write!(f, "-m mark --mark {mark:#x}/{mark:#x} ")?;
        }
        if let Some(comment) = self.comment {
            write!(f, "-m comment --comment \"{comment}\" ")?;
        }
        f.write_str(match verdict {
            Verdict::Drop => "-j DROP",
            Verdict::Untrack => "-j NOTRACK",
            Verdict::Accept => "-j ACCEPT",
            Verdict::Return => "-j RETURN",
            Verdict::Masquerade(Ports::Kept) => "-j MASQUERADE",
            Verdict::Masquerade(Ports::FullyRandom) => "-j MASQUERADE --random-fully",
        })
    }
}
