//! Machines that are cloned, renamed, renumbered or misconfigured: healthy nodes keep their peers,
//! and the faulty one reports the fault.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tweed_lab::{
    ApiServer, Daemon, DaemonPlan, Entry, Etcd, Family, Files, Lab, Node, Pair, Pod, Probe,
    Segment, eventually,
};

use crate::fixture::ask::{exit_code, is_ready, is_ready_with, json, lease_reason, readiness};
use crate::fixture::cluster::{Cluster, PATIENCE, Stack, binaries};
use crate::fixture::peer::{Peer, key_of, vxlan};

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// The longest time that a healthy node may be without a peer.
const LONGEST_GAP: Duration = Duration::from_secs(2);
/// Nodes with one public IP claim the lease at growing intervals: rarely within this time.
const OBSERVED: Duration = Duration::from_secs(5);
/// Packets per second and ordered pair of pods.
const RATE: u32 = 100;
/// The effects of a change are visible after this time.
const A_WHILE: Duration = Duration::from_millis(2500);
/// Addresses that the lab does not assign by itself.
const FREE: [u8; 2] = [190, 191];

/// Healthy nodes whose pods send to each other throughout.
struct Healthy {
    pods: Vec<Pod>,
    probe: Probe,
}

impl Healthy {
    fn start(lab: &Lab, pods: &[&Pod]) -> Result<Self> {
        let pods: Vec<Pod> = pods.iter().copied().cloned().collect();
        let probe = lab.probe(&pairs(&pods), RATE)?;
        Ok(Self { pods, probe })
    }

    fn keep_their_peers(self) -> Result<()> {
        self.probe.run_for(A_WHILE);
        let report = self.probe.finish()?;
        let gap = report.longest_outage();
        println!("longest gap {gap:?}");
        // On a busy machine, etcd and the daemons on the way of a change stand still as long as the
        // sender does, one after the other.
        let longest = LONGEST_GAP + 10 * report.longest_pause;
        ensure!(gap <= longest, "a gap of {gap:?}, not {longest:?}:\n{report}");
        Ok(())
    }

    /// Waits until each of them reaches `pod`.
    fn reach(&self, pod: &Pod) -> Result<()> {
        for healthy in &self.pods {
            for (from, to) in [(healthy, pod), (pod, healthy)] {
                let to_address = to.address(Family::V4)?;
                eventually(PATIENCE, || from.ping(to_address, 56))
                    .with_context(|| format!("{} to {}", from.label(), to.label()))?;
            }
        }
        Ok(())
    }
}

fn pairs(pods: &[Pod]) -> Vec<Pair> {
    let pair =
        |from: &Pod, to: &Pod| Pair { from: from.clone(), to: to.clone(), family: Family::V4 };
    let others = |from: &Pod| {
        let label = from.label().to_owned();
        pods.iter().filter(move |to| to.label() != label)
    };
    pods.iter().flat_map(|from| others(from).map(move |to| pair(from, to))).collect()
}

/// Two nodes, and the segment that other nodes join.
struct Base {
    cluster: Cluster,
    pods: Vec<Pod>,
}

impl Base {
    fn start() -> Result<Self> {
        let cluster = Cluster::start(2, VXLAN)?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<_>>()?;
        Ok(Self { cluster, pods })
    }

    fn node(&self, name: &str) -> Result<Node> {
        self.cluster.lab.node(name, &self.cluster.segment)
    }

    /// A node with this machine id, and its daemon, which is ready.
    fn machine(&self, name: &str, machine_id: &str) -> Result<(Node, Daemon)> {
        let node = self.node(name)?;
        let daemon = on_machine(&node, &self.cluster.etcd, machine_id).start()?;
        daemon.wait_ready()?;
        Ok((node, daemon))
    }

    /// The pods of both nodes and `pod` send to each other.
    fn with(&self, pod: &Pod) -> Result<Healthy> {
        Healthy::start(&self.cluster.lab, &[&self.pods[0], &self.pods[1], pod])
    }

    fn both(&self) -> Result<Healthy> {
        Healthy::start(&self.cluster.lab, &[&self.pods[0], &self.pods[1]])
    }

