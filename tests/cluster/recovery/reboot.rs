//! A node reboots while etcd is unreachable, and forwards by its checkpoint.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Daemon, Family, Files, Node, Pod, eventually};

use crate::fixture::ask::{exit_code, is_ready, is_ready_with, is_waiting_for, throughout};
use crate::fixture::cluster::{Cluster, PATIENCE};
use crate::fixture::peer::{Peer, key_of, vxlan};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#;
const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;
/// Long enough for an unwanted change to appear.
const A_WHILE: Duration = Duration::from_secs(5);
const LAST_KNOWN: &str = "forwarding from the checkpoint";

/// A node whose checkpoint survives a reboot, and another node.
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

    /// Removes everything except what is on persistent storage.
    fn crash(&self, files: Files) -> Result<()> {
        self.daemon.kill()?;
        self.node.wipe(files)
    }

    fn pods_reach_each_other(&self) -> Result<()> {
        let [here, there] = &self.pods;
        let pings = || {
            here.ping(there.address(Family::V4)?, 56)?;
            there.ping(here.address(Family::V4)?, 56)
        };
        eventually(PATIENCE, pings).map(drop)
    }
}

fn a_reboot_without_etcd_is_survived(config: &str, files: Files) -> Result<()> {
    let mut scenario = Rebooted::before(config)?;
    scenario.cluster.etcd.stop()?;
    scenario.crash(files)?;
    scenario.daemon.start()?;
    let took = scenario.daemon.wait_ready()?;
    println!("ready {took:?} after the start");
    eventually(PATIENCE, || is_ready_with(&scenario.daemon, LAST_KNOWN))?;
    eventually(PATIENCE, || is_ready_with(&scenario.daemon, "the store is unreachable"))?;
    ensure!(key_of(&scenario.node)? == scenario.key, "another subnet after the reboot");
    scenario.pods_reach_each_other()?;

    scenario.cluster.etcd.start()?;
    let [stays, comes] = [1, 2].map(Peer::numbered);
    let routed = |peer: &Peer| ensure_routed(&scenario.node, peer);
    // A host-gw node has no path to a vxlan peer.
    if config == VXLAN || config == MIXED {
        routed(&stays)?;
        comes.join(&scenario.cluster.etcd)?;
        eventually(PATIENCE, || routed(&comes))?;
        stays.leave(&scenario.cluster.etcd)?;
        eventually(PATIENCE, || stays.is_unknown_to(&scenario.node))?;
    }
    eventually(PATIENCE, || is_ready(&scenario.daemon))?;
    let lease = scenario.cluster.etcd.get(&scenario.key)?;
    let address = scenario.node.address(Family::V4)?.to_string();
    ensure!(lease.as_ref().is_some_and(|it| it.value.contains(&address)), "{lease:?}");
    ensure!(key_of(&scenario.node)? == scenario.key, "another subnet than before");
    scenario.pods_reach_each_other()
}

fn ensure_routed(node: &Node, peer: &Peer) -> Result<()> {
    ensure!(node.route_to(peer.subnet)?.is_some(), "no route to {}", peer.subnet);
    Ok(())
}

#[test]
fn a_vxlan_node_forwards_after_a_reboot_without_etcd() {
    a_reboot_without_etcd_is_survived(VXLAN, Files::Kept).unwrap();
}

#[test]
fn a_host_gw_node_forwards_after_a_reboot_without_etcd() {
    a_reboot_without_etcd_is_survived(HOST_GW, Files::Lost).unwrap();
}

#[test]
fn a_mixed_node_forwards_after_a_reboot_without_etcd() {
    a_reboot_without_etcd_is_survived(MIXED, Files::Lost).unwrap();
}

