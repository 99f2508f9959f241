//! The contents of a report, and its compatibility between versions.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::model::path::{DegradedCause, PeerReachability, ReachabilityState, UnreachableCause};
use crate::model::status::PathStatus;

fn peer(index: usize) -> PeerStatus {
    PeerStatus {
        lease: LeaseId::new(format!("10.5.{index}.0-24")),
        family: Some(Family::V4),
        subnet: None,
        public_ip: None,
        backend: "vxlan".to_owned(),
        path: Some(Path::Tunnel),
        reason: None,
        programmed: true,
        probes: None,
        reachability: None,
    }
}

fn unreachable(index: usize) -> PeerStatus {
    PeerStatus {
        path: None,
        reason: Some("skipped: it published no VTEP".to_owned()),
        ..peer(index)
    }
}

#[test]
fn a_peer_on_its_configured_path_is_no_exception() {
    assert_eq!(exceptions([peer(1), peer(2)]), (Vec::new(), 0));
}

#[test]
fn peers_without_a_path_come_first() {
    let refused = PeerStatus { programmed: false, ..peer(1) };
    let (exceptions, total) = exceptions([refused, unreachable(2)]);
    let listed: Vec<_> = exceptions.iter().map(|e| (e.lease.as_str(), e.reason.as_str())).collect();
    assert_eq!(
        listed,
        [
            ("10.5.2.0-24", "skipped: it published no VTEP"),
            ("10.5.1.0-24", "the kernel does not hold its path"),
        ]
    );
    assert_eq!(total, 2);
}

/// A migration waits for these: they have no verdict yet, and are in the tunnel.
#[test]
fn peers_that_are_probed_come_before_others_with_a_path() {
    let with_verdict = |index, path, verdict| PeerStatus {
        path: Some(path),
        reason: Some("another path".to_owned()),
        probes: Some(PathStatus { verdict, direct: None, tunnel: None }),
        ..peer(index)
    };
    let peers = [
        with_verdict(1, Path::Tunnel, ProbeVerdict::Good),
        with_verdict(2, Path::Direct, ProbeVerdict::Pending),
        with_verdict(3, Path::Tunnel, ProbeVerdict::Pending),
        unreachable(4),
    ];
    let (exceptions, _) = exceptions(peers);
    let listed: Vec<_> = exceptions.iter().map(|e| (e.lease.as_str(), e.probing)).collect();
    let expected = [
        ("10.5.4.0-24", false),
        ("10.5.3.0-24", true),
        ("10.5.1.0-24", false),
        ("10.5.2.0-24", false),
    ];
    assert_eq!(listed, expected);
}

#[test]
fn all_exceptions_are_counted_and_the_first_are_listed() {
    let (exceptions, total) = exceptions((0..250).map(unreachable));
    assert_eq!((exceptions.len(), total), (MOST, 250));
}

#[test]
fn a_report_of_another_version_is_read() {
    let json = r#"{
        "version": "9.9", "lease": "10.5.1.0-24", "subnets": ["10.5.1.0/24"], "backend": "host-gw",
        "node": {"interface": "eth0", "mtu": 1500, "layer2": true, "on_link": ["10.0.0.0/24"],
            "uplinks": [{"address": "10.0.0.1", "public_ip": "10.0.0.1", "source": "10.0.0.1"}]},
        "peers": {"direct": 3, "tunnel": 0, "left_out": 2, "set_aside": 1, "missing": 0},
        "mixed": true, "something": "new"
    }"#;
    let report: NodeReport = serde_json::from_str(json).unwrap();
    assert_eq!((report.peers.skipped, report.peers.rejected), (2, 1));
    assert_eq!((report.backend, report.mixed, report.pending), (BackendType::HostGw, true, None));
}

