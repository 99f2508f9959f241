//! Each fault in every view at the same time, and nothing false in any of them.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Family, eventually};

use super::reachability::{is_in_every_view, start};
use crate::fixture::ask::{json, tweedctl};
use crate::fixture::cluster::{Cluster, PATIENCE, Stack};
use crate::fixture::peer::Peer;
use crate::fixture::table::{HOST_GW_MIXED, Side, VXLAN_MIXED};

/// Packets of the tunnel, and the direct ones of pods, to a filter of the segment.
const TUNNEL: &str = "udp dport 8472";
const LARGE: &str = "udp dport 8472 ip length > 1400";
const SOME: &str = "udp dport 8472 numgen random mod 100 < 10";
const DIRECT: &str = "ip saddr 10.244.0.0/16";
/// What a node sends, or its probes arrive at, to its own rules.
const SENT: &str = "ipproto udp dport 8472";
const PROBES: &str = "to 0.0.0.0/0 ipproto udp dport 8475";

type Step = fn(&mut Cluster) -> Result<()>;

/// A fault of node 1 of the nodes 0, 1 and 2, and how it is shown to node 0.
struct Fault {
    name: &'static str,
    begin: Step,
    end: Step,
    /// The state of node 1, and its cause.
    peer: [&'static str; 2],
    /// The findings of the doctor.
    findings: &'static [&'static str],
    /// The states of all nodes, by their reports.
    nodes: [&'static str; 3],
    /// The log line of the change.
    log: &'static str,
}

const IN_THE_TUNNEL: [Fault; 9] = [
    Fault {
        name: "the port of the tunnel is filtered",
        begin: |cluster| cluster.segment.filter(TUNNEL),
        end: |cluster| cluster.segment.unfilter(),
        peer: ["unreachable", "tunnel-silent"],
        findings: &["peer-unreachable"],
        nodes: ["unreachable"; 3],
        log: "peer is unreachable",
    },
    Fault {
        name: "the port of the tunnel is filtered in one direction",
        begin: |cluster| cluster.nodes[1].namespace().block(SENT),
        end: |cluster| cluster.nodes[1].namespace().unblock(SENT),
        peer: ["unreachable", "tunnel-silent"],
        findings: &["peer-unreachable"],
        nodes: ["ready", "unreachable", "ready"],
        log: "peer is unreachable",
    },
    Fault {
        name: "only large packets are lost",
        begin: |cluster| cluster.segment.filter(LARGE),
        end: |cluster| cluster.segment.unfilter(),
        peer: ["degraded", "large-lost"],
        findings: &["peer-degraded"],
        nodes: ["degraded"; 3],
        log: "peer is degraded",
    },
    Fault {
        name: "the peer's cable is pulled",
        begin: |cluster| cluster.nodes[1].underlay().unplug(),
        end: |cluster| cluster.nodes[1].underlay().restore(),
        peer: ["unreachable", "peer-silent"],
        findings: &["peer-unreachable"],
        nodes: ["ready", "unreachable", "ready"],
        log: "peer is unreachable",
    },
    Fault {
        name: "the own cable is pulled",
        begin: |cluster| cluster.nodes[0].underlay().unplug(),
        end: |cluster| cluster.nodes[0].underlay().restore(),
        peer: ["unreachable", "all-silent"],
        findings: &["underlay-down", "peer-unreachable"],
        nodes: ["unreachable", "ready", "ready"],
        log: "peer is unreachable",
    },
    Fault {
        name: "the peer is powered off",
        begin: |cluster| {
            cluster.daemons[1].kill()?;
            cluster.nodes[1].underlay().cut()
        },
        end: |cluster| {
            cluster.nodes[1].underlay().restore()?;
            cluster.daemons[1].start()
        },
        peer: ["unreachable", "peer-silent"],
        findings: &["peer-unreachable"],
        nodes: ["ready", "unreachable", "ready"],
        log: "peer is unreachable",
    },
    Fault {
        name: "the peer's daemon is killed",
        begin: |cluster| cluster.daemons[1].kill().map(drop),
        end: |cluster| cluster.daemons[1].start(),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
    },
    Fault {
        name: "the peer's daemon is stopped by a signal",
        begin: |cluster| cluster.daemons[1].freeze(),
        end: |cluster| cluster.daemons[1].thaw(),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
    },
    Fault {
        name: "only the peer's probes are filtered",
        begin: |cluster| cluster.nodes[1].namespace().block(PROBES),
        end: |cluster| cluster.nodes[1].namespace().unblock(PROBES),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
    },
];

const SOME_LOST: Fault = Fault {
    name: "a tenth of the packets is lost",
    begin: |cluster| cluster.segment.filter(SOME),
    end: |cluster| cluster.segment.unfilter(),
    peer: ["degraded", "loss"],
    findings: &["peer-degraded"],
    nodes: ["degraded"; 3],
    log: "peer is degraded",
};

const DIRECT_FILTERED: Fault = Fault {
    name: "direct packets of pods are filtered",
    begin: |cluster| cluster.segment.filter(DIRECT),
    end: |cluster| cluster.segment.unfilter(),
    peer: ["degraded", "direct-fails"],
    findings: &["peer-degraded"],
    nodes: ["degraded"; 3],
    log: "peer is degraded",
};

const HEALTHY: Fault = Fault {
    name: "nothing is wrong",
    begin: |_| Ok(()),
    end: |_| Ok(()),
    peer: ["reachable", ""],
    findings: &[],
    nodes: ["ready"; 3],
    log: "",
};

/// The findings of the doctor on node 0.
fn findings(cluster: &Cluster) -> Result<Vec<String>> {
    let answer = tweedctl(&cluster.nodes[0], &["doctor", "-o", "json"])?;
    let found: Value = serde_json::from_slice(&answer.stdout).context(format!("{answer:?}"))?;
    let list = found["findings"].as_array().context("no list")?;
    let ids = list.iter().map(|it| it["id"].as_str().map(str::to_owned).context("no id"));
    ids.collect()
}

/// The states of the nodes by `tweedctl nodes`, with its exit code.
fn nodes(cluster: &Cluster) -> Result<(Option<i32>, Vec<String>)> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let answer = tweedctl(&cluster.nodes[0], &["nodes", &endpoints, "-o", "json"])?;
    let rows: Vec<Value> = serde_json::from_slice(&answer.stdout).context(format!("{answer:?}"))?;
    let state = |name: String| {
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        Ok(row.and_then(|row| row["state"].as_str()).context("no row")?.to_owned())
    };
    let names = cluster.nodes.iter().map(|node| node.address(Family::V4));
    let states = names.map(|name| state(name?.to_string())).collect::<Result<_>>()?;
    Ok((answer.status.code(), states))
}

