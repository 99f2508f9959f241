//! Source addresses of packets: the same as with flannel's own rules, at every moment.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use nix::net::if_::if_nametoindex;
use tweed_lab::{Family, Namespace, Node, Pod, eventually, source_seen};

use crate::fixture::ask::{has_saved, is_ready, json, tweedctl};
use crate::fixture::cluster::{CONFIG, PATIENCE, Stack};
use crate::fixture::scene::{BY_IPTABLES, BY_NFTABLES, Iptables, PORT, Scene};
use crate::fixture::table::{HOST_GW, Side, VXLAN};

/// The pause between two changes on a node.
const A_WHILE: Duration = Duration::from_millis(200);
/// The node forwards these ports to its pod or to that of the other node.
const NODE_PORT: u16 = 7001;
const NODE_PORT_ELSEWHERE: u16 = 7002;
/// Packets of pods to this port have kube-proxy's mark, and other marks.
const MARKED: u16 = 7003;
/// An address of a node to which no other node has a route.
fn hidden(family: Family) -> Result<IpAddr> {
    Ok(match family {
        Family::V4 => "10.77.0.1",
        Family::V6 => "fd77::1",
    }
    .parse()?)
}

/// A packet, and the source that its receiver sees.
type Row = (&'static str, &'static str, &'static str);

/// With flannel's rules: on host-gw, and where it differs, on vxlan.
const TABLE: [Row; 15] = [
    ("pod → pod on another node", "pod 1", "pod 1"),
    ("pod → pod on its node", "pod 1", "pod 1"),
    ("pod → its node", "pod 1", "pod 1"),
    ("pod → another node", "node 1", "node 1"),
    ("pod → world", "node 1", "node 1"),
    ("pod → world, marked by others", "pod 1", "pod 1"),
    ("world → pod, routed by its node", "world", "world"),
    ("world → pod, routed by another node", "node 1", "tunnel 1"),
    ("world → pod by a port of its node", "world", "world"),
    ("world → pod by a port of another node", "node 1", "tunnel 1"),
    ("node → its pod", "bridge 1", "bridge 1"),
    ("node → pod on another node", "node 1", "tunnel 1"),
    ("node with a foreign source → pod on another node", "node 1", "tunnel 1"),
    ("node → world", "node 1", "node 1"),
    ("bridge → multicast", "bridge 1", "bridge 1"),
];

/// With tweed's rules, packets to pods of other nodes have one source on every link; only the node
/// itself uses that of the tunnel.
fn by_ours(flow: &str, side: Side) -> Option<&'static str> {
    match flow {
        "world → pod, routed by another node"
        | "world → pod by a port of another node"
        | "node with a foreign source → pod on another node" => Some("bridge 1"),
        "node → pod on another node" if side == HOST_GW => Some("bridge 1"),
        _ => None,
    }
}

/// The hosts and their addresses in one family.
struct Hosts<'a> {
    scene: &'a Scene,
    family: Family,
    names: BTreeMap<IpAddr, &'static str>,
    neighbour: Pod,
}

impl<'a> Hosts<'a> {
    fn of(scene: &'a Scene, neighbour: &Pod, family: Family) -> Result<Self> {
        let node = scene.node();
        let gateways = node.subnet_env()?.gateways.into_iter();
        let mut gateways = gateways.map(|gateway| gateway.ip());
        let gateway = gateways.find(|ip| Family::of(*ip) == family).context("no gateway")?;
        let base = scene.cluster.subnet(0, family)?.network();
        let names = [
            (scene.pods[0].address(family)?, "pod 1"),
            (scene.pods[1].address(family)?, "pod 2"),
            (node.address(family)?, "node 1"),
            (scene.cluster.nodes[1].address(family)?, "node 2"),
            (scene.world.address(family)?, "world"),
            (gateway, "bridge 1"),
            (base, "tunnel 1"),
            (hidden(family)?, "hidden 1"),
        ];
        Ok(Self { scene, family, names: names.into(), neighbour: neighbour.clone() })
    }

    fn rows(&self) -> Result<Vec<(&'static str, &'static str)>> {
        TABLE
            .iter()
            .map(|(flow, ..)| {
                Ok((
                    *flow,
                    self.source(flow).with_context(|| format!("{flow} over {:?}", self.family))?,
                ))
            })
            .collect()
    }

