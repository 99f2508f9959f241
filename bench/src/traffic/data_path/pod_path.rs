//! Two nodes on a segment with a pod each, and the path between the pods.

use anyhow::{Context, Result};
use tweed_lab::{Backend, Binaries, Family, Lab, Node, Pod, SubnetEnv};

use crate::instruments::peer::CONFIG;

const NETWORK: &str = "10.244.0.0/16";

pub(super) struct PodPath {
    pub(super) from: Pod,
    pub(super) to: Pod,
    // Ends the daemons and removes everything when it is dropped.
    _lab: Lab,
}

impl PodPath {
    /// Static routes, as an administrator sets them.
    pub(super) fn bare() -> Result<Self> {
        let lab = Lab::bare()?;
        let nodes = nodes(&lab)?;
        let [from, to] = [(&nodes[0], 1), (&nodes[1], 2)].map(|(node, it)| node.pod_in(&env(it)?));
        connect(&nodes[0], &nodes[1], 2)?;
        connect(&nodes[1], &nodes[0], 1)?;
        Ok(Self { from: from?, to: to?, _lab: lab })
    }

    pub(super) fn with_daemons(binaries: &Binaries, backend: Backend) -> Result<Self> {
        let lab = Lab::new(binaries.clone())?;
        let (nodes, etcd) = (nodes(&lab)?, lab.etcd()?);
        let backend = backend.name();
        let config = format!(r#"{{"Network":"{NETWORK}","Backend":{{"Type":"{backend}"}}}}"#);
        etcd.put(CONFIG, &config)?;
        for node in &nodes {
            node.daemon(&etcd).start()?.wait_ready()?;
        }
        let [from, to] = nodes.each_ref().map(Node::pod);
        Ok(Self { from: from?, to: to?, _lab: lab })
    }
}

fn nodes(lab: &Lab) -> Result<[Node; 2]> {
    let segment = lab.segment("10.99.1.0/24")?;
    Ok([lab.node("n1", &segment)?, lab.node("n2", &segment)?])
}

fn env(number: u8) -> Result<SubnetEnv> {
    Ok(SubnetEnv {
        networks: vec![NETWORK.parse()?],
        gateways: vec![format!("10.244.{number}.1/24").parse()?],
        mtu: 1500,
        masquerade: false,
    })
}

fn connect(from: &Node, to: &Node, number: u8) -> Result<()> {
    let subnet = env(number)?.subnet(Family::V4).context("no subnet")?;
    from.ip(format!("route add {subnet} via {}", to.address(Family::V4)?)).map(drop)
}
