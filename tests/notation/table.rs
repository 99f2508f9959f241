//! Reads a table of nftables from its text.

use std::collections::BTreeMap;
use std::time::Duration;

use tweed::model::entry::{
    Condition, Element, Hook, Match, Ports, Renewal, Rule, Side, Table, TableName, Verdict,
};
use tweed::model::prefix::{Family, Prefix};

/// `table ip tweed.1 { chain forward { HEAD; POLICY; RULE; … }; … }`, optionally with `and 2 of
/// another form`.
pub(crate) fn table(text: &str) -> Table {
    let (head, rest) = text.split_once(" {").unwrap();
    let (chains, tail) = rest.rsplit_once(" }").unwrap();
    let foreign = tail.split(' ').nth(2).map_or(0, |number| number.parse().unwrap());
    let name = table_name(head.strip_prefix("table ").unwrap());
    let chains = chains.split(" chain ").skip(1).map(chain).collect::<BTreeMap<_, _>>();
    Table { name: name.into(), chains, foreign }
}

/// `element ip tweed-tunnel.1 renewed { udp timeout 86400s expires 80000s }`; without `expires`,
/// the element has just been added.
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
    let from = |place: usize| condition(words.get(place..).unwrap_or_default());
    Rule::of((0..words.len()).filter_map(from), verdict)
}

/// The condition that `words` begin with.
fn condition(words: &[&str]) -> Option<Condition> {
    use Match::{Is, IsNot};
    Some(match *words {
        ["meta", "mark", "&", mark, "==", ..] => Condition::Marked(Is, bits(mark)),
        ["meta", "mark", "&", mark, "!=", ..] => Condition::Marked(IsNot, bits(mark)),
        ["udp", "dport", port, ..] => Condition::UdpTo(port.parse().unwrap()),
        ["meta", "l4proto", "!=", set, ..] => Condition::ProtocolIn(IsNot, set[1..].to_owned()),
        ["@th,96,24", "!=", vni, ..] => Condition::Vni(IsNot, bits(vni)),
        ["@th,96,24", vni, ..] => Condition::Vni(Is, bits(vni)),
        ["oifname", link, ..] => Condition::OutputInterface(link.trim_matches('"').to_owned()),
        ["iifname", link, ..] => Condition::InputInterface(link.trim_matches('"').to_owned()),
        ["fib", "saddr", ".", "iif", "oif", "exists", ..] => Condition::ReversePath(Is),
        ["fib", "saddr", ".", "iif", "oif", "missing", ..] => Condition::ReversePath(IsNot),
        [family @ ("ip" | "ip6"), side, "!=", to, ..] => address(family, side, IsNot, to),
        [family @ ("ip" | "ip6"), side, to, ..] => address(family, side, Is, to),
        _ => return None,
    })
}

fn address(family: &str, side: &str, test: Match, to: &str) -> Condition {
    let family = if family == "ip" { Family::V4 } else { Family::V6 };
    let side = if side == "saddr" { Side::Source } else { Side::Destination };
    match to.strip_prefix('@') {
        Some(set) => Condition::AddressIn(side, test, set.to_owned(), family),
        None => Condition::Address(side, test, to.parse::<Prefix>().unwrap().into()),
    }
}

fn bits(number: &str) -> u32 {
    u32::from_str_radix(number.strip_prefix("0x").unwrap(), 16).unwrap()
}
