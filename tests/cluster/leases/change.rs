//! Peers and this node change at run time, and no entry of the old state remains.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Family, Files, Node, Path, eventually};

use crate::fixture::cluster::{AT_START, CONFIG, Cluster, ClusterPlan, PATIENCE, SUBNETS, Stack};
use crate::fixture::peer::{Peer, host_gw, key_of, vxlan};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, VXLAN, VXLAN_MIXED};

const OTHER_MAC: &str = "02:00:00:00:00:99";

/// All entries of the tunnel device and the pods' network, one per line.
fn entries(node: &Node) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut add = |text: &str| lines.extend(text.lines().map(|line| line.trim().to_owned()));
    add(&without_numbers(&node.ip("route show proto 241")?));
    add(&without_numbers(&node.ip("nexthop show")?));
    if node.link("flannel.1")?.is_some() {
        add(&node.ip("neighbour show dev flannel.1 nud permanent")?);
        add(&node.bridge("fdb show dev flannel.1")?);
    }
    lines.sort();
    Ok(lines)
}

/// The numbers of nexthop objects vary.
fn without_numbers(text: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.iter().position(|word| ["id", "nhid"].contains(word));
        let kept = words.iter().enumerate().filter(|(at, _)| number.is_none_or(|n| *at != n + 1));
        kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn tunnelled(peer: &Peer) -> Vec<String> {
    let (base, mac, ip) = (peer.subnet.network(), &peer.mac, peer.public_ip);
    let subnet = peer.subnet;
    vec![
        format!("{base} lladdr {mac} PERMANENT"),
        format!("{subnet} nhid via {base} dev flannel.1 onlink"),
        format!("id via {base} dev flannel.1 scope link proto 241 onlink"),
        format!("{mac} dst {ip} self permanent"),
    ]
}

fn direct(peer: &Peer) -> Vec<String> {
    vec![
        format!("{} nhid via {} dev eth0", peer.subnet, peer.public_ip),
        format!("id via {} dev eth0 scope link proto 241", peer.public_ip),
    ]
}

/// The tunnel is a standby path, for probes and for a failed direct path.
fn direct_with_standby(peer: &Peer) -> Vec<String> {
    let (base, mac, ip) = (peer.subnet.network(), &peer.mac, peer.public_ip);
    let standby = [
        format!("{base} lladdr {mac} PERMANENT"),
        format!("{base} dev flannel.1"),
        format!("{mac} dst {ip} self permanent"),
    ];
    [direct(peer), standby.to_vec()].concat()
}

/// Waits until the node's entries for its peers are exactly `expected`.
fn holds(node: &Node, expected: &[String]) -> Result<()> {
    let mut expected = expected.to_vec();
    expected.sort();
    let took = eventually(PATIENCE, || {
        let held = entries(node)?;
        ensure!(held == expected, "held: {held:#?}\nexpected: {expected:#?}");
        Ok(())
    })?;
    println!("{}: followed after {took:.0?}", node.name());
    Ok(())
}

#[test]
fn a_lease_written_again_is_followed() {
    let cluster = Cluster::start(1, &Stack::V4.config(&VXLAN_MIXED.config())).unwrap();
    let (node, etcd) = (&cluster.nodes[0], &cluster.etcd);
    let mut peer = Peer::numbered(1);
    peer.join(etcd).unwrap();
    holds(node, &tunnelled(&peer)).unwrap();
    peer.mac = OTHER_MAC.to_owned();
    peer.join(etcd).unwrap();
    holds(node, &tunnelled(&peer)).unwrap();
    peer.public_ip = IpAddr::from([10, 99, 7, 7]);
    peer.join(etcd).unwrap();
    holds(node, &tunnelled(&peer)).unwrap();
    etcd.put(&peer.key(), &host_gw(peer.public_ip)).unwrap();
    holds(node, &[]).unwrap();
    peer.public_ip = IpAddr::from([10, 99, 1, 77]);
    etcd.put(&peer.key(), &host_gw(peer.public_ip)).unwrap();
    holds(node, &direct(&peer)).unwrap();
    peer.public_ip = IpAddr::from([10, 99, 1, 78]);
    etcd.put(&peer.key(), &host_gw(peer.public_ip)).unwrap();
    holds(node, &direct(&peer)).unwrap();
    peer.join(etcd).unwrap();
    holds(node, &tunnelled(&peer)).unwrap();
    let mut moved = peer.clone();
    moved.subnet = "10.244.200.0/24".parse().unwrap();
    etcd.put(&moved.key(), &vxlan("10.99.1.80", "02:00:00:00:00:80")).unwrap();
    peer.leave(etcd).unwrap();
    moved.public_ip = IpAddr::from([10, 99, 1, 80]);
    moved.mac = "02:00:00:00:00:80".to_owned();
    holds(node, &tunnelled(&moved)).unwrap();
}

/// Two nodes that ping, and the second one as a peer of the first.
struct NodePair {
    cluster: Cluster,
}

impl NodePair {
    fn start(rest: &str) -> Result<Self> {
        let cluster = Cluster::start(2, &Stack::V4.config(rest))?;
        Ok(Self { cluster })
    }

    /// Daemons that apply a config only at start.
    fn start_apart(rest: &str) -> Result<Self> {
        let plan = ClusterPlan::new(2, &Stack::V4.config(rest)).flags(AT_START);
        Ok(Self { cluster: plan.start()? })
    }

    fn observer(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    fn changing(&self) -> &Node {
        &self.cluster.nodes[1]
    }

    /// The second node in its present state.
    fn peer(&self) -> Result<Peer> {
        let node = self.changing();
        let device = node.link("flannel.1")?;
        let mac = device.map(|link| link.mac).unwrap_or_default();
        let public_ip = node.address(Family::V4)?;
        Ok(Peer { subnet: self.cluster.subnet(1, Family::V4)?, public_ip, mac })
    }

    /// Whether the lease in etcd describes the node.
    fn has_published(&self, backend: &str) -> Result<()> {
        let key = key_of(self.changing())?;
        eventually(PATIENCE, || {
            let peer = self.peer()?;
            let entry = self.cluster.etcd.get(&key)?.with_context(|| format!("{key} is gone"))?;
            let lease: Value = serde_json::from_str(&entry.value)?;
            let mac = lease["BackendData"]["VtepMAC"].as_str().unwrap_or_default();
            let published = (lease["PublicIP"].as_str(), lease["BackendType"].as_str(), mac);
            let ip = peer.public_ip.to_string();
            ensure!(published == (Some(&ip), Some(backend), peer.mac.as_str()), "{}", entry.value);
            Ok(())
        })
        .map(drop)
    }

    fn pings(&self) -> Result<()> {
        let from = self.observer().pod()?;
        let to = self.changing().pod()?.address(Family::V4)?;
        eventually(PATIENCE, || from.ping(to, 56)).map(drop)
    }
}

#[test]
fn a_node_that_restarts_with_another_mac_is_followed() {
    let mut it = NodePair::start(&VXLAN.config()).unwrap();
    it.cluster.daemons[1].stop().unwrap();
    it.changing().change_mac("flannel.1", OTHER_MAC).unwrap();
    it.cluster.daemons[1].start().unwrap();
    it.cluster.daemons[1].wait_ready().unwrap();
    let peer = it.peer().unwrap();
    assert_eq!(peer.mac, OTHER_MAC);
    it.has_published("vxlan").unwrap();
    holds(it.observer(), &tunnelled(&peer)).unwrap();
    it.pings().unwrap();
}

#[test]
fn a_node_that_changes_its_address_keeps_its_subnet_and_is_followed() {
    for (side, backend) in [(VXLAN, "vxlan"), (HOST_GW, "host-gw"), (HOST_GW_MIXED, "host-gw")] {
        let it = NodePair::start(&side.config()).unwrap();
        let before = it.peer().unwrap();
        it.changing().renumber(IpAddr::from([10, 99, 1, 50])).unwrap();
        eventually(PATIENCE, || it.has_published(backend)).unwrap();
        let after = it.peer().unwrap();
        assert_eq!(after.subnet, before.subnet);
        // Another node may get the old address, and with it the MAC address derived from it.
        assert_eq!(after.mac != before.mac, side != HOST_GW, "{before:?} {after:?}");
        let expected = match side {
            VXLAN => tunnelled(&after),
            HOST_GW => direct(&after),
            _ => direct_with_standby(&after),
        };
        holds(it.observer(), &expected).unwrap();
        eventually(PATIENCE, || {
            let path = it.changing().path_to(it.cluster.subnet(0, Family::V4)?)?;
            ensure!(path != Path::None, "there is no path back");
            Ok(())
        })
        .unwrap();
        it.pings().unwrap();
        let leases = it.cluster.etcd.list(SUBNETS).unwrap();
        assert_eq!(leases.len(), 2, "{leases:?}");
    }
}

#[test]
fn a_node_that_gets_another_subnet_is_followed() {
    let mut it = NodePair::start(&VXLAN.config()).unwrap();
    let (old_key, before) = (key_of(it.changing()).unwrap(), it.peer().unwrap());
    it.cluster.daemons[1].stop().unwrap();
    it.changing().wipe(Files::Lost).unwrap();
    it.cluster.etcd.delete(&old_key).unwrap();
    let reserved = format!("{SUBNETS}/10.244.222.0-24");
    it.cluster.etcd.put(&reserved, &vxlan(before.public_ip, &before.mac)).unwrap();
    it.cluster.daemons[1].start().unwrap();
    it.cluster.daemons[1].wait_ready().unwrap();
    let after = it.peer().unwrap();
    assert_eq!(after.subnet.to_string(), "10.244.222.0/24");
    holds(it.observer(), &tunnelled(&after)).unwrap();
    it.pings().unwrap();
}

#[test]
fn a_node_that_changes_its_backend_is_followed() {
    let mut it = NodePair::start_apart(&VXLAN_MIXED.config()).unwrap();
    holds(it.observer(), &tunnelled(&it.peer().unwrap())).unwrap();
    for (side, backend) in [(HOST_GW_MIXED, "host-gw"), (VXLAN_MIXED, "vxlan")] {
        it.cluster.etcd.put(CONFIG, &Stack::V4.config(&side.config())).unwrap();
        it.cluster.daemons[1].restart().unwrap();
        it.has_published(backend).unwrap();
        let peer = it.peer().unwrap();
        let expected = match side {
            VXLAN_MIXED => tunnelled(&peer),
            _ => direct_with_standby(&peer),
        };
        holds(it.observer(), &expected).unwrap();
    }
    it.pings().unwrap();
}

#[test]
fn both_addresses_of_a_node_may_change() {
    let plan = ClusterPlan::new(2, &Stack::Dual.config(&HOST_GW_MIXED.config()));
    let cluster = plan.stack(Stack::Dual).start().unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_paths(|_, _| Path::Direct).unwrap();
    let changing = &cluster.nodes[1];
    changing.renumber("fd99:1::50".parse().unwrap()).unwrap();
    changing.renumber("10.99.1.50".parse().unwrap()).unwrap();
    for family in Stack::Dual.families() {
        let (subnet, gateway) = (cluster.subnet(1, *family), changing.address(*family));
        let (subnet, gateway) = (subnet.unwrap(), gateway.unwrap());
        let took = eventually(PATIENCE, || {
            let route = cluster.nodes[0].route_to(subnet)?.context("no route")?;
            ensure!(route.gateway == Some(gateway), "{route:?}");
            Ok(())
        });
        println!("{gateway}: followed after {:.0?}", took.unwrap());
        let answered = || Ok::<_, anyhow::Error>(cluster.lab.ping_matrix(*family)?.all_answered());
        eventually(PATIENCE, answered).unwrap();
    }
}
