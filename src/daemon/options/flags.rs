//! The flags as declared: names, defaults, and help.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use tracing::Level;

use super::etcd::Secret;
use super::values::{
    bit, boolean, checksums, file, level, parsed, percent, port, renew_margin, resync,
};
use crate::model::policy::Checksums;

const ABOUT: &str = "A flannel-compatible route daemon whose nodes may mix backends";
const SYNTAX: &str = "\
A flag has one dash or two, and its value after `=` or a space; a boolean only after `=`.
A flag that is not given is read from the environment: --etcd-prefix from FLANNELD_ETCD_PREFIX.";

#[derive(Debug, Parser)]
#[command(name = "tweedd", about = ABOUT, after_help = SYNTAX)]
#[command(override_usage = "tweedd [--flag=value]...", next_help_heading = "Daemon")]
pub(super) struct Flags {
    /// Written for the CNI plugin
    #[arg(long, value_name = "FILE", default_value = "/run/flannel/subnet.env")]
    #[arg(value_parser = file)]
    pub(super) subnet_file: PathBuf,
    /// What to remember over restarts [default: beside the subnet file, .state.json]
    #[arg(long, value_name = "FILE")]
    pub(super) state_file: Option<PathBuf>,
    /// Where tweedctl asks [default: beside the subnet file, .sock]
    #[arg(long, value_name = "SOCKET")]
    pub(super) control_socket: Option<PathBuf>,
    /// Renew the lease so long before its end
    #[arg(long, value_name = "MINUTES", default_value = "60", value_parser = renew_margin)]
    pub(super) subnet_lease_renew_margin: Duration,
    /// The largest share of the peers that may vanish at once before withdrawal is held
    #[arg(long, value_name = "PERCENT", default_value = "50", value_parser = percent)]
    pub(super) max_withdraw: u8,
    /// Route by nexthop objects where the kernel has them; flannel cannot remove such routes
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) nexthop_objects: bool,
    /// Take edits of the network config in at once; false leaves them to the next start
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) config_reload: bool,
    /// Address of /healthz, /readyz and /metrics; 0.0.0.0 stands for all addresses of both families
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(super) healthz_ip: String,
    /// Port of /healthz, /readyz and /metrics; 0 serves none
    #[arg(long, value_name = "PORT", default_value = "0", value_parser = port)]
    pub(super) healthz_port: u16,
    /// Address of a port that serves /metrics alone
    #[arg(long, value_name = "IP", default_value = "0.0.0.0")]
    pub(super) metrics_ip: String,
    /// Port that serves /metrics alone; 0 serves none
    #[arg(long, value_name = "PORT", default_value = "0", value_parser = port)]
    pub(super) metrics_port: u16,
    /// How much to log: from 2 on what is decided, from 5 on everything
    #[arg(long, value_name = "LEVEL", default_value = "0", value_parser = level)]
    pub(super) v: Level,
    /// Print the version and exit
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    #[arg(hide_default_value = true)]
    version: bool,

    #[command(flatten)]
    pub(super) etcd: EtcdFlags,
    #[command(flatten)]
    pub(super) kube: KubeFlags,
    #[command(flatten)]
    pub(super) interface: InterfaceFlags,
    #[command(flatten)]
    pub(super) policy: PolicyFlags,
    #[command(flatten)]
    pub(super) guard: GuardFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "etcd")]
