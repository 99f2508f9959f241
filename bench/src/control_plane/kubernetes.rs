//! The cost of a daemon on Kubernetes with thousands of nodes whose kubelets report all the time.

use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{ApiServer, Binaries, Daemon, Lab, eventually};

use crate::instruments::peer::{NETWORK, UNDERLAY, peers};
use crate::report::goal::Goal;
use crate::report::sheet::{Sheet, megabytes, precise, thousands, time};

const NODES: u32 = 5000;
const OWN_SUBNET: &str = "10.128.1.0/24";
/// The number of nodes that report at once, and the time between two such groups: more reports than
/// in any cluster, and no more than the server can send.
const AT_ONCE: usize = 100;
const APART: Duration = Duration::from_millis(25);
/// A daemon that has used no processor time for this time has handled everything.
const QUIET: Duration = Duration::from_millis(500);
/// A daemon that is busy for longer has no rest.
const LIMIT: Duration = Duration::from_secs(120);
/// Processor time that counts as none.
const IDLE: Duration = Duration::from_millis(10);

/// A daemon, and the API server that has its peers.
struct Site {
    server: ApiServer,
    daemon: Daemon,
    names: Vec<String>,
    ready: Duration,
    _lab: Lab,
}

/// Every node reports `rounds` times.
pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let site = Site::start(binaries)?;
    std::thread::sleep(Duration::from_secs(2));
    let started = site.rest()?;
    let (resident, peak) = (site.daemon.resident_kib()?, site.daemon.process().peak_kib()?);
    for round in 0..u64::try_from(rounds)? {
        for some in site.names.chunks(AT_ONCE) {
            for name in some {
                site.server.heartbeat(name, round);
            }
            std::thread::sleep(APART);
        }
    }
    let spent = site.rest()?.saturating_sub(started);
    let beats = u32::try_from(rounds * site.names.len())?;
    let later = site.daemon.resident_kib()?;
    let each = spent / beats;
    let head = [
        "nodes",
        "ready",
        "CPU until then",
        "memory at most",
        "memory later",
        "heartbeats",
        "CPU of each",
        "memory then",
    ];
    sheet.table("Kubernetes", &head)?;
    let memory = |kib| format!("{:.1} MB", megabytes(kib));
    sheet.row(&[
        &thousands(NODES),
        &time(site.ready),
        &time(started),
        &memory(peak),
        &memory(resident),
        &thousands(beats),
        &precise(each),
        &memory(later),
    ])?;
    sheet.goals(&[
        Goal::at_most("5,000 nodes, memory later", megabytes(later), 30.0, "MB"),
        Goal::at_most("a heartbeat", each.as_secs_f64() * 1000.0, 0.1, "ms"),
    ])
}

impl Site {
    fn start(binaries: &Binaries) -> Result<Self> {
        let lab = Lab::new(binaries.clone())?;
        let (server, segment) = (lab.api_server()?, lab.segment(UNDERLAY)?);
        let node = lab.node("n1", &segment)?;
        server.add_node(node.name(), &[OWN_SUBNET]);
        let mut names = Vec::new();
        for peer in peers(0..NODES) {
            let (name, object) = peer.node();
            server.add("/api/v1/nodes", &name, &object);
            names.push(name);
        }
        let config = lab.folder().join("net-conf.json");
        std::fs::write(
            &config,
            format!(r#"{{"Network":"{NETWORK}","Backend":{{"Type":"vxlan"}}}}"#),
        )?;
        let daemon = node.kubernetes_daemon(&server, &config).start()?;
        let ready = daemon.wait_ready()?;
        Ok(Self { server, daemon, names, ready, _lab: lab })
    }

    /// The processor time of the daemon, once it is idle.
    fn rest(&self) -> Result<Duration> {
        let mut spent = self.daemon.process().processor_time()?;
        eventually(LIMIT, || {
            let before = spent;
            std::thread::sleep(QUIET);
            spent = self.daemon.process().processor_time()?;
            ensure!(spent.saturating_sub(before) <= IDLE, "not idle: {before:?}, {spent:?}");
            Ok(())
        })?;
        Ok(spent)
    }
}
