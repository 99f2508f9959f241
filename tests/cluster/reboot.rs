//! A node reboots while etcd is away, and forwards by what it wrote down.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Daemon, Family, Files, Node, Pod, eventually};

use crate::ask::{exit_code, is_ready, is_ready_with, is_waiting_for, throughout};
use crate::cluster::{Cluster, PATIENCE};
use crate::peer::{Peer, key_of, vxlan};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;
/// As long as an unwanted change has time to appear.
const A_WHILE: Duration = Duration::from_secs(5);
const FOLLOWED: Duration = Duration::from_secs(20);
const LAST_KNOWN: &str = "what was last known";

/// A node that keeps its checkpoint where a reboot does not take it, and another one.
struct Rebooted {
    cluster: Cluster,
    node: Node,
    daemon: Daemon,
    state_file: PathBuf,
    pods: [Pod; 2],
    key: String,
}

impl Rebooted {
    /// Up and running.
    fn before(config: &str) -> Result<Self> {
        let mut cluster = Cluster::start(1, config)?;
        let node = cluster.lab.node("rebooted", &cluster.segment)?;
        let state_file = node.folder().with_extension("state.json");
        let flag = format!("--state-file={}", state_file.display());
        let daemon = node.daemon(&cluster.etcd).argument(flag).start()?;
        daemon.wait_ready()?;
        let peer = Peer::numbered(1);
        peer.join(&cluster.etcd)?;
        let pods = [node.pod()?, cluster.nodes[0].pod()?];
        let key = key_of(&node)?;
        cluster.nodes.push(node.clone());
        let there = pods[1].address(Family::V4)?;
        eventually(PATIENCE, || pods[0].ping(there, 56))?;
        let rebooted = Self { cluster, node, daemon, state_file, pods, key };
        eventually(PATIENCE, || rebooted.has_saved("10.244.101.0"))?;
        Ok(rebooted)
    }

    fn has_saved(&self, word: &str) -> Result<()> {
        ensure!(std::fs::read_to_string(&self.state_file)?.contains(word), "{word} is not saved");
        Ok(())
    }

    /// Everything is gone but what is on lasting storage.
    fn crash(&self, files: Files) -> Result<()> {
        self.daemon.kill()?;
        self.node.wipe(files)
    }

    fn pods_reach_each_other(&self) -> Result<()> {
        let [here, there] = &self.pods;
        here.ping(there.address(Family::V4)?, 56)?;
        there.ping(here.address(Family::V4)?, 56)
    }
}

fn a_reboot_without_etcd_is_survived(config: &str, files: Files) -> Result<()> {
    let mut story = Rebooted::before(config)?;
    story.cluster.etcd.stop()?;
    story.crash(files)?;
    story.daemon.start()?;
    let took = story.daemon.wait_ready()?;
    println!("ready {took:?} after the start");
    eventually(PATIENCE, || is_ready_with(&story.daemon, LAST_KNOWN))?;
    eventually(PATIENCE, || is_ready_with(&story.daemon, "the store is away"))?;
    ensure!(key_of(&story.node)? == story.key, "another subnet after the reboot");
    story.pods_reach_each_other()?;

    story.cluster.etcd.start()?;
    let [stays, comes] = [1, 2].map(Peer::numbered);
    let routed = |peer: &Peer| ensure_routed(&story.node, peer);
    // host-gw reaches nobody who says vxlan.
    if config == VXLAN || config == MIXED {
        routed(&stays)?;
        comes.join(&story.cluster.etcd)?;
        eventually(FOLLOWED, || routed(&comes))?;
        stays.leave(&story.cluster.etcd)?;
        eventually(FOLLOWED, || stays.is_unknown_to(&story.node))?;
    }
    eventually(FOLLOWED, || is_ready(&story.daemon))?;
    let lease = story.cluster.etcd.get(&story.key)?;
    let address = story.node.address(Family::V4)?.to_string();
    ensure!(lease.as_ref().is_some_and(|it| it.value.contains(&address)), "{lease:?}");
    ensure!(key_of(&story.node)? == story.key, "another subnet than before");
    story.pods_reach_each_other()
}

fn ensure_routed(node: &Node, peer: &Peer) -> Result<()> {
    ensure!(node.route_to(peer.subnet)?.is_some(), "no route to {}", peer.subnet);
    Ok(())
}

