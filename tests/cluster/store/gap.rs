//! Changes in etcd while a node is disconnected.

use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Family, Node, Path, eventually};

use crate::fixture::ask::{has_saved, is_ready, is_ready_with, is_waiting_for, throughout};
use crate::fixture::cluster::{Cluster, PATIENCE};
use crate::fixture::peer::Peer;

const MIXED: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;
const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;

/// Foreign objects that resemble tweed's as closely as possible.
struct Foreign(Vec<String>);

impl Foreign {
    fn put_into(node: &Node, gateway: &Node) -> Result<Self> {
        let via = gateway.address(Family::V4)?;
        node.ip(format!("route add 10.77.0.0/16 via {via}"))?;
        node.ip(format!("route add 10.244.250.0/24 via {via} proto static"))?;
        node.ip("neighbour add 10.99.1.240 lladdr 02:00:00:00:02:40 dev eth0 nud permanent")?;
        node.ip("address add 192.0.2.7/32 dev lo")?;
        Ok(Self(Self::read(node)?))
    }

    fn read(node: &Node) -> Result<Vec<String>> {
        let show = [
            "route show 10.77.0.0/16",
            "route show 10.244.250.0/24",
            "neighbour show dev eth0 nud permanent",
            "address show dev lo to 192.0.2.7",
        ];
        show.iter().map(|words| node.ip(words)).collect()
    }

    fn are_still_in(&self, node: &Node) -> Result<()> {
        let now = Self::read(node)?;
        ensure!(now == self.0, "{now:?}, not {:?}", self.0);
        Ok(())
    }
}

#[test]
fn a_node_that_was_cut_off_catches_up_with_all_that_changed() {
    let mut cluster = Cluster::start(3, MIXED).unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let pods: Vec<_> = cluster.nodes.iter().map(|node| node.pod().unwrap()).collect();
    let foreign = Foreign::put_into(&cluster.nodes[0], &cluster.nodes[1]).unwrap();
    let before: Vec<Peer> = (1..=6).map(Peer::numbered).collect();
    for peer in &before {
        peer.is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
    }
    let [other_mac, other_ip, direct, leaves, goes, stays] = &before[..] else { panic!() };

    let lonely = cluster.nodes[0].clone();
    lonely.management().cut().unwrap();
    let other_mac = Peer { mac: "02:00:00:00:09:01".to_owned(), ..other_mac.clone() };
    let other_ip = Peer { public_ip: "10.99.1.222".parse().unwrap(), ..other_ip.clone() };
    let moved = Peer { subnet: "10.244.203.0/24".parse().unwrap(), ..leaves.clone() };
    let comes = Peer::numbered(7);
    let etcd = &cluster.etcd;
    other_mac.join(etcd).unwrap();
    other_ip.join(etcd).unwrap();
    etcd.put(&direct.key(), &direct.host_gw()).unwrap();
    leaves.leave(etcd).unwrap();
    moved.join(etcd).unwrap();
    goes.leave(etcd).unwrap();
    comes.join(etcd).unwrap();
    let is_right = |node: &Node| {
        [&other_mac, &other_ip, &moved, &comes, stays]
            .iter()
            .try_for_each(|peer| peer.is_tunnelled_by(node))?;
        direct.is_direct_from(node)?;
        goes.is_unknown_to(node)?;
        ensure!(node.route_to(leaves.subnet)?.is_none(), "the subnet that was left is routed");
        let (macs, ips) = (fdb_of(node, &before[0].mac)?, fdb_to(node, &before[1])?);
        ensure!(macs == 0 && ips == 0, "stale FDB entries are left");
        ensure!(fdb_of(node, &direct.mac)? == 0, "an FDB entry of a direct peer is left");
        Ok(())
    };
    // The connected nodes have followed; the disconnected one has not.
    eventually(PATIENCE, || cluster.nodes[1..].iter().try_for_each(is_right)).unwrap();
    before.iter().try_for_each(|peer| peer.is_tunnelled_by(&lonely)).unwrap();
    for pod in &pods[1..] {
        let address = pod.address(Family::V4).unwrap();
        eventually(PATIENCE, || pods[0].ping(address, 56)).unwrap();
    }

    cluster.etcd.compact().unwrap();
    cluster.etcd.kill().unwrap();
    cluster.etcd.start().unwrap();
    lonely.management().restore().unwrap();
    let took = eventually(PATIENCE, || is_right(&lonely)).unwrap();
    println!("all was right {took:?} after etcd could be reached again");
    foreign.are_still_in(&lonely).unwrap();
    cluster.nodes[1..].iter().try_for_each(is_right).unwrap();
    eventually(PATIENCE, || cluster.daemons.iter().try_for_each(is_ready)).unwrap();
    for pod in &pods[1..] {
        let address = pod.address(Family::V4).unwrap();
        eventually(PATIENCE, || pods[0].ping(address, 56)).unwrap();
    }
}

