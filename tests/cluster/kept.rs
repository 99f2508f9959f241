//! Connections that hosts translate or begin, across a whole migration: none breaks.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, Namespace, Node, Path, Pod, eventually};

use crate::ask::{is_ready, json, tweedctl};
use crate::cluster::{CONFIG, PATIENCE, Stack};
use crate::scene::{BY_IPTABLES, BY_NFTABLES, PORT, Scene};
use crate::table::{HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED};

/// A connection that does not answer for so long is broken.
const SILENCE: Duration = Duration::from_secs(10);
/// The device of a tunnel that no peer needs stays for a while.
const RETIRED: Duration = Duration::from_secs(60);
/// What comes to node 1 on these ports is for the pod of node 2; the second is marked as by
/// kube-proxy on the way.
const NODE_PORT: u16 = 7002;
const MARKED_PORT: u16 = 7003;

/// A connection, and the source that the other end saw at its beginning.
struct Held {
    name: String,
    stream: TcpStream,
    source: IpAddr,
}

impl Held {
    fn open(name: String, from: &Namespace, target: SocketAddr) -> Result<Self> {
        let connect = || TcpStream::connect_timeout(&target, SILENCE);
        let stream = from.within(connect)?.with_context(|| name.clone())?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_nodelay(true)?;
        let mut held = Self { name, stream, source: target.ip() };
        held.source = held.ask()?;
        Ok(held)
    }

    /// The source that the other end sees.
    fn ask(&mut self) -> Result<IpAddr> {
        let mut answer = [0; 16];
        self.stream.write_all(&[0]).with_context(|| self.name.clone())?;
        self.stream.read_exact(&mut answer).with_context(|| self.name.clone())?;
        Ok(Ipv6Addr::from(answer).to_canonical())
    }
}

/// Answers each byte with the address that it came from.
fn serve(pod: &Pod) -> Result<()> {
    let bind = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT));
    let listener = pod.namespace().within(bind)??;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(stream));
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let source = match stream.peer_addr()?.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    loop {
        stream.read_exact(&mut [0])?;
        stream.write_all(&source.octets())?;
    }
}

/// Two nodes, and connections by way of the first to the pod of the second.
struct Story {
    scene: Scene,
    flags: &'static [&'static str],
    held: Vec<Held>,
}

