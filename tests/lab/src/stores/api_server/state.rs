//! What all requests to an API server share.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::watch as channel;

use super::Asked;
use super::fault::Faults;
use super::store::Store;
use crate::wait::lock;

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) store: Mutex<Store>,
    pub(super) faults: Mutex<Faults>,
    pub(super) asked: Mutex<Vec<Asked>>,
    /// Counts the changes.
    pub(super) changed: channel::Sender<u64>,
    /// The time between bookmarks; none means a short one for tests.
    pub(super) bookmarks: Option<Duration>,
    /// Incremented to end every watch.
    pub(super) watches: channel::Sender<u64>,
}

impl Shared {
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut lock(&self.store));
        self.changed.send_modify(|count| *count += 1);
        result
    }
}
