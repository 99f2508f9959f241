//! Subnets from etcd v3, in flannel's keys and values.

mod acquire;
mod client;
mod connect;
mod documents;
mod hold;
pub mod key;
mod operator;
mod ours;
mod pace;
mod page;
mod startup;
mod store;
pub mod value;
mod watch;

pub use connect::{Credentials, EtcdOptions, shown};
pub use operator::Operator;
#[doc(hidden)]
pub use startup::read_snapshot;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::hold::Grant;
use self::key::Layout;
use self::ours::Ours;
use self::store::Store;
use self::watch::{EtcdSource, First};
use super::claim::Previous;
use super::hold::Losses;
use super::watch::updates;
use super::{Documents, Error, Leases, Lost, Unpublished};
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::lease::{Lease, LeaseAttributes, LeaseUpdate};
use crate::model::prefix::Prefix;
use crate::model::probe_secret::Secret;
use crate::model::report::NodeReport;
use crate::model::status::StoreState;

/// The leases of one network in etcd. Whoever holds a lease should also follow `watch`:
/// it is how a loss is noticed at once.
pub struct EtcdSubnetManager {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    previous: Previous,
    /// Where this host has addresses.
    occupied: channel::Sender<Vec<Prefix>>,
    /// How long before its end a lease is renewed at the latest.
    renew_margin: Duration,
    grant: Mutex<Option<Grant>>,
    ours: channel::Sender<Ours>,
    losses: Mutex<Losses>,
    first: Mutex<First>,
}

impl EtcdSubnetManager {
    /// Connects to nothing yet.
    pub fn new(options: EtcdOptions, previous: Previous, renew_margin: Duration) -> Self {
        let layout = Layout::below(&options.prefix);
        let client = Client::new(options, rand::random_range(0..usize::MAX));
        let shared = Shared {
            store: Store { client, layout },
            previous,
            occupied: channel::Sender::default(),
            renew_margin,
            grant: Mutex::new(None),
            ours: channel::Sender::new(Ours::default()),
            losses: Mutex::new(Losses::default()),
            first: Mutex::new(First::default()),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Leases for EtcdSubnetManager {
    fn avoid(&self, occupied: Vec<Prefix>) {
        self.shared.occupied.send_replace(occupied);
    }

    async fn acquire(
        &self,
        config: &NetworkConfig,
        attributes: &LeaseAttributes,
    ) -> Result<Lease, Error> {
        self.shared.acquire(config, attributes).await
    }

    async fn hold(&self, lease: &Lease) -> Lost {
        self.shared.hold(lease).await
    }

    fn watch(&self) -> BoxStream<'static, LeaseUpdate> {
        updates(EtcdSource::new(Arc::clone(&self.shared)))
    }
}

impl Documents for EtcdSubnetManager {
    fn watch_config(&self) -> BoxStream<'static, ConfigUpdate> {
        documents::config_updates(Arc::clone(&self.shared))
    }

    async fn publish_report(&self, report: &NodeReport) -> Result<(), Unpublished> {
        self.shared.publish_report(report).await
    }

    async fn probe_secret(&self) -> Result<Secret, String> {
        self.shared.probe_secret().await
    }

    fn state(&self) -> channel::Receiver<StoreState> {
        self.shared.store.client.report.state()
    }
}
