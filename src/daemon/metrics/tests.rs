//! What the page says.

use expect_test::expect;

use super::*;
use crate::model::policy::Guard;
use crate::model::status::{ConfigStatus, Counts, GuardStatus, PeerCounts, StoreState};

fn status() -> Status {
    Status {
        version: "0.1.0".to_owned(),
        ready: true,
        reasons: Vec::new(),
        store: StoreState::Reachable,
        backend: Some("vxlan".to_owned()),
        mixed: true,
        config: ConfigStatus { revision: 7, ..ConfigStatus::default() },
        interface: Some("eth0".to_owned()),
        public_ips: Vec::new(),
        subnets: Vec::new(),
        mtu: Some(1450),
        peers: PeerCounts { direct: 3, tunnel: 2, left_out: 1, set_aside: 0, missing: 1 },
        conflicts: [("our_public_ip".to_owned(), 1)].into(),
        firewall: Some(FirewallStatus {
            name: "nftables".to_owned(),
            reason: "this kernel has it".to_owned(),
        }),
        tables: vec![TableStatus { name: "ip tweed.1".to_owned(), programmed: true }],
        guard: Some(GuardStatus {
            asked: Guard::default(),
            in_force: true,
            tables: vec![TableStatus { name: "ip tweed-tunnel.1".to_owned(), programmed: true }],
            admitted: 5,
            refused: None,
        }),
        computing: Vec::new(),
        desired: 25,
        refused: vec!["route".to_owned()],
        probes: None,
        statistics: Statistics { created: 25, dumps: 2, ..Statistics::default() },
    }
}

fn page(status: &Status) -> String {
    let readiness = Readiness { ready: status.ready, reasons: Vec::new() };
    render(status, &readiness, Duration::from_millis(1500))
}

/// The samples without their help.
fn samples(status: &Status) -> String {
    let page = page(status);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_daemon_is_told_in_numbers() {
    expect![[r#"
        tweed_info{version="0.1.0",backend="vxlan",mixed="true"} 1
        tweed_ready 1
        tweed_store_reachable 1
        tweed_loop_silence_seconds 1.5
        tweed_config_revision 7
        tweed_config_pending 0
        tweed_config_invalid 0
        tweed_peers{path="direct"} 3
        tweed_peers{path="tunnel"} 2
        tweed_peers{path="left_out"} 1
        tweed_peers{path="set_aside"} 0
        tweed_peers_missing 1
        tweed_lease_conflicts{about="subnet"} 0
        tweed_lease_conflicts{about="vtep_mac"} 0
        tweed_lease_conflicts{about="our_subnet"} 0
        tweed_lease_conflicts{about="our_vtep_mac"} 0
        tweed_lease_conflicts{about="our_public_ip"} 1
        tweed_desired_entries 25
        tweed_firewall_info{firewall="nftables"} 1
        tweed_table_in_place{table="ip tweed.1"} 1
        tweed_table_in_place{table="ip tweed-tunnel.1"} 1
        tweed_tunnel_guarded 1
        tweed_tunnel_admitted_addresses 5
        tweed_refused_entries 1
        tweed_kernel_operations_total{operation="create"} 25
        tweed_kernel_operations_total{operation="replace"} 0
        tweed_kernel_operations_total{operation="remove"} 0
        tweed_kernel_dumps_total 2
        tweed_kernel_overruns_total 0
        tweed_config_edits_total 0
        tweed_path_fallbacks_total 0
        tweed_vtep_mac_changes_total 0"#]]
    .assert_eq(&samples(&status()));
}

#[test]
fn what_waits_is_told_with_its_reason() {
    let pending = Some("the type \"host-gw\" waits:\nC:\\ is not mixed".to_owned());
    let config = ConfigStatus { pending, ..ConfigStatus::default() };
    let samples = samples(&Status { config, ..status() });
    let expected =
        r#"tweed_config_pending{reason="the type \"host-gw\" waits:\nC:\\ is not mixed"} 1"#;
    assert!(samples.contains(expected), "{samples}");
}

#[test]
fn probes_are_told_where_there_are_any() {
    let counts = Counts { asked: 9, answered: 8, ..Counts::default() };
    let reason = Some("the port is in use".to_owned());
    let probes = ProbeStatus { good: 4, bad: 1, counts, reason, ..ProbeStatus::default() };
    let samples = samples(&Status { probes: Some(probes), ..status() });
    for expected in [
        r#"tweed_direct_paths{verdict="good"} 4"#,
        r#"tweed_direct_paths{verdict="bad"} 1"#,
        r#"tweed_probes_off{reason="the port is in use"} 1"#,
        "tweed_probes_asked_total 9",
        "tweed_probes_answered_total 8",
    ] {
        assert!(samples.contains(expected), "{expected} in {samples}");
    }
}

#[test]
fn every_family_has_its_help_and_its_type_once() {
    let page = page(&status());
    let named = |mark: &str| {
        let lines = page.lines().filter_map(|line| line.strip_prefix(mark));
        lines.filter_map(|line| line.split(' ').next()).collect::<Vec<_>>()
    };
    let mut families: Vec<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    families.dedup();
    assert_eq!(named("# HELP "), families);
    assert_eq!(named("# TYPE "), families);
}
