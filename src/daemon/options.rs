//! flanneld's flags and environment, and ours: parsed once, into types.

mod argv;
mod etcd;
mod flags;
mod kube;
mod stop;
mod values;
mod without_effect;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};
use tracing::Level;

pub use self::stop::Stop;

use self::argv::Settings;
use self::flags::{EtcdFlags, Flags, GuardFlags, InterfaceFlags, KubeFlags, PolicyFlags};
use crate::model::entry::Ports;
use crate::model::node::InterfaceOptions;
use crate::model::policy::{
    Connections, Forward, Guard, Masquerade, Pods, Policy, Preference, Strangers,
};
use crate::plan::config_change::Reload;
use crate::store::etcd::EtcdOptions;
use crate::store::kube::{AnnotationPrefix, ApiOptions, KubeOptions};

/// What the operator asked of the daemon. Holds no secret that `Debug` would tell.
#[derive(Clone, Debug)]
pub struct Options {
    pub store: Store,
    pub interface: InterfaceOptions,
    /// What the CNI plugin reads.
    pub subnet_file: PathBuf,
    /// What we remember over restarts.
    pub state_file: PathBuf,
    /// Where `tweedctl` asks.
    pub control_socket: PathBuf,
    /// So long before its end a lease is renewed.
    pub renew_margin: Duration,
    /// Where supervisors ask; none if they are not served.
    pub health: Option<SocketAddr>,
    /// Where monitoring asks for metrics alone; none if they are served next to the health only.
    pub metrics: Option<SocketAddr>,
    /// Percent of the peers that may vanish at once before withdrawal is held.
    pub max_withdraw: u8,
    /// When an edit of the network config is taken in.
    pub reload: Reload,
    /// What is done beside routing.
    pub policy: Policy,
    /// Between two looks at rules of iptables, of whose changes nobody tells.
    pub resync: Duration,
    pub verbosity: Level,
    /// What an operator should change, although the daemon runs with it; also what is ignored or read
    /// differently, as flanneld does it. A sentence each.
    pub warnings: Vec<String>,
}

/// Where leases lie.
#[derive(Clone, Debug)]
pub enum Store {
    Etcd(EtcdOptions),
    Kube(KubeOptions),
}

