//! Batches of nftables, as the kernel takes them and `nft(8)` shows them.

use std::process::Command;

use tweed_cni::netlink::{Protocol, Socket};
use tweed_cni::nftables::{self, Batch, Chain, Expression, Hook, IpFamily, Match};

use crate::harness::kernel::run;

fn commit(batch: Batch) -> usize {
    batch.commit(&mut Socket::open(Protocol::Netfilter).unwrap()).unwrap().len()
}

fn shown(table: &str) -> String {
    let listed = run(Command::new("nft").args(["list", "table", "inet", table]));
    listed.replace('\t', " ")
}

#[test]
fn a_table_with_sets_chains_and_rules_is_made_in_one_batch() {
    let set = |name: &str| Expression::SourceIn(Match::Is, name.to_owned(), IpFamily::V4);
    let not_v6 = Expression::DestinationIn(Match::IsNot, "six".to_owned(), IpFamily::V6);
    let v4 = ["10.1.0.0/24", "10.1.2.0/25", "255.0.0.0/8"].map(|text| text.parse().unwrap());
    let v6 = ["fd00:1::/32"].map(|text| text.parse().unwrap());
    let batch = Batch::of("sample")
        .table(None)
        .set("four", IpFamily::V4)
        .set("six", IpFamily::V6)
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
    assert_eq!(commit(Batch::of("sample").delete_elements("four", &v4[..1])), 0);
    assert!(!shown("sample").contains("10.1.0.0/24"));
    assert_eq!(commit(Batch::of("sample").delete_table()), 0);
}

#[test]
fn a_batch_with_a_mistake_does_nothing() {
    let batch = Batch::of("mistaken").table(None).rule("absent", &[Expression::Accept], None);
    assert!(commit(batch) > 0);
    let listed = run(Command::new("nft").args(["list", "tables"]));
    assert!(!listed.contains("mistaken"), "{listed}");
}

#[test]
fn rules_are_listed_with_their_comments_and_deleted_by_their_handles() {
    let rule = [Expression::Accept];
    let batch = Batch::of("listed")
        .table(Some("a table"))
        .chain(Chain { name: "chain", hook: None, comment: Some("a chain") })
        .rule("chain", &rule, Some("one"))
        .rule("chain", &rule, None);
    assert_eq!(commit(batch), 0);
    let mut socket = Socket::open(Protocol::Netfilter).unwrap();
    let rules = nftables::list(&mut socket, "listed", "chain").unwrap();
    let comments: Vec<_> = rules.iter().map(|rule| rule.comment.as_deref()).collect();
    assert_eq!(comments, [Some("one"), None]);
    assert_eq!(commit(Batch::of("listed").delete_rule("chain", rules[0].handle)), 0);
    assert_eq!(nftables::list(&mut socket, "listed", "chain").unwrap().len(), 1);
    assert_eq!(nftables::list(&mut socket, "listed", "absent").unwrap(), []);
}
