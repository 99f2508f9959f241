//! Which sources can send into the tunnel, with its guards and without them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Daemon, DaemonPlan, Family, Namespace, Node, Path, Pod, eventually, listen};

use crate::firewall::forged::{Forged, PORT, mac};
use crate::fixture::ask::{is_ready, json, tweedctl};
use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, SUBNETS, Stack};
use crate::fixture::peer::{Peer, key, vxlan};
use crate::fixture::table::{HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(300);

/// Two nodes with a pod each, joined by a tunnel.
struct Scene {
    cluster: Cluster,
    pods: Vec<Pod>,
    family: Family,
}

impl Scene {
    fn start(nodes: usize, stack: Stack, flags: &'static [&'static str]) -> Result<Self> {
        let plan = ClusterPlan::new(nodes, &stack.config(&VXLAN.config()));
        let cluster = plan.stack(stack).flags(flags).start()?;
        cluster.wait_for_paths(|_, _| Path::Tunnel)?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        let scene = Self { cluster, pods, family: stack.families()[0] };
        scene.pods[0].reaches(scene.pods[1].address(scene.family)?, 56)?;
        Ok(scene)
    }

    fn node(&self, index: usize) -> &Namespace {
        self.cluster.nodes[index].namespace()
    }

    fn address(&self, index: usize) -> Result<IpAddr> {
        self.cluster.nodes[index].address(self.family)
    }

    /// To the pod of node number `index`, as if from a pod of the node behind it.
    fn forged(&self, index: usize) -> Result<Forged> {
        let other = &self.pods[(index + 1) % self.pods.len()];
        Forged::to(&self.cluster.nodes[index], &self.pods[index], other.address(self.family)?)
    }

    /// Starts the daemon of node number `index` with other flags.
    fn start_with(&mut self, index: usize, flags: &[&str]) -> Result<()> {
        let plan = self.cluster.nodes[index].daemon(&self.cluster.etcd);
        self.start_again(index, flags.iter().fold(plan, |plan, flag| plan.argument(*flag)))
    }

    fn start_again(&mut self, index: usize, plan: DaemonPlan) -> Result<()> {
        self.cluster.daemons[index].stop()?;
        self.cluster.daemons[index] = plan.start()?;
        self.cluster.daemons[index].wait_ready().map(drop)
    }
}

fn only_unknown_sources_are_dropped(stack: Stack) -> Result<()> {
    let mut scene = Scene::start(2, stack, &[])?;
    let outsider = scene.cluster.lab.node("outsider", &scene.cluster.segment)?;
    let forged = scene.forged(0)?;
    forged.arrives(scene.node(1), None).context("from a peer")?;
    forged.is_lost(outsider.namespace(), None, scene.node(1)).context("from an unknown source")?;
    if stack == Stack::V4 {
        let lease = vxlan(outsider.address(Family::V4)?, "02:00:00:00:02:02");
        scene.cluster.etcd.put(&key("10.244.200.0/24"), &lease)?;
        forged.arrives(outsider.namespace(), None).context("from one that holds a lease")?;
        scene.cluster.etcd.delete(&format!("{SUBNETS}/10.244.200.0-24"))?;
        let lost = || forged.is_lost(outsider.namespace(), None, scene.node(1));
        eventually(PATIENCE, lost).context("from one that held a lease")?;
    }
    scene.start_with(0, &["--tunnel-drop-unknown=false"])?;
    forged.arrives(outsider.namespace(), None).context("without the guard")
}

#[test]
fn unknown_sources_reach_no_pod_by_tunnel_unless_allowed() {
    only_unknown_sources_are_dropped(Stack::V4).unwrap();
}

#[test]
fn unknown_sources_reach_no_pod_by_ipv6_tunnel_unless_allowed() {
    only_unknown_sources_are_dropped(Stack::V6).unwrap();
}