    /// Flushes neighbour caches, which gratuitous ARP would update.
    fn announce_addresses(&self) -> Result<()> {
        forget_neighbours(&self.cluster.nodes)
    }
}

fn forget_neighbours(nodes: &[Node]) -> Result<()> {
    nodes.iter().try_for_each(|node| node.ip("neighbour flush dev eth0").map(drop))
}

/// The daemon of a machine with this id in `/etc/machine-id`.
fn on_machine(node: &Node, etcd: &Etcd, machine_id: &str) -> DaemonPlan {
    let script = r#"mount -t tmpfs tmpfs /etc; echo "$0" >/etc/machine-id; exec "$@""#;
    node.daemon(etcd).through("unshare", &["--mount", "sh", "-euc", script, machine_id])
}

fn free(number: usize) -> IpAddr {
    IpAddr::from([10, 99, 1, FREE[number]])
}

fn state_file(node: &Node) -> PathBuf {
    node.folder().join("subnet.state.json")
}

/// Waits until the checkpoint of `node` matches its published lease.
fn wait_for_checkpoint(node: &Node) -> Result<()> {
    let address = format!("\"public_ip\":\"{}\"", node.address(Family::V4)?);
    let saved = || {
        let text = std::fs::read_to_string(state_file(node))?;
        let own = text.split_once("\"own\":{").context("no lease is saved")?.1;
        let own = own.split_once("\"leases\"").map_or(own, |(own, _)| own);
        ensure!(own.contains(&address), "{address} is not saved: {text}");
        Ok(())
    };
    eventually(PATIENCE, saved).map(drop)
}

/// Whether status, readiness, log and metric of a daemon name the fault.
fn reports(daemon: &Daemon, sentence: &str, about: &str) -> Result<()> {
    let metric = format!("tweed_lease_conflicts{{about=\"{about}\"}} 1");
    eventually(PATIENCE, || {
        is_ready_with(daemon, sentence)?;
        let status = json(daemon, "status")?;
        ensure!(status["reasons"].to_string().contains(sentence), "{status}");
        ensure!(status["conflicts"][about] == 1, "{status}");
        let metrics = daemon.get("/metrics")?.body;
        ensure!(metrics.contains(&metric), "{metrics}");
        ensure!(daemon.log()?.contains(sentence), "{}", daemon.log()?);
        Ok(())
    })
    .map(drop)
}

/// Whether a daemon has changed its MAC address, and reports that.
fn has_changed_its_mac(daemon: &Daemon, word: &str) -> Result<()> {
    eventually(PATIENCE, || {
        let metrics = daemon.get("/metrics")?.body;
        ensure!(metrics.contains("tweed_vtep_mac_changes_total 1"), "{metrics}");
        Ok(())
    })?;
    ensure!(json(daemon, "status")?["statistics"]["mac_changes"] == 1);
    ensure!(daemon.log()?.contains(word), "{}", daemon.log()?);
    Ok(())
}

/// Whether a daemon ends, and names the node that holds its subnet.
fn ends_by(daemon: &Daemon, holder: IpAddr) -> Result<()> {
    ensure!(exit_code(daemon, PATIENCE)? == 1);
    let words = daemon.process().last_words();
    let sentence = format!("is held by the node with public IP {holder}");
    ensure!(words.contains(&sentence), "{words}");
    Ok(())
}

fn mac(node: &Node) -> Result<String> {
    Ok(node.link("flannel.1")?.context("no tunnel device")?.mac)
}

