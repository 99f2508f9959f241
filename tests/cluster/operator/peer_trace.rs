//! `tweedctl trace` with the answer of the peer's daemon: random packets and faults that no daemon
//! repairs are traced while all daemons run, and then the packets are sent.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tweed_lab::{Family, Namespace, Node, Path, Pod, eventually};

use super::trace::{Flow, InNode, run, seed, trace};
use crate::fixture::ask::{has_saved, tweedctl, wait_until_reachable};
use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{
    Distance, HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED, expected, path,
};

/// The nodes before this one are on one segment; this one is behind a router.
const FAR: usize = 5;
const SIDES: [Side; 6] =
    [VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED, VXLAN_MIXED];
/// How many packets are traced and sent at least.
const CASES: usize = 200;
const SIZES: [u32; 3] = [100, 1200, 1400];
/// An MTU that is too small for large packets.
const SMALL_MTU: u32 = 1000;

/// What no daemon repairs, on the node that sends the packet or on the one that receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    /// The receiver has no route to its bridge.
    BridgeRouteDeleted,
    BridgeDown,
    BridgeSmallMtu,
    /// A rule of the receiver, or of the sender, rejects the packet.
    RejectedByReceiver,
    RejectedBySender,
    /// A route of another program rejects it.
    UnreachableOnReceiver,
    UnreachableOnSender,
}

/// Without a fault as often as with two of them.
const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::None,
    Fault::BridgeRouteDeleted,
    Fault::BridgeDown,
    Fault::BridgeSmallMtu,
    Fault::RejectedByReceiver,
    Fault::RejectedBySender,
    Fault::UnreachableOnReceiver,
    Fault::UnreachableOnSender,
];

struct Scene {
    cluster: Cluster,
    pods: Vec<Pod>,
    /// How many traces were repeated: a busy daemon may not answer within a second.
    repeated: AtomicUsize,
}

/// A packet from the pod of one node to that of another, traced on one of the two.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: u32,
    fault: Fault,
    from: usize,
    to: usize,
    traced_on: usize,
    size: u32,
}

impl Scene {
    fn start() -> Result<Self> {
        let stack = Stack::V4;
        let plan = ClusterPlan::new(FAR, &stack.config(&VXLAN_MIXED.config()));
        let plan = plan.far(1).flags(&["--ip-masq", "--config-reload=false"]);
        let mut cluster = plan.start()?;
        cluster.etcd.put(CONFIG, &stack.config(&HOST_GW_MIXED.config()))?;
        for (index, _) in SIDES.iter().enumerate().filter(|(_, side)| **side == HOST_GW_MIXED) {
            cluster.daemons[index].restart()?;
        }
        cluster.wait_for_paths(planned_path)?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        wait_until_reachable(&cluster)?;
        Ok(Self { cluster, pods, repeated: AtomicUsize::new(0) })
    }

    /// Cases of different nodes, which do not disturb each other.
    fn random_cases(first: u32, random: &mut StdRng) -> Result<Vec<Case>> {
        let mut nodes: Vec<usize> = (0..SIDES.len()).collect();
        nodes.shuffle(random);
        let (pairs, _) = nodes.as_chunks::<2>();
        let case = |(number, [from, to]): (u32, &[usize; 2])| {
            let traced_on = if random.random() { *from } else { *to };
            let fault = *FAULTS.choose(random).context("no fault")?;
            let size = *SIZES.choose(random).context("no size")?;
            Ok(Case { number, fault, from: *from, to: *to, traced_on, size })
        };
        (first..).zip(pairs).map(case).collect()
    }

    /// Whether the packet arrived. While the fault is there, traces the packet, sends it, and
    /// compares.
    fn check(&self, case: &Case) -> Result<bool> {
        let (cause, undo) = self.fault(case)?;
        run(&cause).context("the fault")?;
        let result = self.compare(case);
        run(&undo).context("the repair")?;
        if case.fault == Fault::BridgeDown {
            self.wait_for_bridge(case.to)?;
        }
        self.pods[case.from].namespace().ip("route flush cache")?;
        result
    }

