//! Batches of nftables, as the kernel accepts them and `nft(8)` shows them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::process::Command;

use ipnetwork::IpNetwork;
use tweed_netlink::nftables::{
    Batch, Chain, Condition, Contents, Element, Field, Hook, Key, ListedElement, Match, Ports,
    Rule, Side, Table, TableFamily, Tracking, Verdict,
};
use tweed_netlink::{Family, Protocol, Socket};

/// Runs a program that must succeed; returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn commit(batch: Batch) -> usize {
    batch.commit(&mut Socket::open(Protocol::Netfilter).unwrap()).unwrap().len()
}

const fn both(name: &str) -> Table<'_> {
    Table { family: TableFamily::Both, name }
}

const fn of_family(family: Family, name: &str) -> Table<'_> {
    Table { family: TableFamily::Only(family), name }
}

fn shown(table: &str) -> String {
    let listed = run(Command::new("nft").args(["list", "table", "inet", table]));
    listed.replace('\t', " ")
}

#[test]
fn a_table_with_sets_chains_and_rules_is_created_in_one_batch() {
    let from_v4 = Condition::AddressIn(Side::Source, Match::Is, "four".to_owned(), Family::V4);
    let not_v6 = Condition::AddressIn(Side::Destination, Match::IsNot, "six".into(), Family::V6);
    let v4 = ["10.1.0.0", "10.1.2.0"].map(|text| text.parse().unwrap());
    let batch = Batch::of(both("sample"))
        .table(None)
        .address_set("four", Family::V4)
        .address_set("six", Family::V6)
        .add_addresses("four", v4)
        .add_addresses("six", ["fd00:1::".parse().unwrap()])
        .chain(Chain { name: "own", hook: None, comment: None })
        .chain(Chain { name: "forward", hook: Some(Hook::Forward), comment: None })
        .rule("forward", &Rule::of([from_v4], Verdict::Jump("own".into())), None)
        .rule("own", &Rule::of([not_v6], Verdict::Accept), Some("of ours"));
    assert_eq!(commit(batch), 0);
    assert_eq!(
        shown("sample"),
        "table inet sample {\n set four {\n  type ipv4_addr\n  elements = { 10.1.0.0, 10.1.2.0 }\n }\n\n \
         set six {\n  type ipv6_addr\n  elements = { fd00:1:: }\n }\n\n \
         chain own {\n  ip6 daddr != @six accept comment \"of ours\"\n }\n\n \
         chain forward {\n  type filter hook forward priority filter; policy accept;\n  \
         ip saddr @four jump own\n }\n}\n"
    );
    assert_eq!(commit(Batch::of(both("sample")).delete_addresses("four", [v4[0]])), 0);
    assert!(!shown("sample").contains("10.1.0.0"));
    assert_eq!(commit(Batch::of(both("sample")).delete_table()), 0);
}

#[test]
fn a_batch_of_very_many_rules_is_applied_and_its_errors_are_reported() {
    const RULES: usize = 1500;
    let table = || Batch::of(both("large"));
    let chain = Chain { name: "own", hook: None, comment: None };
    let empty = table().table(None).chain(chain);
    let whole = (0..RULES).fold(empty, |batch, _| batch.rule("own", &accepting(), None));
    assert_eq!(commit(whole), 0);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let rules = both("large").rules(&mut socket, "own").unwrap();
    assert_eq!(rules.len(), RULES);
    let delete = |batch: Batch, handle| batch.delete_rule("own", handle);
    let mistaken = rules[..300].iter().map(|rule| rule.handle + 1_000_000).fold(table(), delete);
    assert_eq!(commit(mistaken), 300);
    assert_eq!(commit(rules.iter().map(|rule| rule.handle).fold(table(), delete)), 0);
    assert_eq!(commit(table().delete_table()), 0);
}

#[test]
fn a_batch_with_an_error_changes_nothing() {
    let batch = Batch::of(both("mistaken")).table(None).rule("absent", &accepting(), None);
    assert!(commit(batch) > 0);
    let listed = run(Command::new("nft").args(["list", "tables"]));
    assert!(!listed.contains("mistaken"), "{listed}");
}

