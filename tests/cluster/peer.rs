//! Peers that exist only in etcd: leases as flannel writes them, and the entries on nodes.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ipnetwork::IpNetwork;
use tweed_lab::{Etcd, Family, Node, Path, eventually};

use crate::cluster::SUBNETS;

/// The nodes on the segment of a cluster have smaller addresses; the segment ends at 10.99.1.254.
const FIRST_ADDRESS: u8 = 100;

/// A peer without a running node.
#[derive(Clone, Debug)]
pub struct Peer {
    pub subnet: IpNetwork,
    pub public_ip: IpAddr,
    pub mac: String,
}

impl Peer {
    /// Peer number `number` of the network 10.244.0.0/16 with nodes on 10.99.1.0/24.
    pub fn numbered(number: u8) -> Self {
        let subnet = format!("10.244.{}.0/24", 100 + number).parse().unwrap();
        let public_ip = IpAddr::from([10, 99, 1, FIRST_ADDRESS + number]);
        Self { subnet, public_ip, mac: format!("02:00:00:00:01:{number:02x}") }
    }

    pub fn key(&self) -> String {
        key(self.subnet)
    }

    pub fn vxlan(&self) -> String {
        vxlan(self.public_ip, &self.mac)
    }

    pub fn host_gw(&self) -> String {
        host_gw(self.public_ip)
    }

    /// The tunnel device that leads to it.
    pub fn device(&self) -> &'static str {
        match Family::of(self.subnet.ip()) {
            Family::V4 => "flannel.1",
            Family::V6 => "flannel-v6.1",
        }
    }

    /// Writes its lease, for VXLAN.
    pub fn join(&self, etcd: &Etcd) -> Result<()> {
        etcd.put(&self.key(), &self.vxlan())
    }

    pub fn leave(&self, etcd: &Etcd) -> Result<()> {
        etcd.delete(&self.key())
    }

    /// Whether `node` sends to it through the tunnel, with all entries that this needs.
    pub fn is_tunnelled_by(&self, node: &Node) -> Result<()> {
        let route = node.route_to(self.subnet)?.with_context(|| format!("no route to {self:?}"))?;
        ensure!(route.gateway == Some(self.subnet.network()) && route.onlink(), "{route:?}");
        let neighbours = node.neighbours(self.device())?;
        let mut macs = neighbours.iter().filter(|it| it.address == self.subnet.network());
        let is_right = |mac: Option<&str>| mac == Some(self.mac.as_str());
        ensure!(macs.any(|it| is_right(it.mac.as_deref()) && it.is_permanent()), "{neighbours:?}");
        let fdb = node.fdb(self.device())?;
        let mut remotes = fdb.iter().filter(|entry| entry.mac == self.mac);
        ensure!(remotes.any(|entry| entry.remote == Some(self.public_ip)), "{fdb:?}");
        Ok(())
    }

    /// Whether `node` sends to it without a tunnel.
    pub fn is_direct_from(&self, node: &Node) -> Result<()> {
        let route = node.route_to(self.subnet)?.with_context(|| format!("no route to {self:?}"))?;
        ensure!(route.gateway == Some(self.public_ip), "{route:?}");
        ensure!(node.path_to(self.subnet)? == Path::Direct, "{route:?}");
        Ok(())
    }

    /// Whether `node` has no entry for it: no route, no neighbour, no FDB entry.
    pub fn is_unknown_to(&self, node: &Node) -> Result<()> {
        ensure!(node.route_to(self.subnet)?.is_none(), "a route to {} is left", self.subnet);
        let neighbours = node.neighbours(self.device())?;
        let mut left = neighbours.iter().filter(|it| it.address == self.subnet.network());
        ensure!(left.all(|it| !it.is_permanent()), "a neighbour is left: {neighbours:?}");
        let fdb = node.fdb(self.device())?;
        ensure!(fdb.iter().all(|entry| entry.mac != self.mac), "an FDB entry is left: {fdb:?}");
        Ok(())
    }

    /// Joins, and waits until all `nodes` send to it.
    pub fn is_followed_by(
        &self,
        nodes: &[Node],
        etcd: &Etcd,
        within: Duration,
    ) -> Result<Duration> {
        self.join(etcd)?;
        eventually(within, || nodes.iter().try_for_each(|node| self.is_tunnelled_by(node)))
    }
}

/// The key of the lease of `subnet`.
pub fn key(subnet: impl Display) -> String {
    format!("{SUBNETS}/{}", subnet.to_string().replace('/', "-"))
}

pub fn vxlan(public_ip: impl Display, mac: &str) -> String {
    format!(
        r#"{{"PublicIP":"{public_ip}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
    )
}

pub fn host_gw(public_ip: impl Display) -> String {
    format!(r#"{{"PublicIP":"{public_ip}","PublicIPv6":null,"BackendType":"host-gw"}}"#)
}

/// The key of the lease that `node` holds, from its subnet file.
pub fn key_of(node: &Node) -> Result<String> {
    let env = node.subnet_env()?;
    Ok(key(env.subnet(Family::V4).context("no IPv4 subnet")?))
}
