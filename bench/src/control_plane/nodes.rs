//! The cost of `tweedctl nodes` with thousands of nodes, of which none or a hundred are dead.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use etcd_client::{Client, PutOptions};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tweed_lab::{Binaries, Etcd, Lab, Node};

use crate::instruments::peer::{Backend, Peer, SUBNETS, UNDERLAY, peers};
use crate::instruments::script::processor_time_of_children;
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, megabytes, spread, thousands};

const NODES: u32 = 5000;
const REPORTS: &str = "/coreos.com/network/tweed/nodes";
const TTL_SECONDS: i64 = 86_400;
/// Requests to etcd at once, while the cluster is written.
const AT_ONCE: usize = 64;

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let lab = Lab::new(binaries.clone())?;
    let (etcd, segment) = (lab.etcd()?, lab.segment(UNDERLAY)?);
    let node = lab.node("n1", &segment)?;
    sheet.table(
        "All nodes, by `tweedctl nodes`",
        &["nodes", "unreachable peers of each", "reports", "time", "CPU", "memory at most"],
    )?;
    let mut goals = Vec::new();
    for failing in [0, 100] {
        let bytes = node.namespace().within(|| write(&etcd, failing))??;
        let command = || command(binaries, &etcd, &node);
        let mut times = Sample::default();
        let before = processor_time_of_children()?;
        for _ in 0..rounds {
            let started = Instant::now();
            let output = node.namespace().within(|| command().output())??;
            times.add(started.elapsed());
            ensure!(!output.stdout.is_empty(), "{output:?}");
        }
        let spent = processor_time_of_children()?.saturating_sub(before);
        let spent = spent / u32::try_from(rounds)?;
        let peak = peak(node.namespace().within(|| command().spawn())??)?;
        let size = format!("{:.1} MB", megabytes(u64::try_from(bytes / 1024)?));
        sheet.row(&[
            &thousands(NODES),
            &failing,
            &size,
            &spread(&times),
            &format!("{} ms", spent.as_millis()),
            &format!("{:.1} MB", megabytes(peak)),
        ])?;
        let what = format!("{NODES} nodes, {failing} unreachable peers");
        let seconds = times.median().as_secs_f64();
        goals.push(Goal::at_most(format!("{what}, time"), seconds, 1.0, "s"));
        goals.push(Goal::at_most(format!("{what}, memory"), megabytes(peak), 100.0, "MB"));
    }
    sheet.goals(&goals)
}

fn command(binaries: &Binaries, etcd: &Etcd, node: &Node) -> Command {
    let mut command = Command::new(&binaries.tweedctl);
    command.arg("nodes").arg(format!("--etcd-endpoints={}", etcd.endpoints().join(",")));
    command.arg("--subnet-file").arg(node.subnet_file());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The largest memory of a command whose output is larger than a pipe: it then waits for a reader.
fn peak(mut child: Child) -> Result<u64> {
    let mut stdout = child.stdout.take().context("no output")?;
    let mut first = [0];
    stdout.read_exact(&mut first)?;
    let status = format!("/proc/{}/status", child.id());
    let status = std::fs::read_to_string(&status).context(status)?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no peak")?;
    stdout.read_to_end(&mut Vec::new())?;
    child.wait()?;
    Ok(peak.trim().trim_end_matches(" kB").parse()?)
}

/// Writes the lease and the report of each node; returns the size of all reports.
fn write(etcd: &Etcd, failing: u32) -> Result<usize> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = &Client::connect(etcd.endpoints(), None).await?;
        let written = stream::iter(peers(0..NODES)).map(|peer| write_one(client, peer, failing));
        let sizes: Vec<usize> = written.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(sizes.iter().sum())
    })
}

async fn write_one(client: &Client, peer: Peer, failing: u32) -> Result<usize> {
    let mut client = client.clone();
    let grant = client.lease_grant(TTL_SECONDS, None).await?.id();
    let options = || Some(PutOptions::new().with_lease(grant));
    let (key, value) = peer.lease(Backend::Vxlan);
    let id = key.strip_prefix(SUBNETS).context("no lease")?.trim_start_matches('/').to_owned();
    let report = report(peer, &id, failing).to_string();
    client.put(key, value, options()).await?;
    client.put(format!("{REPORTS}/{id}"), report.as_str(), options()).await?;
    Ok(report.len())
}

/// As `tweedd` writes it; the last nodes do not answer.
fn report(peer: Peer, id: &str, failing: u32) -> Value {
    let (base, address) = (peer.base(), peer.address());
    let failing_peers: Vec<Value> = peers(NODES - failing..NODES).map(unreachable).collect();
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
            { "direct": 0, "tunnel": NODES - 1, "left_out": 0, "set_aside": 0, "missing": 0 },
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
