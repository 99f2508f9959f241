//! Services with one pod each, and the rules by which a node forwards their packets to that pod.

mod iptables;
mod nftables;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::network::address::Family;
use crate::node::Node;

/// The addresses of all services, which no link has.
pub(crate) const fn service_range(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.96.0.0/16",
        Family::V6 => "fd96::/112",
    }
}

/// A cluster IP and a port of every node, both for one port of one pod.
#[derive(Clone, Debug)]
pub struct Service {
    pub name: String,
    pub address: SocketAddr,
    pub node_port: u16,
    pub pod: SocketAddr,
}

/// The program that handles services on a node, and its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// No program: rules that change only the destination; the route daemon may change the source.
    Plain,
    /// kube-proxy in its iptables mode, on a host whose iptables writes to nftables.
    KubeIptables,
    /// The same, on a host whose iptables writes to `ip_tables`.
    KubeIptablesLegacy,
    /// kube-proxy in its nftables mode.
    KubeNftables,
}

impl Proxy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "no kube-proxy",
            Self::KubeIptables => "kube-proxy, iptables",
            Self::KubeIptablesLegacy => "kube-proxy, iptables-legacy",
            Self::KubeNftables => "kube-proxy, nftables",
        }
    }
}

impl Node {
    /// A node looks up the route to a service before it translates the address: usually a default
    /// route.
    pub fn route_to_services(&self, family: Family) -> Result<()> {
        let route = format!("route replace {} dev eth0", service_range(family));
        self.ip(format!("{} {route}", family.flag())).map(drop)
    }

    /// Writes the rules for these services, and replaces those of an earlier call in one
    /// transaction, as kube-proxy does at its start and at every sync. Pods in the networks of
    /// `subnet.env` keep their source address.
    pub fn sync_services(&self, proxy: Proxy, services: &[Service]) -> Result<()> {
        for family in [Family::V4, Family::V6] {
            let of_family = |service: &&Service| Family::of(service.pod.ip()) == family;
            let services: Vec<_> = services.iter().filter(of_family).collect();
            let network = match services.as_slice() {
                [] => String::new(),
                _ => self.pod_network(family)?,
            };
            let rules = Rules { family, network, services };
            match proxy {
                Proxy::Plain => nftables::write(self, &rules.plain()),
                Proxy::KubeNftables => nftables::write(self, &rules.kube_nftables()),
                Proxy::KubeIptables => iptables::write(self, "nft", &rules),
                Proxy::KubeIptablesLegacy => iptables::write(self, "legacy", &rules),
            }
            .with_context(|| format!("rules of {}, {family}", proxy.as_str()))?;
        }
        Ok(())
    }

    fn pod_network(&self, family: Family) -> Result<String> {
        let networks = self.subnet_env()?.networks;
        let found = networks.iter().find(|network| Family::of(network.ip()) == family);
        Ok(found.with_context(|| format!("no {family} network in subnet.env"))?.to_string())
    }

    /// Writes a file for a program that reads rules.
    fn rules_file(&self, rules: &str) -> Result<PathBuf> {
        let path = self.folder().with_extension("services");
        std::fs::write(&path, rules).with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// The inputs of the rules of one family.
struct Rules<'a> {
    family: Family,
    /// Of all pods; unused without services.
    network: String,
    services: Vec<&'a Service>,
}
