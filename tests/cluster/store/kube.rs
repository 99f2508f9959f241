//! Nodes whose store is Kubernetes: the same paths, and changes of backend without packet loss.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{ApiServer, Asked, Daemon, Family, Lab, Node, Path, eventually};

use crate::fixture::ask::{self, exit_code, has_saved, is_ready_with, readiness};
use crate::fixture::cluster::{PATIENCE, Stack, binaries, wait_for_paths};
use crate::fixture::table::{Distance, HOST_GW_MIXED, Side, VXLAN_MIXED, expected, path};

const EVENTS: &str = "/api/v1/namespaces/default/events";
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-flannel/configmaps";
/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
/// Longer than it takes on a busy machine until the routes to a lost peer are withdrawn, and
/// shorter than they stay if the store has been unreachable.
const REMOVED: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(300);

/// A network config as the kubelet mounts it: a folder per version, and a symlink that is replaced.
struct ConfigMap {
    folder: PathBuf,
    versions: u32,
}

impl ConfigMap {
    fn new(folder: PathBuf, text: &str) -> Result<Self> {
        std::fs::create_dir(&folder)?;
        symlink("..data/net-conf.json", folder.join("net-conf.json"))?;
        let mut map = Self { folder, versions: 0 };
        map.write(text)?;
        Ok(map)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.versions += 1;
        let version = format!("..version-{}", self.versions);
        std::fs::create_dir(self.folder.join(&version))?;
        std::fs::write(self.folder.join(&version).join("net-conf.json"), text)?;
        symlink(&version, self.folder.join("..new"))?;
        std::fs::rename(self.folder.join("..new"), self.folder.join("..data"))?;
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.folder.join("net-conf.json")
    }
}

/// Nodes n1, n2, … of which the last is behind a router.
struct Kubernetes {
    nodes: Vec<Node>,
    daemons: Vec<Daemon>,
    server: ApiServer,
    config: ConfigMap,
    stack: Stack,
    lab: Lab,
}

impl Kubernetes {
    /// `size` nodes without daemons, each with its podCIDRs.
    fn build(size: usize, stack: Stack, config: &str) -> Result<Self> {
        let lab = Lab::new(binaries())?;
        let server = lab.api_server()?;
        let segments = [lab.segment(stack.segment(1))?, lab.segment(stack.segment(2))?];
        lab.router("router", &[&segments[0], &segments[1]])?;
        let mut nodes = Vec::new();
        for number in 1..=size {
            let node = lab.node(&format!("n{number}"), &segments[usize::from(number == size)])?;
            let cidrs = [format!("10.244.{number}.0/24"), format!("fd00:244:0:{number}::/64")];
            let cidrs: Vec<&str> = cidrs.iter().map(String::as_str).collect();
            server.add_node(node.name(), &cidrs);
            nodes.push(node);
        }
        let config = ConfigMap::new(lab.folder().join("net-conf"), &stack.config(config))?;
        Ok(Self { nodes, daemons: Vec::new(), server, config, stack, lab })
    }

    fn start(size: usize, stack: Stack, config: &str) -> Result<Self> {
        let mut cluster = Self::build(size, stack, config)?;
        cluster.start_daemons()?;
        Ok(cluster)
    }

    /// A daemon and a pod on every node.
    fn start_daemons(&mut self) -> Result<()> {
        for node in &self.nodes {
            let plan = node.kubernetes_daemon(&self.server, &self.config.file());
            self.daemons.push(plan.start()?);
        }
        self.daemons.iter().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        self.nodes.iter().try_for_each(|node| node.pod().map(drop))
    }

    /// Waits until all paths match the table, with the nodes as in `sides`.
    fn wait_for(&self, sides: &[Side]) -> Result<Duration> {
        let far = |index| index + 1 == self.nodes.len();
        let expected = |from, to| {
            let is_near = far(from) == far(to);
            let distance = if is_near { Distance::Adjacent } else { Distance::BehindRouter };
            path(expected(sides[from], sides[to], distance))
        };
        wait_for_paths(&self.nodes, self.stack, expected)
    }

    fn pairs(&self) -> Vec<tweed_lab::Pair> {
        self.stack.families().iter().flat_map(|family| self.lab.pairs(*family)).collect()
    }

    /// The last config that the operator wrote.
    fn written(&self) -> Result<String> {
        let object = self.server.get(CONFIG_MAPS, "kube-flannel-cfg").context("no config")?;
        Ok(object["data"]["net-conf.json"].as_str().unwrap_or_default().to_owned())
    }

