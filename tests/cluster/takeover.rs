//! From flanneld to tweedd on a live cluster, and back: nothing is lost, nothing is made anew.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Change, Etcd, Family, Node, Path, Probe, eventually};

use crate::cluster::{Cluster, ClusterPlan, PATIENCE, Stack};
use crate::peer::{Peer, host_gw};
use crate::table::{HOST_GW, Side, VXLAN};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(300);
/// What flannel grants.
const DAY: u32 = 86400;

/// Four nodes as flanneld leaves them, under traffic.
struct Legacy {
    cluster: Cluster,
    peers: Vec<Peer>,
    side: Side,
    probe: Probe,
}

impl Legacy {
    fn start(side: Side) -> Result<Self> {
        let cluster = ClusterPlan::new(4, &Stack::V4.config(&side.config())).build()?;
        let peer = |(index, node): (usize, &Node)| -> Result<Peer> {
            let subnet = format!("10.244.{}.0/24", 21 + 7 * index).parse()?;
            // Flannel draws its MAC addresses by lot.
            let mac = format!("{:02x}:5c:a1:{index:02x}:77:0e", 0x42 + 4 * index);
            Ok(Peer { subnet, public_ip: node.address(Family::V4)?, mac })
        };
        let peers = cluster.nodes.iter().enumerate().map(peer).collect::<Result<Vec<_>>>()?;
        for (index, node) in cluster.nodes.iter().enumerate() {
            play_flannel(node, index, &peers, side)?;
            write_lease(&cluster.etcd, &peers[index], side)?;
        }
        cluster.start_pods()?;
        let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE)?;
        Ok(Self { cluster, peers, side, probe })
    }

    /// Starts tweedd on node number `index`; returns what it changed in the kernel.
    fn take_over(&mut self, index: usize) -> Result<Vec<Change>> {
        let node = &self.cluster.nodes[index];
        self.probe.mark(node.name());
        let monitor = node.monitor()?;
        let daemon = node.daemon(&self.cluster.etcd).start()?;
        daemon.wait_ready()?;
        self.cluster.daemons.push(daemon);
        self.probe.run_for(PAUSE);
        monitor.finish()
    }

    /// Route, neighbour, FDB entry and device are the ones that were there.
    fn is_adopted(&self, index: usize) -> Result<()> {
        let (node, own) = (&self.cluster.nodes[index], &self.peers[index]);
        ensure!(node.subnet_env()?.subnets() == [own.subnet], "another subnet");
        for peer in self.peers.iter().filter(|peer| peer.subnet != own.subnet) {
            if self.side == VXLAN {
                peer.is_tunnelled_by(node)?;
            } else {
                peer.is_direct_from(node)?;
            }
            let routes = node.routes_to(peer.subnet)?;
            let marks: Vec<_> = routes.iter().map(|it| it.protocol.as_deref()).collect();
            ensure!(marks == [Some("241")], "{routes:?}");
        }
        if self.side == VXLAN {
            let device = node.link("flannel.1")?.context("no device")?;
            ensure!(device.mac == own.mac, "MAC is {}, not {}", device.mac, own.mac);
        }
        Ok(())
    }
}

/// `flannel.1` with all that belongs to it, the routes to all peers, and `subnet.env`.
fn play_flannel(node: &Node, index: usize, peers: &[Peer], side: Side) -> Result<()> {
    let own = &peers[index];
    let mut lines = String::new();
    if side == VXLAN {
        write!(
            lines,
            "link add flannel.1 address {} mtu 1450 txqueuelen 0 type vxlan id 1 local {} dev eth0 dstport 8472 nolearning
             address add {}/32 dev flannel.1
             link set flannel.1 up\n",
            own.mac,
            own.public_ip,
            own.subnet.network(),
        )?;
    }
    for peer in peers.iter().filter(|peer| peer.subnet != own.subnet) {
        writeln!(lines, "{}", flannel_route("add", peer, side))?;
        if side == VXLAN {
            let (base, mac) = (peer.subnet.network(), &peer.mac);
            writeln!(lines, "neighbour add {base} dev flannel.1 lladdr {mac} nud permanent")?;
        }
    }
    node.namespace().ip_batch(&lines)?;
    for peer in peers.iter().filter(|peer| side == VXLAN && peer.subnet != own.subnet) {
        let (mac, ip) = (&peer.mac, peer.public_ip);
        node.bridge(format!("fdb add {mac} dev flannel.1 dst {ip} self permanent"))?;
    }
    let gateway = own.subnet.network().to_string().replace(".0", ".1");
    let mtu = if side == VXLAN { 1450 } else { 1500 };
    let env = format!(
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET={gateway}/24\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n"
    );
    Ok(std::fs::write(node.subnet_file(), env)?)
}

