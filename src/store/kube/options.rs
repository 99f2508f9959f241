//! How to reach the API server, and which node is ours.

use std::path::PathBuf;

use super::annotations::AnnotationPrefix;

/// What the daemon is told about Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeOptions {
    pub api: ApiOptions,
    pub annotation_prefix: AnnotationPrefix,
    pub node: NodeRef,
    /// The pod that the daemon runs in, where that is known.
    pub pod: Option<PodRef>,
    /// Where secrets and reports lie; none means where the pod lives.
    pub namespace: Option<String>,
    /// Where the network config is mounted.
    pub net_config: PathBuf,
    pub condition: Condition,
}

/// How to reach the API servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiOptions {
    /// `https://10.0.0.10:6443`; if there are none, the cluster's own or those of `kubeconfig`.
    pub urls: Vec<String>,
    /// None means the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
}

/// Which Node this host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRef {
    Name(String),
    /// The one that this pod runs on.
    OfPod {
        namespace: String,
        name: String,
    },
}

/// A pod of our namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub name: String,
    pub uid: String,
}

/// What becomes of the condition `NetworkUnavailable` of our node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is cleared once packets get through.
    Cleared,
    Untouched,
}
