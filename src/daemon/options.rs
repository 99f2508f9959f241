//! Parses flags and environment, those of flanneld and our own, into types.

mod argv;
mod etcd;
mod flags;
mod kube;
mod stop;
mod values;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{PathBuf, absolute};

use tracing::Level;

pub use self::stop::Stop;

use self::argv::GivenFlags;
use self::flags::{
    DaemonFlags, EtcdFlags, GuardFlags, InterfaceFlags, KubeFlags, PolicyFlags, VersionFlag,
};
use crate::control::Settings;
use crate::daemon::log::LogFormat;
use crate::model::node::InterfaceOptions;
use crate::model::policy::{Guard, Masquerade, Policy};
use crate::plan::config_change::FormerPods;
use crate::random::random;
use crate::store::etcd::{EtcdOptions, LeaseTimes};
use crate::store::kube::{AnnotationPrefix, ApiOptions, KubeOptions};
use crate::store::operator::StoreLocation;

/// The command line as clap describes it, for manuals. [`Options::parse`] reads it as Go does.
pub fn command() -> clap::Command {
    argv::command(&flags::all())
}

/// The settings of the daemon. `Debug` prints no secret.
#[derive(Clone, Debug)]
pub struct Options {
    pub store: StoreOptions,
    /// For the loop.
    pub control: Settings,
    /// For the CNI plugin.
    pub subnet_file: PathBuf,
    /// The checkpoint, for restarts.
    pub state_file: PathBuf,
    /// For `tweedctl`.
    pub control_socket: PathBuf,
    /// Of a lease in etcd.
    pub lease: LeaseTimes,
    /// Whether the lease is given back when a signal stops the daemon.
    pub release_on_exit: bool,
    /// The endpoint for supervisors; none if it is off.
    pub health: Option<SocketAddr>,
    /// An endpoint with metrics only; none if it is off.
    pub metrics: Option<SocketAddr>,
    pub verbosity: Level,
    pub log_format: LogFormat,
    /// Sentences on settings that an operator should change, and on values that are ignored or read
    /// differently, as by flanneld.
    pub warnings: Vec<String>,
}

/// The store of the leases.
#[derive(Clone, Debug)]
pub enum StoreOptions {
    Etcd(EtcdOptions),
    Kube(KubeOptions),
}

impl StoreOptions {
    /// For programs with another working directory.
    pub fn location(&self) -> StoreLocation {
        let Self::Etcd(options) = self else { return StoreLocation::Kubernetes };
        let file = |path: &Option<PathBuf>| absolute(path.as_ref()?).ok();
        StoreLocation::Etcd {
            endpoints: options.endpoints.clone(),
            prefix: options.prefix.clone(),
            ca_file: file(&options.ca_file),
            cert_file: file(&options.cert_file),
            key_file: file(&options.key_file),
            username: options.credentials.as_ref().map(|it| it.user.clone()),
        }
    }
}

