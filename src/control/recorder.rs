//! Records what changes on this node and its peers: one call makes the line of the log and the event
//! of `tweedctl events`.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Control;
use crate::model::entry::Entry;
use crate::model::event::{EventHistory, EventKind, EventPage, EventSubject, NodeChange};
use crate::model::lease::{Endpoint, Lease, LeaseId};
use crate::model::measurements::PathChangeReason;
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::status::StoreState;
use crate::plan::backend::{PathPlan, PeerPlan, Unreachable};
use crate::plan::desired::{Desired, LeasePlan, LeasePlans};

/// The maximum number of changes of one kind that are recorded one by one in one pass of the loop:
/// thousands of peers at once must not replace all earlier events.
const NAMED: usize = 100;
/// The maximum number of these that have a line each in the log.
const LINES: usize = 10;

/// The changes since the start of the daemon.
#[derive(Debug)]
pub(super) struct Recorder {
    history: EventHistory,
    /// The changes of this pass, at most [`NAMED`] of each kind.
    noted: Vec<NodeChange>,
    /// The number of changes of this pass, by kind.
    totals: BTreeMap<EventKind, usize>,
    /// Since when the store is unreachable.
    lacks_store: Option<Instant>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            history: EventHistory::new(now()),
            noted: Vec::new(),
            totals: BTreeMap::new(),
            lacks_store: None,
        }
    }

    pub(super) fn after(&self, sequence: u64) -> EventPage {
        self.history.after(sequence)
    }

    /// Records a change: its subject, and a sentence. Of thousands, only the first are described.
    pub(super) fn note(
        &mut self,
        kind: EventKind,
        describe: impl FnOnce() -> (EventSubject, String),
    ) {
        let total = self.totals.entry(kind).or_default();
        *total += 1;
        if *total <= NAMED {
            let (subject, sentence) = describe();
            self.noted.push(NodeChange::new(kind, subject, &sentence));
        }
    }

    pub(super) fn note_own(&mut self, kind: EventKind, sentence: String) {
        self.note(kind, || (EventSubject::default(), sentence));
    }

    /// Logs the changes of this pass, and adds them to the history.
    pub(super) fn flush(&mut self) {
        let (noted, totals) = (std::mem::take(&mut self.noted), std::mem::take(&mut self.totals));
        if noted.is_empty() {
            return;
        }
        let time = now();
        let mut lines: BTreeMap<EventKind, usize> = BTreeMap::new();
        for change in noted {
            let line = lines.entry(change.kind).or_default();
            *line += 1;
            if *line <= LINES {
                log(&change);
            }
            self.history.push(time, change);
        }
        for (kind, total) in totals {
            if total > LINES {
                log(&more(kind, total - LINES));
            }
            if total > NAMED {
                self.history.push(time, more(kind, total - NAMED));
            }
        }
    }
}

/// In whole milliseconds.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

fn more(kind: EventKind, more: usize) -> NodeChange {
    let sentence = format!("{more} more changes of the kind {} at the same time", kind.as_str());
    NodeChange { number: more, ..NodeChange::new(kind, EventSubject::default(), &sentence) }
}

fn log(NodeChange { kind, subject, message, .. }: &NodeChange) {
    let (lease, peer) = (subject.lease.as_ref().map(LeaseId::as_str), subject.peer.as_deref());
    match kind {
        // The store logs its state itself, with the server and the time of the next attempt.
        EventKind::StoreUnreachable | EventKind::StoreReachable => {}
        kind if kind.is_warning() => tracing::warn!(kind = kind.as_str(), lease, peer, "{message}"),
        kind => tracing::info!(kind = kind.as_str(), lease, peer, "{message}"),
    }
}

impl Control {
    /// Counts and records an entry that was lost or changed, and is restored.
    pub(super) fn record_repair(&mut self, entry: &Arc<Entry>) {
        let Self { recorder, derived, state, .. } = self;
        *state.measured.repairs.entry(entry.kind()).or_default() += 1;
        recorder.note(EventKind::EntryRestored, || {
            let owner = owner(&derived.desired, entry).map(EventSubject::of);
            let sentence = format!("restored an entry that was lost or changed: {entry:#}");
            (owner.unwrap_or_default(), sentence)
        });
    }

