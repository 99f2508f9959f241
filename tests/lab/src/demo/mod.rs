//! The demo: a live cluster moves from VXLAN to host-gw, node by node, under traffic.

pub(crate) mod screen;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::{Binaries, Family, Matrix, Path, Report};

use crate::demo::screen::{ProbeVerdict, Screen};
use tweed_lab::cluster::{Cluster, Shape};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;

/// Packets per second and pair of pods.
const RATE: u32 = 1000;

/// How long packets flow before, between and after the changes.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) fn run(binaries: Binaries, screen: &mut Screen) -> Result<ExitCode> {
    let cluster = build(binaries, screen)?;
    show_vxlan(&cluster, screen)?;
    allow_mixed(&cluster, screen)?;
    let report = flip(&cluster, screen)?;
    let paths = cluster.paths()?;
    show_end(&report, &paths, &cluster, screen)?;
    judge(&cluster, &report, &paths, screen)
}

fn build(binaries: Binaries, screen: &mut Screen) -> Result<Cluster> {
    screen.heading("Three nodes on one segment, a fourth behind a router")?;
    let shape = Shape::of(3, 1);
    let mut cluster =
        screen.step("network namespaces, etcd", || Cluster::build(binaries, shape))?;
    cluster.configure(VXLAN)?;
    screen.block(VXLAN)?;
    for index in 0..cluster.size() {
        let name = format!("{} starts its tweedd and a pod", cluster.describe(index)?);
        screen.step(&name, || cluster.start(index))?;
    }
    Ok(cluster)
}

fn show_vxlan(cluster: &Cluster, screen: &mut Screen) -> Result<()> {
    screen.heading("VXLAN everywhere")?;
    screen.step("paths are there", || cluster.wait_for(|_, _| Path::Tunnel))?;
    screen.block("leases in etcd")?;
    screen.block(cluster.leases()?)?;
    show_paths(&cluster.paths()?, cluster, screen)
}

fn allow_mixed(cluster: &Cluster, screen: &mut Screen) -> Result<()> {
    screen.heading("Mixed is switched on by one edit; every daemon follows")?;
    cluster.configure(MIXED)?;
    screen.block(MIXED)?;
    screen.step("all nodes report that they mix", || cluster.wait_for_mixed(true))
}

/// With a stream from every pod to every other one throughout.
fn flip(cluster: &Cluster, screen: &mut Screen) -> Result<Report> {
    let streams = cluster.pairs().len();
    screen.heading(&format!("host-gw, node by node, under {streams} streams of {RATE}/s"))?;
    let probe = screen.step("a packet of every stream has arrived", || cluster.probe(RATE))?;
    let mut flipped = Vec::new();
    for index in 0..cluster.size() {
        let node = cluster.describe(index)?;
        probe.run_for(PAUSE);
        probe.mark(&format!("flip {node}"));
        flipped.push(format!("{:?}", cluster.node(index)?.address(Family::V4)?.to_string()));
        let config = rollout(&flipped.join(", "));
        screen.block(&config)?;
        cluster.configure(&config)?;
        screen.step(&format!("{node} follows"), || cluster.wait_for_flip(index))?;
    }
    probe.run_for(PAUSE);
    probe.mark("all");
    screen.block(HOST_GW)?;
    cluster.configure(HOST_GW)?;
    // A path that stays wrong is part of the result, in addition to lost packets.
    screen.step("paths are there", || cluster.wait_for(|from, to| end(cluster, from, to))).ok();
    probe.run_for(PAUSE);
    screen.step("packets under way arrive", || probe.finish())
}

/// To host-gw, for `nodes` only.
fn rollout(nodes: &str) -> String {
    let rollout = format!(r#""Rollout":{{"From":{{"Type":"vxlan"}},"Nodes":[{nodes}]}}"#);
    let rest = HOST_GW.strip_suffix('}').unwrap_or(HOST_GW);
    format!("{rest},{rollout}}}")
}

fn show_end(
    report: &Report,
    paths: &Matrix<Path>,
    cluster: &Cluster,
    screen: &mut Screen,
) -> Result<()> {
    screen.heading("What it cost, and the paths now")?;
    screen.block(report)?;
    screen.block(cluster.leases()?)?;
    show_paths(paths, cluster, screen)
}

fn show_paths(paths: &Matrix<Path>, cluster: &Cluster, screen: &mut Screen) -> Result<()> {
    screen.block("paths (row to column)")?;
    screen.block(paths)?;
    screen.block("pings between pods")?;
    screen.block(cluster.pings()?)
}

fn judge(
    cluster: &Cluster,
    report: &Report,
    paths: &Matrix<Path>,
    screen: &mut Screen,
) -> Result<ExitCode> {
    screen.heading("Result")?;
    let total = report.total();
    let (lost, sent) = (total.lost, total.sent);
    let verdict = if lost == 0 { ProbeVerdict::Good } else { ProbeVerdict::Bad };
    screen.verdict(verdict, &format!("{lost} of {sent} packets lost"))?;
    let cells = paths.cells();
    let wrong: Vec<_> = cells.filter(|(from, to, is)| end(cluster, from, to) != **is).collect();
    for (from, to, is) in &wrong {
        screen.verdict(ProbeVerdict::Bad, &format!("{from} → {to} takes the wrong path: {is}"))?;
    }
    if wrong.is_empty() {
        let text = "direct on the segment, a tunnel to the node behind the router";
        screen.verdict(ProbeVerdict::Good, text)?;
    }
    let good = lost == 0 && wrong.is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The expected path at the end.
fn end(cluster: &Cluster, from: &str, to: &str) -> Path {
    if cluster.are_adjacent(from, to) { Path::Direct } else { Path::Tunnel }
}
