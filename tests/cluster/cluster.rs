//! The cluster that most tests begin with.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Daemon, Etcd, Lab, Node, Segment};

/// Where the network config lies in etcd.
pub(crate) const CONFIG: &str = "/coreos.com/network/config";
/// Where the leases lie in etcd.
pub(crate) const SUBNETS: &str = "/coreos.com/network/subnets";

/// Nodes on one segment, each with a daemon that is ready.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) segment: Segment,
    pub(crate) etcd: Etcd,
    pub(crate) lab: Lab,
}

/// The binaries under test.
pub(crate) fn binaries() -> Binaries {
    Binaries {
        tweedd: PathBuf::from(env!("CARGO_BIN_EXE_tweedd")),
        tweedctl: PathBuf::from(env!("CARGO_BIN_EXE_tweedctl")),
    }
}

impl Cluster {
    /// `size` nodes named n1, n2, …, with `config` in etcd.
    pub(crate) fn start(size: usize, config: &str) -> Result<Self> {
        let lab = Lab::new(binaries())?;
        let etcd = lab.etcd()?;
        etcd.put(CONFIG, config)?;
        let segment = lab.segment("10.99.1.0/24")?;
        let mut cluster = Self { nodes: Vec::new(), daemons: Vec::new(), segment, etcd, lab };
        for index in 1..=size {
            let node = cluster.lab.node(&format!("n{index}"), &cluster.segment)?;
            cluster.add(node)?;
        }
        Ok(cluster)
    }

    /// Starts a daemon on `node` and waits until it is ready.
    pub(crate) fn add(&mut self, node: Node) -> Result<()> {
        let daemon = node.daemon(&self.etcd).start()?;
        daemon.wait_ready().with_context(|| format!("starting {}", node.name()))?;
        self.nodes.push(node);
        self.daemons.push(daemon);
        Ok(())
    }
}