#[test]
fn a_reboot_without_etcd_is_survived_with_vxlan() {
    a_reboot_without_etcd_is_survived(VXLAN, Files::Kept).unwrap();
}

#[test]
fn a_reboot_without_etcd_is_survived_with_host_gw() {
    a_reboot_without_etcd_is_survived(HOST_GW, Files::Lost).unwrap();
}

#[test]
fn a_reboot_without_etcd_is_survived_with_mixed() {
    a_reboot_without_etcd_is_survived(MIXED, Files::Lost).unwrap();
}

/// All that is left of the node's subnet is what it wrote down itself.
#[test]
fn a_subnet_survives_a_reboot_and_a_wiped_etcd() {
    let mut story = Rebooted::before(VXLAN).unwrap();
    story.cluster.etcd.stop().unwrap();
    story.crash(Files::Lost).unwrap();
    story.daemon.start().unwrap();
    story.daemon.wait_ready().unwrap();
    story.cluster.etcd.wipe().unwrap();
    // The slot that the node would take if it remembered nothing is not this one.
    story.cluster.etcd.put(crate::cluster::CONFIG, VXLAN).unwrap();
    let is_held = || Ok::<_, anyhow::Error>(story.cluster.etcd.get(&story.key)?.is_some());
    eventually(FOLLOWED, is_held).unwrap();
    assert_eq!(key_of(&story.node).unwrap(), story.key);
    story.pods_reach_each_other().unwrap();
}

#[test]
fn a_node_whose_subnet_was_taken_while_it_was_down_ends_and_says_by_whom() {
    let mut story = Rebooted::before(VXLAN).unwrap();
    story.crash(Files::Lost).unwrap();
    let taken = vxlan("10.99.1.77", "02:00:00:00:00:77");
    story.cluster.etcd.put(&story.key, &taken).unwrap();
    story.cluster.etcd.stop().unwrap();
    story.daemon.start().unwrap();
    story.daemon.wait_ready().unwrap();
    let kernel = story.node.snapshot().unwrap();
    story.cluster.etcd.start().unwrap();
    assert_eq!(exit_code(&story.daemon, FOLLOWED).unwrap(), 1);
    let words = story.daemon.process().last_words();
    assert!(words.contains("is held by the node with public IP 10.99.1.77"), "{words}");
    assert_eq!(kernel.changes(&story.node.snapshot().unwrap()), Vec::<String>::new());
    assert_eq!(story.cluster.etcd.get(&story.key).unwrap().unwrap().value, taken);
    // No new pod gets an address of it, and no start takes another subnet under the pods that run.
    assert!(!story.node.subnet_file().exists(), "{words}");
    story.daemon.start().unwrap();
    assert_eq!(exit_code(&story.daemon, FOLLOWED).unwrap(), 1);
    assert!(!story.node.subnet_file().exists());
    assert_eq!(story.cluster.etcd.get(&story.key).unwrap().unwrap().value, taken);
}

#[test]
fn a_damaged_checkpoint_is_said_and_ignored() {
    let mut story = Rebooted::before(VXLAN).unwrap();
    story.daemon.kill().unwrap();
    let text = std::fs::read_to_string(&story.state_file).unwrap();
    let damaged = text.replacen("10.244.101.0", "10.244.109.0", 1);
    assert_ne!(text, damaged);
    std::fs::write(&story.state_file, damaged).unwrap();
    let kernel = story.node.snapshot().unwrap();
    story.cluster.etcd.stop().unwrap();
    story.daemon.start().unwrap();
    let said = format!("{} is damaged", story.state_file.display());
    eventually(PATIENCE, || story.daemon.log().unwrap().contains(&said)).unwrap();
    throughout(A_WHILE, || {
        let changes = kernel.changes(&story.node.snapshot()?);
        ensure!(changes.is_empty(), "{changes:?}");
        Ok(())
    })
    .unwrap();
    eventually(PATIENCE, || is_waiting_for(&story.daemon, "no network config yet")).unwrap();
    story.cluster.etcd.start().unwrap();
    eventually(FOLLOWED, || is_ready(&story.daemon)).unwrap();
    assert_eq!(key_of(&story.node).unwrap(), story.key);
    eventually(PATIENCE, || story.has_saved("10.244.101.0")).unwrap();
}
