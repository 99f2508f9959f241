//! Which packets get another source address: each rule next to flannel's.

use std::fmt::Write;

use expect_test::{Expect, expect};
use tweed::model::entry::{Base, ChainName, Entry, Hook, Iptables, Table};
use tweed::model::node::Firewalls;
use tweed::model::node_inputs::NodeInputs;
use tweed::model::prefix::Family;
use tweed::plan::backend::plan_local;
use tweed::plan::masquerade;

use crate::notation::policy;
use crate::{ETH0, HOST_GW, local, node};

fn tables(local: &NodeInputs) -> Vec<Table> {
    let state = plan_local(local);
    let table = |entry: &Entry| match entry {
        Entry::Table(table) if entry.is_rules() => Some(table.clone()),
        _ => None,
    };
    state.entries().filter_map(table).collect()
}

/// The tables of the node of most tests, with these flags and these additional keys.
fn check_tables(flags: &str, keys: &str, expected: Expect) {
    let local = NodeInputs { policy: policy(flags), ..node(HOST_GW, keys) };
    let mut text = String::new();
    for table in tables(&local) {
        writeln!(text, "{table:#}").unwrap();
        for (hook, rules) in &table.chains {
            writeln!(text, "  {hook:?}").unwrap();
            for rule in rules {
                writeln!(text, "    {rule}").unwrap();
            }
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn the_rules_are_those_of_flannel_in_the_order_of_its_iptables() {
    check_tables(
        "--ip-masq",
        "",
        expect![[r#"
            table ip tweed.1
              EarlySourceNat
                ip daddr != 10.244.0.0/16 return
                ip daddr 10.244.1.0/24 return
                meta mark & 0x00004000 != 0x00004000 ip saddr 10.244.0.0/16 return
                meta mark set meta mark & 0xffffbfff
                snat to 10.244.1.1 fully-random
              SourceNat
                meta mark & 0x00004000 == 0x00004000 return
                ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
                ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
                ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
              Forward
                ip saddr 10.244.0.0/16 accept
                ip daddr 10.244.0.0/16 accept
            table ip6 tweed.1
              EarlySourceNat
                ip6 daddr != fd00:244::/48 return
                ip6 daddr fd00:244:0:1::/64 return
                meta mark & 0x00004000 != 0x00004000 ip6 saddr fd00:244::/48 return
                meta mark set meta mark & 0xffffbfff
                snat to fd00:244:0:1::1 fully-random
              SourceNat
                meta mark & 0x00004000 == 0x00004000 return
                ip6 saddr fd00:244:0:1::/64 ip6 daddr fd00:244::/48 return
                ip6 saddr fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr fd00:244::/48 ip6 daddr != ff00::/8 masquerade fully-random
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244::/48 masquerade fully-random
              Forward
                ip6 saddr fd00:244::/48 accept
                ip6 daddr fd00:244::/48 accept
        "#]],
    );
}

#[test]
fn ports_forwarding_and_the_mark_have_flags() {
    let flags = "--ip-masq --ip-masq-fully-random-disable --iptables-forward-rules=false \
                 --iptables-masquerade-bit=0";
    check_tables(
        flags,
        "",
        expect![[r#"
            table ip tweed.1
              EarlySourceNat
                ip daddr != 10.244.0.0/16 return
                ip daddr 10.244.1.0/24 return
                meta mark & 0x00000001 != 0x00000001 ip saddr 10.244.0.0/16 return
                meta mark set meta mark & 0xfffffffe
                snat to 10.244.1.1
              SourceNat
                meta mark & 0x00000001 == 0x00000001 return
                ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
                ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade
                ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade
            table ip6 tweed.1
              EarlySourceNat
                ip6 daddr != fd00:244::/48 return
                ip6 daddr fd00:244:0:1::/64 return
                meta mark & 0x00000001 != 0x00000001 ip6 saddr fd00:244::/48 return
                meta mark set meta mark & 0xfffffffe
                snat to fd00:244:0:1::1
              SourceNat
                meta mark & 0x00000001 == 0x00000001 return
                ip6 saddr fd00:244:0:1::/64 ip6 daddr fd00:244::/48 return
                ip6 saddr fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr fd00:244::/48 ip6 daddr != ff00::/8 masquerade
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244::/48 masquerade
        "#]],
    );
}

#[test]
fn excluded_ranges_come_before_the_masquerade_rules_of_their_family() {
    let keys = r#","NonMasqueradeCIDRs":["192.168.0.0/16","172.16.0.0/12","fd00:16::/64"]"#;
    check_tables(
        "--ip-masq --iptables-forward-rules=false",
        keys,
        expect![[r#"
            table ip tweed.1
              EarlySourceNat
                ip daddr != 10.244.0.0/16 return
                ip daddr 10.244.1.0/24 return
                meta mark & 0x00004000 != 0x00004000 ip saddr 10.244.0.0/16 return
                meta mark set meta mark & 0xffffbfff
                snat to 10.244.1.1 fully-random
              SourceNat
                meta mark & 0x00004000 == 0x00004000 return
                ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
                ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return
                ip saddr 10.244.0.0/16 ip daddr 172.16.0.0/12 return
                ip saddr 10.244.0.0/16 ip daddr 192.168.0.0/16 return
                ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
                ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
            table ip6 tweed.1
              EarlySourceNat
                ip6 daddr != fd00:244::/48 return
                ip6 daddr fd00:244:0:1::/64 return
                meta mark & 0x00004000 != 0x00004000 ip6 saddr fd00:244::/48 return
                meta mark set meta mark & 0xffffbfff
                snat to fd00:244:0:1::1 fully-random
              SourceNat
                meta mark & 0x00004000 == 0x00004000 return
                ip6 saddr fd00:244:0:1::/64 ip6 daddr fd00:244::/48 return
                ip6 saddr fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244:0:1::/64 return
                ip6 saddr fd00:244::/48 ip6 daddr fd00:16::/64 return
                ip6 saddr fd00:244::/48 ip6 daddr != ff00::/8 masquerade fully-random
                ip6 saddr != fd00:244::/48 ip6 daddr fd00:244::/48 masquerade fully-random
        "#]],
    );
}

#[test]
fn without_the_flag_there_is_no_table_with_any_other_flag() {
    check_tables("--iptables-forward-rules=true", r#","EnableNFTables":true"#, expect![""]);
}

#[test]
fn without_the_flag_mixed_fixes_the_source_of_marked_packets() {
    check_tables(
        "--iptables-masquerade-bit=3 --ip-masq-fully-random-disable",
        r#","Mixed":true"#,
        expect![[r#"
            table ip tweed.1
              EarlySourceNat
                ip daddr != 10.244.0.0/16 return
                ip daddr 10.244.1.0/24 return
                meta mark & 0x00000008 != 0x00000008 return
                meta mark set meta mark & 0xfffffff7
                snat to 10.244.1.1
            table ip6 tweed.1
              EarlySourceNat
                ip6 daddr != fd00:244::/48 return
                ip6 daddr fd00:244:0:1::/64 return
                meta mark & 0x00000008 != 0x00000008 return
                meta mark set meta mark & 0xfffffff7
                snat to fd00:244:0:1::1
        "#]],
    );
}

#[test]
fn only_an_enabled_family_has_a_table_and_only_with_a_subnet() {
    let names = |config: &str, own: &str| -> Vec<String> {
        let local = NodeInputs { policy: policy("--ip-masq"), ..local(config, ETH0, own) };
        tables(&local).iter().map(|table| table.name.to_string()).collect()
    };
    let v4 = r#"{"Network":"10.244.0.0/16","IPv6Network":"fd00:244::/48"}"#;
    assert_eq!(names(v4, "10.244.1.0/24"), ["ip tweed.1"]);
    let v6 = r#"{"EnableIPv4":false,"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan","VNI":7}}"#;
    assert_eq!(names(v6, "fd00:244:0:1::/64"), ["ip6 tweed.7"]);
    assert_eq!(names(v4, ""), [""; 0]);
}

#[test]
fn a_range_of_all_addresses_has_no_destination() {
    let keys = r#","NonMasqueradeCIDRs":["0.0.0.0/0"]"#;
    let local = NodeInputs { policy: policy("--ip-masq"), ..node(HOST_GW, keys) };
    let rules: Vec<String> =
        tables(&local)[0].chains[&Hook::SourceNat].iter().map(ToString::to_string).collect();
    assert_eq!(rules[4], "ip saddr 10.244.0.0/16 return");
}

/// The selected firewall of a host, the reason, and the first entry of its rules.
fn chosen(flags: &str, keys: &str, host: &Firewalls) -> String {
    let mut local = NodeInputs { policy: policy(flags), ..node(HOST_GW, keys) };
    local.node.firewalls.clone_from(host);
    let state = plan_local(&local);
    let first = state.entries().find(|entry| entry.is_rules());
    let first = first.map_or("nothing".to_owned(), |entry| format!("{entry:#}"));
    let choice = masquerade::choice(&local.policy, &local.config, host);
    let reason = choice.map_or("it is off", |choice| choice.reason);
    format!("{first}, for {reason}")
}

#[test]
fn iptables_is_used_on_request_and_without_nftables() {
    let usual = Firewalls::default();
    let old = Firewalls { nftables: false, iptables: Iptables::Legacy, ..Firewalls::default() };
    let explicit = r#","EnableNFTables":false"#;
    let wished = r#","EnableNFTables":true"#;
    let mixed = r#","Mixed":true"#;
    for (flags, keys, host, expected) in [
        ("--ip-masq", "", &usual, "table ip tweed.1, for this kernel supports it"),
        ("--ip-masq", explicit, &usual, "table ip tweed.1, for this kernel supports it"),
        ("--ip-masq", wished, &usual, "table ip tweed.1, for EnableNFTables requests it"),
        (
            "--ip-masq --iptables",
            wished,
            &usual,
            "chain iptables-nft -t nat FLANNEL-POSTRTG, for --iptables requests it",
        ),
        (
            "--ip-masq",
            wished,
            &old,
            "chain iptables-legacy -t nat TWEED-POSTRTG, for this kernel lacks nftables",
        ),
        (
            "",
            "",
            &old,
            "chain iptables-legacy -t filter FLANNEL-FWD, for this kernel lacks nftables",
        ),
        ("", wished, &usual, "nothing, for it is off"),
        ("", mixed, &usual, "table ip tweed.1, for this kernel supports it"),
        (
            "--iptables",
            mixed,
            &old,
            "chain iptables-legacy -t nat TWEED-POSTRTG, for --iptables requests it",
        ),
        // Programs that the operator did not ask for may not be there.
        ("--iptables-forward-rules=false", mixed, &old, "nothing, for it is off"),
        ("--iptables --iptables-forward-rules=false", "", &old, "nothing, for it is off"),
    ] {
        assert_eq!(chosen(flags, keys, host), expected, "{flags} {keys}");
    }
}

#[test]
fn with_iptables_the_fixed_source_has_a_table_of_its_own() {
    check_tables(
        "--ip-masq --iptables",
        "",
        expect![[r#"
        table ip tweed-source.1
          EarlySourceNat
            ip daddr != 10.244.0.0/16 return
            ip daddr 10.244.1.0/24 return
            meta mark & 0x00004000 != 0x00004000 ip saddr 10.244.0.0/16 return
            meta mark set meta mark & 0xffffbfff
            snat to 10.244.1.1 fully-random
        table ip6 tweed-source.1
          EarlySourceNat
            ip6 daddr != fd00:244::/48 return
            ip6 daddr fd00:244:0:1::/64 return
            meta mark & 0x00004000 != 0x00004000 ip6 saddr fd00:244::/48 return
            meta mark set meta mark & 0xffffbfff
            snat to fd00:244:0:1::1 fully-random
    "#]],
    );
    let old = Firewalls { nftables: false, ..Firewalls::default() };
    assert!(chosen("--ip-masq --iptables", "", &old).contains("TWEED-POSTRTG"));
}

/// The planned chains of iptables if these chains drop packets.
fn let_through(flags: &str, dropping: &[ChainName]) -> Vec<String> {
    let mut local = NodeInputs { policy: policy(flags), ..node(HOST_GW, "") };
    local.node.firewalls.dropping = dropping.iter().copied().collect();
    let state = plan_local(&local);
    let chains = state.entries().filter(|entry| matches!(entry, Entry::Chain(_)));
    chains.map(ToString::to_string).collect()
}

#[test]
fn packets_of_pods_are_accepted_where_forward_of_iptables_drops() {
    let forward = |iptables, family| ChainName { iptables, family, base: Base::Forward };
    let nft = forward(Iptables::Nft, Family::V4);
    let legacy = forward(Iptables::Legacy, Family::V6);
    let both = [
        "chain iptables-nft -t filter FLANNEL-FWD \
         { -s 10.244.0.0/16 -j ACCEPT; -d 10.244.0.0/16 -j ACCEPT; }",
        "chain ip6tables-legacy -t filter FLANNEL-FWD \
         { -s fd00:244::/48 -j ACCEPT; -d fd00:244::/48 -j ACCEPT; }",
    ];
    for flags in ["--ip-masq", "--ip-masq=false"] {
        assert_eq!(let_through(flags, &[nft, legacy]), both, "{flags}");
        assert_eq!(let_through(flags, &[legacy]), both[1..], "{flags}");
        assert_eq!(let_through(flags, &[]), [""; 0], "{flags}");
    }
    // With --iptables, each chain is planned once.
    assert_eq!(let_through("--iptables", &[nft]).len(), 2);
    assert_eq!(let_through("--ip-masq --iptables-forward-rules=false", &[nft]), [""; 0]);
}
