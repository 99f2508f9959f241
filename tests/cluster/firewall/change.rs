//! From one firewall to the other, and from flanneld's rules to tweed's, without packet loss.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Family, eventually, install, source_seen};

use crate::fixture::ask::{is_ready, is_waiting_for, json, tweedctl};
use crate::fixture::cluster::{PATIENCE, Stack};
use crate::fixture::peer::Peer;
use crate::fixture::scene::{BY_IPTABLES, BY_NFTABLES, Iptables, PORT, Scene};
use crate::fixture::table::{HOST_GW, VXLAN};

/// The pause between two changes on a node.
const A_WHILE: Duration = Duration::from_millis(500);

/// The rules on node 1, tweed's and flannel's, by characteristic text.
fn found(scene: &Scene) -> Result<Vec<&'static str>> {
    let run = |program: &str, words: &[&str]| scene.node().namespace().run(program, words);
    let tables = run("nft", &["list", "tables"])?;
    let legacy = run("iptables-legacy-save", &[])? + &run("ip6tables-legacy-save", &[])?;
    let nft = run("iptables-nft-save", &[])? + &run("ip6tables-nft-save", &[])?;
    let words = [
        (&tables, "table ip tweed.1", "our table"),
        (&tables, "table ip tweed-source.1", "our table of sources"),
        (&tables, "table ip flannel-ipv4", "flannel's table"),
        (&tables, "table ip6 flannel-ipv6", "flannel's table of IPv6"),
        (&nft, "FLANNEL-POSTRTG", "masquerading by iptables"),
        (&nft, "FLANNEL-FWD", "forwarding by iptables"),
        (&legacy, "FLANNEL-POSTRTG", "masquerading by the legacy iptables"),
        (&legacy, "FLANNEL-FWD", "forwarding by the legacy iptables"),
    ];
    let found = words.into_iter().filter(|(text, word, _)| text.contains(word));
    Ok(found.map(|(.., name)| name).collect())
}

const OURS_BY_NFTABLES: &[&str] = &["our table"];
const OURS_BY_IPTABLES: &[&str] =
    &["our table of sources", "masquerading by iptables", "forwarding by iptables"];

fn has_only(scene: &Scene, rules: &[&str]) -> Result<()> {
    eventually(PATIENCE, || {
        let found = found(scene)?;
        ensure!(found == rules, "{found:?}, not {rules:?}");
        Ok(())
    })
    .map(drop)
}

/// Former rules are removed a moment after the present ones are there.
fn wait_for_no_difference(scene: &Scene) -> Result<()> {
    let is_equal = || {
        let diff = tweedctl(scene.node(), &["diff"])?;
        ensure!(diff.status.success(), "{diff:?}");
        Ok(())
    };
    eventually(PATIENCE, is_equal).map(drop)
}

#[test]
fn a_change_of_firewall_disturbs_no_new_flow() {
    let mut scene = Scene::start(Stack::V4, VXLAN, BY_NFTABLES).unwrap();
    let flows = scene.flows_to_world().unwrap();
    for _ in 0..3 {
        scene.restart_with(BY_IPTABLES).unwrap();
        has_only(&scene, OURS_BY_IPTABLES).unwrap();
        sleep(A_WHILE);
        scene.restart_with(BY_NFTABLES).unwrap();
        has_only(&scene, OURS_BY_NFTABLES).unwrap();
        sleep(A_WHILE);
    }
    let tally = scene.all_came_from_the_node(flows).unwrap();
    println!("{} flows", tally.sent);
    assert!(tally.sent > 1000, "{tally:?}");
}

/// Rules that flanneld may have left on a host.
#[derive(Clone, Copy, Debug)]
enum Left {
    Rules(Iptables),
    Tables,
}