    /// Records how these leases differ from the present plan, and counts the changes of paths.
    pub(super) fn record_peers(&mut self, lease_plans: &LeasePlans) {
        let Self { recorder, derived, inputs, state, .. } = self;
        for (id, new) in lease_plans {
            let old = derived.desired.peers().get(id);
            if let Some(Err(reason)) = new
                && old != new.as_ref()
            {
                recorder.note(EventKind::PeerRejected, || {
                    let unread = || EventSubject { lease: Some(id.clone()), peer: None };
                    let subject = inputs.peers.lease(id).map_or_else(unread, EventSubject::of);
                    (subject, format!("lease rejected: {reason}"))
                });
            }
            match (old.and_then(accepted), new.as_ref().and_then(accepted)) {
                (None, None) => {}
                (None, Some((lease, plan))) => recorder.note(EventKind::PeerAdded, || {
                    (EventSubject::of(lease), format!("peer added, path: {}", path_names(plan)))
                }),
                (Some((lease, _)), None) => recorder.note_removal(lease),
                (Some(before), Some(now)) => {
                    recorder.note_lease(before.0, now.0);
                    for change in path_changes(before, now) {
                        let count = state.measured.path_changes.entry(change.measured());
                        *count.or_default() += 1;
                        recorder.note(EventKind::PathChanged, || change.described(now.0));
                    }
                }
            }
        }
    }

    /// Records the peers whose lease is gone, and which a plan of all leases does not name.
    pub(super) fn record_gone(&mut self) {
        let Self { recorder, derived, inputs, .. } = self;
        let planned = derived.desired.peers().iter();
        let gone = planned.filter(|(id, _)| inputs.peers.lease(id).is_none());
        for (lease, _) in gone.filter_map(|(_, plan)| accepted(plan)) {
            recorder.note_removal(lease);
        }
    }

    /// Records the applied backend, which may be the previous one if a change waits.
    pub(super) fn record_config(&mut self) {
        if self.state.failure.is_some() || self.changes.plan {
            return;
        }
        let Some(local) = self.inputs.local() else { return };
        let (kind, mixed) = (local.config.backend.kind, local.config.mixed);
        let before = self.state.logged.config.replace((kind, mixed));
        let is_edited = std::mem::take(&mut self.state.logged.edit);
        let backend = format!("{}{}", kind.as_str(), if mixed { " with Mixed" } else { "" });
        let source = match self.inputs.edit.revision() {
            0 => "of the checkpoint".to_owned(),
            revision => format!("revision {revision}"),
        };
        match before {
            Some((former, _)) if former != kind => {
                let from = former.as_str();
                let sentence = format!(
                    "this node changed its backend from {from} to {backend}: network config {source}"
                );
                self.recorder.note_own(EventKind::BackendChanged, sentence);
            }
            before if is_edited || before != Some((kind, mixed)) => {
                let sentence = format!("applied network config {source}: {backend}");
                self.recorder.note_own(EventKind::ConfigApplied, sentence);
            }
            Some(_) | None => {}
        }
    }

    /// Records when the store becomes unreachable, and when it answers again.
    pub(super) fn record_store(&mut self) {
        let Self { recorder, inputs, .. } = self;
        match (&inputs.store, recorder.lacks_store) {
            (StoreState::Unreachable(reason), None) => {
                recorder.lacks_store = Some(Instant::now());
                let sentence = format!("the store is unreachable: {reason}");
                recorder.note_own(EventKind::StoreUnreachable, sentence);
            }
            (StoreState::Unreachable(_) | StoreState::Unknown, _) | (_, None) => {}
            (_, Some(since)) => {
                recorder.lacks_store = None;
                let seconds = since.elapsed().as_secs();
                let sentence = format!("the store answers again after {seconds} s");
                recorder.note_own(EventKind::StoreReachable, sentence);
            }
        }
    }
}

impl Recorder {
    fn note_removal(&mut self, lease: &Lease) {
        self.note(EventKind::PeerRemoved, || (EventSubject::of(lease), "peer removed".to_owned()));
    }

    /// A lease may be written again without a change, as after a restart of its node.
    fn note_lease(&mut self, before: &Lease, now: &Lease) {
        if before.endpoints != now.endpoints {
            self.note(EventKind::LeaseChanged, || {
                let endpoints = now.endpoints.iter();
                let news = endpoints
                    .flat_map(|it| differences(before.endpoint(it.subnet.family()), it))
                    .collect::<Vec<_>>();
                let news =
                    if news.is_empty() { "fewer subnets".to_owned() } else { news.join(", ") };
                (EventSubject::of(now), format!("lease changed: {news}"))
            });
        }
    }
}

/// What an endpoint has now that it did not have before.
fn differences(before: Option<&Endpoint>, now: &Endpoint) -> Vec<String> {
    let facts = |Endpoint { subnet, public_ip, backend, vtep }: &Endpoint| {
        let vtep = vtep.map_or_else(
            || "no VTEP".to_owned(),
            |vtep| {
                let vni = vtep.vni.map(|vni| format!(" of VNI {vni}")).unwrap_or_default();
                let source = vtep.source.map(|source| format!(" from {source}"));
                let mixed = if vtep.mixed { " with Mixed" } else { "" };
                format!("VTEP {}{vni}{}{mixed}", vtep.mac, source.unwrap_or_default())
            },
        );
        let (subnet, public_ip) = (format!("subnet {subnet}"), format!("public IP {public_ip}"));
        [subnet, public_ip, format!("backend {}", backend.as_str()), vtep]
    };
    let before = before.map(facts);
    let is_known = |fact: &String| before.as_ref().is_some_and(|before| before.contains(fact));
    facts(now).into_iter().filter(|fact| !is_known(fact)).collect()
}

