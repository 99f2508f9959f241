//! Deleted or changed entries are restored within a second, and no foreign entry is touched.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Change, Daemon, Family, Node, Signal, eventually};

use crate::fixture::ask::exit_code;
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, SUBNETS, Stack};
use crate::fixture::table::{HOST_GW, VXLAN, VXLAN_MIXED};

/// Long enough to observe a repair loop.
const QUIET: Duration = Duration::from_millis(300);
const OTHER_MAC: &str = "02:00:00:00:00:99";

/// The first node of a cluster, whose entries are changed; it also has foreign objects.
struct RepairedNode {
    cluster: Cluster,
    foreign: Foreign,
    initial: BTreeSet<String>,
}

/// Where foreign routes lead; a device that goes down removes its routes.
#[derive(Clone, Copy)]
enum Foreign {
    OnUnderlay,
    Elsewhere,
}

impl RepairedNode {
    fn build(plan: &ClusterPlan, foreign: Foreign) -> Result<Self> {
        let cluster = plan.start()?;
        let all_are_routed = || -> Result<()> {
            cluster.pairs().iter().try_for_each(|(from, to)| {
                cluster.stack.families().iter().try_for_each(|family| {
                    let subnet = cluster.subnet(*to, *family)?;
                    let route = cluster.nodes[*from].route_to(subnet)?;
                    ensure!(route.is_some(), "no route to {subnet}");
                    Ok(())
                })
            })
        };
        eventually(PATIENCE, all_are_routed)?;
        cluster.start_pods()?;
        make_foreign_objects(&cluster.nodes[0], foreign)?;
        // The changes that the pods' addresses cause must be over.
        let mut initial = BTreeSet::new();
        eventually(PATIENCE, || {
            let before = std::mem::replace(&mut initial, state(&cluster.nodes[0])?);
            ensure!(before == initial, "the node does not settle");
            Ok(())
        })?;
        Ok(Self { cluster, foreign, initial })
    }

    fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    fn peer_subnet(&self, family: Family) -> Result<String> {
        Ok(self.cluster.subnet(1, family)?.to_string())
    }

    /// Does `harm`, and waits until the node has exactly its state before.
    fn is_repaired(&self, name: &str, harm: impl FnOnce(&Node) -> Result<()>) -> Result<()> {
        harm(self.node()).with_context(|| format!("harming: {name}"))?;
        let repaired = eventually(PATIENCE, || {
            let now = state(self.node())?;
            let missing: Vec<_> = self.initial.difference(&now).collect();
            let surplus: Vec<_> = now.difference(&self.initial).collect();
            ensure!(missing.is_empty() && surplus.is_empty(), "- {missing:#?}\n+ {surplus:#?}");
            Ok(())
        });
        println!("{name}: whole after {:.0?}", repaired.with_context(|| name.to_owned())?);
        self.stays_quiet().with_context(|| format!("after: {name}"))
    }

    /// As [`is_repaired`](Self::is_repaired), for several lines of `ip(8)`.
    fn is_repaired_after(&self, name: &str, lines: &str) -> Result<()> {
        self.is_repaired(name, |node| node.namespace().ip_batch(lines))
    }

    /// An ineffective repair would be repeated.
    fn stays_quiet(&self) -> Result<()> {
        ensure_quiet(self.node(), QUIET)
    }

    /// No further change occurs, and all pods reach each other.
    fn ends_quiet(&self) -> Result<()> {
        ensure_quiet(self.node(), Duration::from_secs(1))?;
        let families = self.cluster.stack.families();
        families.iter().try_for_each(|family| self.cluster.lab.all_reach_each_other(*family))
    }

    /// The kernel removes foreign routes with the underlay; their owner restores them.
    fn bring_back_foreign_routes(&self) -> Result<()> {
        match self.foreign {
            Foreign::OnUnderlay => self.node().namespace().ip_batch(FOREIGN_ROUTES),
            Foreign::Elsewhere => Ok(()),
        }
    }
}

/// One outside the pods' network, one inside it.
const FOREIGN_ROUTES: &str = "route add 10.50.0.0/16 via 10.99.1.12 dev eth0
    route add 10.244.250.0/24 via 10.99.1.12 dev eth0 proto static";