fn take_over(left: Left, flags: &[&str], ours: &[&str]) -> Result<()> {
    let mut scene = Scene::start(Stack::V4, VXLAN, &[])?;
    scene.cluster.daemons.iter().try_for_each(|daemon| daemon.stop().map(drop))?;
    match left {
        Left::Rules(kind) => scene.write_flannels_rules(kind)?,
        Left::Tables => scene.write_flannels_tables()?,
    }
    let others = ["-t", "nat", "-A", "POSTROUTING", "-s", "198.51.100.0/24", "-j", "ACCEPT"];
    scene.node().namespace().run("iptables", &others)?;
    let flows = scene.flows_to_world()?;
    sleep(A_WHILE);
    scene.restart_with(flags)?;
    has_only(&scene, ours)?;
    sleep(A_WHILE);
    let tally = scene.all_came_from_the_node(flows)?;
    println!("{left:?}, {flags:?}: {} flows", tally.sent);
    let kept = scene.node().namespace().run("iptables-save", &["-t", "nat"])?;
    ensure!(kept.contains("-s 198.51.100.0/24 -j ACCEPT"), "{kept}");
    Ok(())
}

#[test]
fn a_takeover_of_flannel_rules_by_nftables_disturbs_no_new_flow() {
    for left in [Left::Rules(Iptables::Nft), Left::Rules(Iptables::Legacy), Left::Tables] {
        take_over(left, BY_NFTABLES, OURS_BY_NFTABLES).unwrap();
    }
}

#[test]
fn a_takeover_of_flannel_rules_by_iptables_disturbs_no_new_flow() {
    for left in [Left::Rules(Iptables::Nft), Left::Rules(Iptables::Legacy), Left::Tables] {
        take_over(left, BY_IPTABLES, OURS_BY_IPTABLES).unwrap();
    }
}

