//! Reports whether a store can be used: to the daemon at any time, and to the log once per change.
//! Also how long its answers take, and how long our lease lasts.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};
use tweed_client::failover::{Failure, Outcomes, Refusal};
use tweed_client::watch::Interrupted;
use tweed_http::page::Histogram;

use super::operator::Unavailable;
use super::{LeaseTerm, Unpublished};
use crate::excerpt;
use crate::model::status::StoreState;

/// Reasons why the store is not fully usable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Problems {
    /// Why the servers cannot be used; none if they can.
    server: Option<String>,
    /// Why the store does not list the leases.
    leases: Option<String>,
    /// Why the store does not show the network config.
    config: Option<String>,
    /// Why this node cannot write its lease.
    refused: Option<String>,
    /// Why this node has no subnet yet.
    subnet: Option<String>,
    /// Why the store rejects the report of this node, which delays nothing.
    report: Option<String>,
    /// The values in the store that are too large for a lease.
    oversized: Option<String>,
    asked: bool,
}

#[derive(Debug)]
pub struct Report {
    /// The name of the store in the log.
    pub(super) store: &'static str,
    /// What leases are in the store: "leases", or "nodes".
    records: &'static str,
    problems: Mutex<Problems>,
    state: watch::Sender<StoreState>,
    /// The times of requests, in seconds.
    requests: watch::Sender<Histogram>,
    term: watch::Sender<LeaseTerm>,
}

impl Report {
    pub(super) fn of(store: &'static str, records: &'static str) -> Self {
        Self {
            store,
            records,
            problems: Mutex::default(),
            state: watch::Sender::new(StoreState::Unknown),
            requests: watch::Sender::default(),
            term: watch::Sender::default(),
        }
    }

    pub(super) fn state(&self) -> watch::Receiver<StoreState> {
        self.state.subscribe()
    }

    /// The times of all requests to the store until their answers or timeouts, in seconds.
    pub fn requests(&self) -> watch::Receiver<Histogram> {
        self.requests.subscribe()
    }

    /// How long this node holds its lease without another renewal.
    pub fn term(&self) -> watch::Receiver<LeaseTerm> {
        self.term.subscribe()
    }

    /// The term of our lease has changed.
    pub(super) fn leased(&self, term: LeaseTerm) {
        self.term.send_replace(term);
    }

    /// The store answers, but refuses to list the leases for `reason`, or lists them.
    pub(super) fn withholds_leases(&self, reason: Option<&str>) {
        self.reachable();
        let texts = ("does not show the leases", "shows the leases");
        self.note(reason, texts, |problems| &mut problems.leases);
    }

    /// The same, of the network config.
    pub(super) fn withholds_config(&self, reason: Option<&str>) {
        self.reachable();
        let texts = ("does not show the network config", "shows the network config");
        self.note(reason, texts, |problems| &mut problems.config);
    }

    /// The store rejects this node's report for `reason`, or accepts it.
    pub(super) fn refuses_report(&self, reason: Option<&str>) {
        let texts = ("refuses this node's report", "accepts this node's report");
        self.note(reason, texts, |problems| &mut problems.report);
    }

    /// The error for the operator.
    pub(super) fn explained(&self, failure: Failure) -> Unavailable {
        let overloaded = || format!("{} is overloaded: it asks clients to wait", self.store);
        Unavailable(match failure {
            Failure::Unreachable => self.unusable().unwrap_or_else(overloaded),
            Failure::Refused(refusal) => self.refused(refusal),
        })
    }

    pub(super) fn refused(&self, refusal: Refusal) -> String {
        match refusal {
            Refusal::Denied(why) => why,
            refusal => format!("{} refuses: {refusal}", self.store),
        }
    }

    /// Notes whether this node's report was written.
    pub(super) fn published<T>(&self, written: Result<T, Failure>) -> Result<T, Unpublished> {
        match written {
            Ok(written) => {
                self.refuses_report(None);
                Ok(written)
            }
            Err(Failure::Refused(refusal)) => Err(self.unpublished(refusal)),
            Err(Failure::Unreachable) => {
                Err(Unpublished::Failed(format!("{} cannot be used", self.store)))
            }
        }
    }

    fn unpublished(&self, refusal: Refusal) -> Unpublished {
        if let Refusal::Invalid(why) | Refusal::Denied(why) = &refusal {
            self.refuses_report(Some(why));
            Unpublished::Refused(self.refused(refusal))
        } else {
            Unpublished::Failed(self.refused(refusal))
        }
    }

    /// The effect of a failed request for all leases on their history.
    pub(super) fn interrupted(&self, failure: Failure) -> Interrupted {
        Interrupted::by(failure, |refusal| {
            let (store, records) = (self.store, self.records);
            let reason = match refusal {
                Refusal::Denied(why) => why,
                refusal => format!("{store} does not list the {records}: {refusal}"),
            };
            self.withholds_leases(Some(&reason));
        })
    }