/// Only the node's own files still name its subnet.
#[test]
fn a_subnet_survives_a_reboot_and_a_wiped_etcd() {
    let mut scenario = Rebooted::before(VXLAN).unwrap();
    scenario.cluster.etcd.stop().unwrap();
    scenario.crash(Files::Lost).unwrap();
    scenario.daemon.start().unwrap();
    scenario.daemon.wait_ready().unwrap();
    scenario.cluster.etcd.wipe().unwrap();
    // Without its files, the node would choose another subnet.
    scenario.cluster.etcd.put(crate::fixture::cluster::CONFIG, VXLAN).unwrap();
    let is_held = || Ok::<_, anyhow::Error>(scenario.cluster.etcd.get(&scenario.key)?.is_some());
    eventually(PATIENCE, is_held).unwrap();
    assert_eq!(key_of(&scenario.node).unwrap(), scenario.key);
    scenario.pods_reach_each_other().unwrap();
}

#[test]
fn a_node_whose_subnet_was_taken_while_down_ends_and_names_the_holder() {
    let mut scenario = Rebooted::before(VXLAN).unwrap();
    scenario.crash(Files::Lost).unwrap();
    let taken = vxlan("10.99.1.77", "02:00:00:00:00:77");
    scenario.cluster.etcd.put(&scenario.key, &taken).unwrap();
    scenario.cluster.etcd.stop().unwrap();
    scenario.daemon.start().unwrap();
    scenario.daemon.wait_ready().unwrap();
    // The kernel may add its own route of the new device a moment later.
    let own = || scenario.node.ip("-6 route show table local dev flannel.1");
    eventually(PATIENCE, || own().is_ok_and(|it| it.contains("multicast ff00::/8"))).unwrap();
    let kernel = scenario.node.snapshot().unwrap();
    scenario.cluster.etcd.start().unwrap();
    assert_eq!(exit_code(&scenario.daemon, PATIENCE).unwrap(), 1);
    let words = scenario.daemon.process().last_words();
    assert!(words.contains("is held by the node with public IP 10.99.1.77"), "{words}");
    assert_eq!(kernel.changes(&scenario.node.snapshot().unwrap()), Vec::<String>::new());
    assert_eq!(scenario.cluster.etcd.get(&scenario.key).unwrap().unwrap().value, taken);
    // No new pod gets an address of it, and no start allocates another subnet under running pods.
    assert!(!scenario.node.subnet_file().exists(), "{words}");
    scenario.daemon.start().unwrap();
    assert_eq!(exit_code(&scenario.daemon, PATIENCE).unwrap(), 1);
    assert!(!scenario.node.subnet_file().exists());
    assert_eq!(scenario.cluster.etcd.get(&scenario.key).unwrap().unwrap().value, taken);
}

#[test]
fn a_damaged_checkpoint_is_reported_and_ignored() {
    let mut scenario = Rebooted::before(VXLAN).unwrap();
    scenario.daemon.kill().unwrap();
    let text = std::fs::read_to_string(&scenario.state_file).unwrap();
    let damaged = text.replacen("10.244.101.0", "10.244.109.0", 1);
    assert_ne!(text, damaged);
    std::fs::write(&scenario.state_file, damaged).unwrap();
    let kernel = scenario.node.snapshot().unwrap();
    scenario.cluster.etcd.stop().unwrap();
    scenario.daemon.start().unwrap();
    let printed = format!("{} is damaged", scenario.state_file.display());
    eventually(PATIENCE, || scenario.daemon.log().unwrap().contains(&printed)).unwrap();
    throughout(A_WHILE, || {
        let changes = kernel.changes(&scenario.node.snapshot()?);
        ensure!(changes.is_empty(), "{changes:?}");
        Ok(())
    })
    .unwrap();
    eventually(PATIENCE, || is_waiting_for(&scenario.daemon, "no network config yet")).unwrap();
    scenario.cluster.etcd.start().unwrap();
    eventually(PATIENCE, || is_ready(&scenario.daemon)).unwrap();
    assert_eq!(key_of(&scenario.node).unwrap(), scenario.key);
    eventually(PATIENCE, || scenario.has_saved("10.244.101.0")).unwrap();
}