    fn edit(&mut self, rest: &str) -> Result<()> {
        self.config.write(&self.stack.config(rest))
    }
}

/// Nodes with these names change to host-gw; the others stay.
fn rollout(names: &[&str]) -> String {
    let nodes = json!(names);
    format!(
        r#""Mixed":true,"Backend":{{"Type":"host-gw"}},"Rollout":{{"From":{{"Type":"vxlan"}},"Nodes":{nodes}}}"#
    )
}

fn flips_node_by_node(stack: Stack) -> Result<()> {
    let mut cluster = Kubernetes::start(3, stack, &VXLAN_MIXED.config())?;
    let mut sides = [VXLAN_MIXED; 3];
    cluster.wait_for(&sides)?;
    let probe = cluster.lab.probe(&cluster.pairs(), RATE)?;
    let names = ["n2", "n3", "n1"];
    let flip = |cluster: &mut Kubernetes, sides: &[Side], rest: &str| -> Result<()> {
        cluster.edit(rest)?;
        cluster.wait_for(sides).with_context(|| rest.to_owned())?;
        probe.run_for(PAUSE);
        Ok(())
    };
    for (done, index) in [1, 2, 0].into_iter().enumerate() {
        sides[index] = HOST_GW_MIXED;
        flip(&mut cluster, &sides, &rollout(&names[..=done]))?;
    }
    eventually(PATIENCE, || {
        let published = cluster.server.annotation("n1", "backend-type");
        ensure!(published.as_deref() == Some("host-gw"), "{published:?}");
        Ok(())
    })?;
    flip(&mut cluster, &sides, &HOST_GW_MIXED.config())?;
    flip(&mut cluster, &[VXLAN_MIXED; 3], &VXLAN_MIXED.config())?;
    let report = probe.finish()?;
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    wait_for_flips(&cluster, &names)
}

/// Waits until each of these nodes has sent an event about a change of its backend.
fn wait_for_flips(cluster: &Kubernetes, names: &[&str]) -> Result<()> {
    let mut sent = BTreeSet::new();
    let are_sent = || {
        sent.extend(cluster.server.take_asked().iter().filter_map(flipped_node));
        ensure!(names.iter().all(|name| sent.contains(*name)), "events of {sent:?}");
        Ok(())
    };
    eventually(PATIENCE, are_sent).map(drop)
}

/// The node whose change of backend this request adds to its events.
fn flipped_node(asked: &Asked) -> Option<String> {
    let event: Value = serde_json::from_str(&asked.body).ok()?;
    let is_flip = asked.what == format!("POST {EVENTS}") && event["reason"] == "BackendChanged";
    event["involvedObject"]["name"].as_str().filter(|_| is_flip).map(str::to_owned)
}

#[test]
fn forbidden_events_are_reported_once_and_change_nothing() {
    let mut cluster = Kubernetes::start(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    cluster.wait_for(&[VXLAN_MIXED; 2]).unwrap();
    cluster.server.fail(|faults| faults.forbidden = vec![format!("POST {EVENTS}")]);
    for side in [HOST_GW_MIXED, VXLAN_MIXED, HOST_GW_MIXED] {
        cluster.edit(&side.config()).unwrap();
        cluster.wait_for(&[side; 2]).unwrap();
        wait_for_flips(&cluster, &["n1", "n2"]).unwrap();
    }
    for daemon in &cluster.daemons {
        let log = daemon.log().unwrap();
        let dropped = log.lines().filter(|line| line.contains("an event about this node"));
        let [line] = dropped.collect::<Vec<_>>().try_into().unwrap();
        assert!(line.contains("forbids POST /api/v1/namespaces/default/events"), "{line}");
        assert_eq!(daemon.get("/readyz").unwrap().status, 200);
    }
}

#[test]
fn nodes_of_kubernetes_flip_by_edits_of_a_config_map_without_a_lost_packet() {
    flips_node_by_node(Stack::Dual).unwrap();
}

/// Mounts an edited `ConfigMap` again, as the kubelet does.
fn while_mounting<T: Send>(
    cluster: &mut Kubernetes,
    work: impl FnOnce(&Node) -> T + Send,
) -> Result<T> {
    let node = cluster.nodes[0].clone();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || work(&node));
        let mut mounted = cluster.written()?;
        while !worker.is_finished() {
            let written = cluster.written()?;
            if written != mounted {
                cluster.config.write(&written)?;
                mounted = written;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        worker.join().map_err(|_| anyhow::anyhow!("the worker panicked"))
    })
}

