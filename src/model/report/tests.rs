//! The contents of a report, and its compatibility between versions.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::model::path::{DegradedCause, UnreachableCause};
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
        "mixed": true, "something": "new"
    }"#;
    let report: NodeReport = serde_json::from_str(json).unwrap();
    assert_eq!((report.backend, report.mixed, report.pending), (BackendType::HostGw, true, None));
}

#[test]
fn unreachable_peers_are_listed_before_degraded_ones_and_without_times() {
    let with = |index, reachability| PeerStatus { reachability: Some(reachability), ..peer(index) };
    let degraded = PeerReachability::Degraded { cause: DegradedCause::Loss };
    let cause = UnreachableCause::PeerSilent;
    let unreachable = |since_ms| PeerReachability::Unreachable { cause, since_ms };
    let peers = [
        with(1, PeerReachability::Reachable),
        with(2, degraded),
        with(3, unreachable(Some(48_870))),
        peer(4),
    ];
    let failing = failing_peers(&peers);
    let listed: Vec<_> = failing.iter().map(|it| (it.lease.as_str(), it.reachability)).collect();
    assert_eq!(listed, [("10.5.3.0-24", unreachable(None)), ("10.5.2.0-24", degraded)]);
    let json = serde_json::to_value(&failing).unwrap();
    let expected = serde_json::json!([
        {"lease": "10.5.3.0-24", "family": "v4", "state": "unreachable", "cause": "peer-silent"},
        {"lease": "10.5.2.0-24", "family": "v4", "state": "degraded", "cause": "loss"},
    ]);
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<Vec<FailingPeer>>(json).unwrap(), failing);
    assert_eq!(failing_peers(&vec![with(1, degraded); 250]).len(), MOST);
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

#[test]
fn the_texts_of_another_node_are_cut() {
    let long = "\u{1b}[2J".repeat(60_000);
    let forged = NodeReport { version: long.clone(), pending: Some(long), ..report() };
    let read = NodeReport::decode(&serde_json::to_vec(&forged).unwrap()).unwrap();
    for text in [Some(read.version), read.pending].into_iter().flatten() {
        assert!(text.len() < 700 && excerpt::is_printable(&text), "{text}");
    }
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
