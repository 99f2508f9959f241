//! Hosts whose chain FORWARD drops by default, as after Docker or ufw: pods still have network.

use anyhow::{Result, ensure};
use tweed_lab::{Daemon, DaemonPlan, Family, Files, Node, Pod, Traffic, eventually};

use crate::fixture::ask::{is_ready, is_ready_with, tweedctl};
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::scene::{Iptables, network, write_flannels_rules};
use crate::fixture::table::{HOST_GW, VXLAN};

/// The flags of the shipped unit and manifests.
const FLAG: &str = "--ip-masq";

/// The environment of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// The programs of iptables are in its path.
    Host,
    /// The image contains no program but the daemon.
    Image,
}

/// When the host starts to drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drops {
    Before,
    After,
}

fn plan(cluster: &Cluster, node: &Node, from: From) -> DaemonPlan {
    let plan = node.daemon(&cluster.etcd).argument(FLAG);
    match from {
        From::Host => plan,
        From::Image => plan.environment("PATH", "/nowhere"),
    }
}

fn program(kind: Iptables, family: Family) -> String {
    let word = match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    };
    format!("{word}-{}", kind.as_str())
}

/// As Docker does it.
fn drop_forwarded(node: &Node, kind: Iptables) -> Result<()> {
    [Family::V4, Family::V6].into_iter().try_for_each(|family| {
        let words = ["-P", "FORWARD", "DROP"];
        node.namespace().run(&program(kind, family), &words).map(drop)
    })
}

/// All rules of this kind of iptables are gone.
fn lose_rules(node: &Node, kind: Iptables) -> Result<()> {
    for family in [Family::V4, Family::V6] {
        for words in ["-P FORWARD ACCEPT", "-F", "-X", "-t nat -F", "-t nat -X"] {
            let words: Vec<&str> = words.split(' ').collect();
            node.namespace().run(&program(kind, family), &words)?;
        }
    }
    node.namespace().run("nft", &["flush", "ruleset"]).map(drop)
}

/// Nodes without daemons.
fn nodes(stack: Stack) -> Result<Cluster> {
    ClusterPlan::new(2, &stack.config(&VXLAN.config())).stack(stack).build()
}

fn start(cluster: &mut Cluster, from: From) -> Result<()> {
    for node in &cluster.nodes[cluster.daemons.len()..] {
        let daemon = plan(cluster, node, from).start()?;
        daemon.wait_ready()?;
        cluster.daemons.push(daemon);
    }
    Ok(())
}

fn pods(cluster: &Cluster) -> Result<Vec<Pod>> {
    cluster.nodes.iter().map(Node::pod).collect()
}

fn reach_each_other(pods: &[Pod]) -> Result<()> {
    pods[0].families().into_iter().try_for_each(|family| {
        pods[0].ping(pods[1].address(family)?, 56)?;
        pods[1].ping(pods[0].address(family)?, 56)
    })
}

fn have_their_network(pods: &[Pod]) -> Result<()> {
    eventually(PATIENCE, || reach_each_other(pods)).map(drop)
}

/// The rules as the host's own tools list them.
fn are_listed(node: &Node, kind: Iptables, family: Family) -> Result<()> {
    let listing = node.namespace().run(&format!("{}-save", program(kind, family)), &[])?;
    let (network, comment) = (network(family), "-m comment --comment \"flanneld forward\"");
    let rules = [
        format!("-A FORWARD {comment} -j FLANNEL-FWD"),
        format!("-A FLANNEL-FWD -s {network} {comment} -j ACCEPT"),
        format!("-A FLANNEL-FWD -d {network} {comment} -j ACCEPT"),
    ];
    for rule in rules {
        let found = listing.lines().filter(|line| *line == rule).count();
        ensure!(found == 1, "{found} times {rule}: {listing}");
    }
    ensure!(listing.contains(":FORWARD DROP "), "the policy is another: {listing}");
    Ok(())
}

