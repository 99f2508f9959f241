//! What all requests to an API server share, and the query of one.

use std::collections::BTreeMap;
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

/// The key-value pairs after the question mark.
pub(super) struct Query(BTreeMap<String, String>);

impl Shared {
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut lock(&self.store));
        self.changed.send_modify(|count| *count += 1);
        result
    }
}

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// None if it is empty.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn is(&self, key: &str, value: &str) -> bool {
        self.get(key) == Some(value)
    }
}
