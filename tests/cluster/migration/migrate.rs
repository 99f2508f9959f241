//! A live cluster moves to another backend and back by `tweedctl migrate`, while others interfere.

use std::fs;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tweed_lab::{DaemonPlan, Family, Node, Path, Probe, eventually};

use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack, binaries};
use crate::fixture::table::{VXLAN as ON_VXLAN, VXLAN_MIXED};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 500;
const VXLAN: &str = r#"{ "Network": "10.244.0.0/16", "Owner": "net team",
  "Backend": { "VNI": 1, "Type": "vxlan" } }"#;

/// Runs `tweedctl migrate` on one node; returns the exit code and the output.
fn migrate(cluster: &Cluster, node: usize, line: &str) -> Result<(i32, String)> {
    let output = run(cluster, &cluster.nodes[node], line)?;
    let (text, error) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    println!("# tweedctl migrate {line}\n{text}{error}");
    let wide = text.lines().find(|line| line.chars().count() > 80);
    ensure!(wide.is_none(), "wider than 80 columns: {wide:?}");
    Ok((output.status.code().context("ended by a signal")?, text + &error))
}

fn run(cluster: &Cluster, node: &Node, line: &str) -> Result<Output> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let words: Vec<&str> = ["migrate", &endpoints].into_iter().chain(line.split(' ')).collect();
    node.tweedctl(&words)
}

/// As [`migrate`]; it must succeed.
pub fn done(cluster: &Cluster, line: &str) -> Result<String> {
    let (code, text) = migrate(cluster, 0, line)?;
    ensure!(code == 0, "{line}: {code} {text}");
    Ok(text)
}

/// As [`done`]; it must print what the document shows for this command line.
fn as_documented(cluster: &Cluster, line: &str) -> Result<()> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/migration.md");
    let page = std::fs::read_to_string(page)?;
    let (_, behind) = page
        .split_once(&format!("\n$ tweedctl migrate {line}\n"))
        .with_context(|| format!("no transcript of {line}"))?;
    let documented = behind.split("\n```").next().unwrap_or_default();
    let printed = done(cluster, line)?;
    let (documented, lines) = (stable(documented), stable(&printed));
    ensure!(documented == lines, "documented: {documented:#?}\nprinted: {lines:#?}");
    Ok(())
}

/// The words of each line; the lab's nodes do not masquerade, of which the last lines of a plan warn.
fn stable(printed: &str) -> Vec<String> {
    let lines = printed.lines().take_while(|line| !line.starts_with("NAT "));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn json(cluster: &Cluster, line: &str) -> Result<Value> {
    let output = run(cluster, &cluster.nodes[0], &format!("{line} -o json"))?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))
}

fn config(cluster: &Cluster) -> Result<String> {
    Ok(cluster.etcd.get(CONFIG)?.context("no config")?.value)
}

/// Three nodes on a segment and `far` behind a router, on vxlan, with pods.
fn start(far: usize) -> Result<Cluster> {
    start_as(&ClusterPlan::new(3, VXLAN).far(far))
}

fn start_as(plan: &ClusterPlan) -> Result<Cluster> {
    let cluster = plan.start()?;
    cluster.start_pods()?;
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    wait_for_reports(&cluster)?;
    Ok(cluster)
}

/// A node without a report counts as a flannel node.
pub fn wait_for_reports(cluster: &Cluster) -> Result<()> {
    eventually(PATIENCE, || {
        let reporting = json(cluster, "status")?["reporting"].clone();
        ensure!(reporting == cluster.nodes.len(), "{reporting} nodes report");
        Ok(())
    })
    .map(drop)
}

fn probe(cluster: &Cluster) -> Result<Probe> {
    let families = cluster.stack.families().iter();
    let pairs: Vec<_> = families.flat_map(|family| cluster.lab.pairs(*family)).collect();
    cluster.lab.probe(&pairs, RATE)
}

pub fn nothing_lost(probe: Probe) -> Result<()> {
    let report = probe.finish()?;
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    Ok(())
}