impl Story {
    fn start(side: Side, flags: &'static [&'static str]) -> Result<Self> {
        let scene = Scene::start(Stack::Dual, side, flags)?;
        serve(&scene.pods[1])?;
        let story = Self { scene, flags, held: Vec::new() };
        for family in Stack::Dual.families() {
            story.surround(*family)?;
        }
        Ok(story)
    }

    fn node(&self) -> &Node {
        self.scene.node()
    }

    fn masquerades(&self) -> bool {
        self.flags.contains(&"--ip-masq")
    }

    /// What translates destinations on node 1, and masquerades what it has marked.
    fn surround(&self, family: Family) -> Result<()> {
        let (word, pod) =
            (word(family), SocketAddr::new(self.scene.pods[1].address(family)?, PORT));
        let rules = format!(
            "table {word} others {{
                chain ports {{ type nat hook prerouting priority dstnat;
                    tcp dport {MARKED_PORT} meta mark set 0x4000;
                    tcp dport {{ {NODE_PORT}, {MARKED_PORT} }} dnat to {pod}; }}
            }}"
        );
        self.node().namespace().run("nft", &[&rules])?;
        if self.flags.contains(&"--iptables") {
            return self.surround_by_iptables(family);
        }
        let rules = format!(
            "table {word} kube-proxy {{
                chain nat-postrouting {{ type nat hook postrouting priority srcnat;
                    meta mark & 0x4000 == 0 return
                    meta mark set meta mark ^ 0x4000
                    masquerade fully-random; }}
            }}"
        );
        self.node().namespace().run("nft", &[&rules]).map(drop)
    }

    /// kube-proxy puts itself first in iptables, and stays where it is.
    fn surround_by_iptables(&self, family: Family) -> Result<()> {
        let program = match family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        for rule in [
            "-N KUBE-POSTROUTING",
            "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
            "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000",
            "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
            "-I POSTROUTING -j KUBE-POSTROUTING",
        ] {
            let words: Vec<&str> = ["-w", "-t", "nat"].into_iter().chain(rule.split(' ')).collect();
            self.node().namespace().run(program, &words)?;
        }
        Ok(())
    }

    /// Opens a connection of each kind in each family.
    fn open(&mut self, stage: &str) -> Result<()> {
        let [pod, far] = [&self.scene.pods[0], &self.scene.pods[1]];
        let (node, world) = (self.scene.node(), &self.scene.world);
        for family in Stack::Dual.families() {
            let at_node = |port| Ok::<_, anyhow::Error>((node.address(*family)?, port).into());
            let mut kinds = vec![
                ("node → pod", node.namespace(), (far.address(*family)?, PORT).into()),
                ("world → node, marked → pod", world.namespace(), at_node(MARKED_PORT)?),
                ("pod → node, marked → pod", pod.namespace(), at_node(MARKED_PORT)?),
            ];
            if self.masquerades() {
                kinds.push(("world → node → pod", world.namespace(), at_node(NODE_PORT)?));
            }
            for (kind, from, target) in kinds {
                let held = Held::open(format!("{kind}, {family:?}, {stage}"), from, target)?;
                if kind != "node → pod" {
                    let gateway = self.gateway(*family)?;
                    ensure!(held.source == gateway, "{} came from {}", held.name, held.source);
                }
                self.held.push(held);
            }
        }
        self.no_connection_broke(stage)
    }

    fn gateway(&self, family: Family) -> Result<IpAddr> {
        let gateways = self.node().subnet_env()?.gateways;
        let mut of_family = gateways.iter().map(ipnetwork::IpNetwork::ip);
        of_family.find(|ip| Family::of(*ip) == family).context("no gateway")
    }

    fn no_connection_broke(&mut self, stage: &str) -> Result<()> {
        for held in &mut self.held {
            let source = held.ask().with_context(|| format!("broken after {stage}"))?;
            ensure!(source == held.source, "{} now comes from {source}", held.name);
        }
        Ok(())
    }

    /// Writes the config, and waits until the paths are those of `side`.
    fn edit(&mut self, side: Side, path: Path) -> Result<()> {
        let cluster = &self.scene.cluster;
        cluster.etcd.put(CONFIG, &cluster.stack.config(&side.config()))?;
        cluster.wait_for_paths(|_, _| path)?;
        self.no_connection_broke(&format!("{side:?}"))
    }

    /// Only then may the backend change.
    fn wait_until_all_mix(&self) -> Result<()> {
        for daemon in &self.scene.cluster.daemons {
            eventually(PATIENCE, || {
                Ok::<_, anyhow::Error>(json(daemon, "status")?["mixed"] == true)
            })?;
        }
        Ok(())
    }

    /// Until nothing is left of the tunnel.
    fn wait_for_the_end_of_the_tunnel(&self) -> Result<()> {
        for device in ["flannel.1", "flannel-v6.1"] {
            let show = || self.node().namespace().output("ip", &["link", "show", device]);
            eventually(RETIRED, || Ok::<_, anyhow::Error>(!show()?.status.success()))?;
        }
        Ok(())
    }

    fn loopback(&self) -> Result<Vec<String>> {
        let shown = self.node().ip("-o addr show lo")?;
        let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        Ok(shown.lines().filter_map(address).collect())
    }
}

const fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn migrate(story: &mut Story) -> Result<()> {
    story.edit(HOST_GW_MIXED, Path::Direct)?;
    story.open("host-gw")?;
    story.edit(VXLAN_MIXED, Path::Tunnel)?;
    story.open("vxlan again")?;
    story.edit(HOST_GW_MIXED, Path::Direct)?;
    story.edit(HOST_GW, Path::Direct)?;
    story.wait_for_the_end_of_the_tunnel()?;
    story.no_connection_broke("the end of the tunnel")?;
    if story.masquerades() {
        story.open("the end")?;
    }
    // The translated source need not be on any link: a node without pods has no bridge.
    story.held.retain(|held| !held.name.starts_with("pod "));
    story.node().ip("link delete cni0")?;
    story.no_connection_broke("the end of the bridge")
}