fn all_is_well(cluster: &Cluster, pods: &[Pod], kind: Iptables) -> Result<()> {
    have_their_network(pods)?;
    for (node, daemon) in cluster.nodes.iter().zip(&cluster.daemons) {
        eventually(PATIENCE, || is_ready(daemon))?;
        cluster.stack.families().iter().try_for_each(|family| are_listed(node, kind, *family))?;
        // Unneeded rules are removed a moment later.
        eventually(PATIENCE, || {
            let diff = tweedctl(node, &["diff"])?;
            ensure!(diff.status.success(), "{diff:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn fresh(kind: Iptables, from: From, drops: Drops) -> Result<()> {
    let mut cluster = nodes(Stack::Dual)?;
    let drop_all =
        |cluster: &Cluster| cluster.nodes.iter().try_for_each(|node| drop_forwarded(node, kind));
    if drops == Drops::Before {
        drop_all(&cluster)?;
    }
    start(&mut cluster, from)?;
    if drops == Drops::After {
        drop_all(&cluster)?;
    }
    let pods = pods(&cluster)?;
    all_is_well(&cluster, &pods, kind)?;
    // Docker and firewalls do this when they are restarted.
    for node in &cluster.nodes {
        node.namespace().run(&program(kind, Family::V4), &["-F", "FORWARD"])?;
    }
    all_is_well(&cluster, &pods, kind)?;
    // No rule of tweed remains, and the host has its rules of before.
    cluster.daemons.iter().try_for_each(|daemon| daemon.stop().map(drop))?;
    let cleanup = tweedctl(&cluster.nodes[0], &["cleanup", "--yes"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    let listing =
        cluster.nodes[0].namespace().run(&format!("{}-save", program(kind, Family::V4)), &[])?;
    ensure!(!listing.contains("FLANNEL"), "{listing}");
    ensure!(listing.contains(":FORWARD DROP "), "{listing}");
    Ok(())
}

/// Starts from flanneld's rules, which accept packets of pods, with packets under way.
fn after_a_take_over(kind: Iptables, from: From) -> Result<()> {
    let mut cluster = nodes(Stack::Dual)?;
    start(&mut cluster, from)?;
    let pods = pods(&cluster)?;
    have_their_network(&pods)?;
    for (index, node) in cluster.nodes.iter().enumerate() {
        cluster.daemons[index].stop()?;
        for family in cluster.stack.families() {
            let subnet = cluster.subnet(index, *family)?;
            let subnet = ipnetwork::IpNetwork::new(subnet.network(), subnet.prefix())?;
            write_flannels_rules(node, kind, network(*family), subnet)?;
        }
        node.namespace().run("nft", &["delete", "table", "ip", "tweed.1"])?;
        drop_forwarded(node, kind)?;
    }
    have_their_network(&pods)?;
    let pairs: Vec<_> =
        cluster.stack.families().iter().flat_map(|it| cluster.lab.pairs(*it)).collect();
    let probe = cluster.lab.probe(&pairs, 1000)?;
    let traffic = Traffic::start(&pairs)?;
    cluster.daemons.clear();
    start(&mut cluster, from)?;
    all_is_well(&cluster, &pods, kind)?;
    for node in &cluster.nodes {
        eventually(PATIENCE, || {
            let nat = node.namespace().run(&format!("{}-save", program(kind, Family::V4)), &[])?;
            ensure!(!nat.contains("FLANNEL-POSTRTG"), "flannel's rules are left: {nat}");
            Ok(())
        })?;
    }
    let report = probe.finish()?;
    println!("{kind:?}, {from:?}: {report}");
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    let tally = traffic.finish()?;
    ensure!(tally.broken == 0 && tally.failed == 0, "{tally:?}");
    Ok(())
}

fn after_a_boot(kind: Iptables, from: From, drops: Drops) -> Result<()> {
    let mut cluster = nodes(Stack::V4)?;
    cluster.nodes.iter().try_for_each(|node| drop_forwarded(node, kind))?;
    start(&mut cluster, from)?;
    let pods = pods(&cluster)?;
    all_is_well(&cluster, &pods, kind)?;
    let (node, daemon) = (cluster.nodes[0].clone(), &mut cluster.daemons[0]);
    daemon.kill()?;
    node.wipe(Files::Kept)?;
    lose_rules(&node, kind)?;
    if drops == Drops::Before {
        drop_forwarded(&node, kind)?;
        ensure!(reach_each_other(&pods).is_err(), "nothing lets packets of pods through");
    }
    daemon.start()?;
    daemon.wait_ready()?;
    if drops == Drops::After {
        drop_forwarded(&node, kind)?;
    }
    all_is_well(&cluster, &pods, kind)
}

#[test]
fn pods_of_a_fresh_node_have_their_network_where_iptables_nft_drops() {
    for (from, drops) in
        [(From::Host, Drops::Before), (From::Image, Drops::Before), (From::Image, Drops::After)]
    {
        fresh(Iptables::Nft, from, drops).unwrap();
    }
}

#[test]
fn pods_of_a_fresh_node_have_their_network_where_legacy_iptables_drops() {
    for drops in [Drops::Before, Drops::After] {
        fresh(Iptables::Legacy, From::Host, drops).unwrap();
    }
}

#[test]
fn no_packet_is_lost_in_a_takeover_where_forwarding_is_dropped() {
    for (kind, from) in
        [(Iptables::Nft, From::Host), (Iptables::Nft, From::Image), (Iptables::Legacy, From::Host)]
    {
        after_a_take_over(kind, from).unwrap();
    }
}

#[test]
fn pods_have_their_network_after_a_boot_where_forwarding_is_dropped() {
    for (kind, from) in
        [(Iptables::Nft, From::Host), (Iptables::Nft, From::Image), (Iptables::Legacy, From::Host)]
    {
        for drops in [Drops::Before, Drops::After] {
            after_a_boot(kind, from, drops).unwrap();
        }
    }
}

/// The command of `program` that the daemon names, as it names it.
fn named_command(daemon: &Daemon, program: &str) -> Result<String> {
    let (_, reasons) = crate::fixture::ask::readiness(daemon)?;
    let begin = format!("run {program} -A");
    let command = reasons.split_once(&begin).map(|(_, rest)| rest.split(';').next());
    let command = command.flatten().map(|rest| format!("{program} -A{rest}"));
    command.ok_or_else(|| anyhow::anyhow!("no command of {program} is named: {reasons}"))
}

/// Without its programs, the daemon cannot know what legacy iptables drops.
#[test]
fn from_the_image_a_node_names_the_commands_that_legacy_iptables_needs() {
    let mut cluster = nodes(Stack::Dual).unwrap();
    cluster.nodes.iter().try_for_each(|node| drop_forwarded(node, Iptables::Legacy)).unwrap();
    start(&mut cluster, From::Image).unwrap();
    let pods = pods(&cluster).unwrap();
    assert!(reach_each_other(&pods).is_err(), "something lets packets of pods through");
    for (node, daemon) in cluster.nodes.iter().zip(&cluster.daemons) {
        let words = "iptables-legacy may drop packets of pods";
        eventually(PATIENCE, || is_ready_with(daemon, words)).unwrap();
        for program in ["iptables-legacy", "ip6tables-legacy"] {
            let command = named_command(daemon, program).unwrap();
            node.namespace().run("sh", &["-c", &command]).unwrap();
        }
    }
    have_their_network(&pods).unwrap();
}

/// Without forward rules, the host drops packets of pods.
#[test]
fn without_forward_rules_pods_are_dropped() {
    let flags: &[&str] = &[FLAG, "--iptables-forward-rules=false"];
    let plan = ClusterPlan::new(2, &Stack::V4.config(&HOST_GW.config())).flags(flags);
    let mut cluster = plan.build().unwrap();
    drop_forwarded(&cluster.nodes[0], Iptables::Nft).unwrap();
    cluster.start_daemons().unwrap();
    let pods = pods(&cluster).unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    let rules = cluster.nodes[0].namespace().run("iptables-nft-save", &["-t", "filter"]).unwrap();
    assert!(!rules.contains("-A"), "{rules}");
    assert!(reach_each_other(&pods).is_err());
}