/// As an older `tweedctl` reads it, while nodes are upgraded.
#[test]
fn of_a_newer_report_only_unknown_values_are_missing() {
    let reachability = ReachabilityCounts { degraded: 2, ..ReachabilityCounts::default() };
    let (exceptions, exceptions_total) = exceptions([unreachable(1), unreachable(2)]);
    let known = NodeReport {
        reachability,
        failing_peers: failing_peers(&[with(1, LOSSY), with(2, LOSSY)]),
        groups: groups(&[peer(1), unreachable(2)]),
        exceptions,
        exceptions_total,
        failing: [("10.5.3.0".parse().unwrap(), Fallback::Unproven)].into(),
        ..report()
    };
    let mut newer = serde_json::to_value(&known).unwrap();
    newer["failing_peers"][0]["cause"] = "aurora".into();
    newer["groups"][0]["path"] = "wormhole".into();
    newer["exceptions"][0]["path"] = "wormhole".into();
    newer["failing"]["10.5.3.0"] = "aurora".into();
    let read = NodeReport::decode(newer.to_string().as_bytes()).unwrap();
    let mut expected = known;
    expected.failing_peers.remove(0);
    expected.groups.remove(0);
    expected.exceptions.remove(0);
    expected.failing = [("10.5.3.0".parse().unwrap(), Fallback::Failed(Cause::NoAnswer))].into();
    assert_eq!(read, expected);
    newer["backend"] = "wormhole".into();
    assert_eq!(NodeReport::decode(newer.to_string().as_bytes()), None);
}

fn with(index: usize, reachability: PeerReachability) -> PeerStatus {
    PeerStatus { reachability: Some(reachability), ..peer(index) }
}

fn is_silent(since_ms: u64) -> PeerReachability {
    PeerReachability::Unreachable { cause: UnreachableCause::PeerSilent, since_ms: Some(since_ms) }
}

const LOSSY: PeerReachability = PeerReachability::Degraded { cause: DegradedCause::Loss };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_269_720 + second).unwrap()
}

fn failing(peers: &[PeerStatus]) -> NodeReport {
    NodeReport { failing_peers: failing_peers(peers), ..report() }
}

#[test]
fn unreachable_peers_are_listed_before_degraded_ones_with_the_time() {
    let peers =
        [with(1, PeerReachability::Reachable), with(2, LOSSY), with(3, is_silent(48_870)), peer(4)];
    let failing = failing(&peers).dated(None, at(60)).failing_peers;
    let json = serde_json::to_value(&failing).unwrap();
    let expected = serde_json::json!([
        {"lease": "10.5.3.0-24", "family": "v4", "state": "unreachable", "cause": "peer-silent",
            "since": "2026-11-21T14:02:12Z"},
        {"lease": "10.5.2.0-24", "family": "v4", "state": "degraded", "cause": "loss",
            "since": "2026-11-21T14:03:00Z"},
    ]);
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<Vec<FailingPeer>>(json).unwrap(), failing);
    assert_eq!(failing_peers(&vec![with(1, LOSSY); 250]).len(), MOST);
}

#[test]
fn a_report_changes_only_if_a_peer_does() {
    let first = failing(&[with(1, is_silent(10_000)), with(2, LOSSY)]).dated(None, at(0));
    let later = failing(&[with(1, is_silent(25_400)), with(2, LOSSY)]).dated(Some(&first), at(16));
    assert_eq!(later, first);
    let other = failing(&[with(1, is_silent(31_000)), with(2, is_silent(3000))]);
    let other = other.dated(Some(&later), at(21));
    let since: Vec<_> = other.failing_peers.iter().map(|peer| peer.since).collect();
    assert_eq!(since, [Some(at(-10)), Some(at(18))]);
    // What a migration waits for is published at once.
    assert!(!other.concerns_migration(&later));
    assert!(NodeReport { config_revision: 8, ..other }.concerns_migration(&later));
}

#[test]
fn no_migration_waits_for_readiness_and_reachability() {
    let report = failing(&[with(1, LOSSY)]);
    let reachability = ReachabilityCounts { unknown: 9, ..ReachabilityCounts::default() };
    let daemon = Some(DaemonState { started: at(0), ready: false, reason: None });
    for other in [
        NodeReport { reachability, ..report.clone() },
        NodeReport { failing_peers: Vec::new(), ..report.clone() },
        NodeReport { refresh_seconds: Some(7), ..report.clone() },
        NodeReport { daemon, ..report.clone() },
    ] {
        assert_ne!(other, report);
        assert!(!other.concerns_migration(&report));
    }
}