fn make_foreign_objects(node: &Node, foreign: Foreign) -> Result<()> {
    node.namespace().ip_batch(
        "link add foreign0 type veth peer name foreign1
         link set foreign1 up
         link set foreign0 up
         address add 192.0.2.1/24 dev foreign0
         route add 10.51.0.0/16 dev foreign0
         route add 10.244.251.0/24 dev foreign0 proto static
         neighbour add 192.0.2.7 lladdr 02:00:00:00:00:07 dev foreign0 nud permanent",
    )?;
    match foreign {
        Foreign::OnUnderlay => node.namespace().ip_batch(FOREIGN_ROUTES),
        Foreign::Elsewhere => Ok(()),
    }
}

/// The state of the kernel without device numbers, which change when a device is recreated.
fn state(node: &Node) -> Result<BTreeSet<String>> {
    let snapshot = node.snapshot()?.to_string();
    let is_number = |word: &str| word.strip_suffix(':').is_some_and(|it| it.parse::<u32>().is_ok());
    let without = |line: &str| -> String {
        line.split_whitespace().filter(|word| !is_number(word)).collect::<Vec<_>>().join(" ")
    };
    Ok(snapshot.lines().map(without).collect())
}

fn ensure_quiet(node: &Node, time: Duration) -> Result<()> {
    let monitor = node.monitor()?;
    std::thread::sleep(time);
    // The kernel adds its own entries some time after a device comes up.
    let is_kernels = |change: &Change| change.text.contains("fe80:");
    let changes = monitor.finish()?.into_iter().filter(|change| !is_kernels(change));
    let changes: Vec<Change> = changes.collect();
    let listed: Vec<String> = changes.iter().map(ToString::to_string).collect();
    ensure!(changes.is_empty(), "{} changes in {time:?}:\n{}", changes.len(), listed.join("\n"));
    Ok(())
}

fn repaired_node(stack: Stack, rest: &str, foreign: Foreign) -> Result<RepairedNode> {
    RepairedNode::build(&ClusterPlan::new(3, &stack.config(rest)).stack(stack), foreign)
}

#[test]
fn entries_of_a_tunnel_are_restored() {
    let it = repaired_node(Stack::V4, &VXLAN.config(), Foreign::OnUnderlay).unwrap();
    let subnet = it.peer_subnet(Family::V4).unwrap();
    let base = subnet.trim_end_matches("/24").to_owned();
    let mac = it.cluster.nodes[1].link("flannel.1").unwrap().unwrap().mac;
    let own = it.cluster.subnet(0, Family::V4).unwrap().ip();
    let is_repaired = |name: &str, line: String| it.is_repaired_after(name, &line).unwrap();
    is_repaired("route deleted", format!("route del {subnet}"));
    is_repaired(
        "route by a wrong gateway",
        format!("route replace {subnet} via 10.99.1.13 dev eth0"),
    );
    is_repaired("route without gateway", format!("route replace {subnet} dev flannel.1"));
    is_repaired("route without a peer", format!("route replace blackhole {subnet}"));
    is_repaired("neighbour deleted", format!("neighbour del {base} dev flannel.1"));
    let neighbour = format!("neighbour replace {base} dev flannel.1 lladdr");
    is_repaired("neighbour of a wrong MAC", format!("{neighbour} {OTHER_MAC} nud permanent"));
    is_repaired("neighbour that ages", format!("{neighbour} {mac} nud reachable"));
    is_repaired("device address deleted", format!("address del {own}/32 dev flannel.1"));
    let fdb = |name: &str, words: String| {
        it.is_repaired(name, |node| node.bridge(format!("fdb {words}")).map(drop)).unwrap();
    };
    fdb("FDB entry deleted", format!("del {mac} dev flannel.1"));
    fdb(
        "FDB entry elsewhere",
        format!("replace {mac} dev flannel.1 dst 10.99.1.77 self permanent"),
    );
    fdb(
        "FDB entry without a peer",
        format!("add {OTHER_MAC} dev flannel.1 dst 10.99.1.77 self permanent"),
    );
    it.ends_quiet().unwrap();
}

