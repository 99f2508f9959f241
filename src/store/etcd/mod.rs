//! Subnets from etcd v3, in flannel's keys and values.

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
pub use operator::Operator;
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
use self::watch::First;
use super::claim::Previous;
use super::hold::Losses;
use crate::model::prefix::Prefix;

/// The leases of one network in etcd. To hold a lease, also follow `watch`, which notices its loss
/// at once.
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
