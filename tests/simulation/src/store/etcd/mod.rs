//! An etcd in memory. It has the meaning of etcd, speaks its messages, and is reached over links
//! that may fail.

mod server;
mod state;

pub use state::State;
use tweed_client::transport::Transport;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::Channel;
use etcd_client::proto::{
    PbDeleteRequest, PbPutRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use tokio::sync::watch;

use super::Health;
use crate::act::ClusterId;
use crate::network::{Link, LinkState};
use server::Connection;
use state::{Change, Observers};

/// As clients name it.
pub(crate) const SERVER: &str = "http://etcd:2379";
/// The key of the network config.
pub(crate) const CONFIG: &str = "/coreos.com/network/config";
/// The beginning of the keys of all leases.
pub(crate) const LEASES: &str = "/coreos.com/network/subnets/";

/// Clones share one etcd.
#[derive(Clone, Debug)]
pub struct Etcd {
    shared: Arc<Mutex<Shared>>,
    /// How often the server has closed all connections.
    closings: watch::Sender<u64>,
}

#[derive(Debug)]
struct Shared {
    state: State,
    observers: Observers,
    health: Health,
}

impl Etcd {
    pub fn new() -> Self {
        let (state, observers) = (State::new(1), Observers::new());
        let shared = Arc::new(Mutex::new(Shared { state, observers, health: Health::Up }));
        Self { shared, closings: watch::Sender::new(0) }
    }

    /// Opens a connection by `link`.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(&self, link: &Link) -> Result<Channel, String> {
        if self.health() == Health::Down {
            return Err("connection refused".to_owned());
        }
        if link.state() != LinkState::Open {
            return Err("no route to host".to_owned());
        }
        Ok(Connection::channel(self.clone(), link.clone()))
    }

    /// How a client reaches the server by `link`.
    pub fn transport(&self, link: &Link) -> Transport<Channel> {
        let (etcd, link) = (self.clone(), link.clone());
        Transport::Channels(Arc::new(move |_| etcd.connect(&link)))
    }

    /// Reads or changes the data; what it returns is sent to the observers.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> (T, Option<Change>)) -> T {
        let mut shared = self.shared();
        let (result, changed) = change(&mut shared.state);
        if let Some(changed) = changed {
            shared.observers.retain(|(wish, observer)| {
                wish.of(&changed).is_none_or(|wanted| observer.try_send(wanted).is_ok())
                    && !observer.is_closed()
            });
        }
        result
    }

    pub fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.shared().state)
    }

    /// The keys that begin so, and their values.
    pub fn texts(&self, beginning: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.read(|state| {
            let keys = state.keys().filter(|kv| kv.key.starts_with(beginning.as_bytes()));
            keys.map(|kv| (text(&kv.key), text(&kv.value))).collect()
        })
    }

    /// Another program writes a key, with a lease of this many seconds. Without effect while etcd does
    /// not work.
    pub fn put(&self, key: &str, value: String, ttl: Option<i64>) {
        self.write(|state| {
            let lease = ttl.and_then(|ttl| state.grant(0, ttl).ok()).unwrap_or_default();
            let (key, value) = (key.into(), value.into_bytes());
            PbTxnOpRequest::RequestPut(PbPutRequest { key, value, lease, ..Default::default() })
        });
    }

    /// Another program deletes a key. Without effect while etcd does not work.
    pub fn delete(&self, key: &str) {
        let request = PbDeleteRequest { key: key.into(), ..PbDeleteRequest::default() };
        self.write(|_| PbTxnOpRequest::RequestDeleteRange(request));
    }

    /// The etcd lease of a key ends, with all its keys. Without effect while etcd does not work.
    pub fn expire(&self, key: &str) {
        if self.health().is_writable() {
            self.change(|state| {
                let lease = state.keys().find(|kv| kv.key == key.as_bytes()).map(|kv| kv.lease);
                ((), lease.and_then(|id| state.revoke(id).ok()).flatten())
            });
        }
    }

    fn write(&self, request: impl FnOnce(&mut State) -> PbTxnOpRequest) {
        if self.health().is_writable() {
            self.change(|state| {
                let success = vec![PbTxnRequestOp { request: Some(request(state)) }];
                let request = PbTxnRequest { success, ..PbTxnRequest::default() };
                ((), state.txn(&request).ok().and_then(|(_, change)| change))
            });
        }
    }

    pub fn health(&self) -> Health {
        self.shared().health
    }

    pub fn set_health(&self, health: Health) {
        let mut shared = self.shared();
        if health == Health::Down {
            self.close(&mut shared);
        }
        if shared.health == Health::Leaderless && health == Health::Up {
            shared.state.term += 1;
            shared.state.renew_all();
        }
        shared.health = health;
    }

    /// Forgets its history.
    pub fn compact(&self) {
        self.change(|state| {
            let revision = state.revision();
            let _ = state.compact(revision);
            ((), None)
        });
    }

    /// Takes the data of `backup`, as an operator does with `etcdctl snapshot restore`.
    pub fn restore(&self, backup: State, id: ClusterId) {
        let mut shared = self.shared();
        self.close(&mut shared);
        let cluster = shared.state.cluster + u64::from(id == ClusterId::New);
        shared.state = backup.restored(cluster);
        shared.state.renew_all();
    }

    /// Ends the leases whose time has passed. Without a leader, none ends.
    pub fn end_leases(&self) {
        if !self.health().is_writable() {
            return;
        }
        for lease in self.read(State::expired) {
            self.change(|state| ((), state.revoke(lease).ok().flatten()));
        }
    }

    fn close(&self, shared: &mut Shared) {
        shared.observers.clear();
        self.closings.send_modify(|count| *count += 1);
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Etcd {
    fn default() -> Self {
        Self::new()
    }
}