    /// The kernel notes the carrier of a bridge up to a second later.
    fn wait_for_bridge(&self, node: usize) -> Result<()> {
        let bridge = || self.cluster.nodes[node].ip("-br link show cni0");
        let is_up = || Ok::<_, anyhow::Error>(bridge()?.contains(" UP "));
        eventually(PATIENCE, is_up).map(drop)
    }

    fn compare(&self, case: &Case) -> Result<bool> {
        let [source, destination] =
            [case.from, case.to].map(|node| self.pods[node].address(Family::V4));
        let (source, destination) = (source?, destination?);
        let mut known = None;
        let node = &self.cluster.nodes[case.traced_on];
        eventually(PATIENCE, || {
            let trace = trace(node, source, destination, case.size)?;
            // What is dropped here is no question for the peer. A peer may be busy for a second, or
            // its probes may have been lost by the fault before.
            let is_seen = trace["peer"].is_null() || trace["peer"]["seen"].is_object();
            let is_known = trace["delivery"] != "unknown" && is_seen;
            self.repeated.fetch_add(usize::from(!is_known), Ordering::Relaxed);
            ensure!(is_known, "{trace:#}");
            known = Some(trace);
            Ok(())
        })?;
        let trace = known.context("no trace")?;
        let is_delivered = trace["delivery"] == "delivered";
        let receiver = self.pods[case.to].namespace();
        let flow = Flow::new(case.number, case.size, receiver, destination)?;
        let arrived = flow.send(self.pods[case.from].namespace(), is_delivered)?;
        let expected = is_delivered.then_some(source);
        ensure!(arrived == expected, "it arrived from {arrived:?}: {trace:#}");
        Self::names_the_fault(case, &trace)?;
        Ok(is_delivered)
    }

    /// Whether the hop that drops the packet is the one with the fault, on the right node.
    fn names_the_fault(case: &Case, trace: &Value) -> Result<()> {
        if trace["delivery"] != "dropped" {
            return Ok(());
        }
        let (hops, on_sender) = match case.fault {
            Fault::None => (&[][..], true),
            Fault::BridgeRouteDeleted | Fault::UnreachableOnReceiver => (&["route"][..], false),
            Fault::BridgeDown => (&["route", "mtu"][..], false),
            Fault::BridgeSmallMtu => (&["mtu"][..], false),
            Fault::RejectedByReceiver => (&["rule"][..], false),
            Fault::RejectedBySender => (&["rule"][..], true),
            Fault::UnreachableOnSender => (&["route"][..], true),
        };
        let faulty = if on_sender { case.from } else { case.to };
        let list = if faulty == case.traced_on { trace } else { &trace["peer"]["seen"] };
        let last = list["hops"].as_array().and_then(|hops| hops.last()).context("no hop")?;
        let hop = last["hop"].as_str().context("no name")?;
        ensure!(last["state"] == "dropped" && hops.contains(&hop), "{trace:#}");
        Ok(())
    }