/// From the tunnel, before `Mixed` is on, with strict filters.
fn no_connection_breaks(flags: &'static [&'static str]) -> Result<()> {
    let mut story = Story::start(VXLAN, flags)?;
    for node in &story.scene.cluster.nodes {
        for link in ["eth0", "flannel.1"] {
            node.namespace().set_sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "1")?;
        }
    }
    story.open("vxlan")?;
    story.edit(VXLAN_MIXED, Path::Tunnel)?;
    story.wait_until_all_mix()?;
    migrate(&mut story)
}

#[test]
fn no_connection_breaks_in_a_migration_by_nftables() {
    no_connection_breaks(BY_NFTABLES).unwrap();
}

#[test]
fn no_connection_breaks_in_a_migration_by_iptables() {
    no_connection_breaks(BY_IPTABLES).unwrap();
}

#[test]
fn without_masquerading_no_marked_connection_breaks_in_a_migration() {
    let mut story = Story::start(VXLAN_MIXED, &[]).unwrap();
    story.open("vxlan").unwrap();
    migrate(&mut story).unwrap();
}

/// Between the two restarts there is no path: nothing is sent meanwhile.
#[test]
fn no_connection_breaks_at_a_restart_from_vxlan_to_host_gw() {
    let mut story = Story::start(VXLAN, BY_NFTABLES).unwrap();
    story.open("vxlan").unwrap();
    let cluster = &mut story.scene.cluster;
    cluster.etcd.put(CONFIG, &cluster.stack.config(&HOST_GW.config())).unwrap();
    for daemon in &mut cluster.daemons {
        daemon.restart().unwrap();
    }
    cluster.wait_for_paths(|_, _| Path::Direct).unwrap();
    story.no_connection_broke("the restart").unwrap();
    story.wait_for_the_end_of_the_tunnel().unwrap();
    story.no_connection_broke("the end of the tunnel").unwrap();
}

#[test]
fn the_address_of_the_tunnel_stays_on_the_loopback_until_cleanup() {
    let story = Story::start(VXLAN, BY_NFTABLES).unwrap();
    let foreign = ["10.244.77.5/32", "10.99.77.0/32", "fd00:244:77::5/128"];
    for it in foreign {
        story.node().ip(format!("addr add {it} dev lo")).unwrap();
    }
    let others = story.loopback().unwrap();
    assert_eq!(others.len(), 2 + foreign.len(), "{others:?}");
    let mut story = story;
    story.edit(VXLAN_MIXED, Path::Tunnel).unwrap();
    story.wait_until_all_mix().unwrap();
    story.edit(HOST_GW_MIXED, Path::Direct).unwrap();
    story.edit(HOST_GW, Path::Direct).unwrap();
    story.wait_for_the_end_of_the_tunnel().unwrap();
    let cluster = &mut story.scene.cluster;
    let kept = Stack::Dual.families().iter().map(|family| {
        let subnet = cluster.subnet(0, *family).unwrap();
        format!("{}/{}", subnet.network(), if *family == Family::V4 { 32 } else { 128 })
    });
    let kept: Vec<String> = kept.collect();
    cluster.daemons[0].restart().unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    let mut expected = [others.clone(), kept].concat();
    expected.sort();
    let sorted = |story: &Story| {
        let mut found = story.loopback().unwrap();
        found.sort();
        found
    };
    assert_eq!(sorted(&story), expected);
    story.scene.cluster.daemons[0].stop().unwrap();
    let output = tweedctl(story.node(), &["cleanup", "--yes"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut others = others;
    others.sort();
    assert_eq!(sorted(&story), others);
}

#[test]
fn a_node_that_never_had_a_tunnel_has_nothing_on_the_loopback() {
    let story = Story::start(HOST_GW, BY_NFTABLES).unwrap();
    eventually(PATIENCE, || is_ready(&story.scene.cluster.daemons[0])).unwrap();
    assert_eq!(story.loopback().unwrap(), ["127.0.0.1/8", "::1/128"]);
}
