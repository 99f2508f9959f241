//! `tweedctl sysdump`: one archive of a node's state, with and without its daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Result, ensure};
use serde_json::Value;
use tweed_lab::eventually;

use crate::fixture::ask::{has_saved, tweedctl};
use crate::fixture::cluster::{Cluster, PATIENCE};
use crate::fixture::peer::Peer;

const VXLAN: &str = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
const SECRET: &str = "/coreos.com/network/tweed/probe-secret";

/// Runs `tweedctl sysdump --all` on node 0, and unpacks the archive into a folder.
fn dump(cluster: &Cluster, name: &str) -> Result<(Output, PathBuf)> {
    let node = &cluster.nodes[0];
    let file = node.folder().join(format!("{name}.tar.gz"));
    let folder = node.folder().join(name);
    fs::create_dir(&folder)?;
    let [archive, into] = [&file, &folder].map(|path| path.display().to_string());
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let output = tweedctl(node, &["sysdump", &archive, "--all", &endpoints])?;
    node.namespace().run("tar", &["-xzf", &archive, "--strip-components=1", "-C", &into])?;
    Ok((output, folder))
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap()
}

#[test]
fn a_sysdump_has_the_state_of_node_and_cluster_also_without_the_daemon() {
    let cluster = Cluster::start(2, VXLAN).unwrap();
    let (node, peer) = (&cluster.nodes[0], Peer::numbered(1));
    peer.is_followed_by(&cluster.nodes, &cluster.etcd).unwrap();
    eventually(PATIENCE, || has_saved(node, "10.244.101.0")).unwrap();
    let have_reported = || {
        let reports = cluster.etcd.list("/coreos.com/network/tweed/nodes/")?;
        ensure!(reports.len() == 2, "{} reports", reports.len());
        Ok(())
    };
    eventually(PATIENCE, have_reported).unwrap();
    let mut secret = None;
    let is_there = || {
        secret = cluster.etcd.get(SECRET)?;
        Ok::<_, anyhow::Error>(secret.is_some())
    };
    eventually(PATIENCE, is_there).unwrap();
    let secret = secret.unwrap().value;

    let (output, folder) = dump(&cluster, "running").unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(json(&folder, "daemon/status.json")["ready"], true);
    assert_eq!(json(&folder, "config.json")["backend"]["kind"], "vxlan");
    assert_eq!(json(&folder, "store/reports.json").as_array().unwrap().len(), 2);
    let events = json(&folder, "daemon/events.json");
    let events = events["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["kind"] == "peer-added"), "{events:#?}");
    for (name, words) in [
        ("kernel/routes.txt", "10.244.101.0/24"),
        ("kernel/entries.txt", "route 10.244.101.0/24"),
        ("kernel/neighbours.txt", &peer.mac),
        ("kernel/fdb.txt", &peer.mac),
        ("kernel/links.txt", "flannel.1"),
        ("kernel/rules.txt", "lookup main"),
        ("kernel/nftables.txt", "tweed-tunnel.1"),
        ("host/subnet.env", "FLANNEL_SUBNET"),
        ("host/checkpoint.json", "10.244.101.0"),
        ("host/versions.txt", "Linux version"),
        ("diff.txt", "no difference"),
        ("doctor.txt", "checked against the plan of the daemon"),
        ("daemon/metrics.txt", "tweed_ready 1"),
        ("summary.txt", "without passwords"),
    ] {
        assert!(read(name).contains(words), "{name}: {}", read(name));
    }
    let search =
        node.namespace().output("grep", &["-r", secret.trim(), &folder.display().to_string()]);
    assert_eq!(search.unwrap().status.code(), Some(1), "the probe secret is in the archive");

    cluster.daemons[0].kill().unwrap();
    let (output, folder) = dump(&cluster, "dead").unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let summary = fs::read_to_string(folder.join("summary.txt")).unwrap();
    assert!(summary.contains("missing: daemon/status.json: no daemon answers on"), "{summary}");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("missing: daemon/status.json: no daemon answers on"), "{printed}");
    let reason = fs::read_to_string(folder.join("daemon/status.json.missing")).unwrap();
    assert!(reason.starts_with("no daemon answers on "), "{reason}");
    let entries = fs::read_to_string(folder.join("kernel/entries.txt")).unwrap();
    assert!(entries.contains("route 10.244.101.0/24"), "{entries}");
    assert_eq!(json(&folder, "diff.json")["differences"], serde_json::json!([]));
    assert_eq!(json(&folder, "store/reports.json").as_array().unwrap().len(), 2);
}
