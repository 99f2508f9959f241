//! Backends change node by node under traffic, without packet loss.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, Files, Path, Probe, Report, ReversePath, eventually};

use crate::fixture::cluster::{AT_START, CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED, wait_for_sides};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
/// How long packets flow after each step.
const PAUSE: Duration = Duration::from_millis(300);

/// A cluster under traffic whose nodes change their backend one by one.
struct Migration {
    cluster: Cluster,
    sides: Vec<Side>,
    probe: Probe,
}

/// An event between the stop and the start of a node's daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Reboot,
}

impl Migration {
    fn start(plan: &ClusterPlan, side: Side) -> Result<Self> {
        let cluster = plan.start()?;
        cluster.start_pods()?;
        let sides = vec![side; cluster.nodes.len()];
        wait_for_sides(&cluster, &sides)?;
        let pairs: Vec<_> =
            cluster.stack.families().iter().flat_map(|family| cluster.lab.pairs(*family)).collect();
        let probe = cluster.lab.probe(&pairs, RATE)?;
        Ok(Self { cluster, sides, probe })
    }

    /// Restarts the daemons of `nodes` with the config of `side`, one after the other.
    fn flip(&mut self, nodes: &[usize], side: Side, between: Between) -> Result<()> {
        self.cluster.etcd.put(CONFIG, &self.cluster.stack.config(&side.config()))?;
        nodes.iter().try_for_each(|node| {
            self.flip_node(*node, side, between).with_context(|| format!("{side:?} on {node}"))
        })
    }

    fn flip_node(&mut self, index: usize, side: Side, between: Between) -> Result<()> {
        let (node, daemon) = (&self.cluster.nodes[index], &mut self.cluster.daemons[index]);
        self.probe.mark(node.name());
        daemon.stop()?;
        if between == Between::Reboot {
            node.wipe(Files::Kept)?;
        }
        daemon.start()?;
        let ready = daemon.wait_ready()?;
        self.probe.mark("between");
        self.sides[index] = side;
        let followed = wait_for_sides(&self.cluster, &self.sides)?;
        println!(
            "{} → {side:?}: ready in {ready:.0?}, paths right {followed:.0?} later",
            node.name()
        );
        self.probe.run_for(PAUSE);
        Ok(())
    }

    fn finish(self) -> Result<Report> {
        let report = self.probe.finish()?;
        println!("{report}");
        Ok(report)
    }
}

fn ensure_nothing_lost(report: &Report) -> Result<()> {
    ensure!(report.lost() == 0, "lost packets:\n{report}");
    Ok(())
}

/// Packets may be lost only while a node reboots, and only those from it or to it.
fn ensure_only_reboots_lost(report: &Report) -> Result<()> {
    let mut lost = Vec::new();
    for pair in &report.pairs {
        for (stage, count) in report.stages.iter().zip(&pair.stages) {
            let may_lose = [&pair.from, &pair.to].contains(&&stage.name);
            if !may_lose && count.lost_by_network() > 0 {
                lost.push((*count, format!("{} → {} in {}", pair.from, pair.to, stage.name)));
            }
        }
    }
    ensure!(lost.is_empty(), "lost {lost:?}:\n{report}");
    Ok(())
}

fn plan(stack: Stack, side: Side) -> ClusterPlan {
    ClusterPlan::new(3, &stack.config(&side.config())).far(1).stack(stack).flags(AT_START)
}

#[test]
fn a_cluster_flips_to_host_gw_and_back_without_a_lost_packet() {
    let mut migration = Migration::start(&plan(Stack::V4, VXLAN_MIXED), VXLAN_MIXED).unwrap();
    migration.flip(&[0, 1, 2, 3], HOST_GW_MIXED, Between::Nothing).unwrap();
    migration.flip(&[3, 1, 0, 2], VXLAN_MIXED, Between::Nothing).unwrap();
    ensure_nothing_lost(&migration.finish().unwrap()).unwrap();
}

