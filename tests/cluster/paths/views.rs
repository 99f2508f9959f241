//! Each fault in every view at the same time, and nothing false in any of them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tweed_lab::{Family, Flannel, eventually};

use super::reachability::{is_in_every_view, start_with};
use crate::fixture::ask::tweedctl;
use crate::fixture::cluster::{Cluster, PATIENCE, Stack};
use crate::fixture::delay::Delay;
use crate::fixture::peer::{Peer, host_gw, key};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED};

/// Packets of the tunnel, and the direct ones of pods, to a filter of the segment.
const TUNNEL: &str = "udp dport 8472";
const LARGE: &str = "udp dport 8472 ip length > 1400";
const SOME: &str = "udp dport 8472 numgen random mod 100 < 10";
const DIRECT: &str = "ip saddr 10.244.0.0/16";
/// What a node sends, or its probes arrive at, to its own rules.
const SENT: &str = "ipproto udp dport 8472";
const PROBES: &str = "to 0.0.0.0/0 ipproto udp dport 8475";

/// With the default interval of probes, a share of losses is known only after more than a minute.
const LONG: Duration = PATIENCE.saturating_mul(4);
/// The environment variable for the interval of probes, to measure with the default one.
const INTERVAL: &str = "TWEED_PROBE_INTERVAL";
const SHORT_INTERVAL: &str = "200ms";

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
    /// What becomes of a large packet to node 1, by its trace.
    trace: &'static str,
}

/// The times from the fault until all views of a kind show it.
#[derive(Clone, Copy)]
struct Shown {
    on_the_node: Duration,
    in_the_cluster: Duration,
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
        trace: "unknown",
    },
    Fault {
        name: "the port of the tunnel is filtered in one direction",
        begin: |cluster| cluster.nodes[1].namespace().block(SENT),
        end: |cluster| cluster.nodes[1].namespace().unblock(SENT),
        peer: ["unreachable", "tunnel-silent"],
        findings: &["peer-unreachable"],
        nodes: ["ready", "unreachable", "ready"],
        log: "peer is unreachable",
        trace: "unknown",
    },
    Fault {
        name: "only large packets are lost",
        begin: |cluster| cluster.segment.filter(LARGE),
        end: |cluster| cluster.segment.unfilter(),
        peer: ["degraded", "large-lost"],
        findings: &["peer-degraded"],
        nodes: ["degraded"; 3],
        log: "peer is degraded",
        trace: "unknown",
    },
    Fault {
        name: "the peer's cable is pulled",
        begin: |cluster| cluster.nodes[1].underlay().unplug(),
        end: |cluster| cluster.nodes[1].underlay().restore(),
        peer: ["unreachable", "peer-silent"],
        findings: &["peer-unreachable"],
        nodes: ["ready", "unreachable", "ready"],
        log: "peer is unreachable",
        trace: "unknown",
    },
    Fault {
        name: "the own cable is pulled",
        begin: |cluster| cluster.nodes[0].underlay().unplug(),
        end: |cluster| cluster.nodes[0].underlay().restore(),
        peer: ["unreachable", "all-silent"],
        findings: &["underlay-down", "peer-unreachable"],
        nodes: ["unreachable", "ready", "ready"],
        log: "peer is unreachable",
        trace: "dropped",
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
        trace: "unknown",
    },
    Fault {
        name: "the peer's daemon is killed",
        begin: |cluster| cluster.daemons[1].kill().map(drop),
        end: |cluster| cluster.daemons[1].start(),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
        trace: "delivered",
    },
    Fault {
        name: "the peer's daemon is stopped by a signal",
        begin: |cluster| cluster.daemons[1].freeze(),
        end: |cluster| cluster.daemons[1].thaw(),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
        trace: "delivered",
    },
    Fault {
        name: "only the peer's probes are filtered",
        begin: |cluster| cluster.nodes[1].namespace().block(PROBES),
        end: |cluster| cluster.nodes[1].namespace().unblock(PROBES),
        peer: ["unknown", "daemon-silent"],
        findings: &["peer-unknown"],
        nodes: ["ready"; 3],
        log: "peer does not answer probes",
        trace: "delivered",
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
    trace: "delivered",
};

