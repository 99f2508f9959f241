//! From flanneld to tweedd on a live cluster, and back: no packet is lost, no entry is recreated.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{Change, Daemon, Family, Lab, Node, Path, Segment, Tally, Traffic, eventually};

use crate::fixture::ask::tweedctl;
use crate::fixture::cluster::{CONFIG, Cluster, PATIENCE, Stack, binaries};
use crate::fixture::flanneld::{Flanneld, Lease, Store};
use crate::fixture::peer::Peer;
use crate::fixture::table::{Backend, Mixed, Side};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(300);
const SIZE: usize = 3;

#[derive(Clone, Copy)]
enum Kept {
    InEtcd,
    InKubernetes,
}

/// Nodes in the state that flanneld leaves, under traffic; tweedd takes over one after the other.
struct Legacy {
    nodes: Vec<Node>,
    leases: Vec<Lease>,
    /// Those of the nodes that are already taken over.
    daemons: Vec<Daemon>,
    store: Store,
    backend: Backend,
    stack: Stack,
    segment: Segment,
    lab: Lab,
}

impl Legacy {
    /// Has no nodes yet.
    fn build(kept: Kept, stack: Stack, backend: Backend) -> Result<Self> {
        let lab = Lab::new(binaries())?;
        let config = stack.config(&Side { backend, mixed: Mixed::Off }.config());
        let store = match kept {
            Kept::InEtcd => {
                let etcd = lab.etcd()?;
                etcd.put(CONFIG, &config)?;
                Store::Etcd(etcd)
            }
            Kept::InKubernetes => {
                let (server, file) = (lab.api_server()?, lab.folder().join("net-conf.json"));
                std::fs::write(&file, config)?;
                Store::Kubernetes { server, config: file }
            }
        };
        let segment = lab.segment(stack.segment(1))?;
        let (nodes, leases, daemons) = Default::default();
        Ok(Self { nodes, leases, daemons, store, backend, stack, segment, lab })
    }

    fn start(kept: Kept, stack: Stack, backend: Backend) -> Result<Self> {
        let mut legacy = Self::build(kept, stack, backend)?;
        (0..SIZE).try_for_each(|_| legacy.join())?;
        Ok(legacy)
    }

    /// Adds a node that runs flanneld, with a pod.
    fn join(&mut self) -> Result<()> {
        let index = self.nodes.len();
        let node = self.lab.node(&format!("n{}", index + 1), &self.segment)?;
        let number = 21 + 7 * index;
        let subnets = self.stack.families().iter().map(|family| match family {
            Family::V4 => format!("10.244.{number}.0/24").parse(),
            Family::V6 => format!("fd00:244:0:{number}::/64").parse(),
        });
        let subnets = subnets.collect::<Result<Vec<IpNetwork>, _>>()?;
        self.store.assign(&node, &subnets);
        self.nodes.push(node);
        self.leases.push(self.flanneld(index).start(&subnets)?);
        self.nodes[index].pod()?;
        self.update_flannels(self.daemons.len()..index)
    }

