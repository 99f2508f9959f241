//! `tweedctl trace` is right: random packets and faults are traced, and then the packets are sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tweed_lab::{Family, Namespace, Node, Path, Pod, eventually, is_silence, listen};

use crate::fixture::ask::tweedctl;
use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{Distance, HOST_GW_MIXED, Side, VXLAN_MIXED, expected, path};

/// The nodes before this one are on one segment; this one is behind a router.
const FAR: usize = 3;
const SIDES: [Side; 4] = [VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED, VXLAN_MIXED];
const FLAGS: &[&str] = &["--ip-masq", "--config-reload=false"];
/// How long packets are traced and sent.
const TIME: Duration = Duration::from_secs(30);
/// The destination port of the packets.
const PORT: u16 = 7009;
/// The bytes of an IPv4 and a UDP header.
const HEADERS: u32 = 28;
/// The MTU of a link that is too small for large packets.
const SMALL_MTU: u32 = 1000;
const SIZES: [u32; 3] = [100, 1200, 1400];
/// How often a packet is sent that must be lost.
const MANY: usize = 3;
/// How long a packet may take that must be lost: a packet that arrives is an error.
const UNDER_WAY: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    RouteDeleted,
    NeighbourDeleted,
    FdbElsewhere,
    SmallMtu,
    /// The guard of the receiver does not know the sender.
    UnknownSource,
}

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::RouteDeleted,
    Fault::NeighbourDeleted,
    Fault::FdbElsewhere,
    Fault::SmallMtu,
    Fault::UnknownSource,
];

/// A cluster of both backends without daemons, so that no fault is repaired.
struct Scene {
    cluster: Cluster,
    pods: Vec<Pod>,
    /// A host on the segment of the first nodes, without routes to pods.
    world: Node,
}

/// A packet from the pod of one node to that of another, or to the host outside.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: u32,
    fault: Fault,
    from: usize,
    to: Option<usize>,
    size: u32,
}

impl Scene {
    fn start() -> Result<Self> {
        let stack = Stack::V4;
        let plan = ClusterPlan::new(FAR, &stack.config(&VXLAN_MIXED.config())).far(1).flags(FLAGS);
        let mut cluster = plan.build()?;
        let world = cluster.lab.node("world", &cluster.segment)?;
        cluster.start_daemons()?;
        for (index, side) in SIDES.iter().enumerate().filter(|(_, side)| **side != VXLAN_MIXED) {
            cluster.etcd.put(CONFIG, &stack.config(&side.config()))?;
            cluster.daemons[index].restart()?;
        }
        cluster.wait_for_paths(planned_path)?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        let scene = Self { cluster, pods, world };
        for index in 0..SIDES.len() {
            eventually(PATIENCE, || scene.has_saved_all(index))?;
        }
        for daemon in &scene.cluster.daemons {
            daemon.kill()?;
        }
        Ok(scene)
    }

    /// Whether the checkpoint of a node has its backend, the final leases of its peers, and no
    /// fallback.
    fn has_saved_all(&self, index: usize) -> Result<()> {
        let file = self.cluster.nodes[index].folder().join("subnet.state.json");
        let document: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        let saved = &document["data"];
        let backend = &saved["local"]["config"]["backend"]["kind"];
        ensure!(*backend == SIDES[index].backend.name(), "{saved}");
        let leases = saved["leases"].as_array().context("no leases")?;
        let of = |side: Side| {
            leases.iter().filter(|it| it.to_string().contains(side.backend.name())).count()
        };
        let others =
            |side| (0..SIDES.len()).filter(|it| *it != index && SIDES[*it] == side).count();
        ensure!(
            [VXLAN_MIXED, HOST_GW_MIXED].iter().all(|side| of(*side) == others(*side)),
            "{saved}"
        );
        // Behind the router, only the tunnel leads to a peer, and no probe decides.
        let far = self.cluster.subnet(FAR, Family::V4)?.ip().to_string();
        let fallbacks = saved["detours"].as_object().into_iter().flatten();
        let fallbacks = fallbacks.filter(|(peer, _)| index != FAR && **peer != far).count();
        ensure!(fallbacks == 0, "{saved}");
        Ok(())
    }