const DIRECT_FILTERED: Fault = Fault {
    name: "direct packets of pods are filtered",
    begin: |cluster| cluster.segment.filter(DIRECT),
    end: |cluster| cluster.segment.unfilter(),
    peer: ["degraded", "direct-fails"],
    findings: &["peer-degraded"],
    nodes: ["degraded"; 3],
    log: "peer is degraded",
    trace: "delivered",
};

const HEALTHY: Fault = Fault {
    name: "nothing is wrong",
    begin: |_| Ok(()),
    end: |_| Ok(()),
    peer: ["reachable", ""],
    findings: &[],
    nodes: ["ready"; 3],
    log: "",
    trace: "delivered",
};

/// The packets of node 1 take longer than any probe waits.
const LATE: Fault = Fault {
    name: "packets of the peer are delayed by more than probes wait",
    begin: |_| Ok(()),
    end: |_| Ok(()),
    peer: ["unreachable", "one-direction"],
    findings: &["peer-unreachable"],
    nodes: ["ready", "unreachable", "ready"],
    log: "peer is unreachable",
    trace: "unknown",
};

impl Fault {
    fn is_failing(&self) -> bool {
        self.nodes.iter().any(|state| *state != "ready")
    }

    /// The kind of the event, among those of the same peer.
    fn event(&self) -> &'static str {
        match self.peer[0] {
            "unreachable" => "peer-unreachable",
            "degraded" => "peer-degraded",
            "unknown" => "peer-unknown",
            _ => "peer-reachable",
        }
    }
}

/// A cluster with a pod on node 1: traces follow packets to its bridge.
fn start_with_pod(interval: &str, stack: Stack, side: Side) -> Result<Cluster> {
    let cluster = start_with(interval, stack, side)?;
    cluster.nodes[1].pod()?;
    Ok(cluster)
}

/// The JSON and the exit code of `tweedctl` on node 0.
fn ask(cluster: &Cluster, arguments: &[&str]) -> Result<(Value, Option<i32>)> {
    let answer = tweedctl(&cluster.nodes[0], &[arguments, &["-o", "json"]].concat())?;
    let json = serde_json::from_slice(&answer.stdout).context(format!("{answer:?}"))?;
    Ok((json, answer.status.code()))
}

/// The same for a command that reads the store.
fn ask_store(cluster: &Cluster, arguments: &[&str]) -> Result<(Value, Option<i32>)> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    ask(cluster, &[arguments, &[endpoints.as_str()]].concat())
}

fn list(json: &Value) -> Result<&Vec<Value>> {
    json.as_array().with_context(|| format!("no list: {json}"))
}

/// The names of the nodes in lists.
fn names(cluster: &Cluster) -> Result<Vec<String>> {
    cluster.nodes.iter().map(|node| Ok(node.address(Family::V4)?.to_string())).collect()
}

/// The findings of the doctor on node 0.
fn findings(cluster: &Cluster) -> Result<Vec<String>> {
    let (found, _) = ask(cluster, &["doctor"])?;
    let ids = list(&found["findings"])?.iter().map(|it| it["id"].as_str().map(str::to_owned));
    ids.map(|id| id.context("no id")).collect()
}

/// The states of the nodes by `tweedctl nodes`, with its exit code.
fn nodes(cluster: &Cluster) -> Result<(Option<i32>, Vec<String>)> {
    let (rows, code) = ask_store(cluster, &["nodes"])?;
    let state = |name: &String| {
        let row = list(&rows)?.iter().find(|row| row["name"] == name.as_str());
        Ok(row.and_then(|row| row["state"].as_str()).context("no row")?.to_owned())
    };
    Ok((code, names(cluster)?.iter().map(state).collect::<Result<_>>()?))
}