#[test]
fn another_tunnel_on_the_same_port_is_not_filtered() {
    let scene = Scene::start(2, Stack::V4, &["--ip-masq"]).unwrap();
    let outsider = scene.cluster.lab.node("outsider", &scene.cluster.segment).unwrap();
    let ends = [&scene.cluster.nodes[0], &outsider];
    for (number, end) in ends.iter().enumerate() {
        let remote = ends[1 - number].address(Family::V4).unwrap();
        end.ip(format!("link add other type vxlan id 7 dstport {PORT} dev eth0 remote {remote}"))
            .unwrap();
        end.ip(format!("address add 192.0.2.{}/24 dev other", number + 1)).unwrap();
        end.ip("link set other up").unwrap();
    }
    let ping = || outsider.namespace().run("ping", &["-c1", "-W1", "192.0.2.1"]).map(drop);
    eventually(PATIENCE, ping).unwrap();
    assert!(connections(scene.node(0)).unwrap() > 0, "those of others are tracked as ever");
}

/// The number of VXLAN connections that a node's kernel tracks.
fn connections(node: &Namespace) -> Result<usize> {
    let all = node.within(|| std::fs::read_to_string("/proc/thread-self/net/nf_conntrack"))??;
    ensure!(!all.is_empty(), "no connection is tracked at all");
    Ok(all.lines().filter(|line| line.contains(&format!("dport={PORT} "))).count())
}

#[test]
fn packets_of_the_tunnel_are_not_tracked() {
    // A node that masquerades tracks connections.
    let mut scene = Scene::start(2, Stack::V4, &["--ip-masq"]).unwrap();
    let far = scene.pods[1].address(Family::V4).unwrap();
    // A probe that came before the guard is tracked for 30 s, but nothing renews that.
    eventually(PATIENCE, || {
        scene.pods[0].ping(far, 56)?;
        ensure!(connections(scene.node(0))? == 0, "one is tracked");
        Ok::<_, anyhow::Error>(())
    })
    .unwrap();
    scene.start_with(0, &["--ip-masq", "--tunnel-notrack=false"]).unwrap();
    eventually(PATIENCE, || {
        scene.pods[0].ping(far, 56)?;
        ensure!(connections(scene.node(0))? > 0, "none is tracked");
        Ok::<_, anyhow::Error>(())
    })
    .unwrap();
}

/// A packet that a pod sends from the tunnel's port, and the reply.
fn goes_and_comes_back(pod: &Pod, node: IpAddr, to: &Node) -> Result<()> {
    let target = SocketAddr::new(to.address(Family::V4)?, 7005);
    let far = to.namespace().within(|| listen(target))??;
    let near =
        pod.namespace().within(|| listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT))))??;
    far.set_read_timeout(Some(PAUSE))?;
    near.set_read_timeout(Some(PAUSE))?;
    eventually(PATIENCE, || {
        near.send_to(&[0; 20], target)?;
        let (_, seen) = far.recv_from(&mut [0; 20])?;
        ensure!(seen == SocketAddr::new(node, PORT), "it came from {seen}");
        far.send_to(&[0; 20], seen)?;
        near.recv(&mut [0; 20]).map(drop).context("no reply was received")
    })
    .map(drop)
}

#[test]
fn a_masqueraded_flow_with_the_tunnels_port_is_not_filtered() {
    let scene = Scene::start(2, Stack::V4, &["--ip-masq", "--ip-masq-fully-random-disable"]);
    let scene = scene.unwrap();
    let outsider = scene.cluster.lab.node("outsider", &scene.cluster.segment).unwrap();
    let (pod, node) = (&scene.pods[0], scene.address(0).unwrap());
    goes_and_comes_back(pod, node, &outsider).unwrap();
    goes_and_comes_back(pod, node, &scene.cluster.nodes[1]).unwrap();
}

fn pods_cannot_pass_for_nodes(stack: Stack) -> Result<()> {
    let mut scene = Scene::start(3, stack, &["--ip-masq"])?;
    let (pod, claimed) = (scene.pods[0].namespace().clone(), scene.address(2)?);
    let [to_own, to_other] = forged_are_lost(&scene)?;

    scene.start_with(0, &["--ip-masq", "--tunnel-drop-pods=false"])?;
    to_other.arrives(&pod, None).context("masqueraded, without the guard")?;
    to_other.arrives(&pod, Some(claimed)).context("as another node, without the guard")?;
    scene.start_with(0, &["--ip-masq", "--tunnel-drop-unknown=false"])?;
    to_own.arrives(&pod, None).context("to its own node, without the guard")?;
    to_own.arrives(&pod, Some(claimed)).context("to its own node as another, without the guard")
}