    /// Traces the packet on all nodes that it passes, sends it, and compares. Returns whether it
    /// arrived.
    fn check(&self, case: &Case) -> Result<bool> {
        let source = self.pods[case.from].address(Family::V4)?;
        let (destination, receiver) = match case.to {
            Some(to) => (self.pods[to].address(Family::V4)?, self.pods[to].namespace()),
            None => (self.world.address(Family::V4)?, self.world.namespace()),
        };
        let nodes = [Some(case.from), case.to].into_iter().flatten();
        let traces =
            nodes.map(|node| trace(&self.cluster.nodes[node], source, destination, case.size));
        let traces = traces.collect::<Result<Vec<_>>>()?;
        let is_delivered = traces.iter().all(|trace| trace["delivery"] == "delivered");
        let is_dropped = traces.iter().any(|trace| trace["delivery"] == "dropped");
        ensure!(is_delivered != is_dropped, "it is not known: {traces:#?}");
        let translated = traces[0]["translated_to"].as_str().map(str::parse).transpose()?;
        let flow = Flow::new(case.number, case.size, receiver, destination)?;
        let arrived = flow.send(self.pods[case.from].namespace(), is_delivered)?;
        let expected = is_delivered.then_some(translated.unwrap_or(source));
        ensure!(arrived == expected, "it arrived from {arrived:?}: {traces:#?}");
        Ok(is_delivered)
    }

    fn random_case(number: u32, random: &mut StdRng) -> Result<Case> {
        let from = random.random_range(0..SIDES.len());
        let others: Vec<Option<usize>> =
            (0..SIDES.len()).filter(|to| *to != from).map(Some).chain([None]).collect();
        let to = *others.choose(random).context("no other node")?;
        let fault = *FAULTS.choose(random).context("no fault")?;
        let size = *SIZES.choose(random).context("no size")?;
        Ok(Case { number, fault, from, to, size })
    }

    /// Runs `work` while the fault is there.
    fn with_fault<T>(&self, case: &Case, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (cause, undo) = self.fault(case)?;
        run(&cause).context("the fault")?;
        let result = work();
        run(&undo).context("the repair")?;
        // A pod remembers a small MTU of the path.
        self.pods[case.from].namespace().ip("route flush cache")?;
        result
    }

    /// The commands that cause a fault, and those that undo it.
    fn fault(&self, case: &Case) -> Result<(Vec<InNode>, Vec<InNode>)> {
        let sender = self.cluster.nodes[case.from].namespace();
        let device = Self::device(case);
        let on = |node: &Namespace, line: String| InNode(node.clone(), line);
        let one =
            |cause: String, undo: String| Ok((vec![on(sender, cause)], vec![on(sender, undo)]));
        if case.fault == Fault::SmallMtu {
            let links = self.cluster.nodes[case.from].links()?;
            let mtu = links.iter().find(|link| link.name == device).context("no link")?.mtu;
            let set = |mtu| format!("ip link set {device} mtu {mtu}");
            return one(set(SMALL_MTU), set(mtu));
        }
        let Some(to) = case.to else { return Ok((Vec::new(), Vec::new())) };
        let subnet = self.cluster.subnet(to, Family::V4)?;
        let subnet = IpNetwork::new(subnet.network(), subnet.prefix())?;
        let peer = self.cluster.nodes[to].address(Family::V4)?;
        let mac = self.cluster.nodes[to].link("flannel.1")?.context("no tunnel")?.mac;
        match case.fault {
            Fault::None | Fault::SmallMtu => Ok((Vec::new(), Vec::new())),
            Fault::RouteDeleted => {
                let route = self.cluster.nodes[case.from].route_to(subnet)?.context("no route")?;
                let id = route.nhid.context("no nexthop object")?;
                one(
                    format!("ip route del {subnet}"),
                    format!("ip route add {subnet} nhid {id} proto 241"),
                )
            }
            Fault::NeighbourDeleted if device == "flannel.1" => {
                let neighbour = format!("{} dev flannel.1", subnet.network());
                one(
                    format!("ip neigh del {neighbour}"),
                    format!("ip neigh replace {neighbour} lladdr {mac} nud permanent"),
                )
            }
            Fault::NeighbourDeleted => {
                one("ip neigh flush dev eth0".to_owned(), "ip neigh flush dev eth0".to_owned())
            }
            Fault::FdbElsewhere => {
                let world = self.world.address(Family::V4)?;
                let entry = |to: IpAddr| format!("bridge fdb replace {mac} dev flannel.1 dst {to}");
                one(entry(world), entry(peer))
            }
            Fault::UnknownSource => {
                let receiver = self.cluster.nodes[to].namespace();
                let sender = self.cluster.nodes[case.from].address(Family::V4)?;
                let element = format!("element ip tweed-tunnel.1 peers {{ {sender} }}");
                Ok((
                    vec![on(receiver, format!("nft delete {element}"))],
                    vec![on(receiver, format!("nft add {element}"))],
                ))
            }
        }
    }

    /// The link by which a node sends the packet.
    fn device(case: &Case) -> &'static str {
        match case.to.map(|to| planned_path(case.from, to)) {
            Some(Path::Tunnel) => "flannel.1",
            Some(Path::Direct | Path::None) | None => "eth0",
        }
    }
}