#[test]
fn an_operator_migrates_a_cluster_by_its_config_map_without_a_lost_packet() {
    let vxlan = r#""Backend":{"Type":"vxlan"}"#;
    let mut cluster = Kubernetes::start(3, Stack::V4, vxlan).unwrap();
    let text = Stack::V4.config(vxlan);
    let data = json!({ "data": { "net-conf.json": text } });
    cluster.server.add(CONFIG_MAPS, "kube-flannel-cfg", &data);
    let url = format!("--kube-api-url={}", cluster.server.url());
    let migrate = |cluster: &mut Kubernetes, line: &str| -> Result<String> {
        let words: Vec<&str> =
            ["migrate", "--kube-subnet-mgr", &url].into_iter().chain(line.split(' ')).collect();
        let output = while_mounting(cluster, |node| node.tweedctl(&words))??;
        let printed = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        println!("# tweedctl migrate {line}\n{printed}");
        ensure!(output.status.success(), "{line}: {printed}");
        Ok(printed)
    };
    eventually(PATIENCE, || {
        let reports = ["n1", "n2", "n3"]
            .map(|name| cluster.server.get(CONFIG_MAPS, &format!("tweed-node-{name}")));
        ensure!(reports.iter().all(Option::is_some), "not all nodes report");
        Ok(())
    })
    .unwrap();
    let probe = cluster.lab.probe(&cluster.pairs(), RATE).unwrap();
    migrate(&mut cluster, "plan --to host-gw").unwrap();
    migrate(&mut cluster, "start --to host-gw --canary n2").unwrap();
    cluster.wait_for(&[VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED]).unwrap();
    migrate(&mut cluster, "next --percent 100").unwrap();
    cluster.wait_for(&[HOST_GW_MIXED; 3]).unwrap();
    migrate(&mut cluster, "rollback").unwrap();
    cluster.wait_for(&[VXLAN_MIXED; 3]).unwrap();
    let report = probe.finish().unwrap();
    assert_eq!(report.lost(), 0, "{report}");
}

#[test]
fn a_daemon_waits_for_its_pod_cidr_and_is_published_once_packets_pass() {
    let mut cluster = Kubernetes::build(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    cluster.server.delete_node("n1");
    cluster.server.add_node("n1", &[]);
    let unavailable = json!({ "type": "NetworkUnavailable", "status": "True" });
    cluster.server.patch_node("n1", &json!({ "status": { "conditions": [unavailable] } }));
    let plan = cluster.nodes[0].kubernetes_daemon(&cluster.server, &cluster.config.file());
    cluster.daemons.push(plan.start().unwrap());
    let is_unavailable =
        || cluster.server.node("n1").unwrap()["status"]["conditions"][0]["status"].clone();
    let waits = || {
        let response = cluster.daemons[0].get("/readyz")?;
        ensure!(
            response.status == 503 && response.body.contains("node n1: it has no IPv4 podCIDR yet")
        );
        Ok(())
    };
    eventually(PATIENCE, waits).unwrap();
    assert_eq!(is_unavailable(), "True");
    let spec = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    cluster.server.patch_node("n1", &json!({ "spec": spec }));
    cluster.daemons[0].wait_ready().unwrap();
    let env = cluster.nodes[0].subnet_env().unwrap();
    assert_eq!(env.subnet(Family::V4).unwrap().to_string(), "10.244.9.0/24");
    eventually(PATIENCE, || {
        ensure!(is_unavailable() == "False");
        Ok(())
    })
    .unwrap();
}

/// A podCIDR never changes: a Node that was created again without one has lost its former subnet, which
/// another node may get.
#[test]
fn a_node_that_has_lost_its_pod_cidr_gives_no_addresses_to_pods() {
    let mut cluster = Kubernetes::start(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    cluster.wait_for(&[VXLAN_MIXED; 2]).unwrap();
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], "10.244.2.0")).unwrap();
    let file = cluster.nodes[0].subnet_file();
    let waits = |daemon: &Daemon| {
        let response = daemon.get("/readyz")?;
        ensure!(
            response.status == 503 && response.body.contains("node n1: it has no IPv4 podCIDR yet"),
            "{}",
            response.body
        );
        ensure!(!file.exists(), "there is a subnet file");
        Ok(())
    };
    cluster.server.delete_node("n1");
    cluster.server.add_node("n1", &[]);
    eventually(PATIENCE, || waits(&cluster.daemons[0])).unwrap();
    cluster.daemons[0].kill().unwrap();
    cluster.daemons[0].start().unwrap();
    eventually(PATIENCE, || waits(&cluster.daemons[0])).unwrap();
    let spec = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    cluster.server.patch_node("n1", &json!({ "spec": spec }));
    cluster.daemons[0].wait_ready().unwrap();
    let env = cluster.nodes[0].subnet_env().unwrap();
    assert_eq!(env.subnet(Family::V4).unwrap().to_string(), "10.244.9.0/24");

    cluster.server.delete_node("n1");
    cluster.server.add_node("n1", &["10.99.9.0/24"]);
    assert_eq!(exit_code(&cluster.daemons[0], PATIENCE).unwrap(), 1);
    assert!(!file.exists(), "there is a subnet file");
}

