//! The cluster of demo and bench: nodes on a segment, some behind a router, their daemons and pods.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::{
    Binaries, Connections, Daemon, Etcd, EtcdPlan, Family, Flannel, Lab, Matrix, Node, NodePlan,
    PATIENCE, Pair, Path, Ping, Pod, Probe, Proxy, ReversePath, Segment, Worker, eventually, paths,
};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets/";
const REPORTS: &str = "/coreos.com/network/tweed/nodes/";

/// The plan of a cluster: nodes n1, n2, … on one segment, the last ones behind a router.
#[derive(Clone, Copy)]
pub struct Shape {
    pub near: usize,
    pub far: usize,
    /// The number of etcd members.
    pub members: usize,
    pub reverse_path: ReversePath,
    pub reload: Reload,
    /// Additional flags of daemons, by node; repeated from the first if there are more nodes.
    pub flags: &'static [&'static [&'static str]],
    /// The program that handles services, by node likewise; it starts before the daemon.
    pub proxies: &'static [Proxy],
}

/// When daemons apply a changed config.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    Live,
    AtStart,
}

pub struct Cluster {
    lab: Lab,
    pub etcd: Etcd,
    pub segment: Segment,
    shape: Shape,
    nodes: Vec<Node>,
    daemons: Vec<Daemon>,
    /// The names of the nodes behind the router.
    beyond: BTreeSet<String>,
    flannel: Option<(String, Flannel)>,
}

/// The fields of a lease that are shown.
#[derive(Deserialize)]
struct Lease {
    #[serde(rename = "PublicIP")]
    public_ip: String,
    #[serde(rename = "BackendType")]
    backend: String,
}

/// The fields of a node's report that are used.
#[derive(Deserialize)]
struct Report {
    mixed: bool,
}

impl Shape {
    pub const fn of(near: usize, far: usize) -> Self {
        let (reverse_path, reload) = (ReversePath::Off, Reload::Live);
        Self { near, far, members: 1, reverse_path, reload, flags: &[], proxies: &[] }
    }
}

impl Cluster {
    /// Has no daemons yet.
    pub fn build(binaries: Binaries, shape: Shape) -> Result<Self> {
        let lab = Lab::new(binaries)?;
        let etcd = lab.etcd_with(&EtcdPlan::new(shape.members))?;
        let segment = lab.segment("10.99.1.0/24")?;
        let (nodes, daemons, beyond, flannel) = Default::default();
        let mut cluster = Self { lab, etcd, segment, shape, nodes, daemons, beyond, flannel };
        for _ in 0..shape.near {
            cluster.add_node(&cluster.segment.clone())?;
        }
        if shape.far > 0 {
            cluster.build_far()?;
        }
        Ok(cluster)
    }

    fn build_far(&mut self) -> Result<()> {
        let far = self.lab.segment("10.99.2.128/25")?;
        self.lab.router("router", &[&self.segment, &far])?;
        for _ in 0..self.shape.far {
            let name = self.add_node(&far)?;
            self.beyond.insert(name);
        }
        Ok(())
    }

    /// Adds a node without a daemon; returns its name.
    fn add_node(&mut self, segment: &Segment) -> Result<String> {
        let name = format!("n{}", self.size() + 1);
        let plan = NodePlan::new(&name, segment).reverse_path(self.shape.reverse_path);
        self.nodes.push(self.lab.node_with(&plan)?);
        Ok(name)
    }

    /// Adds a node on the segment, with a daemon and a pod.
    pub fn join(&mut self) -> Result<()> {
        self.add_node(&self.segment.clone())?;
        self.start(self.size() - 1)
    }

    /// Adds a flannel node on the segment, with a pod; no daemon can be started later.
    pub fn join_flannel(&mut self) -> Result<()> {
        let name = self.add_node(&self.segment.clone())?;
        let node = self.node(self.size() - 1)?;
        let (network, subnet) = ("10.244.0.0/16".parse()?, "10.244.250.0/24".parse()?);
        let flannel = Flannel::join(node, &self.etcd, network, subnet)?;
        node.pod()?;
        self.flannel = Some((name, flannel));
        Ok(())
    }

    /// The flannel node, if there is one, applies the present leases.
    pub fn notify_flannel(&self) -> Result<()> {
        self.flannel.iter().try_for_each(|(_, flannel)| flannel.follow(&self.etcd))
    }

    pub fn is_flannel(&self, name: &str) -> bool {
        self.flannel.as_ref().is_some_and(|(flannel, _)| flannel == name)
    }

    /// Whether both nodes are on the segment.
    pub fn are_near(&self, from: &str, to: &str) -> bool {
        ![from, to].iter().any(|name| self.beyond.contains(*name))
    }

    /// Whether no router is between these nodes.
    pub fn are_adjacent(&self, from: &str, to: &str) -> bool {
        self.beyond.contains(from) == self.beyond.contains(to)
    }

    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Name and public IP.
    pub fn describe(&self, index: usize) -> Result<String> {
        let node = self.node(index)?;
        Ok(format!("{} ({})", node.name(), node.address(Family::V4)?))
    }

    pub fn configure(&self, config: &str) -> Result<()> {
        self.etcd.put(CONFIG, config)
    }

