//! Subnets from Kubernetes: each node's podCIDRs, published in flannel's annotations.

mod acquire;
mod annotations;
mod answer;
mod client;
mod connect;
mod hold;
mod list;
mod name;
mod net_config;
mod node;
mod node_report;
mod open;
mod operator;
mod options;
mod own;
mod probe_secret;
mod request;
mod watch;

pub use annotations::{AnnotationPrefix, NoPrefix};
#[doc(hidden)]
pub use node::read_node;
pub use operator::{Operator, OperatorOptions};
pub use options::{ApiOptions, Condition, KubeOptions, NodeRef, PodRef};

use std::sync::Arc;

use futures::stream::BoxStream;
use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::own::Ours;
use self::watch::KubeSource;
use super::losses::Losses;
use super::watch::updates;
use super::{Error, Identity, Lost, SubnetManager, Unpublished};
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::lease::{Lease, LeaseAttributes, LeaseUpdate};
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;

/// The leases of a cluster in its Node objects. Whoever holds a lease should also follow
/// `watch_leases`: it is how a loss is noticed.
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

impl SubnetManager for KubeSubnetManager {
    fn watch_config(&self) -> BoxStream<'static, ConfigUpdate> {
        net_config::updates(Arc::clone(&self.shared))
    }

    fn watch_identity(&self) -> BoxStream<'static, Identity> {
        name::identities(Arc::clone(&self.shared))
    }

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

    fn watch_leases(&self) -> BoxStream<'static, LeaseUpdate> {
        updates(KubeSource::new(Arc::clone(&self.shared)))
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
