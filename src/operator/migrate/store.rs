//! The flags of the store that holds the config, the leases and the reports.

use std::path::PathBuf;

use clap::Args;

use crate::daemon::options;
use crate::operator::Error;
use crate::store::etcd::EtcdOptions;
use crate::store::kube::OperatorOptions;

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
    pub(super) fn options(&self) -> Result<OperatorOptions, Error> {
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
        Ok(OperatorOptions { api, annotation_prefix, namespace, config_map })
    }
}

/// As kubectl finds it, unless tweedd's own variable names one.
fn usual_kubeconfig() -> Option<PathBuf> {
    if std::env::var_os("FLANNELD_KUBECONFIG_FILE").is_some() {
        return None;
    }
    let named = std::env::var("KUBECONFIG").ok().filter(|file| !file.is_empty());
    let at_home = || Some(PathBuf::from(std::env::var("HOME").ok()?).join(".kube/config"));
    named.map(PathBuf::from).or_else(at_home).filter(|file| file.exists())
}
