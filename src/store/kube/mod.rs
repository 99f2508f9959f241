//! Subnets from Kubernetes: each node's podCIDRs, published in flannel's annotations.

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

pub use annotations::{AnnotationPrefix, NoPrefix};
pub use connect::ApiOptions;
#[doc(hidden)]
pub use node::read_node;
pub use operator::{Operator, OperatorOptions};

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::own::Ours;
use super::hold::Losses;

/// How to reach Kubernetes, and which node this is.
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

/// The leases of a cluster in its Node objects. To hold a lease, also follow `watch`, which notices
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
    /// Connects to nothing yet.
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
