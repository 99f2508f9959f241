//! Leases in Kubernetes: each node's podCIDRs, published in flannel's annotations.

mod annotations;
mod client;
mod connect;
mod documents;
mod lease;
mod node;
mod open;
mod operator;
mod own;
mod request;
mod watch;

pub use annotations::{AnnotationPrefix, InvalidPrefix};
pub use connect::ApiOptions;
#[doc(hidden)]
pub use node::read_node;
pub use operator::{KubeClusterOptions, KubeClusterStore};

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::own::Ours;
use super::hold::Losses;

/// How to reach Kubernetes, and the identity of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub condition: NetworkCondition,
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

/// What the daemon does with the condition `NetworkUnavailable` of our node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkCondition {
    /// Clears it once the network works.
    Cleared,
    Untouched,
}

/// The leases of a cluster in its Node objects. To hold a lease, also poll `watch`, which detects
/// its loss.
pub struct KubeSubnetManager {
    shared: Arc<Shared>,
}

struct Shared {
    options: KubeOptions,
    client: Client,
    ours: channel::Sender<Ours>,
    losses: Mutex<Losses>,
}

impl KubeSubnetManager {
    /// Does not connect yet.
    pub fn new(options: KubeOptions) -> Self {
        let shared = Shared {
            client: Client::new(options.api.clone()),
            options,
            ours: channel::Sender::new(Ours::default()),
            losses: Mutex::new(Losses::default()),
        };
        Self { shared: Arc::new(shared) }
    }
}
