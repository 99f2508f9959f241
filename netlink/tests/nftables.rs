//! Batches of nftables, as the kernel takes them and `nft(8)` shows them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::process::Command;

use tweed_netlink::nftables::{
    self, Batch, Chain, Contents, Expression, Hook, Match, Ports, TableFamily,
};
use tweed_netlink::{Family, Protocol, Socket};

/// Runs a program that has to succeed; returns what it prints.
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

fn shown(table: &str) -> String {
    let listed = run(Command::new("nft").args(["list", "table", "inet", table]));
    listed.replace('\t', " ")
}

#[test]
fn a_table_with_sets_chains_and_rules_is_made_in_one_batch() {
    let set = |name: &str| Expression::SourceIn(Match::Is, name.to_owned(), Family::V4);
    let not_v6 = Expression::DestinationIn(Match::IsNot, "six".to_owned(), Family::V6);
    let v4 = ["10.1.0.0/24", "10.1.2.0/25", "255.0.0.0/8"].map(|text| text.parse().unwrap());
    let v6 = ["fd00:1::/32"].map(|text| text.parse().unwrap());
    let batch = Batch::of(TableFamily::Both, "sample")
        .table(None)
        .set("four", Family::V4)
        .set("six", Family::V6)
        .add_elements("four", &v4)
        .add_elements("six", &v6)
        .chain(Chain { name: "own", hook: None, comment: None })
        .chain(Chain { name: "forward", hook: Some(Hook::Forward), comment: None })
        .rule("forward", &[set("four"), Expression::Jump("own".into())], None)
        .rule("own", &[not_v6, Expression::Accept], Some("of ours"));
    assert_eq!(commit(batch), 0);
    assert_eq!(
        shown("sample"),
        "table inet sample {\n set four {\n  type ipv4_addr\n  flags interval\n  \
         elements = { 10.1.0.0/24, 10.1.2.0/25,\n        255.0.0.0/8 }\n }\n\n \
         set six {\n  type ipv6_addr\n  flags interval\n  elements = { fd00:1::/32 }\n }\n\n \
         chain own {\n  ip6 daddr != @six accept comment \"of ours\"\n }\n\n \
         chain forward {\n  type filter hook forward priority filter; policy accept;\n  \
         ip saddr @four jump own\n }\n}\n"
    );
    assert_eq!(commit(Batch::of(TableFamily::Both, "sample").delete_elements("four", &v4[..1])), 0);
    assert!(!shown("sample").contains("10.1.0.0/24"));
    assert_eq!(commit(Batch::of(TableFamily::Both, "sample").delete_table()), 0);
}

#[test]
fn a_batch_of_very_many_rules_is_carried_out_and_its_mistakes_are_reported() {
    const RULES: usize = 1500;
    let table = || Batch::of(TableFamily::Both, "large");
    let chain = Chain { name: "own", hook: None, comment: None };
    let empty = table().table(None).chain(chain);
    let whole = (0..RULES).fold(empty, |batch, _| batch.rule("own", &[Expression::Accept], None));
    assert_eq!(commit(whole), 0);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let rules = nftables::list(&mut socket, TableFamily::Both, "large", "own").unwrap();
    assert_eq!(rules.len(), RULES);
    let delete = |batch: Batch, handle| batch.delete_rule("own", handle);
    let mistaken = rules[..300].iter().map(|rule| rule.handle + 1_000_000).fold(table(), delete);
    assert_eq!(commit(mistaken), 300);
    assert_eq!(commit(rules.iter().map(|rule| rule.handle).fold(table(), delete)), 0);
    assert_eq!(commit(table().delete_table()), 0);
}

#[test]
fn a_batch_with_a_mistake_does_nothing() {
    let batch = Batch::of(TableFamily::Both, "mistaken").table(None).rule(
        "absent",
        &[Expression::Accept],
        None,
    );
    assert!(commit(batch) > 0);
    let listed = run(Command::new("nft").args(["list", "tables"]));
    assert!(!listed.contains("mistaken"), "{listed}");
}

#[test]
fn rules_are_listed_with_their_comments_and_deleted_by_their_handles() {
    let rule = [Expression::Accept];
    let batch = Batch::of(TableFamily::Both, "listed")
        .table(Some("a table"))
        .chain(Chain { name: "chain", hook: None, comment: Some("a chain") })
        .rule("chain", &rule, Some("one"))
        .rule("chain", &rule, None);
    assert_eq!(commit(batch), 0);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let rules = nftables::list(&mut socket, TableFamily::Both, "listed", "chain").unwrap();
    let comments: Vec<_> = rules.iter().map(|rule| rule.comment.as_deref()).collect();
    assert_eq!(comments, [Some("one"), None]);
    assert_eq!(
        commit(Batch::of(TableFamily::Both, "listed").delete_rule("chain", rules[0].handle)),
        0
    );
    assert_eq!(nftables::list(&mut socket, TableFamily::Both, "listed", "chain").unwrap().len(), 1);
    assert_eq!(nftables::list(&mut socket, TableFamily::Both, "listed", "absent").unwrap(), []);
}

