//! `tweed-proxy run` next to an API server.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tweed_lab::{ApiServer, Lab, Namespace, Node, Process, eventually};
use tweed_netlink::nftables::{self, changed_table};
use tweed_netlink::{Monitor, Protocol, Socket};

use super::relay::Relay;
use super::{Figures, LONG, SERVICES, SLICES, Shape, service};

/// Where the proxy serves its metrics, in its namespace.
const METRICS: &str = "127.0.0.1:10249";

/// After this time without another change of the table, there is none; what is removed late comes
/// after 100 ms.
const SILENCE: Duration = Duration::from_millis(20);

/// After this time, what is removed late is gone.
const LATE: Duration = Duration::from_millis(150);

/// A node with the proxy, and the API server that it asks.
pub(super) struct Scene {
    pub(super) lab: Lab,
    pub(super) node: Node,
    pub(super) server: ApiServer,
    relay: Relay,
}

impl Scene {
    /// With these services; the proxy does not run yet.
    pub(super) fn with(shape: Shape) -> Result<Self> {
        let lab = Lab::bare()?;
        let segment = lab.segment("10.99.1.0/24")?;
        let node = lab.node("n1", &segment)?;
        let server = ApiServer::start_in(node.namespace())?;
        server.add_node("n1", &[]);
        for number in 0..shape.services {
            server.add(SERVICES, &format!("s{number}"), &service(number));
            server.add(SLICES, &format!("s{number}-1"), &shape.slice(number, 0));
        }
        let relay = Relay::start(node.namespace(), server.address())?;
        Ok(Self { lab, node, server, relay })
    }

    /// Returns when all services are programmed, and how long that took.
    pub(super) fn start(&self, program: &Path, log: &str) -> Result<(Process, Duration)> {
        let url = self.relay.url();
        let words = ["run", "--hostname-override", "n1", "--kube-api-url", &url];
        let words = [&words[..], &["--metrics-bind-address", METRICS]].concat();
        let begun = Instant::now();
        let process = self.lab.start_on(&self.node, log, program, &words)?;
        let is_ready = || {
            let log = process.log()?;
            ensure!(log.contains("all services are programmed"), log);
            Ok(())
        };
        eventually(LONG, is_ready)?;
        Ok((process, begun.elapsed()))
    }

    /// The time from the event that the proxy gets until the kernel reports the last change of the
    /// table.
    fn change(&self, edit: impl FnOnce(&ApiServer) + Send) -> Result<Duration> {
        let (server, relay) = (&self.server, &self.relay);
        let watched = self.node.namespace().within(|| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut monitor = Monitor::of_tables(1 << 20)?;
                relay.begin();
                edit(server);
                let mut last = None;
                loop {
                    let limit = if last.is_some() { SILENCE } else { LONG };
                    let mut is_changed = false;
                    let received = monitor.receive(|frame| {
                        is_changed |=
                            changed_table(frame).is_some_and(|(_, it)| it == "tweed-proxy");
                    });
                    match timeout(limit, received).await {
                        Ok(received) => received?,
                        Err(_) => return last.context("the kernel reports no change"),
                    }
                    last = is_changed.then(Instant::now).or(last);
                }
            })
        })??;
        Ok(watched - self.relay.sent().context("the server sent nothing")?)
    }
}

pub(super) fn measure(program: &Path, shape: Shape, rounds: usize) -> Result<Figures> {
    let scene = Scene::with(shape)?;
    let before = kernel_kib()?;
    let (process, load) = scene.start(program, "first")?;
    let mut figures = Figures {
        load: Some(load),
        writing: Some(writing(scene.node.namespace())?),
        processor: Some(process.processor_time()?),
        kernel: Some(kernel_kib()? - before),
        ..Figures::default()
    };
    for round in 0..u32::try_from(rounds)? {
        let (old, new) = (round % shape.services, shape.services + round);
        let variant = round / shape.services % 2 + 1;
        figures.endpoint.add(scene.change(|server| {
            server.patch(SLICES, &format!("s{old}-1"), &shape.slice(old, variant));
        })?);
        scene.server.add(SLICES, &format!("s{new}-1"), &shape.slice(new, 0));
        // Its event is not that of the service.
        thread::sleep(LATE);
        figures.service.add(scene.change(|server| {
            server.add(SERVICES, &format!("s{new}"), &service(new));
        })?);
    }
    figures.memory = Some(process.peak_kib()?);
    let before = generation(scene.node.namespace())?;
    process.kill()?;
    let _second = scene.start(program, "second")?;
    thread::sleep(LATE);
    figures.restart = Some(generation(scene.node.namespace())? - before);
    Ok(figures)
}

/// The time that writing has taken until now, by the metrics of the proxy.
fn writing(namespace: &Namespace) -> Result<Duration> {
    let page = namespace.get(METRICS.parse()?, "/metrics")?.body;
    let name = "kubeproxy_sync_proxy_rules_duration_seconds_sum ";
    let seconds =
        page.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    Ok(Duration::from_secs_f64(seconds.parse()?))
}

fn generation(namespace: &Namespace) -> Result<u32> {
    Ok(namespace.within(|| nftables::generation(&mut Socket::open(Protocol::Netfilter)?))??)
}

/// What the kernel uses for itself, whichever process and namespace it is for, once it frees nothing more.
fn kernel_kib() -> Result<i64> {
    let mut before = None;
    loop {
        let now = kernel_kib_now()?;
        if before.replace(now).is_some_and(|before| now.abs_diff(before) < 64) {
            return Ok(now);
        }
        thread::sleep(Duration::from_millis(300));
    }
}

fn kernel_kib_now() -> Result<i64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    let fields = ["SUnreclaim:", "VmallocUsed:", "Percpu:"];
    let figures = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| fields.contains(name))?;
        words.next()?.parse::<i64>().ok()
    });
    Ok(figures.sum())
}