/// Whether every view shows `fault`.
fn is_shown(cluster: &Cluster, fault: &Fault) -> Result<()> {
    let [state, cause] = fault.peer;
    let subnet = cluster.subnet(1, Family::V4)?.to_string();
    let peers = json_of_any_exit(cluster, &["peers", "-o", "json"])?;
    let peer = peers.as_array().and_then(|all| all.iter().find(|it| it["subnet"] == *subnet));
    let reachability = &peer.with_context(|| format!("no {subnet} in {peers}"))?["reachability"];
    ensure!(reachability["state"] == state, "{reachability}");
    ensure!(reachability["cause"].as_str().unwrap_or_default() == cause, "{reachability}");
    is_in_every_view(cluster, state)?;
    let found = findings(cluster)?;
    ensure!(found == fault.findings, "doctor: {found:?}");
    let (code, states) = nodes(cluster)?;
    let is_failing = fault.nodes.iter().any(|state| *state != "ready");
    ensure!(states == fault.nodes, "nodes: {states:?}");
    ensure!(code == Some(if is_failing { 5 } else { 0 }), "nodes: exit code {code:?}");
    Ok(())
}

fn json_of_any_exit(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let answer = tweedctl(&cluster.nodes[0], arguments)?;
    serde_json::from_slice(&answer.stdout).context(format!("{answer:?}"))
}