#[test]
fn nodes_refresh_their_reports_at_most_twenty_times_a_second() {
    let seconds = [0, 1, 1200, 1201, 5000, 20_000].map(|nodes| refresh_interval(nodes).as_secs());
    assert_eq!(seconds, [60, 60, 60, 70, 250, 1000]);
}

#[test]
fn a_report_that_missed_three_refreshes_is_stale() {
    let refreshed = |refresh_seconds| NodeReport { refresh_seconds, ..report() };
    let age = |seconds| Some(Duration::from_secs(seconds));
    let minutely = refreshed(Some(60));
    let ages = [age(0), age(179), age(180), None];
    assert_eq!(ages.map(|age| minutely.is_stale(age)), [false, false, true, true]);
    // A version that does not refresh its report.
    assert_eq!(ages.map(|age| refreshed(None).is_stale(age)), [false; 4]);
}

#[test]
fn all_peers_are_counted_and_those_of_a_small_cluster_named() {
    let direct = PeerStatus { path: Some(Path::Direct), ..with(3, PeerReachability::Reachable) };
    let odd = PeerStatus { backend: "ipip".to_owned(), path: None, ..peer(4) };
    let peers = [with(1, LOSSY), direct, with(2, LOSSY), odd];
    let group = |backend, path, state, names: &[&str]| PeerGroup {
        family: Some(Family::V4),
        backend,
        path,
        state,
        count: names.len(),
        peers: names.iter().map(|name| LeaseId::new(*name)).collect(),
    };
    let (vxlan, reachable) = (Some(BackendType::Vxlan), Some(ReachabilityState::Reachable));
    let degraded = Some(ReachabilityState::Degraded);
    let expected = [
        group(None, None, None, &["10.5.4.0-24"]),
        group(vxlan, Some(Path::Direct), reachable, &["10.5.3.0-24"]),
        group(vxlan, Some(Path::Tunnel), degraded, &["10.5.1.0-24", "10.5.2.0-24"]),
    ];
    assert_eq!(groups(&peers), expected);
    let many: Vec<_> = (0..201).map(|index| with(index, PeerReachability::Reachable)).collect();
    let counts = |groups: &[PeerGroup]| (groups[0].count, groups[0].peers.len());
    assert_eq!(counts(&groups(&many)), (201, 0));
    assert_eq!(counts(&groups(&many[1..])), (200, 200));
    // Failing peers are named before the others.
    let failed: Vec<_> = (0..100).map(|index| with(index, is_silent(1000))).collect();
    let (exceptions, exceptions_total) = exceptions((0..30).map(unreachable));
    let report = failing(&failed).dated(None, at(0));
    let report = NodeReport { groups: groups(&many[1..]), exceptions, exceptions_total, ..report };
    let json = report.encode();
    let read = NodeReport::decode(json.as_bytes()).unwrap();
    assert!(json.len() <= LARGEST, "{} bytes", json.len());
    assert_eq!((read.failing_peers.len(), counts(&read.groups)), (MOST, (200, 0)));
}

fn report() -> NodeReport {
    let json = r#"{"version": "1", "lease": "n1", "subnets": [], "backend": "vxlan", "mixed": true,
        "node": {"interface": "eth0", "mtu": 1500, "layer2": true, "on_link": [], "uplinks": []}}"#;
    NodeReport::decode(json.as_bytes()).unwrap()
}

#[test]
fn a_report_that_would_be_too_large_names_fewer_exceptions() {
    let exception = |reason: String| Exception {
        lease: LeaseId::new("10.5.1.0-24"),
        family: None,
        path: None,
        reason,
        probing: false,
    };
    let with = |reason: &str| NodeReport {
        exceptions: vec![exception(reason.to_owned()); MOST],
        exceptions_total: 250,
        ..report()
    };
    let named = |report: &NodeReport| {
        let json = report.encode();
        assert!(json.len() <= LARGEST, "{} bytes", json.len());
        let read = NodeReport::decode(json.as_bytes()).unwrap();
        assert_eq!(read.exceptions_total, 250);
        read.exceptions.len()
    };
    assert_eq!(named(&with("skipped")), MOST);
    assert!((1..MOST).contains(&named(&with(&"x".repeat(1000)))));
    assert_eq!(named(&with(&"\u{1}".repeat(LARGEST))), 0);
}

