//! A table of decisions: the applied config, the requested config, the result.

#![allow(clippy::unwrap_used)]

use super::*;

fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json.as_bytes()).unwrap()
}

/// A config of these keywords: backend, `mixed`, `mtu`, `direct`.
fn words(words: &str) -> NetworkConfig {
    let mixed = words.contains("mixed");
    let direct = words.contains("direct");
    let mtu = if words.contains("mtu") { 1400 } else { 0 };
    let kind = words.split(' ').next().unwrap();
    config(&format!(
        r#"{{"Network":"10.5.0.0/16","Mixed":{mixed},
             "Backend":{{"Type":"{kind}","MTU":{mtu},"DirectRouting":{direct}}}}}"#
    ))
}

fn situation() -> Situation {
    let names = vec!["10.0.0.1".to_owned()];
    Situation {
        reload: Reload::Live,
        names,
        kept: None,
        is_filtered: false,
        needing_mixed: Some(NeedingMixed::default()),
    }
}

fn result(change: &Change) -> (NetworkConfig, String) {
    let pending = change.pending.as_ref().map(ToString::to_string).unwrap_or_default();
    (change.applied.clone(), pending)
}

#[test]
fn the_backend_changes_live_only_between_two_mixed_configs() {
    let for_start =
        "staying on vxlan: without Mixed, Backend.Type host-gw is applied at the next start";
    let elsewhere = "staying on vxlan: Mixed must be on at all nodes before Backend.Type changes; then edit the config again (a space is enough) or restart tweedd";
    let cases = [
        ("vxlan mixed", "host-gw mixed", "host-gw mixed", ""),
        ("host-gw mixed", "vxlan mixed", "vxlan mixed", ""),
        ("vxlan", "host-gw", "vxlan", for_start),
        ("vxlan", "host-gw mixed", "vxlan mixed", elsewhere),
        ("vxlan", "vxlan mixed", "vxlan mixed", ""),
        ("vxlan mixed", "vxlan", "vxlan", ""),
        ("host-gw mixed", "host-gw", "host-gw", ""),
        ("vxlan", "vxlan", "vxlan", ""),
        // Keys that need not wait are applied.
        ("vxlan", "host-gw mtu", "vxlan mtu", for_start),
        ("vxlan", "host-gw mixed mtu", "vxlan mixed mtu", elsewhere),
    ];
    for (current, wanted, applied, pending) in cases {
        let change = change(&words(current), &words(wanted), &situation());
        assert_eq!(result(&change), (words(applied), pending.to_owned()), "{current} → {wanted}");
    }
}

/// A backup of the store may take back a migration while one node has changed alone.
#[test]
fn a_change_in_one_edit_waits_until_all_peers_have_changed() {
    let two_edits = "staying on vxlan with Mixed: change Backend.Type first, and remove Mixed when all nodes have applied it";
    let unanswered = "keeping Mixed until direct probes to 10.0.0.9 are answered";
    let peer = || vec![IpAddr::from([10, 0, 0, 9])];
    let nothing = NeedingMixed::default();
    let cases = [
        (None, "vxlan mixed mtu", two_edits),
        (
            Some(NeedingMixed { unreachable: peer(), ..nothing.clone() }),
            "vxlan mixed mtu",
            two_edits,
        ),
        (
            Some(NeedingMixed { unanswered: peer(), ..nothing.clone() }),
            "host-gw mixed mtu",
            unanswered,
        ),
        (Some(nothing), "host-gw mtu", ""),
    ];
    for (needing_mixed, applied, pending) in cases {
        let situation = Situation { needing_mixed, ..situation() };
        let change = change(&words("vxlan mixed"), &words("host-gw mtu"), &situation);
        assert_eq!(result(&change), (words(applied), pending.to_owned()));
        assert!(change.pending.is_none_or(|reason| reason.may_end_by_itself()));
    }
}

