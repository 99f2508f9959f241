//! The cost of `tweedctl` for all of thousands of nodes, of which none or a hundred are unreachable.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, PutOptions};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tweed_lab::{Backend, Binaries, Etcd, Lab, Node, peak_kib};

use super::reports::{self, Reported};
use crate::instruments::peer::{CONFIG, NETWORK, Peer, SUBNETS, UNDERLAY, peers};
use crate::instruments::script::processor_time_of_children;
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, megabytes, spread, thousands};

const NODES: u32 = 5000;
const REPORTS: &str = "/coreos.com/network/tweed/nodes";
const TTL_SECONDS: i64 = 86_400;
/// Requests to etcd at once, while the cluster is written.
const AT_ONCE: usize = 64;

/// What is measured on a node, next to its daemon.
const ON_A_NODE: [&[&str]; 2] = [&["status"], &["peers", "--failing"]];
/// What is measured from the store; `FILE` stands for a file that is written.
const COMMANDS: [&[&str]; 3] =
    [&["nodes"], &["migrate", "plan", "--to", "host-gw"], &["dashboard", "--export", FILE]];
const FILE: &str = "FILE";
/// The pause between two looks at the memory of a command.
const GLANCE: Duration = Duration::from_millis(1);
/// A command that runs for longer hangs.
const LIMIT: Duration = Duration::from_secs(120);
/// The largest exit code by which `tweedctl` describes the cluster.
const LAST_CODE: i32 = 5;

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let lab = Lab::new(binaries.clone())?;
    let (etcd, segment) = (lab.etcd()?, lab.segment(UNDERLAY)?);
    let node = lab.node("n1", &segment)?;
    etcd.put(CONFIG, &format!(r#"{{"Network":"{NETWORK}","Backend":{{"Type":"vxlan"}}}}"#))?;
    let heading = ["`tweedctl`", "unreachable peers of each", "reports", "time", "CPU", "memory"];
    sheet.table(&format!("All of {} nodes, by `tweedctl`", thousands(NODES)), &heading)?;
    let mut goals = Vec::new();
    let mut reported = Vec::new();
    for failing in [0, 100] {
        let (nodes, bytes) = node.namespace().within(|| write(&etcd, failing))??;
        reported = nodes;
        for words in COMMANDS {
            let cost = measure(words, Some(&etcd), binaries, &node, rounds)?;
            let size = format!("{:.1} MB", megabytes(u64::try_from(bytes / 1024)?));
            let name = words.join(" ");
            let [time, processor, memory] = cost.shown();
            sheet.row(&[&format!("`{name}`"), &failing, &size, &time, &processor, &memory])?;
            goals.extend(cost.goals(&format!("`{name}`, {failing} unreachable peers")));
        }
    }
    sheet.goals(&goals)?;
    on_a_node((&etcd, &node), binaries, rounds, sheet)?;
    node.namespace().within(|| reports::run(&etcd, &reported, sheet))?
}

fn on_a_node(
    (etcd, node): (&Etcd, &Node),
    binaries: &Binaries,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    let name = format!("One of {} nodes, by `tweedctl`", thousands(NODES));
    sheet.table(&name, &["`tweedctl`", "time", "CPU", "memory"])?;
    let daemon = node.daemon(etcd).start()?;
    daemon.wait_ready()?;
    let mut goals = Vec::new();
    for words in ON_A_NODE {
        let cost = measure(words, None, binaries, node, rounds)?;
        let name = format!("`{}`", words.join(" "));
        let [time, processor, memory] = cost.shown();
        sheet.row(&[&name, &time, &processor, &memory])?;
        goals.extend(cost.goals(&name));
    }
    daemon.stop()?;
    sheet.goals(&goals)
}

/// What a command costs.
struct Cost {
    times: Sample<Duration>,
    /// In the mean.
    processor: Duration,
    /// The largest memory in all rounds, in KiB.
    peak: u64,
}

impl Cost {
    fn shown(&self) -> [String; 3] {
        let Self { times, processor, peak } = self;
        let memory = format!("{:.1} MB", megabytes(*peak));
        [spread(times), format!("{} ms", processor.as_millis()), memory]
    }

    fn goals(&self, what: &str) -> [Goal; 2] {
        let seconds = self.times.median().as_secs_f64();
        [
            Goal::at_most(format!("{what}, time"), seconds, 1.0, "s"),
            Goal::at_most(format!("{what}, memory"), megabytes(self.peak), 100.0, "MB"),
        ]
    }
}

/// `etcd` is the store that the command reads, if it reads it.
fn measure(
    words: &[&str],
    etcd: Option<&Etcd>,
    binaries: &Binaries,
    node: &Node,
    rounds: usize,
) -> Result<Cost> {
    let file = node.folder().join("page.html");
    let file = file.to_str().context("no text")?;
    let mut cost = Cost { times: Sample::default(), processor: Duration::ZERO, peak: 0 };
    let before = processor_time_of_children()?;
    for _ in 0..rounds {
        let mut command = Command::new(&binaries.tweedctl);
        command.args(words.iter().map(|word| if *word == FILE { file } else { *word }));
        let servers = etcd.map(|etcd| etcd.endpoints().join(","));
        command.args(servers.map(|servers| format!("--etcd-endpoints={servers}")));
        command.arg("--subnet-file").arg(node.subnet_file());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = node.namespace().within(|| command.spawn())??;
        let ended = peak(&mut child);
        if ended.is_err() {
            child.kill()?;
        }
        let (took, output) = (started.elapsed(), child.wait_with_output()?);
        let error = String::from_utf8_lossy(&output.stderr);
        cost.peak = cost.peak.max(ended.with_context(|| format!("{words:?}: {error}"))?);
        cost.times.add(took);
        let is_right = output.status.code().is_some_and(|code| code <= LAST_CODE);
        ensure!(error.is_empty() && is_right, "{words:?}: {}: {error}", output.status);
    }
    let spent = processor_time_of_children()?.saturating_sub(before);
    cost.processor = spent / u32::try_from(rounds)?;
    Ok(cost)
}

/// The largest memory of a command until its end, in KiB.
fn peak(child: &mut Child) -> Result<u64> {
    let (mut peak, started) = (0, Instant::now());
    while child.try_wait()?.is_none() {
        ensure!(started.elapsed() < LIMIT, "not within {LIMIT:?}");
        // The kernel keeps the maximum; a process that has ended has none.
        peak = peak_kib(child.id()).unwrap_or(peak);
        std::thread::sleep(GLANCE);
    }
    Ok(peak)
}

/// Writes the lease and the report of each node; returns them and the size of all reports.
fn write(etcd: &Etcd, failing: u32) -> Result<(Vec<Reported>, usize)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = &Client::connect(etcd.endpoints(), None).await?;
        let written = stream::iter(peers(0..NODES)).map(|peer| write_one(client, peer, failing));
        let written: Vec<_> = written.buffer_unordered(AT_ONCE).try_collect().await?;
        let (nodes, sizes): (_, Vec<usize>) = written.into_iter().unzip();
        Ok((nodes, sizes.iter().sum()))
    })
}