#[test]
fn a_cluster_outlives_its_api_server_without_a_lost_packet() {
    let mut cluster = Kubernetes::start(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    cluster.wait_for(&[VXLAN_MIXED; 2]).unwrap();
    let probe = cluster.lab.probe(&cluster.pairs(), RATE).unwrap();
    probe.run_for(PAUSE);
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], "10.244.2.0")).unwrap();
    cluster.server.stop().unwrap();
    let ready = cluster.daemons[0].restart().unwrap();
    println!("ready without the API server after {ready:.0?}");
    let last_known = "forwarding from the checkpoint";
    eventually(PATIENCE, || is_ready_with(&cluster.daemons[0], last_known)).unwrap();
    // The store has not denied any peer.
    let counts = &ask::json(&cluster.daemons[0], "status").unwrap()["peers"];
    assert_eq!([&counts["tunnel"], &counts["missing"]], [&1, &0]);
    for beat in 0..10 {
        cluster.server.heartbeat("n2", beat);
    }
    cluster.server.compact();
    cluster.server.start_again().unwrap();
    eventually(PATIENCE, || {
        let response = cluster.daemons[0].get("/readyz")?;
        ensure!(
            response.status == 200 && !response.body.contains("checkpoint"),
            "{}",
            response.body
        );
        Ok(())
    })
    .unwrap();
    probe.run_for(PAUSE);
    cluster.wait_for(&[VXLAN_MIXED; 2]).unwrap();
    let report = probe.finish().unwrap();
    assert_eq!(report.lost(), 0, "{report}");
}

#[test]
fn a_restarted_daemon_that_may_not_publish_routes_to_peers_that_join() {
    let mut cluster = Kubernetes::start(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], "10.244.2.0")).unwrap();
    cluster.daemons[0].stop().unwrap();
    cluster.server.fail(|faults| faults.forbidden = vec!["PATCH /api/v1/nodes/n1".to_owned()]);
    // The daemon has to publish it again.
    cluster.server.annotate("n1", "backend-type", None);
    let annotations = [
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
        ("public-ip", "10.99.1.9"),
    ];
    cluster.server.add_peer("n9", "10.244.9.0/24", &annotations);
    cluster.daemons[0].start().unwrap();
    eventually(PATIENCE, || {
        is_ready_with(&cluster.daemons[0], "forbids PATCH /api/v1/nodes/n1/status")?;
        let routes = cluster.nodes[0].routes_to("10.244.9.0/24")?;
        ensure!(!routes.is_empty(), "no route to the new peer");
        Ok(())
    })
    .unwrap();
    cluster.server.fail(|faults| faults.forbidden.clear());
    eventually(PATIENCE, || {
        let published = cluster.server.annotation("n1", "backend-type");
        ensure!(published.as_deref() == Some("vxlan"), "{published:?}");
        ask::is_ready(&cluster.daemons[0])
    })
    .unwrap();
}

