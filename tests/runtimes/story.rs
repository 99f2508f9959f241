//! Behaviour that is the same with every runtime.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow, ensure};
use tweed_lab::{
    Container, ContainerPlan, Containerd, Family, GREETING, Host, Lab, Path, Podman, Runtime,
    eventually,
};

use crate::cluster::{self, CONFIG, PATIENCE, Stack};
use crate::site::{self, HOST_GW, Site};
use crate::traces;

/// A pod on each of two nodes: addresses of the node's lease, and answers both ways.
pub fn pods_reach_each_other<R: Runtime>(start: impl Fn(&Host) -> Result<R>) -> Result<()> {
    let Site { cluster, runtimes, .. } = Site::start(2, start)?;
    let pods = runtimes.iter().map(|it| it.start(plan("web"))).collect::<Result<Vec<_>>>()?;
    for (index, pod) in pods.iter().enumerate() {
        for family in [Family::V4, Family::V6] {
            let (subnet, address) = (cluster.subnet(index, family)?, pod.address(family)?);
            ensure!(subnet.contains(address), "{address} is not of {subnet}");
        }
    }
    cluster.wait_for_paths(|_, _| Path::Tunnel)?;
    ping_both_ways(&runtimes, &pods).context("through the tunnel")?;
    cluster.etcd.put(CONFIG, &Stack::Dual.config(HOST_GW))?;
    cluster.wait_for_paths(|_, _| Path::Direct)?;
    ping_both_ways(&runtimes, &pods).context("after the flip")
}

/// Another node reaches the pod by a port of the host; after the pod's removal, the port is free.
pub fn a_published_port_reaches_its_pod<R: Runtime>(
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
    // A runtime may end what it does for a pod a moment after its answer.
    eventually(PATIENCE, || {
        ensure!(ask().is_err(), "{port} still answers");
        Ok(())
    })?;
    Ok(())
}

/// No address, link, record, namespace or rule remains, though many pods start and end at the same
/// time.
pub fn removed_pods_leave_nothing_behind<R: Runtime + Sync>(
    start: impl Fn(&Host) -> Result<R>,
) -> Result<()> {
    let Site { hosts, runtimes, cluster: _cluster } = Site::start(1, start)?;
    let (host, runtime) = (&hosts[0], &runtimes[0]);
    let start = |port| {
        runtime.start(ContainerPlan { published: Some(port), ..plan(&format!("web{port}")) })
    };
    // All use the same chains of portmap, which fails if two pods create one at the same time.
    let mut pods = vec![start(9080)?];
    pods.extend(at_once(9081..9085, start)?);
    let traces = traces::of(host, &pods)?;
    for trace in pods.iter().map(expected).collect::<Result<Vec<_>>>()?.concat() {
        let is_seen = traces.iter().any(|seen| seen.contains(&trace));
        ensure!(is_seen, "a pod that runs has no {trace} in {traces:#?}");
    }
    at_once(&pods, |pod| runtime.remove(pod))?;
    nothing_is_left(host, &pods)
}

/// The error of the runtime quotes the daemon; nothing remains, and a pod can be started later.
pub fn the_runtime_reports_what_the_daemon_waits_for<R: Runtime>(
    start: impl Fn(&Host) -> Result<R>,
) -> Result<()> {
    let lab = Lab::new(cluster::binaries())?;
    let (etcd, segment) = (lab.etcd()?, lab.segment("10.99.1.0/24")?);
    let node = lab.node("n1", &segment)?;
    let host = site::boot(&node)?;
    let runtime = start(&host)?;
    let daemon = node.daemon(&etcd).start()?;
    eventually(PATIENCE, || node.subnet_file().with_extension("sock").exists())?;

    // The plugin waits for two seconds: a busy daemon may answer later.
    let mut attempt = 0;
    eventually(PATIENCE, || {
        attempt += 1;
        let started = runtime.start(plan(&format!("early{attempt}")));
        let error = format!("{:#}", started.err().context("a pod without a subnet")?);
        for words in ["failed to load flannel 'subnet.env' file", "the daemon reports: "] {
            ensure!(error.contains(words), "{words:?} is not in: {error}");
        }
        Ok(())
    })?;
    etcd.put(CONFIG, &Stack::V4.config(HOST_GW))?;
    daemon.wait_ready()?;
    let pod = runtime.start(plan("late"))?;
    runtime.remove(&pod)?;
    nothing_is_left(&host, &[pod])
}