/// Causes one fault after the other, and heals it.
fn tries(side: Side, faults: &[Fault]) -> Result<()> {
    let mut cluster = start(Stack::V4, side)?;
    for fault in faults {
        eventually(PATIENCE, || is_shown(&cluster, &HEALTHY))
            .context(format!("before {}", fault.name))?;
        let known = cluster.daemons[0].log()?.matches(fault.log).count();
        (fault.begin)(&mut cluster)?;
        eventually(PATIENCE, || is_shown(&cluster, fault)).context(fault.name)?;
        let logged = cluster.daemons[0].log()?.matches(fault.log).count();
        ensure!(logged > known, "{}: no log line {:?}", fault.name, fault.log);
        (fault.end)(&mut cluster)?;
    }
    eventually(PATIENCE, || is_shown(&cluster, &HEALTHY)).context("at the end").map(drop)
}

#[test]
fn faults_of_the_tunnel_and_of_hosts_are_shown_in_every_view() {
    tries(VXLAN_MIXED, &IN_THE_TUNNEL).unwrap();
}

#[test]
fn losses_are_shown_in_every_view() {
    tries(VXLAN_MIXED, &[SOME_LOST]).unwrap();
}

#[test]
fn a_direct_path_that_fails_is_shown_in_every_view() {
    tries(HOST_GW_MIXED, &[DIRECT_FILTERED]).unwrap();
}

#[test]
fn without_a_store_peers_stay_reachable_and_the_store_is_named() {
    let mut cluster = start(Stack::V4, VXLAN_MIXED).unwrap();
    cluster.etcd.stop().unwrap();
    let is_named = || {
        is_in_every_view(&cluster, "reachable")?;
        let status = tweedctl(&cluster.nodes[0], &["status"])?;
        let text = String::from_utf8_lossy(&status.stdout);
        ensure!(text.contains("the store is unreachable"), "{text}");
        ensure!(findings(&cluster)? == Vec::<String>::new(), "doctor: {:?}", findings(&cluster));
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let nodes = tweedctl(&cluster.nodes[0], &["nodes", &endpoints]).unwrap();
    assert_eq!(nodes.status.code(), Some(3), "{nodes:?}");
    cluster.etcd.start().unwrap();
    eventually(PATIENCE, || is_shown(&cluster, &HEALTHY)).unwrap();
}

#[test]
fn a_flannel_peer_is_unknown_and_no_fault() {
    let cluster = start(Stack::V4, VXLAN_MIXED).unwrap();
    let flannel = Peer::numbered(1);
    flannel.join(&cluster.etcd).unwrap();
    let is_unknown = || {
        let peers = json(&cluster.daemons[0], "peers")?;
        let subnet = flannel.subnet.to_string();
        let peer = peers.as_array().and_then(|all| all.iter().find(|it| it["subnet"] == *subnet));
        let reachability = &peer.context("no peer")?["reachability"];
        ensure!(reachability["state"] == "unknown", "{reachability}");
        ensure!(reachability["cause"] == "never-answered", "{reachability}");
        is_in_every_view(&cluster, "unknown")?;
        ensure!(findings(&cluster)? == ["peer-unknown"], "doctor: {:?}", findings(&cluster));
        let (code, states) = nodes(&cluster)?;
        ensure!(code == Some(0) && states == ["ready"; 3], "nodes: {code:?} {states:?}");
        Ok(())
    };
    eventually(PATIENCE, is_unknown).unwrap();
    flannel.leave(&cluster.etcd).unwrap();
    eventually(PATIENCE, || is_shown(&cluster, &HEALTHY)).unwrap();
}
