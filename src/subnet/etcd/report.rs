//! Tells whether etcd and the network config can be used: in the log once per change, to the daemon always.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tracing::{info, warn};

use crate::subnet::StoreState;

/// What we wait for, if anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Waits {
    /// Why the servers cannot be used; none if they can.
    server: Option<String>,
    config: Option<String>,
    /// Whether there was a config that can be used.
    configured: bool,
    asked: bool,
}

#[derive(Debug)]
pub(super) struct Report {
    waits: Mutex<Waits>,
    state: watch::Sender<StoreState>,
}

impl Default for Report {
    fn default() -> Self {
        Self { waits: Mutex::default(), state: watch::Sender::new(StoreState::Unknown) }
    }
}

impl Report {
    pub(super) fn state(&self) -> watch::Receiver<StoreState> {
        self.state.subscribe()
    }

    pub(super) fn reachable(&self) {
        let was_away = self.change(|waits| {
            waits.asked = true;
            waits.server.take()
        });
        if was_away.is_some() {
            info!("etcd answers again");
        }
    }

    pub(super) fn away(&self, reason: &str) {
        let known = self.change(|waits| {
            waits.asked = true;
            waits.server.replace(reason.to_owned())
        });
        if known.is_none() {
            warn!(reason, "etcd cannot be used");
        }
    }

    /// There is no config that can be used. Who had one before goes on with it.
    pub(super) fn lacks_config(&self, reason: &str) {
        let is_news = self.change(|waits| {
            let is_wanted = !waits.configured;
            is_wanted && waits.config.replace(reason.to_owned()).as_deref() != Some(reason)
        });
        if is_news {
            warn!(reason, "no network config yet");
        }
    }

    pub(super) fn has_config(&self) {
        self.change(|waits| {
            waits.configured = true;
            waits.config = None;
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Waits) -> T) -> T {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let before = change(&mut waits);
        let state = waits.state();
        self.state.send_if_modified(|known| std::mem::replace(known, state.clone()) != state);
        before
    }
}

impl Waits {
    fn state(&self) -> StoreState {
        match self.server.as_ref().or(self.config.as_ref()) {
            Some(reason) => StoreState::Waiting(reason.clone()),
            None if self.asked => StoreState::Reachable,
            None => StoreState::Unknown,
        }
    }
}
