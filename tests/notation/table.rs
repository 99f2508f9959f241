//! Reads a table of nftables from the words in which it is shown.

use std::collections::BTreeMap;

use tweed::kernel::state::{Hook, Match, Ports, Rule, Table, TableName, Verdict};
use tweed::prefix::Family;

/// `table ip tweed.1 { chain forward { HEAD; POLICY; RULE; … }; … }`, and with it
/// `and 2 of another form`.
pub(crate) fn table(text: &str) -> Table {
    let (head, rest) = text.split_once(" {").unwrap();
    let (chains, tail) = rest.rsplit_once(" }").unwrap();
    let (family, name) = match head.split(' ').collect::<Vec<_>>()[..] {
        ["table", "ip", name] => (Family::V4, name),
        ["table", "ip6", name] => (Family::V6, name),
        _ => panic!("no table is shown as {text:?}"),
    };
    let foreign = tail.split(' ').nth(2).map_or(0, |number| number.parse().unwrap());
    let name = TableName { family, name: name.to_owned() };
    let chains = chains.split(" chain ").skip(1).map(chain).collect::<BTreeMap<_, _>>();
    Table { name, chains, foreign }
}

fn chain(text: &str) -> (Hook, Vec<Rule>) {
    let (name, rules) = text.trim_end_matches(" };").split_once(" {").unwrap();
    let hook = match name {
        "postrouting" => Hook::SourceNat,
        "forward" => Hook::Forward,
        other => panic!("no chain is called {other}"),
    };
    let rules = rules.split_terminator(';').skip(2).map(|text| rule(text.trim()));
    (hook, rules.collect())
}

fn rule(text: &str) -> Rule {
    let words: Vec<&str> = text.split(' ').collect();
    let after = |word: &str| -> &[&str] {
        let place = words.iter().position(|known| *known == word);
        place.and_then(|place| words.get(place + 1..)).unwrap_or_default()
    };
    let marked = after("mark")
        .get(1)
        .map(|mark| u32::from_str_radix(mark.strip_prefix("0x").unwrap(), 16).unwrap());
    let condition = |field| match *after(field) {
        ["!=", prefix, ..] => Some(Match::IsNot(prefix.parse().unwrap())),
        [prefix, ..] => Some(Match::Is(prefix.parse().unwrap())),
        [] => None,
    };
    let verdict = match words[..] {
        [.., "accept"] => Verdict::Accept,
        [.., "return"] => Verdict::Return,
        [.., "masquerade"] => Verdict::Masquerade(Ports::Kept),
        [.., "masquerade", "fully-random"] => Verdict::Masquerade(Ports::FullyRandom),
        _ => panic!("no rule is shown as {text:?}"),
    };
    Rule { marked, source: condition("saddr"), destination: condition("daddr"), verdict }
}
