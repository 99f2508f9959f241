//! The flags of Kubernetes, and the variables by which a pod knows where it is.

use std::path::PathBuf;

use super::argv::Settings;
use super::etcd::is_web;
use super::flags::KubeFlags;
use super::stop::Stop;
use super::values::file;
use crate::store::kube::{
    AnnotationPrefix, ApiOptions, Condition, KubeOptions, NoPrefix, NodeRef, PodRef,
};

const API_URL: &str = "kube-api-url";
const ANNOTATION_PREFIX: &str = "kube-annotation-prefix";
const NET_CONFIG: &str = "net-config-path";

/// What the store wants to know. Stops at what could never connect.
pub(super) fn options(
    flags: KubeFlags,
    settings: &Settings,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<KubeOptions, Stop> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let namespace = variable("POD_NAMESPACE");
    let pod = variable("POD_NAME").zip(variable("POD_UID"));
    let node = match (variable("NODE_NAME"), variable("POD_NAME"), &namespace) {
        (Some(name), _, _) => NodeRef::Name(name),
        (None, Some(name), Some(namespace)) => {
            NodeRef::OfPod { namespace: namespace.clone(), name }
        }
        (None, Some(_) | None, _) => return Err(Stop::NoNodeName),
    };
    let condition =
        if flags.set_node_network_unavailable { Condition::Cleared } else { Condition::Untouched };
    Ok(KubeOptions {
        api: api(flags.kube_api_url, flags.kubeconfig_file, settings)?,
        annotation_prefix: annotation_prefix(&flags.kube_annotation_prefix, settings)?,
        node,
        pod: pod.map(|(name, uid)| PodRef { name, uid }),
        namespace,
        net_config: net_config(&flags.net_config_path, settings)?,
        condition,
    })
}

pub(super) fn annotation_prefix(text: &str, settings: &Settings) -> Result<AnnotationPrefix, Stop> {
    text.parse().map_err(|allowed: NoPrefix| Stop::BadValue {
        name: settings.name(ANNOTATION_PREFIX),
        value: text.to_owned(),
        allowed: allowed.to_string(),
    })
}

fn net_config(text: &str, settings: &Settings) -> Result<PathBuf, Stop> {
    file(text).map_err(|allowed| Stop::BadValue {
        name: settings.name(NET_CONFIG),
        value: text.to_owned(),
        allowed: allowed.to_owned(),
    })
}

pub(super) fn api(
    urls: Option<String>,
    kubeconfig: Option<PathBuf>,
    settings: &Settings,
) -> Result<ApiOptions, Stop> {
    let list = urls.unwrap_or_default();
    let urls = list.split(',').map(str::trim).filter(|url| !url.is_empty());
    let urls = urls.map(|url| api_url(url, settings)).collect::<Result<_, _>>()?;
    Ok(ApiOptions { urls, kubeconfig })
}

fn api_url(text: &str, settings: &Settings) -> Result<String, Stop> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    match url.parse() {
        Ok(uri) if is_web(&uri) && !text.contains('@') => Ok(url.trim_end_matches('/').to_owned()),
        Ok(_) | Err(_) => Err(Stop::BadValue {
            name: settings.name(API_URL),
            value: text.to_owned(),
            allowed: "https:// with host and port".to_owned(),
        }),
    }
}