async fn write_one(client: &Client, peer: Peer, failing: u32) -> Result<(Reported, usize)> {
    let mut client = client.clone();
    let grant = client.lease_grant(TTL_SECONDS, None).await?.id();
    let options = || Some(PutOptions::new().with_lease(grant));
    let (key, value) = peer.lease(Backend::Vxlan);
    let id = key.strip_prefix(SUBNETS).context("no lease")?.trim_start_matches('/').to_owned();
    let report = report(peer, &id, failing).to_string();
    client.put(key, value, options()).await?;
    let reported = format!("{REPORTS}/{id}");
    client.put(reported.as_str(), report.as_str(), options()).await?;
    let next = self::report(peer, &id, 1).to_string();
    Ok((Reported { key: reported, grant, next }, report.len()))
}

/// As `tweedd` writes it; the last nodes do not answer.
fn report(peer: Peer, id: &str, failing: u32) -> Value {
    let (base, address) = (peer.base(), peer.address());
    let others = peers(NODES - failing..NODES).filter(|it| it.base() != base);
    let failing_peers: Vec<Value> = others.map(unreachable).collect();
    let uplink = json!({ "address": address, "public_ip": address, "source": address });
    json!({
        "version": "0.1.0", "lease": id, "subnets": [format!("{base}/24")],
        "backend": "vxlan", "mixed": false, "config_revision": 7, "follows": true,
        "node": {
            "interface": "eth0", "mtu": 1500, "layer2": true, "nexthops": true,
            "on_link": [UNDERLAY], "uplinks": [uplink],
        },
        "pod_mtu": 1450, "keeps_connections": true,
        "peers":
            { "direct": 0, "tunnel": NODES - 1, "skipped": 0, "rejected": 0, "missing": 0 },
        "reachability": {
            "reachable": NODES - 1 - failing, "degraded": 0, "unreachable": failing, "unknown": 0,
        },
        "groups": [
            { "family": "v4", "backend": "vxlan", "path": "tunnel", "state": "reachable",
                "count": NODES - 1 - failing },
            { "family": "v4", "backend": "vxlan", "path": "tunnel", "state": "unreachable",
                "count": failing },
        ],
        "failing_peers": failing_peers, "quality": { "Lost": 1, "RoundTrip": 500 },
        "exceptions": [], "exceptions_total": 0, "refresh_seconds": 250,
        "daemon": { "started": "2026-11-23T12:00:00Z", "ready": true },
    })
}

fn unreachable(peer: Peer) -> Value {
    json!({
        "lease": format!("{}-24", peer.base()), "family": "v4", "state": "unreachable",
        "cause": "peer-silent", "since": "2026-11-23T14:58:00Z",
    })
}
