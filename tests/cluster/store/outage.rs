//! etcd fails in every known way, and no packet is lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{
    Daemon, Etcd, Family, Lab, Node, Pair, Path, Probe, ProbePlan, Snapshot, eventually,
};

use crate::fixture::ask::{has_saved, is_ready, is_ready_with, is_waiting_for, throughout};
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, SUBNETS, binaries};
use crate::fixture::peer::{Peer, key_of};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// Packets per second and pair.
const RATE: u32 = 200;

/// Three nodes with pods that send to each other, before a fault of etcd.
struct Scenario {
    cluster: Cluster,
    probe: Probe,
    kernels: Vec<Snapshot>,
    keys: Vec<String>,
    lines: Vec<usize>,
}

impl Scenario {
    fn begin() -> Result<Self> {
        Self::of(Cluster::start(3, VXLAN)?)
    }

    fn of(cluster: Cluster) -> Result<Self> {
        cluster.wait_for_paths(|_, _| Path::Tunnel)?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        let pairs: Vec<Pair> = pods
            .iter()
            .flat_map(|from| pods.iter().map(move |to| (from, to)))
            .filter(|(from, to)| from.node() != to.node())
            .map(|(from, to)| Pair { from: from.clone(), to: to.clone(), family: Family::V4 })
            .collect();
        let probe = ProbePlan::new(&pairs, RATE).start()?;
        let kernels = cluster.nodes.iter().map(Node::snapshot).collect::<Result<_>>()?;
        let keys = cluster.nodes.iter().map(key_of).collect::<Result<_>>()?;
        let lines = cluster.daemons.iter().map(lines).collect::<Result<_>>()?;
        Ok(Self { cluster, probe, kernels, keys, lines })
    }

    /// Every daemon stays ready, and reports that the store is unreachable.
    fn all_report_why(&self) -> Result<()> {
        let duration = eventually(PATIENCE, || {
            self.cluster
                .daemons
                .iter()
                .try_for_each(|it| is_ready_with(it, "the store is unreachable"))
        })?;
        println!("all daemons reported that after {duration:?}");
        Ok(())
    }

    fn kernels_are_as_they_were(&self) -> Result<()> {
        self.cluster.nodes.iter().zip(&self.kernels).try_for_each(|(node, before)| {
            let changes = before.changes(&node.snapshot()?);
            ensure!(changes.is_empty(), "the kernel of {} changed: {changes:?}", node.name());
            Ok(())
        })
    }

    /// At most `allowed` lines per daemon since the start, or since the last count.
    fn logs_are_quiet(&mut self, allowed: usize) -> Result<()> {
        for (daemon, before) in self.cluster.daemons.iter().zip(&mut self.lines) {
            let log = daemon.log()?;
            let all: Vec<&str> = log.lines().skip(*before).collect();
            // A busy machine loses some probes.
            let new = all.iter().copied().filter(|line| !line.contains("kind=\"peer-"));
            let new: Vec<&str> = new.collect();
            ensure!(new.len() <= allowed, "{} lines:\n{}", new.len(), new.join("\n"));
            *before += all.len();
        }
        Ok(())
    }