#[test]
fn both_families_flip_without_a_lost_packet() {
    let mut migration = Migration::start(&plan(Stack::Dual, VXLAN_MIXED), VXLAN_MIXED).unwrap();
    migration.flip(&[0, 1, 2, 3], HOST_GW_MIXED, Between::Nothing).unwrap();
    migration.flip(&[0, 1, 2, 3], VXLAN_MIXED, Between::Nothing).unwrap();
    ensure_nothing_lost(&migration.finish().unwrap()).unwrap();
}

#[test]
fn nodes_that_reboot_into_another_backend_disturb_no_others() {
    let mut migration = Migration::start(&plan(Stack::V4, VXLAN_MIXED), VXLAN_MIXED).unwrap();
    migration.flip(&[0, 1, 2, 3], HOST_GW_MIXED, Between::Reboot).unwrap();
    migration.flip(&[0, 1, 2, 3], VXLAN_MIXED, Between::Reboot).unwrap();
    ensure_only_reboots_lost(&migration.finish().unwrap()).unwrap();
}

/// Whether every daemon answers a request of `path` with these words.
fn all_give(cluster: &Cluster, path: &str, words: &str) -> Result<()> {
    cluster.daemons.iter().try_for_each(|daemon| {
        let body = daemon.get(path)?.body;
        ensure!(body.contains(words), "{body}");
        Ok(())
    })
}

#[test]
fn an_edit_of_type_and_mixed_at_once_loses_no_packet_while_daemons_restart() {
    let plan = ClusterPlan::new(3, &Stack::V4.config(&VXLAN_MIXED.config()));
    let mut migration = Migration::start(&plan, VXLAN_MIXED).unwrap();
    for (side, meanwhile) in [(HOST_GW, HOST_GW_MIXED), (VXLAN, VXLAN_MIXED)] {
        migration.cluster.etcd.put(CONFIG, &Stack::V4.config(&side.config())).unwrap();
        let waits = "change Backend.Type first, and remove Mixed when all nodes have applied it";
        eventually(PATIENCE, || all_give(&migration.cluster, "/readyz", waits)).unwrap();
        migration.flip_node(0, meanwhile, Between::Nothing).unwrap();
        let keeps = || {
            let reasons = migration.cluster.daemons[0].get("/readyz")?.body;
            ensure!(reasons.contains("keeping Mixed: without it there is no path"), "{reasons}");
            Ok(())
        };
        eventually(PATIENCE, keeps).unwrap();
        // The last one follows when all others have changed.
        migration.sides[2] = meanwhile;
        migration.flip_node(1, meanwhile, Between::Nothing).unwrap();
        eventually(PATIENCE, || all_give(&migration.cluster, "/metrics", "\ntweed_mixed 0\n"))
            .unwrap();
        migration.probe.run_for(PAUSE);
        migration.cluster.etcd.put(CONFIG, &Stack::V4.config(&meanwhile.config())).unwrap();
        eventually(PATIENCE, || all_give(&migration.cluster, "/metrics", "\ntweed_mixed 1\n"))
            .unwrap();
    }
    ensure_nothing_lost(&migration.finish().unwrap()).unwrap();
}

/// Waits until `rp_filter` of these devices is `value` on every node.
fn wait_for_filters(cluster: &Cluster, devices: &[&str], value: &str) -> Result<()> {
    // They become strict when all nodes have had time to read an edit.
    eventually(PATIENCE * 2, || {
        cluster.nodes.iter().try_for_each(|node| {
            devices.iter().try_for_each(|device| {
                let key = format!("net/ipv4/conf/{device}/rp_filter");
                let is = node.namespace().sysctl(&key)?;
                ensure!(is == value, "{}: {key} is {is}, not {value}", node.name());
                Ok(())
            })
        })
    })
    .map(drop)
}