#[expect(clippy::struct_field_names, reason = "fields are named as the flags are")]
pub(super) struct EtcdFlags {
    /// Servers, separated by commas
    #[arg(long, value_name = "URLS")]
    #[arg(default_value = "http://127.0.0.1:4001,http://127.0.0.1:2379")]
    pub(super) etcd_endpoints: String,
    /// Below this key are the config and the leases
    #[arg(long, value_name = "KEY", default_value = "/coreos.com/network")]
    pub(super) etcd_prefix: String,
    /// Whose certificates to believe
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_cafile: Option<PathBuf>,
    /// Our certificate, for servers that ask
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_certfile: Option<PathBuf>,
    /// The key of our certificate
    #[arg(long, value_name = "FILE")]
    pub(super) etcd_keyfile: Option<PathBuf>,
    /// User, for servers that ask
    #[arg(long, value_name = "NAME")]
    pub(super) etcd_username: Option<String>,
    /// The user's password; better told in the environment
    #[arg(long, value_name = "PASSWORD")]
    pub(super) etcd_password: Option<Secret>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct KubeFlags {
    /// Kubernetes instead of etcd: subnets are the podCIDRs of nodes; see docs/kubernetes.md
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) kube_subnet_mgr: bool,
    /// API servers, separated by commas, tried in random order [default: the cluster's service]
    #[arg(long, value_name = "URLS")]
    pub(super) kube_api_url: Option<String>,
    /// How to reach and convince them [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig_file: Option<PathBuf>,
    /// What the names of our annotations begin with
    #[arg(long, value_name = "PREFIX", default_value = "flannel.alpha.coreos.com")]
    pub(super) kube_annotation_prefix: String,
    /// The network config, mounted from a ConfigMap
    #[arg(long, value_name = "FILE", default_value = "/etc/kube-flannel/net-conf.json")]
    pub(super) net_config_path: String,
    /// Take the mark of a node without network from ours once packets get through
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) set_node_network_unavailable: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Interface")]
pub(super) struct InterfaceFlags {
    /// Name or IP of the interface that faces the peers; repeatable, the first that fits wins
    #[arg(long, value_name = "NAME|IP")]
    pub(super) iface: Vec<String>,
    /// The same by a pattern of IPs, then of names; repeatable, tried after every --iface
    #[arg(long, value_name = "PATTERN")]
    pub(super) iface_regex: Vec<String>,
    /// The interface by which this IP is reached; tried last
    #[arg(long, value_name = "IP")]
    pub(super) iface_can_reach: Option<String>,
    /// What peers send to [default: the interface's address]
    #[arg(long, value_name = "IP", value_parser = parsed::<Ipv4Addr>("an IPv4 address"))]
    pub(super) public_ip: Option<Ipv4Addr>,
    /// The same for IPv6
    #[arg(long, value_name = "IP", value_parser = parsed::<Ipv6Addr>("an IPv6 address"))]
    pub(super) public_ipv6: Option<Ipv6Addr>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Packets beside the routes to peers")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct PolicyFlags {
    /// Give what leaves the pods' network the address of this node; see docs/masquerade.md
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) ip_masq: bool,
    /// Keep source ports where they are free, instead of choosing them at random
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) ip_masq_fully_random_disable: bool,
    /// Accept forwarded packets from and to pods
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) iptables_forward_rules: bool,
    /// Refuse what goes to addresses of this node's subnet that no pod has
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) ip_blackhole_route: bool,
    /// Have rules of iptables, as flanneld does; without it, only if nftables is missing
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) iptables: bool,
    /// Read rules of iptables at this interval; changes in nftables are notified
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = resync)]
    pub(super) iptables_resync: Duration,
    /// The bit of the mark on packets that kube-proxy masquerades; as kube-proxy's own flag says
    #[arg(long, value_name = "BIT", default_value = "14", value_parser = bit)]
    pub(super) iptables_masquerade_bit: u8,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Guards of the tunnel")]
#[expect(clippy::struct_field_names, reason = "fields are named as the flags are")]
pub(super) struct GuardFlags {
    /// Keep its packets out of the table of connections; see docs/tunnel.md
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) tunnel_notrack: bool,
    /// Let nobody send through it but nodes that hold a lease
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) tunnel_drop_strangers: bool,
    /// Drop what pods send to nodes as if it came through it
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean)]
    #[arg(num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    pub(super) tunnel_drop_pods: bool,
    /// Whether its device computes checksums: auto where the kernel would spoil them else, or
    /// computed; keep leaves the device as it is
    #[arg(long, value_name = "auto|computed|keep", default_value = "auto", value_parser = checksums)]
    pub(super) tunnel_checksums: Checksums,
}