/// The row of `subnet` in `tweedctl peers` of node 0.
fn peer(cluster: &Cluster, subnet: IpNetwork) -> Result<Value> {
    let (peers, _) = ask(cluster, &["peers"])?;
    let subnet = subnet.to_string();
    let found = list(&peers)?.iter().find(|it| it["subnet"] == *subnet);
    Ok(found.with_context(|| format!("no {subnet} in {peers}"))?.clone())
}

/// What becomes of a large packet from node 0 to a pod in `subnet`, with the hop of the probes.
fn trace(cluster: &Cluster, subnet: IpNetwork) -> Result<(Value, Value, Option<i32>)> {
    let from = cluster.nodes[0].address(Family::V4)?.to_string();
    let to = subnet.iter().nth(9).context("no address")?.to_string();
    let (trace, code) = ask(cluster, &["trace", &from, &to, "--size", "1400"])?;
    let probe = list(&trace["hops"])?.iter().find(|hop| hop["hop"] == "probe").cloned();
    Ok((trace["delivery"].clone(), probe.unwrap_or_default(), code))
}

/// The last event about whether the peer with `subnet` answers.
fn last_event(cluster: &Cluster, subnet: IpNetwork) -> Result<Option<String>> {
    const KINDS: [&str; 4] =
        ["peer-unreachable", "peer-degraded", "peer-unknown", "peer-reachable"];
    let answer = tweedctl(&cluster.nodes[0], &["events", "-o", "json"])?;
    let text = String::from_utf8(answer.stdout)?;
    let events = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let is_about = |event: &&Value| {
        let peer = event["peer"].as_str().unwrap_or_default();
        peer.starts_with(&format!("{subnet} ")) && KINDS.contains(&event["kind"].as_str().unwrap())
    };
    let last = events.iter().rfind(is_about);
    Ok(last.and_then(|event| event["kind"].as_str().map(str::to_owned)))
}

/// Whether every view of node 0 shows `fault`.
fn is_shown_on_the_node(cluster: &Cluster, fault: &Fault) -> Result<()> {
    let [state, cause] = fault.peer;
    let subnet = cluster.subnet(1, Family::V4)?;
    let reachability = &peer(cluster, subnet)?["reachability"];
    ensure!(reachability["state"] == state, "{reachability}");
    ensure!(reachability["cause"].as_str().unwrap_or_default() == cause, "{reachability}");
    is_in_every_view(cluster, state)?;
    let found = findings(cluster)?;
    ensure!(found == fault.findings, "doctor: {found:?}");
    let (delivery, probe, code) = trace(cluster, subnet)?;
    let codes = [("delivered", 0), ("unknown", 3), ("dropped", 5)];
    let is_expected = codes.contains(&(fault.trace, code.context("trace: no exit code")?));
    ensure!(delivery == fault.trace && is_expected, "trace: {delivery} {code:?} {probe}");
    // A packet that this node drops is not a question of probes.
    let text = probe["text"].as_str().unwrap_or_default();
    let word = if state == "reachable" { "answers" } else { state };
    ensure!(text.contains(word) || fault.trace == "dropped", "trace: {text}");
    let last = last_event(cluster, subnet)?;
    let is_new = last.is_none() && state == "reachable";
    ensure!(is_new || last.as_deref() == Some(fault.event()), "events: {last:?}");
    Ok(())
}

