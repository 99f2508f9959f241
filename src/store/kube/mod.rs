//! Subnets from Kubernetes: each node's podCIDRs, published in flannel's annotations.

mod annotations;
mod answer;
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

use futures::stream::BoxStream;
use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::own::Ours;
use self::watch::KubeSource;
use super::hold::Losses;
use super::watch::updates;
use super::{Documents, Error, Identity, Leases, Lost, Unpublished};
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::lease::{Lease, LeaseAttributes, LeaseUpdate};
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;

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

/// The leases of a cluster in its Node objects. Whoever holds a lease should also follow
/// `watch`: it is how a loss is noticed.
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

impl Leases for KubeSubnetManager {
    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        self.shared.acquire(config, attributes).await
    }

    async fn hold(&self, _lease: &Lease) -> Lost {
        self.shared.hold().await
    }

    fn watch(&self) -> BoxStream<'static, LeaseUpdate> {
        updates(KubeSource::new(Arc::clone(&self.shared)))
    }
}

impl Documents for KubeSubnetManager {
    fn watch_config(&self) -> BoxStream<'static, ConfigUpdate> {
        documents::config_updates(Arc::clone(&self.shared))
    }

    fn watch_identity(&self) -> BoxStream<'static, Identity> {
        documents::identities(Arc::clone(&self.shared))
    }

    async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        self.shared.publish_report(report).await
    }

    async fn probe_secret(&self) -> Result<Secret, String> {
        self.shared.probe_secret().await
    }

    async fn announce(&self) {
        self.shared.announce().await;
    }

    fn state(&self) -> channel::Receiver<StoreState> {
        self.shared.client.report.state()
    }
}