#[test]
fn the_tunnel_device_is_restored_with_its_entries() {
    let it = repaired_node(Stack::V4, &VXLAN.config(), Foreign::OnUnderlay).unwrap();
    let is_repaired = |name: &str, lines: &str| it.is_repaired_after(name, lines).unwrap();
    is_repaired("device of another MAC", &format!("link set flannel.1 address {OTHER_MAC}"));
    is_repaired("device of another MTU", "link set flannel.1 mtu 1400");
    is_repaired("device down", "link set flannel.1 down");
    is_repaired("device down and up", "link set flannel.1 down\nlink set flannel.1 up");
    is_repaired("device deleted", "link del flannel.1");
    let replaced = |name: &str, device: &str| {
        // Otherwise the daemon repairs an entry before the next command runs.
        let daemon = it.cluster.daemons[0].process();
        let harm = |node: &Node| {
            daemon.signal(Signal::SIGSTOP)?;
            node.ip("link del flannel.1")?;
            node.ip(format!("link add flannel.1 {device}"))?;
            daemon.signal(Signal::SIGCONT)
        };
        it.is_repaired(name, harm).unwrap();
    };
    replaced("device replaced by a bridge", "type bridge");
    replaced("device replaced by another tunnel", "type vxlan id 7 dstport 4789 dev eth0");
    it.ends_quiet().unwrap();
}

#[test]
fn direct_routes_are_restored() {
    let it = repaired_node(Stack::V4, &HOST_GW.config(), Foreign::OnUnderlay).unwrap();
    let subnet = it.peer_subnet(Family::V4).unwrap();
    let is_repaired = |name: &str, line: String| it.is_repaired_after(name, &line).unwrap();
    is_repaired("route deleted", format!("route del {subnet}"));
    is_repaired("route by a wrong gateway", format!("route replace {subnet} via 10.99.1.13"));
    is_repaired("route into another device", format!("route replace {subnet} dev foreign0"));
    is_repaired(
        "all nexthop objects flushed, and their routes",
        "nexthop flush proto 241".to_owned(),
    );
    it.ends_quiet().unwrap();
}

#[test]
fn routes_are_restored_with_the_underlay() {
    for side in [HOST_GW, VXLAN_MIXED, VXLAN] {
        let it = repaired_node(Stack::V4, &side.config(), Foreign::OnUnderlay).unwrap();
        let away = |node: &Node| {
            node.namespace().ip_batch("link set eth0 down\nlink set eth0 up")?;
            it.bring_back_foreign_routes()
        };
        it.is_repaired(&format!("{side:?}: underlay down and up"), away).unwrap();
        let unplugged = |node: &Node| {
            node.underlay().unplug()?;
            node.underlay().restore()
        };
        it.is_repaired(&format!("{side:?}: cable unplugged for a moment"), unplugged).unwrap();
        it.ends_quiet().unwrap();
    }
}

#[test]
fn a_filter_set_to_strict_is_loosened_again() {
    let it = repaired_node(Stack::V4, &VXLAN_MIXED.config(), Foreign::Elsewhere).unwrap();
    for device in ["eth0", "flannel.1"] {
        let key = format!("net/ipv4/conf/{device}/rp_filter");
        let filter = || it.node().namespace().sysctl(&key);
        it.node().namespace().set_sysctl(&key, "1").unwrap();
        let repaired = eventually(PATIENCE, || {
            ensure!(filter()? == "2", "{key} is strict");
            Ok(())
        });
        println!("{key} made strict: loose after {:.0?}", repaired.unwrap());
    }
    it.ends_quiet().unwrap();
}

#[test]
fn a_foreign_address_on_the_tunnel_device_stays() {
    let it = repaired_node(Stack::V4, &VXLAN.config(), Foreign::Elsewhere).unwrap();
    it.node().ip("address add 198.51.100.1/32 dev flannel.1").unwrap();
    ensure_quiet(it.node(), QUIET).unwrap();
    it.node().ip(format!("route del {}", it.peer_subnet(Family::V4).unwrap())).unwrap();
    eventually(PATIENCE, || it.ends_quiet()).unwrap();
    let addresses = it.node().addresses("flannel.1").unwrap();
    let there = addresses.iter().any(|it| it.address.to_string() == "198.51.100.1/32");
    assert!(there, "{addresses:?}");
}

