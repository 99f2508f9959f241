//! Declares each flag with its name, name of the value, default, help and parser.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::Level;

use super::argv::{Flag, Settings, list, one, optional};
use super::stop::Stop;
use super::values::{
    bit, boolean, checksums, file, level, parsed, percent, port, renew_margin, resync,
};
use crate::model::policy::Checksums;

/// Declares groups of flags under their headings. Each group is a struct of the typed values.
macro_rules! flags {
    ($($heading:literal $group:ident {
        $($(#[doc = $help:literal])+ $field:ident: $type:ty = $kind:ident($($of:expr),+);)+
    })+) => {
        $(
            #[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
            pub(super) struct $group {
                $(pub(super) $field: $type,)+
            }

            impl $group {
                pub(super) fn declared() -> Vec<Flag> {
                    let heading = $heading;
                    vec![$(Flag::new::<$type>(heading, concat!($($help),+), $kind($($of),+))),+]
                }

                pub(super) fn read(settings: &Settings) -> Result<Self, Stop> {
                    Ok(Self { $($field: settings.value($kind($($of),+))?,)+ })
                }
            }
        )+

        pub(super) fn all() -> Vec<Flag> {
            [$($group::declared(),)+ without_effect()].concat()
        }
    };
}

flags! {
    "Daemon" DaemonFlags {
        /// Written for the CNI plugin
        subnet_file: PathBuf = one("subnet-file", "FILE", "/run/flannel/subnet.env", file);
        /// What to remember over restarts [default: beside the subnet file, .state.json]
        state_file: Option<PathBuf> = optional("state-file", "FILE", parsed("a path"));
        /// Where tweedctl asks [default: beside the subnet file, .sock]
        control_socket: Option<PathBuf> = optional("control-socket", "SOCKET", parsed("a path"));
        /// Renew the lease so long before its end
        renew_margin: Duration = one("subnet-lease-renew-margin", "MINUTES", "60", renew_margin);
        /// The largest share of the peers that may vanish at once before withdrawal is held
        max_withdraw: u8 = one("max-withdraw", "PERCENT", "50", percent);
        /// Route by nexthop objects where the kernel has them; flannel cannot remove such routes
        nexthop_objects: bool = one("nexthop-objects", "BOOL", "true", boolean);
        /// Take edits of the network config in at once; false leaves them to the next start
        config_reload: bool = one("config-reload", "BOOL", "true", boolean);
        /// Address of /healthz, /readyz and /metrics; 0.0.0.0 stands for all addresses of both families
        healthz_ip: String = one("healthz-ip", "IP", "0.0.0.0", parsed("a text"));
        /// Port of /healthz, /readyz and /metrics; 0 serves none
        healthz_port: u16 = one("healthz-port", "PORT", "0", port);
        /// Address of a port that serves /metrics alone
        metrics_ip: String = one("metrics-ip", "IP", "0.0.0.0", parsed("a text"));
        /// Port that serves /metrics alone; 0 serves none
        metrics_port: u16 = one("metrics-port", "PORT", "0", port);
        /// How much to log: from 2 on what is decided, from 5 on everything
        verbosity: Level = one("v", "LEVEL", "0", level);
    }

    "Daemon" VersionFlag {
        /// Print the version and exit
        version: bool = one("version", "BOOL", "false", boolean);
    }

    "etcd" EtcdFlags {
        /// Servers, separated by commas
        endpoints: String = one("etcd-endpoints", "URLS", "http://127.0.0.1:4001,http://127.0.0.1:2379", parsed("a text"));
        /// Below this key are the config and the leases
        prefix: String = one("etcd-prefix", "KEY", "/coreos.com/network", parsed("a text"));
        /// Whose certificates to believe
        ca_file: Option<PathBuf> = optional("etcd-cafile", "FILE", parsed("a path"));
        /// Our certificate, for servers that ask
        cert_file: Option<PathBuf> = optional("etcd-certfile", "FILE", parsed("a path"));
        /// The key of our certificate
        key_file: Option<PathBuf> = optional("etcd-keyfile", "FILE", parsed("a path"));
        /// User, for servers that ask
        username: Option<String> = optional("etcd-username", "NAME", parsed("a text"));
        /// The user's password; better told in the environment
        password: Option<String> = optional("etcd-password", "PASSWORD", parsed("a text"));
    }

    "Kubernetes" KubeFlags {
        /// Kubernetes instead of etcd: subnets are the podCIDRs of nodes; see docs/kubernetes.md
        subnet_manager: bool = one("kube-subnet-mgr", "BOOL", "false", boolean);
        /// API servers, separated by commas, tried in random order [default: the cluster's service]
        api_url: Option<String> = optional("kube-api-url", "URLS", parsed("a text"));
        /// How to reach and convince them [default: the pod's service account]
        kubeconfig: Option<PathBuf> = optional("kubeconfig-file", "FILE", parsed("a path"));
        /// What the names of our annotations begin with
        annotation_prefix: String = one("kube-annotation-prefix", "PREFIX", "flannel.alpha.coreos.com", parsed("a text"));
        /// The network config, mounted from a ConfigMap
        net_config: String = one("net-config-path", "FILE", "/etc/kube-flannel/net-conf.json", parsed("a text"));
        /// Take the mark of a node without network from ours once packets get through
        set_network_unavailable: bool = one("set-node-network-unavailable", "BOOL", "true", boolean);
    }

    "Interface" InterfaceFlags {
        /// Name or IP of the interface that faces the peers; repeatable, the first that fits wins
        names: Vec<String> = list("iface", "NAME|IP");
        /// The same by a pattern of IPs, then of names; repeatable, tried after every --iface
        patterns: Vec<String> = list("iface-regex", "PATTERN");
        /// The interface by which this IP is reached; tried last
        can_reach: Option<String> = optional("iface-can-reach", "IP", parsed("a text"));
        /// What peers send to [default: the interface's address]
        public_ip: Option<Ipv4Addr> = optional("public-ip", "IP", parsed("an IPv4 address"));
        /// The same for IPv6
        public_ipv6: Option<Ipv6Addr> = optional("public-ipv6", "IP", parsed("an IPv6 address"));
    }

    "Packets beside the routes to peers" PolicyFlags {
        /// Give what leaves the pods' network the address of this node; see docs/masquerade.md
        ip_masq: bool = one("ip-masq", "BOOL", "false", boolean);
        /// Keep source ports where they are free, instead of choosing them at random
        keep_ports: bool = one("ip-masq-fully-random-disable", "BOOL", "false", boolean);
        /// Accept forwarded packets from and to pods
        forward_rules: bool = one("iptables-forward-rules", "BOOL", "true", boolean);
        /// Refuse what goes to addresses of this node's subnet that no pod has
        blackhole_route: bool = one("ip-blackhole-route", "BOOL", "false", boolean);
        /// Have rules of iptables, as flanneld does; without it, only if nftables is missing
        iptables: bool = one("iptables", "BOOL", "false", boolean);
        /// Read rules of iptables at this interval; changes in nftables are notified
        resync: Duration = one("iptables-resync", "SECONDS", "5", resync);
        /// The bit of the mark on packets that kube-proxy masquerades; as kube-proxy's own flag says
        masquerade_bit: u8 = one("iptables-masquerade-bit", "BIT", "14", bit);
    }

    "Guards of the tunnel" GuardFlags {
        /// Keep its packets out of the table of connections; see docs/tunnel.md
        notrack: bool = one("tunnel-notrack", "BOOL", "true", boolean);
        /// Let nobody send through it but nodes that hold a lease
        drop_strangers: bool = one("tunnel-drop-strangers", "BOOL", "true", boolean);
        /// Drop what pods send to nodes as if it came through it
        drop_pods: bool = one("tunnel-drop-pods", "BOOL", "true", boolean);
        /// Whether its device computes checksums: auto where the kernel would spoil them else, or
        /// computed; keep leaves the device as it is
        checksums: Checksums = one("tunnel-checksums", "auto|computed|keep", "auto", checksums);
    }
}

/// Flags of flanneld that have no effect, since they configure klog.
fn without_effect() -> Vec<Flag> {
    let heading = "Taken as flanneld takes them, without effect";
    let vmodule = optional("vmodule", "TEXT", parsed::<String>("a text"));
    let backtrace = one("log_backtrace_at", "TEXT", ":0", parsed::<String>("a text"));
    vec![
        Flag::new(heading, "Log levels by file", vmodule),
        Flag::new(heading, "Log stack traces", backtrace),
    ]
}