    fn flanneld(&self, index: usize) -> Flanneld<'_> {
        let (node, store) = (&self.nodes[index], &self.store);
        Flanneld { node, store, backend: self.backend }
    }

    fn update_flannels(&self, mut nodes: std::ops::Range<usize>) -> Result<()> {
        nodes.try_for_each(|index| self.flanneld(index).hear())
    }

    fn published(&self) -> Result<Vec<String>> {
        self.store.text(&self.nodes[0])
    }

    fn pairs(&self) -> Vec<tweed_lab::Pair> {
        self.stack.families().iter().flat_map(|family| self.lab.pairs(*family)).collect()
    }

    /// Starts tweedd on the next node; returns what it changed in the kernel.
    fn take_over(&mut self) -> Result<Vec<Change>> {
        let index = self.daemons.len();
        let node = &self.nodes[index];
        let monitor = node.monitor()?;
        let daemon = self.store.daemon(node).argument("--ip-masq").start()?;
        daemon.wait_ready()?;
        self.daemons.push(daemon);
        self.update_flannels(index + 1..SIZE)?;
        monitor.finish()
    }

    /// Route, neighbour, FDB entry and device are the same as before.
    fn is_adopted(&self, index: usize) -> Result<()> {
        let (node, own) = (&self.nodes[index], &self.leases[index]);
        ensure!(node.subnet_env()?.subnets() == own.subnets(), "another subnet");
        for peer in self.peers_of(index) {
            self.is_reached(node, peer)?;
            let routes = node.routes_to(peer.subnet)?;
            let marks: Vec<_> = routes.iter().map(|it| it.protocol.as_deref()).collect();
            ensure!(marks == [Some("241")], "{routes:?}");
        }
        for end in own.ends.iter().filter(|end| !end.mac.is_empty()) {
            let device = node.link(end.device())?.context("no device")?;
            ensure!(device.mac == end.mac, "MAC is {}, not {}", device.mac, end.mac);
        }
        Ok(())
    }

    fn peers_of(&self, index: usize) -> impl Iterator<Item = &Peer> {
        let others = self.leases.iter().enumerate().filter(move |(other, _)| *other != index);
        others.flat_map(|(_, lease)| &lease.ends)
    }

    fn is_reached(&self, node: &Node, peer: &Peer) -> Result<()> {
        match self.backend {
            Backend::Vxlan => peer.is_tunnelled_by(node),
            Backend::HostGw => peer.is_direct_from(node),
        }
    }

    /// Follows the steps of the documentation.
    fn go_back(&self, index: usize, order: Order) -> Result<()> {
        let node = &self.nodes[index];
        self.daemons[index].stop()?;
        match order {
            Order::HandoverFirst => {
                hand_over(node, &self.store)?;
                self.flanneld(index).start(&[])?;
            }
            Order::FlanneldFirst => {
                self.flanneld(index).start(&[])?;
                hand_over(node, &self.store)?;
            }
        }
        self.update_flannels(0..index)?;
        for peer in self.peers_of(index) {
            self.is_reached(node, peer)?;
            let routes = node.routes_to(peer.subnet)?;
            ensure!(routes.len() == 1, "a route next to flannel's: {routes:?}");
        }
        Ok(())
    }

    /// A new flanneld node reaches all others; after it leaves, no entry of it remains.
    fn is_flannels_again(&mut self) -> Result<()> {
        self.daemons.clear();
        self.join()?;
        for family in self.stack.families() {
            let all = || Ok::<_, anyhow::Error>(self.lab.ping_matrix(*family)?.all_answered());
            eventually(PATIENCE, all).context("a node that joined flannel")?;
        }
        let (node, lease) = (&self.nodes[SIZE], &self.leases[SIZE]);
        self.store.withdraw(node, lease)?;
        for index in 0..SIZE {
            self.flanneld(index).forget(lease)?;
            lease.ends.iter().try_for_each(|end| end.is_unknown_to(&self.nodes[index]))?;
        }
        Ok(())
    }
}

/// Which of the two is done first: a running flanneld already has its own rules.
#[derive(Clone, Copy)]
enum Order {
    HandoverFirst,
    FlanneldFirst,
}

