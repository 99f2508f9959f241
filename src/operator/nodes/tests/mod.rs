//! Which state each node has, and how the nodes are shown.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod connectivity;

use expect_test::expect;
use serde_json::{Value, json};

use super::connectivity::{Connectivity, OwnResults, PodResults, known_as};
use super::pings::{PingedPeer, PodPings};
use super::*;
use crate::model::config::BackendType;
use crate::model::lease::{Endpoint, Lease, Record};
use crate::model::path::{Path, PeerReachability, UnreachableCause};
use crate::model::status::PeerStatus;
use crate::store::operator::StoredReport;

/// A cluster in the store: node number `n` has the subnet 10.244.n.0/24 and the address 172.16.0.n.
struct Cluster {
    leases: Vec<Lease>,
    reports: Vec<(Value, Option<u64>)>,
}

fn id(number: usize) -> String {
    format!("10.244.{number}.0-24")
}

fn lease(number: usize) -> Lease {
    let endpoint = Endpoint {
        subnet: format!("10.244.{number}.0/24").parse().unwrap(),
        public_ip: format!("172.16.0.{number}").parse().unwrap(),
        backend: BackendType::Vxlan.into(),
        vtep: None,
    };
    Lease { id: LeaseId::new(id(number)), endpoints: vec![endpoint], created: 1, grant: Some(1) }
}

fn node() -> Value {
    json!({"interface": "eth0", "mtu": 1500, "layer2": true, "on_link": [], "uplinks": []})
}

fn now() -> Timestamp {
    "2026-11-23T15:00:00Z".parse().unwrap()
}

impl Cluster {
    /// All nodes are ready and reach each other.
    fn of(size: usize) -> Self {
        let report = |number: usize| {
            json!({
                "version": "0.1.0", "lease": id(number), "backend": "vxlan", "mixed": false,
                "subnets": [format!("10.244.{number}.0/24")], "node": node(), "pod_mtu": 1450,
                "refresh_seconds": 60, "failing_peers": [],
                "reachability":
                    {"reachable": size - 1, "degraded": 0, "unreachable": 0, "unknown": 0},
                "daemon": {"started": "2026-11-23T12:00:00Z", "ready": true},
            })
        };
        Self {
            leases: (1..=size).map(lease).collect(),
            reports: (1..=size).map(|number| (report(number), Some(7))).collect(),
        }
    }

    fn report(&mut self, number: usize) -> &mut Value {
        &mut self.reports[number - 1].0
    }

    /// Its report was refreshed this long ago.
    fn silent(mut self, number: usize, seconds: u64) -> Self {
        self.reports[number - 1].1 = Some(seconds);
        self
    }

    /// Node `from` reports node `to`.
    fn fails(mut self, from: usize, to: usize, state: &str, cause: &str) -> Self {
        let report = self.report(from);
        let counts = &mut report["reachability"];
        counts["reachable"] = (counts["reachable"].as_u64().unwrap() - 1).into();
        counts[state] = (counts[state].as_u64().unwrap() + 1).into();
        let peer = json!({
            "lease": id(to), "family": "v4", "state": state, "cause": cause,
            "since": "2026-11-23T14:58:00Z",
        });
        report["failing_peers"].as_array_mut().unwrap().push(peer);
        self
    }

    /// Node `to` is unreachable from all others in `from`.
    fn lost(self, to: usize, from: impl IntoIterator<Item = usize>) -> Self {
        from.into_iter()
            .filter(|from| *from != to)
            .fold(self, |cluster, from| cluster.fails(from, to, "unreachable", "peer-silent"))
    }

    /// No peer answers to `number`.
    fn alone(self, number: usize) -> Self {
        let others: Vec<usize> = (1..=self.leases.len()).filter(|it| *it != number).collect();
        others
            .into_iter()
            .fold(self, |cluster, to| cluster.fails(number, to, "unreachable", "all-silent"))
    }

    fn list(&self) -> NodeList {
        NodeList::new(&self.nodes(), now())
    }

    fn nodes(&self) -> Vec<ClusterNode> {
        let records =
            self.leases.iter().map(|it| Record { id: it.id.clone(), lease: Ok(it.clone()) });
        let reports = self.reports.iter().map(|(report, age)| StoredReport {
            report: NodeReport::decode(&serde_json::to_vec(report).unwrap()).unwrap(),
            age: age.map(Duration::from_secs),
        });
        ClusterNode::all(records, reports)
    }

