//! Reads a table of nftables from the words in which it is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use tweed::model::entry::{
    Element, Hook, LinkName, Marked, Match, Ports, Renewal, Rule, RuleCondition, Table, TableName,
    Verdict,
};
use tweed::model::prefix::Family;

/// `table ip tweed.1 { chain forward { HEAD; POLICY; RULE; … }; … }`, and with it
/// `and 2 of another form`.
pub(crate) fn table(text: &str) -> Table {
    let (head, rest) = text.split_once(" {").unwrap();
    let (chains, tail) = rest.rsplit_once(" }").unwrap();
    let foreign = tail.split(' ').nth(2).map_or(0, |number| number.parse().unwrap());
    let name = table_name(head.strip_prefix("table ").unwrap());
    let chains = chains.split(" chain ").skip(1).map(chain).collect::<BTreeMap<_, _>>();
    Table { name: name.into(), chains, foreign }
}

/// `element ip tweed-tunnel.1 renewed { udp timeout 86400s expires 80000s }`; without the last,
/// put just now.
pub(crate) fn renewal(text: &str) -> Option<Renewal> {
    let (table, rest) = text.strip_prefix("element ").unwrap().split_once(" renewed ")?;
    let seconds = |word: &str| {
        let (number, _) = rest.split_once(&format!("{word} "))?.1.split_once('s')?;
        Some(Duration::from_secs(number.parse().unwrap()))
    };
    let timeout = seconds("timeout").unwrap();
    let left = seconds("expires").unwrap_or(timeout);
    Some(Renewal { table: table_name(table).into(), timeout, left })
}

/// `element ip tweed-tunnel.1 peers { 172.16.0.9 }`.
pub(crate) fn element(text: &str) -> Element {
    let (table, address) = text.strip_prefix("element ").unwrap().split_once(" peers ").unwrap();
    let address = address.trim_matches(['{', '}', ' ']).parse().unwrap();
    Element { table: table_name(table).into(), address }
}

fn table_name(text: &str) -> TableName {
    let (family, name) = match text.split_once(' ') {
        Some(("ip", name)) => (Family::V4, name),
        Some(("ip6", name)) => (Family::V6, name),
        _ => panic!("no table is called {text:?}"),
    };
    TableName { family, name: name.to_owned() }
}

fn chain(text: &str) -> (Hook, Vec<Rule>) {
    let (name, rules) = text.trim_end_matches(" };").split_once(" {").unwrap();
    let hook = match name {
        "prerouting" => Hook::RawPrerouting,
        "output" => Hook::RawOutput,
        "input" => Hook::Input,
        "fixed-source" => Hook::EarlySourceNat,
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
    let bits = |mark: &str| u32::from_str_radix(mark.strip_prefix("0x").unwrap(), 16).unwrap();
    let marked = match *after("mark") {
        ["&", mark, "==", ..] => Some(Marked::With(bits(mark))),
        ["&", mark, "!=", ..] => Some(Marked::Without(bits(mark))),
        _ => None,
    };
    let condition = |field| {
        let from = |place: usize| match *words.get(place..).unwrap_or_default() {
            ["ip" | "ip6", name, set, ..] if name == field && set.starts_with('@') => None,
            ["ip" | "ip6", name, "!=", prefix, ..] if name == field => {
                Some(Match::IsNot(prefix.parse().unwrap()))
            }
            ["ip" | "ip6", name, prefix, ..] if name == field => {
                Some(Match::Is(prefix.parse().unwrap()))
            }
            _ => None,
        };
        (0..words.len()).find_map(from)
    };
    let verdict = match words[..] {
        [.., "drop"] => Verdict::Drop,
        [.., "notrack"] => Verdict::Untrack,
        [.., "accept"] => Verdict::Accept,
        [.., "return"] => Verdict::Return,
        [.., "masquerade"] => Verdict::Masquerade(Ports::Kept),
        [.., "masquerade", "fully-random"] => Verdict::Masquerade(Ports::FullyRandom),
        [.., "set", "meta", "mark", "&", kept] => Verdict::Unmark(!bits(kept)),
        [.., "snat", "to", to] => {
            Verdict::SourceNat { to: to.parse().unwrap(), ports: Ports::Kept }
        }
        [.., "snat", "to", to, "fully-random"] => {
            Verdict::SourceNat { to: to.parse().unwrap(), ports: Ports::FullyRandom }
        }
        _ => panic!("no rule is shown as {text:?}"),
    };
    let also = also(&words);
    Rule { marked, source: condition("saddr"), destination: condition("daddr"), also, verdict }
}

fn also(words: &[&str]) -> Vec<RuleCondition> {
    let family = |word: &str| if word == "ip" { Family::V4 } else { Family::V6 };
    let vni = |number: &str| u32::from_str_radix(number.strip_prefix("0x").unwrap(), 16).unwrap();
    let from = |place: usize| match *words.get(place..).unwrap_or_default() {
        ["udp", "dport", port, ..] => Some(RuleCondition::UdpTo(port.parse().unwrap())),
        ["meta", "l4proto", "!=", "@renewed", ..] => Some(RuleCondition::Unrenewed),
        ["@th,96,24", "!=", number, ..] => Some(RuleCondition::OtherVni(vni(number))),
        ["@th,96,24", number, ..] => Some(RuleCondition::Vni(vni(number))),
        ["iifname", link, ..] => {
            Some(RuleCondition::FromLink(LinkName::new(link.trim_matches('"'))))
        }
        ["fib", "saddr", ".", "iif", "oif", "exists", ..] => Some(RuleCondition::FromRoutedLink),
        ["fib", "saddr", ".", "iif", "oif", "missing", ..] => Some(RuleCondition::FromUnroutedLink),
        [word, "saddr", "@peers", ..] => Some(RuleCondition::FromPeer(family(word))),
        [word, "daddr", "@peers", ..] => Some(RuleCondition::ToPeer(family(word))),
        _ => None,
    };
    (0..words.len()).filter_map(from).collect()
}