#[test]
fn rules_are_listed_with_their_comments_and_deleted_by_their_handles() {
    let rule = accepting();
    let batch = Batch::of(both("listed"))
        .table(Some("a table"))
        .chain(Chain { name: "chain", hook: None, comment: Some("a chain") })
        .rule("chain", &rule, Some("one"))
        .rule("chain", &rule, None);
    assert_eq!(commit(batch), 0);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let rules = both("listed").rules(&mut socket, "chain").unwrap();
    let comments: Vec<_> = rules.iter().map(|rule| rule.comment.as_deref()).collect();
    assert_eq!(comments, [Some("one"), None]);
    assert_eq!(commit(Batch::of(both("listed")).delete_rule("chain", rules[0].handle)), 0);
    assert_eq!(both("listed").rules(&mut socket, "chain").unwrap().len(), 1);
    assert_eq!(both("listed").rules(&mut socket, "absent").unwrap(), []);
}

fn socket() -> Socket {
    Socket::open(Protocol::Netfilter).unwrap()
}

fn nft(line: &str) {
    run(Command::new("nft").arg(line));
}

fn accepting() -> Rule {
    Rule::of([], Verdict::Accept)
}

fn source(test: Match, network: &str) -> Condition {
    Condition::source(test, network.parse::<IpNetwork>().unwrap())
}

fn destination(test: Match, network: &str) -> Condition {
    Condition::destination(test, network.parse::<IpNetwork>().unwrap())
}

/// Rules of every form for one family, and their text in `nft(8)`.
fn forms(family: Family) -> Vec<(Rule, String)> {
    let (word, network, host, groups) = match family {
        Family::V4 => ("ip", "10.244.0.0/16", "10.244.1.7", "224.0.0.0/4"),
        Family::V6 => ("ip6", "fd00:244::/48", "fd00:244::7", "ff00::/8"),
    };
    let translated = |ports| Rule::of([], Verdict::SourceNat { to: host.parse().unwrap(), ports });
    let masquerade =
        |ports| Rule::of([destination(Match::IsNot, groups)], Verdict::Masquerade(ports));
    let within = [
        source(Match::Is, network),
        destination(Match::IsNot, &format!("{host}/{}", if word == "ip" { 32 } else { 128 })),
    ];
    let within = Rule::of(within, Verdict::Accept);
    vec![
        (
            Rule::of([Condition::Marked(Match::Is, 0x4000)], Verdict::Return),
            "meta mark & 0x00004000 == 0x00004000 return".to_owned(),
        ),
        (
            Rule::of([Condition::Marked(Match::IsNot, 0x4000)], Verdict::Return),
            "meta mark & 0x00004000 != 0x00004000 return".to_owned(),
        ),
        (Rule::of([], Verdict::Unmark(0x4000)), "meta mark set meta mark & 0xffffbfff".to_owned()),
        (translated(Ports::Kept), format!("snat to {host}")),
        (translated(Ports::FullyRandom), format!("snat to {host} fully-random")),
        (within, format!("{word} saddr {network} {word} daddr != {host} accept")),
        (masquerade(Ports::Kept), format!("{word} daddr != {groups} masquerade")),
        (
            masquerade(Ports::FullyRandom),
            format!("{word} daddr != {groups} masquerade fully-random"),
        ),
    ]
}

fn contents(family: Family, table: &str) -> Contents {
    of_family(family, table).read(&mut socket()).unwrap().unwrap()
}

#[test]
fn written_rules_are_read_back_and_shown_in_the_syntax_of_nft() {
    for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let empty = Batch::of(of_family(family, "forms")).table(None).chain(Chain {
            name: "out",
            hook: Some(Hook::SourceNat),
            comment: None,
        });
        let forms = forms(family);
        let batch = forms.iter().fold(empty, |batch, (rule, _)| batch.rule("out", rule, None));
        assert_eq!(commit(batch), 0);
        let listed = run(Command::new("nft").args(["list", "table", word, "forms"]));
        let shown: Vec<&str> = listed.lines().skip(3).map(str::trim).collect();
        let written: Vec<&str> = forms.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(shown[..forms.len()], written);

        let read = contents(family, "forms");
        assert_eq!((read.flags, read.objects), (0, 1));
        assert_eq!(read.chains.len(), 1);
        assert_eq!(
            (read.chains[0].chain.as_str(), read.chains[0].hook),
            ("out", Some(Hook::SourceNat))
        );
        let rules: Vec<_> = forms.into_iter().map(|(rule, _)| Some(rule)).collect();
        assert_eq!(read.chains[0].rules, rules);
    }
}

