//! Which pairs of nodes fail, and what a pod reaches.

use super::*;

/// Node 1 loses large packets to node 2, whose packets to node 1 are lost; node 3 is stale.
fn failing() -> Cluster {
    Cluster::of(3)
        .fails(1, 2, "degraded", "large-lost")
        .grouped(1, &[("degraded", &[2]), ("reachable", &[3])])
        .fails(2, 1, "unreachable", "one-direction")
        .grouped(2, &[("unreachable", &[1]), ("reachable", &[3])])
        .silent(3, 720)
}

#[test]
fn pairs_that_fail_are_listed_with_their_cause() {
    let failing = failing().connectivity(None).failing_only();
    assert_eq!(failing.exit_status(), ExitStatus::Failing);
    let text = failing.to_string();
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    expect![[r"
        FROM        TO          FAMILY  STATE        FOR
        172.16.0.1  172.16.0.2  IPv4    degraded     2 min
            small probes are answered, large ones are not: check the MTU of the underlay
        172.16.0.2  172.16.0.1  IPv4    unreachable  2 min
            its packets arrive here, and probes to it are not answered in time: packets
              in one direction are lost or late

        172.16.0.3 is not counted: its report is stale, not refreshed for 12 min
        4 pairs: 2 reachable, 1 degraded, 1 unreachable
    "]]
    .assert_eq(&text);

    let well = Cluster::of(2).grouped(1, &[("reachable", &[2])]).grouped(2, &[("reachable", &[1])]);
    let well = well.connectivity(None).failing_only();
    assert_eq!(well.exit_status(), ExitStatus::Done);
    expect![[r"
        2 pairs: 2 reachable
    "]]
    .assert_eq(&well.to_string());
}

#[test]
fn all_pairs_are_listed_on_request() {
    let all = failing().connectivity(None);
    expect![[r"
        FROM        TO          FAMILY  STATE        FOR
        172.16.0.1  172.16.0.2  IPv4    degraded     2 min
            small probes are answered, large ones are not: check the MTU of the underlay
        172.16.0.1  172.16.0.3  IPv4    reachable    -
        172.16.0.2  172.16.0.1  IPv4    unreachable  2 min
            its packets arrive here, and probes to it are not answered in time: packets
              in one direction are lost or late
        172.16.0.2  172.16.0.3  IPv4    reachable    -

        172.16.0.3 is not counted: its report is stale, not refreshed for 12 min
        4 pairs: 2 reachable, 1 degraded, 1 unreachable
    "]]
    .assert_eq(&all.to_string());
}

#[test]
fn the_pairs_of_one_node_are_listed_and_counted() {
    let of = |node, family| failing().connectivity(None).only(node, family);
    let first = of(Some("172.16.0.1"), None);
    expect![[r"
        FROM        TO          FAMILY  STATE        FOR
        172.16.0.1  172.16.0.2  IPv4    degraded     2 min
            small probes are answered, large ones are not: check the MTU of the underlay
        172.16.0.1  172.16.0.3  IPv4    reachable    -
        172.16.0.2  172.16.0.1  IPv4    unreachable  2 min
            its packets arrive here, and probes to it are not answered in time: packets
              in one direction are lost or late

        3 pairs: 1 reachable, 1 degraded, 1 unreachable
    "]]
    .assert_eq(&first.to_string());
    let third = of(Some("172.16.0.3"), Some(Family::V4));
    assert_eq!(third.exit_status(), ExitStatus::Done);
    expect![[r"
        172.16.0.3 is not counted: its report is stale, not refreshed for 12 min
        2 pairs: 2 reachable
    "]]
    .assert_eq(&third.failing_only().to_string());
    assert!(of(None, Some(Family::V6)).to_string().ends_with("\n0 pairs\n"));

    let mut large = Cluster::of(2);
    large.report(1)["groups"] = json!([
        {"family": "v4", "backend": "vxlan", "path": "tunnel", "state": "reachable", "count": 300},
    ]);
    expect![[r"
        300 pairs of the cluster do not fail, and reports do not name them
        0 pairs
    "]]
    .assert_eq(&large.connectivity(None).only(Some("172.16.0.1"), None).to_string());
}

#[test]
fn a_node_is_found_by_each_of_its_names() {
    let nodes = failing().nodes();
    let own = OwnResults { lease: None, peers: vec![peer(7)] };
    for name in ["172.16.0.2", "10.244.2.0/24", "10.244.2.0-24"] {
        assert_eq!(known_as(name, &nodes, None).unwrap(), "172.16.0.2");
    }
    assert_eq!(known_as("172.16.0.7", &nodes, Some(&own)).unwrap(), "172.16.0.7");
    assert_eq!(known_as("172.16.0.7", &nodes, None), None);
}

#[test]
fn a_peer_without_a_path_fails() {
    let mut cluster = Cluster::of(2);
    let report = cluster.report(1);
    report["exceptions"] = json!([
        {"lease": id(2), "family": "v4", "path": null, "reason": "skipped: Mixed is off"},
    ]);
    report["groups"] = json!([
        {"family": "v4", "backend": "host-gw", "path": null, "state": null, "count": 1},
    ]);
    let skipped = cluster.connectivity(None).failing_only();
    assert_eq!(skipped.exit_status(), ExitStatus::Failing);
    expect![[r"
        FROM        TO          FAMILY  STATE    FOR
        172.16.0.1  172.16.0.2  IPv4    no path  -
            skipped: Mixed is off

        1 pair: 1 no path
    "]]
    .assert_eq(&skipped.to_string());
}

/// A peer that this node does not reach.
fn peer(number: usize) -> PeerStatus {
    let cause = UnreachableCause::PeerSilent;
    let unreachable = PeerReachability::Unreachable { cause, since_ms: Some(48_000) };
    PeerStatus { programmed: true, ..probed(number, Some(unreachable)) }
}

#[test]
fn the_daemon_of_this_node_knows_more_than_its_report() {
    let own = || OwnResults { lease: Some(LeaseId::new(id(1))), peers: vec![peer(2)] };
    let cluster = Cluster::of(2).grouped(1, &[("reachable", &[2])]);
    let both = cluster.connectivity(Some(&own())).failing_only();
    assert_eq!(both.exit_status(), ExitStatus::Failing);
    expect![[r"
        FROM        TO          FAMILY  STATE        FOR
        172.16.0.1  172.16.0.2  IPv4    unreachable  48 s
            no probe and no ping is answered: its host is down, or a firewall drops the
              packets

        1 pair: 1 unreachable
    "]]
    .assert_eq(&both.to_string());
    let alone = Connectivity::of(&[], Some(&own()), now()).failing_only();
    expect![[r"
        FROM       TO          FAMILY  STATE        FOR
        this node  172.16.0.2  IPv4    unreachable  48 s
            no probe and no ping is answered: its host is down, or a firewall drops the
              packets

        1 pair: 1 unreachable
    "]]
    .assert_eq(&alone.to_string());
}

/// The peer number `number` of node 1, with this result of the probes.
fn probed(number: usize, reachability: Option<PeerReachability>) -> PeerStatus {
    PeerStatus {
        lease: LeaseId::new(id(number)),
        family: Some(Family::V4),
        subnet: format!("10.244.{number}.0/24").parse().ok(),
        public_ip: format!("172.16.0.{number}").parse().ok(),
        path: Some(Path::Tunnel),
        reachability,
        ..PeerStatus::default()
    }
}

/// The results of a pod on node 1: of each peer, whether small and full-size pings were answered.
fn pinged(answered: &[[bool; 2]], left: &[&str]) -> Connectivity {
    let from = "10.244.1.5".parse().unwrap();
    let statuses = (2..).take(answered.len());
    let mut peers: Vec<PeerStatus> =
        statuses.map(|number| probed(number, Some(PeerReachability::Reachable))).collect();
    let pinged = peers.iter().zip(answered).map(|(peer, answered)| PingedPeer {
        lease: peer.lease.clone(),
        subnet: peer.subnet.unwrap(),
        from: Some(from),
        answered: *answered,
    });
    let left = left.iter().map(ToString::to_string).collect();
    let (addresses, sizes) = (vec![from], [84, 1450]);
    let pings = PodPings { addresses, sizes, peers: pinged.collect(), left };
    let skipped = PeerStatus {
        path: None,
        reason: Some("skipped: Mixed is off".to_owned()),
        ..probed(9, None)
    };
    peers.extend(answered.iter().any(|it| !it[0]).then_some(skipped));
    let own = OwnResults { lease: Some(LeaseId::new(id(1))), peers };
    let names = (1..=9).map(|number| (LeaseId::new(id(number)), format!("n{number}"))).collect();
    let mut connectivity = Connectivity::of(&[], None, now());
    connectivity.pods = Some(PodResults::of(pings, &own, &names));
    connectivity
}

#[test]
fn the_peers_that_a_pod_does_not_reach_are_listed_with_the_cause() {
    let answered = [[true, true], [true, false], [false, true], [false, false]];
    let failing = pinged(&answered, &[]).failing_only();
    assert_eq!(failing.exit_status(), ExitStatus::Failing);
    expect![[r"
        FROM       TO  FAMILY  STATE        FOR
        pod on n1  n3  IPv4    degraded     -
            pings of 84 bytes are answered, those of 1450 bytes are not: check the MTU
              of the underlay; the probes of this node are answered: find what drops
              packets of pods with tweedctl trace and doctor
        pod on n1  n4  IPv4    degraded     -
            pings of 1450 bytes are answered, those of 84 bytes are not; the probes of
              this node are answered: find what drops packets of pods with tweedctl
              trace and doctor
        pod on n1  n5  IPv4    unreachable  -
            no ping of 84 or 1450 bytes is answered; the probes of this node are
              answered: find what drops packets of pods with tweedctl trace and doctor
        pod on n1  n9  IPv4    no path      -
            skipped: Mixed is off

        0 pairs
        from a pod of this node, by pings of 84 and 1450 bytes: 5 peers: 1 reachable, 2
          degraded, 1 unreachable, 1 no path
    "]]
    .assert_eq(&failing.to_string());
}

#[test]
fn what_is_left_of_a_pod_is_named() {
    let all = pinged(&[[true, true]], &[]).failing_only();
    assert_eq!(all.exit_status(), ExitStatus::Done);
    let all = pinged(&[[true, true]], &["what the CNI plugins added may be left"]).failing_only();
    assert_eq!(all.exit_status(), ExitStatus::Problems);
    expect![[r"
        0 pairs
        from a pod of this node, by pings of 84 and 1450 bytes: 1 peer: 1 reachable
        what the CNI plugins added may be left
    "]]
    .assert_eq(&all.to_string());
}