impl Options {
    /// Parses the arguments after the program's name as Go does, then reads flags that are not
    /// given from `environment`.
    pub fn parse(
        arguments: impl IntoIterator<Item: Into<OsString>>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Stop> {
        let flags = flags::all();
        let mut settings = GivenFlags::read(arguments, &flags)?;
        if VersionFlag::read(&settings)?.version {
            return Err(Stop::Version);
        }
        settings.add_environment(&environment, &flags);
        let (daemon, etcd) = (DaemonFlags::read(&settings)?, EtcdFlags::read(&settings)?);
        let (kube, interface) = (KubeFlags::read(&settings)?, InterfaceFlags::read(&settings)?);
        let (rules, tunnel) = (PolicyFlags::read(&settings)?, GuardFlags::read(&settings)?);
        let lease = LeaseTimes { ttl: etcd.lease_ttl, renew_margin: daemon.renew_margin };
        let store = if kube.subnet_manager {
            StoreOptions::Kube(kube::options(&kube, &settings, environment)?)
        } else {
            etcd::check_times(lease, &settings)?;
            let options = etcd::options(etcd, &mut settings)?;
            settings.warnings.extend(etcd::warnings(&options, &settings));
            StoreOptions::Etcd(options)
        };
        if daemon.release_on_exit && kube.subnet_manager {
            let name = settings.name("release-on-exit");
            settings.warnings.push(format!("{name} has no effect: Kubernetes assigns the subnets"));
        }
        settings.warn_of_bounds("healthz-port", daemon.healthz_port.into());
        settings.warn_of_bounds("iptables-resync", rules.resync.as_secs());
        let interface = interface_options(interface, daemon.nexthop_objects, &mut settings)?;
        let next_to = |extension: &str| daemon.subnet_file.with_extension(extension);
        let former_pods = match store {
            StoreOptions::Etcd(_) => FormerPods::Leased,
            StoreOptions::Kube(_) => FormerPods::Assigned,
        };
        Ok(Self {
            state_file: daemon.state_file.unwrap_or_else(|| next_to("state.json")),
            control_socket: daemon.control_socket.unwrap_or_else(|| next_to("sock")),
            store,
            control: Settings {
                interface,
                max_withdraw: daemon.max_withdraw,
                reload: daemon.reload,
                former_pods,
                resync: rules.resync,
                policy: policy(&rules, &tunnel),
                jitter: random::<f64>,
            },
            subnet_file: daemon.subnet_file,
            lease,
            release_on_exit: daemon.release_on_exit,
            health: endpoint(&daemon.healthz_ip, daemon.healthz_port, "healthz-ip", &settings)?,
            metrics: endpoint(&daemon.metrics_ip, daemon.metrics_port, "metrics-ip", &settings)?,
            verbosity: daemon.verbosity,
            log_format: daemon.log_format,
            warnings: settings.warnings,
        })
    }
}

/// None on port 0. As for Go's listener, an empty host means all addresses, and a name is resolved.
fn endpoint(
    host: &str,
    port: u16,
    flag: &str,
    settings: &GivenFlags,
) -> Result<Option<SocketAddr>, Stop> {
    if port == 0 {
        return Ok(None);
    }
    let host = match host {
        "" => "0.0.0.0",
        // A minimal image has no /etc/hosts.
        "localhost" => "127.0.0.1",
        host => host,
    };
    let addresses: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let first = addresses.iter().find(|address| address.is_ipv4()).or_else(|| addresses.first());
    let wrong = || settings.bad_value(flag, host, "an IP address, or a name of this host");
    first.copied().ok_or_else(wrong).map(Some)
}

/// A value that cannot be used is ignored if another flag names an interface, as in flanneld.
fn interface_options(
    flags: InterfaceFlags,
    nexthop_objects: bool,
    settings: &mut GivenFlags,
) -> Result<InterfaceOptions, Stop> {
    let (mut regexes, mut unusable) = (Vec::new(), Vec::new());
    for pattern in &flags.patterns {
        match values::regex(pattern) {
            Ok(regex) => regexes.push(regex),
            Err(allowed) => unusable.push(settings.bad_value("iface-regex", pattern, allowed)),
        }
    }
    let can_reach = flags.can_reach.and_then(|text| {
        let wrong = |_| settings.bad_value("iface-can-reach", &text, "an IP address");
        text.parse::<IpAddr>().map_err(wrong).map_err(|stop| unusable.push(stop)).ok()
    });
    let names_none = flags.names.is_empty() && regexes.is_empty() && can_reach.is_none();
    if names_none && let Some(stop) = unusable.pop() {
        return Err(stop);
    }
    for stop in &unusable {
        settings.ignore(stop);
    }
    Ok(InterfaceOptions {
        names: flags.names,
        regexes,
        can_reach,
        public_ip: flags.public_ip,
        public_ipv6: flags.public_ipv6,
        plain_routes: !nexthop_objects,
    })
}

/// A flag of another program, and its value.
pub type Given = (&'static str, Option<String>);

/// The etcd options of another program: the flags that were `given`, and the others from
/// `environment`.
pub fn etcd_options(
    given: impl IntoIterator<Item = Given>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<EtcdOptions, Stop> {
    let mut settings = GivenFlags::of(given);
    settings.add_environment(environment, &EtcdFlags::declared());
    etcd::options(EtcdFlags::read(&settings)?, &mut settings)
}

/// The same for Kubernetes.
pub fn kube_options(
    given: impl IntoIterator<Item = Given>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(ApiOptions, AnnotationPrefix), Stop> {
    let mut settings = GivenFlags::of(given);
    settings.add_environment(environment, &KubeFlags::declared());
    kube::api(&KubeFlags::read(&settings)?, &settings)
}

/// The policy of these flags.
fn policy(flags: &PolicyFlags, tunnel: &GuardFlags) -> Policy {
    let PolicyFlags { ip_masq, ports, forward, refuse_unused, firewall, masquerade_bit, .. } =
        *flags;
    let GuardFlags { conntrack, unknown_sources, pods, checksums } = *tunnel;
    let guard = Guard { conntrack, unknown_sources, pods };
    let marked = Masquerade { ports, mark: 1 << masquerade_bit };
    Policy {
        masquerade: ip_masq.then(|| marked.clone()),
        marked,
        forward,
        firewall,
        refuse_unused,
        guard: Some(guard).filter(Guard::does_something),
        checksums,
    }
}
