//! A node that runs flannel: emulates the lease and entries of flannel's vxlan backend.

use std::net::IpAddr;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;
use serde::Deserialize;

use crate::network::address::{Family, nth};
use crate::node::Node;
use crate::node::subnet_env::SubnetEnv;
use crate::stores::etcd::Etcd;

const SUBNETS: &str = "/coreos.com/network/subnets/";
/// The size of the tunnel's headers in bytes.
const OVERHEAD: u32 = 50;

/// Has a flannel lease and no `Mixed`, answers no probe and sends no report.
#[derive(Debug)]
pub struct Flannel {
    node: Node,
    subnet: IpNetwork,
}

/// The fields of a lease that it reads.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Lease {
    #[serde(rename = "PublicIP")]
    public_ip: IpAddr,
    backend_type: String,
    backend_data: Option<Tunnel>,
}

#[derive(Deserialize)]
struct Tunnel {
    #[serde(rename = "VtepMAC")]
    mac: Option<String>,
}

impl Flannel {
    /// Joins with `subnet` of `network` as this node's lease; the pods' network is IPv4 only.
    pub fn join(node: &Node, etcd: &Etcd, network: IpNetwork, subnet: IpNetwork) -> Result<Self> {
        let ip = node.address(Family::V4)?;
        let kind = format!("type vxlan id 1 dstport 8472 nolearning dev eth0 local {ip}");
        node.ip(format!("link add flannel.1 {kind}"))?;
        node.ip(format!("address add {}/32 dev flannel.1", subnet.network()))?;
        node.ip("link set flannel.1 up")?;
        let link = node.link("flannel.1")?.context("flannel.1 is missing")?;
        let (networks, gateways) = (vec![network], vec![nth(subnet, 1)?]);
        let env =
            SubnetEnv { networks, gateways, mtu: link.mtu.min(1500 - OVERHEAD), masquerade: false };
        std::fs::write(node.subnet_file(), env.to_string())?;
        let tunnel = format!(r#"{{"VNI":1,"VtepMAC":"{}"}}"#, link.mac);
        let lease = format!(
            r#"{{"PublicIP":"{ip}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{tunnel}}}"#
        );
        etcd.put(&format!("{SUBNETS}{}", subnet.to_string().replace('/', "-")), &lease)?;
        let flannel = Self { node: node.clone(), subnet };
        flannel.follow(etcd)?;
        Ok(flannel)
    }

    /// Applies the present leases. The entries of a lease that is no longer vxlan stay.
    pub fn follow(&self, etcd: &Etcd) -> Result<()> {
        for entry in etcd.list(SUBNETS)? {
            let subnet = entry.key.trim_start_matches(SUBNETS).replacen('-', "/", 1);
            let subnet: IpNetwork = subnet.parse().with_context(|| entry.key.clone())?;
            let lease: Lease = serde_json::from_str(&entry.value).context(entry.key)?;
            if lease.backend_type == "vxlan" && subnet != self.subnet {
                self.reach(subnet, &lease)?;
            }
        }
        Ok(())
    }

    fn reach(&self, subnet: IpNetwork, lease: &Lease) -> Result<()> {
        let mac = lease.backend_data.as_ref().and_then(|tunnel| tunnel.mac.as_deref());
        let (mac, base) = (mac.context("a vxlan lease without a VTEP")?, subnet.network());
        let Self { node, .. } = self;
        node.ip(format!("neighbour replace {base} lladdr {mac} nud permanent dev flannel.1"))?;
        node.bridge(format!(
            "fdb replace {mac} dst {} self permanent dev flannel.1",
            lease.public_ip
        ))?;
        node.ip(format!("route replace {subnet} via {base} dev flannel.1 onlink")).map(drop)
    }
}