#[test]
fn strict_filters_are_loose_while_mixed_is_on() {
    // That of IPv6 has no such filter; its tunnel device has the setting all the same.
    let config = Stack::Dual.config(&VXLAN.config());
    let plan = ClusterPlan::new(3, &config).stack(Stack::Dual).reverse_path(ReversePath::Strict);
    let plan = plan.flags(AT_START);
    let mut migration = Migration::start(&plan, VXLAN).unwrap();
    let devices = ["eth0", "flannel.1"];
    wait_for_filters(&migration.cluster, &devices, "1").unwrap();
    migration.flip(&[0, 1, 2], VXLAN_MIXED, Between::Nothing).unwrap();
    wait_for_filters(&migration.cluster, &devices, "2").unwrap();
    migration.flip(&[0, 1, 2], HOST_GW_MIXED, Between::Nothing).unwrap();
    wait_for_filters(&migration.cluster, &devices, "2").unwrap();
    migration.flip(&[0, 1, 2], HOST_GW, Between::Nothing).unwrap();
    // The tunnel device is removed at the same time.
    wait_for_filters(&migration.cluster, &["eth0", "cni0"], "1").unwrap();
    let report = migration.finish().unwrap();
    ensure_nothing_lost(&report).unwrap();
}

/// As in a container that may not write kernel parameters.
const READ_ONLY: &str = r#"mount --bind /proc/sys /proc/sys
    mount -o remount,bind,ro /proc/sys
    exec "$0" "$@""#;

#[test]
fn a_flip_waits_for_a_filter_that_the_daemon_may_not_loosen() {
    let config = Stack::V4.config(&VXLAN_MIXED.config());
    let plan = ClusterPlan::new(2, &config).reverse_path(ReversePath::Strict);
    let mut cluster = plan.build().unwrap();
    // Only the first node applies config changes at run time.
    for (node, reload) in cluster.nodes.iter().zip(["true", "false"]) {
        let plan = node.daemon(&cluster.etcd).argument(format!("--config-reload={reload}"));
        let daemon = plan.through("unshare", &["--mount", "sh", "-euc", READ_ONLY]).start();
        cluster.daemons.push(daemon.unwrap());
    }
    cluster.start_daemons().unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    let probe = cluster.lab.probe(&cluster.lab.pairs(Family::V4), RATE).unwrap();
    cluster.etcd.put(CONFIG, &Stack::V4.config(&HOST_GW_MIXED.config())).unwrap();
    let waits = || {
        let response = cluster.daemons[0].get("/readyz")?;
        ensure!(response.status == 200, "{}", response.body);
        ensure!(response.body.contains("staying on vxlan until net/ipv4/conf/eth0/rp_filter"));
        ensure!(response.body.contains("net/ipv4/conf/eth0/rp_filter cannot be written"));
        Ok(())
    };
    eventually(PATIENCE, waits).unwrap();
    probe.run_for(PAUSE);
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    cluster.wait_for_checkpoint(0).unwrap();
    cluster.daemons[0].restart().unwrap();
    eventually(PATIENCE, || {
        let response = cluster.daemons[0].get("/readyz")?;
        ensure!(response.body.contains("staying on vxlan until net/ipv4/conf/eth0/rp_filter"));
        Ok(())
    })
    .unwrap();
    // The waiting node comes last: it changes as soon as its own filters are loose.
    for node in cluster.nodes.iter().rev() {
        for device in ["eth0", "flannel.1"] {
            node.namespace().set_sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "2").unwrap();
        }
    }
    cluster.wait_for_paths(|_, _| Path::Direct).unwrap();
    probe.run_for(PAUSE);
    ensure_nothing_lost(&probe.finish().unwrap()).unwrap();
}

/// Shows that the streams of the test above detect a strict filter: without Mixed, they break.
#[test]
fn a_strict_filter_drops_packets_of_the_other_path() {
    let config = Stack::V4.config(&VXLAN_MIXED.config());
    let plan = ClusterPlan::new(2, &config).reverse_path(ReversePath::Strict);
    let cluster = plan.start().unwrap();
    cluster.start_pods().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    for daemon in &cluster.daemons {
        daemon.kill().unwrap();
    }
    let [left, right] = [&cluster.nodes[0], &cluster.nodes[1]];
    let subnet = cluster.subnet(1, Family::V4).unwrap();
    let gateway = right.address(Family::V4).unwrap();
    left.ip(format!("route replace {subnet} via {gateway} dev eth0")).unwrap();
    cluster.lab.all_reach_each_other(Family::V4).unwrap();
    right.namespace().set_sysctl("net/ipv4/conf/eth0/rp_filter", "1").unwrap();
    assert!(!cluster.lab.ping_matrix(Family::V4).unwrap().all_answered());
}
