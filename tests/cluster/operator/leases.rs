//! `tweedctl leases` on a live cluster: a subnet is reserved, taken by its node, and released.

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, eventually};

use crate::fixture::ask::{json, tweedctl};
use crate::fixture::cluster::{Cluster, PATIENCE, SUBNETS, Stack};

/// Exit code and output of `tweedctl leases` with these arguments; the error output if it is empty.
fn leases(cluster: &Cluster, arguments: &str) -> Result<(Option<i32>, String)> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let mut line = vec!["leases"];
    line.extend(arguments.split_whitespace());
    line.push(&endpoints);
    let output = tweedctl(&cluster.nodes[0], &line)?;
    let text = [output.stdout, output.stderr].into_iter().find(|text| !text.is_empty());
    let text = String::from_utf8(text.unwrap_or_default())?;
    Ok((output.status.code(), text.split_whitespace().collect::<Vec<_>>().join(" ")))
}

#[test]
fn a_subnet_is_reserved_taken_and_released() {
    let mut cluster =
        Cluster::start(1, &Stack::V4.config(r#""Backend":{"Type":"vxlan"}"#)).unwrap();
    let second = cluster.lab.node("n2", &cluster.segment).unwrap();
    let ip = second.address(Family::V4).unwrap();
    let key = format!("{SUBNETS}/10.244.50.0-24");
    let done = (Some(0), format!("10.244.50.0/24 is reserved for {ip}"));
    assert_eq!(leases(&cluster, &format!("reserve 10.244.50.0/24 --for {ip}")).unwrap(), done);
    // It is a reservation for daemons, and no peer without a path.
    let is_shown = || {
        let all = json(&cluster.daemons[0], "leases")?;
        let all = all.as_array().context("no list")?;
        let it = all.iter().find(|it| it["id"] == "10.244.50.0-24").context("no lease")?;
        let reason = "reserved: the node with this public IP has not taken it yet";
        ensure!(it["reservation"] == true && it["reason"] == reason, "{it}");
        Ok(())
    };
    eventually(PATIENCE, is_shown).unwrap();
    assert_eq!(json(&cluster.daemons[0], "peers").unwrap(), serde_json::json!([]));
    let counts = &json(&cluster.daemons[0], "status").unwrap()["peers"];
    assert_eq!((&counts["skipped"], &counts["rejected"]), (&0.into(), &0.into()));
    // Without flags, etcd is found through the daemon.
    let usage = tweedctl(&cluster.nodes[0], &["leases", "usage"]).unwrap();
    assert!(usage.status.success(), "{usage:?}");
    let (code, text) = leases(&cluster, "usage").unwrap();
    assert!(code == Some(0) && text.contains("10.244.0.0/16 255 1 1 253 0 %"), "{text}");

    cluster.add(second).unwrap();
    let is_taken = |cluster: &Cluster| {
        let entry = cluster.etcd.get(&key)?.context("no lease")?;
        ensure!(entry.lease == 0 && entry.value.contains(r#""BackendType":"vxlan""#), "{entry:?}");
        Ok(())
    };
    eventually(PATIENCE, || is_taken(&cluster)).unwrap();
    let refused = || {
        let (code, text) = leases(&cluster, "release 10.244.50.0/24")?;
        let why = format!("10.244.50.0/24 is the lease of node {ip}, which is ready");
        ensure!(code == Some(1) && text.contains(&why) && text.contains("--force"), "{text}");
        Ok(())
    };
    eventually(PATIENCE, refused).unwrap();
    is_taken(&cluster).unwrap();

    // The daemon takes the same subnet again, as a lease with a term.
    let (code, text) = leases(&cluster, "release 10.244.50.0/24 --force").unwrap();
    assert_eq!((code, text.as_str()), (Some(0), "10.244.50.0/24 is released"));
    let has_term = || {
        let entry = cluster.etcd.get(&key)?.context("no lease")?;
        ensure!(entry.lease != 0, "{entry:?}");
        Ok(())
    };
    eventually(PATIENCE, has_term).unwrap();
    let (code, text) = leases(&cluster, "reserve 10.244.50.0/24").unwrap();
    assert!(code == Some(0) && text.contains("it does not expire"), "{text}");
    eventually(PATIENCE, || is_taken(&cluster)).unwrap();
}