fn socket() -> Socket {
    Socket::open(Protocol::Netfilter).unwrap()
}

fn nft(line: &str) {
    run(Command::new("nft").arg(line));
}

fn source(rule_for: Match, network: &str) -> Expression {
    Expression::Source(rule_for, network.parse().unwrap())
}

fn destination(rule_for: Match, network: &str) -> Expression {
    Expression::Destination(rule_for, network.parse().unwrap())
}

/// Rules of every form that one family can have, and how `nft(8)` writes them.
fn forms(family: Family) -> Vec<(Vec<Expression>, String)> {
    let (word, network, host, groups) = match family {
        Family::V4 => ("ip", "10.244.0.0/16", "10.244.1.7", "224.0.0.0/4"),
        Family::V6 => ("ip6", "fd00:244::/48", "fd00:244::7", "ff00::/8"),
    };
    let translated = |ports| vec![Expression::SourceNat(host.parse().unwrap(), ports)];
    let masquerade = |ports| vec![destination(Match::IsNot, groups), Expression::Masquerade(ports)];
    let within = vec![
        source(Match::Is, network),
        destination(Match::IsNot, &format!("{host}/{}", if word == "ip" { 32 } else { 128 })),
        Expression::Accept,
    ];
    vec![
        (
            vec![Expression::Marked(Match::Is, 0x4000), Expression::Return],
            "meta mark & 0x00004000 == 0x00004000 return".to_owned(),
        ),
        (
            vec![Expression::Marked(Match::IsNot, 0x4000), Expression::Return],
            "meta mark & 0x00004000 != 0x00004000 return".to_owned(),
        ),
        (vec![Expression::Unmark(0x4000)], "meta mark set meta mark & 0xffffbfff".to_owned()),
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
    nftables::read(&mut socket(), family, table).unwrap().unwrap()
}

#[test]
fn what_is_written_is_read_again_and_shown_as_nft_writes_it() {
    for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let empty = Batch::of(TableFamily::Only(family), "forms").table(None).chain(Chain {
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
fn rules_that_nft_wrote_are_read_as_ours() {
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
fn what_is_of_another_form_is_not_taken_for_ours() {
    nft("add table ip other { flags dormant; }");
    nft("add chain ip other low { type nat hook postrouting priority 50; }");
    nft("add chain ip other closed { type filter hook forward priority 0; policy drop; }");
    nft("add chain ip other free");
    nft("add set ip other pair { type ipv4_addr . ipv4_addr; }");
    let rules = [
        "low counter",
        "low masquerade random",
        "low meta l4proto tcp masquerade to :1024-2048",
        "low meta mark 0x4000 return",
        "low meta mark & 0x4000 != 0 return",
        "low meta mark set meta mark | 0x4000",
        "low meta mark set 0",
        "low snat to 10.0.0.1 random",
        "low snat to 10.0.0.1-10.0.0.9",
        "low meta l4proto tcp snat to 10.0.0.1:1024-2048",
        "low ip saddr 10.0.0.0-10.0.0.9 return",
        "low ip protocol tcp return",
        "low ip saddr . ip daddr @pair return",
        "low iifname eth0 oifname eth1 return",
        "closed meta length 20 drop",
        "free accept",
    ];
    for rule in rules {
        nft(&format!("add rule ip other {rule}"));
    }
    let read = contents(Family::V4, "other");
    assert_eq!((read.flags, read.objects), (1, 4));
    let hooks: Vec<_> =
        read.chains.iter().map(|chain| (chain.chain.as_str(), chain.hook)).collect();
    assert_eq!(hooks, [("low", None), ("closed", None), ("free", None)]);
    let known = read.chains.iter().flat_map(|chain| &chain.rules).flatten().collect::<Vec<_>>();
    assert_eq!(known, [&vec![Expression::Accept]]);
    assert_eq!(nftables::read(&mut socket(), Family::V6, "other").unwrap(), None);
}

#[test]
fn a_table_is_replaced_as_a_whole_whether_it_is_there_or_not() {
    let family = TableFamily::Only(Family::V4);
    let chain = Chain { name: "out", hook: Some(Hook::SourceNat), comment: None };
    for rule in [Expression::Return, Expression::Accept] {
        let batch = Batch::of(family, "whole").table(None).delete_table().table(None);
        let batch = batch.chain(chain).rule("out", std::slice::from_ref(&rule), None);
        assert_eq!(commit(batch), 0);
        assert_eq!(contents(Family::V4, "whole").chains[0].rules, [Some(vec![rule])]);
    }
}