fn fdb_of(node: &Node, mac: &str) -> Result<usize> {
    Ok(node.fdb("flannel.1")?.iter().filter(|entry| entry.mac == mac).count())
}

fn fdb_to(node: &Node, peer: &Peer) -> Result<usize> {
    let all = node.fdb("flannel.1")?;
    Ok(all.iter().filter(|entry| entry.remote == Some(peer.public_ip)).count())
}

/// The daemon of a node is down while one of two peers leaves, and etcd hangs at its next start.
fn leaves_while_down() -> Result<(Cluster, Peer, Peer)> {
    let mut cluster = Cluster::start(1, VXLAN)?;
    let (leaver, stayer) = (Peer::numbered(1), Peer::numbered(2));
    leaver.is_followed_by(&cluster.nodes, &cluster.etcd)?;
    stayer.is_followed_by(&cluster.nodes, &cluster.etcd)?;
    // The checkpoint is written a moment after each change.
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], "10.244.102.0"))?;
    cluster.daemons[0].kill()?;
    leaver.leave(&cluster.etcd)?;
    cluster.etcd.freeze()?;
    Ok((cluster, leaver, stayer))
}

#[test]
fn a_peer_that_left_while_the_daemon_was_down_is_removed_after_a_full_read() {
    let (mut cluster, leaver, stayer) = leaves_while_down().unwrap();
    let node = cluster.nodes[0].clone();
    cluster.daemons[0].start().unwrap();
    let last_known = || is_ready_with(&cluster.daemons[0], "forwarding from the checkpoint");
    let took = eventually(PATIENCE, last_known).unwrap();
    println!("forwarding from the checkpoint after {took:?}");
    let are_there = || {
        leaver.is_tunnelled_by(&node)?;
        stayer.is_tunnelled_by(&node)
    };
    throughout(Duration::from_secs(2), are_there).unwrap();
    let monitor = node.monitor().unwrap();
    cluster.etcd.thaw().unwrap();
    eventually(PATIENCE, || leaver.is_unknown_to(&node)).unwrap();
    stayer.is_tunnelled_by(&node).unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    let changes = monitor.finish().unwrap();
    let all_gone = changes.iter().all(|change| change.text.starts_with("Deleted"));
    assert!(all_gone && !changes.is_empty(), "{changes:?}");
}

#[test]
fn without_a_checkpoint_nothing_is_touched_before_all_leases_are_known() {
    let (mut cluster, leaver, stayer) = leaves_while_down().unwrap();
    let node = cluster.nodes[0].clone();
    std::fs::remove_file(node.folder().join("subnet.state.json")).unwrap();
    let kernel = node.snapshot().unwrap();
    cluster.daemons[0].start().unwrap();
    throughout(Duration::from_secs(4), || {
        let changes = kernel.changes(&node.snapshot()?);
        ensure!(changes.is_empty(), "{changes:?}");
        Ok(())
    })
    .unwrap();
    eventually(PATIENCE, || is_waiting_for(&cluster.daemons[0], "no network config yet")).unwrap();
    cluster.etcd.thaw().unwrap();
    eventually(PATIENCE, || leaver.is_unknown_to(&node)).unwrap();
    stayer.is_tunnelled_by(&node).unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
}