    fn source(&self, flow: &str) -> Result<&'static str> {
        let Scene { cluster, pods, world, .. } = self.scene;
        let [near, far] = [&cluster.nodes[0], &cluster.nodes[1]];
        let pod = pods[0].namespace();
        let of_node =
            |node: &Node, port| Ok::<_, anyhow::Error>((node.address(self.family)?, port));
        let of_pod = |pod: &Pod| Ok::<_, anyhow::Error>((pod.address(self.family)?, PORT));
        match flow {
            "pod → pod on another node" => self.seen(pod, pods[1].namespace(), of_pod(&pods[1])?),
            "pod → pod on its node" => {
                self.seen(pod, self.neighbour.namespace(), of_pod(&self.neighbour)?)
            }
            "pod → its node" => self.seen(pod, near.namespace(), of_node(near, PORT)?),
            "pod → another node" => self.seen(pod, far.namespace(), of_node(far, PORT)?),
            "pod → world" => self.seen(pod, world.namespace(), of_node(world, PORT)?),
            "pod → world, marked by others" => {
                self.seen(pod, world.namespace(), of_node(world, MARKED)?)
            }
            "world → pod, routed by its node" => {
                self.seen(world.namespace(), pod, of_pod(&pods[0])?)
            }
            "world → pod, routed by another node" => {
                self.seen(world.namespace(), pods[1].namespace(), of_pod(&pods[1])?)
            }
            "world → pod by a port of its node" => {
                self.seen(world.namespace(), pod, of_node(near, NODE_PORT)?)
            }
            "world → pod by a port of another node" => {
                let target = of_node(near, NODE_PORT_ELSEWHERE)?;
                self.seen(world.namespace(), pods[1].namespace(), target)
            }
            "node → its pod" => self.seen(near.namespace(), pod, of_pod(&pods[0])?),
            "node → pod on another node" => {
                self.seen(near.namespace(), pods[1].namespace(), of_pod(&pods[1])?)
            }
            "node with a foreign source → pod on another node" => {
                let (to, target) = (pods[1].namespace(), of_pod(&pods[1])?);
                let from = (near.namespace(), Some(hidden(self.family)?));
                self.named(source_seen(from, to, target.into())?)
            }
            "node → world" => {
                self.seen(near.namespace(), world.namespace(), of_node(world, PORT)?)
            }
            "bridge → multicast" => {
                let bridge = self.address_of("bridge 1")?;
                let (from, group) = ((near.namespace(), Some(bridge)), group(near, self.family)?);
                self.named(source_seen(from, far.namespace(), group)?)
            }
            other => anyhow::bail!("unknown kind of packet: {other}"),
        }
    }

    fn seen(&self, from: &Namespace, to: &Namespace, at: (IpAddr, u16)) -> Result<&'static str> {
        self.named(source_seen((from, None), to, at.into())?)
    }

    fn address_of(&self, name: &str) -> Result<IpAddr> {
        let mut names = self.names.iter();
        let found = names.find(|(_, known)| **known == name).map(|(address, _)| *address);
        found.with_context(|| format!("no host is named {name}"))
    }

    fn named(&self, source: IpAddr) -> Result<&'static str> {
        self.names
            .get(&source)
            .copied()
            .with_context(|| format!("no host has the address {source}"))
    }
}

/// A multicast group of receivers on the link of `node`.
fn group(node: &Node, family: Family) -> Result<SocketAddr> {
    let index = node.namespace().within(|| if_nametoindex("eth0"))??;
    Ok(match family {
        Family::V4 => SocketAddrV4::new(Ipv4Addr::new(239, 7, 7, 7), PORT).into(),
        Family::V6 => SocketAddrV6::new("ff12::7".parse()?, PORT, 0, index).into(),
    })
}

/// Rules of other programs around the pods of node 1: ports of the node, marks, and an address.
fn surround(scene: &Scene) -> Result<()> {
    let node = scene.node();
    for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        node.ip(format!("address add {} dev lo", IpNetwork::from(hidden(family)?)))?;
        let [near, far] = [scene.pods[0].address(family)?, scene.pods[1].address(family)?];
        let network = match family {
            Family::V4 => "10.244.0.0/16",
            Family::V6 => "fd00:244::/48",
        };
        let rules = format!(
            "table {word} others {{
                chain ports {{ type nat hook prerouting priority dstnat;
                    udp dport {NODE_PORT} dnat to {near};
                    udp dport {NODE_PORT_ELSEWHERE} dnat to {far}; }}
                chain marks {{ type filter hook forward priority -150;
                    udp dport {MARKED} meta mark set 0x24000; }}
            }}"
        );
        node.namespace().run("nft", &[&rules])?;
        let via = node.address(family)?;
        scene.router.namespace().ip(&format!("route add {network} via {via}"))?;
    }
    for node in &scene.cluster.nodes {
        node.ip("route add 239.0.0.0/8 dev eth0")?;
    }
    Ok(())
}