/// A kubelet removes pods whose namespaces are missing.
pub fn containerd_removes_a_pod_lost_in_a_power_cut() -> Result<()> {
    let Site { hosts, runtimes, cluster: _cluster } = Site::start(1, Containerd::on)?;
    let pod = runtimes[0].start(plan("web"))?;
    lose_power(&hosts[0], &pod)?;
    Containerd::on(&hosts[0])?.remove(&pod)?;
    nothing_is_left(&hosts[0], &[pod])
}

/// podman adds the container to the network again, without a DEL before.
pub fn podman_restarts_a_container_lost_in_a_power_cut() -> Result<()> {
    let Site { hosts, runtimes, cluster: _cluster } = Site::start(1, Podman::on)?;
    let pod = runtimes[0].start(plan("web"))?;
    lose_power(&hosts[0], &pod)?;
    let podman = Podman::on(&hosts[0])?;
    let again = podman.start_again(&pod)?;
    ensure!(again.addresses.len() == 2, "{again:?}");
    podman.remove(&again)?;
    nothing_is_left(&hosts[0], &[pod, again])
}

fn plan(name: &str) -> ContainerPlan<'_> {
    ContainerPlan { name, published: None }
}

/// Only the files on disk remain.
fn lose_power(host: &Host, pod: &Container) -> Result<()> {
    host.cut_power()?;
    host.node().ip("link del cni0")?;
    host.run("nft", &["flush", "ruleset"])?;
    let kept = format!("/var/lib/cni/networks/cbr0/{}", pod.address(Family::V4)?);
    ensure!(traces::of(host, &[])?.contains(&kept), "{kept} went with the power");
    Ok(())
}

/// Runs it for all items at the same time.
fn at_once<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        started.into_iter().map(|it| it.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    })
}

fn ping_both_ways<R: Runtime>(runtimes: &[R], pods: &[Container]) -> Result<()> {
    for (from, to) in [(0, 1), (1, 0)] {
        for address in pods[to].addresses.iter().map(ToString::to_string) {
            let ping = ["ping", "-c1", "-W2", &address];
            eventually(PATIENCE, || runtimes[from].exec(&pods[from], &ping).map(drop))
                .with_context(|| format!("from n{} to {address}", from + 1))?;
        }
    }
    Ok(())
}

/// The traces of a running pod with a published port; without this check, their absence would prove
/// nothing.
fn expected(pod: &Container) -> Result<Vec<String>> {
    let Container { id, .. } = pod;
    let (v4, v6) = (pod.address(Family::V4)?, pod.address(Family::V6)?);
    Ok(vec![
        format!("/var/lib/cni/networks/cbr0/{v4}"),
        format!("/var/lib/cni/networks/cbr0/{v6}"),
        format!("/var/lib/cni/flannel/{id}:eth0"),
        format!("/var/lib/cni/results/cbr0-{id}-eth0"),
        "/run/netns/".to_owned(),
        "veth".to_owned(),
        format!("--to-destination {v4}:80"),
    ])
}

/// A runtime may end what it does for a pod a moment after its answer.
fn nothing_is_left(host: &Host, pods: &[Container]) -> Result<()> {
    eventually(PATIENCE, || {
        let left = traces::of(host, pods)?;
        ensure!(left.is_empty(), "left behind: {left:#?}");
        Ok(())
    })?;
    Ok(())
}
