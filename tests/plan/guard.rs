//! The sources that may send into the tunnel, rule by rule.

use std::fmt::Write;
use std::net::IpAddr;

use expect_test::{Expect, expect};
use tweed::model::entry::{Condition, Entry, Hook, Match, SettingKind, Side};
use tweed::model::node::Release;
use tweed::model::node_inputs::NodeInputs;
use tweed::model::path::Fallbacks;
use tweed::plan::backend::{backends, plan_local, plan_peer};

use crate::notation::{lease, policy};
use crate::{FAR, HOST_GW, MIXED, NEAR, VXLAN, node};

fn guarded(flags: &str, backend: &str, keys: &str) -> NodeInputs {
    NodeInputs { policy: policy(flags), ..node(backend, keys) }
}

/// The tables of a node with these flags and this backend.
fn check_tables(flags: &str, backend: &str, keys: &str, expected: Expect) {
    let local = guarded(flags, backend, keys);
    let mut text = String::new();
    for entry in plan_local(&local).entries() {
        let Entry::Table(table) = entry else { continue };
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

/// The peers that a node with this backend admits.
fn check_admitted(backend: &str, keys: &str, peers: &[&str], expected: Expect) {
    let local = guarded("", backend, keys);
    let mut text = String::new();
    for peer in peers {
        for entry in plan_peer(&backends(&local), &lease(peer), &Fallbacks::new()).admission {
            writeln!(text, "{entry}").unwrap();
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn only_peers_are_accepted_and_other_tunnels_are_not_affected() {
    check_tables(
        "",
        VXLAN,
        "",
        expect![[r#"
        table ip tweed-tunnel.1
          RawPrerouting
            udp dport 8472 @th,96,24 0x1 ip saddr @peers notrack
          RawOutput
            udp dport 8472 @th,96,24 0x1 ip daddr @peers notrack
          Input
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip saddr @peers ip daddr 172.16.0.5/32 accept
            udp dport 8472 ip saddr @peers fib saddr . iif oif exists ip daddr 172.16.0.5/32 accept
            udp dport 8472 drop
            udp dport 8475 iifname "eth0" ip saddr 10.244.0.0/16 accept
            udp dport 8475 iifname "flannel.1" ip saddr 10.244.0.0/16 accept
            udp dport 8475 drop
          Forward
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip saddr @peers accept
            udp dport 8472 ip saddr @peers fib saddr . iif oif exists accept
            udp dport 8472 ip daddr @peers drop
            udp dport 8472 @th,96,24 0x1 ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 drop
            udp dport 8472 iifname "eth0" accept
            udp dport 8472 @th,96,24 0x1 oifname "eth0" fib saddr . iif oif missing ip saddr != 10.244.0.0/16 drop
        table ip6 tweed-tunnel.1
          RawPrerouting
            udp dport 8472 @th,96,24 0x1 ip6 saddr @peers notrack
          RawOutput
            udp dport 8472 @th,96,24 0x1 ip6 daddr @peers notrack
          Input
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip6 saddr @peers ip6 daddr fd00:16::5/128 accept
            udp dport 8472 ip6 saddr @peers fib saddr . iif oif exists ip6 daddr fd00:16::5/128 accept
            udp dport 8472 drop
            udp dport 8475 iifname "eth0" ip6 saddr fd00:244::/48 accept
            udp dport 8475 iifname "flannel-v6.1" ip6 saddr fd00:244::/48 accept
            udp dport 8475 drop
          Forward
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip6 saddr @peers accept
            udp dport 8472 ip6 saddr @peers fib saddr . iif oif exists accept
            udp dport 8472 ip6 daddr @peers drop
            udp dport 8472 @th,96,24 0x1 ip6 saddr fd00:244::/48 ip6 daddr != fd00:244::/48 drop
            udp dport 8472 iifname "eth0" accept
            udp dport 8472 @th,96,24 0x1 oifname "eth0" fib saddr . iif oif missing ip6 saddr != fd00:244::/48 drop
    "#]],
    );
}

#[test]
fn a_public_ip_may_be_translated_to_any_address_of_the_interface() {
    let mut local = guarded("--tunnel-notrack=false --tunnel-drop-pods=false", VXLAN, "");
    local.node.uplinks.truncate(1);
    for uplink in &mut local.node.uplinks {
        uplink.public_ip = "203.0.113.9".parse().unwrap();
        uplink.others = vec!["172.16.0.6".parse().unwrap()];
    }
    let state = plan_local(&local);
    let chain = state.entries().find_map(|entry| match entry {
        Entry::Table(table) => table.chains.get(&Hook::Input),
        _ => None,
    });
    let rules = chain.unwrap().iter().map(ToString::to_string);
    let accepted: Vec<String> =
        rules.filter_map(|rule| Some(rule.split_once(" ip daddr ")?.1.to_owned())).collect();
    for address in ["172.16.0.5", "172.16.0.6", "203.0.113.9"] {
        assert!(accepted.contains(&format!("{address}/32 accept")), "{address} in {accepted:?}");
    }
}

#[test]
fn each_guard_has_rules_of_its_own() {
    check_tables(
        "--tunnel-drop-unknown=false --tunnel-drop-pods=false",
        VXLAN,
        "",
        expect![[r#"
        table ip tweed-tunnel.1
          RawPrerouting
            udp dport 8472 @th,96,24 0x1 ip saddr @peers notrack
          RawOutput
            udp dport 8472 @th,96,24 0x1 ip daddr @peers notrack
        table ip6 tweed-tunnel.1
          RawPrerouting
            udp dport 8472 @th,96,24 0x1 ip6 saddr @peers notrack
          RawOutput
            udp dport 8472 @th,96,24 0x1 ip6 daddr @peers notrack
    "#]],
    );
    check_tables(
        "--tunnel-notrack=false --tunnel-drop-pods=false",
        VXLAN,
        "",
        expect![[r#"
        table ip tweed-tunnel.1
          Input
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip saddr @peers ip daddr 172.16.0.5/32 accept
            udp dport 8472 ip saddr @peers fib saddr . iif oif exists ip daddr 172.16.0.5/32 accept
            udp dport 8472 drop
            udp dport 8475 iifname "eth0" ip saddr 10.244.0.0/16 accept
            udp dport 8475 iifname "flannel.1" ip saddr 10.244.0.0/16 accept
            udp dport 8475 drop
        table ip6 tweed-tunnel.1
          Input
            udp dport 8472 meta l4proto != @renewed accept
            udp dport 8472 @th,96,24 != 0x1 accept
            udp dport 8472 iifname "eth0" ip6 saddr @peers ip6 daddr fd00:16::5/128 accept
            udp dport 8472 ip6 saddr @peers fib saddr . iif oif exists ip6 daddr fd00:16::5/128 accept
            udp dport 8472 drop
            udp dport 8475 iifname "eth0" ip6 saddr fd00:244::/48 accept
            udp dport 8475 iifname "flannel-v6.1" ip6 saddr fd00:244::/48 accept
            udp dport 8475 drop
    "#]],
    );
}

#[test]
fn probes_are_accepted_only_from_the_underlay_and_the_tunnel() {
    let rules = |keys: &str| {
        let local = guarded("--tunnel-notrack=false --tunnel-drop-pods=false", VXLAN, keys);
        let entries = plan_local(&local);
        let tables = entries.entries().filter_map(|entry| match entry {
            Entry::Table(table) => Some(table.clone()),
            _ => None,
        });
        let rules = tables.flat_map(|table| table.chains.into_values().flatten());
        let rules = rules.map(|rule| rule.to_string()).filter(|rule| rule.contains("8475"));
        rules.map(|rule| rule + "\n").collect::<String>()
    };
    let mixed = expect![[r#"
        udp dport 8475 iifname "eth0" ip saddr 10.244.0.0/16 accept
        udp dport 8475 iifname "flannel.1" ip saddr 10.244.0.0/16 accept
        udp dport 8475 drop
        udp dport 8475 iifname "eth0" ip6 saddr fd00:244::/48 accept
        udp dport 8475 iifname "flannel-v6.1" ip6 saddr fd00:244::/48 accept
        udp dport 8475 drop
    "#]];
    mixed.assert_eq(&rules(MIXED));
    mixed.assert_eq(&rules(""));
    assert_eq!(rules(r#","Probe":{"Enabled":false}"#), "", "no paths are probed");
}

#[test]
fn port_and_vni_are_those_of_the_config() {
    let backend = r#"{"Type":"vxlan","Port":4789,"VNI":4096}"#;
    check_tables(
        "--tunnel-drop-pods=false",
        backend,
        "",
        expect![[r#"
        table ip tweed-tunnel.4096
          RawPrerouting
            udp dport 4789 @th,96,24 0x1000 ip saddr @peers notrack
          RawOutput
            udp dport 4789 @th,96,24 0x1000 ip daddr @peers notrack
          Input
            udp dport 4789 meta l4proto != @renewed accept
            udp dport 4789 @th,96,24 != 0x1000 accept
            udp dport 4789 iifname "eth0" ip saddr @peers ip daddr 172.16.0.5/32 accept
            udp dport 4789 ip saddr @peers fib saddr . iif oif exists ip daddr 172.16.0.5/32 accept
            udp dport 4789 drop
            udp dport 8475 iifname "eth0" ip saddr 10.244.0.0/16 accept
            udp dport 8475 iifname "flannel.4096" ip saddr 10.244.0.0/16 accept
            udp dport 8475 drop
        table ip6 tweed-tunnel.4096
          RawPrerouting
            udp dport 4789 @th,96,24 0x1000 ip6 saddr @peers notrack
          RawOutput
            udp dport 4789 @th,96,24 0x1000 ip6 daddr @peers notrack
          Input
            udp dport 4789 meta l4proto != @renewed accept
            udp dport 4789 @th,96,24 != 0x1000 accept
            udp dport 4789 iifname "eth0" ip6 saddr @peers ip6 daddr fd00:16::5/128 accept
            udp dport 4789 ip6 saddr @peers fib saddr . iif oif exists ip6 daddr fd00:16::5/128 accept
            udp dport 4789 drop
            udp dport 8475 iifname "eth0" ip6 saddr fd00:244::/48 accept
            udp dport 8475 iifname "flannel-v6.4096" ip6 saddr fd00:244::/48 accept
            udp dport 8475 drop
    "#]],
    );
}

#[test]
fn checksums_are_computed_where_the_kernel_would_corrupt_them_or_on_request() {
    let computed = |flags: &str, spoils: bool| {
        let mut local = guarded(flags, VXLAN, "");
        local.node.kernel = Release::parse(if spoils { "5.6.19" } else { "5.7.0" });
        let state = plan_local(&local);
        let settings = state.entries().filter(|entry| {
            matches!(entry, Entry::Setting(setting) if setting.kind == SettingKind::TxChecksum)
        });
        settings.map(ToString::to_string).collect::<Vec<_>>()
    };
    let both =
        ["flannel-v6.1", "flannel.1"].map(|link| format!("tx-checksum-ip-generic off dev {link}"));
    // An untracked packet is not translated, so its checksum stays valid.
    assert_eq!(computed("", true), [""; 0]);
    assert_eq!(computed("--tunnel-notrack=false", true), both);
    assert_eq!(computed("--tunnel-notrack=false", false), [""; 0]);
    assert_eq!(computed("--tunnel-notrack=false --tunnel-checksums=keep", true), [""; 0]);
    assert_eq!(computed("--tunnel-checksums=computed", false), both);
}

#[test]
fn an_old_kernel_looks_up_the_route_back_before_routing() {
    let local = NodeInputs { policy: policy(""), ..node(VXLAN, "") };
    let tables = |release: &str| {
        let mut local = local.clone();
        local.node.kernel = Release::parse(release);
        let state = plan_local(&local);
        let table = state.entries().find(|it| matches!(it, Entry::Table(_)));
        table.map(|it| it.to_string().replace("; ", ";\n")).unwrap_or_default()
    };
    expect![[r#"
        table ip tweed-tunnel.1 { set peers { type ipv4_addr;
        };
        set renewed { type inet_proto;
        flags timeout;
        };
        chain prerouting { type filter hook prerouting priority raw;
        policy accept;
        udp dport 8472 @th,96,24 0x1 ip saddr @peers notrack;
        udp dport 8472 meta l4proto != @renewed accept;
        udp dport 8472 @th,96,24 != 0x1 accept;
        udp dport 8472 iifname "eth0" ip saddr @peers accept;
        udp dport 8472 ip saddr @peers fib saddr . iif oif missing drop;
        };
        chain output { type filter hook output priority raw;
        policy accept;
        udp dport 8472 @th,96,24 0x1 ip daddr @peers notrack;
        };
        chain input { type filter hook input priority filter;
        policy accept;
        udp dport 8472 meta l4proto != @renewed accept;
        udp dport 8472 @th,96,24 != 0x1 accept;
        udp dport 8472 ip saddr @peers ip daddr 172.16.0.5/32 accept;
        udp dport 8472 drop;
        udp dport 8475 iifname "eth0" ip saddr 10.244.0.0/16 accept;
        udp dport 8475 iifname "flannel.1" ip saddr 10.244.0.0/16 accept;
        udp dport 8475 drop;
        };
        chain forward { type filter hook forward priority filter;
        policy accept;
        udp dport 8472 meta l4proto != @renewed accept;
        udp dport 8472 @th,96,24 != 0x1 accept;
        udp dport 8472 ip saddr @peers accept;
        udp dport 8472 ip daddr @peers drop;
        udp dport 8472 @th,96,24 0x1 ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 drop;
        udp dport 8472 iifname "eth0" accept;
        };
        }"#]]
    .assert_eq(&tables("5.15.0-134-generic"));
    assert_eq!(tables("5.19.0"), tables("6.18.44"));
}

#[test]
fn without_a_tunnel_or_with_all_flags_off_there_is_no_guard_table() {
    check_tables("", HOST_GW, "", expect![""]);
    let off = "--tunnel-notrack=false --tunnel-drop-unknown=false --tunnel-drop-pods=false";
    check_tables(off, VXLAN, "", expect![""]);
}

#[test]
fn every_accepted_peer_is_allowed_on_every_path() {
    let host_gw = format!("{NEAR} host-gw");
    check_admitted(
        VXLAN,
        "",
        &[NEAR, FAR, &host_gw],
        expect![[r#"
        element ip tweed-tunnel.1 peers { 172.16.0.9 }
        element ip6 tweed-tunnel.1 peers { fd00:16::9 }
        element ip tweed-tunnel.1 peers { 172.17.0.9 }
        element ip6 tweed-tunnel.1 peers { fd00:17::9 }
        element ip tweed-tunnel.1 peers { 172.16.0.9 }
        element ip6 tweed-tunnel.1 peers { fd00:16::9 }
    "#]],
    );
    check_admitted(
        HOST_GW,
        MIXED,
        &[NEAR, FAR],
        expect![[r#"
        element ip tweed-tunnel.1 peers { 172.16.0.9 }
        element ip6 tweed-tunnel.1 peers { fd00:16::9 }
        element ip tweed-tunnel.1 peers { 172.17.0.9 }
        element ip6 tweed-tunnel.1 peers { fd00:17::9 }
    "#]],
    );
    check_admitted(HOST_GW, "", &[NEAR, FAR], expect![""]);
}

#[test]
fn a_peer_with_another_source_address_is_accepted_from_both() {
    check_admitted(
        VXLAN,
        "",
        &["10.244.3.0/24@192.0.2.9 source=172.16.0.9"],
        expect![[r#"
        element ip tweed-tunnel.1 peers { 192.0.2.9 }
        element ip tweed-tunnel.1 peers { 172.16.0.9 }
    "#]],
    );
    let mut local = guarded("", VXLAN, "");
    let published = |local: &NodeInputs| {
        let ends = local.attributes().endpoints.into_iter();
        ends.map(|end| end.vtep.unwrap().source.map(|ip| ip.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(published(&local), [None, None]);
    local.node.uplinks[0].public_ip = "192.0.2.5".parse().unwrap();
    assert_eq!(published(&local), [Some("172.16.0.5".to_owned()), None]);
}

#[test]
fn packets_of_the_tunnel_are_accepted_only_to_the_addresses_of_this_node() {
    let mut local = guarded("--tunnel-drop-pods=false --tunnel-notrack=false", VXLAN, "");
    local.node.uplinks.truncate(1);
    local.node.uplinks[0].public_ip = "192.0.2.5".parse().unwrap();
    local.node.uplinks[0].source = "172.16.0.6".parse().unwrap();
    let state = plan_local(&local);
    let rules = state.entries().find_map(|entry| match entry {
        Entry::Table(table) => table.chains.get(&Hook::Input),
        _ => None,
    });
    let ends = rules.unwrap().iter().flat_map(|rule| &rule.conditions);
    let ends = ends.filter(|one| matches!(one, Condition::Address(Side::Destination, ..)));
    let ends: Vec<_> = ends.cloned().collect();
    // By the underlay, and by any link with a route back.
    let expected = [["172.16.0.5", "172.16.0.6", "192.0.2.5"]; 2].concat();
    let is_end = |end: &str| Condition::destination(Match::Is, end.parse::<IpAddr>().unwrap());
    assert_eq!(ends, expected.into_iter().map(is_end).collect::<Vec<_>>());
}
