//! Reads a chain of iptables from its text.

use tweed::model::entry::{
    BasePolicy, Chain, ChainName, Condition, Match, Ports, Rule, Side, Verdict,
};
use tweed::model::prefix::Prefix;

/// `chain iptables-nft -t nat FLANNEL-POSTRTG { RULE; … }`, optionally with `and 2 of another form`
/// and `before a drop`.
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

fn rule(line: &str) -> Rule {
    let after = |word: &str| {
        let (before, behind) = line.split_once(&format!("{word} "))?;
        let test = if before.ends_with("! ") { Match::IsNot } else { Match::Is };
        Some((behind.split(' ').next()?, test))
    };
    let address = |side, flag| {
        let (prefix, test) = after(flag)?;
        let prefix: Prefix = prefix.parse().unwrap();
        Some(Condition::Address(side, test, prefix.into()))
    };
    let mark = |mark: &str| {
        let (_, mask) = mark.split_once("/0x").unwrap();
        u32::from_str_radix(mask, 16).unwrap()
    };
    let words: Vec<&str> = line.split(' ').collect();
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
        _ => panic!("no rule is shown as {line:?}"),
    };
    let marked = after("--mark").map(|(text, test)| Condition::Marked(test, mark(text)));
    let conditions = [marked, address(Side::Source, "-s"), address(Side::Destination, "-d")];
    Rule::of(conditions.into_iter().flatten(), verdict)
}