    /// All peers of node `number` by their states.
    fn grouped(mut self, number: usize, states: &[(&str, &[usize])]) -> Self {
        let group = |(state, peers): &(&str, &[usize])| {
            let ids: Vec<String> = peers.iter().map(|peer| id(*peer)).collect();
            json!({
                "family": "v4", "backend": "vxlan", "path": "tunnel", "state": state,
                "count": peers.len(), "peers": ids,
            })
        };
        self.report(number)["groups"] = states.iter().map(group).collect();
        self
    }

    fn connectivity(&self, own: Option<&OwnResults>) -> Connectivity {
        Connectivity::of(&self.nodes(), own, now())
    }

    fn states(&self) -> String {
        let rows = self.list().rows;
        rows.iter().map(|row| row.state.to_string()).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn a_dead_node_is_named_and_its_peers_are_ready() {
    let cluster = Cluster::of(3).silent(2, 720).lost(2, [1, 3]);
    let list = cluster.list();
    expect![[r"
        NODE        SUBNET         BACKEND  MTU   STATE  UNREACHABLE  SEEN
        172.16.0.1  10.244.1.0/24  vxlan    1450  ready  1            7 s
        172.16.0.2  10.244.2.0/24  vxlan    1450  dead   0            12 min
            its report is not refreshed for 12 min, and it is not reached from 2 of 2
              nodes: its host or its daemon is down
        172.16.0.3  10.244.3.0/24  vxlan    1450  ready  1            7 s

        3 nodes: 2 ready, 1 dead
    "]]
    .assert_eq(&list.to_string());
    assert_eq!(list.exit_status(), ExitStatus::Failing);
}

#[test]
fn a_node_that_only_stopped_to_report_is_stale() {
    assert_eq!(Cluster::of(3).silent(2, 179).states(), "ready ready ready");
    assert_eq!(Cluster::of(3).silent(2, 180).states(), "ready stale ready");
    assert_eq!(Cluster::of(3).silent(2, 180).list().exit_status(), ExitStatus::Failing);
}

#[test]
fn a_node_that_most_peers_do_not_reach_is_the_cause() {
    let cluster = Cluster::of(5).lost(2, 1..=5);
    assert_eq!(cluster.states(), "ready unreachable ready ready ready");
    let reason = cluster.list().rows[1].reason.clone().unwrap();
    assert_eq!(reason, "it is not reached from 4 of 4 nodes");
}

/// `leases release` deletes the lease of a dead node: one that only few miss may have pods.
#[test]
fn a_silent_node_that_most_others_reach_is_not_dead() {
    let cluster = Cluster::of(5).silent(2, 999);
    assert_eq!(
        cluster.fails(1, 2, "unreachable", "no-answer").states(),
        "ready stale ready ready ready"
    );
}

#[test]
fn a_node_that_reaches_no_peer_is_the_cause() {
    let cluster = Cluster::of(5).alone(2);
    assert_eq!(cluster.states(), "ready unreachable ready ready ready");
    let cluster = Cluster::of(5).alone(2).lost(2, 1..=5);
    assert_eq!(cluster.states(), "ready unreachable ready ready ready");
    // The last living node is not the cause.
    let cluster = Cluster::of(3).alone(1).silent(2, 999).silent(3, 999);
    assert_eq!(cluster.states(), "ready dead dead");
}

/// The underlay drops packets of one address family.
#[test]
fn nodes_that_reach_each_other_in_one_family_are_degraded() {
    let mut cluster = Cluster::of(3);
    for lease in &mut cluster.leases {
        let v4 = lease.endpoints[0].clone();
        let subnet = format!("fd00:{}::/64", lease.created).parse().unwrap();
        lease.endpoints.push(Endpoint { subnet, ..v4 });
    }
    for number in 1..=3 {
        let reached = [1, 2, 3].into_iter().filter(|it| *it != number).collect::<Vec<_>>();
        cluster = cluster.alone(number).grouped(number, &[("reachable", &reached)]);
    }
    assert_eq!(cluster.states(), "degraded degraded degraded");
    let cluster = (1..=3).fold(cluster, |cluster, number| cluster.grouped(number, &[]));
    assert_eq!(cluster.states(), "unreachable unreachable unreachable");
}

#[test]
fn a_node_without_a_path_to_a_peer_is_degraded() {
    let mut cluster = Cluster::of(3);
    let exception = |number| json!({"lease": id(number), "family": "v4", "path": null, "reason": "skipped: no path"});
    cluster.report(1)["exceptions"] = json!([exception(2), exception(3)]);
    assert_eq!(cluster.states(), "degraded ready ready");
    let reason = cluster.list().rows[0].reason.clone().unwrap();
    assert_eq!(reason, "no path to 172.16.0.2: skipped: no path; 1 peer in addition");
}

#[test]
fn two_nodes_that_do_not_reach_each_other_are_degraded() {
    let cluster = Cluster::of(5).lost(4, [2]).lost(2, [4]);
    assert_eq!(cluster.states(), "ready degraded ready degraded ready");
    let list = cluster.list();
    let reason = list.rows[1].reason.clone().unwrap();
    assert!(
        reason.starts_with("172.16.0.4 is unreachable since 2026-11-23T14:58:00Z: no probe"),
        "{reason}"
    );
    assert_eq!(list.exit_status(), ExitStatus::Failing);
}

#[test]
fn a_node_to_which_most_peers_lose_packets_is_degraded() {
    let cluster = [1, 3, 4]
        .into_iter()
        .fold(Cluster::of(4), |cluster, from| cluster.fails(from, 2, "degraded", "loss"));
    assert_eq!(cluster.states(), "ready degraded ready ready");
}

#[test]
fn failing_peers_that_a_report_does_not_name_are_not_explained() {
    let mut cluster = Cluster::of(4).silent(2, 999).lost(2, [1, 3, 4]);
    cluster.report(1)["reachability"]["unreachable"] = 2.into();
    assert_eq!(cluster.states(), "degraded dead ready ready");
    assert_eq!(cluster.list().rows[0].reason.as_deref(), Some("2 peers fail"));
}

#[test]
fn a_node_that_is_not_ready_has_another_exit_code() {
    let mut cluster = Cluster::of(3);
    cluster.report(3)["daemon"]["ready"] = false.into();
    cluster.report(3)["daemon"]["reason"] = "no network config yet".into();
    assert_eq!(cluster.states(), "ready ready not-ready");
    assert_eq!(cluster.list().rows[2].reason.as_deref(), Some("no network config yet"));
    assert_eq!(cluster.list().exit_status(), ExitStatus::Problems);
    assert_eq!(cluster.silent(1, 999).list().exit_status(), ExitStatus::Problems, "both");
    assert_eq!(Cluster::of(3).silent(1, 999).list().exit_status(), ExitStatus::Failing);
}

#[test]
fn a_lease_without_a_report_is_listed() {
    let mut cluster = Cluster::of(12);
    // An older version neither refreshes its report nor describes its daemon.
    *cluster.report(10) = json!({
        "version": "0.0.9", "lease": id(10), "backend": "host-gw", "mixed": true, "subnets": [],
        "node": node(),
    });
    cluster.reports.remove(10);
    cluster.leases[11].id = LeaseId::new("worker-12");
    cluster.reports.remove(10);
    let mut list = cluster.list();
    assert_eq!(list.exit_status(), ExitStatus::Done);
    list.rows.drain(1..8);
    expect![[r"
        NODE         SUBNET          BACKEND  MTU   STATE      UNREACHABLE  SEEN
        172.16.0.1   10.244.1.0/24   vxlan    1450  ready      0            7 s
        172.16.0.9   10.244.9.0/24   vxlan    1450  ready      0            7 s
        172.16.0.10  10.244.10.0/24  host-gw  -     ready      -            7 s
        172.16.0.11  10.244.11.0/24  vxlan    -     no-report  -            -
            it sends no report: it runs flannel or an older tweedd, or may not write its
              report
        worker-12    10.244.12.0/24  vxlan    -     no-report  -            -
            it sends no report: it runs flannel or an older tweedd, or may not write its
              report

        12 nodes: 10 ready, 2 no-report; versions 0.0.9, 0.1.0
    "]]
    .assert_eq(&list.to_string());
}

#[test]
fn the_wide_table_and_the_json_have_all_values() {
    let mut list = Cluster::of(3).lost(3, [1]).lost(1, [3]).silent(2, 4000).list();
    list.rows.pop();
    expect![[r"
        NODE        SUBNETS        PUBLIC IPS  BACKEND  MIXED  MTU   STATE        UNREACHABLE  SEEN    AGE  VERSION
        172.16.0.1  10.244.1.0/24  172.16.0.1  vxlan    off    1450  unreachable  1            7 s     3 h  0.1.0
            it is not reached from 1 of 1 nodes
        172.16.0.2  10.244.2.0/24  172.16.0.2  vxlan    off    1450  stale        0            66 min  3 h  0.1.0
            its report is not refreshed for 66 min: its daemon is down, or does not
              reach the store

        3 nodes: 2 unreachable, 1 stale
    "]]
    .assert_eq(&list.wide().to_string());
    list.rows.pop();
    let json = serde_json::to_string_pretty(&list).unwrap();
    expect![[r#"
        [
          {
            "name": "172.16.0.1",
            "state": "unreachable",
            "reason": "it is not reached from 1 of 1 nodes",
            "version": "0.1.0",
            "backend": "vxlan",
            "mixed": false,
            "mtu": 1450,
            "ready": true,
            "peers": {
              "reachable": 1,
              "degraded": 0,
              "unreachable": 1,
              "unknown": 0
            },
            "failing_peers": [
              {
                "name": "172.16.0.3",
                "lease": "10.244.3.0-24",
                "family": "v4",
                "state": "unreachable",
                "cause": "no probe and no ping is answered: its host is down, or a firewall drops the packets",
                "since": "2026-11-23T14:58:00Z"
              }
            ],
            "groups": [],
            "unreachable_from": 1,
            "seen_seconds_ago": 7,
            "started": "2026-11-23T12:00:00Z",
            "public_ips": [
              "172.16.0.1"
            ],
            "subnets": [
              "10.244.1.0/24"
            ],
            "lease": "10.244.1.0-24"
          }
        ]"#]].assert_eq(&json);
}

#[test]
fn of_very_many_failing_peers_each_row_has_the_first_ones() {
    let dead = 1..=100;
    let mut cluster = Cluster::of(250);
    let peer = |to: usize| json!({"lease": id(to), "state": "unreachable", "cause": "peer-silent"});
    let peers: Vec<Value> = dead.clone().map(peer).collect();
    for number in 101..=250 {
        cluster.report(number)["failing_peers"] = peers.clone().into();
        cluster.report(number)["reachability"]["unreachable"] = 100.into();
    }
    let cluster = dead.fold(cluster, |cluster, number| cluster.silent(number, 999));
    let row = |cluster: &Cluster, name| {
        cluster.list().rows.into_iter().find(|row| row.name == name).unwrap()
    };
    assert_eq!(row(&cluster, "172.16.0.101").failing_peers.len(), 100);
    let more = (0..10).fold(cluster, |mut cluster, number| {
        let report = cluster.report(101)["failing_peers"].clone();
        let report = [report.as_array().unwrap().as_slice(); 60].concat();
        cluster.report(102 + number)["failing_peers"] = report.into();
        cluster
    });
    let row = row(&more, "172.16.0.101");
    assert_eq!((row.failing_peers.len(), row.peers.unwrap().unreachable), (FEW, 100));
    // All of them are evidence.
    assert_eq!((row.state, more.list().rows[0].unreachable_from), (NodeState::Ready, 150));
}

#[test]
fn a_node_is_selected_by_any_of_its_names() {
    let rows = Cluster::of(3).list().rows;
    for name in ["172.16.0.2", "10.244.2.0-24", "10.244.2.0/24"] {
        let named = rows.iter().filter(|row| row.is_named(name)).map(|row| row.name.as_str());
        assert_eq!(named.collect::<Vec<_>>(), ["172.16.0.2"], "{name}");
    }
}

#[test]
fn names_are_sorted_by_their_numbers() {
    let mut names = ["n10", "n9", "10.0.0.10", "10.0.0.9", "n9a", "a"];
    names.sort_by_cached_key(|name| numeric(name));
    assert_eq!(names, ["10.0.0.9", "10.0.0.10", "a", "n9", "n9a", "n10"]);
}