/// Whether every view of the cluster shows `fault`: those that read the reports of the nodes.
fn is_shown_in_the_cluster(cluster: &Cluster, fault: &Fault) -> Result<()> {
    let names = names(cluster)?;
    let (code, states) = nodes(cluster)?;
    ensure!(states == fault.nodes, "nodes: {states:?}");
    ensure!(code == Some(if fault.is_failing() { 5 } else { 0 }), "nodes: exit code {code:?}");

    let (answer, code) = ask_store(cluster, &["connectivity", "test"])?;
    let pairs = list(&answer["pairs"])?;
    let is_ours = |pair: &&Value| pair["from"] == *names[0] && pair["to"] == *names[1];
    let state = pairs.iter().find(is_ours).and_then(|pair| pair["state"].as_str());
    let expected = Some(fault.peer[0]).filter(|state| ["degraded", "unreachable"].contains(state));
    ensure!(state == expected, "connectivity: {answer}");
    ensure!(fault.is_failing() || pairs.is_empty(), "connectivity: {answer}");
    ensure!(code == Some(if pairs.is_empty() { 0 } else { 5 }), "connectivity: {code:?}");

    let (answer, code) = ask_store(cluster, &["migrate", "status"])?;
    let problems = [&answer["troubles"], &answer["failing_nodes"]];
    let mut lines = Vec::new();
    for problems in problems {
        lines.extend(list(problems)?.iter().filter_map(Value::as_str));
    }
    let expected = names.iter().zip(fault.nodes).filter(|(_, state)| *state != "ready");
    let expected: Vec<String> =
        expected.map(|(name, state)| format!("{name} is {state}:")).collect();
    let named = lines.iter().filter(|line| line.contains(" is "));
    let are_named = expected.iter().all(|name| lines.iter().any(|line| line.starts_with(name)));
    ensure!(named.count() == expected.len() && are_named, "migrate status: {answer}");
    ensure!(code == Some(if expected.is_empty() { 0 } else { 4 }), "migrate status: {code:?}");
    Ok(())
}

/// Waits until every view shows `fault`, which began at `start`.
fn wait_for(cluster: &Cluster, fault: &Fault, start: Instant) -> Result<Shown> {
    eventually(LONG, || is_shown_on_the_node(cluster, fault)).context(fault.name)?;
    let on_the_node = start.elapsed();
    eventually(LONG, || is_shown_in_the_cluster(cluster, fault)).context(fault.name)?;
    Ok(Shown { on_the_node, in_the_cluster: start.elapsed() })
}

/// A row of `docs/benchmarks.md`.
fn row(name: &str, [shown, healed]: [Shown; 2]) -> String {
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let Shown { on_the_node, in_the_cluster } = shown;
    let [node, cluster] = [on_the_node, in_the_cluster].map(seconds);
    let [node_again, cluster_again] = [healed.on_the_node, healed.in_the_cluster].map(seconds);
    format!("| {name} | {node} | {cluster} | {node_again} | {cluster_again} |")
}