/// Without a protocol, `ip` says `boot`, and so does flannel.
fn flannel_route(verb: &str, peer: &Peer, side: Side) -> String {
    let (subnet, base, ip) = (peer.subnet, peer.subnet.network(), peer.public_ip);
    if side == VXLAN {
        format!("route {verb} {subnet} via {base} dev flannel.1 onlink")
    } else {
        format!("route {verb} {subnet} via {ip} dev eth0")
    }
}

fn lease_bytes(peer: &Peer, side: Side) -> String {
    if side == VXLAN { peer.vxlan() } else { host_gw(peer.public_ip) }
}

fn write_lease(etcd: &Etcd, peer: &Peer, side: Side) -> Result<()> {
    let grant = etcd.grant(DAY)?;
    etcd.put_with_lease(&peer.key(), &lease_bytes(peer, side), grant)
}

/// Each route gets its mark and its nexthop object, in place, and nothing else changes.
fn ensure_only_marks(changes: &[Change], peers: usize) -> Result<()> {
    let listed = || changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let is_mark = |it: &Change| it.text.contains("proto 241") && !it.text.starts_with("Deleted");
    let count = |kind| changes.iter().filter(|it| it.kind == kind).count();
    let (routes, nexthops) = (count("ROUTE"), count("NEXTHOP"));
    ensure!(changes.iter().all(is_mark), "more than marks changed:\n{}", listed());
    ensure!((routes, nexthops) == (peers, peers), "not {peers} of each:\n{}", listed());
    ensure!(changes.len() == 2 * peers, "something else changed:\n{}", listed());
    Ok(())
}

fn tweedd_takes_over(side: Side) -> Result<()> {
    let mut legacy = Legacy::start(side)?;
    let others = legacy.peers.len() - 1;
    for index in 0..legacy.peers.len() {
        let changes = legacy.take_over(index)?;
        ensure_only_marks(&changes, others)?;
        legacy.is_adopted(index)?;
    }
    let leases = legacy.cluster.etcd.list(&format!("{}/", crate::cluster::SUBNETS))?;
    for peer in &legacy.peers {
        let lease = leases.iter().find(|it| it.key == peer.key()).context("a lease is gone")?;
        ensure!(lease.value == lease_bytes(peer, side), "{}", lease.value);
    }
    ensure!(leases.len() == legacy.peers.len(), "{leases:?}");
    let report = legacy.probe.finish()?;
    println!("{report}");
    ensure!(report.total().lost == 0, "lost packets:\n{report}");
    Ok(())
}

#[test]
fn a_vxlan_cluster_of_flannel_is_taken_over_without_a_lost_packet() {
    tweedd_takes_over(VXLAN).unwrap();
}

#[test]
fn a_host_gw_cluster_of_flannel_is_taken_over_without_a_lost_packet() {
    tweedd_takes_over(HOST_GW).unwrap();
}

