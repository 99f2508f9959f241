//! The cost of services: all of them from nothing, a change of one endpoint, a restart without a change.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tweed_lab::{ApiServer, Family, Lab, Namespace, Node, Process, eventually};
use tweed_netlink::nftables::{self, changed_table};
use tweed_netlink::{Monitor, Protocol, Socket};

use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, megabytes, precise, thousands, time};

/// Where the proxy serves its metrics, in its namespace.
const METRICS: &str = "127.0.0.1:10249";

const COUNTS: [u32; 3] = [1000, 5000, 30_000];
const ENDPOINTS: u32 = 3;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// What waits for a program that is not stopped.
const LONG: Duration = Duration::from_secs(300);

/// The most changes of one endpoint by kube-proxy, and the time after which it is stopped.
const CHANGES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one program took; none where it was stopped.
#[derive(Default)]
struct Figures {
    load: Option<Duration>,
    /// Of the load, after the last object has come.
    writing: Option<Duration>,
    changes: Sample<Duration>,
    memory: Option<u64>,
    restart: Option<u32>,
}

pub(crate) fn run(
    proxy: &Path,
    kube_proxy: Option<&Path>,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    let head = [
        "services",
        "program",
        "from nothing",
        "of it, writing",
        "one endpoint, p50",
        "p99",
        "memory",
        "changes by a restart",
    ];
    sheet.table("Services with three endpoints each", &head)?;
    let mut medians = Vec::new();
    let mut goals = Vec::new();
    for count in COUNTS {
        let ours = measure(proxy, count, rounds)?;
        row(sheet, count, "tweed-proxy", &ours)?;
        medians.push(ours.changes.median());
        let writing = ours.writing.context("no time of writing")?.as_secs_f64();
        let wanted = match count {
            1000 => 0.06,
            5000 => 0.25,
            _ => 1.0,
        };
        goals.push(Goal::at_most(format!("{}: writing", thousands(count)), writing, wanted, "s"));
        if let Some(program) = kube_proxy {
            row(sheet, count, "kube-proxy", &rival(program, count)?)?;
        }
    }
    let (first, last) = (medians.first().copied(), medians.last().copied());
    let (first, last) = first.zip(last).context("no figures")?;
    let ratio = last.as_secs_f64() / first.as_secs_f64();
    goals.push(Goal::at_most("a change, 30,000 against 1,000", ratio, 1.2, "×"));
    sheet.goals(&goals)
}

fn row(sheet: &mut Sheet, count: u32, program: &str, figures: &Figures) -> Result<()> {
    let stopped = || "stopped after 60 s".to_owned();
    let percentile = |percent| match figures.changes.len() {
        0 => stopped(),
        _ => precise(figures.changes.percentile(percent)),
    };
    sheet.row(&[
        &thousands(count),
        &program,
        &figures.load.map_or_else(stopped, time),
        &figures.writing.map_or_else(String::new, time),
        &percentile(50),
        &percentile(99),
        &figures.memory.map_or_else(String::new, |kib| format!("{:.0} MB", megabytes(kib))),
        &figures.restart.map_or_else(String::new, |changes| changes.to_string()),
    ])
}

/// `tweed-proxy run` next to an API server.
fn measure(program: &Path, count: u32, rounds: usize) -> Result<Figures> {
    let lab = Lab::bare()?;
    let segment = lab.segment("10.99.1.0/24")?;
    let node = lab.node("n1", &segment)?;
    let server = ApiServer::start_in(node.namespace())?;
    server.add_node("n1", &[]);
    for number in 0..count {
        let [service, slice] = objects(number, 0);
        server.add(SERVICES, &format!("s{number}"), &service);
        server.add(SLICES, &format!("s{number}-1"), &slice);
    }
    let url = server.url();
    let words = ["run", "--hostname-override", "n1", "--kube-api-url", &url];
    let words = [&words[..], &["--metrics-bind-address", METRICS]].concat();
    let start = |log: &str| -> Result<(Process, Duration)> {
        let begun = Instant::now();
        let process = lab.start_on(&node, log, program, &words)?;
        wait_until_ready(&process)?;
        Ok((process, begun.elapsed()))
    };
    let (process, load) = start("first")?;
    let writing = Some(writing(node.namespace())?);
    let mut figures = Figures { load: Some(load), writing, ..Figures::default() };
    for round in 0..u32::try_from(rounds)? {
        let number = round % count;
        let [_, slice] = objects(number, round % 2 + 1);
        figures.changes.add(change(node.namespace(), || {
            server.patch(SLICES, &format!("s{number}-1"), &slice);
        })?);
        // What is not looked up any more is removed later.
        thread::sleep(Duration::from_millis(150));
    }
    figures.memory = Some(process.peak_kib()?);
    let before = generation(node.namespace())?;
    process.kill()?;
    start("second")?;
    figures.restart = Some(generation(node.namespace())? - before);
    Ok(figures)
}

