//! What holds whichever runtime drives the plugin.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Container, ContainerPlan, Family, GREETING, Host, Lab, Path, Runtime, eventually};

use crate::cluster::{self, CONFIG, PATIENCE};
use crate::site::{self, Site};
use crate::traces;

const HOST_GW: &str = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}}"#;

/// A pod on each of two nodes: an address of the node's lease, and answers both ways.
pub fn pods_reach_each_other<R: Runtime>(start: impl Fn(&Host) -> Result<R>) -> Result<()> {
    let Site { cluster, runtimes, .. } = Site::start(2, start)?;
    let pod = |runtime: &R| runtime.start(plan("web"));
    let pods = runtimes.iter().map(pod).collect::<Result<Vec<_>>>()?;
    for (index, pod) in pods.iter().enumerate() {
        let subnet = cluster.subnet(index, Family::V4)?;
        ensure!(subnet.contains(pod.address), "{} is not of {subnet}", pod.address);
    }
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    ping_both_ways(&runtimes, &pods).context("through the tunnel")?;
    cluster.etcd.put(CONFIG, HOST_GW)?;
    cluster.wait_for_paths(|_, _| Path::Direct)?;
    ping_both_ways(&runtimes, &pods).context("after the flip")
}

/// A port of the host is the pod's, for another node, and nobody's after the pod.
pub fn a_published_port_leads_to_its_pod<R: Runtime>(
    start: impl Fn(&Host) -> Result<R>,
) -> Result<()> {
    let Site { cluster, runtimes, .. } = Site::start(2, start)?;
    let pod = runtimes[0].start(ContainerPlan { published: Some(8080), ..plan("web") })?;
    let port = SocketAddr::new(cluster.nodes[0].address(Family::V4)?, 8080);
    let ask = || cluster.nodes[1].namespace().get(port, "/");
    eventually(PATIENCE, || {
        let body = ask()?.body;
        ensure!(body == GREETING, "{port} answers {body:?}");
        Ok(())
    })?;
    runtimes[0].remove(&pod)?;
    ensure!(ask().is_err(), "{port} still answers");
    Ok(())
}

/// No address, link, record, namespace or rule; also of one that published a port.
pub fn a_removed_pod_leaves_nothing_behind<R: Runtime>(
    start: impl Fn(&Host) -> Result<R>,
) -> Result<()> {
    let Site { hosts, runtimes, cluster: _cluster } = Site::start(1, start)?;
    let (host, runtime) = (&hosts[0], &runtimes[0]);
    let pod = runtime.start(ContainerPlan { published: Some(8080), ..plan("web") })?;
    let traces = traces::of(host, &pod)?;
    for trace in expected(&pod) {
        let is_seen = traces.iter().any(|seen| seen.contains(&trace));
        ensure!(is_seen, "a pod that runs has no {trace} in {traces:#?}");
    }
    runtime.remove(&pod)?;
    let left = traces::of(host, &pod)?;
    ensure!(left.is_empty(), "left behind: {left:#?}");
    Ok(())
}

/// The error of the runtime quotes the daemon; nothing stays, and the pod can be started later.
pub fn the_runtime_is_told_what_the_daemon_waits_for<R: Runtime>(
    start: impl Fn(&Host) -> Result<R>,
) -> Result<()> {
    let lab = Lab::new(cluster::binaries())?;
    let (etcd, segment) = (lab.etcd()?, lab.segment("10.99.1.0/24")?);
    let node = lab.node("n1", &segment)?;
    let host = site::boot(&node)?;
    let runtime = start(&host)?;
    let daemon = node.daemon(&etcd).start()?;
    eventually(PATIENCE, || node.subnet_file().with_extension("sock").exists())?;

    let error = runtime.start(plan("early")).expect_err("a pod without a subnet");
    let error = format!("{error:#}");
    for words in ["failed to load flannel 'subnet.env' file", "the daemon says: "] {
        ensure!(error.contains(words), "{words:?} is not in: {error}");
    }
    etcd.put(CONFIG, HOST_GW)?;
    daemon.wait_ready()?;
    let pod = runtime.start(plan("late"))?;
    runtime.remove(&pod)?;
    let left = traces::of(&host, &pod)?;
    ensure!(left.is_empty(), "left behind: {left:#?}");
    Ok(())
}

fn plan(name: &str) -> ContainerPlan<'_> {
    ContainerPlan { name, published: None }
}

fn ping_both_ways<R: Runtime>(runtimes: &[R], pods: &[Container]) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        let address = pods[to].address.to_string();
        let ping = || runtimes[from].exec(&pods[from], &["ping", "-c1", "-W2", &address]).map(drop);
        eventually(PATIENCE, ping).with_context(|| format!("from n{} to n{}", from + 1, to + 1))?;
    }
    Ok(())
}

/// What is there of a pod with a published port while it runs; this proves that its absence says something.
fn expected(pod: &Container) -> [String; 6] {
    let Container { id, address, .. } = pod;
    [
        format!("/var/lib/cni/networks/cbr0/{address}"),
        format!("/var/lib/cni/flannel/{id}:eth0"),
        format!("/var/lib/cni/results/cbr0-{id}-eth0"),
        "/run/netns/".to_owned(),
        "master cni0".to_owned(),
        format!("dnat to {address}:80"),
    ]
}