/// The rules on the nodes: of a tweedd with these flags, of flanneld, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    Ours(&'static [&'static str]),
    Flannels,
    Absent,
}

/// The sources with these rules, in the rows of `TABLE`.
fn sources(side: Side, rules: Rules) -> Result<Vec<Vec<(&'static str, &'static str)>>> {
    let flags = match rules {
        Rules::Ours(flags) => flags,
        Rules::Flannels | Rules::Absent => &[],
    };
    let scene = Scene::start(Stack::Dual, side, flags)?;
    let neighbour = scene.node().pod()?;
    surround(&scene)?;
    if rules == Rules::Flannels {
        // Daemons would remove flannel's rules as leftovers.
        scene.cluster.daemons.iter().try_for_each(|daemon| daemon.stop().map(drop))?;
        scene.write_flannels_rules(Iptables::Nft)?;
    }
    let families = Stack::Dual.families().iter();
    families.map(|family| Hosts::of(&scene, &neighbour, *family)?.rows()).collect()
}

#[test]
fn every_flow_has_flannels_source_or_one_that_survives_a_flip() {
    for side in [HOST_GW, VXLAN] {
        let flannels = TABLE.map(|(flow, by_host_gw, by_vxlan)| {
            (flow, if side == HOST_GW { by_host_gw } else { by_vxlan })
        });
        for rules in [Rules::Flannels, Rules::Ours(BY_NFTABLES), Rules::Ours(BY_IPTABLES)] {
            let expected = match rules {
                Rules::Ours(_) => {
                    flannels.map(|(flow, source)| (flow, by_ours(flow, side).unwrap_or(source)))
                }
                Rules::Flannels | Rules::Absent => flannels,
            };
            for found in sources(side, rules).unwrap() {
                assert_eq!(found, expected, "{side:?} {rules:?}");
            }
        }
    }
    let without = sources(HOST_GW, Rules::Absent).unwrap();
    assert!(without[0].contains(&("pod → world", "pod 1")), "{without:?}");
}

/// The table as the kernel lists it, with the number of each rule.
fn table(node: &Node) -> Result<String> {
    node.namespace().run("nft", &["-a", "list", "table", "ip", "tweed.1"])
}

