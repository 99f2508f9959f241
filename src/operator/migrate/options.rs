//! The command line of `tweedctl migrate`, with the flags of its store.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum, value_parser};
use jiff::SignedDuration;
use tokio::time::timeout;

use crate::daemon::options;
use crate::model::config::{BackendType, canonical};
use crate::operator::{Error, node};
use crate::store::etcd::EtcdOptions;
use crate::store::kube::KubeClusterOptions;
use crate::store::operator::StoreLocation;

const EXIT_CODES: &str = "\
Each command is idempotent and works from any host: the network config holds
the whole state of a migration. You may also edit it directly.

Exit codes:
  0  done, or already done
  1  the store cannot be used, or its config is missing or invalid
  2  the command line is invalid
  3  not possible at present; the reason is printed
  4  possible regression of a pair or node, which is printed
  5  another operator has changed the config; nothing was overwritten
  6  written, but the printed nodes have not applied it in time";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::operator) struct MigrateOptions {
    #[command(subcommand)]
    pub(super) command: MigrateCommand,
    #[command(flatten)]
    pub(super) etcd: Etcd,
    #[command(flatten)]
    pub(super) kubernetes: Kubernetes,
}

#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Shows the changes, and what blocks the migration; writes nothing
    Plan {
        /// New backend of the nodes
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: BackendType,
        /// Show all pairs, not only the first without the preferred path
        #[arg(long)]
        all: bool,
    },
    #[command(flatten)]
    Order(Order),
    /// Shows the progress: nodes, pairs, stages; writes nothing
    // In the help, after `start`.
    #[command(display_order = 1)]
    Status {
        /// Repeat every 2 seconds, until interrupted
        #[arg(long)]
        watch: bool,
    },
}

/// The commands that write. Each is idempotent.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Order {
    /// Turns Mixed on if it is off, then changes the first nodes
    Start(Start),
    /// Continues with the next stage: 25, 50, 100 percent of the nodes
    Next {
        /// Continue with this percentage of the nodes instead
        #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        /// Continue although the migration is paused
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        options: StageOptions,
    },
    /// Makes `next` refuse until `next --resume`
    Pause,
    /// Returns all nodes to the old backend, or those of the last stage
    Rollback {
        /// Return only to the previous stage
        #[arg(long)]
        one_stage: bool,
        #[command(flatten)]
        wait: WaitOptions,
    },
    /// Ends the migration; removes Mixed if no pair needs it
    Finish {
        #[command(flatten)]
        wait: WaitOptions,
    },
}

#[derive(Clone, Debug, Args)]
pub(super) struct Start {
    /// New backend of the nodes
    #[arg(long, value_name = "BACKEND", value_enum)]
    pub(super) to: BackendType,
    /// Nodes to change first, by public IP; in Kubernetes also by name
    #[arg(long, value_name = "NODE", num_args = 1.., conflicts_with = "percent")]
    #[arg(value_parser = |name: &str| Ok::<_, Infallible>(canonical(name.to_owned())))]
    pub(super) canary: Vec<String>,
    /// Percentage of the nodes to change first [default: 25]
    #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
    pub(super) percent: Option<u8>,
    #[command(flatten)]
    pub(super) options: StageOptions,
}

/// What to do once a stage is written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct StageOptions {
    /// Observe the stage for this time: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) hold: Duration,
    /// Return to the previous stage on a possible regression
    #[arg(long)]
    pub(super) auto_rollback: bool,
    /// Continue despite nodes without a report, and present problems
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) wait: WaitOptions,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct WaitOptions {
    /// Maximum time for all nodes to apply the config
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(super) timeout: Duration,
}

impl Order {
    pub(super) fn options(&self) -> StageOptions {
        match self {
            Self::Start(Start { options, .. }) | Self::Next { options, .. } => *options,
            Self::Rollback { wait, .. } | Self::Finish { wait } => {
                StageOptions { wait: *wait, ..StageOptions::default() }
            }
            Self::Pause => StageOptions::default(),
        }
    }
}

impl ValueEnum for BackendType {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}

/// A number needs a unit: otherwise minutes would be taken for seconds.
fn duration(text: &str) -> Result<Duration, &'static str> {
    let time = text.parse::<SignedDuration>().ok();
    let time = time.and_then(|time| Duration::try_from(time).ok());
    time.ok_or("expected a time with a unit, as in 90s, 10m or 1h")
}

const ENDPOINTS: &str = "FLANNELD_ETCD_ENDPOINTS";
const PASSWORD: &str = "FLANNELD_ETCD_PASSWORD";

/// The timeout for the daemon's answer about its store: it may be stopped.
const LOCATED_WITHIN: Duration = Duration::from_secs(2);

/// tweedd's flags of the same names; the defaults are its environment variables.
#[derive(Debug, Args)]
#[command(next_help_heading = "etcd, with the flags of tweedd")]
#[expect(clippy::struct_field_names, reason = "fields are named as the flags are")]
pub(in crate::operator) struct Etcd {
    /// Servers, separated by commas [default: tweedd's]
    #[arg(long, global = true, value_name = "URLS")]
    etcd_endpoints: Option<String>,
    /// Prefix of the keys [default: /coreos.com/network]
    #[arg(long, global = true, value_name = "KEY")]
    etcd_prefix: Option<String>,
    /// CA certificates to verify the servers
    #[arg(long, global = true, value_name = "FILE")]
    etcd_cafile: Option<String>,
    /// Client certificate
    #[arg(long, global = true, value_name = "FILE")]
    etcd_certfile: Option<String>,
    /// Key of the client certificate
    #[arg(long, global = true, value_name = "FILE")]
    etcd_keyfile: Option<String>,
    /// User; the password is read from the environment
    #[arg(long, global = true, value_name = "NAME")]
    etcd_username: Option<String>,
}

