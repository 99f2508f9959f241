//! Whether a store can be used: in the log once per change, to the daemon always.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tracing::{info, warn};

use crate::excerpt;
use crate::model::status::StoreState;

/// What we wait for, if anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Waits {
    /// Why the servers cannot be used; none if they can.
    server: Option<String>,
    /// Why the store has no subnet for this node yet.
    subnet: Option<String>,
    /// Why the store refuses the report of this node, which delays nothing.
    report: Option<String>,
    /// What it holds that is too large for a lease.
    oversized: Option<String>,
    asked: bool,
}

#[derive(Debug)]
pub(in crate::store) struct Report {
    /// What the log calls the store.
    store: &'static str,
    waits: Mutex<Waits>,
    state: watch::Sender<StoreState>,
}

impl Report {
    pub(in crate::store) fn of(store: &'static str) -> Self {
        Self { store, waits: Mutex::default(), state: watch::Sender::new(StoreState::Unknown) }
    }

    pub(in crate::store) fn state(&self) -> watch::Receiver<StoreState> {
        self.state.subscribe()
    }

    pub(in crate::store) fn reachable(&self) {
        let was_away = self.change(|waits| {
            waits.asked = true;
            waits.server.take()
        });
        if was_away.is_some() {
            info!("{} answers again", self.store);
        }
    }

    pub(in crate::store) fn away(&self, reason: &str) {
        let reason = excerpt::sentence(reason);
        let known = self.change(|waits| {
            waits.asked = true;
            waits.server.replace(reason.clone())
        });
        if known.is_none() {
            warn!(reason, "{} cannot be used", self.store);
        }
    }

    /// The store answers, but has no subnet for this node.
    pub(in crate::store) fn lacks_subnet(&self, reason: &str) {
        let reason = excerpt::sentence(reason);
        let known = self.change(|waits| waits.subnet.replace(reason.clone()));
        if known.as_ref() != Some(&reason) {
            warn!(reason, "no subnet for this node yet");
        }
    }

    pub(in crate::store) fn has_subnet(&self) {
        self.change(|waits| waits.subnet = None);
    }

    /// The store is reachable, but takes no such report of this node.
    pub(in crate::store) fn refuses_report(&self, reason: &str) {
        let known = self.change(|waits| waits.report.replace(reason.to_owned()));
        if known.is_none() {
            warn!(reason, "{} refuses this node's report", self.store);
        }
    }

    pub(in crate::store) fn accepts_report(&self) {
        if self.change(|waits| waits.report.take()).is_some() {
            info!("{} accepts this node's report again", self.store);
        }
    }

    /// What of the values below the leases' prefix is too large for a lease, if anything is.
    pub(in crate::store) fn holds(&self, oversized: Option<String>) {
        self.change(|waits| waits.oversized = oversized);
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
        match &self.server {
            Some(reason) => StoreState::Waiting(reason.clone()),
            None if !self.asked => StoreState::Unknown,
            None => self.answered(),
        }
    }

    fn answered(&self) -> StoreState {
        match (&self.subnet, &self.report, &self.oversized) {
            (Some(reason), _, _) => StoreState::Lacks(reason.clone()),
            (_, Some(reason), _) => StoreState::Refuses(format!("this node's report: {reason}")),
            (_, _, Some(what)) => StoreState::Holds(what.clone()),
            (None, None, None) => StoreState::Reachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_report_does_not_make_the_store_unreachable() {
        let report = Report::of("etcd");
        report.refuses_report("request is too large");
        assert_eq!(*report.state().borrow(), StoreState::Unknown);
        report.reachable();
        let state = StoreState::Refuses("this node's report: request is too large".to_owned());
        assert_eq!(*report.state().borrow(), state);
        assert!(state.is_reachable());
        // What is waited for is more than what is refused.
        report.away("no answer");
        assert_eq!(*report.state().borrow(), StoreState::Waiting("no answer".to_owned()));
        report.reachable();
        report.accepts_report();
        assert_eq!(*report.state().borrow(), StoreState::Reachable);
    }

    #[test]
    fn a_store_without_a_subnet_for_this_node_is_reachable() {
        let report = Report::of("the API server");
        report.lacks_subnet("node n1: it has no IPv4 podCIDR yet");
        assert_eq!(*report.state().borrow(), StoreState::Unknown);
        report.reachable();
        let state = StoreState::Lacks("node n1: it has no IPv4 podCIDR yet".to_owned());
        assert_eq!(*report.state().borrow(), state);
        assert!(state.is_reachable());
        report.has_subnet();
        assert_eq!(*report.state().borrow(), StoreState::Reachable);
    }
}