#[test]
fn the_mtu_follows_the_underlay() {
    let it = repaired_node(Stack::V4, &VXLAN.config(), Foreign::Elsewhere).unwrap();
    for (underlay, expected) in [(1400, 1350), (9000, 8950), (1500, 1450)] {
        it.node().underlay().set_mtu(underlay).unwrap();
        let followed = eventually(PATIENCE, || {
            let device = it.node().link("flannel.1")?.context("no device")?.mtu;
            let reported = it.node().subnet_env()?.mtu;
            ensure!(
                (device, reported) == (expected, expected),
                "device {device}, subnet.env {reported}"
            );
            Ok(())
        });
        println!("underlay of {underlay} bytes: followed after {:.0?}", followed.unwrap());
    }
    it.ends_quiet().unwrap();
}

#[test]
fn both_families_are_repaired() {
    let it = repaired_node(Stack::Dual, &VXLAN_MIXED.config(), Foreign::OnUnderlay).unwrap();
    let subnet = it.peer_subnet(Family::V6).unwrap();
    let base = subnet.trim_end_matches("/64").to_owned();
    let own = it.cluster.subnet(0, Family::V6).unwrap().ip();
    let mac = it.cluster.nodes[1].link("flannel-v6.1").unwrap().unwrap().mac;
    let is_repaired = |name: &str, lines: String| it.is_repaired_after(name, &lines).unwrap();
    is_repaired("v6 route deleted", format!("route del {subnet}"));
    is_repaired("v6 route into another device", format!("route replace {subnet} dev foreign0"));
    is_repaired("v6 neighbour deleted", format!("neighbour del {base} dev flannel-v6.1"));
    is_repaired("v6 device address deleted", format!("address del {own}/128 dev flannel-v6.1"));
    let gone = |node: &Node| node.bridge(format!("fdb del {mac} dev flannel-v6.1")).map(drop);
    it.is_repaired("v6 FDB entry deleted", gone).unwrap();
    is_repaired(
        "v6 device down and up",
        "link set flannel-v6.1 down\nlink set flannel-v6.1 up".into(),
    );
    is_repaired("v6 device deleted", "link del flannel-v6.1".to_owned());
    is_repaired("both devices deleted", "link del flannel-v6.1\nlink del flannel.1".to_owned());
    it.ends_quiet().unwrap();
}

#[test]
fn direct_routes_of_both_families_are_restored_with_the_underlay() {
    let it = repaired_node(Stack::Dual, &HOST_GW.config(), Foreign::OnUnderlay).unwrap();
    let address = it.node().address(Family::V6).unwrap();
    let away = |node: &Node| {
        // The kernel removes IPv6 addresses with the link; their owner restores them.
        node.namespace().ip_batch(&format!(
            "link set eth0 down
             link set eth0 up
             address replace {address}/64 dev eth0 nodad"
        ))?;
        it.bring_back_foreign_routes()
    };
    it.is_repaired("underlay down and up", away).unwrap();
    it.ends_quiet().unwrap();
}

/// This number of leases of nodes that do not exist.
const MANY: usize = 1000;

