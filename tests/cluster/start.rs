//! Two nodes start, and their pods reach each other.

use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Family, Path, eventually};

use crate::cluster::Cluster;

/// A peer that has come is routed in milliseconds; this is for a busy machine.
const SOON: Duration = Duration::from_secs(5);
const NETWORK: &str = "10.244.0.0/16";

fn pods_reach_each_other(backend: &str, path: Path) -> Result<()> {
    let config = format!(r#"{{"Network":"{NETWORK}","Backend":{{"Type":"{backend}"}}}}"#);
    let cluster = Cluster::start(2, &config)?;
    let [left, right] = [&cluster.nodes[0], &cluster.nodes[1]];
    let subnet = right.subnet_env()?.subnets()[0];
    eventually(SOON, || {
        let found = left.path_to(subnet)?;
        ensure!(found == path, "the path is {found:?}");
        Ok(())
    })?;
    left.pod()?.ping(right.pod()?.address(Family::V4)?, 56)
}

#[test]
fn pods_reach_each_other_through_the_tunnel() {
    pods_reach_each_other("vxlan", Path::Tunnel).unwrap();
}

#[test]
fn pods_reach_each_other_directly() {
    pods_reach_each_other("host-gw", Path::Direct).unwrap();
}
