//! Leases in Kubernetes: each node's podCIDRs, published in flannel's annotations.

mod annotations;
mod documents;
mod lease;
mod node;
mod operator;
mod own;
mod request;
mod watch;

pub use annotations::AnnotationPrefix;
#[doc(hidden)]
pub use node::read_node;
pub use operator::{KubeClusterOptions, KubeClusterStore};
pub use tweed_client::api::ApiOptions;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Mutex, watch as channel};
use tweed_client::api::{self, Program};

use self::own::OurNode;
use super::hold::Losses;
use super::report::Report;
use crate::model::prefix::Prefix;

type ApiClient = api::Client<Report>;

/// How to reach Kubernetes, and the identity of this node.
#[derive(Clone, Debug)]
pub struct KubeOptions {
    pub api: ApiOptions,
    pub annotation_prefix: AnnotationPrefix,
    pub node: NodeRef,
    /// The pod of this daemon, if known.
    pub pod: Option<PodRef>,
    /// The namespace of secrets and reports; none means that of the pod.
    pub namespace: Option<String>,
    /// The file of the mounted network config.
    pub net_config: PathBuf,
    /// Whether the daemon clears the condition `NetworkUnavailable` of our node once the network works.
    pub clears_condition: bool,
}

/// The Node object of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeRef {
    Name(String),
    OfPod { namespace: String, name: String },
}

/// A pod in our namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub name: String,
    pub uid: String,
}

/// The leases of a cluster in its Node objects. To hold a lease, also poll `watch`, which detects
/// its loss.
pub struct KubeSubnetManager {
    options: KubeOptions,
    client: Arc<ApiClient>,
    ours: channel::Sender<OurNode>,
    losses: Mutex<Losses>,
    /// The subnets of this node before the daemon started, as far as they were granted.
    previous: Vec<Prefix>,
}

impl KubeSubnetManager {
    /// Does not connect yet.
    pub fn new(options: KubeOptions) -> Arc<Self> {
        Self::with_previous(options, Vec::new())
    }

    /// As [`Self::new`], on a node with these `previous` subnets.
    pub fn with_previous(options: KubeOptions, previous: Vec<Prefix>) -> Arc<Self> {
        Arc::new(Self {
            previous,
            client: Arc::new(client(options.api.clone())),
            options,
            ours: channel::Sender::new(OurNode::default()),
            losses: Mutex::new(Losses::default()),
        })
    }
}

fn client(options: ApiOptions) -> ApiClient {
    let program = Program {
        agent: concat!("tweedd/", env!("CARGO_PKG_VERSION")),
        flags: "set --kubeconfig-file or --kube-api-url",
        permissions: "docs/kubernetes.md",
    };
    ApiClient::new(options, program, Report::of("the API server", "nodes"))
}