#[test]
fn a_thousand_routes_flushed_at_once_are_restored() {
    let config = r#"{"Network":"10.128.0.0/9","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
    let cluster = Cluster::start(1, config).unwrap();
    let node = &cluster.nodes[0];
    let lease = |number: usize| {
        let (high, low) = (number / 250, number % 250 + 1);
        let key = format!("{SUBNETS}/10.2{high:02}.{low}.0-24");
        let data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:{high:02x}:{low:02x}"}}"#);
        let ip = format!(r#""PublicIP":"10.98.{high}.{low}","PublicIPv6":null"#);
        (key, format!(r#"{{{ip},"BackendType":"vxlan","BackendData":{data}}}"#))
    };
    cluster.etcd.put_all(&(0..MANY).map(lease).collect::<Vec<_>>()).unwrap();
    let count = |what: &str| Ok::<_, anyhow::Error>(node.ip(what)?.lines().count());
    let complete = || -> Result<()> {
        let routes = count("route show proto 241")?;
        let neighbours = count("neighbour show dev flannel.1 nud permanent")?;
        let fdb = node.fdb("flannel.1")?.len();
        let all = (routes, neighbours, fdb);
        ensure!(all == (MANY, MANY, MANY), "{all:?} routes, neighbours and FDB entries");
        Ok(())
    };
    eventually(PATIENCE, complete).unwrap();
    for harm in [
        "nexthop flush proto 241",
        "neighbour flush dev flannel.1 nud permanent",
        "link set flannel.1 down",
        "link del flannel.1",
    ] {
        node.ip(harm).unwrap();
        let repaired = eventually(PATIENCE, complete);
        println!("{MANY} peers, {harm}: whole after {:.0?}", repaired.unwrap());
        ensure_quiet(node, QUIET).unwrap();
    }
    // Thousands of notifications that wait for the daemon: no entry is written twice.
    let daemon = &cluster.daemons[0];
    let before = created(daemon).unwrap();
    daemon.process().signal(Signal::SIGSTOP).unwrap();
    node.ip("link del flannel.1").unwrap();
    daemon.process().signal(Signal::SIGCONT).unwrap();
    eventually(PATIENCE, complete).unwrap();
    ensure_quiet(node, QUIET).unwrap();
    let written = created(daemon).unwrap() - before;
    // A nexthop object, a route, a neighbour and an FDB entry of each peer; what is left is of the link.
    assert!((4 * MANY..4 * MANY + 10).contains(&written), "{written} entries were created");
}

/// How many kernel entries a daemon has created.
fn created(daemon: &Daemon) -> Result<usize> {
    let metrics = daemon.get("/metrics")?.body;
    let name = "tweed_kernel_operations_total{operation=\"create\"} ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.context("no counter of created entries")?.parse()?)
}

#[test]
fn files_of_a_daemon_that_another_program_removes_come_back() {
    let cluster = Cluster::start(1, &Stack::V4.config(&VXLAN.config())).unwrap();
    let (node, daemon) = (&cluster.nodes[0], &cluster.daemons[0]);
    let before = node.subnet_env().unwrap().to_string();
    std::fs::remove_file(node.subnet_file()).unwrap();
    std::fs::remove_file(node.subnet_file().with_extension("sock")).unwrap();
    eventually(PATIENCE, || {
        ensure!(node.subnet_env()?.to_string() == before);
        ensure!(daemon.get("/readyz")?.status == 200);
        // On the control socket.
        daemon.ctl(&["status"])?;
        Ok(())
    })
    .unwrap();
}

/// As `rm -r /run/flannel` on the host does to a pod, and to the unit of systemd, for which `/run` is
/// read-only.
#[test]
fn a_daemon_ends_whose_folder_is_removed_below_its_mount() {
    let cluster = ClusterPlan::new(1, &Stack::V4.config(&VXLAN.config())).build().unwrap();
    let node = &cluster.nodes[0];
    let pod = ("mount --bind run/flannel mnt", "mnt");
    let read_only = "mount --bind run run && mount --bind run/flannel run/flannel && \
                     mount -o remount,bind,ro run";
    for (round, (mounts, folder)) in (1..).zip([pod, (read_only, "run/flannel")]) {
        let flannel = node.folder().join("run/flannel");
        std::fs::create_dir_all(&flannel).unwrap();
        std::fs::create_dir_all(node.folder().join("mnt")).unwrap();
        let script = format!("(cd {} && {mounts}) && exec \"$@\"", node.folder().display());
        let start = || {
            let file = node.folder().join(folder).join("subnet.env");
            let plan = node.daemon(&cluster.etcd);
            let plan = plan.argument(format!("--subnet-file={}", file.display()));
            plan.through("unshare", &["-m", "sh", "-ec", &script, "sh"]).start().unwrap()
        };
        let daemon = start();
        daemon.wait_ready().unwrap();
        std::fs::remove_dir_all(&flannel).unwrap();
        assert_eq!(exit_code(&daemon, PATIENCE).unwrap(), 1, "{mounts}");
        assert_eq!(daemon.log().unwrap().matches("was removed below its mount").count(), round);
        std::fs::create_dir_all(&flannel).unwrap();
        let again = start();
        again.wait_ready().unwrap();
        again.stop().unwrap();
    }
}
