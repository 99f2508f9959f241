//! Running pods as their node sees them: the ports of their bridge, under the runtime's names.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tweed_netlink::rtnl::link::Link;
use tweed_netlink::rtnl::{address, link};
use tweed_netlink::{Protocol, Socket};

use crate::bridge::Identity;
use crate::host_local::runtime_cache::{self, Cached};

pub use crate::host_local::runtime_cache::RESULTS;

/// A pod that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// `<namespace>/<name>`; the container where the runtime does not know it, else the link.
    pub name: String,
    /// Of its link, in bytes.
    pub mtu: u32,
}

/// The pods whose MTU is not `mtu` behind the bridges with one of `gateways`, by the cache in `results`.
pub fn of_other_mtu(gateways: &[IpAddr], mtu: u32, results: &Path) -> io::Result<Vec<Pod>> {
    let mut host = Socket::open(Protocol::Route)?;
    let addresses = host.list(&address::list(), address::read)?;
    let gateways = addresses.iter().filter(|it| gateways.contains(&it.network.ip()));
    let bridges: BTreeSet<u32> = gateways.map(|gateway| gateway.link).collect();
    let mut others = Vec::new();
    for bridge in bridges {
        let is_other = |port: &Link| port.master == Some(bridge) && port.mtu != mtu;
        let ports = host.list(&link::list_ports(bridge), link::read)?;
        others.extend(ports.into_iter().filter(is_other));
    }
    // Most of the time there are none, and no name is needed.
    let cached = if others.is_empty() { Vec::new() } else { runtime_cache::read(results)? };
    let mut pods: Vec<Pod> = others.iter().map(|port| pod(port, &cached)).collect();
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pods)
}

fn pod(port: &Link, cached: &[Cached]) -> Pod {
    let identity = Identity::of_alias(&port.alias);
    let is_its = |known: &&Cached| {
        known.links.contains(&port.name)
            || identity.as_ref().is_some_and(|it| it.attachment == known.attachment)
    };
    let known = cached.iter().find(is_its);
    let attachment = known.map(|known| &known.attachment);
    let attachment = attachment.or(identity.as_ref().map(|it| &it.attachment));
    let name = known
        .and_then(|known| known.pod.clone())
        .or_else(|| attachment.map(ToString::to_string))
        .unwrap_or_else(|| port.name.clone());
    Pod { name, mtu: port.mtu }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    fn run(lines: &[&str]) {
        for line in lines {
            let status = Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(status.success(), "{line}");
        }
    }

    #[test]
    fn pods_with_another_mtu_are_named_with_all_that_is_known() {
        run(&[
            "link add pods0 type bridge",
            "address add 10.76.0.1/24 dev pods0",
            "link add pods1 mtu 1450 master pods0 type veth peer name peer1",
            "link add pods2 mtu 1450 master pods0 type veth peer name peer2",
            "link set pods2 alias cni:cbr0/c2/eth0",
            "link add pods3 mtu 1450 master pods0 type veth peer name peer3",
            "link add pods4 mtu 1500 master pods0 type veth peer name peer4",
        ]);
        let results = tempfile::tempdir().unwrap();
        let entry = r#"{"containerId": "c1", "ifName": "eth0", "networkName": "cbr0",
            "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]],
            "result": {"interfaces": [{"name": "pods0"}, {"name": "pods1"}]}}"#;
        fs::write(results.path().join("cbr0-c1-eth0"), entry).unwrap();
        let gateways = ["10.76.0.1".parse().unwrap()];
        let others = |mtu| of_other_mtu(&gateways, mtu, results.path()).unwrap();
        let names = |pods: Vec<Pod>| pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>();
        assert_eq!(names(others(1500)), ["eth0 of container c2", "pods3", "shop/web-0"]);
        assert_eq!(others(1450), [Pod { name: "pods4".to_owned(), mtu: 1500 }]);
        let elsewhere = ["10.76.0.2".parse().unwrap()];
        assert_eq!(of_other_mtu(&elsewhere, 1500, results.path()).unwrap(), []);
        run(&["link delete pods0", "link delete pods1", "link delete pods2"]);
        run(&["link delete pods3", "link delete pods4"]);
    }
}