/// Waits for direct paths between adjacent nodes if one of the two has followed.
pub fn follow(cluster: &Cluster, followers: &[usize]) -> Result<Duration> {
    let far = |index: usize| cluster.router.is_some() && index + 1 == cluster.nodes.len();
    cluster.wait_for_paths(|from, to| {
        let follows = followers.contains(&from) || followers.contains(&to);
        if follows && far(from) == far(to) { Path::Direct } else { Path::Tunnel }
    })
}

#[test]
fn a_live_cluster_moves_stage_by_stage_and_back_without_a_lost_packet() {
    let cluster = start(0).unwrap();
    let canary = cluster.nodes[0].address(Family::V4).unwrap();
    let probe = probe(&cluster).unwrap();
    // At first, not all nodes have reported what their probes found.
    eventually(PATIENCE, || as_documented(&cluster, "plan --to host-gw")).unwrap();
    let start = format!("start --to host-gw --canary {canary} --hold 3s");
    done(&cluster, &start).unwrap();
    follow(&cluster, &[0]).unwrap();
    done(&cluster, "status").unwrap();
    done(&cluster, "next --percent 100 --hold 2s").unwrap();
    follow(&cluster, &[0, 1, 2]).unwrap();
    done(&cluster, "rollback --one-stage").unwrap();
    follow(&cluster, &[0]).unwrap();
    done(&cluster, "next --percent 100").unwrap();
    let printed = done(&cluster, "finish").unwrap();
    for node in &cluster.nodes {
        let address = node.address(Family::V4).unwrap();
        let kept = format!("{address}: new pods get MTU 1500; these keep theirs: pod1 (1450)");
        assert!(printed.contains(&kept), "{printed}");
    }
    follow(&cluster, &[0, 1, 2]).unwrap();
    let finished = r#""Backend": { "VNI": 1, "Type": "host-gw" } }"#;
    assert!(config(&cluster).unwrap().ends_with(finished), "{}", config(&cluster).unwrap());

    done(&cluster, "start --to vxlan --percent 100").unwrap();
    follow(&cluster, &[]).unwrap();
    let printed = done(&cluster, "finish").unwrap();
    assert!(!printed.contains("MTU"), "{printed}");
    assert_eq!(config(&cluster).unwrap(), VXLAN);
    probe.run_for(Duration::from_millis(500));
    nothing_lost(probe).unwrap();
}

#[test]
fn rollback_during_a_migration_restores_the_cluster() {
    let cluster = start(1).unwrap();
    let probe = probe(&cluster).unwrap();
    eventually(PATIENCE, || {
        let plan = json(&cluster, "plan --to host-gw")?;
        let then = ["direct", "tunnel", "none"].map(|path| plan["then"][path].clone());
        ensure!(then == [6, 6, 0], "{plan}");
        Ok(())
    })
    .unwrap();
    done(&cluster, "start --to host-gw --percent 100").unwrap();
    follow(&cluster, &[0, 1, 2, 3]).unwrap();
    done(&cluster, "rollback").unwrap();
    follow(&cluster, &[]).unwrap();
    done(&cluster, "finish").unwrap();
    assert_eq!(config(&cluster).unwrap(), VXLAN);
    nothing_lost(probe).unwrap();
}

#[test]
fn mixed_stays_on_across_a_router() {
    let cluster = start(1).unwrap();
    done(&cluster, "start --to host-gw --percent 100").unwrap();
    let printed = done(&cluster, "finish").unwrap();
    assert!(printed.contains("Mixed stays on"), "{printed}");
    follow(&cluster, &[0, 1, 2, 3]).unwrap();
    let config = config(&cluster).unwrap();
    assert!(config.contains("\"Mixed\": true") && !config.contains("Rollout"), "{config}");
}

#[test]
fn concurrent_operators_write_a_stage_once() {
    let cluster = start(0).unwrap();
    done(&cluster, "start --to host-gw --percent 1").unwrap();
    let go_on = |node| migrate(&cluster, node, "next --percent 70");
    let codes = std::thread::scope(|scope| {
        let others: Vec<_> = (0..3).map(|node| scope.spawn(move || go_on(node))).collect();
        others.into_iter().map(|it| it.join().unwrap().unwrap().0).collect::<Vec<_>>()
    });
    assert!(codes.contains(&0) && codes.iter().all(|code| [0, 5].contains(code)), "{codes:?}");
    let status = json(&cluster, "status").unwrap();
    let stages = status["stages"].as_array().unwrap();
    let percents: Vec<_> = stages.iter().map(|stage| stage["Percent"].as_u64().unwrap()).collect();
    assert!(percents.len() == 2 && percents[0] < percents[1], "{percents:?} {codes:?}");
    assert_eq!(status["following"], 2, "{status}");
}

