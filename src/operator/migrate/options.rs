//! The command line of `tweedctl migrate`, with the flags of the store that holds the config, the
//! leases and the reports.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum, value_parser};

use super::state::Stage;
use crate::daemon::options;
use crate::model::config::{BackendType, canonical};
use crate::operator::Error;
use crate::store::etcd::EtcdOptions;
use crate::store::kube::KubeClusterOptions;

const EXIT_CODES: &str = "\
Every command may be given again, and from any terminal: what is under way
stands in the network config alone, and may be changed there as well.

Exit codes:
  0  done, or done already
  1  the store cannot be used, or holds no config that can be read
  2  the command line is wrong
  3  not possible as things stand; it says why
  4  a pair is worse off than before; it says which, and which way
  5  somebody else has changed the config; nothing was overwritten
  6  written, but some node did not follow in time; it says which";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::operator) struct MigrateOptions {
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) stores: Stores,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// What would change, and what stands in the way; writes nothing
    Plan {
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: BackendType,
        /// Every pair, not only those that are special
        #[arg(long)]
        all: bool,
    },
    #[command(flatten)]
    Order(Order),
    /// How far it is: nodes, pairs, stages; writes nothing
    // In the help, after `start`.
    #[command(display_order = 1)]
    Status {
        /// Again and again, until interrupted
        #[arg(long)]
        watch: bool,
    },
}

/// The commands that write. Each can be given again and again, from any state: what is done already
/// is not done twice.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Order {
    /// Turns Mixed on where it is off, then takes the first nodes over
    Start {
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: BackendType,
        /// Public IPs of the nodes to go first, alone; in Kubernetes their names too
        #[arg(long, value_name = "NODE", num_args = 1.., conflicts_with = "percent")]
        #[arg(value_parser = |name: &str| Ok::<_, Infallible>(canonical(name.to_owned())))]
        canary: Vec<String>,
        /// Share of the nodes to go first [default: 25, or more]
        #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        #[command(flatten)]
        watching: Watching,
    },
    /// On to the next stage: 25, 50, 100 percent
    Next {
        /// To this share instead
        #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        /// Although the migration is paused
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        watching: Watching,
    },
    /// Keeps `next` from going on until it is told to --resume
    Pause,
    /// Takes all nodes back, or those of the last stage
    Rollback {
        /// Only to the stage before
        #[arg(long)]
        one_stage: bool,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Ends it where all are; without Mixed if no pair needs it
    Finish {
        #[command(flatten)]
        waiting: Waiting,
    },
}

/// What to do once a stage is written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Watching {
    /// Watch it for so long: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) hold: Duration,
    /// Go back to the stage before if a pair is worse off
    #[arg(long)]
    pub(super) auto_rollback: bool,
    /// In spite of silent nodes, or of what is wrong already
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct Waiting {
    /// Wait for all nodes to follow for so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(super) timeout: Duration,
}

impl Order {
    /// The stage that the flags of `start` name.
    pub(super) fn stage(&self) -> Option<Stage> {
        let Self::Start { canary, percent, .. } = self else { return None };
        let canaries = || Stage { percent: 0, nodes: canary.clone() };
        percent.map(Stage::percent).or_else(|| (!canary.is_empty()).then(canaries))
    }

