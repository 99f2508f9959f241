//! Where flannel keeps its leases: etcd, or annotations of Nodes.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tweed_lab::{ApiServer, DaemonPlan, Etcd, Node};

use super::lease::{Lease, PREFIX, pod_cidrs};
use crate::cluster::SUBNETS;

/// The TTL of flannel's leases, in seconds.
const DAY: u32 = 86400;

pub enum Store {
    Etcd(Etcd),
    Kubernetes {
        server: ApiServer,
        /// The network config.
        config: PathBuf,
    },
}

impl Store {
    /// A tweedd that uses this store.
    pub fn daemon(&self, node: &Node) -> DaemonPlan {
        match self {
            Self::Etcd(etcd) => node.daemon(etcd),
            Self::Kubernetes { server, config } => node.kubernetes_daemon(server, config),
        }
    }

    /// The podCIDRs that a node has before any lease is published.
    pub fn assign(&self, node: &Node, subnets: &[IpNetwork]) {
        if let Self::Kubernetes { server, .. } = self {
            let cidrs: Vec<String> = subnets.iter().map(ToString::to_string).collect();
            let cidrs: Vec<&str> = cidrs.iter().map(String::as_str).collect();
            server.add_node(node.name(), &cidrs);
        }
    }

    /// The subnets of this node, if the store has them.
    pub fn subnets_of(&self, node: &Node) -> Result<Option<Vec<IpNetwork>>> {
        match self {
            Self::Etcd(_) => {
                let ours = |lease: &Lease| {
                    let end = lease.ends.first()?;
                    let ip = node.address(tweed_lab::Family::of(end.public_ip)).ok()?;
                    (ip == end.public_ip).then(|| lease.subnets())
                };
                Ok(self.leases(node)?.iter().find_map(ours))
            }
            Self::Kubernetes { server, .. } => {
                let object = server.node(node.name()).context("no such Node")?;
                let cidrs = pod_cidrs(&object).into_iter().map(|cidr| Ok(cidr.parse()?));
                cidrs.collect::<Result<_>>().map(Some)
            }
        }
    }

    /// All leases that flannel can parse, as `node` reads them.
    pub fn leases(&self, node: &Node) -> Result<Vec<Lease>> {
        match self {
            Self::Etcd(etcd) => {
                let entries = etcd.list(&format!("{SUBNETS}/"))?;
                let lease = |entry: tweed_lab::Entry| {
                    let key = entry.key.trim_start_matches(SUBNETS).trim_start_matches('/');
                    Lease::from_etcd(key, &entry.value).context(entry.value)
                };
                entries.into_iter().map(lease).collect()
            }
            Self::Kubernetes { server, .. } => {
                let nodes = list(server, node)?;
                let lease = |node: &Value| Lease::from_node(node).transpose();
                nodes.iter().filter_map(lease).collect()
            }
        }
    }

    /// As flannel does: unconditionally in etcd, and only the differences on a Node.
    pub fn publish(&self, node: &Node, lease: &Lease) -> Result<()> {
        match self {
            Self::Etcd(etcd) => {
                let key = format!("{SUBNETS}/{}", lease.key());
                etcd.put_with_lease(&key, &lease.value(), etcd.grant(DAY)?)
            }
            Self::Kubernetes { server, .. } => {
                for (name, value) in lease.annotations() {
                    if server.annotation(node.name(), name).as_ref() != Some(&value) {
                        server.annotate(node.name(), name, Some(&value));
                    }
                }
                Ok(())
            }
        }
    }

    /// The node leaves, and its record is removed.
    pub fn withdraw(&self, node: &Node, lease: &Lease) -> Result<()> {
        match self {
            Self::Etcd(etcd) => etcd.delete(&format!("{SUBNETS}/{}", lease.key())),
            Self::Kubernetes { server, .. } => {
                server.delete_node(node.name());
                Ok(())
            }
        }
    }

    /// All records, as text.
    pub fn text(&self, node: &Node) -> Result<Vec<String>> {
        match self {
            Self::Etcd(etcd) => {
                let entries = etcd.list(&format!("{SUBNETS}/"))?.into_iter();
                Ok(entries.map(|entry| format!("{} {}", entry.key, entry.value)).collect())
            }
            Self::Kubernetes { server, .. } => Ok(list(server, node)?.iter().map(words).collect()),
        }
    }
}

/// In one request, as any client would.
fn list(server: &ApiServer, node: &Node) -> Result<Vec<Value>> {
    let address: SocketAddr = server.url().trim_start_matches("http://").parse()?;
    let answer = node.namespace().get(address, "/api/v1/nodes")?;
    let list: Value = serde_json::from_str(&answer.body).with_context(|| answer.body.clone())?;
    Ok(list["items"].as_array().context("no list")?.clone())
}

/// Name, podCIDRs and flannel's annotations of a Node.
fn words(node: &Value) -> String {
    let all = node["metadata"]["annotations"].as_object().into_iter().flatten();
    let flannels = all.filter(|(key, _)| key.starts_with(PREFIX));
    let annotations: Vec<String> = flannels.map(|(key, value)| format!("{key}={value}")).collect();
    let (name, cidrs) = (&node["metadata"]["name"], &node["spec"]["podCIDRs"]);
    format!("{name} {cidrs} {}", annotations.join(" "))
}