/// The lease of the peer that needs `entry`; none for an entry of this node.
fn owner<'a>(desired: &'a Desired, entry: &Arc<Entry>) -> Option<&'a Lease> {
    let mut accepted = desired.peers().values().flatten();
    let needs = |plan: &PeerPlan| plan.entries().any(|needed| needed == entry);
    accepted.find(|(_, plan)| needs(plan)).map(|(lease, _)| lease.as_ref())
}

fn accepted(plan: &LeasePlan) -> Option<(&Lease, &PeerPlan)> {
    plan.as_ref().ok().map(|(lease, plan)| (lease.as_ref(), plan))
}

/// The path in each address family, or why there is none.
fn path_names(plan: &PeerPlan) -> String {
    let name = |path: &Result<PathPlan, _>| match path {
        Ok(planned) => planned.path.as_str().to_owned(),
        Err(reason) => format!("none: {reason}"),
    };
    plan.paths.iter().map(|(_, path)| name(path)).collect::<Vec<_>>().join(", ")
}

/// The path to a peer in one address family, and the path before.
struct PathChange<'a> {
    family: Family,
    from: Option<Path>,
    to: &'a Result<PathPlan, Unreachable>,
    reason: PathChangeReason,
}

fn path_changes<'a>(
    (old_lease, old): (&Lease, &PeerPlan),
    (lease, plan): (&Lease, &'a PeerPlan),
) -> Vec<PathChange<'a>> {
    let change = |(family, to): &'a (Family, Result<PathPlan, Unreachable>)| {
        let (before, now) = (old.path(*family), to.as_ref().ok());
        let path = |planned: Option<&PathPlan>| planned.map(|planned| planned.path);
        let fallback = |planned: Option<&PathPlan>| planned.and_then(|planned| planned.fallback);
        let reason = if old_lease.endpoint(*family) != lease.endpoint(*family) {
            PathChangeReason::Peer
        } else if fallback(before) != fallback(now) {
            PathChangeReason::Probes
        } else {
            PathChangeReason::Node
        };
        let from = path(before);
        (from != path(now)).then_some(PathChange { family: *family, from, to, reason })
    };
    plan.paths.iter().filter_map(change).collect()
}

impl PathChange<'_> {
    /// The new path, if there is one, and the reason: the labels of the metric.
    fn measured(&self) -> (Option<Path>, PathChangeReason) {
        (self.to.as_ref().ok().map(|planned| planned.path), self.reason)
    }

    fn described(&self, lease: &Lease) -> (EventSubject, String) {
        let endpoint = lease.endpoint(self.family);
        let subject = endpoint.map(|endpoint| EventSubject::at(lease, endpoint));
        let from = self.from.map_or("none", Path::as_str);
        let (to, fallback) = match self.to {
            Ok(planned) => (planned.path.as_str(), planned.fallback.map(|it| it.to_string())),
            Err(unreachable) => ("none", Some(unreachable.to_string())),
        };
        let reason = fallback.unwrap_or_else(|| match self.reason {
            PathChangeReason::Probes => "by the results of probes".to_owned(),
            PathChangeReason::Peer => "the lease of the peer changed".to_owned(),
            PathChangeReason::Node => "config or host of this node changed".to_owned(),
        });
        (subject.unwrap_or_default(), format!("path changed from {from} to {to}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(recorder: &mut Recorder, kind: EventKind, count: usize) {
        for number in 0..count {
            recorder.note_own(kind, format!("{} {number}", kind.as_str()));
        }
    }

    #[test]
    fn thousands_of_changes_at_once_leave_room_for_earlier_events() {
        let mut recorder = Recorder::new();
        note(&mut recorder, EventKind::ConfigApplied, 1);
        recorder.flush();
        note(&mut recorder, EventKind::PeerAdded, 5000);
        note(&mut recorder, EventKind::PathChanged, 1);
        recorder.flush();
        recorder.flush();
        let page = recorder.after(0);
        let messages: Vec<&str> =
            page.events.iter().map(|event| event.change.message.as_str()).collect();
        assert_eq!(messages.len(), 1 + NAMED + 1 + 1);
        assert_eq!(messages[..2], ["config-applied 0", "peer-added 0"]);
        assert_eq!(messages[1 + NAMED], "path-changed 0");
        let more = "4900 more changes of the kind peer-added at the same time";
        assert_eq!(messages.last(), Some(&more));
    }

    #[test]
    fn changes_that_are_only_counted_are_not_described() {
        let mut recorder = Recorder::new();
        let mut described = 0;
        for _ in 0..5000 {
            recorder.note(EventKind::PeerAdded, || {
                described += 1;
                (EventSubject::default(), String::new())
            });
        }
        assert_eq!(described, NAMED);
    }
}