#[test]
fn packets_of_a_node_with_an_overwritten_public_ip_are_allowed() {
    let mut cluster = Kubernetes::build(3, Stack::V4, r#""Backend":{"Type":"vxlan"}"#).unwrap();
    // As with address translation: the address that peers send to is not the source of packets.
    cluster.nodes[0].ip("address add 10.99.1.77/24 dev eth0").unwrap();
    cluster.server.annotate("n1", "public-ip-overwrite", Some("10.99.1.77"));
    cluster.start_daemons().unwrap();
    eventually(PATIENCE, || {
        let published = cluster.server.annotation("n1", "public-ip");
        ensure!(published.as_deref() == Some("10.99.1.77"), "{published:?}");
        Ok(())
    })
    .unwrap();
    let pods: Vec<_> = cluster.nodes.iter().map(|node| node.pod().unwrap()).collect();
    let [here, near, far] = &pods[..] else { panic!("{} pods", pods.len()) };
    for (from, to) in [(here, near), (near, here), (here, far), (far, here)] {
        eventually(PATIENCE, || from.ping(to.address(Family::V4)?, 56)).unwrap();
    }
    let is_guarded = || {
        let guard = ask::json(&cluster.daemons[1], "status")?["guard"].clone();
        ensure!(guard["applied"] == true && guard["admitted"] == 3, "{guard}");
        Ok(())
    };
    eventually(PATIENCE, is_guarded).unwrap();
}

#[test]
fn long_annotations_delay_no_removal() {
    let cluster = Kubernetes::start(2, Stack::V4, &VXLAN_MIXED.config()).unwrap();
    let long = "\u{1}".repeat(240_000);
    for (name, subnet) in [("n8", "10.244.8.0/24"), ("n9", "10.244.9.0/24")] {
        let annotations = [("kube-subnet-manager", "true"), ("public-ip", long.as_str())];
        cluster.server.add_peer(name, subnet, &annotations);
    }
    eventually(PATIENCE, || {
        for name in ["n1", "n2"] {
            let report = cluster.server.get(CONFIG_MAPS, &format!("tweed-node-{name}"));
            let report = report.context("no report")?.to_string();
            ensure!(report.contains("exceptions_total\\\":2"), "{name} reports no exceptions");
        }
        Ok(())
    })
    .unwrap();
    for daemon in &cluster.daemons {
        let (ready, reasons) = readiness(daemon).unwrap();
        assert!(ready && !reasons.contains("the store"), "{reasons}");
    }
    cluster.server.delete_node("n2");
    eventually(REMOVED, || {
        let left = cluster.nodes[0].routes_to("10.244.2.0/24")?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .unwrap();
    let log = cluster.daemons[0].log().unwrap();
    assert!(log.len() < 100 * 1024, "the log has {} bytes", log.len());
}

/// A mistake in the config, and a restart: the daemon waits if the network of one address family is missing
/// or another one, and ends if all are others. Nothing that it has programmed changes.
#[test]
fn a_restart_does_not_apply_a_config_without_the_subnets_of_its_node() {
    let mut cluster = Kubernetes::start(2, Stack::Dual, &VXLAN_MIXED.config()).unwrap();
    cluster.wait_for(&[VXLAN_MIXED; 2]).unwrap();
    eventually(PATIENCE, || has_saved(&cluster.nodes[0], "10.244.2.0")).unwrap();
    let node = cluster.nodes[0].clone();
    let programmed = || node.snapshot().unwrap().to_string();
    let probe = cluster.lab.probe(&cluster.pairs(), RATE).unwrap();
    let (right, before) = (Stack::Dual.config(&VXLAN_MIXED.config()), programmed());
    let other = right.replace("10.244.", "10.245.");
    for (mistake, key) in [
        (other.clone(), "Network cannot change while pods have"),
        (Stack::V4.config(&VXLAN_MIXED.config()), "EnableIPv6 cannot change while pods have"),
    ] {
        cluster.config.write(&mistake).unwrap();
        cluster.daemons[0].kill().unwrap();
        cluster.daemons[0].start().unwrap();
        eventually(PATIENCE, || is_ready_with(&cluster.daemons[0], key)).unwrap();
        assert_eq!(programmed(), before);
    }
    cluster.config.write(&other.replace("fd00:244:", "fd00:245:")).unwrap();
    cluster.daemons[0].kill().unwrap();
    cluster.daemons[0].start().unwrap();
    assert_eq!(exit_code(&cluster.daemons[0], PATIENCE).unwrap(), 1);
    assert_eq!(programmed(), before);
    let report = probe.finish().unwrap();
    assert_eq!(report.lost(), 0, "{report}");
}

#[test]
fn a_recreated_node_with_another_pod_cidr_is_followed() {
    let cluster = Kubernetes::start(3, Stack::V4, &HOST_GW_MIXED.config()).unwrap();
    cluster.wait_for(&[HOST_GW_MIXED; 3]).unwrap();
    cluster.server.delete_node("n2");
    cluster.server.add_node("n2", &["10.244.9.0/24"]);
    eventually(PATIENCE, || {
        let path = cluster.nodes[0].path_to("10.244.9.0/24")?;
        ensure!(path == Path::Direct, "{path}");
        let old = cluster.nodes[0].routes_to("10.244.2.0/24")?;
        ensure!(old.is_empty(), "{old:?}");
        Ok(())
    })
    .unwrap();
}
