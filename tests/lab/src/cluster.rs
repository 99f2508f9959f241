//! The cluster of demo and bench: nodes on a segment, one behind a router, their daemons and pods.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tweed_lab::{
    Binaries, Daemon, Etcd, Family, Lab, Matrix, Node, Pair, Path, Ping, Probe, Segment,
    eventually, paths,
};

/// The last node of a cluster with a router.
pub(crate) const BEHIND_ROUTER: &str = "n4";

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const REPORTS: &str = "/coreos.com/network/tweed/nodes/";
const SETTLED: Duration = Duration::from_secs(20);

pub(crate) struct Cluster {
    lab: Lab,
    pub(crate) etcd: Etcd,
    segment: Segment,
    nodes: Vec<Node>,
    daemons: Vec<Daemon>,
    reload: Reload,
}

/// When daemons take an edited config in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reload {
    Live,
    AtStart,
}

/// As much of a lease as people want to see.
#[derive(Deserialize)]
struct Lease {
    #[serde(rename = "PublicIP")]
    public_ip: String,
    #[serde(rename = "BackendType")]
    backend: String,
}

/// As much of what a node reports.
#[derive(Deserialize)]
struct Report {
    mixed: bool,
}

impl Cluster {
    /// Three nodes on one segment and a fourth behind a router.
    pub(crate) fn build(binaries: Binaries) -> Result<Self> {
        let mut cluster = Self::on_one_segment(binaries, 3)?;
        let far = cluster.lab.segment("10.99.2.0/24")?;
        cluster.lab.router("router", &[&cluster.segment, &far])?;
        cluster.nodes.push(cluster.lab.node(BEHIND_ROUTER, &far)?);
        Ok(cluster)
    }

    pub(crate) fn on_one_segment(binaries: Binaries, size: usize) -> Result<Self> {
        let lab = Lab::new(binaries)?;
        let (etcd, segment) = (lab.etcd()?, lab.segment("10.99.1.0/24")?);
        let nodes = (1..=size).map(|number| lab.node(&format!("n{number}"), &segment));
        let (nodes, daemons) = (nodes.collect::<Result<_>>()?, Vec::new());
        Ok(Self { lab, etcd, segment, nodes, daemons, reload: Reload::AtStart })
    }

    /// The same with daemons that follow the config while they run.
    pub(crate) fn live(self) -> Self {
        Self { reload: Reload::Live, ..self }
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Name and public IP.
    pub(crate) fn describe(&self, index: usize) -> Result<String> {
        let node = self.node(index)?;
        Ok(format!("{} ({})", node.name(), node.address(Family::V4)?))
    }

    pub(crate) fn configure(&self, config: &str) -> Result<()> {
        self.etcd.put(CONFIG, config)
    }

    /// The daemon of the next node, and a pod.
    pub(crate) fn start(&mut self, index: usize) -> Result<()> {
        let node = self.node(index)?;
        let reload = format!("--config-reload={}", self.reload == Reload::Live);
        let daemon = node.daemon(&self.etcd).argument(reload).start()?;
        daemon.wait_ready()?;
        node.pod()?;
        self.daemons.push(daemon);
        Ok(())
    }

    pub(crate) fn start_all(&mut self) -> Result<()> {
        (self.daemons.len()..self.size()).try_for_each(|index| self.start(index))
    }

    pub(crate) fn daemon(&mut self, index: usize) -> Result<&mut Daemon> {
        self.daemons.get_mut(index).context("no such daemon")
    }

    /// Waits until the lease of the node says that it has left the tunnel.
    pub(crate) fn wait_for_flip(&self, index: usize) -> Result<()> {
        let ip = self.node(index)?.address(Family::V4)?.to_string();
        let flipped =
            |(_, lease): &(String, Lease)| lease.public_ip == ip && lease.backend == "host-gw";
        let is_told = || {
            let told = self.read_leases()?.iter().any(flipped);
            ensure!(told, "the lease of {ip} is not host-gw yet");
            Ok(())
        };
        eventually(SETTLED, is_told).map(drop)
    }

    /// Waits until every node reports that it mixes.
    pub(crate) fn wait_for_mixed(&self) -> Result<()> {
        let all_mix = || {
            let reports = self.etcd.list(REPORTS)?;
            let mixes = |entry: &tweed_lab::Entry| serde_json::from_str::<Report>(&entry.value);
            let reports = reports.iter().map(mixes).collect::<Result<Vec<_>, _>>()?;
            let count = reports.iter().filter(|report| report.mixed).count();
            ensure!(count == self.size(), "only {count} nodes mix yet");
            Ok(())
        };
        eventually(SETTLED, all_mix).map(drop)
    }

    /// Waits until every path is as `wanted` says of the names of its ends.
    pub(crate) fn wait_for(&self, wanted: impl Fn(&str, &str) -> Path) -> Result<()> {
        eventually(SETTLED, || {
            let paths = self.paths()?;
            let wrong = paths.cells().find(|(from, to, is)| wanted(from, to) != **is);
            let text = wrong.map(|(from, to, is)| format!("the path {from} → {to} is {is}"));
            ensure!(text.is_none(), text.unwrap_or_default());
            Ok(())
        })
        .map(drop)
    }

    pub(crate) fn paths(&self) -> Result<Matrix<Path>> {
        paths(&self.nodes, Family::V4)
    }

    pub(crate) fn pings(&self) -> Result<Matrix<Ping>> {
        self.lab.ping_matrix(Family::V4)
    }

    pub(crate) fn pairs(&self) -> Vec<Pair> {
        self.lab.pairs(Family::V4)
    }

    pub(crate) fn probe(&self, rate: u32) -> Result<Probe> {
        self.lab.probe(&self.pairs(), rate)
    }

    /// A line per lease.
    pub(crate) fn leases(&self) -> Result<String> {
        let mut text = String::new();
        for (subnet, Lease { public_ip, backend }) in self.read_leases()? {
            writeln!(text, "{subnet:<18} {public_ip:<14} {backend}")?;
        }
        Ok(text)
    }

    fn read_leases(&self) -> Result<Vec<(String, Lease)>> {
        let entries = self.etcd.list(SUBNETS)?.into_iter();
        let lease = |entry: tweed_lab::Entry| {
            let subnet = entry.key.trim_start_matches(SUBNETS).replacen('-', "/", 1);
            let lease = serde_json::from_str(&entry.value).with_context(|| entry.key.clone())?;
            Ok((subnet, lease))
        };
        entries.map(lease).collect()
    }

    pub(crate) fn node(&self, index: usize) -> Result<&Node> {
        self.nodes.get(index).context("no such node")
    }
}
