//! Tells whether a store and the network config can be used: in the log once per change, to the daemon always.

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
    /// Why the store has no subnet for this node yet.
    subnet: Option<String>,
    asked: bool,
}

#[derive(Debug)]
pub(in crate::subnet) struct Report {
    /// What the log calls the store.
    store: &'static str,
    waits: Mutex<Waits>,
    state: watch::Sender<StoreState>,
}

impl Report {
    pub(in crate::subnet) fn of(store: &'static str) -> Self {
        Self { store, waits: Mutex::default(), state: watch::Sender::new(StoreState::Unknown) }
    }

    pub(in crate::subnet) fn state(&self) -> watch::Receiver<StoreState> {
        self.state.subscribe()
    }

    pub(in crate::subnet) fn reachable(&self) {
        let was_away = self.change(|waits| {
            waits.asked = true;
            waits.server.take()
        });
        if was_away.is_some() {
            info!("{} answers again", self.store);
        }
    }

    pub(in crate::subnet) fn away(&self, reason: &str) {
        let known = self.change(|waits| {
            waits.asked = true;
            waits.server.replace(reason.to_owned())
        });
        if known.is_none() {
            warn!(reason, "{} cannot be used", self.store);
        }
    }

    /// There is no config that can be used. Who had one before goes on with it.
    pub(in crate::subnet) fn lacks_config(&self, reason: &str) {
        let is_news = self.change(|waits| {
            let is_wanted = !waits.configured;
            is_wanted && waits.config.replace(reason.to_owned()).as_deref() != Some(reason)
        });
        if is_news {
            warn!(reason, "no network config yet");
        }
    }

    pub(in crate::subnet) fn has_config(&self) {
        self.change(|waits| {
            waits.configured = true;
            waits.config = None;
        });
    }

    /// The store answers, but has no subnet for this node.
    pub(in crate::subnet) fn lacks_subnet(&self, reason: &str) {
        let known = self.change(|waits| waits.subnet.replace(reason.to_owned()));
        if known.as_deref() != Some(reason) {
            warn!(reason, "no subnet for this node yet");
        }
    }

    pub(in crate::subnet) fn has_subnet(&self) {
        self.change(|waits| waits.subnet = None);
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
        let first = self.server.as_ref().or(self.config.as_ref());
        match first.or(self.subnet.as_ref()) {
            Some(reason) => StoreState::Waiting(reason.clone()),
            None if self.asked => StoreState::Reachable,
            None => StoreState::Unknown,
        }
    }
}