/// Runs `tweedctl handover`; then node and store contain no entry of tweed.
fn hand_over(node: &Node, store: &Store) -> Result<()> {
    let etcd = match store {
        Store::Etcd(etcd) => Some(etcd),
        Store::Kubernetes { .. } => None,
    };
    let endpoints = etcd.map(|etcd| format!("--etcd-endpoints={}", etcd.endpoints().join(",")));
    let arguments: Vec<&str> = ["handover"].into_iter().chain(endpoints.as_deref()).collect();
    let output = tweedctl(node, &arguments)?;
    ensure!(output.status.success(), "{output:?}");
    let tables = node.namespace().run("nft", &["list", "tables"])?;
    ensure!(!tables.contains("tweed"), "{tables}");
    let nexthops = node.ip("nexthop show")?;
    ensure!(nexthops.is_empty(), "{nexthops}");
    for family in ["-4", "-6"] {
        let routes = node.ip(format!("{family} route show proto 241"))?;
        ensure!(routes.is_empty(), "{routes}");
    }
    let names = std::fs::read_dir(node.folder())?.map(|file| Ok(file?.file_name()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.retain(|name| name.to_string_lossy().starts_with("subnet"));
    ensure!(names == ["subnet.env"], "{names:?}");
    if let Some(etcd) = etcd {
        let reports = etcd.list("/coreos.com/network/tweed/nodes/")?;
        let own = node.address(Family::V4)?.to_string();
        let ours = reports.iter().find(|report| report.value.contains(&format!("\"{own}\"")));
        ensure!(ours.is_none(), "{ours:?}");
    }
    Ok(())
}

/// Whether `text` is about the loopback: with host-gw, it has the address for probes until the next
/// boot.
fn is_of_loopback(text: &str) -> bool {
    text.split_whitespace().any(|word| word == "lo")
}

/// Each route gets its mark and nexthop object, in place, and nothing else changes.
fn ensure_only_marks(mut changes: Vec<Change>, backend: Backend, peers: usize) -> Result<()> {
    changes.retain(|it| backend != Backend::HostGw || !is_of_loopback(&it.text));
    let listed = || changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let is_mark = |it: &Change| it.text.contains("proto 241") && !it.text.starts_with("Deleted");
    let count = |kind| changes.iter().filter(|it| it.kind == kind).count();
    let (routes, nexthops) = (count("ROUTE"), count("NEXTHOP"));
    ensure!(changes.iter().all(is_mark), "more than marks changed:\n{}", listed());
    ensure!((routes, nexthops) == (peers, peers), "not {peers} of each:\n{}", listed());
    ensure!(changes.len() == 2 * peers, "something else changed:\n{}", listed());
    Ok(())
}

/// From flannel to tweedd and back, node by node, under traffic.
fn goes_there_and_back(kept: Kept, stack: Stack, backend: Backend, order: Order) -> Result<()> {
    let mut legacy = Legacy::start(kept, stack, backend)?;
    let (pairs, published) = (legacy.pairs(), legacy.published()?);
    let before = legacy.nodes.iter().map(Node::snapshot).collect::<Result<Vec<_>>>()?;
    let probe = legacy.lab.probe(&pairs, RATE)?;
    let traffic = Traffic::start(&pairs)?;
    let step = |legacy: &Legacy, index: usize| -> Result<()> {
        probe.run_for(PAUSE);
        let now = legacy.published()?;
        ensure!(now == published, "after {}: {now:#?}, not {published:#?}", index + 1);
        Ok(())
    };
    for index in 0..SIZE {
        probe.mark(&format!("n{} to tweedd", index + 1));
        let changes = legacy.take_over()?;
        ensure_only_marks(changes, backend, (SIZE - 1) * stack.families().len())?;
        legacy.is_adopted(index)?;
        step(&legacy, index)?;
    }
    for index in 0..SIZE {
        probe.mark(&format!("n{} to flannel", index + 1));
        legacy.go_back(index, order)?;
        step(&legacy, index)?;
    }
    let report = probe.finish()?;
    println!("{report}");
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    let tally = traffic.finish()?;
    let Tally { broken, failed, .. } = tally;
    ensure!(broken == 0 && failed == 0 && tally.echoes > 0 && tally.pages > 0, "{tally:?}");
    for (node, before) in legacy.nodes.iter().zip(&before) {
        let mut changes = before.changes(&node.snapshot()?);
        changes.retain(|it| backend != Backend::HostGw || !is_of_loopback(it));
        ensure!(changes.is_empty(), "{} is not as it was: {changes:#?}", node.name());
    }
    legacy.is_flannels_again()
}

#[test]
fn a_vxlan_cluster_with_leases_in_etcd_leaves_flannel_and_returns_without_a_lost_packet() {
    goes_there_and_back(Kept::InEtcd, Stack::V4, Backend::Vxlan, Order::HandoverFirst).unwrap();
}

#[test]
fn a_host_gw_cluster_with_leases_in_etcd_leaves_flannel_and_returns_without_a_lost_packet() {
    goes_there_and_back(Kept::InEtcd, Stack::Dual, Backend::HostGw, Order::FlanneldFirst).unwrap();
}

#[test]
fn a_vxlan_cluster_of_kubernetes_leaves_flannel_and_returns_without_a_lost_packet() {
    goes_there_and_back(Kept::InKubernetes, Stack::Dual, Backend::Vxlan, Order::FlanneldFirst)
        .unwrap();
}

#[test]
fn a_host_gw_cluster_of_kubernetes_leaves_flannel_and_returns_without_a_lost_packet() {
    goes_there_and_back(Kept::InKubernetes, Stack::V4, Backend::HostGw, Order::HandoverFirst)
        .unwrap();
}

#[test]
fn stale_flannel_entries_are_removed_and_foreign_ones_stay() {
    let mut legacy = Legacy::build(Kept::InEtcd, Stack::V4, Backend::Vxlan).unwrap();
    legacy.join().unwrap();
    let Store::Etcd(etcd) = &legacy.store else { panic!("leases are not in etcd") };
    let (node, peers) = (&legacy.nodes[0], [Peer::numbered(1), Peer::numbered(2)]);
    peers.iter().try_for_each(|peer| peer.join(etcd)).unwrap();
    legacy.flanneld(0).hear().unwrap();
    peers[1].is_tunnelled_by(node).unwrap();
    peers[1].leave(etcd).unwrap();
    let foreign = "route add 10.244.250.0/24 via 10.99.1.12 dev eth0 proto static
        route add 10.244.251.0/24 via 10.99.1.12 dev eth0
        route add 10.50.0.0/16 via 10.99.1.12 dev eth0
        address add 198.51.100.1/32 dev flannel.1
        link add foreign0 type bridge";
    node.namespace().ip_batch(foreign).unwrap();
    let daemon = node.daemon(etcd).argument("--v=10").start().unwrap();
    daemon.wait_ready().unwrap();
    eventually(PATIENCE, || peers[1].is_unknown_to(node)).unwrap();
    peers[0].is_tunnelled_by(node).unwrap();
    for route in ["10.244.250.0/24", "10.244.251.0/24", "10.50.0.0/16"] {
        assert_eq!(node.path_to(route).unwrap(), Path::Direct, "{route}");
    }
    assert!(node.link("foreign0").unwrap().is_some());
    let addresses = node.addresses("flannel.1").unwrap();
    assert!(addresses.iter().any(|it| it.address.to_string() == "198.51.100.1/32"));
}

#[test]
fn flannel_takes_over_nodes_that_it_never_ran_on() {
    for backend in [Backend::Vxlan, Backend::HostGw] {
        let config = Stack::V4.config(&Side { backend, mixed: Mixed::Off }.config());
        let cluster = Cluster::start(SIZE, &config).unwrap();
        cluster.start_pods().unwrap();
        let path = if backend == Backend::Vxlan { Path::Tunnel } else { Path::Direct };
        cluster.wait_for_paths(|_, _| path).unwrap();
        let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
        let Cluster { nodes, daemons, etcd, lab: _lab, .. } = cluster;
        let store = Store::Etcd(etcd);
        let published = store.text(&nodes[0]).unwrap();
        for (node, daemon) in nodes.iter().zip(&daemons) {
            daemon.stop().unwrap();
            hand_over(node, &store).unwrap();
            let lease = Flanneld { node, store: &store, backend }.start(&[]).unwrap();
            assert_eq!(store.text(node).unwrap(), published);
            for other in nodes.iter().filter(|other| other.name() != node.name()) {
                let routes = other.routes_to(lease.ends[0].subnet).unwrap();
                assert_eq!(routes.len(), 1, "a route in addition to flannel's: {routes:?}");
            }
        }
        probe.run_for(PAUSE);
        let report = probe.finish().unwrap();
        assert_eq!(report.lost(), 0, "{report}");
    }
}