    /// Starts the daemon of the next node, and a pod.
    pub fn start(&mut self, index: usize) -> Result<()> {
        let node = self.node(index)?;
        let reload = format!("--config-reload={}", self.shape.reload == Reload::Live);
        if let Some(proxy) = self.shape.proxies.iter().cycle().nth(index) {
            node.sync_services(*proxy, &[])?;
        }
        let flags = self.shape.flags.iter().cycle().nth(index).copied().unwrap_or_default();
        let plan = node.daemon(&self.etcd).argument(reload);
        let daemon = flags.iter().fold(plan, |plan, flag| plan.argument(*flag)).start()?;
        daemon.wait_ready()?;
        node.pod()?;
        self.daemons.push(daemon);
        Ok(())
    }

    pub fn start_all(&mut self) -> Result<()> {
        (self.daemons.len()..self.size()).try_for_each(|index| self.start(index))
    }

    pub fn daemon(&mut self, index: usize) -> Result<&mut Daemon> {
        self.daemons.get_mut(index).context("no such daemon")
    }

    /// Waits until the lease of the node no longer uses the tunnel.
    pub fn wait_for_flip(&self, index: usize) -> Result<()> {
        let ip = self.node(index)?.address(Family::V4)?.to_string();
        let flipped =
            |(_, lease): &(String, Lease)| lease.public_ip == ip && lease.backend == "host-gw";
        let is_published = || {
            let flipped_ip = self.read_leases()?.iter().any(flipped);
            ensure!(flipped_ip, "the lease of {ip} is not host-gw yet");
            Ok(())
        };
        eventually(PATIENCE, is_published).map(drop)
    }

    /// Waits until every daemon reports that Mixed is on, or off.
    pub fn wait_for_mixed(&self, wanted: bool) -> Result<()> {
        let all_mix = || {
            let reports = self.etcd.list(REPORTS)?;
            let mixes = |entry: &crate::Entry| serde_json::from_str::<Report>(&entry.value);
            let reports = reports.iter().map(mixes).collect::<Result<Vec<_>, _>>()?;
            let count = reports.iter().filter(|report| report.mixed == wanted).count();
            ensure!(count == self.daemons.len(), "only {count} nodes have Mixed {wanted} yet");
            Ok(())
        };
        eventually(PATIENCE, all_mix).map(drop)
    }

    /// Waits until every path is as `wanted` for the names of its two nodes.
    pub fn wait_for(&self, wanted: impl Fn(&str, &str) -> Path) -> Result<()> {
        eventually(PATIENCE, || {
            let paths = self.paths()?;
            let wrong = paths.cells().find(|(from, to, is)| wanted(from, to) != **is);
            let text = wrong.map(|(from, to, is)| format!("the path {from} → {to} is {is}"));
            ensure!(text.is_none(), text.unwrap_or_default());
            Ok(())
        })
        .map(drop)
    }

    pub fn paths(&self) -> Result<Matrix<Path>> {
        paths(&self.nodes, Family::V4)
    }

    pub fn pings(&self) -> Result<Matrix<Ping>> {
        self.lab.ping_matrix(Family::V4)
    }

    pub fn pods(&self) -> Vec<Pod> {
        self.lab.pods()
    }

    pub fn pairs(&self) -> Vec<Pair> {
        self.lab.pairs(Family::V4)
    }

    /// Connections from each node that has a daemon to the next one without a router between them,
    /// else to the first.
    pub fn connections(&self) -> Result<Connections> {
        let outside = self.lab.node("outside", &self.segment)?;
        let nodes = self.nodes.get(..self.daemons.len()).unwrap_or_default();
        let is_next = |index: usize| match nodes.get(index..index + 2) {
            Some([from, to]) => self.are_adjacent(from.name(), to.name()),
            _ => false,
        };
        let pairs = (0..nodes.len()).map(|from| (from, if is_next(from) { from + 1 } else { 0 }));
        let workers =
            nodes.iter().cloned().zip(self.lab.pods()).zip(self.shape.proxies.iter().cycle());
        let workers = workers.map(|((node, pod), proxy)| Worker { node, pod, proxy: *proxy });
        Connections::prepare(workers.collect(), pairs, &outside)
    }

    pub fn probe(&self, rate: u32) -> Result<Probe> {
        self.lab.probe(&self.pairs(), rate)
    }

    /// A line per lease.
    pub fn leases(&self) -> Result<String> {
        let mut text = String::new();
        for (subnet, Lease { public_ip, backend }) in self.read_leases()? {
            writeln!(text, "{subnet:<18} {public_ip:<14} {backend}")?;
        }
        Ok(text)
    }

    fn read_leases(&self) -> Result<Vec<(String, Lease)>> {
        let entries = self.etcd.list(SUBNETS)?.into_iter();
        let lease = |entry: crate::Entry| {
            let subnet = entry.key.trim_start_matches(SUBNETS).replacen('-', "/", 1);
            let lease = serde_json::from_str(&entry.value).with_context(|| entry.key.clone())?;
            Ok((subnet, lease))
        };
        entries.map(lease).collect()
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn node(&self, index: usize) -> Result<&Node> {
        self.nodes.get(index).context("no such node")
    }
}
