//! `tweedctl events`: each change of a live cluster is shown once, with the peer that it concerns.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Daemon, DaemonPlan, Family, eventually};

use crate::fixture::ask::{tweedctl, wait_until_reachable};
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, binaries};
use crate::fixture::peer::{Peer, host_gw, key};

const VXLAN: &str = r#""Mixed":true,"Backend":{"Type":"vxlan"}"#;
const HOST_GW: &str = r#""Mixed":true,"Backend":{"Type":"host-gw"}"#;

fn config(backend: &str, probe: &str) -> String {
    format!(r#"{{"Network":"10.244.0.0/16",{backend},"Probe":{{"Interval":"200ms"{probe}}}}}"#)
}

/// The events of node 0, as lines of JSON.
fn events(cluster: &Cluster) -> Result<Vec<Value>> {
    let output = tweedctl(&cluster.nodes[0], &["events", "-o", "json"])?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| serde_json::from_str(line).context(line.to_owned())).collect()
}

/// Waits for an event of this kind about this subject whose message contains `words`. There must be
/// only one, but of reachability: a busy machine loses some probes.
fn wait_for(cluster: &Cluster, kind: &str, subject: Option<&str>, words: &str) -> Value {
    let mut found = Value::Null;
    let is_there = || {
        let events = events(cluster)?;
        let is_it = |event: &&Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["kind"] == kind && event["peer"].as_str() == subject && message.contains(words)
        };
        let matching: Vec<&Value> = events.iter().filter(is_it).collect();
        let may_be_more = matches!(kind, "peer-unreachable" | "peer-reachable" | "path-changed");
        let is_right = if may_be_more { !matching.is_empty() } else { matching.len() == 1 };
        ensure!(is_right, "{} of {events:#?}", matching.len());
        found = matching[0].clone();
        Ok::<_, anyhow::Error>(())
    };
    eventually(PATIENCE, is_there).unwrap_or_else(|error| panic!("{kind} {words}: {error:#}"));
    found
}

/// `tweedctl events --follow` for node 0, on a node without a daemon, whose log it has alone.
fn follow(cluster: &Cluster) -> Result<Daemon> {
    let watcher = cluster.lab.node("watcher", &cluster.segment)?;
    let file = format!("--subnet-file={}", cluster.nodes[0].subnet_file().display());
    let plan = DaemonPlan::program(&watcher, binaries().tweedctl).argument(file);
    ["events", "--follow", "-o", "json"].into_iter().fold(plan, DaemonPlan::argument).start()
}

/// Waits until the follower has shown all events of the daemon, each once and in order.
fn all_are_followed(cluster: &Cluster, follower: &Daemon) -> Result<()> {
    let are_shown = || {
        let expected = events(cluster)?;
        let shown: Result<Vec<Value>, _> =
            follower.log()?.lines().map(serde_json::from_str).collect();
        // A busy daemon may not answer in time.
        let shown = shown?.into_iter().filter(|line| line["kind"] != "waiting");
        ensure!(shown.eq(expected.iter().cloned()), "{}\n{expected:#?}", follower.log()?);
        Ok(())
    };
    eventually(PATIENCE, are_shown).map(drop)
}

#[test]
fn each_change_is_an_event_and_is_followed_once() {
    let mut cluster = Cluster::start(2, &config(VXLAN, "")).unwrap();
    wait_until_reachable(&cluster).unwrap();
    let subnet = cluster.nodes[1].subnet_env().unwrap().subnets()[0];
    let other = format!("{subnet} ({})", cluster.nodes[1].address(Family::V4).unwrap());
    let (other, peer) = (Some(other.as_str()), Peer::numbered(1));
    let joined = Some("10.244.101.0/24 (10.99.1.101)");
    let follower = follow(&cluster).unwrap();
    wait_for(&cluster, "config-applied", None, "applied network config revision");
    wait_for(&cluster, "probes-on", None, "paths are probed");
    wait_for(&cluster, "peer-added", other, "peer added, path: tunnel");

    peer.join(&cluster.etcd).unwrap();
    let added = wait_for(&cluster, "peer-added", joined, "peer added, path: tunnel");
    assert_eq!(added["lease"], "10.244.101.0-24", "{added}");
    let vxlan = peer.vxlan().replace(&peer.mac, "02:00:00:00:09:01");
    cluster.etcd.put(&peer.key(), &vxlan).unwrap();
    wait_for(&cluster, "lease-changed", joined, "VTEP 02:00:00:00:09:01");
    cluster.nodes[0].ip("route del 10.244.101.0/24").unwrap();
    wait_for(&cluster, "entry-restored", joined, "route 10.244.101.0/24 ");
    cluster.etcd.put(&key("10.245.91.0/24"), &host_gw("10.99.1.91")).unwrap();
    let rejected = Some("10.245.91.0/24 (10.99.1.91)");
    wait_for(&cluster, "peer-rejected", rejected, "is not inside the network");
    peer.leave(&cluster.etcd).unwrap();
    wait_for(&cluster, "peer-removed", joined, "peer removed");

    cluster.nodes[1].underlay().cut().unwrap();
    wait_for(&cluster, "peer-unreachable", other, "peer is unreachable: ");
    cluster.nodes[1].underlay().restore().unwrap();
    wait_for(&cluster, "peer-reachable", other, " after ");
    cluster.etcd.put(CONFIG, &config(HOST_GW, "")).unwrap();
    wait_for(&cluster, "backend-changed", None, "from vxlan to host-gw with Mixed");
    wait_for(&cluster, "path-changed", other, "path changed from tunnel to direct");
    all_are_followed(&cluster, &follower).unwrap();

    let before = events(&cluster).unwrap().len();
    cluster.daemons[0].restart().unwrap();
    let is_named = || {
        let log = follower.log()?;
        let mut after: Vec<Value> =
            log.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        // A busy daemon may not answer in time.
        after.retain(|line| line["kind"] != "waiting");
        let after = after.split_off(before.min(after.len()));
        let is_gap = |line: &Value| line["kind"] == "gap";
        let (_, now) = after.split_at(after.iter().position(is_gap).context(log.clone())? + 1);
        ensure!(!now.is_empty() && now == events(&cluster)?, "{log}");
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
    assert!(follower.process().is_running());
}

#[test]
fn an_outage_of_etcd_is_two_events() {
    let mut cluster = Cluster::start(1, &config(VXLAN, "")).unwrap();
    cluster.etcd.stop().unwrap();
    wait_for(&cluster, "store-unreachable", None, "the store is unreachable: ");
    cluster.etcd.start().unwrap();
    wait_for(&cluster, "store-reachable", None, "the store answers again after ");
}
