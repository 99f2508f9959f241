//! Translated connections and those of hosts survive a whole migration.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, Namespace, Node, Path, Pod, eventually};

use crate::fixture::ask::{is_ready, json, tweedctl};
use crate::fixture::cluster::{CONFIG, PATIENCE, Stack};
use crate::fixture::scene::{BY_IPTABLES, BY_NFTABLES, PORT, Scene};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, Mixed, Side, VXLAN, VXLAN_MIXED};

/// A connection without an answer for this time is broken.
const SILENCE: Duration = Duration::from_secs(10);
/// Longer than a device stays that no peer needs.
const LINGER: Duration = Duration::from_secs(12);
/// Node 1 forwards connections to these ports to the pod of node 2; those to the second are marked
/// for masquerading, as by kube-proxy.
const NODE_PORT: u16 = 7002;
const MARKED_PORT: u16 = 7003;

/// A connection, and the source that the other end saw at its start.
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

/// Two nodes, and connections through the first to the pod of the second.
struct Scenario {
    scene: Scene,
    flags: &'static [&'static str],
    held: Vec<Held>,
}

impl Scenario {
    fn start(side: Side, flags: &'static [&'static str]) -> Result<Self> {
        let scene = Scene::start(Stack::Dual, side, flags)?;
        serve(&scene.pods[1])?;
        let scenario = Self { scene, flags, held: Vec::new() };
        for family in Stack::Dual.families() {
            scenario.surround(*family)?;
        }
        Ok(scenario)
    }

    fn node(&self) -> &Node {
        self.scene.node()
    }

    fn masquerades(&self) -> bool {
        self.flags.contains(&"--ip-masq")
    }

    /// Rules on node 1 that translate destinations, and masquerade marked packets.
    fn surround(&self, family: Family) -> Result<()> {
        let (nft_family, pod) =
            (nft_family(family), SocketAddr::new(self.scene.pods[1].address(family)?, PORT));
        let rules = format!(
            "table {nft_family} others {{
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
            "table {nft_family} kube-proxy {{
                chain nat-postrouting {{ type nat hook postrouting priority srcnat;
                    meta mark & 0x4000 == 0 return
                    meta mark set meta mark ^ 0x4000
                    masquerade fully-random; }}
            }}"
        );
        self.node().namespace().run("nft", &[&rules]).map(drop)
    }

    /// kube-proxy inserts its iptables rules first, and keeps them there.
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
        if side.mixed == Mixed::On {
            cluster.wait_until_applied()?;
        }
        self.no_connection_broke(&format!("{side:?}"))
    }

    /// The backend may change only after this.
    fn wait_until_all_mix(&self) -> Result<()> {
        for daemon in &self.scene.cluster.daemons {
            eventually(PATIENCE, || {
                Ok::<_, anyhow::Error>(json(daemon, "status")?["mixed"] == true)
            })?;
        }
        Ok(())
    }

    /// Waits until no entry of the tunnel is left.
    fn wait_for_the_end_of_the_tunnel(&self) -> Result<()> {
        for device in ["flannel.1", "flannel-v6.1"] {
            let show = || self.node().namespace().output("ip", &["link", "show", device]);
            eventually(PATIENCE, || Ok::<_, anyhow::Error>(!show()?.status.success()))?;
        }
        Ok(())
    }

    fn loopback(&self) -> Result<Vec<String>> {
        let shown = self.node().ip("-o addr show lo")?;
        let address = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        Ok(shown.lines().filter_map(address).collect())
    }
}

const fn nft_family(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

fn migrate(scenario: &mut Scenario) -> Result<()> {
    scenario.edit(HOST_GW_MIXED, Path::Direct)?;
    scenario.open("host-gw")?;
    scenario.edit(VXLAN_MIXED, Path::Tunnel)?;
    scenario.open("vxlan again")?;
    scenario.edit(HOST_GW_MIXED, Path::Direct)?;
    scenario.edit(HOST_GW, Path::Direct)?;
    scenario.wait_for_the_end_of_the_tunnel()?;
    scenario.no_connection_broke("the end of the tunnel")?;
    if scenario.masquerades() {
        scenario.open("the end")?;
    }
    // The translated source may be on no link: a node without pods has no bridge.
    scenario.held.retain(|held| !held.name.starts_with("pod "));
    scenario.node().ip("link delete cni0")?;
    scenario.no_connection_broke("the end of the bridge")
}

/// Starts on vxlan, with strict filters, and turns `Mixed` on.
fn mixing(flags: &'static [&'static str]) -> Result<Scenario> {
    let mut scenario = Scenario::start(VXLAN, flags)?;
    for node in &scenario.scene.cluster.nodes {
        for link in ["eth0", "flannel.1"] {
            node.namespace().set_sysctl(&format!("net/ipv4/conf/{link}/rp_filter"), "1")?;
        }
    }
    scenario.open("vxlan")?;
    scenario.edit(VXLAN_MIXED, Path::Tunnel)?;
    scenario.wait_until_all_mix()?;
    Ok(scenario)
}

