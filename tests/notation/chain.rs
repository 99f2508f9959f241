//! Reads a chain of iptables from the words in which it is shown.

use tweed::model::entry::{BasePolicy, Chain, ChainName, Marked, Match, Ports, Rule, Verdict};
use tweed::model::prefix::Family;

/// `chain iptables-nft -t nat FLANNEL-POSTRTG { RULE; … }`, and with it `and 2 of another form` and
/// `before a drop`.
pub(crate) fn chain(text: &str) -> Chain {
    let (head, rest) = text.split_once(" {").unwrap();
    let (rules, tail) = rest.rsplit_once(" }").unwrap();
    let rules = rules.split_terminator(';').map(|text| rule(text.trim())).collect();
    let is_before_a_drop = tail.ends_with("before a drop");
    let base_policy = if is_before_a_drop { BasePolicy::Drop } else { BasePolicy::Accept };
    let foreign = tail.split(' ').nth(2).and_then(|number| number.parse().ok()).unwrap_or(0);
    Chain { name: name(head), rules, foreign, base_policy }
}

fn name(head: &str) -> ChainName {
    ChainName::all().find(|name| head == format!("chain {name}")).unwrap()
}

fn rule(text: &str) -> Rule {
    let after = |word: &str| {
        let (before, behind) = text.split_once(&format!("{word} "))?;
        Some((behind.split(' ').next()?, before.ends_with("! ")))
    };
    let condition = |flag| {
        let (prefix, is_reversed) = after(flag)?;
        let prefix = prefix.parse().unwrap();
        Some(if is_reversed { Match::IsNot(prefix) } else { Match::Is(prefix) })
    };
    let mark = |mark: &str| {
        let (_, mask) = mark.split_once("/0x").unwrap();
        u32::from_str_radix(mask, 16).unwrap()
    };
    let marked = |(text, is_reversed)| {
        let mark = mark(text);
        if is_reversed { Marked::Without(mark) } else { Marked::With(mark) }
    };
    let words: Vec<&str> = text.split(' ').collect();
    let verdict = match words[..] {
        [.., "-j", "ACCEPT"] => Verdict::Accept,
        [.., "-j", "RETURN"] => Verdict::Return,
        [.., "-j", "MASQUERADE"] => Verdict::Masquerade(Ports::Kept),
        [.., "-j", "MASQUERADE", "--random-fully"] => Verdict::Masquerade(Ports::FullyRandom),
        [.., "-j", "MARK", "--set-xmark", bits] => Verdict::Unmark(mark(bits)),
        [.., "-j", "SNAT", "--to-source", to] => {
            Verdict::SourceNat { to: to.parse().unwrap(), ports: Ports::Kept }
        }
        [.., "-j", "SNAT", "--to-source", to, "--random-fully"] => {
            Verdict::SourceNat { to: to.parse().unwrap(), ports: Ports::FullyRandom }
        }
        _ => panic!("no rule is shown as {text:?}"),
    };
    let marked = after("--mark").map(marked);
    let (source, destination) = (condition("-s"), condition("-d"));
    Rule { marked, source, destination, ..Rule::of_all(verdict) }
}