#[test]
fn after_a_power_cut_two_nodes_restart_with_swapped_addresses() {
    let base = Base::start().unwrap();
    let mut nodes = [base.machine("n3", "m3").unwrap(), base.machine("n4", "m4").unwrap()];
    let pods = [0, 1].map(|index: usize| nodes[index].0.pod().unwrap());
    let keys = [0, 1].map(|index: usize| key_of(&nodes[index].0).unwrap());
    let addresses = [0, 1].map(|index: usize| nodes[index].0.address(Family::V4).unwrap());
    let healthy = base.both().unwrap();
    for (node, daemon) in &nodes {
        wait_for_checkpoint(node).unwrap();
        daemon.kill().unwrap();
        node.wipe(Files::Kept).unwrap();
    }
    nodes[0].0.renumber(free(0)).unwrap();
    nodes[1].0.renumber(addresses[0]).unwrap();
    nodes[0].0.renumber(addresses[1]).unwrap();
    base.announce_addresses().unwrap();
    for (_, daemon) in &mut nodes {
        daemon.start().unwrap();
    }
    for (node, daemon) in &nodes {
        daemon.wait_ready().unwrap();
        base.cluster.nodes.iter().for_each(|it| assert_ne!(mac(it).unwrap(), mac(node).unwrap()));
    }
    for index in [0, 1] {
        assert_eq!(key_of(&nodes[index].0).unwrap(), keys[index]);
        healthy.reach(&pods[index]).unwrap();
        eventually(PATIENCE, || is_ready(&nodes[index].1)).unwrap();
    }
    pods[0].reaches(pods[1].address(Family::V4).unwrap(), 56).unwrap();
    healthy.keep_their_peers().unwrap();
}

/// Copies from `original` what a cloned disk would contain.
fn clone_disk(original: &Node, copy: &Node) -> Result<()> {
    wait_for_checkpoint(original)?;
    std::fs::copy(original.subnet_file(), copy.subnet_file())?;
    std::fs::copy(state_file(original), state_file(copy)).map(drop).map_err(Into::into)
}

/// A machine with a pod, and a node with a copy of its disk.
struct Cloned {
    original: Node,
    daemon: Daemon,
    lease: Entry,
    healthy: Healthy,
    copy: Node,
}

impl Cloned {
    fn of(base: &Base) -> Result<Self> {
        let (original, daemon) = base.machine("n3", "one")?;
        let pod = original.pod()?;
        let lease = base.cluster.etcd.get(&key_of(&original)?)?.context("no lease")?;
        let healthy = base.with(&pod)?;
        let copy = base.node("n4")?;
        clone_disk(&original, &copy)?;
        Ok(Self { original, daemon, lease, healthy, copy })
    }
}

#[test]
fn a_cloned_disk_ends_and_the_original_stays() {
    let base = Base::start().unwrap();
    let Cloned { original, daemon, lease, healthy, copy } = Cloned::of(&base).unwrap();
    let mut copied = on_machine(&copy, &base.cluster.etcd, "one").start().unwrap();
    let original_ip = original.address(Family::V4).unwrap();
    ends_by(&copied, original_ip).unwrap();
    let now = base.cluster.etcd.get(&lease.key).unwrap().unwrap();
    assert_eq!((&now.value, now.lease), (&lease.value, lease.lease));
    // A supervisor starts it again.
    copied.start().unwrap();
    ends_by(&copied, original_ip).unwrap();
    assert_eq!(base.cluster.etcd.get(&lease.key).unwrap(), Some(now), "it took the lease again");
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
    assert!(daemon.log().unwrap().contains("was overwritten by the node with public IP"));
}

