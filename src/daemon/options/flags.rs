//! Declares each flag with its name, name of the value, default, help and parser.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use tracing::Level;

use super::argv::{Flag, GivenFlags, list, one, optional};
use super::stop::Stop;
use super::values::{
    bit, boolean, checksums, either, file, lease_ttl, level, log_format, parsed, percent, port,
    renew_margin, resync,
};
use crate::daemon::log::LogFormat;
use crate::model::entry::Ports;
use crate::model::policy::{Checksums, Conntrack, Forward, Pods, Preference, UnknownSources};
use crate::plan::config_change::Reload;

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

                pub(super) fn read(settings: &GivenFlags) -> Result<Self, Stop> {
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
        /// Subnet file to write for the CNI plugin
        subnet_file: PathBuf = one("subnet-file", "FILE", "/run/flannel/subnet.env", file);
        /// Checkpoint to save for restarts [default: --subnet-file with extension .state.json]
        state_file: Option<PathBuf> = optional("state-file", "FILE", parsed("a path"));
        /// Socket to create for tweedctl [default: --subnet-file with extension .sock]
        control_socket: Option<PathBuf> = optional("control-socket", "SOCKET", parsed("a path"));
        /// Renew the lease this long before it expires, at the latest; with etcd, after a third of its TTL
        renew_margin: Duration = one("subnet-lease-renew-margin", "MINUTES", "60", renew_margin);
        /// Release the lease when a signal stops the daemon (etcd only); drain the node before
        release_on_exit: bool = one("release-on-exit", "BOOL", "false", boolean);
        /// Withdraw at most this share of peers at once; if more vanish, keep their routes for an hour
        max_withdraw: u8 = one("max-withdraw", "PERCENT", "50", percent);
        /// Use nexthop objects for routes if the kernel supports them; flannel cannot remove such routes
        nexthop_objects: bool = one("nexthop-objects", "BOOL", "true", boolean);
        /// Apply edits of the network config at once; if false, at the next start
        reload: Reload = one("config-reload", "BOOL", "true", either(Reload::Live, Reload::AtStart));
        /// Address of /healthz, /readyz and /metrics; 0.0.0.0 means all addresses of both families
        healthz_ip: String = one("healthz-ip", "IP", "0.0.0.0", parsed("a text"));
        /// Port of /healthz, /readyz and /metrics; 0 disables them
        healthz_port: u16 = one("healthz-port", "PORT", "0", port);
        /// Address of the port that serves only /metrics
        metrics_ip: String = one("metrics-ip", "IP", "0.0.0.0", parsed("a text"));
        /// Port that serves only /metrics; 0 disables it
        metrics_port: u16 = one("metrics-port", "PORT", "0", port);
        /// Log level: info below 2, debug from 2, trace from 5
        verbosity: Level = one("v", "LEVEL", "0", level);
        /// Form of the lines of the log: text or json
        log_format: LogFormat = one("log-format", "FORMAT", "text", log_format);
    }

    "Daemon" VersionFlag {
        /// Print the version and exit
        version: bool = one("version", "BOOL", "false", boolean);
    }

    "etcd" EtcdFlags {
        /// Servers of etcd, separated by commas
        endpoints: String = one("etcd-endpoints", "URLS", "http://127.0.0.1:4001,http://127.0.0.1:2379", parsed("a text"));
        /// Key prefix of the config and the leases
        prefix: String = one("etcd-prefix", "KEY", "/coreos.com/network", parsed("a text"));
        /// TTL of the lease: a node that is down for longer loses its subnet
        lease_ttl: Duration = one("subnet-lease-ttl", "MINUTES", "1440", lease_ttl);
        /// CA certificates to verify servers with
        ca_file: Option<PathBuf> = optional("etcd-cafile", "FILE", parsed("a path"));
        /// Client certificate
        cert_file: Option<PathBuf> = optional("etcd-certfile", "FILE", parsed("a path"));
        /// Private key of the client certificate
        key_file: Option<PathBuf> = optional("etcd-keyfile", "FILE", parsed("a path"));
        /// User name
        username: Option<String> = optional("etcd-username", "NAME", parsed("a text"));
        /// Password of the user; any user of the host can read it here, so set FLANNELD_ETCD_PASSWORD instead
        password: Option<String> = optional("etcd-password", "PASSWORD", parsed("a text"));
    }

    "Kubernetes" KubeFlags {
        /// Use Kubernetes instead of etcd, with the podCIDRs of nodes as subnets; see docs/kubernetes.md
        subnet_manager: bool = one("kube-subnet-mgr", "BOOL", "false", boolean);
        /// API servers, separated by commas, tried in random order [default: the cluster's service]
        api_url: Option<String> = optional("kube-api-url", "URLS", parsed("a text"));
        /// Kubeconfig with server and credentials [default: the pod's service account]
        kubeconfig: Option<PathBuf> = optional("kubeconfig-file", "FILE", parsed("a path"));
        /// Prefix of the names of annotations on nodes
        annotation_prefix: String = one("kube-annotation-prefix", "PREFIX", "flannel.alpha.coreos.com", parsed("a text"));
        /// The network config, mounted from a ConfigMap
        net_config: String = one("net-config-path", "FILE", "/etc/kube-flannel/net-conf.json", parsed("a text"));
        /// Clear the condition NetworkUnavailable of this node once it is ready
        clears_condition: bool = one("set-node-network-unavailable", "BOOL", "true", boolean);
    }

    "Interface" InterfaceFlags {
        /// Interface to the peers, by name or IP; repeatable, the first match is used
        names: Vec<String> = list("iface", "NAME|IP");
        /// Interface by a regular expression for its IPs, then its names; repeatable, tried after all --iface
        patterns: Vec<String> = list("iface-regex", "PATTERN");
        /// Interface of the route to this IP; tried last
        can_reach: Option<String> = optional("iface-can-reach", "IP", parsed("a text"));
        /// IPv4 address that peers send to [default: the address of the interface]
        public_ip: Option<Ipv4Addr> = optional("public-ip", "IP", parsed("an IPv4 address"));
        /// IPv6 address that peers send to [default: the address of the interface]
        public_ipv6: Option<Ipv6Addr> = optional("public-ipv6", "IP", parsed("an IPv6 address"));
    }

    "Masquerading and firewall" PolicyFlags {
        /// Masquerade packets from pods to destinations outside the pod network; see docs/masquerade.md
        ip_masq: bool = one("ip-masq", "BOOL", "false", boolean);
        /// Keep the source port of masqueraded packets if it is free, instead of a random one
        ports: Ports = one("ip-masq-fully-random-disable", "BOOL", "false", either(Ports::Kept, Ports::FullyRandom));
        /// Accept forwarded packets from and to pods where FORWARD drops packets by default
        forward: Forward = one("iptables-forward-rules", "BOOL", "true", either(Forward::Accept, Forward::Leave));
        /// Reject packets to unused addresses of this node's subnet
        refuse_unused: bool = one("ip-blackhole-route", "BOOL", "false", boolean);
        /// true: iptables, as in flanneld; false: nftables, or iptables if the kernel lacks nftables
        firewall: Preference = one("iptables", "BOOL", "false", either(Preference::Iptables, Preference::Any));
        /// Interval between reads of iptables rules; nftables sends change notifications
        resync: Duration = one("iptables-resync", "SECONDS", "5", resync);
        /// Bit of the mark on packets that kube-proxy masquerades; the same as kube-proxy's flag
        masquerade_bit: u8 = one("iptables-masquerade-bit", "BIT", "14", bit);
    }

    "Tunnel" GuardFlags {
        /// Exclude tunnel packets from connection tracking (conntrack); see docs/tunnel.md
        conntrack: Conntrack = one("tunnel-notrack", "BOOL", "true", either(Conntrack::Untracked, Conntrack::Tracked));
        /// Drop tunnel packets of hosts that hold no lease
        unknown_sources: UnknownSources = one("tunnel-drop-unknown", "BOOL", "true", either(UnknownSources::Drop, UnknownSources::Accept));
        /// Drop tunnel packets that pods send to nodes
        pods: Pods = one("tunnel-drop-pods", "BOOL", "true", either(Pods::Drop, Pods::Accept));
        /// Checksums of the tunnel device: auto, in software if the offload corrupts them; computed, always
        /// in software; keep, unchanged
        checksums: Checksums = one("tunnel-checksums", "auto|computed|keep", "auto", checksums);
    }
}

/// Flags of flanneld that have no effect, since they configure klog.
fn without_effect() -> Vec<Flag> {
    let heading = "Accepted for compatibility with flanneld, without effect";
    let vmodule = optional("vmodule", "TEXT", parsed::<String>("a text"));
    let backtrace = one("log_backtrace_at", "TEXT", ":0", parsed::<String>("a text"));
    vec![
        Flag::new(heading, "Log levels by file", vmodule),
        Flag::new(heading, "Log stack traces", backtrace),
    ]
}
