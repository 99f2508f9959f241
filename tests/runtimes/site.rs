//! A cluster whose nodes are hosts with the plugin installed.

use std::path::Path;

use anyhow::Result;
use tweed_lab::{Host, Node};

use crate::cluster::{Cluster, ClusterPlan, Stack, program};

pub const VXLAN: &str = r#""Mixed":true,"Backend":{"Type":"vxlan"}"#;
pub const HOST_GW: &str = r#""Mixed":true,"Backend":{"Type":"host-gw"}"#;

/// Nodes of both families with daemons, and on each a runtime.
pub struct Site<R> {
    pub cluster: Cluster,
    pub hosts: Vec<Host>,
    pub runtimes: Vec<R>,
}

impl<R> Site<R> {
    /// `size` nodes that reach each other through the tunnel, each with what `start` starts.
    pub fn start(size: usize, start: impl Fn(&Host) -> Result<R>) -> Result<Self> {
        let plan = ClusterPlan::new(size, &Stack::Dual.config(VXLAN)).stack(Stack::Dual);
        let cluster = plan.start()?;
        let hosts = cluster.nodes.iter().map(boot).collect::<Result<Vec<_>>>()?;
        let runtimes = hosts.iter().map(start).collect::<Result<_>>()?;
        Ok(Self { cluster, hosts, runtimes })
    }
}

/// A host with the plugin and kube-flannel's unchanged config.
pub fn boot(node: &Node) -> Result<Host> {
    let flannel = program("flannel")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let host = Host::boot(node)?;
    host.install_plugin(&flannel, &root.join("config/cni/10-flannel.conflist"))?;
    Ok(host)
}
