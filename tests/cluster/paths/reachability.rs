//! A peer that does not answer by the path in use is shown in every view, until it answers again.

use anyhow::{Context, Result, ensure};
use tweed_lab::eventually;

use super::probe::reported;
use crate::fixture::ask::{tweedctl, wait_until_reachable};
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED};

/// All packets of the tunnel, to a filter of the segment.
const TUNNEL: &str = "udp dport 8472";
/// Those that are as large as the largest packets of pods.
const LARGE: &str = "udp dport 8472 ip length > 1400";
/// Some of them: each probe passes twice.
const SOME: &str = "udp dport 8472 numgen random mod 100 < 10";
/// What a cloud network drops if it knows the addresses of its machines.
const FOREIGN: &str = "ip saddr 10.244.0.0/16";
/// What node 1 sends into the tunnel, to its own rules.
const SENT: &str = "ipproto udp dport 8472";

/// Three nodes that reach each other. A short interval results in enough probes for a share of
/// losses.
pub(super) fn start(stack: Stack, side: Side) -> Result<Cluster> {
    start_with("200ms", stack, side)
}

/// The same with another interval.
pub(super) fn start_with(interval: &str, stack: Stack, side: Side) -> Result<Cluster> {
    let rest = format!(r#"{},"Probe":{{"Interval":"{interval}"}}"#, side.config());
    let config = stack.config(&rest);
    let cluster = ClusterPlan::new(3, &config).stack(stack).start()?;
    wait_until_reachable(&cluster)?;
    Ok(cluster)
}

/// Waits until node 0 reports this state, and this cause, of node 1, in every view.
fn wait_for(cluster: &Cluster, state: &str, cause: Option<&str>) -> Result<()> {
    let is_shown = || {
        let family = cluster.stack.families().first().copied().context("no family")?;
        let peer = reported(cluster, 0, 1, family)?;
        ensure!(peer["programmed"] == true, "{peer}");
        let reachability = &peer["reachability"];
        ensure!(reachability["state"] == state, "{peer}");
        ensure!(cause.is_none_or(|cause| reachability["cause"] == cause), "{peer}");
        ensure!((state == "unreachable") == reachability["since_ms"].is_number(), "{peer}");
        is_in_every_view(cluster, state)
    };
    eventually(PATIENCE, is_shown).map(drop)
}

pub(super) fn is_in_every_view(cluster: &Cluster, state: &str) -> Result<()> {
    let (node, daemon) = (&cluster.nodes[0], &cluster.daemons[0]);
    let is_failing = !["reachable", "unknown"].contains(&state);
    for command in ["status", "peers"] {
        let shown = tweedctl(node, &[command])?;
        ensure!(shown.status.code() == Some(if is_failing { 5 } else { 0 }), "{shown:?}");
        ensure!(!is_failing || String::from_utf8_lossy(&shown.stdout).contains(state), "{shown:?}");
    }
    let readiness = daemon.get("/readyz")?;
    ensure!(readiness.status == 200, "{}", readiness.body);
    ensure!(readiness.body.contains(&format!(" {state}: ")) == is_failing, "{}", readiness.body);
    let metrics = daemon.get("/metrics")?.body;
    let none = format!("tweed_peers_reachability{{state=\"{state}\"}} 0");
    ensure!(metrics.contains("tweed_peers_reachability") && !metrics.contains(&none), "{metrics}");
    Ok(())
}

/// Waits for the log line of a change.
fn wait_for_log(cluster: &Cluster, words: &str) {
    let is_logged = || Ok::<_, anyhow::Error>(cluster.daemons[0].log()?.contains(words));
    eventually(PATIENCE, is_logged).unwrap();
}

#[test]
fn a_peer_whose_daemon_does_not_run_is_not_unreachable() {
    for side in [VXLAN, HOST_GW, VXLAN_MIXED, HOST_GW_MIXED] {
        let mut cluster = start(Stack::V4, side).unwrap();
        cluster.daemons[1].freeze().unwrap();
        wait_for(&cluster, "unknown", Some("daemon-silent")).unwrap();
        wait_for_log(&cluster, "peer does not answer probes");
        cluster.daemons[1].thaw().unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
        wait_for_log(&cluster, "peer answers probes again");
        cluster.daemons[1].kill().unwrap();
        wait_for(&cluster, "unknown", Some("daemon-silent")).unwrap();
        // Then its host goes down, too.
        cluster.nodes[1].underlay().cut().unwrap();
        wait_for(&cluster, "unreachable", Some("peer-silent")).unwrap();
        wait_for_log(&cluster, "peer is unreachable");
        cluster.nodes[1].underlay().restore().unwrap();
        cluster.daemons[1].start().unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
    }
}

#[test]
fn a_firewall_that_drops_only_probes_is_no_outage() {
    for (stack, probes) in [(Stack::V4, "0.0.0.0/0"), (Stack::V6, "::/0")] {
        let cluster = start(stack, VXLAN).unwrap();
        let probes = format!("to {probes} ipproto udp dport 8475");
        cluster.nodes[1].namespace().block(&probes).unwrap();
        wait_for(&cluster, "unknown", Some("daemon-silent")).unwrap();
        cluster.nodes[1].namespace().unblock(&probes).unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
    }
}

#[test]
fn a_peer_that_is_cut_off_is_unreachable_with_and_without_a_carrier() {
    for (stack, side) in [(Stack::V4, VXLAN_MIXED), (Stack::V4, HOST_GW), (Stack::V6, HOST_GW)] {
        let cluster = start(stack, side).unwrap();
        cluster.nodes[1].underlay().cut().unwrap();
        wait_for(&cluster, "unreachable", Some("peer-silent")).unwrap();
        cluster.nodes[1].underlay().restore().unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
        cluster.nodes[1].underlay().unplug().unwrap();
        wait_for(&cluster, "unreachable", Some("peer-silent")).unwrap();
        cluster.nodes[1].underlay().restore().unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
    }
}

#[test]
fn a_node_that_is_cut_off_reports_that_no_peer_answers() {
    let cluster = start(Stack::V4, VXLAN_MIXED).unwrap();
    cluster.nodes[0].underlay().cut().unwrap();
    wait_for(&cluster, "unreachable", Some("all-silent")).unwrap();
    cluster.nodes[0].underlay().restore().unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
}

#[test]
fn a_tunnel_that_is_filtered_is_the_cause() {
    let cluster = start(Stack::V4, VXLAN_MIXED).unwrap();
    cluster.segment.filter(TUNNEL).unwrap();
    wait_for(&cluster, "unreachable", Some("tunnel-silent")).unwrap();
    cluster.segment.unfilter().unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
    // In one direction only.
    cluster.nodes[1].namespace().block(SENT).unwrap();
    wait_for(&cluster, "unreachable", Some("tunnel-silent")).unwrap();
    cluster.nodes[1].namespace().unblock(SENT).unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
}

#[test]
fn without_mixed_a_tunnel_that_is_filtered_is_reported() {
    let cluster = start(Stack::V4, VXLAN).unwrap();
    cluster.segment.filter(TUNNEL).unwrap();
    wait_for(&cluster, "unreachable", Some("all-silent")).unwrap();
    cluster.segment.unfilter().unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
    // In one direction only: its requests are lost as well as its answers.
    cluster.nodes[1].namespace().block(SENT).unwrap();
    wait_for(&cluster, "unreachable", Some("peer-silent")).unwrap();
    cluster.nodes[1].namespace().unblock(SENT).unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
    // In the other direction, its requests arrive.
    cluster.nodes[0].namespace().block(SENT).unwrap();
    wait_for(&cluster, "unreachable", Some("one-direction")).unwrap();
    cluster.nodes[0].namespace().unblock(SENT).unwrap();
    wait_for(&cluster, "reachable", None).unwrap();
}

#[test]
fn a_tunnel_that_loses_some_packets_is_degraded() {
    for side in [VXLAN, VXLAN_MIXED] {
        loses_some_packets(&start(Stack::V4, side).unwrap());
    }
}

fn loses_some_packets(cluster: &Cluster) {
    for (filter, cause) in [(LARGE, "large-lost"), (SOME, "loss")] {
        cluster.segment.filter(filter).unwrap();
        wait_for(cluster, "degraded", Some(cause)).unwrap();
        cluster.segment.unfilter().unwrap();
        wait_for(cluster, "reachable", None).unwrap();
    }
    wait_for_log(cluster, "peer is no longer degraded");
}

#[test]
fn a_peer_on_its_fallback_is_degraded() {
    let cluster = start(Stack::V4, HOST_GW_MIXED).unwrap();
    for filter in [FOREIGN, "udp dport 8475"] {
        cluster.segment.filter(filter).unwrap();
        wait_for(&cluster, "degraded", Some("direct-fails")).unwrap();
        cluster.segment.unfilter().unwrap();
        wait_for(&cluster, "reachable", None).unwrap();
    }
}