#[test]
fn what_flannel_forgot_to_remove_goes_and_what_is_not_flannels_stays() {
    let cluster = ClusterPlan::new(2, &Stack::V4.config(&VXLAN.config())).build().unwrap();
    let peers: Vec<Peer> = [1, 2, 3].map(Peer::numbered).into();
    let node = &cluster.nodes[0];
    let own = Peer { public_ip: node.address(Family::V4).unwrap(), ..peers[0].clone() };
    let here = [own.clone(), peers[1].clone(), peers[2].clone()];
    play_flannel(node, 0, &here, VXLAN).unwrap();
    write_lease(&cluster.etcd, &own, VXLAN).unwrap();
    write_lease(&cluster.etcd, &peers[1], VXLAN).unwrap();
    let foreign = "route add 10.244.250.0/24 via 10.99.1.12 dev eth0 proto static
        route add 10.244.251.0/24 via 10.99.1.12 dev eth0
        route add 10.50.0.0/16 via 10.99.1.12 dev eth0
        address add 198.51.100.1/32 dev flannel.1
        link add foreign0 type bridge";
    node.namespace().ip_batch(foreign).unwrap();
    let daemon = node.daemon(&cluster.etcd).argument("--v=10").start().unwrap();
    daemon.wait_ready().unwrap();
    eventually(PATIENCE, || peers[2].is_unknown_to(node)).unwrap();
    peers[1].is_tunnelled_by(node).unwrap();
    for route in ["10.244.250.0/24", "10.244.251.0/24", "10.50.0.0/16"] {
        assert_eq!(node.path_to(route).unwrap(), Path::Direct, "{route}");
    }
    assert!(node.link("foreign0").unwrap().is_some());
    let addresses = node.addresses("flannel.1").unwrap();
    assert!(addresses.iter().any(|it| it.address.to_string() == "198.51.100.1/32"));
}

/// What flannel compares before it keeps a device.
fn flannel_keeps_the_device(node: &Node) -> Result<()> {
    let device = node.link("flannel.1")?.context("no device")?;
    let vxlan = device.vxlan.context("flannel.1 is no vxlan device")?;
    let settings = (vxlan.id, vxlan.port, vxlan.learning, vxlan.link.as_deref(), vxlan.local);
    let local = Some(node.address(Family::V4)?);
    ensure!(settings == (1, 8472, false, Some("eth0"), local), "{settings:?}");
    let details = node.ip("-details link show flannel.1")?;
    let mut settings = details.lines().filter(|line| line.trim_start().starts_with("vxlan"));
    let settings = settings.next().context("no settings")?;
    let unwanted = ["l2miss", "l3miss", "gbp", "group", "remote", "proxy", "rsc", "udp6zerocsumtx"];
    let found = settings.split_whitespace().find(|word| unwanted.contains(word));
    ensure!(found.is_none(), "{found:?}: {settings}");
    Ok(())
}

#[test]
fn flannel_finds_its_own_again() {
    for side in [VXLAN, HOST_GW] {
        let cluster = Cluster::start(3, &Stack::V4.config(&side.config())).unwrap();
        cluster.start_pods().unwrap();
        let expected = if side == VXLAN { Path::Tunnel } else { Path::Direct };
        cluster.wait_for_paths(|_, _| expected).unwrap();
        let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
        let peers: Vec<Peer> = (0..3).map(|index| as_peer(&cluster, index).unwrap()).collect();
        for (index, node) in cluster.nodes.iter().enumerate() {
            cluster.daemons[index].stop().unwrap();
            let lease = cluster.etcd.get(&peers[index].key()).unwrap().unwrap();
            assert_eq!(lease.value, lease_bytes(&peers[index], side));
            if side == VXLAN {
                flannel_keeps_the_device(node).unwrap();
            }
            for peer in peers.iter().filter(|peer| peer.subnet != peers[index].subnet) {
                node.ip(flannel_route("replace", peer, side)).unwrap();
                let routes = node.routes_to(peer.subnet).unwrap();
                assert_eq!(routes.len(), 1, "a route beside flannel's: {routes:?}");
            }
        }
        probe.run_for(PAUSE);
        let report = probe.finish().unwrap();
        assert_eq!(report.total().lost, 0, "{report}");
    }
}

fn as_peer(cluster: &Cluster, index: usize) -> Result<Peer> {
    let node = &cluster.nodes[index];
    let mac = node.link("flannel.1")?.map(|link| link.mac).unwrap_or_default();
    let subnet = cluster.subnet(index, Family::V4)?;
    Ok(Peer { subnet, public_ip: node.address(Family::V4)?, mac })
}