/// Those that a pod of the first of three nodes sends to its own node and to another one, also as the
/// third. It may have a tunnel of its own to another pod.
fn forged_are_lost(scene: &Scene) -> Result<[Forged; 2]> {
    let (family, pod) = (scene.family, scene.pods[0].namespace());
    let (to_own, to_other) = (scene.forged(0)?, scene.forged(1)?);
    // Any source works for a sender that may send arbitrary packets.
    let claimed = scene.address(2)?;
    pod.ip(&format!("address add {}/{} dev lo nodad", claimed, width(family)))?;
    for source in [None, Some(claimed)] {
        to_own.is_lost(pod, source, scene.node(1)).context("to its own node")?;
        to_other.is_lost(pod, source, scene.node(0)).context("to another node")?;
    }
    let target = SocketAddr::new(scene.pods[1].address(family)?, PORT);
    has_a_tunnel_of_its_own(&to_other, pod, (&scene.pods[1], target))?;
    Ok([to_own, to_other])
}

/// `$0`: a file for the release of the kernel, which the daemon reads.
const ON_LINUX_5_15: &str =
    r#"echo 5.15.0 >"$0"; mount --bind "$0" /proc/sys/kernel/osrelease; exec "$@""#;

#[test]
fn before_linux_5_19_pods_cannot_send_as_other_nodes_either() {
    let mut scene = Scene::start(3, Stack::V4, &["--ip-masq"]).unwrap();
    for index in 0..3 {
        let node = &scene.cluster.nodes[index];
        let file = node.folder().join("osrelease");
        let words = ["--mount", "sh", "-euc", ON_LINUX_5_15, &file.to_string_lossy()];
        let plan =
            node.daemon(&scene.cluster.etcd).argument("--ip-masq").through("unshare", &words);
        scene.start_again(index, plan).unwrap();
    }
    let [to_own, _] = forged_are_lost(&scene).unwrap();
    let outsider = scene.cluster.lab.node("outsider", &scene.cluster.segment).unwrap();
    to_own.is_lost(outsider.namespace(), None, scene.node(1)).unwrap();
    // A later kernel would have asked where packets are delivered and forwarded.
    let table = scene.node(0).run("nft", &["list", "table", "ip", "tweed-tunnel.1"]).unwrap();
    assert_eq!(table.matches("fib saddr . iif oif").count(), 1, "{table}");
}

/// Each of two links in one segment answers ARP requests for the addresses of both.
#[test]
fn packets_of_a_peer_arrive_by_another_link_of_the_segment_too() {
    let scene = Scene::start(2, Stack::V4, &[]).unwrap();
    let (node, peer) = (scene.node(0), scene.node(1));
    let IpAddr::V4(address) = scene.address(0).unwrap() else { panic!("not of IPv4") };
    let [a, b, c, _] = address.octets();
    // What a start reads again is read by then: the address of the second link is an event of its own.
    std::thread::sleep(Duration::from_secs(3));
    node.ip("link add eth1 link eth0 type macvlan mode bridge").unwrap();
    node.ip(&format!("address add {a}.{b}.{c}.200/24 dev eth1 noprefixroute")).unwrap();
    node.ip("link set eth1 up").unwrap();
    let mac = mac(&scene.cluster.nodes[0], "eth1").unwrap();
    let mac = mac.map(|octet| format!("{octet:02x}")).join(":");
    peer.ip(&format!("neighbour replace {address} lladdr {mac} dev eth0 nud permanent")).unwrap();
    let far = scene.pods[0].address(Family::V4).unwrap();
    eventually(PATIENCE, || scene.pods[1].ping(far, 56)).unwrap();
    // By that link, and not by the first one.
    let received: Vec<serde_json::Value> = node.ip_json("-statistics link show eth1").unwrap();
    assert!(received[0]["stats64"]["rx"]["packets"].as_u64() > Some(0), "{received:?}");
}