/// A command in the network of a node.
pub(super) struct InNode(pub(super) Namespace, pub(super) String);

pub(super) fn run(commands: &[InNode]) -> Result<()> {
    commands.iter().try_for_each(|InNode(node, line)| {
        let (program, arguments) = line.split_once(' ').context("no arguments")?;
        node.run(program, &arguments.split(' ').collect::<Vec<_>>()).map(drop)
    })
}

fn planned_path(from: usize, to: usize) -> Path {
    let is_far = from == FAR || to == FAR;
    let distance = if is_far { Distance::BehindRouter } else { Distance::Adjacent };
    path(expected(SIDES[from], SIDES[to], distance))
}

pub(super) fn trace(node: &Node, source: IpAddr, destination: IpAddr, size: u32) -> Result<Value> {
    let words =
        ["trace", &source.to_string(), &destination.to_string(), "--size", &size.to_string()];
    let output = tweedctl(node, &[&words[..], &["-o", "json"]].concat())?;
    let trace: Value = serde_json::from_slice(&output.stdout).context(format!("{output:?}"))?;
    let code = match trace["delivery"].as_str() {
        Some("delivered") => 0,
        Some("dropped") => 5,
        _ => 3,
    };
    ensure!(output.status.code() == Some(code), "{output:?}");
    Ok(trace)
}

/// Packets of one case, and their receiver.
pub(super) struct Flow {
    receiver: UdpSocket,
    target: SocketAddr,
    payload: Vec<u8>,
}

impl Flow {
    /// Packets of `size` bytes to `destination` in the namespace `to`.
    pub(super) fn new(number: u32, size: u32, to: &Namespace, destination: IpAddr) -> Result<Self> {
        let target = SocketAddr::new(destination, PORT);
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        let receiver = to.within(|| listen(any))??;
        receiver.set_read_timeout(Some(UNDER_WAY))?;
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(usize::try_from(size - HEADERS)?, 0);
        Ok(Self { receiver, target, payload })
    }

    /// The source with which it arrives. A packet that should arrive is sent until it does: the
    /// machine may be busy, and neighbours are resolved first.
    pub(super) fn send(&self, from: &Namespace, should_arrive: bool) -> Result<Option<IpAddr>> {
        let sender = from.within(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        let once = || {
            // An earlier packet may have caused an ICMP error: a known smaller MTU would let the
            // kernel fragment this one.
            from.ip("route flush cache")?;
            drop(sender.send_to(&self.payload, self.target));
            self.arrived()
        };
        if should_arrive {
            let mut source = None;
            eventually(PATIENCE, || {
                source = once()?;
                ensure!(source.is_some(), "nothing arrives");
                Ok(())
            })?;
            return Ok(source);
        }
        for _ in 0..MANY {
            if let Some(source) = once()? {
                return Ok(Some(source));
            }
        }
        Ok(None)
    }

    /// The source of a packet of this case that has arrived.
    fn arrived(&self) -> Result<Option<IpAddr>> {
        let mut buffer = [0; 2048];
        loop {
            match self.receiver.recv_from(&mut buffer) {
                Ok((size, source)) if buffer[..size] == self.payload => {
                    return Ok(Some(source.ip()));
                }
                // A packet of an earlier case.
                Ok(_) => {}
                Err(error) if is_silence(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.map_or("world".to_owned(), |to| format!("n{}", to + 1));
        let Self { number, fault, from, size, .. } = self;
        write!(f, "{number}: n{} → {to}, {size} bytes, {fault:?}", from + 1)
    }
}

/// The variable `TWEED_SEED` repeats a run.
pub(super) fn seed() -> Result<u64> {
    match std::env::var("TWEED_SEED") {
        Ok(text) => Ok(text.parse()?),
        Err(_) => Ok(rand::random()),
    }
}

#[test]
fn a_trace_agrees_with_the_packet() {
    let scene = Scene::start().unwrap();
    let seed = seed().unwrap();
    let (mut random, started) = (StdRng::seed_from_u64(seed), Instant::now());
    let (mut delivered, mut dropped) = (0, 0);
    // A busy machine starts few programs in this time.
    while started.elapsed() < TIME
        || (delivered == 0 || dropped == 0) && started.elapsed() < 10 * TIME
    {
        let case = Scene::random_case(delivered + dropped, &mut random).unwrap();
        let checked = scene.with_fault(&case, || scene.check(&case));
        let checked =
            checked.unwrap_or_else(|error| panic!("TWEED_SEED={seed}, {case}: {error:#}"));
        if checked {
            delivered += 1;
        } else {
            dropped += 1;
        }
    }
    println!("TWEED_SEED={seed}: {delivered} packets were delivered, {dropped} dropped");
    assert!(delivered > 0 && dropped > 0);
}
