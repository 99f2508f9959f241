//! The flags, and what follows from them for this node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use ipnetwork::IpNetwork;
use tweed_netlink::rtnl::address;
use tweed_netlink::{Family, Protocol, Socket};
use tweed_proxy::plan::cluster::{Affinity, NodeAddresses};
use tweed_proxy::plan::ruleset::Policy;

/// Programs Services of Kubernetes in nftables, in the network namespace that it runs in.
#[derive(Debug, Parser)]
#[command(name = "tweed-proxy", version)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Programs the Services of the cluster, and follows all changes of them
    Run(Run),
    /// Programs the Services of a file, and nothing else
    Apply(Apply),
    /// Removes everything that tweed-proxy programmed
    Cleanup,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// Kubeconfig with API server and credentials; without it, the service account of the pod
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URLs of the API servers, separated by commas: not an address that needs a proxy to work
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub(crate) kube_api_url: Vec<String>,
    /// Serve /healthz, /readyz and /metrics on this address, such as 0.0.0.0:10256
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) healthz_bind_address: Option<SocketAddr>,
    /// Serve /metrics on this address, such as 127.0.0.1:10249
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics_bind_address: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// File with Services, endpoint slices, Nodes and Lists in JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) objects: PathBuf,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What is programmed on this node, apart from the objects of the cluster.
#[derive(Debug, Args)]
pub(crate) struct NodeOptions {
    /// Name of this node: its endpoints are local, and its Node has the addresses for node ports
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub(crate) hostname_override: String,
    /// Networks of pods, separated by commas: connections to cluster IPs from other addresses are
    /// masqueraded
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub(crate) cluster_cidr: Vec<IpNetwork>,
    /// Ranges of cluster IPs, separated by commas: packets to addresses of no service are dropped
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub(crate) service_cidr: Vec<IpNetwork>,
    /// Networks of this host's addresses that have node ports, separated by commas; primary: the
    /// first internal address of the Node in each family
    #[arg(long, value_name = "CIDRS|primary", value_delimiter = ',', default_value = PRIMARY)]
    pub(crate) nodeport_addresses: Vec<NodePorts>,
    /// Serve Services with session affinity without it: each connection goes to a random endpoint. By
    /// default, they are left to another proxy on this node, such as kube-proxy
    #[arg(long)]
    pub(crate) ignore_session_affinity: bool,
    /// Masquerade all connections to cluster IPs
    #[arg(long)]
    pub(crate) masquerade_all: bool,
    /// Bit of the packet mark by which other programs know that a packet will be masqueraded
    #[arg(long, value_name = "0..31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    pub(crate) iptables_masquerade_bit: u8,
}

/// Which addresses have node ports.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodePorts {
    Primary,
    Within(IpNetwork),
    None,
}

/// As the kubelet registers the node.
fn node_name(text: &str) -> Result<String, String> {
    let name = text.trim().to_lowercase();
    if name.is_empty() { Err("a name is needed".to_owned()) } else { Ok(name) }
}

impl FromStr for NodePorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            PRIMARY => Ok(Self::Primary),
            "" => Ok(Self::None),
            network => match network.parse() {
                Ok(network) => Ok(Self::Within(network)),
                Err(error) => Err(format!("neither {PRIMARY} nor a network: {error}")),
            },
        }
    }
}

/// The value of `--nodeport-addresses` for what the Node has.
const PRIMARY: &str = "primary";

impl NodeOptions {
    pub(crate) fn policy(&self) -> Policy {
        Policy {
            pods: self.cluster_cidr.clone(),
            services: self.service_cidr.clone(),
            masquerades_all: self.masquerade_all,
            mark: 1 << self.iptables_masquerade_bit,
        }
    }

    pub(crate) const fn affinity(&self) -> Affinity {
        if self.ignore_session_affinity { Affinity::Ignored } else { Affinity::LeftToOthers }
    }

    /// Whether the addresses of the Node decide where node ports are.
    pub(crate) fn has_primary_node_ports(&self) -> bool {
        self.nodeport_addresses.iter().any(|which| matches!(which, NodePorts::Primary))
    }

    /// `internal`: the internal addresses of the Node.
    pub(crate) fn addresses(&self, internal: &[IpAddr]) -> anyhow::Result<NodeAddresses> {
        let of = |family| move |address: &&IpAddr| Family::of(**address) == family;
        let first = |family| internal.iter().find(of(family)).copied();
        let primary: Vec<IpAddr> = Family::ALL.into_iter().filter_map(first).collect();
        let mut for_node_ports = Vec::new();
        for which in &self.nodeport_addresses {
            match which {
                NodePorts::Primary => for_node_ports.extend(&primary),
                NodePorts::Within(network) => {
                    let own = own_addresses()?.into_iter();
                    for_node_ports.extend(own.filter(|one| network.contains(*one)));
                }
                NodePorts::None => {}
            }
        }
        for_node_ports.sort_unstable();
        for_node_ports.dedup();
        Ok(NodeAddresses { primary, for_node_ports })
    }
}

/// Those of this host.
pub(crate) fn own_addresses() -> anyhow::Result<Vec<IpAddr>> {
    let mut socket = Socket::open(Protocol::Route).context("opening netlink")?;
    let all = socket.list(&address::list(), address::read).context("listing addresses")?;
    let all = all.into_iter().map(|one| one.network.ip());
    // The kernel drops packets to its loopback that come from elsewhere.
    Ok(all.filter(|one| !one.is_loopback()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_node_is_written_as_the_kubelet_does() {
        let words = ["tweed-proxy", "run", "--hostname-override", " Worker1.example "];
        let Command::Run(run) = Options::parse_from(words).command else {
            panic!("another command")
        };
        assert_eq!(run.node.hostname_override, "worker1.example");
    }
}
