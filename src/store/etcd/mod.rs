//! Leases in etcd v3, with flannel's keys and values.

mod client;
mod connect;
mod documents;
pub mod key;
mod lease;
mod operator;
mod ours;
mod pace;
mod startup;
mod store;
pub mod value;
mod watch;

pub use connect::{Credentials, EtcdOptions, shown};
pub use operator::EtcdClusterStore;
#[doc(hidden)]
pub use startup::read_snapshot;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch as channel};

use self::client::Client;
use self::key::Layout;
use self::lease::Grant;
use self::ours::Ours;
use self::store::Store;
use self::watch::FirstListing;
use super::claim::Previous;
use super::hold::Losses;
use crate::model::prefix::Prefix;
use crate::random::random_range;

/// How long our lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Without a renewal: a node that is off for longer loses its subnet.
    pub ttl: Duration,
    /// The lease is renewed at least this long before its end.
    pub renew_margin: Duration,
}

/// The leases of one network in etcd. To hold a lease, also poll `watch`, which detects its loss.
pub struct EtcdSubnetManager {
    store: Store,
    previous: Previous,
    occupied: channel::Sender<Vec<Prefix>>,
    times: LeaseTimes,
    grant: Mutex<Option<Grant>>,
    ours: channel::Sender<Ours>,
    losses: Mutex<Losses>,
    first: Mutex<FirstListing>,
}

impl EtcdSubnetManager {
    /// Does not connect yet.
    pub fn new(options: EtcdOptions, previous: Previous, times: LeaseTimes) -> Arc<Self> {
        let layout = Layout::below(&options.prefix);
        let client = Client::new(options, random_range(0..usize::MAX));
        Arc::new(Self {
            store: Store { client, layout },
            previous,
            occupied: channel::Sender::default(),
            times,
            grant: Mutex::new(None),
            ours: channel::Sender::new(Ours::default()),
            losses: Mutex::new(Losses::default()),
            first: Mutex::new(FirstListing::default()),
        })
    }
}