#[test]
fn no_connection_breaks_in_a_migration_by_nftables() {
    migrate(&mut mixing(BY_NFTABLES).unwrap()).unwrap();
}

#[test]
fn no_connection_breaks_in_a_migration_by_iptables() {
    migrate(&mut mixing(BY_IPTABLES).unwrap()).unwrap();
}

#[test]
fn without_masquerading_no_marked_connection_breaks_in_a_migration() {
    let mut scenario = Scenario::start(VXLAN_MIXED, &[]).unwrap();
    scenario.open("vxlan").unwrap();
    migrate(&mut scenario).unwrap();
}

/// A peer that still mixes sends to the address of the tunnel through it, and so its answers on
/// connections that began there.
#[test]
fn no_connection_breaks_while_a_peer_has_not_read_the_end_of_a_migration() {
    let mut scenario = mixing(BY_NFTABLES).unwrap();
    scenario.edit(HOST_GW_MIXED, Path::Direct).unwrap();
    let cluster = &mut scenario.scene.cluster;
    cluster.daemons[1].freeze_idle().unwrap();
    cluster.etcd.put(CONFIG, &cluster.stack.config(&HOST_GW.config())).unwrap();
    let is_finished =
        || Ok::<_, anyhow::Error>(json(&cluster.daemons[0], "status")?["mixed"] == false);
    eventually(PATIENCE, is_finished).unwrap();
    let end = Instant::now() + LINGER;
    while Instant::now() < end {
        scenario.no_connection_broke("the end on one of two nodes").unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    scenario.scene.cluster.daemons[1].thaw().unwrap();
    scenario.wait_for_the_end_of_the_tunnel().unwrap();
    scenario.no_connection_broke("the end of the tunnel").unwrap();
}

/// Between the two restarts there is no path, so nothing is sent.
#[test]
fn no_connection_breaks_at_a_restart_from_vxlan_to_host_gw() {
    let mut scenario = Scenario::start(VXLAN, BY_NFTABLES).unwrap();
    scenario.open("vxlan").unwrap();
    let cluster = &mut scenario.scene.cluster;
    cluster.etcd.put(CONFIG, &cluster.stack.config(&HOST_GW.config())).unwrap();
    for daemon in &mut cluster.daemons {
        daemon.restart().unwrap();
    }
    cluster.wait_for_paths(|_, _| Path::Direct).unwrap();
    scenario.no_connection_broke("the restart").unwrap();
    scenario.wait_for_the_end_of_the_tunnel().unwrap();
    scenario.no_connection_broke("the end of the tunnel").unwrap();
}

#[test]
fn the_address_of_the_tunnel_stays_on_the_loopback_until_cleanup() {
    let scenario = Scenario::start(VXLAN, BY_NFTABLES).unwrap();
    let foreign = ["10.244.77.5/32", "10.99.77.0/32", "fd00:244:77::5/128"];
    for it in foreign {
        scenario.node().ip(format!("addr add {it} dev lo")).unwrap();
    }
    let others = scenario.loopback().unwrap();
    assert_eq!(others.len(), 2 + foreign.len(), "{others:?}");
    let mut scenario = scenario;
    scenario.edit(VXLAN_MIXED, Path::Tunnel).unwrap();
    scenario.wait_until_all_mix().unwrap();
    scenario.edit(HOST_GW_MIXED, Path::Direct).unwrap();
    scenario.edit(HOST_GW, Path::Direct).unwrap();
    scenario.wait_for_the_end_of_the_tunnel().unwrap();
    let cluster = &mut scenario.scene.cluster;
    let kept = Stack::Dual.families().iter().map(|family| {
        let subnet = cluster.subnet(0, *family).unwrap();
        format!("{}/{}", subnet.network(), if *family == Family::V4 { 32 } else { 128 })
    });
    let kept: Vec<String> = kept.collect();
    cluster.daemons[0].restart().unwrap();
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    let mut expected = [others.clone(), kept].concat();
    expected.sort();
    let sorted = |scenario: &Scenario| {
        let mut found = scenario.loopback().unwrap();
        found.sort();
        found
    };
    assert_eq!(sorted(&scenario), expected);
    scenario.scene.cluster.daemons[0].stop().unwrap();
    let output = tweedctl(scenario.node(), &["cleanup", "--yes"]).unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut others = others;
    others.sort();
    assert_eq!(sorted(&scenario), others);
}

#[test]
fn a_node_that_never_had_a_tunnel_has_only_the_address_for_probes_on_the_loopback() {
    let scenario = Scenario::start(HOST_GW, BY_NFTABLES).unwrap();
    eventually(PATIENCE, || is_ready(&scenario.scene.cluster.daemons[0])).unwrap();
    let cluster = &scenario.scene.cluster;
    let [v4, v6] = [Family::V4, Family::V6].map(|it| cluster.subnet(0, it).unwrap().network());
    let expected = ["127.0.0.1/8".to_owned(), format!("{v4}/32"), format!("{v6}/128")];
    let expected = [&expected[..], &["::1/128".to_owned()]].concat();
    assert_eq!(scenario.loopback().unwrap(), expected);
}