#[test]
fn rules_written_by_nft_are_read_like_ours() {
    nft(
        "add table ip theirs; add chain ip theirs out { type nat hook postrouting priority srcnat; }",
    );
    let forms = forms(Family::V4);
    for (_, text) in &forms {
        nft(&format!("add rule ip theirs out {text}"));
    }
    let rules: Vec<_> = forms.into_iter().map(|(rule, _)| Some(rule)).collect();
    assert_eq!(contents(Family::V4, "theirs").chains[0].rules, rules);
}

#[test]
fn rules_of_another_form_are_not_taken_for_ours() {
    nft("add table ip other { flags dormant; }");
    nft("add chain ip other low { type nat hook postrouting priority 50; }");
    nft("add chain ip other closed { type filter hook forward priority 0; policy drop; }");
    nft("add chain ip other free");
    nft("add set ip other pair { type ipv4_addr . inet_service; }");
    let rules = [
        "low counter",
        "low masquerade random",
        "low meta l4proto tcp masquerade to :1024-2048",
        "low meta mark 0x4000 return",
        "low meta mark & 0x4000 != 0 return",
        "low meta mark set meta mark ^ 0x4000",
        "low meta mark set 0",
        "low snat to 10.0.0.1 random",
        "low snat to 10.0.0.1-10.0.0.9",
        "low meta l4proto tcp snat to 10.0.0.1:1024-2048",
        "low ip saddr 10.0.0.0-10.0.0.9 return",
        "low ip protocol tcp return",
        "low ip saddr . tcp sport @pair return",
        "low iifname != eth0 return",
        "low oifname != eth1 return",
        "closed meta length 20 drop",
        "closed ct state established drop",
        "closed ct status snat drop",
        "closed fib daddr type local drop",
        "closed fib saddr type broadcast drop",
        "closed reject with icmp type admin-prohibited",
        "free accept",
    ];
    for rule in rules {
        nft(&format!("add rule ip other {rule}"));
    }
    let read = contents(Family::V4, "other");
    assert_eq!((read.flags, read.objects), (1, 4));
    let hooks: Vec<_> =
        read.chains.iter().map(|chain| (chain.chain.as_str(), chain.hook)).collect();
    assert_eq!(hooks, [("closed", None), ("free", None), ("low", None)]);
    let known = read.chains.iter().flat_map(|chain| &chain.rules).flatten().collect::<Vec<_>>();
    assert_eq!(known, [&accepting()]);
    assert_eq!(of_family(Family::V6, "other").read(&mut socket()).unwrap(), None);
}

#[test]
fn a_table_is_replaced_as_a_whole_whether_it_exists_or_not() {
    let table = of_family(Family::V4, "whole");
    let chain = Chain { name: "out", hook: Some(Hook::SourceNat), comment: None };
    for rule in [Rule::of([], Verdict::Return), accepting()] {
        let batch = Batch::of(table).table(None).delete_table().table(None);
        let batch = batch.chain(chain).rule("out", &rule, None);
        assert_eq!(commit(batch), 0);
        assert_eq!(contents(Family::V4, "whole").chains[0].rules, [Some(rule)]);
    }
}