#[test]
fn a_machine_from_a_template_gets_its_own_lease() {
    let base = Base::start().unwrap();
    let Cloned { daemon, lease, healthy, copy, .. } = Cloned::of(&base).unwrap();
    // A reboot clears /run.
    std::fs::remove_file(copy.subnet_file()).unwrap();
    let copied = on_machine(&copy, &base.cluster.etcd, "two").start().unwrap();
    copied.wait_ready().unwrap();
    assert!(copied.log().unwrap().contains("this machine is a copy"), "{}", copied.log().unwrap());
    assert_ne!(key_of(&copy).unwrap(), lease.key);
    let own = base.cluster.etcd.get(&key_of(&copy).unwrap()).unwrap().unwrap();
    assert_ne!(own.lease, lease.lease, "both keys hang on one etcd lease");
    assert_eq!(base.cluster.etcd.get(&lease.key).unwrap(), Some(lease));
    healthy.reach(&copy.pod().unwrap()).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn two_nodes_with_one_public_ip_both_report_it_and_do_not_flap() {
    let base = Base::start().unwrap();
    let (node, daemon) = base.machine("n3", "m3").unwrap();
    let pod = node.pod().unwrap();
    let healthy = base.with(&pod).unwrap();
    let public_ip = node.address(Family::V4).unwrap();
    let other = base.node("n4").unwrap();
    let plan = on_machine(&other, &base.cluster.etcd, "m4");
    let plan = plan.argument(format!("--public-ip={public_ip}"));
    let second = plan.start().unwrap();
    second.wait_ready().unwrap();
    let sentence =
        format!("another node announces our public IP {public_ip} (MAC {})", mac(&node).unwrap());
    reports(&daemon, &sentence, "our_public_ip").unwrap();
    reports(&second, &sentence, "our_public_ip").unwrap();
    let key = key_of(&node).unwrap();
    let mut writes = BTreeSet::new();
    let begun = Instant::now();
    while begun.elapsed() < OBSERVED {
        writes.insert(base.cluster.etcd.get(&key).unwrap().unwrap().mod_revision);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(writes.len() <= 4, "{writes:?}");
    healthy.keep_their_peers().unwrap();
}

#[test]
fn a_restored_snapshot_ends_once_its_node_has_a_newer_lease() {
    let base = Base::start().unwrap();
    let (node, daemon) = base.machine("n3", "one").unwrap();
    let pod = node.pod().unwrap();
    let (before, key) = (node.address(Family::V4).unwrap(), key_of(&node).unwrap());
    let restored = base.node("n4").unwrap();
    clone_disk(&node, &restored).unwrap();
    node.renumber(free(0)).unwrap();
    let published = || {
        let lease = base.cluster.etcd.get(&key)?.context("no lease")?;
        ensure!(lease.value.contains(&free(0).to_string()), "{}", lease.value);
        Ok(())
    };
    eventually(PATIENCE, published).unwrap();
    restored.renumber(before).unwrap();
    base.announce_addresses().unwrap();
    let healthy = base.with(&pod).unwrap();
    let old = on_machine(&restored, &base.cluster.etcd, "one").start().unwrap();
    ends_by(&old, free(0)).unwrap();
    published().unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn an_older_lease_that_claims_a_nodes_mac_does_not_cut_it_off() {
    let base = Base::start().unwrap();
    let hostile = Peer::numbered(1);
    hostile.join(&base.cluster.etcd).unwrap();
    let (node, daemon) = base.machine("n3", "m3").unwrap();
    let healthy = base.with(&node.pod().unwrap()).unwrap();
    let claim = vxlan(hostile.public_ip, &mac(&node).unwrap());
    base.cluster.etcd.put(&hostile.key(), &claim).unwrap();
    let id = hostile.subnet.to_string().replace('/', "-");
    let sentence = format!("lease {id} conflicts with this node: VTEP MAC");
    reports(&daemon, &sentence, "our_vtep_mac").unwrap();
    let rejects = |observer: &Daemon| {
        let reason = lease_reason(observer, &id)?;
        ensure!(reason.contains("its VTEP MAC conflicts with lease"), "{reason}");
        ensure!(observer.get("/metrics")?.body.contains("{about=\"vtep_mac\"} 1"));
        Ok(())
    };
    for observer in &base.cluster.daemons {
        eventually(PATIENCE, || rejects(observer)).unwrap();
    }
    healthy.keep_their_peers().unwrap();
}

#[test]
fn a_new_node_may_reuse_a_recent_address() {
    let base = Base::start().unwrap();
    let (moved, daemon) = base.machine("n3", "m3").unwrap();
    let (pod, before) = (moved.pod().unwrap(), moved.address(Family::V4).unwrap());
    let old_mac = mac(&moved).unwrap();
    let healthy = base.with(&pod).unwrap();
    moved.renumber(free(0)).unwrap();
    has_changed_its_mac(&daemon, "the public IP changed").unwrap();
    let key = key_of(&moved).unwrap();
    eventually(PATIENCE, || {
        let lease = base.cluster.etcd.get(&key)?.context("no lease")?;
        ensure!(lease.value.contains(&free(0).to_string()), "{}", lease.value);
        Ok(())
    })
    .unwrap();
    let new = base.node("n4").unwrap();
    new.renumber(before).unwrap();
    base.announce_addresses().unwrap();
    forget_neighbours(&[moved]).unwrap();
    let other = on_machine(&new, &base.cluster.etcd, "m4").start().unwrap();
    other.wait_ready().unwrap();
    assert_eq!(mac(&new).unwrap(), old_mac);
    healthy.reach(&new.pod().unwrap()).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
    eventually(PATIENCE, || is_ready(&other)).unwrap();
}

#[test]
fn the_lease_of_a_wiped_machine_shares_its_tunnel_and_is_named() {
    let base = Base::start().unwrap();
    let left = Peer::numbered(1);
    left.join(&base.cluster.etcd).unwrap();
    let (node, daemon) = base.machine("n3", "m3").unwrap();
    let healthy = base.with(&node.pod().unwrap()).unwrap();
    let (public_ip, mac) = (node.address(Family::V4).unwrap(), mac(&node).unwrap());
    let grant = base.cluster.etcd.grant(3600).unwrap();
    base.cluster.etcd.put_with_lease(&left.key(), &vxlan(public_ip, &mac), grant).unwrap();
    let sentence = format!("another node announces our public IP {public_ip} (MAC {mac}) in lease");
    reports(&daemon, &sentence, "our_public_ip").unwrap();
    let accepted = Peer { public_ip, mac, ..left.clone() };
    let all = || base.cluster.nodes.iter().try_for_each(|node| accepted.is_tunnelled_by(node));
    eventually(PATIENCE, all).unwrap();
    base.cluster.etcd.revoke(grant).unwrap();
    let gone = |node: &Node| {
        ensure!(node.route_to(left.subnet)?.is_none(), "the lease that was left is still routed");
        Ok(())
    };
    eventually(PATIENCE, || base.cluster.nodes.iter().try_for_each(gone)).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn a_node_with_the_mac_of_another_takes_a_new_one() {
    let base = Base::start().unwrap();
    let (node, mut daemon) = base.machine("n3", "m3").unwrap();
    let (pod, own) = (node.pod().unwrap(), mac(&node).unwrap());
    let healthy = base.both().unwrap();
    daemon.stop().unwrap();
    node.change_mac("flannel.1", &mac(&base.cluster.nodes[1]).unwrap()).unwrap();
    daemon.start().unwrap();
    daemon.wait_ready().unwrap();
    has_changed_its_mac(&daemon, "another lease has the VTEP MAC of this node").unwrap();
    assert_eq!(mac(&node).unwrap(), own);
    healthy.reach(&pod).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn a_node_whose_address_and_lease_were_taken_over_while_it_was_down_ends() {
    let base = Base::start().unwrap();
    let (off, mut daemon) = base.machine("n3", "m3").unwrap();
    wait_for_checkpoint(&off).unwrap();
    let address = off.address(Family::V4).unwrap();
    daemon.kill().unwrap();
    off.wipe(Files::Kept).unwrap();
    off.renumber(free(0)).unwrap();
    let next = base.node("n4").unwrap();
    next.renumber(address).unwrap();
    base.announce_addresses().unwrap();
    let other = on_machine(&next, &base.cluster.etcd, "m4").start().unwrap();
    other.wait_ready().unwrap();
    let healthy = base.with(&next.pod().unwrap()).unwrap();
    daemon.start().unwrap();
    ends_by(&daemon, address).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&other)).unwrap();
}

/// Nodes n1 and n2 of Kubernetes.
struct Kubernetes {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    server: ApiServer,
    segment: Segment,
    config: PathBuf,
    lab: Lab,
}

impl Kubernetes {
    fn start() -> Result<Self> {
        let lab = Lab::new(binaries())?;
        let server = lab.api_server()?;
        let segment = lab.segment(Stack::V4.segment(1))?;
        let config = lab.folder().join("net-conf.json");
        std::fs::write(&config, VXLAN)?;
        let (nodes, pods) = (Vec::new(), Vec::new());
        let mut kubernetes = Self { nodes, pods, server, segment, config, lab };
        for number in 1..=2 {
            let node = kubernetes.node(number)?;
            kubernetes.run(&node)?;
            kubernetes.pods.push(node.pod()?);
            kubernetes.nodes.push(node);
        }
        Ok(kubernetes)
    }

    /// A Node of the cluster, without a daemon.
    fn node(&self, number: u8) -> Result<Node> {
        let node = self.lab.node(&format!("n{number}"), &self.segment)?;
        self.server.add_node(node.name(), &[&format!("10.244.{number}.0/24")]);
        Ok(node)
    }

    fn run(&self, node: &Node) -> Result<Daemon> {
        let daemon = node.kubernetes_daemon(&self.server, &self.config).start()?;
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn with(&self, pod: &Pod) -> Result<Healthy> {
        Healthy::start(&self.lab, &[&self.pods[0], &self.pods[1], pod])
    }
}

#[test]
fn a_node_reinstalled_under_another_name_works_next_to_the_old_one() {
    let kubernetes = Kubernetes::start().unwrap();
    let old = kubernetes.node(3).unwrap();
    let address = old.address(Family::V4).unwrap();
    kubernetes.run(&old).unwrap().kill().unwrap();
    let was = mac(&old).unwrap();
    // The machine's disk is wiped; it keeps its address and gets another name.
    old.renumber(free(0)).unwrap();
    let new = kubernetes.node(4).unwrap();
    new.renumber(address).unwrap();
    forget_neighbours(&kubernetes.nodes).unwrap();
    let daemon = kubernetes.run(&new).unwrap();
    let healthy = kubernetes.with(&new.pod().unwrap()).unwrap();
    assert_eq!(mac(&new).unwrap(), was);
    let sentence =
        format!("another node announces our public IP {address} (MAC {was}) in lease n3");
    reports(&daemon, &sentence, "our_public_ip").unwrap();
    // The shared entries stay when the old one is removed.
    kubernetes.server.delete_node("n3");
    let gone = |node: &Node| {
        ensure!(node.route_to("10.244.3.0/24")?.is_none(), "the old node is still routed");
        Ok(())
    };
    eventually(PATIENCE, || kubernetes.nodes.iter().try_for_each(gone)).unwrap();
    healthy.keep_their_peers().unwrap();
    eventually(PATIENCE, || is_ready(&daemon)).unwrap();
}

#[test]
fn a_node_of_kubernetes_whose_address_is_taken_returns_with_a_new_one() {
    let kubernetes = Kubernetes::start().unwrap();
    let off = kubernetes.node(3).unwrap();
    let (address, mut daemon) = (off.address(Family::V4).unwrap(), kubernetes.run(&off).unwrap());
    let pod = off.pod().unwrap();
    wait_for_checkpoint(&off).unwrap();
    daemon.kill().unwrap();
    off.wipe(Files::Kept).unwrap();
    off.renumber(free(0)).unwrap();
    let next = kubernetes.node(4).unwrap();
    next.renumber(address).unwrap();
    forget_neighbours(&kubernetes.nodes).unwrap();
    let other = kubernetes.run(&next).unwrap();
    let healthy = kubernetes.with(&next.pod().unwrap()).unwrap();
    let sentence = format!("another node announces our public IP {address}");
    reports(&other, &sentence, "our_public_ip").unwrap();
    daemon.start().unwrap();
    daemon.wait_ready().unwrap();
    healthy.reach(&pod).unwrap();
    healthy.keep_their_peers().unwrap();
    let (ready, reasons) = readiness(&daemon).unwrap();
    assert!(ready && reasons.is_empty(), "{reasons}");
    eventually(PATIENCE, || is_ready(&other)).unwrap();
}

#[test]
fn two_nodes_of_kubernetes_with_one_public_ip_both_report_it() {
    let kubernetes = Kubernetes::start().unwrap();
    let node = kubernetes.node(3).unwrap();
    let daemon = kubernetes.run(&node).unwrap();
    let healthy = kubernetes.with(&node.pod().unwrap()).unwrap();
    let address = node.address(Family::V4).unwrap();
    let other = kubernetes.node(4).unwrap();
    let plan = other.kubernetes_daemon(&kubernetes.server, &kubernetes.config);
    let second = plan.argument(format!("--public-ip={address}")).start().unwrap();
    second.wait_ready().unwrap();
    for (daemon, lease) in [(&daemon, "n4"), (&second, "n3")] {
        let mac = mac(&node).unwrap();
        let sentence =
            format!("another node announces our public IP {address} (MAC {mac}) in lease {lease}");
        reports(daemon, &sentence, "our_public_ip").unwrap();
    }
    healthy.keep_their_peers().unwrap();
}