    /// The commands that cause a fault, and those that undo it.
    fn fault(&self, case: &Case) -> Result<(Vec<InNode>, Vec<InNode>)> {
        let [sender, receiver] =
            [case.from, case.to].map(|node| self.cluster.nodes[node].namespace());
        let pod = self.pods[case.to].address(Family::V4)?;
        let subnet = self.cluster.subnet(case.to, Family::V4)?;
        let (base, gateway) = (subnet.network(), subnet.ip());
        let network = format!("{base}/{}", subnet.prefix());
        let one = |node: &Namespace, cause: &str, undo: &str| {
            let [cause, undo] = [cause, undo].map(|line| vec![InNode(node.clone(), line.into())]);
            Ok((cause, undo))
        };
        let rule = format!("to {pod} pref 50 prohibit");
        let route = format!("unreachable {pod}");
        match case.fault {
            Fault::None => Ok((Vec::new(), Vec::new())),
            Fault::BridgeRouteDeleted => one(
                receiver,
                &format!("ip route del {network} dev cni0"),
                &format!("ip route add {network} dev cni0 proto kernel scope link src {gateway}"),
            ),
            Fault::BridgeDown => one(receiver, "ip link set cni0 down", "ip link set cni0 up"),
            Fault::BridgeSmallMtu => {
                let links = self.cluster.nodes[case.to].links()?;
                let mtu = links.iter().find(|link| link.name == "cni0").context("no bridge")?.mtu;
                let set = |mtu: u32| format!("ip link set cni0 mtu {mtu}");
                one(receiver, &set(SMALL_MTU), &set(mtu))
            }
            Fault::RejectedByReceiver | Fault::RejectedBySender => {
                let is_receiver = case.fault == Fault::RejectedByReceiver;
                let node = if is_receiver { receiver } else { sender };
                one(node, &format!("ip rule add {rule}"), &format!("ip rule del {rule}"))
            }
            Fault::UnreachableOnReceiver | Fault::UnreachableOnSender => {
                let is_receiver = case.fault == Fault::UnreachableOnReceiver;
                let node = if is_receiver { receiver } else { sender };
                one(node, &format!("ip route add {route}"), &format!("ip route del {route}"))
            }
        }
    }
}

fn planned_path(from: usize, to: usize) -> Path {
    let is_far = from == FAR || to == FAR;
    let distance = if is_far { Distance::BehindRouter } else { Distance::Adjacent };
    path(expected(SIDES[from], SIDES[to], distance))
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, fault, from, to, traced_on, size } = self;
        let [from, to, on] = [from, to, traced_on].map(|node| node + 1);
        write!(f, "{number}: n{from} → n{to}, {size} bytes, {fault:?}, traced on n{on}")
    }
}