fn wait_until_ready(process: &Process) -> Result<()> {
    let is_ready = || {
        let log = process.log()?;
        ensure!(log.contains("all services are programmed"), log);
        Ok(())
    };
    eventually(LONG, is_ready).map(drop)
}

/// The time that writing has taken until now, by the metrics of the proxy.
fn writing(namespace: &Namespace) -> Result<Duration> {
    let page = namespace.get(METRICS.parse()?, "/metrics")?.body;
    let name = "kubeproxy_sync_proxy_rules_duration_seconds_sum ";
    let seconds =
        page.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    Ok(Duration::from_secs_f64(seconds.parse()?))
}

/// The time until the kernel reports a change of the table.
fn change(namespace: &Namespace, edit: impl FnOnce() + Send) -> Result<Duration> {
    namespace.within(|| {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut monitor = Monitor::of_tables(1 << 20)?;
            let begun = Instant::now();
            edit();
            let mut is_changed = false;
            while !is_changed {
                let of_ours = |name: &str| name == "tweed-proxy";
                monitor
                    .receive(|frame| {
                        is_changed |= changed_table(frame).is_some_and(|(_, name)| of_ours(name));
                    })
                    .await?;
            }
            Ok(begun.elapsed())
        })
    })?
}

fn generation(namespace: &Namespace) -> Result<u32> {
    Ok(namespace.within(|| nftables::generation(&mut Socket::open(Protocol::Netfilter)?))??)
}

/// kube-proxy without an API server.
struct Rival {
    child: Child,
    answers: BufReader<ChildStdout>,
}

fn rival(program: &Path, count: u32) -> Result<Figures> {
    let lab = Lab::bare()?;
    let segment = lab.segment("10.99.1.0/24")?;
    let node = lab.node("n1", &segment)?;
    let mut rival = Rival::start(program, &node)?;
    let mut all: Vec<[Value; 2]> = (0..count).map(|number| objects(number, 0)).collect();
    let mut figures = Figures { load: rival.program(&all)?, ..Figures::default() };
    if figures.load.is_none() {
        return Ok(figures);
    }
    for round in 0..u32::try_from(CHANGES)? {
        let number = round % count;
        let index = usize::try_from(number)?;
        all.splice(index..=index, [objects(number, round % 2 + 1)]);
        let Some(took) = rival.program(&all)? else { break };
        figures.changes.add(took);
    }
    figures.memory = Some(rival.peak_kib()?);
    Ok(figures)
}

impl Rival {
    fn start(program: &Path, node: &Node) -> Result<Self> {
        let address = node.address(Family::V4)?.to_string();
        let mut command = Command::new(program);
        command.args(["-hostname-override", "n1", "-node-ip", &address]);
        command.args(["-nodeport-addresses", &format!("{address}/32")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = node.namespace().within(|| command.spawn())?.context("kube-proxy")?;
        let answers = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, answers })
    }

    /// The time that it took; none if it was stopped.
    fn program(&mut self, all: &[[Value; 2]]) -> Result<Option<Duration>> {
        let flat: Vec<&Value> = all.iter().flatten().collect();
        let input = self.child.stdin.as_mut().context("no input")?;
        serde_json::to_writer(&mut *input, &flat)?;
        input.write_all(b"\n")?;
        let (begun, answers, child) = (Instant::now(), &mut self.answers, &mut self.child);
        let answer = thread::scope(|scope| -> Result<String> {
            let reader = scope.spawn(move || {
                let mut line = String::new();
                answers.read_line(&mut line).map(|_| line)
            });
            while !reader.is_finished() {
                if begun.elapsed() > PATIENCE {
                    child.kill()?;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let Ok(line) = reader.join() else { bail!("reading the answer of kube-proxy") };
            Ok(line?)
        })?;
        Ok(answer.trim().parse().ok().map(Duration::from_nanos))
    }

    fn peak_kib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()).context("no VmHWM")?;
        Ok(kib.parse()?)
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// Service number `number` and its endpoints; `variant` decides about the last of them.
fn objects(number: u32, variant: u32) -> [Value; 2] {
    let [_, _, high, low] = (number + 1).to_be_bytes();
    let name = format!("s{number}");
    let service = json!({
        "kind": "Service",
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": format!("10.96.{high}.{low}"),
            "clusterIPs": [format!("10.96.{high}.{low}")],
            "ports": [{ "name": "web", "protocol": "TCP", "port": 80 }],
        },
        "status": { "loadBalancer": {} },
    });
    let endpoint = |index: u32| {
        let [_, a, b, c] = ((number * ENDPOINTS + index) * 4 + 1).to_be_bytes();
        let last = if index + 1 == ENDPOINTS { variant } else { 0 };
        json!({ "addresses": [format!("10.{}.{b}.{}", a + 128, u32::from(c) + last)] })
    };
    let slice = json!({
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default", "name": format!("{name}-1"),
            "labels": { "kubernetes.io/service-name": name },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "web", "protocol": "TCP", "port": 8080 }],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>(),
    });
    [service, slice]
}