#[test]
fn removed_iptables_rules_are_restored_within_a_resync() {
    let scene = Scene::start(Stack::Dual, HOST_GW, BY_IPTABLES).unwrap();
    let run = |line: &str| {
        let (program, words) = line.split_once(' ').unwrap();
        scene.node().namespace().run(program, &words.split(' ').collect::<Vec<_>>())
    };
    let listed = || -> Result<Vec<String>> {
        let both = [run("iptables-save -t nat")? + &run("iptables-save -t filter")?];
        let both = both.into_iter().chain([run("ip6tables-save -t nat")?]);
        let rules = |text: String| {
            text.lines()
                .filter(|line| line.starts_with("-A"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        Ok(both.flat_map(rules).collect())
    };
    let before = listed().unwrap();
    assert_eq!(before.len(), 7 + 3 + 7, "{before:#?}");
    for blow in [
        &["iptables -F"][..],
        &["iptables -t nat -F"],
        &["ip6tables -t nat -D FLANNEL-POSTRTG 3"],
        &["iptables -t nat -I FLANNEL-POSTRTG -j ACCEPT"],
        // As firewalld and others do on reload.
        &["iptables -t nat -F", "iptables -t nat -X", "iptables -F", "iptables -X"],
        &["nft flush ruleset"],
    ] {
        for line in blow {
            let done = run(line);
            // The daemon may have restored a chain meanwhile.
            assert!(done.is_ok() || line.ends_with("-X"), "{done:?}");
        }
        let back = eventually(PATIENCE, || {
            let now = listed()?;
            ensure!(now == before, "{blow:?}: {now:#?}");
            Ok(())
        });
        println!("{blow:?}: back after {:.1?}", back.unwrap());
    }
    eventually(PATIENCE, || is_ready(&scene.cluster.daemons[0])).unwrap();
}

#[test]
fn a_node_reports_its_firewall_and_cleans_up_all_rules() {
    let scene = Scene::start(Stack::Dual, HOST_GW, BY_IPTABLES).unwrap();
    let daemon = &scene.cluster.daemons[0];
    let status = json(daemon, "status").unwrap();
    assert_eq!(status["firewall"]["name"], "iptables", "{status}");
    let tables = status["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 6, "{status}");
    assert!(tables.iter().all(|table| table["programmed"] == true), "{status}");
    let log = daemon.log().unwrap();
    let reported = "masquerading firewall=\"iptables\" reason=\"--iptables requests it\"";
    assert_eq!(log.matches(reported).count(), 1, "{log}");
    let metrics = daemon.get("/metrics").unwrap().body;
    assert!(metrics.contains("tweed_firewall{firewall=\"iptables\"} 1"), "{metrics}");
    wait_for_no_difference(&scene).unwrap();
    scene.cluster.daemons[0].stop().unwrap();
    // Rules of flanneld that accept packets are removed too, even if packets are then dropped.
    scene.write_flannels_rules(Iptables::Legacy).unwrap();
    scene.node().namespace().run("iptables-legacy", &["-P", "FORWARD", "DROP"]).unwrap();
    let cleanup = tweedctl(scene.node(), &["cleanup", "--yes"]).unwrap();
    assert!(cleanup.status.success(), "{cleanup:?}");
    has_only(&scene, &[]).unwrap();
}

#[test]
fn without_iptables_programs_routes_work_and_the_node_names_them() {
    let mut scene = Scene::start(Stack::V4, HOST_GW, &[]).unwrap();
    scene.cluster.daemons[0].stop().unwrap();
    scene.write_flannels_rules(Iptables::Nft).unwrap();
    scene.node().ip("nexthop flush proto 241").unwrap();
    let subnet = scene.cluster.subnet(1, Family::V4).unwrap();
    assert_eq!(scene.node().path_to(subnet).unwrap(), tweed_lab::Path::None);
    let plan = scene.node().daemon(&scene.cluster.etcd).environment("PATH", "/nowhere");
    let plan = BY_IPTABLES.iter().fold(plan, |plan, flag| plan.argument(*flag));
    scene.cluster.daemons[0] = plan.start().unwrap();
    let daemon = &scene.cluster.daemons[0];
    let words = "iptables-nft-save is not installed: install the package iptables";
    eventually(PATIENCE, || is_waiting_for(daemon, words)).unwrap();
    let is_direct = || scene.node().path_to(subnet).map(|path| path == tweed_lab::Path::Direct);
    eventually(PATIENCE, is_direct).unwrap();
    // Further attempts follow after 0.1 s, 0.2 s and so on.
    sleep(Duration::from_secs(2));
    logs_nothing_twice(&daemon.log().unwrap()).unwrap();
    // With nftables it can masquerade, and needs no program to remove flanneld's rules.
    daemon.stop().unwrap();
    let plan = scene.node().daemon(&scene.cluster.etcd).environment("PATH", "/nowhere");
    scene.cluster.daemons[0] = plan.argument("--ip-masq").start().unwrap();
    let daemon = &scene.cluster.daemons[0];
    has_only(&scene, OURS_BY_NFTABLES).unwrap();
    eventually(PATIENCE, || is_ready(daemon)).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    let target = (scene.world.address(Family::V4).unwrap(), PORT).into();
    let source = source_seen((pod, None), world, target).unwrap();
    assert_eq!(source, scene.node().address(Family::V4).unwrap());
}

/// Programs of iptables that hang, in their own folder. Each writes its process id there.
struct Hanging(PathBuf);

impl Hanging {
    fn install(folder: PathBuf) -> Result<Self> {
        fs::create_dir(&folder)?;
        for verb in ["save", "restore"] {
            let program = folder.join(format!("iptables-nft-{verb}"));
            let number = folder.join("number");
            let script = format!("#!/bin/sh\necho $$ >{}\nexec sleep 600\n", number.display());
            install(script, &program)?;
        }
        Ok(Self(folder))
    }

    /// The running program.
    fn running(&self) -> Result<u32> {
        let number = fs::read_to_string(self.0.join("number"))?.trim().parse()?;
        let line = fs::read_to_string(format!("/proc/{number}/cmdline"))?;
        ensure!(line.contains("sleep"), "{number} has ended: {line:?}");
        Ok(number)
    }
}

#[test]
fn iptables_programs_that_hang_delay_no_route() {
    let mut scene = Scene::start(Stack::V4, VXLAN, &[]).unwrap();
    scene.cluster.daemons[0].stop().unwrap();
    let hanging = Hanging::install(scene.node().folder().join("hanging")).unwrap();
    let path = format!("{}:/usr/bin:/bin", hanging.0.display());
    let plan = scene.node().daemon(&scene.cluster.etcd).environment("PATH", path);
    let plan = BY_IPTABLES.iter().fold(plan, |plan, flag| plan.argument(*flag));
    scene.cluster.daemons[0] = plan.start().unwrap();
    let words = "iptables-nft-save did not end within 10 s";
    eventually(PATIENCE, || is_waiting_for(&scene.cluster.daemons[0], words)).unwrap();
    // A program may time out just when a peer joins, but not each time.
    let is_routed_meanwhile = |number| {
        let peer = Peer::numbered(number);
        eventually(PATIENCE, || hanging.running().map(drop)).unwrap();
        let before = hanging.running();
        peer.join(&scene.cluster.etcd).unwrap();
        eventually(PATIENCE, || peer.is_tunnelled_by(scene.node())).unwrap();
        matches!((before, hanging.running()), (Ok(before), Ok(after)) if before == after)
    };
    assert!((1..=5).any(is_routed_meanwhile), "every route waited until a program was ended");
}

/// Repeated attempts are logged once.
fn logs_nothing_twice(log: &str) -> Result<()> {
    let messages = log.lines().filter_map(|line| line.split_once(' ')).map(|(_, message)| message);
    let messages: Vec<_> = messages.filter(|it| it.contains("not installed")).collect();
    let different: BTreeSet<_> = messages.iter().collect();
    ensure!(!messages.is_empty() && different.len() == messages.len(), "{log}");
    Ok(())
}

#[test]
fn pods_that_only_a_chain_of_flanneld_lets_through_are_not_cut_off() {
    let mut scene = Scene::start(Stack::V4, HOST_GW, &[]).unwrap();
    scene.cluster.daemons[0].stop().unwrap();
    scene.write_flannels_rules(Iptables::Nft).unwrap();
    scene.node().namespace().run("iptables", &["-P", "FORWARD", "DROP"]).unwrap();
    scene.restart_with(BY_NFTABLES).unwrap();
    has_only(&scene, &["our table", "forwarding by iptables"]).unwrap();
    eventually(PATIENCE, || is_ready(&scene.cluster.daemons[0])).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    let target = (scene.world.address(Family::V4).unwrap(), PORT).into();
    let source = || source_seen((pod, None), world, target).unwrap();
    let node = scene.node().address(Family::V4).unwrap();
    assert_eq!(source(), node);
    wait_for_no_difference(&scene).unwrap();
    scene.restart_with(BY_IPTABLES).unwrap();
    has_only(&scene, OURS_BY_IPTABLES).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    assert_eq!(source_seen((pod, None), world, target).unwrap(), node);
}

#[test]
fn without_masquerading_iptables_still_lets_packets_of_pods_through() {
    let scene = Scene::start(Stack::V4, HOST_GW, &["--iptables"]).unwrap();
    scene.node().namespace().run("iptables", &["-P", "FORWARD", "DROP"]).unwrap();
    has_only(&scene, &["forwarding by iptables"]).unwrap();
    let ping = || scene.pods[0].ping(scene.pods[1].address(Family::V4).unwrap(), 56);
    eventually(PATIENCE, ping).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    let target = (scene.world.address(Family::V4).unwrap(), PORT).into();
    let pod_itself = scene.pods[0].address(Family::V4).unwrap();
    assert_eq!(source_seen((pod, None), world, target).unwrap(), pod_itself);
    scene.cluster.daemons[0].stop().unwrap();
    scene.node().namespace().run("iptables", &["-F", "FLANNEL-FWD"]).unwrap();
    assert!(ping().is_err(), "nothing else lets them through");
}
