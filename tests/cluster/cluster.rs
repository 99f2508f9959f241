//! The cluster that most tests start from.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{
    Binaries, Daemon, Entry, Etcd, EtcdPlan, Family, Lab, Node, NodePlan, Path, ReversePath,
    Router, Segment, SegmentPlan, eventually,
};

/// The key of the network config in etcd.
pub const CONFIG: &str = "/coreos.com/network/config";
/// The folder of the leases in etcd.
pub const SUBNETS: &str = "/coreos.com/network/subnets";
/// Timeout for a change to be followed on a busy machine; some changes wait for probe answers.
/// Much shorter than the interval of audits, which repair everything.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// As with flannel: a config is applied only at a daemon's start.
pub const AT_START: &[&str] = &["--config-reload=false"];

/// The address families of nodes and pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    V4,
    V6,
    Dual,
}

/// The plan of a cluster: nodes n1, n2, … on one segment, the last ones behind a router.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    config: String,
    near: usize,
    far: usize,
    stack: Stack,
    reverse_path: ReversePath,
    members: usize,
    flags: &'static [&'static str],
}

/// Nodes, each with a daemon.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub daemons: Vec<Daemon>,
    pub segment: Segment,
    pub router: Option<Router>,
    pub stack: Stack,
    pub etcd: Etcd,
    pub lab: Lab,
    /// For daemons that are started later.
    pub flags: &'static [&'static str],
}

/// The binaries under test.
pub fn binaries() -> Binaries {
    Binaries {
        tweedd: PathBuf::from(env!("CARGO_BIN_EXE_tweedd")),
        tweedctl: PathBuf::from(env!("CARGO_BIN_EXE_tweedctl")),
    }
}

impl Stack {
    pub fn families(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }

    /// The config, with `rest` after the networks: `"Mixed":true,"Backend":{"Type":"vxlan"}`.
    pub fn config(self, rest: &str) -> String {
        let networks = match self {
            Self::V4 => r#""Network":"10.244.0.0/16""#,
            Self::V6 => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48""#,
            Self::Dual => {
                r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#
            }
        };
        format!("{{{networks},{rest}}}")
    }

    pub fn segment(self, number: usize) -> SegmentPlan {
        let (v4, v6) = (format!("10.99.{number}.0/24"), format!("fd99:{number}::/64"));
        match self {
            Self::V4 => SegmentPlan::new(&v4),
            Self::V6 => SegmentPlan::new(&v6),
            Self::Dual => SegmentPlan::new(&v4).and(&v6),
        }
    }
}

impl ClusterPlan {
    /// `near` nodes on one segment.
    pub fn new(near: usize, config: &str) -> Self {
        let (config, stack) = (config.to_owned(), Stack::V4);
        let (reverse_path, members) = (ReversePath::Off, 1);
        Self { config, near, far: 0, stack, reverse_path, members, flags: &[] }
    }

    /// This number of further nodes behind a router.
    #[must_use]
    pub fn far(self, far: usize) -> Self {
        Self { far, ..self }
    }

    #[must_use]
    pub fn stack(self, stack: Stack) -> Self {
        Self { stack, ..self }
    }

    #[must_use]
    pub fn reverse_path(self, reverse_path: ReversePath) -> Self {
        Self { reverse_path, ..self }
    }

    /// The number of etcd members.
    #[must_use]
    pub fn members(self, members: usize) -> Self {
        Self { members, ..self }
    }

    /// Additional flags for every daemon.
    #[must_use]
    pub fn flags(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    /// The nodes without their daemons.
    pub fn build(&self) -> Result<Cluster> {
        let lab = Lab::new(binaries())?;
        let etcd = lab.etcd_with(&EtcdPlan::new(self.members))?;
        etcd.put(CONFIG, &self.config)?;
        let segment = lab.segment(self.stack.segment(1))?;
        let mut nodes = Vec::new();
        let mut add = |count, segment: &Segment| -> Result<()> {
            for _ in 0..count {
                let plan = NodePlan::new(&format!("n{}", nodes.len() + 1), segment);
                nodes.push(lab.node_with(&plan.reverse_path(self.reverse_path))?);
            }
            Ok(())
        };
        add(self.near, &segment)?;
        let router = if self.far > 0 {
            let beyond = lab.segment(self.stack.segment(2))?;
            add(self.far, &beyond)?;
            Some(lab.router("router", &[&segment, &beyond])?)
        } else {
            None
        };
        let (daemons, stack, flags) = (Vec::new(), self.stack, self.flags);
        Ok(Cluster { nodes, daemons, segment, router, stack, etcd, lab, flags })
    }

    /// Nodes with daemons that are ready.
    pub fn start(&self) -> Result<Cluster> {
        let mut cluster = self.build()?;
        cluster.start_daemons()?;
        Ok(cluster)
    }
}

impl Cluster {
    /// `size` nodes on one segment with daemons that are ready, and `config` in etcd.
    pub fn start(size: usize, config: &str) -> Result<Self> {
        ClusterPlan::new(size, config).start()
    }