/// Causes one fault after the other, and heals it. Prints the times.
fn tries(side: Side, faults: &[Fault]) -> Result<()> {
    let interval = std::env::var(INTERVAL).unwrap_or_else(|_| SHORT_INTERVAL.to_owned());
    let mut cluster = start_with_pod(&interval, Stack::V4, side)?;
    wait_for(&cluster, &HEALTHY, Instant::now()).context("at the start")?;
    for fault in faults {
        let known = cluster.daemons[0].log()?.matches(fault.log).count();
        let start = Instant::now();
        (fault.begin)(&mut cluster)?;
        let shown = wait_for(&cluster, fault, start)?;
        let logged = || cluster.daemons[0].log().map(|log| log.matches(fault.log).count() > known);
        eventually(PATIENCE, logged)
            .with_context(|| format!("{}: no log line {:?}", fault.name, fault.log))?;
        let start = Instant::now();
        (fault.end)(&mut cluster)?;
        let healed = wait_for(&cluster, &HEALTHY, start).context(fault.name)?;
        println!("\n{}", row(fault.name, [shown, healed]));
    }
    Ok(())
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

/// The last round trip through the tunnel to node 1.
fn round_trip(cluster: &Cluster) -> Result<Duration> {
    let peer = peer(cluster, cluster.subnet(1, Family::V4)?)?;
    let time = peer["probes"]["tunnel"]["round_trip_us"].as_u64();
    Ok(Duration::from_micros(time.with_context(|| format!("no time: {peer}"))?))
}

#[test]
fn a_delay_is_a_round_trip_time_until_probes_do_not_wait_for_it() {
    const SOME: Duration = Duration::from_millis(100);
    const LONG_DELAY: Duration = Duration::from_secs(1);
    // Probes wait for half a second.
    let cluster = start_with_pod("2s", Stack::V4, VXLAN).unwrap();
    let delay = |time| {
        let [late, first, second] = [1, 0, 2].map(|index| &cluster.nodes[index]);
        Delay::start(late, &[first, second], time).unwrap()
    };
    let start = Instant::now();
    wait_for(&cluster, &HEALTHY, start).unwrap();
    let is_short = || {
        let time = round_trip(&cluster)?;
        ensure!(time < SOME, "{time:?}");
        Ok(())
    };
    eventually(PATIENCE, is_short).unwrap();

    let delayed = delay(SOME);
    let is_measured = || {
        let time = round_trip(&cluster)?;
        ensure!(time >= SOME, "{time:?}");
        is_shown_on_the_node(&cluster, &HEALTHY)
    };
    eventually(PATIENCE, is_measured).unwrap();
    wait_for(&cluster, &HEALTHY, start).unwrap();
    let is_counted = || {
        let metrics = cluster.daemons[0].get("/metrics")?.body;
        let fast = "tweed_probe_rtt_seconds_bucket{le=\"0.1\"} 1\n";
        ensure!(metrics.contains(fast), "{metrics}");
        Ok(())
    };
    eventually(PATIENCE, is_counted).unwrap();
    drop(delayed);

    let start = Instant::now();
    let delayed = delay(LONG_DELAY);
    let shown = wait_for(&cluster, &LATE, start).unwrap();
    let start = Instant::now();
    drop(delayed);
    let healed = wait_for(&cluster, &HEALTHY, start).unwrap();
    println!("\n{}", row(LATE.name, [shown, healed]));
}

#[test]
fn without_a_store_peers_stay_reachable_and_the_store_is_named() {
    let mut cluster = start_with_pod(SHORT_INTERVAL, Stack::V4, VXLAN_MIXED).unwrap();
    cluster.etcd.stop().unwrap();
    let is_named = || {
        is_in_every_view(&cluster, "reachable")?;
        let status = tweedctl(&cluster.nodes[0], &["status"])?;
        let text = String::from_utf8_lossy(&status.stdout);
        ensure!(text.contains("the store is unreachable"), "{text}");
        ensure!(findings(&cluster)? == Vec::<String>::new(), "doctor: {:?}", findings(&cluster));
        let events = String::from_utf8(tweedctl(&cluster.nodes[0], &["events"])?.stdout)?;
        let last = events.rsplit("store-").next().unwrap_or_default();
        ensure!(last.starts_with("unreachable"), "{events}");
        let (delivery, probe, _) = trace(&cluster, cluster.subnet(1, Family::V4)?)?;
        ensure!(delivery == "delivered" && probe["state"] == "passed", "{delivery} {probe}");
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    for (command, code) in [(&["nodes"][..], 3), (&["migrate", "status"], 1)] {
        let answer = tweedctl(&cluster.nodes[0], &[command, &[&endpoints]].concat()).unwrap();
        assert_eq!(answer.status.code(), Some(code), "{answer:?}");
    }
    // What this node knows needs no store.
    let is_known = || {
        let (answer, code) = ask_store(&cluster, &["connectivity", "test", "--all"])?;
        ensure!(answer["store_error"].is_string() && code == Some(0), "{answer}");
        ensure!(answer["totals"]["reachable"] == 2, "{answer}");
        Ok(())
    };
    eventually(PATIENCE, is_known).unwrap();
    cluster.etcd.start().unwrap();
    wait_for(&cluster, &HEALTHY, Instant::now()).unwrap();
}

/// Whether every view shows `subnet` as a peer that has never answered, and no fault.
fn is_unknown(cluster: &Cluster, subnet: IpNetwork, public_ip: IpAddr) -> Result<()> {
    let reachability = &peer(cluster, subnet)?["reachability"];
    ensure!(reachability["state"] == "unknown", "{reachability}");
    ensure!(reachability["cause"] == "never-answered", "{reachability}");
    is_in_every_view(cluster, "unknown")?;
    ensure!(findings(cluster)? == ["peer-unknown"], "doctor: {:?}", findings(cluster));
    let (delivery, probe, _) = trace(cluster, subnet)?;
    ensure!(delivery == "delivered" && probe["state"] == "planned", "trace: {delivery} {probe}");
    ensure!(last_event(cluster, subnet)?.is_none(), "events: {:?}", last_event(cluster, subnet));
    let (code, states) = nodes(cluster)?;
    ensure!(code == Some(0) && states == ["ready"; 3], "nodes: {code:?} {states:?}");
    let (answer, code) = ask_store(cluster, &["connectivity", "test", "--all"])?;
    let pairs = list(&answer["pairs"])?.iter().filter(|it| it["to"] == *public_ip.to_string());
    let states: Vec<&Value> = pairs.map(|pair| &pair["state"]).collect();
    ensure!(code == Some(0) && states == ["unknown"; 3], "connectivity: {answer}");
    let (answer, code) = ask_store(cluster, &["migrate", "status"])?;
    let is_silent = list(&answer["silent"])? == &[public_ip.to_string()];
    ensure!(code == Some(0) && is_silent, "migrate status: {code:?} {answer}");
    Ok(())
}

#[test]
fn the_lease_of_a_dead_node_and_a_flannel_peer_are_unknown_and_no_fault() {
    let cluster = start_with_pod(SHORT_INTERVAL, Stack::V4, VXLAN_MIXED).unwrap();
    let dead = Peer::numbered(1);
    dead.join(&cluster.etcd).unwrap();
    eventually(PATIENCE, || is_unknown(&cluster, dead.subnet, dead.public_ip)).unwrap();
    dead.leave(&cluster.etcd).unwrap();
    wait_for(&cluster, &HEALTHY, Instant::now()).unwrap();

    let other = cluster.lab.node("other", &cluster.segment).unwrap();
    let [network, subnet] = ["10.244.0.0/16", "10.244.250.0/24"].map(|it| it.parse().unwrap());
    Flannel::join(&other, &cluster.etcd, network, subnet).unwrap();
    let public_ip = other.address(Family::V4).unwrap();
    eventually(PATIENCE, || is_unknown(&cluster, subnet, public_ip)).unwrap();
    cluster.etcd.delete(&key(subnet)).unwrap();
    wait_for(&cluster, &HEALTHY, Instant::now()).unwrap();
}

/// A host-gw peer of flannel has no address to which probes could be sent.
#[test]
fn a_flannel_peer_on_host_gw_is_unknown_and_no_fault() {
    let cluster = start_with_pod(SHORT_INTERVAL, Stack::V4, HOST_GW).unwrap();
    let other = cluster.lab.node("other", &cluster.segment).unwrap();
    let (subnet, public_ip) = ("10.244.250.0/24".parse().unwrap(), other.address(Family::V4));
    let public_ip = public_ip.unwrap();
    cluster.etcd.put(&key(subnet), &host_gw(public_ip)).unwrap();
    eventually(PATIENCE, || is_unknown(&cluster, subnet, public_ip)).unwrap();
    cluster.etcd.delete(&key(subnet)).unwrap();
    wait_for(&cluster, &HEALTHY, Instant::now()).unwrap();
}