impl Options {
    /// Parses the words after the program's name as Go does, then what `environment` knows of the
    /// flags that were not among them.
    pub fn parse(
        arguments: impl IntoIterator<Item: Into<OsString>>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Stop> {
        let command = without_effect::declare(Flags::command());
        let mut settings = Settings::read(arguments, &command)?;
        if settings.ask_for_version() {
            return Err(Stop::Version);
        }
        settings.add_environment(&environment, &command);
        let words = settings.words(&command);
        let matches =
            command.try_get_matches_from(words).map_err(|error| settings.blame(&error))?;
        let flags = Flags::from_arg_matches(&matches).map_err(|error| settings.blame(&error))?;
        Self::from_flags(flags, settings, environment)
    }

    fn from_flags(
        flags: Flags,
        mut settings: Settings,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Stop> {
        let store = if flags.kube.kube_subnet_mgr {
            Store::Kube(kube::options(flags.kube, &settings, environment)?)
        } else {
            Store::Etcd(etcd::options(flags.etcd, &mut settings)?)
        };
        if let Store::Etcd(options) = &store {
            let warnings = etcd::warnings(options, &settings);
            settings.warnings.extend(warnings);
        }
        settings.warn_of_bounds("healthz-port", flags.healthz_port.into());
        settings.warn_of_bounds("iptables-resync", flags.policy.iptables_resync.as_secs());
        let interface = interface(flags.interface, flags.nexthop_objects, &mut settings)?;
        let beside = |extension: &str| flags.subnet_file.with_extension(extension);
        Ok(Self {
            state_file: flags.state_file.unwrap_or_else(|| beside("state.json")),
            control_socket: flags.control_socket.unwrap_or_else(|| beside("sock")),
            store,
            interface,
            subnet_file: flags.subnet_file,
            renew_margin: flags.subnet_lease_renew_margin,
            health: endpoint(&flags.healthz_ip, flags.healthz_port, "healthz-ip", &settings)?,
            metrics: endpoint(&flags.metrics_ip, flags.metrics_port, "metrics-ip", &settings)?,
            max_withdraw: flags.max_withdraw,
            reload: if flags.config_reload { Reload::Live } else { Reload::AtStart },
            resync: flags.policy.iptables_resync,
            policy: Policy {
                checksums: flags.guard.tunnel_checksums,
                guard: flags.guard.into(),
                ..flags.policy.into()
            },
            verbosity: flags.v,
            warnings: settings.warnings,
        })
    }
}

/// None on port 0. As for Go's listener, no host stands for all addresses, and a name is resolved.
fn endpoint(
    host: &str,
    port: u16,
    flag: &str,
    settings: &Settings,
) -> Result<Option<SocketAddr>, Stop> {
    if port == 0 {
        return Ok(None);
    }
    // An image of nothing but programs has no list of hosts.
    let known = match host {
        "" => Some(Ipv4Addr::UNSPECIFIED),
        "localhost" => Some(Ipv4Addr::LOCALHOST),
        _ => None,
    };
    if let Some(ip) = known {
        return Ok(Some(SocketAddr::new(ip.into(), port)));
    }
    let addresses: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let first = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
    let wrong = || Stop::BadValue {
        name: settings.name(flag),
        value: host.to_owned(),
        allowed: "an IP address, or a name of this host".to_owned(),
    };
    first.copied().ok_or_else(wrong).map(Some)
}

/// What cannot be used is ignored while another flag names an interface, as in flanneld.
fn interface(
    flags: InterfaceFlags,
    nexthop_objects: bool,
    settings: &mut Settings,
) -> Result<InterfaceOptions, Stop> {
    let (mut regexes, mut unusable) = (Vec::new(), Vec::new());
    let mut refuse = |flag: &str, value: &str, allowed: String, settings: &Settings| {
        let (name, value) = (settings.name(flag), value.to_owned());
        unusable.push(Stop::BadValue { name, value, allowed });
    };
    for pattern in &flags.iface_regex {
        match values::regex(pattern) {
            Ok(regex) => regexes.push(regex),
            Err(allowed) => refuse("iface-regex", pattern, allowed, settings),
        }
    }
    let can_reach = flags.iface_can_reach.as_ref().and_then(|text| {
        let address = text.parse::<IpAddr>();
        if address.is_err() {
            refuse("iface-can-reach", text, "an IP address".to_owned(), settings);
        }
        address.ok()
    });
    let names_none = flags.iface.is_empty() && regexes.is_empty() && can_reach.is_none();
    if names_none && let Some(stop) = unusable.pop() {
        return Err(stop);
    }
    for stop in &unusable {
        settings.ignore(stop);
    }
    Ok(InterfaceOptions {
        names: flags.iface,
        regexes,
        can_reach,
        public_ip: flags.public_ip,
        public_ipv6: flags.public_ipv6,
        plain_routes: !nexthop_objects,
    })
}

/// The flags of etcd alone, for programs that are no daemon.
#[derive(Debug, Parser)]
struct EtcdOnly {
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// Parses the words that are flags of etcd, then what `environment` knows of the others.
pub fn etcd_options(
    words: impl IntoIterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<EtcdOptions, Stop> {
    let (flags, mut settings) = alone::<EtcdOnly>(words, environment)?;
    etcd::options(flags.etcd, &mut settings)
}

/// Some flags of the daemon, for a program that is none.
fn alone<F: CommandFactory + FromArgMatches>(
    words: impl IntoIterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(F, Settings), Stop> {
    let command = F::command();
    let mut settings = Settings::read(words, &command)?;
    settings.add_environment(environment, &command);
    let words = settings.words(&command);
    let matches = command.try_get_matches_from(words).map_err(|error| settings.blame(&error))?;
    let flags = F::from_arg_matches(&matches).map_err(|error| settings.blame(&error))?;
    Ok((flags, settings))
}

/// The flags of Kubernetes alone, likewise.
#[derive(Debug, Parser)]
struct KubeOnly {
    #[command(flatten)]
    kube: KubeFlags,
}

/// Parses the words that are flags of Kubernetes, then what `environment` knows of the others.
pub fn kube_options(
    words: impl IntoIterator<Item = String>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(ApiOptions, AnnotationPrefix), Stop> {
    let (kube, settings) = alone::<KubeOnly>(words, environment)?;
    let flags = kube.kube;
    let api = kube::api(flags.kube_api_url, flags.kubeconfig_file, &settings)?;
    Ok((api, kube::annotation_prefix(&flags.kube_annotation_prefix, &settings)?))
}

impl From<PolicyFlags> for Policy {
    fn from(flags: PolicyFlags) -> Self {
        let random = !flags.ip_masq_fully_random_disable;
        let masquerade = Masquerade {
            ports: if random { Ports::FullyRandom } else { Ports::Kept },
            mark: 1 << flags.iptables_masquerade_bit,
        };
        Self {
            masquerade: flags.ip_masq.then(|| masquerade.clone()),
            marked: masquerade,
            forward: if flags.iptables_forward_rules { Forward::Accept } else { Forward::Leave },
            firewall: if flags.iptables { Preference::Iptables } else { Preference::Any },
            refuse_unused: flags.ip_blackhole_route,
            ..Self::default()
        }
    }
}

impl From<GuardFlags> for Option<Guard> {
    fn from(flags: GuardFlags) -> Self {
        let GuardFlags { tunnel_notrack, tunnel_drop_strangers, tunnel_drop_pods, .. } = flags;
        let guard = Guard {
            connections: if tunnel_notrack { Connections::Untracked } else { Connections::Tracked },
            strangers: if tunnel_drop_strangers { Strangers::Drop } else { Strangers::LetIn },
            pods: if tunnel_drop_pods { Pods::Drop } else { Pods::LetOut },
        };
        Some(guard).filter(Guard::does_something)
    }
}