    /// Starts a daemon on every node that has none, and waits until all are ready.
    pub fn start_daemons(&mut self) -> Result<()> {
        for node in self.nodes.iter().skip(self.daemons.len()) {
            let plan = node.daemon(&self.etcd);
            let plan = self.flags.iter().fold(plan, |plan, flag| plan.argument(*flag));
            self.daemons.push(plan.start()?);
        }
        self.daemons.iter().zip(&self.nodes).try_for_each(|(daemon, node)| {
            daemon.wait_ready().map(drop).with_context(|| format!("starting {}", node.name()))
        })
    }

    /// Starts a daemon on `node` and waits until it is ready.
    pub fn add(&mut self, node: Node) -> Result<()> {
        self.nodes.push(node);
        self.start_daemons()
    }

    /// A pod on every node.
    pub fn start_pods(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.pod().map(drop))
    }

    /// The subnet of node number `index`, counted from 0.
    pub fn subnet(&self, index: usize, family: Family) -> Result<IpNetwork> {
        subnet(&self.nodes[index], family)
    }

    /// The lease of node number `index`, found by the address of its first family.
    pub fn lease(&self, index: usize) -> Result<Entry> {
        let family = self.stack.families()[0];
        let ip = format!("{:?}", self.nodes[index].address(family)?.to_string());
        let entries = self.etcd.list(SUBNETS)?;
        let own = entries.into_iter().find(|entry| entry.value.contains(&ip));
        own.with_context(|| format!("no lease of {ip}"))
    }

    /// Waits until the daemon of node number `index` has saved its checkpoint.
    pub fn wait_for_checkpoint(&self, index: usize) -> Result<()> {
        let path = self.nodes[index].subnet_file().with_extension("state.json");
        let grant = format!("\"grant\":{}", self.lease(index)?.lease);
        let saved = || Ok::<_, anyhow::Error>(std::fs::read_to_string(&path)?.contains(&grant));
        eventually(PATIENCE, saved).map(drop)
    }

    /// Every ordered pair of different nodes, by index.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        pairs(&self.nodes)
    }

    /// Waits until every node uses the `expected` path to every other, in all families.
    pub fn wait_for_paths(&self, expected: impl Fn(usize, usize) -> Path) -> Result<Duration> {
        wait_for_paths(&self.nodes, self.stack, expected)
    }
}

/// Every ordered pair of different nodes, by index.
pub fn pairs(nodes: &[Node]) -> Vec<(usize, usize)> {
    let all = 0..nodes.len();
    let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).collect()
}

/// Waits until every node uses the `expected` path to every other, in all families.
pub fn wait_for_paths(
    nodes: &[Node],
    stack: Stack,
    expected: impl Fn(usize, usize) -> Path,
) -> Result<Duration> {
    let mut wanted = Vec::new();
    for (from, to) in pairs(nodes) {
        for family in stack.families() {
            wanted.push((from, to, subnet(&nodes[to], *family)?));
        }
    }
    eventually(PATIENCE, || {
        wanted.iter().try_for_each(|(from, to, subnet)| {
            let (path, expected) = (nodes[*from].path_to(subnet)?, expected(*from, *to));
            let pair = format!("{} → {}", nodes[*from].name(), nodes[*to].name());
            ensure!(path == expected, "{pair}, {subnet}: {path}, not {expected}");
            Ok(())
        })
    })
}

fn subnet(node: &Node, family: Family) -> Result<IpNetwork> {
    let found = node.subnet_env()?.subnet(family);
    found.with_context(|| format!("{} has no {family:?}", node.name()))
}
