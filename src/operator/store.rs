//! The store that commands about the whole cluster read and write: its flags, and how it is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tokio::time::timeout;

use super::Error;
use super::node::{self, Unanswered};
use crate::daemon::options;
use crate::store::ClusterStore;
use crate::store::etcd::{EtcdClusterStore, EtcdOptions};
use crate::store::kube::{KubeClusterOptions, KubeClusterStore};
use crate::store::operator::{StoreContents, StoreLocation, Swap, Unavailable};

/// The flags of etcd and of Kubernetes.
#[derive(Debug, Args)]
pub(super) struct StoreFlags {
    #[command(flatten)]
    pub(super) etcd: Etcd,
    #[command(flatten)]
    pub(super) kubernetes: Kubernetes,
}

/// The store that the flags name.
pub(super) enum OperatorStore {
    Etcd(EtcdClusterStore),
    Kubernetes(KubeClusterStore),
}

const ENDPOINTS: &str = "FLANNELD_ETCD_ENDPOINTS";
const PASSWORD: &str = "FLANNELD_ETCD_PASSWORD";

/// The timeout for the daemon's answer about its store: the process may be suspended.
const LOCATED_WITHIN: Duration = Duration::from_secs(2);

/// tweedd's flags of the same names; the defaults are its environment variables.
#[derive(Debug, Args)]
#[command(next_help_heading = "etcd, with the flags of tweedd")]
#[expect(clippy::struct_field_names, reason = "fields are named as the flags are")]
pub(super) struct Etcd {
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
pub(super) struct Kubernetes {
    /// Use Kubernetes instead of etcd
    #[arg(long, global = true)]
    pub(super) kube_subnet_mgr: bool,
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

impl StoreFlags {
    /// The store of the daemon behind `socket`, unless the flags or the environment name another.
    pub(super) async fn open(&self, socket: &Path) -> Result<OperatorStore, Error> {
        Ok(if self.kubernetes.kube_subnet_mgr {
            OperatorStore::Kubernetes(KubeClusterStore::new(self.kubernetes.options()?))
        } else {
            OperatorStore::Etcd(EtcdClusterStore::new(self.etcd.near(socket).await?))
        })
    }
}

impl ClusterStore for OperatorStore {
    fn config_name(&self) -> String {
        match self {
            Self::Etcd(store) => store.config_name(),
            Self::Kubernetes(store) => store.config_name(),
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Etcd(store) => store.hint(),
            Self::Kubernetes(store) => store.hint(),
        }
    }

    async fn read(&self) -> Result<StoreContents, Unavailable> {
        match self {
            Self::Etcd(store) => store.read().await,
            Self::Kubernetes(store) => store.read().await,
        }
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        match self {
            Self::Etcd(store) => store.swap(seen, text).await,
            Self::Kubernetes(store) => store.swap(seen, text).await,
        }
    }
}

/// The store cannot be used.
pub(super) fn unavailable(store: &impl ClusterStore, Unavailable(why): &Unavailable) -> Error {
    Error::Unavailable(format!("{why}: {}", store.hint()))
}

impl Etcd {
    /// As [`Self::options`], with the store of the daemon behind `socket` as the default, if there is
    /// one. If other servers are named, its values do not apply: they would receive its credentials.
    pub(super) async fn near(&self, socket: &Path) -> Result<EtcdOptions, Error> {
        if self.etcd_endpoints.is_some() || environment(ENDPOINTS).is_some_and(|it| !it.is_empty())
        {
            return self.options();
        }
        let asked = timeout(LOCATED_WITHIN, node::ask::<StoreLocation>(socket, "/store")).await;
        let reason = match asked {
            Ok(Ok(location)) => return self.located(&location, environment),
            Ok(Err(Unanswered::Absent(_))) => return self.options(),
            Ok(Err(unanswered)) => unanswered.to_string(),
            Err(_) => format!("the daemon on {} does not answer", socket.display()),
        };
        // Its store may be another one than the default.
        let advice = "name its store with --etcd-endpoints or --kube-subnet-mgr";
        Err(Error::Unavailable(format!("{reason}: {advice}")))
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
        let value = |name: &str| environment(name).filter(|value| !value.is_empty());
        if let Some(user) = username.as_ref().filter(|_| value(PASSWORD).is_none()) {
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
        self.options_by(|name| value(name).or_else(|| default(name)))
    }

    /// The options by flags and environment.
    pub(super) fn options(&self) -> Result<EtcdOptions, Error> {
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
    pub(super) fn options(&self) -> Result<KubeClusterOptions, Error> {
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