    /// Every node still holds its lease.
    fn all_keep_their_subnets(&self) -> Result<()> {
        let etcd = &self.cluster.etcd;
        eventually(PATIENCE, || {
            let held = etcd.list(SUBNETS)?;
            self.cluster.nodes.iter().zip(&self.keys).try_for_each(|(node, key)| {
                ensure!(key_of(node)? == *key, "{} has another subnet", node.name());
                let lease = held.iter().find(|entry| entry.key == *key);
                let public_ip = format!(r#""PublicIP":"{}""#, node.address(Family::V4)?);
                let is_there = lease.is_some_and(|it| it.value.contains(&public_ip));
                ensure!(is_there, "{key} of {} is not held: {lease:?}", node.name());
                Ok(())
            })
        })?;
        Ok(())
    }

    /// All nodes continue without the config, and report that.
    fn the_config_is_missed_and_written_again(&self) -> Result<()> {
        let missed = format!(
            "the previous config stays applied: key {CONFIG} is missing: write the network config there"
        );
        let missed = |daemon: &Daemon| is_ready_with(daemon, &missed);
        eventually(PATIENCE, || self.cluster.daemons.iter().try_for_each(missed))?;
        self.cluster.etcd.put(CONFIG, VXLAN)
    }

    /// etcd is back: changes are followed, the state is as before, and no packet was lost.
    fn end(self) -> Result<()> {
        let followed = Peer::numbered(1).is_followed_by(&self.cluster.nodes, &self.cluster.etcd)?;
        println!("a new lease was followed after {followed:?}");
        self.all_keep_their_subnets()?;
        eventually(PATIENCE, || self.cluster.daemons.iter().try_for_each(is_ready))?;
        self.nothing_was_lost()
    }

    fn nothing_was_lost(self) -> Result<()> {
        let report = self.probe.finish()?;
        println!("{report}");
        ensure!(report.lost() == 0, "{report}");
        Ok(())
    }
}

fn lines(daemon: &Daemon) -> Result<usize> {
    Ok(daemon.log()?.lines().count())
}

#[test]
fn a_stopped_etcd_loses_no_packet() {
    let mut scenario = Scenario::begin().unwrap();
    scenario.cluster.etcd.stop().unwrap();
    scenario.all_report_why().unwrap();
    throughout(Duration::from_secs(3), || scenario.kernels_are_as_they_were()).unwrap();
    scenario.logs_are_quiet(3).unwrap();
    scenario.cluster.etcd.start().unwrap();
    scenario.end().unwrap();
}

#[test]
fn a_frozen_etcd_loses_no_packet() {
    let mut scenario = Scenario::begin().unwrap();
    scenario.cluster.etcd.freeze().unwrap();
    scenario.all_report_why().unwrap();
    scenario.kernels_are_as_they_were().unwrap();
    scenario.logs_are_quiet(3).unwrap();
    scenario.cluster.etcd.thaw().unwrap();
    scenario.end().unwrap();
}

#[test]
fn an_etcd_killed_and_restarted_loses_no_packet() {
    let mut scenario = Scenario::begin().unwrap();
    for _ in 0..3 {
        scenario.cluster.etcd.kill().unwrap();
        scenario.cluster.etcd.start().unwrap();
    }
    scenario.kernels_are_as_they_were().unwrap();
    scenario.end().unwrap();
}

#[test]
fn a_compaction_during_an_outage_loses_no_packet() {
    let mut scenario = Scenario::begin().unwrap();
    // The watches break, and etcd compacts the revision from which they would resume.
    for node in &scenario.cluster.nodes {
        node.management().cut().unwrap();
    }
    scenario.cluster.etcd.kill().unwrap();
    scenario.cluster.etcd.start().unwrap();
    Peer::numbered(2).join(&scenario.cluster.etcd).unwrap();
    scenario.cluster.etcd.compact().unwrap();
    for node in &scenario.cluster.nodes {
        node.management().restore().unwrap();
    }
    let followed = |node| Peer::numbered(2).is_tunnelled_by(node);
    eventually(PATIENCE, || scenario.cluster.nodes.iter().try_for_each(followed)).unwrap();
    scenario.end().unwrap();
}

#[test]
fn a_wiped_etcd_removes_no_route() {
    let mut scenario = Scenario::begin().unwrap();
    scenario.cluster.etcd.wipe().unwrap();
    scenario.all_keep_their_subnets().unwrap();
    throughout(Duration::from_secs(3), || scenario.kernels_are_as_they_were()).unwrap();
    scenario.logs_are_quiet(10).unwrap();
    scenario.the_config_is_missed_and_written_again().unwrap();
    scenario.end().unwrap();
}

/// The first node that comes back must not consider the others removed.
#[test]
fn a_wiped_etcd_removes_no_route_of_a_late_node() {
    let mut scenario = Scenario::begin().unwrap();
    let late = scenario.cluster.nodes[2].clone();
    late.management().cut().unwrap();
    scenario.cluster.etcd.wipe().unwrap();
    let punctual = &scenario.keys[..2];
    let etcd = &scenario.cluster.etcd;
    eventually(PATIENCE, || Ok::<_, anyhow::Error>(etcd.list(SUBNETS)?.len() == punctual.len()))
        .unwrap();
    throughout(Duration::from_secs(5), || scenario.kernels_are_as_they_were()).unwrap();
    late.management().restore().unwrap();
    scenario.all_keep_their_subnets().unwrap();
    scenario.the_config_is_missed_and_written_again().unwrap();
    scenario.end().unwrap();
}

#[test]
fn a_start_with_a_wiped_etcd_removes_no_route_of_the_only_peer() {
    let mut cluster = Cluster::start(2, VXLAN).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let (node, late) = (cluster.nodes[0].clone(), cluster.nodes[1].clone());
    let peer = late.subnet_env().unwrap().subnets()[0];
    eventually(PATIENCE, || has_saved(&node, &peer.ip().to_string())).unwrap();
    cluster.daemons[0].kill().unwrap();
    late.management().cut().unwrap();
    cluster.etcd.wipe().unwrap();
    cluster.etcd.put(CONFIG, VXLAN).unwrap();
    cluster.daemons[0].start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    let held = "1 of 1 leases vanished at once: their routes are kept";
    eventually(PATIENCE, || is_ready_with(&cluster.daemons[0], held)).unwrap();
    ensure_tunnelled(&node, peer).unwrap();
    late.management().restore().unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    // On a slow machine, the route has been withdrawn meanwhile.
    eventually(PATIENCE, || ensure_tunnelled(&node, peer)).unwrap();
}

fn ensure_tunnelled(node: &Node, subnet: IpNetwork) -> Result<()> {
    ensure!(node.path_to(subnet)? == Path::Tunnel, "{subnet} is not routed");
    Ok(())
}

#[test]
fn leases_that_are_all_deleted_are_claimed_again() {
    let scenario = Scenario::begin().unwrap();
    scenario.cluster.etcd.etcdctl(&["del", "--prefix", SUBNETS]).unwrap();
    scenario.all_keep_their_subnets().unwrap();
    throughout(Duration::from_secs(3), || scenario.kernels_are_as_they_were()).unwrap();
    scenario.end().unwrap();
}

fn three_members() -> Result<Scenario> {
    let lab = Lab::new(binaries())?;
    let etcd = lab.etcd_cluster()?;
    etcd.put(CONFIG, VXLAN)?;
    let segment = lab.segment("10.99.1.0/24")?;
    let stack = crate::fixture::cluster::Stack::V4;
    let (nodes, daemons, router) = Default::default();
    let mut cluster = Cluster { nodes, daemons, segment, router, stack, etcd, lab, flags: &[] };
    for name in ["n1", "n2", "n3"] {
        let node = cluster.lab.node(name, &cluster.segment)?;
        cluster.add(node)?;
    }
    Scenario::of(cluster)
}

/// There is none while the members of a busy machine elect one.
fn leader(etcd: &Etcd) -> usize {
    let mut leader = None;
    let is_there = || {
        leader = Some(etcd.leader()?);
        Ok::<_, anyhow::Error>(())
    };
    eventually(PATIENCE, is_there).unwrap();
    leader.unwrap()
}

#[test]
fn a_dead_or_hanging_leader_is_replaced() {
    let mut scenario = three_members().unwrap();
    let elected = leader(&scenario.cluster.etcd);
    scenario.cluster.etcd.member(elected).unwrap().kill().unwrap();
    let followed = |scenario: &Scenario, number| {
        let Cluster { nodes, etcd, .. } = &scenario.cluster;
        // A newly elected leader may not serve yet.
        eventually(PATIENCE, || etcd.put("/elected", "yes")).unwrap();
        let took = Peer::numbered(number).is_followed_by(nodes, etcd).unwrap();
        println!("with one member of three unreachable, a lease was followed after {took:?}");
    };
    followed(&scenario, 2);
    scenario.all_keep_their_subnets().unwrap();
    scenario.cluster.etcd.start().unwrap();

    let elected = leader(&scenario.cluster.etcd);
    scenario.cluster.etcd.member(elected).unwrap().freeze().unwrap();
    followed(&scenario, 3);
    scenario.all_keep_their_subnets().unwrap();
    scenario.cluster.etcd.thaw().unwrap();
    // A former leader that learns of its successor may refuse a request.
    scenario.cluster.etcd.wait_ready().unwrap();
    scenario.end().unwrap();
}

/// Servers fail with different errors; these must not fill the log.
#[test]
fn servers_that_fail_alternately_are_logged_once() {
    let mut scenario = three_members().unwrap();
    scenario.cluster.etcd.kill().unwrap();
    scenario.cluster.etcd.member(0).unwrap().wire().cut().unwrap();
    scenario.all_report_why().unwrap();
    throughout(Duration::from_secs(8), || scenario.kernels_are_as_they_were()).unwrap();
    scenario.logs_are_quiet(3).unwrap();
    scenario.cluster.etcd.member(0).unwrap().wire().restore().unwrap();
    scenario.cluster.etcd.start().unwrap();
    scenario.end().unwrap();
}

#[test]
fn one_of_two_servers_may_be_dead_from_the_start() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let alive = cluster.etcd.endpoints().remove(0);
    // Either no server answers, or the port is closed.
    for (name, dead) in [("n1", "http://172.31.200.200:2379"), ("n2", "http://127.0.0.1:4001")] {
        let node = cluster.lab.node(name, &cluster.segment).unwrap();
        let endpoints = format!("--etcd-endpoints={dead},{alive}");
        let daemon = node.daemon(&cluster.etcd).argument(endpoints).start().unwrap();
        let took = daemon.wait_ready().unwrap();
        println!("ready after {took:?} with {dead} dead");
        cluster.nodes.push(node);
        cluster.daemons.push(daemon);
    }
    Peer::numbered(1).is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
}