    pub(super) fn watching(&self) -> Watching {
        match self {
            Self::Start { watching, .. } | Self::Next { watching, .. } => *watching,
            Self::Rollback { waiting, .. } | Self::Finish { waiting } => {
                Watching { waiting: *waiting, ..Watching::default() }
            }
            Self::Pause => Watching::default(),
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

fn duration(text: &str) -> Result<Duration, &'static str> {
    let seconds = [("s", 1), ("m", 60), ("h", 3600), ("", 1)].into_iter().find_map(|(unit, of)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        Some(number.saturating_mul(of))
    });
    seconds.map(Duration::from_secs).ok_or("a time like 90s, 10m or 1h")
}

#[derive(Debug, Args)]
pub(super) struct Stores {
    #[command(flatten)]
    pub(super) etcd: Etcd,
    #[command(flatten)]
    pub(super) kubernetes: Kubernetes,
}

/// tweedd's flags of the same names; what is not given stands in its environment variables.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where etcd is, as for tweedd")]
#[expect(clippy::struct_field_names, reason = "fields are named as the flags are")]
pub(in crate::operator) struct Etcd {
    /// Servers, separated by commas [default: this host]
    #[arg(long, global = true, value_name = "URLS")]
    etcd_endpoints: Option<String>,
    /// Above the config [default: /coreos.com/network]
    #[arg(long, global = true, value_name = "KEY")]
    etcd_prefix: Option<String>,
    /// Whose certificates to believe
    #[arg(long, global = true, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Our certificate, for servers that ask
    #[arg(long, global = true, value_name = "FILE")]
    etcd_certfile: Option<PathBuf>,
    /// The key of our certificate
    #[arg(long, global = true, value_name = "FILE")]
    etcd_keyfile: Option<PathBuf>,
    /// User; the password is in the environment
    #[arg(long, global = true, value_name = "NAME")]
    etcd_username: Option<String>,
}

/// tweedd's flags of the same names, and where its config is mounted from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where Kubernetes is, as for tweedd")]
pub(super) struct Kubernetes {
    /// Kubernetes instead of etcd
    #[arg(long, global = true)]
    pub(super) kube_subnet_mgr: bool,
    /// API servers, separated by commas [default: those of the kubeconfig]
    #[arg(long, global = true, value_name = "URLS")]
    kube_api_url: Option<String>,
    /// How to reach and convince them [default: as for kubectl, or for a pod]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig_file: Option<PathBuf>,
    /// How annotations begin [default: flannel.alpha.coreos.com]
    #[arg(long, global = true, value_name = "PREFIX")]
    kube_annotation_prefix: Option<String>,
    /// The ConfigMap with net-conf.json
    #[arg(long, global = true, value_name = "NAMESPACE/NAME")]
    #[arg(default_value = "kube-flannel/kube-flannel-cfg")]
    config_map: String,
}

impl Etcd {
    pub(in crate::operator) fn options(&self) -> Result<EtcdOptions, Error> {
        let Etcd { etcd_endpoints, etcd_prefix, etcd_cafile, etcd_certfile, etcd_keyfile, .. } =
            self;
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let given = [
            ("etcd-endpoints", etcd_endpoints.clone()),
            ("etcd-prefix", etcd_prefix.clone()),
            ("etcd-cafile", file(etcd_cafile)),
            ("etcd-certfile", file(etcd_certfile)),
            ("etcd-keyfile", file(etcd_keyfile)),
            ("etcd-username", self.etcd_username.clone()),
        ];
        options::etcd_options(given, |name| std::env::var(name).ok())
            .map_err(|stop| Error::Usage(stop.to_string()))
    }
}

impl Kubernetes {
    pub(super) fn options(&self) -> Result<KubeClusterOptions, Error> {
        let kubeconfig = self.kubeconfig_file.clone().or_else(usual_kubeconfig);
        let given = [
            ("kube-api-url", self.kube_api_url.clone()),
            ("kubeconfig-file", kubeconfig.map(|file| file.display().to_string())),
            ("kube-annotation-prefix", self.kube_annotation_prefix.clone()),
        ];
        let (api, annotation_prefix) =
            options::kube_options(given, |name| std::env::var(name).ok())
                .map_err(|stop| Error::Usage(stop.to_string()))?;
        let (namespace, config_map) = self
            .config_map
            .split_once('/')
            .ok_or_else(|| Error::Usage("--config-map takes NAMESPACE/NAME".to_owned()))?;
        let (namespace, config_map) = (namespace.to_owned(), config_map.to_owned());
        Ok(KubeClusterOptions { api, annotation_prefix, namespace, config_map })
    }
}

/// kubectl's default, unless tweedd's own variable names another file.
fn usual_kubeconfig() -> Option<PathBuf> {
    if std::env::var_os("FLANNELD_KUBECONFIG_FILE").is_some() {
        return None;
    }
    let named = std::env::var("KUBECONFIG").ok().filter(|file| !file.is_empty());
    let at_home = || Some(PathBuf::from(std::env::var("HOME").ok()?).join(".kube/config"));
    named.map(PathBuf::from).or_else(at_home).filter(|file| file.exists())
}