fn width(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// Whether pods can exchange packets that look like the tunnel's.
fn has_a_tunnel_of_its_own(
    forged: &Forged,
    from: &Namespace,
    (to, target): (&Pod, SocketAddr),
) -> Result<()> {
    let receiver = to.namespace().within(|| listen(target))??;
    receiver.set_nonblocking(true)?;
    let received = || {
        forged.send_to(target, from)?;
        receiver.recv(&mut [0; 100]).map(drop).context("nothing arrives")
    };
    eventually(PATIENCE, received).context("from pod to pod").map(drop)
}

#[test]
fn pods_cannot_send_as_nodes_unless_allowed() {
    pods_cannot_pass_for_nodes(Stack::V4).unwrap();
}

#[test]
fn pods_cannot_send_as_nodes_by_ipv6_unless_allowed() {
    pods_cannot_pass_for_nodes(Stack::V6).unwrap();
}

#[test]
fn a_guard_is_shown_restored_and_cleaned_up() {
    let scene = Scene::start(2, Stack::Dual, &[]).unwrap();
    let (node, daemon) = (scene.node(0), &scene.cluster.daemons[0]);
    let guard = |daemon: &Daemon| Ok::<_, anyhow::Error>(json(daemon, "status")?["guard"].take());
    let shown = guard(daemon).unwrap();
    assert_eq!(shown["applied"], true, "{shown}");
    assert_eq!(shown["admitted"], 2, "{shown}");
    assert_eq!(shown["tables"].as_array().unwrap().len(), 2, "{shown}");
    // Without the remaining time of elements that expire.
    let table =
        |family| node.run("nft", &["--stateless", "list", "table", family, "tweed-tunnel.1"]);
    let listed = || Ok::<_, anyhow::Error>([table("ip")?, table("ip6")?]);
    let before = listed().unwrap();
    for blow in [
        "flush ruleset",
        "flush set ip tweed-tunnel.1 peers",
        "add element ip6 tweed-tunnel.1 peers { 2001:db8::66 }",
        "insert rule ip tweed-tunnel.1 input accept",
    ] {
        node.run("nft", &[blow]).unwrap();
        let back = eventually(PATIENCE, || {
            let now = listed()?;
            ensure!(now == before, "{blow}: {now:?}");
            Ok::<_, anyhow::Error>(())
        });
        println!("{blow}: back after {:.0?}", back.unwrap());
    }
    node.reload_rules("nft").unwrap();
    eventually(PATIENCE, || {
        ensure!(listed()? == before, "{:?}", listed());
        Ok(())
    })
    .unwrap();
    eventually(PATIENCE, || is_ready(daemon)).unwrap();
    daemon.stop().unwrap();
    let output = tweedctl(&scene.cluster.nodes[0], &["cleanup", "--yes"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.run("nft", &["list", "tables"]).unwrap(), "");
}

#[test]
fn an_unrenewed_guard_opens_and_closes_when_a_daemon_returns() {
    let mut scene = Scene::start(2, Stack::V4, &[]).unwrap();
    let outsider = scene.cluster.lab.node("outsider", &scene.cluster.segment).unwrap();
    let forged = scene.forged(0).unwrap();
    forged.is_lost(outsider.namespace(), None, scene.node(1)).unwrap();
    scene.cluster.daemons[0].stop().unwrap();
    // Simulates that a day passes in a second.
    let set = "element ip tweed-tunnel.1 renewed";
    let script = format!("delete {set} {{ udp }}; add {set} {{ udp timeout 24h expires 1s }}");
    scene.node(0).run("nft", &[&script]).unwrap();
    forged.arrives(outsider.namespace(), None).unwrap();
    scene.cluster.daemons[0].start().unwrap();
    scene.cluster.daemons[0].wait_ready().unwrap();
    let lost = || forged.is_lost(outsider.namespace(), None, scene.node(1));
    eventually(PATIENCE, lost).unwrap();
}

#[test]
fn under_a_guard_no_packet_is_lost_while_leases_and_backends_change() {
    let config = Stack::V4.config(&VXLAN_MIXED.config());
    let mut cluster = ClusterPlan::new(3, &config).flags(&["--ip-masq"]).start().unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
    // Nodes have smaller subnet numbers than these.
    let peers: Vec<Peer> = (1..=18).map(Peer::numbered).collect();

    probe.mark("many join");
    join(&cluster, &peers).unwrap();
    probe.run_for(PAUSE);
    probe.mark("flips");
    for _ in 0..2 {
        flip(&cluster, HOST_GW_MIXED, Path::Direct).unwrap();
        probe.run_for(PAUSE);
        flip(&cluster, VXLAN_MIXED, Path::Tunnel).unwrap();
        probe.run_for(PAUSE);
    }
    probe.mark("others move to other addresses and leave");
    move_and_leave(&cluster, &peers).unwrap();
    probe.mark("the guard is removed, and a daemon killed");
    inject_faults(&mut cluster).unwrap();
    probe.run_for(PAUSE);
    probe.mark("a node joins");
    let newcomer = add_node(&mut cluster).unwrap();
    probe.mark("it moves to another address");
    change_address(&cluster, &newcomer).unwrap();
    probe.run_for(PAUSE);
    let report = probe.finish().unwrap();
    println!("{report}");
    assert_eq!(report.lost(), 0, "{report}");
}

fn join(cluster: &Cluster, peers: &[Peer]) -> Result<()> {
    peers.iter().try_for_each(|peer| peer.join(&cluster.etcd))?;
    let known = |peer: &Peer| {
        cluster.nodes.iter().try_for_each(|node| allows(node.namespace(), peer.public_ip))
    };
    eventually(PATIENCE, || peers.iter().try_for_each(known)).map(drop)
}

/// Waits until all nodes use the path of `side`.
fn flip(cluster: &Cluster, side: Side, path: Path) -> Result<()> {
    cluster.etcd.put(CONFIG, &Stack::V4.config(&side.config()))?;
    cluster.wait_for_paths(|_, _| path).map(drop)
}

fn move_and_leave(cluster: &Cluster, peers: &[Peer]) -> Result<()> {
    let moved = Peer { public_ip: "10.99.1.222".parse()?, ..peers[0].clone() };
    moved.join(&cluster.etcd)?;
    // More at once would exceed the withdrawal limit.
    let (leaving, staying) = peers[1..].split_at(8);
    leaving.iter().try_for_each(|peer| peer.leave(&cluster.etcd))?;
    eventually(PATIENCE, || {
        cluster.nodes.iter().try_for_each(|node| {
            allows(node.namespace(), moved.public_ip)?;
            let gone = |peer: &Peer| allows(node.namespace(), peer.public_ip).is_err();
            ensure!(leaving.iter().all(gone) && gone(&peers[0]), "some are still let in");
            staying.iter().try_for_each(|peer| allows(node.namespace(), peer.public_ip))
        })
    })?;
    moved.leave(&cluster.etcd)
}

fn inject_faults(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.nodes[0].namespace();
    node.run("nft", &["flush", "ruleset"])?;
    let peer = cluster.nodes[1].address(Family::V4)?;
    eventually(PATIENCE, || allows(node, peer))?;
    cluster.daemons[1].kill()?;
    cluster.daemons[1].start()?;
    cluster.daemons[1].wait_ready().map(drop)
}

/// No packet between its pod and the others is lost either.
fn add_node(cluster: &mut Cluster) -> Result<Pod> {
    let node = cluster.lab.node("n4", &cluster.segment)?;
    cluster.add(node)?;
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    let newcomer = cluster.nodes[3].pod()?;
    let mut pairs = cluster.lab.pairs(Family::V4);
    pairs.retain(|pair| pair.from.node() == "n4" || pair.to.node() == "n4");
    let probe = cluster.lab.probe(&pairs, RATE)?;
    probe.run_for(PAUSE);
    let report = probe.finish()?;
    ensure!(report.lost() == 0, "lost:\n{report}");
    Ok(newcomer)
}

fn change_address(cluster: &Cluster, newcomer: &Pod) -> Result<()> {
    let (node, others) = (&cluster.nodes[3], &cluster.nodes[..3]);
    let (old, new) = (node.address(Family::V4)?, "10.99.1.233".parse()?);
    node.ip(format!("address del {old}/24 dev eth0"))?;
    node.ip(format!("address add {new}/24 dev eth0"))?;
    eventually(PATIENCE, || {
        others.iter().try_for_each(|node| {
            allows(node.namespace(), new)?;
            ensure!(allows(node.namespace(), old).is_err(), "{old} is still let in");
            Ok(())
        })
    })?;
    let first = cluster.lab.pods()[0].address(Family::V4)?;
    eventually(PATIENCE, || newcomer.ping(first, 56)).map(drop)
}

/// Whether a source with this address may send through the tunnel to a node.
fn allows(node: &Namespace, address: IpAddr) -> Result<()> {
    let element = format!("{{ {address} }}");
    node.run("nft", &["get", "element", "ip", "tweed-tunnel.1", "peers", &element]).map(drop)
}
