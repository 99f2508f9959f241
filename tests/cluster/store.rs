//! etcd goes away in every way there is, and nobody loses a packet.

use std::time::Duration;

use anyhow::{Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{Daemon, Family, Lab, Node, Pair, Path, Probe, ProbePlan, Snapshot, eventually};

use crate::ask::{has_saved, is_ready, is_ready_with, is_waiting_for, throughout};
use crate::cluster::{CONFIG, Cluster, SUBNETS, binaries};
use crate::peer::{Peer, key_of};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// Packets per second and pair.
const RATE: u32 = 200;
/// By when a server that hangs is noticed: the interval of signs of life and the wait for an answer.
const NOTICED: Duration = Duration::from_secs(20);
/// By when a change is followed again after an outage; backoff has its share in it.
const FOLLOWED: Duration = Duration::from_secs(20);

/// Three nodes with pods that send to each other, before something happens to etcd.
struct Story {
    cluster: Cluster,
    probe: Probe,
    kernels: Vec<Snapshot>,
    keys: Vec<String>,
    lines: Vec<usize>,
}

impl Story {
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

    /// Every daemon is ready all the same, and says that the store is away.
    fn everybody_says_why(&self, within: Duration) -> Result<()> {
        let said = eventually(within, || {
            self.cluster.daemons.iter().try_for_each(|it| is_ready_with(it, "the store is away"))
        })?;
        println!("all daemons said so after {said:?}");
        Ok(())
    }

    fn kernels_are_as_they_were(&self) -> Result<()> {
        self.cluster.nodes.iter().zip(&self.kernels).try_for_each(|(node, before)| {
            let changes = before.changes(&node.snapshot()?);
            ensure!(changes.is_empty(), "the kernel of {} changed: {changes:?}", node.name());
            Ok(())
        })
    }

    /// At most `allowed` lines per daemon since the beginning, or since the last count.
    fn logs_are_quiet(&mut self, allowed: usize) -> Result<()> {
        for (daemon, before) in self.cluster.daemons.iter().zip(&mut self.lines) {
            let log = daemon.log()?;
            let new: Vec<&str> = log.lines().skip(*before).collect();
            ensure!(new.len() <= allowed, "{} lines:\n{}", new.len(), new.join("\n"));
            *before += new.len();
        }
        Ok(())
    }

    /// Every node holds the lease that it held.
    fn everybody_keeps_its_subnet(&self, within: Duration) -> Result<()> {
        let etcd = &self.cluster.etcd;
        eventually(within, || {
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

    /// Everybody goes on without it, and says so.
    fn the_config_is_missed_and_written_again(&self) -> Result<()> {
        let missed = format!(
            "the config before stays in force: key {CONFIG} is missing: write the network config there"
        );
        let missed = |daemon: &Daemon| is_ready_with(daemon, &missed);
        eventually(FOLLOWED, || self.cluster.daemons.iter().try_for_each(missed))?;
        self.cluster.etcd.put(CONFIG, VXLAN)
    }

    /// etcd is back: changes are followed, all is as before, and no packet was lost.
    fn end(self) -> Result<()> {
        let followed =
            Peer::numbered(1).is_followed_by(&self.cluster.nodes, &self.cluster.etcd, FOLLOWED)?;
        println!("a new lease was followed after {followed:?}");
        self.everybody_keeps_its_subnet(FOLLOWED)?;
        eventually(FOLLOWED, || self.cluster.daemons.iter().try_for_each(is_ready))?;
        self.nothing_was_lost()
    }

    fn nothing_was_lost(self) -> Result<()> {
        let report = self.probe.finish()?;
        println!("{report}");
        ensure!(report.total().lost == 0, "{report}");
        Ok(())
    }
}

fn lines(daemon: &Daemon) -> Result<usize> {
    Ok(daemon.log()?.lines().count())
}

#[test]
fn a_stopped_etcd_harms_nobody() {
    let mut story = Story::begin().unwrap();
    story.cluster.etcd.stop().unwrap();
    story.everybody_says_why(Duration::from_secs(2)).unwrap();
    throughout(Duration::from_secs(3), || story.kernels_are_as_they_were()).unwrap();
    story.logs_are_quiet(3).unwrap();
    story.cluster.etcd.start().unwrap();
    story.end().unwrap();
}

#[test]
fn a_frozen_etcd_harms_nobody() {
    let mut story = Story::begin().unwrap();
    story.cluster.etcd.freeze().unwrap();
    story.everybody_says_why(NOTICED).unwrap();
    story.kernels_are_as_they_were().unwrap();
    story.logs_are_quiet(3).unwrap();
    story.cluster.etcd.thaw().unwrap();
    story.end().unwrap();
}

#[test]
fn an_etcd_that_is_killed_and_restarted_harms_nobody() {
    let mut story = Story::begin().unwrap();
    for _ in 0..3 {
        story.cluster.etcd.kill().unwrap();
        story.cluster.etcd.start().unwrap();
    }
    story.kernels_are_as_they_were().unwrap();
    story.end().unwrap();
}

#[test]
fn a_compaction_while_etcd_is_away_harms_nobody() {
    let mut story = Story::begin().unwrap();
    // The watches break, and what they would resume from is forgotten before they can.
    for node in &story.cluster.nodes {
        node.management().cut().unwrap();
    }
    story.cluster.etcd.kill().unwrap();
    story.cluster.etcd.start().unwrap();
    Peer::numbered(2).join(&story.cluster.etcd).unwrap();
    story.cluster.etcd.compact().unwrap();
    for node in &story.cluster.nodes {
        node.management().restore().unwrap();
    }
    let followed = |node| Peer::numbered(2).is_tunnelled_by(node);
    eventually(NOTICED, || story.cluster.nodes.iter().try_for_each(followed)).unwrap();
    story.end().unwrap();
}

#[test]
fn a_wiped_etcd_takes_nothing_from_anybody() {
    let mut story = Story::begin().unwrap();
    story.cluster.etcd.wipe().unwrap();
    story.everybody_keeps_its_subnet(FOLLOWED).unwrap();
    throughout(Duration::from_secs(3), || story.kernels_are_as_they_were()).unwrap();
    story.logs_are_quiet(10).unwrap();
    story.the_config_is_missed_and_written_again().unwrap();
    story.end().unwrap();
}

/// Who comes back first must not take the others for gone.
#[test]
fn a_wiped_etcd_takes_nothing_from_who_comes_back_late() {
    let mut story = Story::begin().unwrap();
    let late = story.cluster.nodes[2].clone();
    late.management().cut().unwrap();
    story.cluster.etcd.wipe().unwrap();
    let punctual = &story.keys[..2];
    let etcd = &story.cluster.etcd;
    eventually(FOLLOWED, || Ok::<_, anyhow::Error>(etcd.list(SUBNETS)?.len() == punctual.len()))
        .unwrap();
    throughout(Duration::from_secs(5), || story.kernels_are_as_they_were()).unwrap();
    late.management().restore().unwrap();
    story.everybody_keeps_its_subnet(FOLLOWED).unwrap();
    story.the_config_is_missed_and_written_again().unwrap();
    story.end().unwrap();
}

#[test]
fn a_start_beside_a_wiped_etcd_takes_nothing_from_the_only_peer() {
    let mut cluster = Cluster::start(2, VXLAN).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let (node, late) = (cluster.nodes[0].clone(), cluster.nodes[1].clone());
    let peer = late.subnet_env().unwrap().subnets()[0];
    eventually(FOLLOWED, || has_saved(&node, &peer.ip().to_string())).unwrap();
    cluster.daemons[0].kill().unwrap();
    late.management().cut().unwrap();
    cluster.etcd.wipe().unwrap();
    cluster.etcd.put(CONFIG, VXLAN).unwrap();
    cluster.daemons[0].start().unwrap();
    cluster.daemons[0].wait_ready().unwrap();
    let held = "1 of 1 leases vanished at once: their routes are kept";
    eventually(FOLLOWED, || is_ready_with(&cluster.daemons[0], held)).unwrap();
    ensure_tunnelled(&node, peer).unwrap();
    late.management().restore().unwrap();
    eventually(FOLLOWED, || is_ready(&cluster.daemons[0])).unwrap();
    ensure_tunnelled(&node, peer).unwrap();
}

fn ensure_tunnelled(node: &Node, subnet: IpNetwork) -> Result<()> {
    ensure!(node.path_to(subnet)? == Path::Tunnel, "{subnet} is not routed");
    Ok(())
}

#[test]
fn leases_that_are_all_deleted_are_claimed_again() {
    let story = Story::begin().unwrap();
    story.cluster.etcd.etcdctl(&["del", "--prefix", SUBNETS]).unwrap();
    story.everybody_keeps_its_subnet(Duration::from_secs(2)).unwrap();
    throughout(Duration::from_secs(3), || story.kernels_are_as_they_were()).unwrap();
    story.end().unwrap();
}

fn three_members() -> Result<Story> {
    let lab = Lab::new(binaries())?;
    let etcd = lab.etcd_cluster()?;
    etcd.put(CONFIG, VXLAN)?;
    let segment = lab.segment("10.99.1.0/24")?;
    let stack = crate::cluster::Stack::V4;
    let (nodes, daemons, router) = Default::default();
    let mut cluster = Cluster { nodes, daemons, segment, router, stack, etcd, lab, flags: &[] };
    for name in ["n1", "n2", "n3"] {
        let node = cluster.lab.node(name, &cluster.segment)?;
        cluster.add(node)?;
    }
    Story::of(cluster)
}

#[test]
fn a_leader_that_dies_or_hangs_is_done_without() {
    let mut story = three_members().unwrap();
    let leader = story.cluster.etcd.leader().unwrap();
    story.cluster.etcd.member(leader).unwrap().kill().unwrap();
    let followed = |story: &Story, number, within| {
        let Cluster { nodes, etcd, .. } = &story.cluster;
        // A leader that was elected just now may not serve yet.
        eventually(within, || etcd.put("/elected", "yes")).unwrap();
        let took = Peer::numbered(number).is_followed_by(nodes, etcd, within).unwrap();
        println!("with one member of three away, a lease was followed after {took:?}");
    };
    followed(&story, 2, Duration::from_secs(10));
    story.everybody_keeps_its_subnet(Duration::from_secs(1)).unwrap();
    story.cluster.etcd.start().unwrap();

    let leader = story.cluster.etcd.leader().unwrap();
    story.cluster.etcd.member(leader).unwrap().freeze().unwrap();
    followed(&story, 3, NOTICED);
    story.everybody_keeps_its_subnet(Duration::from_secs(1)).unwrap();
    story.cluster.etcd.thaw().unwrap();
    // Who led, and learns now that it no longer does, may refuse a request.
    story.cluster.etcd.wait_ready().unwrap();
    story.end().unwrap();
}

/// Each server has its own way of not answering; that must not fill the log.
#[test]
fn servers_that_take_turns_in_failing_are_logged_once() {
    let mut story = three_members().unwrap();
    story.cluster.etcd.kill().unwrap();
    story.cluster.etcd.member(0).unwrap().wire().cut().unwrap();
    story.everybody_says_why(Duration::from_secs(5)).unwrap();
    throughout(Duration::from_secs(8), || story.kernels_are_as_they_were()).unwrap();
    story.logs_are_quiet(3).unwrap();
    story.cluster.etcd.member(0).unwrap().wire().restore().unwrap();
    story.cluster.etcd.start().unwrap();
    story.end().unwrap();
}

#[test]
fn one_of_two_servers_may_be_dead_from_the_start() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    let alive = cluster.etcd.endpoints().remove(0);
    // Nobody answers at all, or the port is closed.
    for (name, dead) in [("n1", "http://172.31.200.200:2379"), ("n2", "http://127.0.0.1:4001")] {
        let node = cluster.lab.node(name, &cluster.segment).unwrap();
        let endpoints = format!("--etcd-endpoints={dead},{alive}");
        let daemon = node.daemon(&cluster.etcd).argument(endpoints).start().unwrap();
        let took = daemon.wait_ready().unwrap();
        println!("ready after {took:?} with {dead} dead");
        cluster.nodes.push(node);
        cluster.daemons.push(daemon);
    }
    let within = Duration::from_secs(1);
    Peer::numbered(1).is_followed_by(&cluster.nodes, &cluster.etcd, within).unwrap();
}

#[test]
fn a_start_waits_for_etcd_and_then_for_a_config_that_can_be_used() {
    let mut cluster = Cluster::start(0, VXLAN).unwrap();
    cluster.etcd.delete(CONFIG).unwrap();
    cluster.etcd.stop().unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    let waits = |word: &str, within: u64| {
        eventually(Duration::from_secs(within), || is_waiting_for(&daemon, word)).unwrap();
        let is_logged = || daemon.log().map(|log| log.contains(word));
        eventually(Duration::from_secs(within), is_logged).unwrap();
    };
    let endpoint = cluster.etcd.endpoints().remove(0);
    waits(&endpoint, 5);
    assert!(!node.subnet_file().exists());

    cluster.etcd.start().unwrap();
    waits(&format!("key {CONFIG} is missing"), 10);
    cluster.etcd.put(CONFIG, r#"{"Network":"10.244.0.0/16","SubnetLen":99}"#).unwrap();
    waits("99", 1);
    cluster.etcd.put(CONFIG, r#"{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}"#).unwrap();
    waits("udp", 1);
    assert!(!node.subnet_file().exists());

    cluster.etcd.put(CONFIG, VXLAN).unwrap();
    let ready = eventually(Duration::from_secs(1), || is_ready(&daemon)).unwrap();
    println!("ready {ready:?} after the config was mended");
    let lines = daemon.log().unwrap().lines().count();
    assert!(lines < 20, "{}", daemon.log().unwrap());
}
