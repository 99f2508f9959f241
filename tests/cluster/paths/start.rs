//! Two nodes start, and their pods reach each other.

use anyhow::Result;
use tweed_lab::{Family, Path};

use crate::fixture::cluster::Cluster;

const NETWORK: &str = "10.244.0.0/16";

fn pods_reach_each_other(backend: &str, path: Path) -> Result<()> {
    let config = format!(r#"{{"Network":"{NETWORK}","Backend":{{"Type":"{backend}"}}}}"#);
    let cluster = Cluster::start(2, &config)?;
    cluster.wait_for_paths(|_, _| path)?;
    let [left, right] = [&cluster.nodes[0], &cluster.nodes[1]];
    left.pod()?.reaches(right.pod()?.address(Family::V4)?, 56)
}

#[test]
fn pods_reach_each_other_through_the_tunnel() {
    pods_reach_each_other("vxlan", Path::Tunnel).unwrap();
}

#[test]
fn pods_reach_each_other_directly() {
    pods_reach_each_other("host-gw", Path::Direct).unwrap();
}