#[test]
fn a_start_waits_for_etcd_and_then_for_a_config_that_can_be_used() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    cluster.etcd.delete(CONFIG).unwrap();
    cluster.etcd.stop().unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    let waits = |word: &str| {
        eventually(PATIENCE, || is_waiting_for(&daemon, word)).unwrap();
        let is_logged = || daemon.log().map(|log| log.contains(word));
        eventually(PATIENCE, is_logged).unwrap();
    };
    let endpoint = cluster.etcd.endpoints().remove(0);
    waits(&endpoint);
    assert!(!node.subnet_file().exists());

    cluster.etcd.start().unwrap();
    waits(&format!("key {CONFIG} is missing"));
    cluster.etcd.put(CONFIG, r#"{"Network":"10.244.0.0/16","SubnetLen":99}"#).unwrap();
    waits("99");
    cluster.etcd.put(CONFIG, r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#).unwrap();
    waits("udp");
    assert!(!node.subnet_file().exists());

    cluster.etcd.put(CONFIG, VXLAN).unwrap();
    let ready = eventually(PATIENCE, || is_ready(&daemon)).unwrap();
    println!("ready {ready:?} after the config was fixed");
    let lines = daemon.log().unwrap().lines().count();
    assert!(lines < 40, "{}", daemon.log().unwrap());
}