#[test]
fn direct_routing_changes_live_only_between_two_mixed_configs_too() {
    let for_start =
        "staying on vxlan: without Mixed, Backend.DirectRouting true is applied at the next start";
    let off_for_start = "staying on vxlan (DirectRouting): without Mixed, Backend.DirectRouting false is applied at the next start";
    let elsewhere = "staying on vxlan: Mixed must be on at all nodes before Backend.DirectRouting changes; then edit the config again (a space is enough) or restart tweedd";
    let two_edits = "staying on vxlan (DirectRouting) with Mixed: change Backend.DirectRouting first, and remove Mixed when all nodes have applied it";
    let type_for_start =
        "staying on vxlan: without Mixed, Backend.Type host-gw is applied at the next start";
    let cases = [
        ("vxlan mixed", "vxlan mixed direct", "vxlan mixed direct", ""),
        ("vxlan mixed direct", "vxlan mixed", "vxlan mixed", ""),
        ("vxlan", "vxlan direct", "vxlan", for_start),
        ("vxlan", "vxlan direct mtu", "vxlan mtu", for_start),
        ("vxlan direct", "vxlan", "vxlan direct", off_for_start),
        ("vxlan", "vxlan mixed direct", "vxlan mixed", elsewhere),
        ("vxlan mixed direct", "vxlan", "vxlan mixed direct", two_edits),
        ("vxlan direct", "vxlan mixed direct", "vxlan mixed direct", ""),
        ("vxlan mixed direct", "vxlan direct", "vxlan direct", ""),
        // Without a tunnel, `DirectRouting` has no effect.
        ("host-gw", "host-gw direct", "host-gw direct", ""),
        ("vxlan", "host-gw direct", "vxlan", type_for_start),
    ];
    for (current, wanted, applied, pending) in cases {
        let change = change(&words(current), &words(wanted), &situation());
        assert_eq!(result(&change), (words(applied), pending.to_owned()), "{current} → {wanted}");
    }
}

#[test]
fn mixed_stays_while_a_peer_would_be_unreachable() {
    let peers = (1..=5).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    let needing = NeedingMixed { unreachable: peers, unanswered: vec![[10, 0, 0, 9].into()] };
    let unreachable = Situation { needing_mixed: Some(needing), ..situation() };
    let change = change(&words("host-gw mixed"), &words("host-gw mtu"), &unreachable);
    let expected =
        "keeping Mixed: without it there is no path to 10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more";
    assert_eq!(result(&change), (words("host-gw mixed mtu"), expected.to_owned()));
    assert!(change.pending.unwrap().may_end_by_itself());
    // With `Mixed` on, the peers are reachable; without it before, they were unreachable already.
    for (current, wanted) in [("vxlan", "vxlan mixed"), ("vxlan", "vxlan mtu")] {
        let change = super::change(&words(current), &words(wanted), &unreachable);
        assert_eq!(result(&change), (words(wanted), String::new()));
    }
}

#[test]
fn mixed_stays_while_a_direct_path_would_replace_a_tunnel_and_fails() {
    let needing =
        NeedingMixed { unanswered: vec![[10, 0, 0, 9].into()], ..NeedingMixed::default() };
    let unanswered = Situation { needing_mixed: Some(needing), ..situation() };
    let change = change(&words("host-gw mixed"), &words("host-gw mtu"), &unanswered);
    let expected = "keeping Mixed until direct probes to 10.0.0.9 are answered";
    assert_eq!(result(&change), (words("host-gw mixed mtu"), expected.to_owned()));
    assert!(change.pending.unwrap().may_end_by_itself());
}

#[test]
fn mixed_stays_while_the_node_is_kept_on_another_backend() {
    let is_filtered = true;
    let kept = Situation { kept: Some(BackendType::Vxlan), is_filtered, ..situation() };
    let change = change(&words("host-gw mixed"), &words("host-gw"), &kept);
    let [ours, wanted] = [BackendType::Vxlan, BackendType::HostGw]
        .map(|kind| BackendMode { kind, direct_routing: false });
    assert_eq!(change.pending, Some(PendingReason::ForTwoEdits { ours, wanted }));
    assert_eq!(change.applied, words("vxlan mixed"));
}

#[test]
fn mixed_stays_before_all_peers_are_known() {
    let unknown = Situation { needing_mixed: None, ..situation() };
    let change = change(&words("host-gw mixed"), &words("host-gw"), &unknown);
    let expected = "keeping Mixed until the leases of the peers are read";
    assert_eq!(result(&change), (words("host-gw mixed"), expected.to_owned()));
    assert!(change.pending.unwrap().may_end_by_itself());
}

