//! `tweedctl connectivity test --pods`: pings from a throw-away pod, of which nothing is left.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{Host, eventually, install};

use crate::fixture::ask;
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack, binaries, program};

/// Runs its arguments, and prints the exit code after their output.
const RUN: &str = r#""$@" 2>&1; echo "exit $?""#;

/// As [`RUN`], with a signal as soon as an address is reserved.
const INTERRUPT: &str = r#"
    "$@" 2>&1 &
    until ls /var/lib/cni/networks/cbr0 2>/dev/null | grep -q '^10' || ! kill -0 $! 2>/dev/null
    do :; done
    kill -TERM $! 2>/dev/null
    wait $!
    echo "exit $?"
"#;

/// Two nodes with daemons; the first one has the CNI plugin.
fn start() -> Result<(Cluster, Host)> {
    let config = Stack::Dual.config(r#""Backend":{"Type":"vxlan"}"#);
    let cluster = ClusterPlan::new(2, &config).stack(Stack::Dual).start()?;
    cluster.wait_for_paths(|_, _| tweed_lab::Path::Tunnel)?;
    let flannel = program("flannel")?;
    let host = Host::boot(&cluster.nodes[0])?;
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/cni/10-flannel.conflist");
    host.install_plugin(&flannel, &config)?;
    Ok((cluster, host))
}

/// Exit code and output of `tweedctl` on the host, by this shell script.
fn tweedctl(host: &Host, script: &str, arguments: &[&str]) -> Result<(String, String)> {
    let program = binaries().tweedctl.display().to_string();
    let words = [&["-c", script, "sh", &program], arguments].concat();
    let text = host.run("sh", &words)?;
    let (text, code) = text.trim_end().rsplit_once("exit ").context(text.clone())?;
    Ok((code.to_owned(), text.to_owned()))
}

/// Exit code and results of the pod.
fn ping_from_pod(cluster: &Cluster, host: &Host) -> Result<(String, Value)> {
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let words = ["connectivity", "test", "--pods", "-o", "json", &endpoints];
    let (code, text) = tweedctl(host, RUN, &words)?;
    let mut listed: Value = serde_json::from_str(&text).context(text)?;
    Ok((code, listed["pods"].take()))
}

/// Waits until such a pod has these results: a busy machine loses some pings.
fn pings_from_pod(cluster: &Cluster, host: &Host, code: &str, totals: &Value) -> Value {
    let mut pods = Value::Null;
    let are_so = || {
        let (found, pinged) = ping_from_pod(cluster, host)?;
        pods = pinged;
        ensure!(found == code && pods["totals"] == *totals, "{found}: {pods}");
        Ok(())
    };
    eventually(PATIENCE, are_so).unwrap();
    pods
}

/// Neither a port of the bridge, nor an address, nor a record of a container.
fn nothing_is_left(host: &Host) -> Result<()> {
    let ports = host.node().ip("-o link show master cni0")?;
    ensure!(ports.is_empty(), "{ports}");
    let (code, text) = tweedctl(host, RUN, &["ipam", "check", "-o", "json"])?;
    let checked: Value = serde_json::from_str(&text).context(text)?;
    let networks = checked["networks"].as_array().context("no networks")?;
    let is_empty = |store: &Value| store["held"] == 0;
    ensure!(code == "0" && networks.len() == 1 && networks.iter().all(is_empty), "{checked}");
    ensure!(is_empty(&checked["attachments"]), "{checked}");
    Ok(())
}

#[test]
fn a_throw_away_pod_reaches_the_peers_and_nothing_of_it_is_left() {
    let (cluster, host) = start().unwrap();
    let pods = pings_from_pod(&cluster, &host, "0", &json!({ "reachable": 2 }));
    let mtu = cluster.nodes[0].subnet_env().unwrap().mtu;
    assert_eq!(pods["sizes"], json!([84, mtu]));
    assert_eq!(pods["addresses"].as_array().map(Vec::len), Some(2), "{pods}");
    nothing_is_left(&host).unwrap();

    // Outer packets of full-size pings are longer.
    cluster.segment.filter("udp dport 8472 udp length > 1000").unwrap();
    pings_from_pod(&cluster, &host, "5", &json!({ "degraded": 2 }));
    cluster.segment.unfilter().unwrap();

    cluster.segment.filter("udp dport 8472").unwrap();
    let pods = pings_from_pod(&cluster, &host, "5", &json!({ "unreachable": 2 }));
    let pairs = pods["pairs"].as_array().unwrap();
    let is_cause = |pair: &Value| pair["cause"].as_str().unwrap().starts_with("no ping of 84 or ");
    assert!(pairs.len() == 2 && pairs.iter().all(is_cause), "{pods}");
    nothing_is_left(&host).unwrap();

    // Pings that are not answered take seconds: mostly, the signal comes before their end.
    let is_interrupted = || {
        let (code, text) = tweedctl(&host, INTERRUPT, &["connectivity", "test", "--pods"])?;
        ensure!((code.as_str(), text.trim()) == ("1", "tweedctl: ended by a signal"), "{text}");
        Ok(())
    };
    eventually(PATIENCE, is_interrupted).unwrap();
    nothing_is_left(&host).unwrap();
    cluster.segment.unfilter().unwrap();
    pings_from_pod(&cluster, &host, "0", &json!({ "reachable": 2 }));
}

#[test]
fn a_pod_that_cannot_be_created_or_removed_is_an_error() {
    let cluster = Cluster::start(1, &Stack::V4.config(r#""Backend":{"Type":"vxlan"}"#)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let refused = || {
        let path = folder.path().to_str().unwrap();
        let folders = ["--cni-conf-dir", path, "--cni-bin-dir", path];
        let words = [&["connectivity", "test", "--pods"], &folders[..]].concat();
        let output = ask::tweedctl(&cluster.nodes[0], &words).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = refused();
    assert!(code == Some(3) && error.contains("has no CNI config: name its"), "{code:?} {error}");

    write("20-flannel.conflist", r#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#);
    write("10-other.conf", r#"{"name":"other","type":"bridge"}"#);
    let (code, error) = refused();
    assert!(
        code == Some(3) && error.contains("10-other.conf, which runtimes use, is not"),
        "{error}"
    );

    fs::remove_file(folder.path().join("10-other.conf")).unwrap();
    let program = "#!/bin/sh\necho '{\"code\":11,\"msg\":\"no '$CNI_COMMAND'\"}'; exit 1\n";
    install(program, &folder.path().join("flannel")).unwrap();
    let (code, error) = refused();
    let created = "no pod can be created: ADD of plugin flannel: no ADD; ";
    let left = " in the network cbr0 may be left (DEL of plugin flannel: no DEL): see ";
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains(created) && error.contains(left), "{error}");
}
