//! The flags of Kubernetes, and the variables that name the node and the pod.

use std::path::PathBuf;

use super::argv::GivenFlags;
use super::etcd::is_web;
use super::flags::KubeFlags;
use super::stop::Stop;
use super::values::file;
use crate::store::kube::{
    AnnotationPrefix, ApiOptions, InvalidPrefix, KubeOptions, NetworkCondition, NodeRef, PodRef,
};

/// The options of the store. Stops at values with which no connection is possible.
pub(super) fn options(
    flags: KubeFlags,
    settings: &GivenFlags,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<KubeOptions, Stop> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let namespace = variable("POD_NAMESPACE");
    let pod = variable("POD_NAME").zip(variable("POD_UID"));
    let node = match (variable("NODE_NAME"), variable("POD_NAME"), namespace.clone()) {
        (Some(name), _, _) => NodeRef::Name(name),
        (None, Some(name), Some(namespace)) => NodeRef::OfPod { namespace, name },
        (None, Some(_) | None, _) => return Err(Stop::NoNodeName),
    };
    let condition = if flags.set_network_unavailable {
        NetworkCondition::Cleared
    } else {
        NetworkCondition::Untouched
    };
    Ok(KubeOptions {
        api: api(flags.api_url, flags.kubeconfig, settings)?,
        annotation_prefix: annotation_prefix(&flags.annotation_prefix, settings)?,
        node,
        pod: pod.map(|(name, uid)| PodRef { name, uid }),
        namespace,
        net_config: file(&flags.net_config)
            .map_err(|allowed| settings.bad_value("net-config-path", &flags.net_config, allowed))?,
        condition,
    })
}

pub(super) fn annotation_prefix(
    text: &str,
    settings: &GivenFlags,
) -> Result<AnnotationPrefix, Stop> {
    text.parse().map_err(|allowed: InvalidPrefix| {
        settings.bad_value("kube-annotation-prefix", text, allowed.to_string())
    })
}

pub(super) fn api(
    urls: Option<String>,
    kubeconfig: Option<PathBuf>,
    settings: &GivenFlags,
) -> Result<ApiOptions, Stop> {
    let list = urls.unwrap_or_default();
    let urls = list.split(',').map(str::trim).filter(|url| !url.is_empty());
    let urls = urls.map(|url| api_url(url, settings)).collect::<Result<_, _>>()?;
    Ok(ApiOptions { urls, kubeconfig })
}

fn api_url(text: &str, settings: &GivenFlags) -> Result<String, Stop> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    match url.parse() {
        Ok(uri) if is_web(&uri) && !text.contains('@') => Ok(url.trim_end_matches('/').to_owned()),
        Ok(_) | Err(_) => {
            Err(settings.bad_value("kube-api-url", text, "https:// with host and port"))
        }
    }
}