    fn note(
        &self,
        reason: Option<&str>,
        (fails, works): (&str, &str),
        slot: impl FnOnce(&mut Problems) -> &mut Option<String>,
    ) {
        let next = reason.map(excerpt::sentence);
        let known = self.change(|problems| std::mem::replace(slot(problems), next));
        match (reason, known) {
            (Some(reason), None) => warn!(reason, "{} {fails}", self.store),
            (None, Some(_)) => info!("{} {works} again", self.store),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// The store answers, but has no subnet for this node.
    pub(super) fn lacks_subnet(&self, reason: &str) {
        self.lacks("no subnet for this node yet", reason, |problems| {
            problems.refused = None;
            &mut problems.subnet
        });
    }

    /// The store answers, and has the subnet of before, but not that of a second address family.
    pub(super) fn lacks_another_subnet(&self, reason: &str) {
        self.lacks("no subnet of another address family yet", reason, |problems| {
            problems.subnet = None;
            &mut problems.refused
        });
    }

    fn lacks(
        &self,
        what: &str,
        reason: &str,
        slot: impl FnOnce(&mut Problems) -> &mut Option<String>,
    ) {
        let sentence = excerpt::sentence(&format!("{what}: {reason}"));
        let known = self.change(|problems| slot(problems).replace(sentence.clone()));
        if known != Some(sentence) {
            warn!(reason = excerpt::sentence(reason), "{what}");
        }
    }

    pub(super) fn has_subnet(&self) {
        self.change(|problems| (problems.subnet, problems.refused) = (None, None));
    }

    /// The values below the prefix of the leases that are too large for a lease, if any.
    pub(super) fn holds(&self, oversized: Option<String>) {
        self.change(|problems| problems.oversized = oversized);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Problems) -> T) -> T {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let before = change(&mut problems);
        let state = problems.state();
        self.state.send_if_modified(|known| std::mem::replace(known, state.clone()) != state);
        before
    }
}

impl Outcomes for Report {
    fn reachable(&self) {
        let unusable = self.change(|problems| {
            problems.asked = true;
            problems.server.take()
        });
        if unusable.is_some() {
            info!("{} answers again", self.store);
        }
    }

    fn unreachable(&self, reason: &str) {
        let reason = excerpt::sentence(reason);
        let known = self.change(|problems| {
            problems.asked = true;
            problems.server.replace(reason.clone())
        });
        if known.is_none() {
            warn!(reason, "{} cannot be used", self.store);
        }
    }

    fn unusable(&self) -> Option<String> {
        self.change(|problems| problems.server.clone())
    }

    fn refuses(&self, sentence: &str) {
        let reason = excerpt::sentence(sentence);
        let known = self.change(|problems| problems.refused.replace(reason.clone()));
        if known.as_ref() != Some(&reason) {
            warn!(reason, "{} refuses a request of this node", self.store);
        }
    }

    fn request_ended(&self, asked: Instant) {
        let seconds = asked.elapsed().as_secs_f64();
        self.requests.send_modify(|requests| requests.observe(seconds));
    }
}

impl Problems {
    fn state(&self) -> StoreState {
        match self {
            Self { server: Some(reason), .. } => StoreState::Unreachable(reason.clone()),
            Self { asked: false, .. } => StoreState::Unknown,
            Self { leases: Some(reason), .. } => StoreState::ListRefused(reason.clone()),
            Self { config: Some(reason), .. } | Self { refused: Some(reason), .. } => {
                StoreState::RequestRefused(reason.clone())
            }
            Self { subnet: Some(reason), .. } => StoreState::NoSubnet(reason.clone()),
            Self { report: Some(why), .. } => {
                StoreState::OptionalRefused(format!("this node's report: {why}"))
            }
            Self { oversized: Some(what), .. } => StoreState::OversizedValue(what.clone()),
            Self { .. } => StoreState::Reachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_report_does_not_make_the_store_unreachable() {
        let report = Report::of("etcd", "leases");
        report.refuses_report(Some("request is too large"));
        assert_eq!(*report.state().borrow(), StoreState::Unknown);
        report.reachable();
        let state =
            StoreState::OptionalRefused("this node's report: request is too large".to_owned());
        assert_eq!(*report.state().borrow(), state);
        assert!(state.is_reachable());
        // A missing subnet is reported before a rejected report.
        report.unreachable("no answer");
        assert_eq!(*report.state().borrow(), StoreState::Unreachable("no answer".to_owned()));
        report.reachable();
        report.refuses_report(None);
        assert_eq!(*report.state().borrow(), StoreState::Reachable);
    }

    #[test]
    fn a_store_without_a_subnet_for_this_node_is_reachable() {
        let report = Report::of("the API server", "nodes");
        report.lacks_subnet("node n1: it has no IPv4 podCIDR yet");
        assert_eq!(*report.state().borrow(), StoreState::Unknown);
        report.reachable();
        let sentence = "no subnet for this node yet: node n1: it has no IPv4 podCIDR yet";
        let state = StoreState::NoSubnet(sentence.to_owned());
        assert_eq!(*report.state().borrow(), state);
        assert!(state.is_reachable());
        report.has_subnet();
        assert_eq!(*report.state().borrow(), StoreState::Reachable);
    }
}