#[test]
fn a_trace_with_the_answer_of_the_peer_agrees_with_the_packet() {
    let scene = Scene::start().unwrap();
    let (seed, started) = (seed().unwrap(), Instant::now());
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts: BTreeMap<(Fault, bool), usize> = BTreeMap::new();
    let mut number = 0;
    while counts.values().sum::<usize>() < CASES {
        let cases = Scene::random_cases(number, &mut random).unwrap();
        number += u32::try_from(cases.len()).unwrap();
        let checked: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> =
                cases.iter().map(|case| scope.spawn(|| scene.check(case))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (case, checked) in cases.iter().zip(checked) {
            let arrived =
                checked.unwrap_or_else(|error| panic!("TWEED_SEED={seed}, {case}: {error:#}"));
            *counts.entry((case.fault, arrived)).or_default() += 1;
        }
    }
    let (all, repeated) = (counts.values().sum::<usize>(), scene.repeated.into_inner());
    println!(
        "TWEED_SEED={seed}: {all} packets in {:.1?}, {repeated} traces were repeated",
        started.elapsed()
    );
    println!("by fault, and whether the packet arrived: {counts:?}");
    assert!(all >= CASES);
    let arrived =
        |is: bool| counts.iter().filter(|((_, it), _)| *it == is).map(|(_, n)| n).sum::<usize>();
    assert!(arrived(true) > CASES / 10 && arrived(false) > CASES / 10, "{counts:?}");
}

/// The trace of a packet from the pod of the first node to that of the second.
fn between(cluster: &Cluster, pods: &[Pod]) -> Result<Value> {
    let family = cluster.stack.families()[0];
    trace(&cluster.nodes[0], pods[0].address(family)?, pods[1].address(family)?, 1400)
}

/// Waits until the peer's half of that trace is as `is_it` expects.
fn wait_for(cluster: &Cluster, pods: &[Pod], is_it: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut found = Value::Null;
    eventually(PATIENCE, || {
        found = between(cluster, pods)?;
        ensure!(is_it(&found), "{found:#}");
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn the_hops_on_the_peer_are_shown_with_each_backend() {
    let rows = [
        (Stack::V4, VXLAN, "tunnel"),
        (Stack::V6, VXLAN, "tunnel"),
        (Stack::V4, HOST_GW, "direct"),
        (Stack::V4, HOST_GW_MIXED, "direct"),
        (Stack::V6, HOST_GW_MIXED, "direct"),
    ];
    for (stack, side, path) in rows {
        let plan = ClusterPlan::new(2, &stack.config(&side.config())).stack(stack);
        let cluster = plan.start().unwrap();
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>().unwrap();
        wait_until_reachable(&cluster).unwrap();
        // Probes that were lost are sent again.
        let is_known = |trace: &Value| {
            let is_seen = trace["peer"]["seen"].is_object() && trace["delivery"] == "delivered";
            is_seen && !trace.to_string().contains("\"planned\"")
        };
        let trace = wait_for(&cluster, &pods, is_known).unwrap();
        assert_eq!(trace["leaves_by"], path, "{trace:#}");
        let hops = trace["peer"]["seen"]["hops"].as_array().unwrap();
        let names: Vec<&str> = hops.iter().filter_map(|hop| hop["hop"].as_str()).collect();
        let [first, .., last] = names[..] else { panic!("{trace:#}") };
        assert_eq!((first, last), ("guard", "pod"), "{trace:#}");
        assert_eq!(names.contains(&"tunnel"), path == "tunnel", "{trace:#}");
        cluster.nodes[1].ip("link set cni0 down").unwrap();
        let is_dropped = |trace: &Value| {
            trace["delivery"] == "dropped" && trace["peer"]["seen"]["delivery"] == "dropped"
        };
        wait_for(&cluster, &pods, is_dropped).unwrap();
        let [source, destination] =
            [0, 1].map(|pod| pods[pod].address(stack.families()[0]).unwrap().to_string());
        // Two questions per second are answered.
        let is_shown = || {
            let shown = tweedctl(&cluster.nodes[0], &["trace", &source, &destination])?;
            let text = String::from_utf8_lossy(&shown.stdout).into_owned();
            ensure!(
                text.contains(", by its daemon:\n") && shown.status.code() == Some(5),
                "{text}"
            );
            Ok(())
        };
        eventually(PATIENCE, is_shown).unwrap();
    }
}

/// The tunnel device of the peer accepts one forwarding entry, and two are needed. The tunnel carries
/// no answer to the node without one; the direct path does.
#[test]
fn a_forwarding_entry_that_the_peer_lacks_is_named() {
    let plan = ClusterPlan::new(3, &Stack::V4.config(&VXLAN_MIXED.config()));
    let mut cluster = plan.start().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>().unwrap();
    cluster.daemons[1].kill().unwrap();
    let (peer, address) = (&cluster.nodes[1], cluster.nodes[1].address(Family::V4).unwrap());
    let mac = peer.link("flannel.1").unwrap().unwrap().mac;
    peer.ip("link del flannel.1").unwrap();
    let vxlan = "type vxlan id 1 dev eth0 dstport 8472 nolearning udpcsum maxaddress 1";
    let device = format!("link add flannel.1 mtu 1450 address {mac} {vxlan} local {address}");
    peer.ip(device).unwrap();
    cluster.daemons[1].start().unwrap();
    // Of two entries, the kernel refuses the second.
    let mut reader = 0;
    eventually(PATIENCE, || {
        let entries = cluster.nodes[1].bridge("fdb show dev flannel.1")?;
        let lacks = |node: &usize| {
            let address = cluster.nodes[*node].address(Family::V4)?;
            Ok::<_, anyhow::Error>(!entries.contains(&format!("dst {address} ")))
        };
        let lacking = [0, 2].into_iter().filter(|node| lacks(node).unwrap_or_default());
        let lacking: Vec<usize> = lacking.collect();
        let [one] = lacking[..] else { bail!("{entries}") };
        reader = one;
        Ok(())
    })
    .unwrap();
    let [source, destination] = [1, reader].map(|pod| pods[pod].address(Family::V4).unwrap());
    let is_named = || {
        let trace = trace(&cluster.nodes[reader], source, destination, 100)?;
        let last = trace["peer"]["seen"]["hops"].as_array().and_then(|hops| hops.last());
        let last = last.context("no hop")?;
        ensure!(trace["delivery"] == "dropped" && last["hop"] == "fdb", "{trace:#}");
        ensure!(trace["hops"] == Value::Array(Vec::new()), "{trace:#}");
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
}

#[test]
fn a_peer_that_does_not_answer_is_planned_and_not_seen() {
    let mut cluster = Cluster::start(2, &Stack::V4.config(&VXLAN.config())).unwrap();
    let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>().unwrap();
    wait_until_reachable(&cluster).unwrap();
    wait_for(&cluster, &pods, |trace| trace["peer"]["seen"].is_object()).unwrap();
    let because = |trace: &Value, words: &str| {
        let reason = trace["peer"]["unseen"].as_str().unwrap_or_default();
        reason.contains(words) && trace["delivery"] == "delivered"
    };
    let mut trace = Value::Null;
    let is_silent = || {
        // If the probes showed first that the daemon is down, once more.
        cluster.daemons[1].thaw()?;
        wait_for(&cluster, &pods, |trace| trace["peer"]["seen"].is_object())?;
        cluster.daemons[1].freeze()?;
        let begun = Instant::now();
        trace = between(&cluster, &pods)?;
        println!("without an answer, it took {:.1?}", begun.elapsed());
        ensure!(because(&trace, "no answer within 1 s"), "{trace:#}");
        Ok(())
    };
    eventually(PATIENCE, is_silent).unwrap();
    let planned = trace["hops"].as_array().unwrap().iter().filter(|hop| hop["state"] == "planned");
    assert_eq!(planned.count(), 2, "{trace:#}");
    // After some seconds, its probes show that its daemon is down.
    wait_for(&cluster, &pods, |trace| because(trace, "runs no daemon that answers")).unwrap();
    cluster.daemons[1].thaw().unwrap();
    wait_for(&cluster, &pods, |trace| trace["peer"]["seen"].is_object()).unwrap();

    // Without a daemon, tweedctl knows the peer by the checkpoint.
    let peer = cluster.subnet(1, Family::V4).unwrap().ip().to_string();
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], &peer)).unwrap();
    cluster.daemons[0].kill().unwrap();
    let trace = between(&cluster, &pods).unwrap();
    assert!(because(&trace, "no daemon runs on this node"), "{trace:#}");
    cluster.daemons[0].start().unwrap();
    wait_for(&cluster, &pods, |trace| trace["peer"]["seen"].is_object()).unwrap();

    let off = r#""Backend":{"Type":"vxlan"},"Probe":{"Enabled":false}"#;
    cluster.etcd.put(CONFIG, &Stack::V4.config(off)).unwrap();
    wait_for(&cluster, &pods, |trace| because(trace, "probes are off")).unwrap();
}

#[test]
fn questions_beyond_the_limit_are_not_answered_and_delay_no_probe() {
    let cluster = Cluster::start(2, &Stack::V4.config(&VXLAN.config())).unwrap();
    let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>().unwrap();
    wait_until_reachable(&cluster).unwrap();
    wait_for(&cluster, &pods, |trace| trace["peer"]["seen"].is_object()).unwrap();
    let (begun, seen) = (Instant::now(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let trace = between(&cluster, &pods).unwrap();
                    seen.fetch_add(trace["peer"]["seen"].is_object().into(), Ordering::Relaxed);
                }
            });
        }
    });
    let (took, seen) = (begun.elapsed(), seen.into_inner());
    println!("{seen} of 20 questions were answered in {took:.1?}");
    // Two at once, and one each half second; each question may be sent twice.
    let most = 2 + usize::try_from(took.as_millis() / 500).unwrap() + 1;
    assert!(seen > 0 && seen <= most, "{seen} in {took:?}");
    wait_until_reachable(&cluster).unwrap();
}
