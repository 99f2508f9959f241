//! Direct paths are taken only where packets come through, and left where they do not any more.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Family, Path, ProbePlan, eventually};

use crate::cluster::{CONFIG, Cluster, ClusterPlan, Stack};
use crate::peer::Peer;
use crate::table::{HOST_GW_MIXED, VXLAN_MIXED};

/// What a cloud drops that knows the addresses of its machines.
const FOREIGN: &str = "ip saddr 10.244.0.0/16";
const FOREIGN_V6: &str = "ip6 saddr fd00:244::/48";
/// What a link drops that is narrower than it says.
const LARGE: &str = "ip saddr 10.244.0.0/16 ip length > 1300";
/// Packets per second and ordered pair of pods.
const RATE: u32 = 500;
/// Generous: a path is judged within two intervals on a machine that has time.
const PATIENCE: Duration = Duration::from_secs(20);

fn config(stack: Stack, side: crate::table::Side) -> String {
    stack.config(&side.config())
}

/// What `tweedctl peers` tells of peer number `to` on node number `from`.
fn told(cluster: &Cluster, from: usize, to: usize, family: Family) -> Result<Value> {
    let subnet = cluster.subnet(to, family)?.to_string();
    let peers = cluster.daemons[from].ctl(&["peers", "-o", "json"])?;
    let peers: Vec<Value> = serde_json::from_str(&peers)?;
    let peer = peers.iter().find(|peer| peer["subnet"] == subnet.as_str());
    peer.cloned().with_context(|| format!("{subnet} is not in {peers:?}"))
}

/// Waits until every pair of nodes has this path, and every peer this verdict.
fn wait_for(cluster: &Cluster, family: Family, path: Path, verdict: &Value) -> Result<Duration> {
    eventually(PATIENCE, || {
        cluster.pairs().into_iter().try_for_each(|(from, to)| {
            let subnet = cluster.subnet(to, family)?;
            let is = cluster.nodes[from].path_to(subnet)?;
            ensure!(is == path, "{from} → {to}: {is}, not {path}");
            let peer = told(cluster, from, to, family)?;
            ensure!(peer["probes"]["verdict"] == *verdict, "{from} → {to}: {peer}");
            Ok(())
        })
    })
}

fn good() -> Value {
    "good".into()
}

fn bad(cause: &str) -> Value {
    serde_json::json!({ "bad": cause })
}

/// Restarts every daemon onto what the config says now.
fn restart(cluster: &mut Cluster) -> Result<()> {
    cluster.daemons.iter_mut().try_for_each(|daemon| daemon.restart().map(drop))
}

#[test]
fn answers_come_by_both_ways_and_in_both_families() {
    let cluster = ClusterPlan::new(3, &config(Stack::Dual, VXLAN_MIXED)).stack(Stack::Dual);
    let cluster = cluster.start().unwrap();
    for family in [Family::V4, Family::V6] {
        wait_for(&cluster, family, Path::Tunnel, &good()).unwrap();
    }
    let peer = eventually(PATIENCE, || {
        let peer = told(&cluster, 0, 1, Family::V6)?;
        for way in ["direct", "tunnel"] {
            let probes = &peer["probes"][way];
            ensure!(probes["asked"].as_u64() > Some(0) && probes["lost"] == 0, "{peer}");
            ensure!(probes["round_trip_us"].as_u64() > Some(0), "{peer}");
        }
        Ok(())
    });
    peer.unwrap();
}

#[test]
fn nobody_is_switched_where_foreign_addresses_are_dropped() {
    let mut cluster = ClusterPlan::new(3, &config(Stack::V4, VXLAN_MIXED)).build().unwrap();
    cluster.segment.filter(FOREIGN).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
    cluster.etcd.put(CONFIG, &config(Stack::V4, HOST_GW_MIXED)).unwrap();
    restart(&mut cluster).unwrap();
    wait_for(&cluster, Family::V4, Path::Tunnel, &bad("no-answer")).unwrap();
    let reason = told(&cluster, 0, 1, Family::V4).unwrap()["reason"].to_string();
    assert!(reason.contains("its direct path fails"), "{reason}");
    cluster.segment.unfilter().unwrap();
    let took = wait_for(&cluster, Family::V4, Path::Direct, &good()).unwrap();
    println!("direct {took:.1?} after packets came through");
    let report = probe.finish().unwrap();
    assert_eq!(report.total().lost, 0, "{report}");
}