#[test]
fn a_restart_a_kill_or_an_edit_disturbs_no_new_flow() {
    let mut scene = Scene::start(Stack::V4, VXLAN, BY_NFTABLES).unwrap();
    has_saved_its_lease(&scene).unwrap();
    let flows = scene.flows_to_world().unwrap();
    let before = table(scene.node()).unwrap();
    scene.cluster.daemons[0].restart().unwrap();
    for _ in 0..5 {
        scene.cluster.daemons[0].kill().unwrap();
        scene.cluster.daemons[0].start().unwrap();
        scene.cluster.daemons[0].wait_ready().unwrap();
        sleep(A_WHILE);
    }
    assert_eq!(table(scene.node()).unwrap(), before, "a start wrote the table again");
    for number in 1..=10 {
        let range = format!("10.200.{number}.0/24");
        let rest = format!(r#""NonMasqueradeCIDRs":["{range}"],{}"#, VXLAN.config());
        scene.cluster.etcd.put(CONFIG, &Stack::V4.config(&rest)).unwrap();
        eventually(PATIENCE, || Ok::<_, anyhow::Error>(table(scene.node())?.contains(&range)))
            .unwrap();
        sleep(A_WHILE);
    }
    let tally = scene.all_came_from_the_node(flows).unwrap();
    println!("{} flows", tally.sent);
    assert!(tally.sent > 1000, "{tally:?}");
}

fn has_saved_its_lease(scene: &Scene) -> Result<()> {
    eventually(PATIENCE, || has_saved(scene.node(), "\"own\":{")).map(drop)
}

#[test]
fn an_excluded_range_sees_the_addresses_of_pods() {
    let scene = Scene::start(Stack::V4, HOST_GW, BY_NFTABLES).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    let target = SocketAddr::new(scene.world.address(Family::V4).unwrap(), PORT);
    let source = || source_seen((pod, None), world, target);
    assert_eq!(source().unwrap(), scene.node().address(Family::V4).unwrap());
    let rest = format!(r#""NonMasqueradeCIDRs":["10.99.2.0/24"],{}"#, HOST_GW.config());
    scene.cluster.etcd.put(CONFIG, &Stack::V4.config(&rest)).unwrap();
    let pod_itself = scene.pods[0].address(Family::V4).unwrap();
    eventually(PATIENCE, || Ok::<_, anyhow::Error>(source()? == pod_itself)).unwrap();
}

#[test]
fn only_packets_with_the_configured_mark_are_not_masqueraded() {
    let flags = &["--ip-masq", "--iptables-masquerade-bit=17"];
    let scene = Scene::start(Stack::V4, HOST_GW, flags).unwrap();
    let (pod, world) = (scene.pods[0].namespace(), scene.world.namespace());
    let target = SocketAddr::new(scene.world.address(Family::V4).unwrap(), PORT);
    let nft = |line: &str| scene.node().namespace().run("nft", &[line]).unwrap();
    nft("table ip others { chain marks { type filter hook forward priority -150; }; }");
    let pod_itself = scene.pods[0].address(Family::V4).unwrap();
    let node = scene.node().address(Family::V4).unwrap();
    for (mark, expected) in [("0x4000", node), ("0x24000", pod_itself)] {
        nft(&format!("flush table ip others; add rule ip others marks meta mark set {mark}"));
        assert_eq!(source_seen((pod, None), world, target).unwrap(), expected, "{mark}");
    }
}

#[test]
fn removed_rules_are_restored_at_once() {
    let scene = Scene::start(Stack::Dual, HOST_GW, BY_NFTABLES).unwrap();
    let nft = |line: &str| scene.node().namespace().run("nft", &[line]);
    let rules = || scene.node().namespace().run("nft", &["list", "tables"]);
    let listed =
        |name: &str| scene.node().namespace().run("nft", &["list", "table", name, "tweed.1"]);
    let before = [listed("ip").unwrap(), listed("ip6").unwrap()];
    for blow in [
        "flush ruleset",
        "flush table ip tweed.1",
        "delete table ip6 tweed.1",
        "flush chain ip tweed.1 postrouting",
        "insert rule ip6 tweed.1 postrouting accept",
        "add chain ip tweed.1 forward { policy drop; }",
    ] {
        nft(blow).unwrap();
        let back = eventually(PATIENCE, || {
            let now = [listed("ip")?, listed("ip6")?];
            ensure!(now == before, "{blow}: {now:?}");
            Ok(())
        });
        println!("{blow}: back after {:.0?}", back.unwrap());
    }
    assert_eq!(rules().unwrap().lines().count(), 2);
    scene.node().namespace().reload_rules("nft").unwrap();
    eventually(PATIENCE, || {
        ensure!([listed("ip")?, listed("ip6")?] == before, "{:?}", listed("ip"));
        Ok(())
    })
    .unwrap();
    eventually(PATIENCE, || is_ready(&scene.cluster.daemons[0])).unwrap();
}

#[test]
fn a_node_reports_masquerading_and_cleans_up() {
    let scene = Scene::start(Stack::Dual, HOST_GW, BY_NFTABLES).unwrap();
    let written = std::fs::read_to_string(scene.node().subnet_file()).unwrap();
    assert!(written.ends_with("FLANNEL_IPMASQ=true\n"), "{written}");
    let status = json(&scene.cluster.daemons[0], "status").unwrap();
    let tables = status["tables"].as_array().unwrap();
    assert_eq!(tables.len(), 2, "{status}");
    assert!(tables.iter().all(|table| table["programmed"] == true), "{status}");
    scene.cluster.daemons[0].stop().unwrap();
    let output = tweedctl(scene.node(), &["cleanup", "--yes"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(scene.node().namespace().run("nft", &["list", "tables"]).unwrap(), "");
}

#[test]
fn unused_addresses_are_refused_once_the_bridge_is_gone() {
    let scene = Scene::start(Stack::Dual, HOST_GW, &["--ip-blackhole-route"]).unwrap();
    let subnet = scene.cluster.subnet(0, Family::V4).unwrap();
    let subnet = format!("{}/{}", subnet.network(), subnet.prefix());
    let routes = || scene.node().ip(format!("route show {subnet}"));
    let both = |text: &str| text.contains("dev cni0") && text.contains("unreachable");
    assert!(both(&routes().unwrap()), "{}", routes().unwrap());
    let log = scene.cluster.daemons[0].log().unwrap();
    assert!(!log.contains("refused"), "{log}");
    scene.node().ip("link set cni0 down").unwrap();
    let unused = scene.cluster.subnet(0, Family::V4).unwrap().iter().nth(77).unwrap();
    let output = scene.node().namespace().output("ip", &["route", "get", &unused.to_string()]);
    assert!(!output.unwrap().status.success(), "it would be sent on");
}
