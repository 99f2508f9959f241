//! A daemon with few capabilities, on a read-only host.

use anyhow::{Context, Result, ensure};
use tweed_lab::{DaemonPlan, Family, Node, Path, ReversePath, eventually, source_seen};

use crate::fixture::ask::{is_ready, is_ready_with, json, tweedctl};
use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, VXLAN_MIXED};
use crate::paths::probe::neighbours_cost_no_packet;

/// Makes everything but the folder `$1` read-only, then runs the remaining arguments.
const READ_ONLY: &str = r#"set -e
mount --bind "$1" "$1"
mount -o bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
shift
exec setpriv --no-new-privs --bounding-set=-all,+net_admin,+net_raw \
    --inh-caps=-all,+net_admin,+net_raw "$@""#;

/// With only the capabilities `NET_ADMIN` and `NET_RAW`, on a read-only host.
fn confined(cluster: &Cluster, node: &Node) -> DaemonPlan {
    let folder = node.folder().display().to_string();
    let plan = node.daemon(&cluster.etcd).argument("--ip-masq");
    plan.through("unshare", &["--mount", "sh", "-c", READ_ONLY, "sh", &folder])
}

fn start(reverse_path: ReversePath) -> Result<Cluster> {
    let plan = ClusterPlan::new(2, &Stack::V4.config(&VXLAN_MIXED.config()));
    let mut cluster = plan.reverse_path(reverse_path).build()?;
    for node in &cluster.nodes {
        cluster.daemons.push(confined(&cluster, node).start()?);
    }
    for (daemon, node) in cluster.daemons.iter().zip(&cluster.nodes) {
        daemon.wait_ready().with_context(|| format!("starting {}", node.name()))?;
        has_few_rights(&format!("/proc/{}", daemon.process().pid()))?;
    }
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    Ok(cluster)
}

/// `NET_ADMIN` is bit 12, `NET_RAW` bit 13.
fn has_few_rights(process: &str) -> Result<()> {
    let status = std::fs::read_to_string(format!("{process}/status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t"));
    ensure!(effective == Some("0000000000003000"), "{effective:?}");
    let mounts = std::fs::read_to_string(format!("{process}/mounts"))?;
    let is_read_only = |place: &str| {
        let mut options = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            (words.next()? == place).then(|| words.nth(1))?
        });
        options.next_back().is_some_and(|options| options.split(',').any(|word| word == "ro"))
    };
    ensure!(is_read_only("/proc/sys") && is_read_only("/"), "{mounts}");
    Ok(())
}

/// Whether the kernel matches the plan.
fn is_equal(node: &Node) -> Result<()> {
    let diff = tweedctl(node, &["diff"])?;
    ensure!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    Ok(())
}

#[test]
fn two_capabilities_and_a_read_only_host_are_enough() {
    let cluster = start(ReversePath::Loose).unwrap();
    let pods: Vec<_> = cluster.nodes.iter().map(|node| node.pod().unwrap()).collect();
    let far = pods[1].address(Family::V4).unwrap();
    eventually(PATIENCE, || pods[0].ping(far, 56)).unwrap();
    eventually(PATIENCE, || cluster.daemons.iter().try_for_each(is_ready)).unwrap();

    // No operation is refused permanently, and the kernel matches the plan.
    let status = json(&cluster.daemons[0], "status").unwrap();
    assert_eq!(status["refused"], serde_json::json!([]), "{status}");
    for node in &cluster.nodes {
        eventually(PATIENCE, || is_equal(node)).unwrap();
    }
    assert_eq!(status["tables"][0]["programmed"], true, "{status}");
    assert_eq!(status["guard"]["applied"], true, "{status}");
    assert_eq!(status["guard"]["admitted"], 1, "{status}");
    let node = cluster.nodes[1].address(Family::V4).unwrap();
    let seen =
        source_seen((pods[0].namespace(), None), cluster.nodes[1].namespace(), (node, 7000).into());
    assert_eq!(seen.unwrap(), cluster.nodes[0].address(Family::V4).unwrap());

    let flip = |side: crate::fixture::table::Side, path| {
        cluster.etcd.put(CONFIG, &Stack::V4.config(&side.config())).unwrap();
        cluster.wait_for_paths(|_, _| path).unwrap();
        eventually(PATIENCE, || pods[0].ping(far, 56)).unwrap();
    };
    flip(HOST_GW_MIXED, Path::Direct);
    flip(VXLAN_MIXED, Path::Tunnel);
    cluster.nodes[0].ip("link del flannel.1").unwrap();
    eventually(PATIENCE, || pods[0].ping(far, 56)).unwrap();
    eventually(PATIENCE, || cluster.daemons.iter().try_for_each(is_ready)).unwrap();
}

#[test]
fn probes_cost_no_packet_where_filters_are_strict() {
    let cluster = start(ReversePath::Strict).unwrap();
    cluster.start_pods().unwrap();
    neighbours_cost_no_packet(&cluster).unwrap();
}

#[test]
fn settings_that_a_read_only_host_forbids_are_logged_once() {
    let cluster = start(ReversePath::Strict).unwrap();
    let pods: Vec<_> = cluster.nodes.iter().map(|node| node.pod().unwrap()).collect();
    let far = pods[1].address(Family::V4).unwrap();
    eventually(PATIENCE, || pods[0].ping(far, 56)).unwrap();
    let daemon = &cluster.daemons[0];
    let warning = "packets may be lost while backends change";
    eventually(PATIENCE, || is_ready_with(daemon, warning)).unwrap();
    let logged = || -> Result<usize> {
        let log = daemon.log()?;
        let is_it = |line: &&str| line.contains(" WARN ready") && line.contains(warning);
        Ok(log.lines().filter(is_it).count())
    };
    eventually(PATIENCE, || logged().map(|times| times > 0)).unwrap();
    assert_eq!(logged().unwrap(), 1);
    cluster.etcd.put(CONFIG, &Stack::V4.config(&HOST_GW_MIXED.config())).unwrap();
    eventually(PATIENCE, || is_ready_with(daemon, "staying on vxlan until")).unwrap();
    // A setting by the host is sufficient.
    for node in &cluster.nodes {
        for link in ["all", "eth0", "flannel.1"] {
            let key = format!("net/ipv4/conf/{link}/rp_filter");
            node.namespace().set_sysctl(&key, "2").unwrap();
        }
    }
    cluster.wait_for_paths(|_, _| Path::Direct).unwrap();
    // One node alone on host-gw makes both paths direct; the other one would keep vxlan without Mixed.
    for daemon in &cluster.daemons {
        let is_changed = || {
            let status = json(daemon, "status")?;
            ensure!(status["backend"] == "host-gw", "{status}");
            Ok(())
        };
        eventually(PATIENCE, is_changed).unwrap();
    }
    // Nor does the daemon make them strict again after the migration.
    cluster.etcd.put(CONFIG, &Stack::V4.config(&HOST_GW.config())).unwrap();
    for (daemon, node) in cluster.daemons.iter().zip(&cluster.nodes) {
        let is_applied = || {
            let status = json(daemon, "status")?;
            ensure!(
                status["mixed"] == false && status["refused"] == serde_json::json!([]),
                "{status}"
            );
            is_ready(daemon)?;
            is_equal(node)
        };
        eventually(PATIENCE, is_applied).unwrap();
    }
}