#[test]
fn keys_that_pods_leases_or_devices_depend_on_do_not_change() {
    let current = config(r#"{"Network":"10.5.0.0/16"}"#);
    let cases = [
        ("Network", r#"{"Network":"10.6.0.0/16"}"#),
        ("SubnetLen", r#"{"Network":"10.5.0.0/16","SubnetLen":25}"#),
        ("SubnetMin", r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0"}"#),
        ("SubnetMax", r#"{"Network":"10.5.0.0/16","SubnetMax":"10.5.9.0"}"#),
        ("EnableIPv4", r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48"}"#),
        ("EnableIPv6", r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#),
        ("Backend.VNI", r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":2}}"#),
        ("Backend.Port", r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Port":4789}}"#),
        ("Backend.GBP", r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","GBP":true}}"#),
    ];
    for (key, wanted) in cases {
        let change = change(&current, &config(wanted), &situation());
        assert_eq!(
            change,
            Change { applied: current.clone(), pending: Some(PendingReason::ForKey { key }) }
        );
    }
}

#[test]
fn a_start_keeps_the_network_in_which_pods_have_addresses() {
    let remembered = config(r#"{"Network":"10.5.0.0/16"}"#);
    let subnet: Prefix = "10.5.1.0/24".parse().unwrap();
    let cases = [
        (r#"{"Network":"10.6.0.0/16"}"#, Some("Network")),
        (r#"{"Network":"10.5.0.0/16","SubnetLen":25}"#, Some("SubnetLen")),
        (r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0"}"#, Some("SubnetMin")),
        (r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48"}"#, Some("EnableIPv4")),
        // The subnet is still one of the network.
        (r#"{"Network":"10.5.0.0/16","SubnetMax":"10.5.9.0"}"#, None),
        (r#"{"Network":"10.0.0.0/8","SubnetLen":24}"#, None),
        (r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#, None),
        (r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":2}}"#, None),
    ];
    for (wanted, key) in cases {
        let reason = stranded_pods(&remembered, &config(wanted), [subnet].into_iter());
        let expected = key.map(|key| PendingReason::ForPods { key, subnet });
        assert_eq!(reason, expected, "{wanted}");
        assert!(reason.is_none_or(|reason| !reason.may_end_by_itself()));
    }
}

#[test]
fn an_edit_with_a_fixed_key_changes_nothing_else_either() {
    let wanted = r#"{"Network":"10.6.0.0/16","Mixed":true,"Backend":{"Type":"vxlan","MTU":1400}}"#;
    let change = change(&words("vxlan"), &config(wanted), &situation());
    assert_eq!(change.applied, words("vxlan"));
}

#[test]
fn everything_else_changes_live() {
    let current = words("vxlan mixed");
    let wanted = config(
        r#"{"Network":"10.5.0.0/16","Mixed":true,"EnableNFTables":true,
            "Backend":{"Type":"vxlan","MTU":9000,"DirectRouting":true,"Learning":true},
            "Rollout":{"From":{"Type":"host-gw"},"Percent":100}}"#,
    );
    assert_eq!(result(&change(&current, &wanted, &situation())), (wanted, String::new()));
}

#[test]
fn without_reload_every_edit_waits_for_the_next_start() {
    let at_start = Situation { reload: Reload::AtStart, ..situation() };
    let change = super::change(&words("vxlan mixed"), &words("host-gw mixed mtu"), &at_start);
    let expected =
        "the network config was edited, but --config-reload is off: restart tweedd to apply it";
    assert_eq!(result(&change), (words("vxlan mixed"), expected.to_owned()));
    let change = super::change(&words("vxlan"), &words("vxlan"), &at_start);
    assert_eq!(result(&change), (words("vxlan"), String::new()));
}

/// A rollout to host-gw, for the node 10.0.0.1 if `nodes` names it.
fn staged(nodes: &str, mixed: &str) -> NetworkConfig {
    config(&format!(
        r#"{{"Network":"10.5.0.0/16","Mixed":{mixed},"Backend":{{"Type":"host-gw"}},
            "Rollout":{{"From":{{"Type":"vxlan"}},"Nodes":[{nodes}]}}}}"#
    ))
}

#[test]
fn a_node_in_the_rollout_waits_for_mixed_as_any_other() {
    let follower = staged(r#""10.0.0.1""#, "true");
    let waiting = change(&words("vxlan"), &follower, &situation());
    let [ours, wanted] = [BackendType::Vxlan, BackendType::HostGw]
        .map(|kind| BackendMode { kind, direct_routing: false });
    assert_eq!(waiting.pending, Some(PendingReason::ForMixedElsewhere { ours, wanted }));
    assert_eq!(waiting.applied.kind_of(["10.0.0.1"]), BackendType::Vxlan);
    let mixed = change(&waiting.applied, &follower, &situation());
    assert_eq!((mixed.applied, mixed.pending), (follower, None));
}

#[test]
fn a_node_outside_of_the_rollout_waits_for_nothing() {
    let other = staged("", "true");
    let change = change(&words("vxlan"), &other, &situation());
    assert_eq!(change.applied.kind_of(["10.0.0.1"]), BackendType::Vxlan);
    assert_eq!((change.applied, change.pending), (other, None));
}