#[test]
fn a_migration_continues_by_etcdctl_and_back() {
    let cluster = start(0).unwrap();
    let canary = cluster.nodes[1].address(Family::V4).unwrap();
    done(&cluster, &format!("start --to host-gw --canary {canary}")).unwrap();
    follow(&cluster, &[1]).unwrap();
    done(&cluster, "pause").unwrap();
    let (code, printed) = migrate(&cluster, 2, "next").unwrap();
    assert!(code == 3 && printed.contains("paused by"), "{code} {printed}");

    let text = config(&cluster).unwrap().replacen("\"Percent\":0", "\"Percent\":100", 1);
    cluster.etcd.put(CONFIG, &text).unwrap();
    follow(&cluster, &[0, 1, 2]).unwrap();
    let (code, printed) = migrate(&cluster, 2, "finish").unwrap();
    assert_eq!(code, 0, "{printed}");
    assert!(!config(&cluster).unwrap().contains("Rollout"));
    done(&cluster, "finish").unwrap();
}

#[test]
fn a_node_that_does_not_follow_is_named_and_waited_for() {
    let cluster = start(0).unwrap();
    let late = cluster.nodes[2].address(Family::V4).unwrap().to_string();
    let is_named = || {
        // If its probes blocked the stage first, once more.
        cluster.daemons[2].thaw()?;
        let plan = json(&cluster, "plan --to host-gw")?;
        ensure!(plan["obstacles"].as_array().is_some_and(Vec::is_empty), "{plan}");
        cluster.daemons[2].freeze()?;
        let (code, printed) = migrate(&cluster, 0, "start --to host-gw --timeout 4s")?;
        ensure!(code == 6 && printed.contains(&late), "{code} {printed}");
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
    assert!(
        !config(&cluster).unwrap().contains("host-gw"),
        "it continued before all nodes could receive"
    );
    cluster.daemons[2].thaw().unwrap();
    // Probes that were lost while it was stopped block the stage until others are answered.
    let start = || done(&cluster, "start --to host-gw --percent 100").map(drop);
    eventually(PATIENCE, start).unwrap();
    follow(&cluster, &[0, 1, 2]).unwrap();
}

#[test]
fn next_to_a_daemon_no_flag_names_the_store() {
    let cluster = start(0).unwrap();
    let have_reported = || {
        let output = cluster.nodes[1].tweedctl(&["migrate", "status", "-o", "json"])?;
        let status: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(status["reporting"] == 3, "{output:?}");
        Ok(())
    };
    eventually(PATIENCE, have_reported).unwrap();
    // Other servers are not asked with the credentials of the daemon.
    let other = ["migrate", "status", "--etcd-endpoints=http://127.0.0.1:9"];
    let output = cluster.nodes[1].tweedctl(&other).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn without_etcd_one_sentence_reports_that() {
    let mut cluster = start(0).unwrap();
    cluster.etcd.stop().unwrap();
    let (code, printed) = migrate(&cluster, 0, "status").unwrap();
    assert!(code == 1 && printed.contains("--etcd-endpoints"), "{code} {printed}");
}

#[test]
fn flannel_nodes_prevent_a_migration_without_force() {
    let cluster = start(0).unwrap();
    let lease = r#"{"PublicIP":"10.99.1.200","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:c8"}}"#;
    cluster.etcd.put("/coreos.com/network/subnets/10.244.200.0-24", lease).unwrap();
    let (code, printed) = migrate(&cluster, 0, "start --to host-gw").unwrap();
    assert!(code == 3 && printed.contains("10.99.1.200 sends no report"), "{code} {printed}");
    done(&cluster, "start --to host-gw --percent 100 --force").unwrap();
}

/// What a cloud network drops if it knows the addresses of its machines.
const FOREIGN: &str = "ip saddr 10.244.0.0/16";

#[test]
fn both_families_move_and_return_without_a_lost_packet() {
    let plan = ClusterPlan::new(3, &Stack::Dual.config(&ON_VXLAN.config())).stack(Stack::Dual);
    let cluster = start_as(&plan).unwrap();
    let (before, probe) = (config(&cluster).unwrap(), probe(&cluster).unwrap());
    eventually(PATIENCE, || {
        let plan = json(&cluster, "plan --to host-gw")?;
        ensure!(plan["now"]["tunnel"] == 12 && plan["then"]["direct"] == 12, "{plan}");
        Ok(())
    })
    .unwrap();
    let canary = cluster.nodes[2].address(Family::V6).unwrap();
    done(&cluster, &format!("start --to host-gw --canary {canary}")).unwrap();
    follow(&cluster, &[2]).unwrap();
    done(&cluster, "next --percent 100").unwrap();
    follow(&cluster, &[0, 1, 2]).unwrap();
    done(&cluster, "finish").unwrap();
    done(&cluster, "start --to vxlan --percent 100").unwrap();
    follow(&cluster, &[]).unwrap();
    done(&cluster, "finish").unwrap();
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (now, mut before) = (read(&config(&cluster).unwrap()), read(&before));
    before.as_object_mut().unwrap().remove("Mixed");
    assert_eq!(now, before);
    nothing_lost(probe).unwrap();
}

#[test]
fn a_watched_status_shows_every_stage() {
    let cluster = start(0).unwrap();
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let words = ["migrate", &endpoints, "status", "--watch"];
    let plan = DaemonPlan::program(&cluster.nodes[1], binaries().tweedctl);
    let watch = words.into_iter().fold(plan, DaemonPlan::argument).start().unwrap();
    let shows = |word: &str| {
        eventually(PATIENCE, || {
            // The daemon of the node writes to the same log.
            let log = watch.log()?;
            let pictures = log.rsplit("migration ").next().unwrap_or_default();
            ensure!(pictures.contains(word), "{word} is not in {pictures}");
            Ok(())
        })
    };
    shows("0 direct, 6 by tunnel").unwrap();
    let canary = cluster.nodes[0].address(Family::V4).unwrap();
    done(&cluster, &format!("start --to host-gw --canary {canary}")).unwrap();
    shows("4 direct, 2 by tunnel").unwrap();
    done(&cluster, "next --percent 100").unwrap();
    shows("3 of 3; applied on 3 of 3 nodes").unwrap();
    done(&cluster, "rollback").unwrap();
    shows("0 direct, 6 by tunnel").unwrap();
    assert!(watch.process().is_running());
}

#[test]
fn an_edit_that_races_a_stage_is_kept_and_reported() {
    let cluster = start(0).unwrap();
    let probe = probe(&cluster).unwrap();
    done(&cluster, "start --to host-gw --percent 1").unwrap();
    let (code, printed) = std::thread::scope(|scope| {
        let before = config(&cluster).unwrap();
        let held = scope.spawn(|| migrate(&cluster, 1, "next --percent 70 --hold 60s"));
        let written = || {
            ensure!(config(&cluster)? != before, "no new stage");
            Ok(())
        };
        eventually(PATIENCE, written).unwrap();
        let text = config(&cluster).unwrap();
        let edited = text.replacen("net team", "another team", 1);
        assert_ne!(text, edited);
        cluster.etcd.put(CONFIG, &edited).unwrap();
        held.join().unwrap().unwrap()
    });
    // Before or after the command has read what it wrote.
    let stops = ["stops observing", "replaced at once"].iter().any(|it| printed.contains(it));
    assert!(code == 5 && stops, "{code} {printed}");
    done(&cluster, "next --percent 100").unwrap();
    follow(&cluster, &[0, 1, 2]).unwrap();
    done(&cluster, "finish").unwrap();
    assert!(config(&cluster).unwrap().contains("another team"));
    nothing_lost(probe).unwrap();
}

#[test]
fn where_foreign_sources_are_dropped_the_plan_reports_it_and_no_node_changes() {
    let cluster = ClusterPlan::new(3, &Stack::V4.config(&VXLAN_MIXED.config())).build().unwrap();
    let mut cluster = cluster;
    cluster.segment.filter(FOREIGN).unwrap();
    cluster.start_daemons().unwrap();
    cluster.start_pods().unwrap();
    let probe = probe(&cluster).unwrap();
    let printed = "its direct path fails: probes through the tunnel are answered";
    eventually(PATIENCE, || {
        let plan = json(&cluster, "plan --to host-gw")?;
        let obstacles = plan["obstacles"].as_array().context("no obstacles")?;
        ensure!(obstacles.len() == 6 && plan["then"]["direct"] == 0, "{plan}");
        ensure!(obstacles.iter().all(|it| it.to_string().contains(printed)), "{plan}");
        Ok(())
    })
    .unwrap();
    let (code, text) = migrate(&cluster, 0, "start --to host-gw").unwrap();
    // Of six pairs, the four of the node that would change.
    assert!(code == 3 && text.contains("blocked by 4 problems"), "{code} {text}");
    let (code, text) = migrate(&cluster, 0, "start --to host-gw --percent 100 --force").unwrap();
    assert!(code == 4 && text.contains("by tunnel"), "{code} {text}");
    follow(&cluster, &[]).unwrap();
    let (code, text) = migrate(&cluster, 0, "finish").unwrap();
    assert!(code == 0 && text.contains("Mixed stays on"), "{code} {text}");
    follow(&cluster, &[]).unwrap();
    nothing_lost(probe).unwrap();
}

/// What the end of an ssh session to the node sends to the commands that observe a stage.
fn hang_up(node: &Node) -> Result<()> {
    // Clusters of other tests run next to this one.
    let socket = format!("\0--socket={}\0", node.subnet_file().with_extension("sock").display());
    let is_one = |process: &std::path::Path| -> Option<bool> {
        let line = fs::read_to_string(process.join("cmdline")).ok()?;
        Some(line.contains(&socket) && line.contains("\0--auto-rollback"))
    };
    let all = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
    let found = all
        .filter(|process| is_one(process) == Some(true))
        .filter_map(|process| process.file_name()?.to_str()?.parse().ok());
    let found: Vec<i32> = found.collect();
    ensure!(!found.is_empty(), "no command observes a stage");
    found.iter().try_for_each(|process| kill(Pid::from_raw(*process), Signal::SIGHUP))?;
    Ok(())
}

#[test]
fn where_foreign_sources_are_dropped_later_the_stage_is_rolled_back() {
    let cluster = start(0).unwrap();
    let canary = cluster.nodes[0].address(Family::V4).unwrap();
    done(&cluster, &format!("start --to host-gw --canary {canary}")).unwrap();
    follow(&cluster, &[0]).unwrap();
    let probe = probe(&cluster).unwrap();
    let (code, printed) = std::thread::scope(|scope| {
        let line = "next --percent 100 --hold 60s --auto-rollback";
        let stage = scope.spawn(|| migrate(&cluster, 1, line));
        follow(&cluster, &[0, 1, 2]).unwrap();
        hang_up(&cluster.nodes[1]).unwrap();
        probe.mark("dropped");
        cluster.segment.filter(FOREIGN).unwrap();
        stage.join().unwrap().unwrap()
    });
    assert!(code == 4 && printed.contains("its direct path fails"), "{code} {printed}");
    assert!(config(&cluster).unwrap().contains("\"Percent\":0"), "{}", config(&cluster).unwrap());
    // Even the canary is not reached directly.
    follow(&cluster, &[]).unwrap();
    probe.mark("by tunnel");
    probe.run_for(Duration::from_millis(500));
    let report = probe.finish().unwrap();
    println!("{report}\ncut off for {:.1?} at most", report.longest_outage());
    let lost = |stage: &str| report.stage(stage).unwrap().count.lost_by_network();
    assert_eq!(lost("start") + lost("by tunnel"), 0, "{report}");
    assert!(lost("dropped") > 0, "the filter filtered nothing");
}
