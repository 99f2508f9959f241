//! The flags of Kubernetes, and the variables that name the node and the pod.

use super::argv::GivenFlags;
use super::etcd::{is_web, masked};
use super::flags::KubeFlags;
use super::stop::Stop;
use super::values::file;
use crate::store::kube::{AnnotationPrefix, ApiOptions, KubeOptions, NodeRef, PodRef};

/// The options of the store. Stops at values with which no connection is possible.
pub(super) fn options(
    flags: &KubeFlags,
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
    let (api, annotation_prefix) = api(flags, settings)?;
    Ok(KubeOptions {
        api,
        annotation_prefix,
        node,
        pod: pod.map(|(name, uid)| PodRef { name, uid }),
        namespace,
        net_config: file(&flags.net_config)
            .map_err(|allowed| settings.bad_value("net-config-path", &flags.net_config, allowed))?,
        clears_condition: flags.clears_condition,
    })
}

/// The way to the API servers, and the prefix of the annotations there.
pub(super) fn api(
    flags: &KubeFlags,
    settings: &GivenFlags,
) -> Result<(ApiOptions, AnnotationPrefix), Stop> {
    let KubeFlags { api_url: urls, kubeconfig, annotation_prefix: prefix, .. } = flags;
    let urls = urls.iter().flat_map(|list| list.split(',')).map(str::trim);
    let urls = urls.filter(|url| !url.is_empty()).map(|url| api_url(url, settings));
    let (urls, kubeconfig) = (urls.collect::<Result<_, _>>()?, kubeconfig.clone());
    let api = ApiOptions { urls, kubeconfig, ..ApiOptions::default() };
    let wrong = |allowed| settings.bad_value("kube-annotation-prefix", prefix, allowed);
    Ok((api, prefix.parse().map_err(wrong)?))
}

fn api_url(text: &str, settings: &GivenFlags) -> Result<String, Stop> {
    let url = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    match url.parse() {
        Ok(uri) if is_web(&uri) && !text.contains('@') => Ok(url.trim_end_matches('/').to_owned()),
        Ok(_) | Err(_) => {
            Err(settings.bad_value("kube-api-url", masked(text), "https:// with host and port"))
        }
    }
}