/// A table with sets and a map, by keys of several fields.
struct Keyed {
    table: Table<'static>,
    /// Address, protocol and port of the destination.
    key: Key,
    /// And a random number.
    choice: Key,
    value: Key,
    elements: [(&'static str, Element); 3],
    rules: [(&'static str, Rule); 3],
}

const HOOKS: [(&str, Hook); 2] =
    [("output", Hook::EarlyOutputNat), ("translated", Hook::Translated)];

impl Keyed {
    fn new(family: Family, address: &[u8]) -> Self {
        let fields = [Field::Address(Side::Destination), Field::Protocol, Field::DestinationPort];
        let key = Key::of(family, fields);
        let choice = Key::of(family, fields.into_iter().chain([Field::Random(3)]));
        let value = Key::of(family, [fields[0], fields[2]]);
        let port: &[u8] = &[0, 80, 0, 0];
        let http = [address, &[6, 0, 0, 0], port].concat();
        let second = [&http[..], &1_u32.to_ne_bytes()].concat();
        let to = Some([address, port].concat());
        let elements = [
            ("known", Element { key: http.clone(), end: None, value: None }),
            ("choices", Element { key: second, end: None, value: to }),
            ("ranges", Element { key: http.clone(), end: Some(http), value: None }),
        ];
        let is_known = Condition::KeyIn(key.clone(), Match::Is, "known".to_owned());
        let is_new = Condition::Connection(Tracking::New);
        let chosen = Verdict::DestinationNat(choice.clone(), "choices".to_owned());
        let rules = [
            ("output", Rule::of([is_known], chosen)),
            (
                "translated",
                Rule::of([is_new, Condition::LocalSource(Match::IsNot)], Verdict::Reject),
            ),
            ("translated", Rule::of([], Verdict::Mark(0x4000))),
        ];
        let table = of_family(family, "keys");
        Self { table, key, choice, value, elements, rules }
    }

    fn batch(&self) -> Batch {
        let batch = Batch::of(self.table)
            .table(None)
            .set("known", &self.key, None)
            .set("choices", &self.choice, Some(&self.value))
            .interval_set("ranges", &self.key);
        let batch = HOOKS.into_iter().fold(batch, |batch, (name, hook)| {
            batch.chain(Chain { name, hook: Some(hook), comment: None })
        });
        let rules = self.rules.iter();
        let batch = rules.fold(batch, |batch, (chain, rule)| batch.rule(chain, rule, None));
        self.elements.iter().fold(batch, |batch, (set, element)| batch.put(set, [element]))
    }

    /// What the kernel has of it is what was put there.
    fn is_listed(&self) {
        let mut socket = Socket::open(Protocol::Netfilter).unwrap();
        for (set, element) in &self.elements {
            let read = |ListedElement { key, end, value }: ListedElement<'_>| {
                let (end, value) = (end.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec));
                Some(Element { key: key.to_vec(), end, value })
            };
            let found = self.table.elements(&mut socket, set, read).unwrap();
            assert_eq!(found.as_slice(), std::slice::from_ref(element));
        }
        let mut found = self.table.read(&mut socket).unwrap().unwrap().chains;
        found.sort_by(|one, other| one.chain.cmp(&other.chain));
        for ((name, hook), chain) in HOOKS.into_iter().zip(found) {
            let wanted = self.rules.iter().filter(|(chain, _)| *chain == name);
            let wanted: Vec<_> = wanted.map(|(_, rule)| Some(rule.clone())).collect();
            assert_eq!((chain.chain.as_str(), chain.hook, chain.rules), (name, Some(hook), wanted));
        }
    }
}

#[test]
fn keys_of_several_fields_are_searched_in_sets_and_maps() {
    for (family, address, shown) in [
        (Family::V4, vec![10, 0, 0, 1], "10.0.0.1"),
        (Family::V6, [&[0xfd][..], &[0; 14], &[1]].concat(), "fd00::1"),
    ] {
        let keyed = Keyed::new(family, &address);
        assert_eq!(commit(keyed.batch()), 0);
        keyed.is_listed();
        let Keyed { table, key, choice, value, elements, .. } = &keyed;
        let text = run(Command::new("nft").args(["list", "table", family.keyword(), "keys"]));
        for line in [
            format!("typeof {key}"),
            format!("typeof {choice} : {value}"),
            format!("elements = {{ {shown} . tcp . 80 }}"),
            format!("elements = {{ {shown} . tcp . 80 . 1 : {shown} . 80 }}"),
            format!("{key} @known dnat {} to {choice} map @choices", family.keyword()),
        ] {
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        let removed = elements
            .iter()
            .fold(Batch::of(*table), |batch, (set, element)| batch.remove(set, [element]));
        assert_eq!(commit(removed.delete_table()), 0);
    }
}