/// tweedd's flags of the same names, and where its config is mounted from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes, with the flags of tweedd")]
pub(in crate::operator) struct Kubernetes {
    /// Use Kubernetes instead of etcd
    #[arg(long, global = true)]
    pub(in crate::operator) kube_subnet_mgr: bool,
    /// API servers, separated by commas [default: those of the kubeconfig]
    #[arg(long, global = true, value_name = "URLS")]
    kube_api_url: Option<String>,
    /// Address and credentials [default: those of kubectl, or of the pod]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig_file: Option<String>,
    /// Prefix of the annotations [default: flannel.alpha.coreos.com]
    #[arg(long, global = true, value_name = "PREFIX")]
    kube_annotation_prefix: Option<String>,
    /// The ConfigMap with net-conf.json
    #[arg(long, global = true, value_name = "NAMESPACE/NAME")]
    #[arg(default_value = "kube-flannel/kube-flannel-cfg")]
    config_map: String,
}

impl Etcd {
    /// As [`Self::options`], with the store of the daemon behind `socket` as the default, if there is
    /// one. If other servers are named, its values do not apply: they would receive its credentials.
    pub(in crate::operator) async fn near(&self, socket: &Path) -> Result<EtcdOptions, Error> {
        if self.etcd_endpoints.is_some() || environment(ENDPOINTS).is_some_and(|it| !it.is_empty())
        {
            return self.options();
        }
        match timeout(LOCATED_WITHIN, node::ask::<StoreLocation>(socket, "/store")).await {
            Ok(Ok(location)) => self.located(&location, environment),
            // No daemon, one that is stopped, an older one, or no permission.
            Ok(Err(_)) | Err(_) => self.options(),
        }
    }

    /// The options with `location` as the default of flags and `environment`.
    pub(super) fn located(
        &self,
        location: &StoreLocation,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<EtcdOptions, Error> {
        let StoreLocation::Etcd { endpoints, prefix, ca_file, cert_file, key_file, username } =
            location
        else {
            let hint = "the daemon on this host uses Kubernetes: add --kube-subnet-mgr";
            return Err(Error::Usage(hint.to_owned()));
        };
        let is_set = |name: &str| environment(name).is_some_and(|value| !value.is_empty());
        if let Some(user) = username.as_ref().filter(|_| !is_set(PASSWORD)) {
            let hint = format!("the daemon on this host is user {user} of etcd: set {PASSWORD}");
            return Err(Error::Usage(hint));
        }
        let path = |path: &Option<PathBuf>| Some(path.as_ref()?.display().to_string());
        let default = |name: &str| match name {
            ENDPOINTS => Some(endpoints.join(",")),
            "FLANNELD_ETCD_PREFIX" => Some(prefix.clone()),
            "FLANNELD_ETCD_CAFILE" => path(ca_file),
            "FLANNELD_ETCD_CERTFILE" => path(cert_file),
            "FLANNELD_ETCD_KEYFILE" => path(key_file),
            "FLANNELD_ETCD_USERNAME" => username.clone(),
            _ => None,
        };
        let value = |name: &str| environment(name).filter(|it| !it.is_empty());
        self.options_by(|name| value(name).or_else(|| default(name)))
    }

    /// The options by flags and environment.
    pub(in crate::operator) fn options(&self) -> Result<EtcdOptions, Error> {
        self.options_by(environment)
    }

    fn options_by(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<EtcdOptions, Error> {
        let given = [
            ("etcd-endpoints", self.etcd_endpoints.clone()),
            ("etcd-prefix", self.etcd_prefix.clone()),
            ("etcd-cafile", self.etcd_cafile.clone()),
            ("etcd-certfile", self.etcd_certfile.clone()),
            ("etcd-keyfile", self.etcd_keyfile.clone()),
            ("etcd-username", self.etcd_username.clone()),
        ];
        options::etcd_options(given, environment).map_err(|stop| Error::Usage(stop.to_string()))
    }
}

impl Kubernetes {
    pub(in crate::operator) fn options(&self) -> Result<KubeClusterOptions, Error> {
        let given = [
            ("kube-api-url", self.kube_api_url.clone()),
            ("kubeconfig-file", self.kubeconfig_file.clone().or_else(usual_kubeconfig)),
            ("kube-annotation-prefix", self.kube_annotation_prefix.clone()),
        ];
        let (api, annotation_prefix) = options::kube_options(given, environment)
            .map_err(|stop| Error::Usage(stop.to_string()))?;
        let (namespace, config_map) = self
            .config_map
            .split_once('/')
            .ok_or_else(|| Error::Usage("--config-map takes NAMESPACE/NAME".to_owned()))?;
        let (namespace, config_map) = (namespace.to_owned(), config_map.to_owned());
        Ok(KubeClusterOptions { api, annotation_prefix, namespace, config_map })
    }
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// kubectl's default, unless tweedd's own variable names another file.
fn usual_kubeconfig() -> Option<String> {
    if std::env::var_os("FLANNELD_KUBECONFIG_FILE").is_some() {
        return None;
    }
    let named = environment("KUBECONFIG").filter(|file| !file.is_empty());
    let at_home = || Some(format!("{}/.kube/config", environment("HOME")?));
    named.or_else(at_home).filter(|file| Path::new(file).exists())
}