/// Replaces each text of `value` that no type of a report limits.
fn forge(value: &mut serde_json::Value, forged: &str) {
    const FREE: [&str; 6] = ["version", "lease", "name", "pending", "invalid", "reason"];
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    serde_json::Value::String(text)
                        if FREE.contains(&key.as_str()) || key == "interface" =>
                    {
                        forged.clone_into(text);
                    }
                    _ => forge(value, forged),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(|it| forge(it, forged)),
        _ => {}
    }
}

#[test]
fn the_texts_of_another_node_are_cut() {
    let text = || "text".to_owned();
    let (listed, total) = exceptions([unreachable(1)]);
    let report = NodeReport {
        name: Some(text()),
        pending: Some(text()),
        invalid: Some(text()),
        daemon: Some(DaemonState { started: at(0), ready: false, reason: Some(text()) }),
        strict_filters: vec![LinkName::new("\u{1b}[2J".repeat(400))],
        other_mtu: pods(1),
        exceptions: listed,
        exceptions_total: total,
        ..failing(&[with(1, LOSSY)])
    };
    let mut json = serde_json::to_value(&report).unwrap();
    forge(&mut json, &"\u{1b}[2J".repeat(400));
    let read = NodeReport::decode(&serde_json::to_vec(&json).unwrap()).unwrap();
    let printed = serde_json::to_string(&read).unwrap();
    assert!(excerpt::is_printable(&printed) && !printed.contains("\\u001b["), "{printed}");
    assert!(printed.matches("u{1b}[2J").count() > 10, "{printed}");
}

#[test]
fn a_report_shares_the_ids_that_are_known() {
    let known = LeaseId::new("10.5.1.0-24");
    let shared = failing(&[with(1, LOSSY), with(2, LOSSY)]);
    let json = shared.encode();
    let read = NodeReport::decode(json.as_bytes()).unwrap();
    let read = read.sharing(|lease| Some(&known).filter(|known| *known == lease));
    let is_shared = |peer: &FailingPeer| std::ptr::eq(peer.lease.as_str(), known.as_str());
    assert_eq!(read.failing_peers.iter().map(is_shared).collect::<Vec<_>>(), [true, false]);
    assert_eq!(read.encode(), json);
}

#[test]
fn a_peer_that_never_answers_and_stays_in_the_tunnel_is_no_exception() {
    let silent = |path, programmed| PeerStatus {
        path,
        programmed,
        reason: Some("it has never answered a probe".to_owned()),
        probes: Some(PathStatus { verdict: ProbeVerdict::Silent, direct: None, tunnel: None }),
        ..peer(1)
    };
    assert_eq!(exceptions([silent(Some(Path::Tunnel), true)]), (Vec::new(), 0));
    let (exceptions, _) = exceptions([silent(Some(Path::Tunnel), false), silent(None, false)]);
    let listed: Vec<_> = exceptions.iter().map(|e| e.reason.as_str()).collect();
    assert_eq!(listed, ["it has never answered a probe", "the kernel does not hold its path"]);
}

fn pods(number: usize) -> OtherMtu {
    let pod = |index| Pod { name: format!("shop/web-{index}"), mtu: 1450 };
    (0..number).map(pod).collect::<Vec<_>>().into()
}

#[test]
fn the_first_few_are_shown_and_all_are_counted() {
    assert_eq!(pods(2).to_string(), "shop/web-0 (1450), shop/web-1 (1450)");
    assert!(pods(7).to_string().ends_with("shop/web-4 (1450) and 2 more"));
    assert_eq!((pods(250).total, pods(250).pods.len()), (250, MOST));
    assert!(pods(250).to_string().ends_with(" and 245 more"));
}