#[test]
fn a_direct_path_that_dies_is_left_for_the_tunnel() {
    let plan = ClusterPlan::new(3, &config(Stack::Dual, HOST_GW_MIXED)).stack(Stack::Dual);
    let cluster = plan.start().unwrap();
    cluster.start_pods().unwrap();
    for (family, foreign) in [(Family::V4, FOREIGN), (Family::V6, FOREIGN_V6)] {
        wait_for(&cluster, family, Path::Direct, &good()).unwrap();
        let probe = cluster.lab.probe(&cluster.lab.pairs(family), RATE).unwrap();
        cluster.segment.filter(foreign).unwrap();
        wait_for(&cluster, family, Path::Tunnel, &bad("no-answer")).unwrap();
        let report = probe.finish().unwrap();
        println!("{family:?}: cut off for {:.1?} at most", report.longest_outage());
        assert!(report.longest_outage() > Duration::ZERO, "the filter filtered nothing");
        let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
        wait_for(&cluster, other, Path::Direct, &good()).unwrap();
        cluster.segment.unfilter().unwrap();
        let took = wait_for(&cluster, family, Path::Direct, &good()).unwrap();
        println!("{family:?}: direct again after {took:.1?}");
    }
}

#[test]
fn a_path_that_swallows_large_packets_is_left() {
    let cluster = Cluster::start(2, &config(Stack::V4, HOST_GW_MIXED)).unwrap();
    cluster.start_pods().unwrap();
    wait_for(&cluster, Family::V4, Path::Direct, &good()).unwrap();
    cluster.segment.filter(LARGE).unwrap();
    wait_for(&cluster, Family::V4, Path::Tunnel, &bad("large-lost")).unwrap();
    let large = ProbePlan::new(&cluster.lab.pairs(Family::V4), RATE).payload(1400).start().unwrap();
    large.run_for(Duration::from_millis(500));
    let report = large.finish().unwrap();
    assert_eq!(report.total().lost, 0, "{report}");
}

#[test]
fn a_peer_that_runs_flannel_is_switched_without_answers() {
    let cluster = Cluster::start(2, &config(Stack::V4, VXLAN_MIXED)).unwrap();
    let (node, peer) = (&cluster.nodes[0], Peer::numbered(1));
    peer.is_followed_by(&cluster.nodes, &cluster.etcd, PATIENCE).unwrap();
    let flipped = peer.vxlan().replace(r#""vxlan""#, r#""host-gw""#);
    cluster.etcd.put(&peer.key(), &flipped).unwrap();
    eventually(PATIENCE, || peer.is_direct_from(node)).unwrap();
    let peers = cluster.daemons[0].ctl(&["peers", "-o", "json"]).unwrap();
    assert!(peers.contains(r#""silent""#), "{peers}");
}

#[test]
fn a_daemon_that_restarts_drives_nobody_into_the_tunnel() {
    let cluster = Cluster::start(2, &config(Stack::V4, HOST_GW_MIXED)).unwrap();
    cluster.start_pods().unwrap();
    wait_for(&cluster, Family::V4, Path::Direct, &good()).unwrap();
    let monitor = cluster.nodes[0].routes_to(cluster.subnet(1, Family::V4).unwrap()).unwrap();
    cluster.daemons[1].freeze().unwrap();
    // Longer than it takes to judge a path that has failed.
    std::thread::sleep(Duration::from_secs(4));
    let routes = cluster.nodes[0].routes_to(cluster.subnet(1, Family::V4).unwrap()).unwrap();
    assert_eq!(routes, monitor);
    cluster.daemons[1].thaw().unwrap();
    wait_for(&cluster, Family::V4, Path::Direct, &good()).unwrap();
}

#[test]
fn the_secret_is_made_once_and_told_to_nobody() {
    let cluster = Cluster::start(3, &config(Stack::V4, VXLAN_MIXED)).unwrap();
    wait_for(&cluster, Family::V4, Path::Tunnel, &good()).unwrap();
    let keys = cluster.etcd.list("/coreos.com/network/tweed/").unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let secret = &keys[0].value;
    assert_eq!(secret.len(), 64);
    for daemon in &cluster.daemons {
        assert!(!daemon.log().unwrap().contains(secret));
        for question in [["status", "-o", "json"], ["peers", "-o", "json"]] {
            assert!(!daemon.ctl(&question).unwrap().contains(secret));
        }
    }
}
