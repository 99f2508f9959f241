//! What changed on this node: the last changes, each as one sentence, for `tweedctl events`.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::model::lease::{Endpoint, Lease, LeaseId};

/// A change, with its place in the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// Counted from 1 since the start of the daemon, without gaps.
    pub sequence: u64,
    pub time: Timestamp,
    #[serde(flatten)]
    pub change: NodeChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeChange {
    pub kind: EventKind,
    #[serde(flatten)]
    pub subject: EventSubject,
    /// One sentence that names the subject.
    pub message: String,
    /// The number of changes; more than one for those that are not recorded one by one.
    #[serde(skip, default = "one")]
    pub number: usize,
}

/// Changes of one kind, as one event of a store that keeps events of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventDigest {
    pub kind: EventKind,
    /// The kind in the notation of Kubernetes.
    pub reason: &'static str,
    /// The times of the first and the last change.
    pub first: Timestamp,
    pub last: Timestamp,
    /// The number of changes.
    pub number: usize,
    /// The first changes: subject and sentence.
    named: Vec<String>,
}

/// What a change concerns; nothing if it concerns this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSubject {
    /// Of the peer. In Kubernetes it is the name of its node.
    pub lease: Option<LeaseId>,
    /// As in `10.244.7.0/24 (172.16.0.7)`.
    pub peer: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    PeerAdded,
    PeerRemoved,
    PeerRejected,
    LeaseChanged,
    PathChanged,
    ConfigApplied,
    BackendChanged,
    EntryRestored,
    PeerUnreachable,
    PeerDegraded,
    /// Its daemon does not answer, but its host does.
    PeerUnknown,
    PeerReachable,
    ProbesOn,
    ProbesOff,
    StoreUnreachable,
    StoreReachable,
}

/// The last changes. Old ones are dropped, so that memory is bounded whatever other nodes write.
#[derive(Debug)]
pub struct EventHistory {
    started: Timestamp,
    events: VecDeque<Arc<NodeEvent>>,
    bytes: usize,
    last: u64,
}

/// A part of a history, as the daemon returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventPage {
    /// The start of the daemon, whose sequence numbers these are.
    pub started: Timestamp,
    /// The oldest first.
    pub events: Vec<Arc<NodeEvent>>,
}

impl EventHistory {
    /// The maximum number of events.
    pub const EVENTS: usize = 1000;
    /// The maximum size of all events, in bytes.
    pub const BYTES: usize = 512 << 10;

    pub const fn new(started: Timestamp) -> Self {
        Self { started, events: VecDeque::new(), bytes: 0, last: 0 }
    }

    pub fn push(&mut self, time: Timestamp, change: NodeChange) {
        self.last += 1;
        let event = NodeEvent { sequence: self.last, time, change };
        self.bytes += event.size();
        self.events.push_back(Arc::new(event));
        while self.events.len() > Self::EVENTS || self.bytes > Self::BYTES {
            let Some(dropped) = self.events.pop_front() else { break };
            self.bytes -= dropped.size();
        }
    }

    /// The events after that of `sequence`, as far as they are kept.
    pub fn after(&self, sequence: u64) -> EventPage {
        let events = self.events.iter().filter(|event| event.sequence > sequence);
        EventPage { started: self.started, events: events.cloned().collect() }
    }
}

impl NodeEvent {
    fn size(&self) -> usize {
        let NodeChange { subject: EventSubject { lease, peer }, message, .. } = &self.change;
        let lease = lease.as_ref().map_or(0, |id| id.as_str().len());
        size_of::<Self>() + lease + peer.as_ref().map_or(0, String::len) + message.len()
    }
}

impl NodeChange {
    /// Other programs and nodes write parts of a sentence, so it is cut and escaped.
    pub fn new(kind: EventKind, subject: EventSubject, sentence: &str) -> Self {
        Self { kind, subject, message: excerpt::sentence(sentence), number: one() }
    }
}

const fn one() -> usize {
    1
}

impl EventDigest {
    /// The longest message in Kubernetes, in bytes.
    pub const LONGEST: usize = 1024;
    /// The maximum number of changes that the message names.
    const NAMED: usize = 3;
    const CUT: char = '…';

    /// None if the kind of `event` is not reported to a store.
    pub fn of(event: &NodeEvent) -> Option<Self> {
        let NodeEvent { time, change, .. } = event;
        let reason = change.kind.reason()?;
        let (first, last, named) = (*time, *time, Vec::new());
        let mut digest = Self { kind: change.kind, reason, first, last, number: 0, named };
        digest.add(event);
        Some(digest)
    }

    /// Adds a later change of the same kind.
    pub fn add(&mut self, NodeEvent { time, change, .. }: &NodeEvent) {
        self.last = *time;
        self.number += change.number;
        if change.number == one() && self.named.len() < Self::NAMED {
            let NodeChange { subject, message, .. } = change;
            let is_own = *subject == EventSubject::default();
            let named = if is_own { message.clone() } else { format!("{subject}: {message}") };
            self.named.push(named);
        }
    }

    /// The number of changes and the first of them, in at most [`Self::LONGEST`] bytes.
    pub fn message(&self) -> String {
        let named = self.named.join("; ");
        let text = match self.number.saturating_sub(self.named.len()) {
            0 if self.named.len() == 1 => named,
            0 => format!("{} changes: {named}", self.number),
            more => format!("{} changes: {named}; {more} more", self.number),
        };
        if text.len() <= Self::LONGEST {
            return text;
        }
        let longest = Self::LONGEST - Self::CUT.len_utf8();
        let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        format!("{}{}", text.get(..end).unwrap_or_default(), Self::CUT)
    }
}

impl EventSubject {
    pub fn of(lease: &Lease) -> Self {
        let endpoints = lease.endpoints.iter().map(ToString::to_string);
        let peer = endpoints.collect::<Vec<_>>().join(", ");
        Self { lease: Some(lease.id.clone()), peer: Some(peer).filter(|peer| !peer.is_empty()) }
    }

    pub fn at(lease: &Lease, endpoint: &Endpoint) -> Self {
        Self { lease: Some(lease.id.clone()), peer: Some(endpoint.to_string()) }
    }
}

/// The peer, with the name of its lease first unless it repeats the subnet, as in etcd.
impl fmt::Display for EventSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.lease, &self.peer) {
            (None, None) => f.write_str("this node"),
            (Some(lease), None) => lease.fmt(f),
            (None, Some(peer)) => f.write_str(peer),
            (Some(lease), Some(peer)) => {
                let base = peer.split('/').next().unwrap_or_default();
                let repeats = lease.as_str().contains(base);
                if repeats { f.write_str(peer) } else { write!(f, "{lease} {peer}") }
            }
        }
    }
}

impl EventKind {
    /// The name, whether the operator should look at it, and the reason in events of Kubernetes;
    /// none if a change of this kind makes none.
    const fn row(self) -> (&'static str, bool, Option<&'static str>) {
        const NOTICE: bool = false;
        const WARNING: bool = true;
        match self {
            Self::PeerAdded => ("peer-added", NOTICE, None),
            Self::PeerRemoved => ("peer-removed", NOTICE, None),
            Self::PeerRejected => ("peer-rejected", WARNING, Some("LeaseRejected")),
            Self::LeaseChanged => ("lease-changed", NOTICE, None),
            Self::PathChanged => ("path-changed", NOTICE, None),
            Self::ConfigApplied => ("config-applied", NOTICE, None),
            Self::BackendChanged => ("backend-changed", NOTICE, Some("BackendChanged")),
            Self::EntryRestored => ("entry-restored", NOTICE, None),
            Self::PeerUnreachable => ("peer-unreachable", WARNING, Some("PeerUnreachable")),
            Self::PeerDegraded => ("peer-degraded", WARNING, None),
            Self::PeerUnknown => ("peer-unknown", WARNING, None),
            Self::PeerReachable => ("peer-reachable", NOTICE, Some("PeerReachable")),
            Self::ProbesOn => ("probes-on", NOTICE, None),
            Self::ProbesOff => ("probes-off", WARNING, None),
            Self::StoreUnreachable => ("store-unreachable", WARNING, None),
            Self::StoreReachable => ("store-reachable", NOTICE, None),
        }
    }

    /// The name in JSON and in the log.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Whether the operator should look at it.
    pub const fn is_warning(self) -> bool {
        self.row().1
    }

    const fn reason(self) -> Option<&'static str> {
        self.row().2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(message: &str) -> NodeChange {
        NodeChange::new(EventKind::PeerAdded, EventSubject::default(), message)
    }

    fn history(messages: impl IntoIterator<Item = String>) -> EventHistory {
        let mut history = EventHistory::new(Timestamp::UNIX_EPOCH);
        for message in messages {
            history.push(Timestamp::UNIX_EPOCH, change(&message));
        }
        history
    }

    fn sequences(history: &EventHistory, after: u64) -> Vec<u64> {
        history.after(after).events.iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn events_are_numbered_and_returned_in_order() {
        let history = history((0..3).map(|number| format!("event {number}")));
        assert_eq!(sequences(&history, 0), [1, 2, 3]);
        assert_eq!(sequences(&history, 2), [3]);
        assert_eq!(sequences(&history, 3), [] as [u64; 0]);
        assert_eq!(sequences(&history, u64::MAX), [] as [u64; 0]);
        assert_eq!(history.after(1).events[0].change.message, "event 1");
    }

    #[test]
    fn the_oldest_events_are_dropped() {
        let history = history((0..2500).map(|number| format!("event {number}")));
        let kept = sequences(&history, 0);
        assert_eq!((kept.len(), kept[0], kept[999]), (1000, 1501, 2500));
    }

    #[test]
    fn long_messages_are_cut_and_bounded_together() {
        let history = history((0..2500).map(|_| "节\u{202e}".repeat(10_000)));
        let page = history.after(0);
        let size: usize = page.events.iter().map(|event| event.size()).sum();
        assert_eq!(size, history.bytes);
        assert!(size <= EventHistory::BYTES && page.events.len() > 100, "{size}");
        assert_eq!(page.events.last().unwrap().sequence, 2500);
        assert!(page.events.iter().all(|event| excerpt::is_printable(&event.change.message)));
    }

    #[test]
    fn the_size_of_an_event_includes_its_subject() {
        let sized = |lease: Option<&str>, peer: Option<&str>| {
            let subject =
                EventSubject { lease: lease.map(LeaseId::new), peer: peer.map(str::to_owned) };
            let mut history = EventHistory::new(Timestamp::UNIX_EPOCH);
            history.push(
                Timestamp::UNIX_EPOCH,
                NodeChange::new(EventKind::PeerAdded, subject, "peer added"),
            );
            history.bytes
        };
        let none = sized(None, None);
        assert_eq!(none, size_of::<NodeEvent>() + "peer added".len());
        assert_eq!(sized(Some("n7"), None), none + 2);
        assert_eq!(sized(Some("n7"), Some("10.244.7.0/24")), none + 2 + 13);
    }

    #[test]
    fn a_page_is_decoded_as_it_was_encoded_and_its_kinds_have_one_name() {
        let peer = Some("10.244.7.0/24 (172.16.0.7)".to_owned());
        let subject = EventSubject { lease: Some(LeaseId::new("n7")), peer };
        let mut history = EventHistory::new("2026-11-23T10:00:00Z".parse().unwrap());
        history.push(
            Timestamp::UNIX_EPOCH,
            NodeChange::new(EventKind::PeerAdded, subject, "peer added, path: tunnel"),
        );
        let page = history.after(0);
        let json = serde_json::to_value(&page).unwrap();
        let expected = serde_json::json!({
            "started": "2026-11-23T10:00:00Z",
            "events": [{
                "sequence": 1, "time": "1970-01-01T00:00:00Z", "kind": "peer-added",
                "lease": "n7", "peer": "10.244.7.0/24 (172.16.0.7)",
                "message": "peer added, path: tunnel",
            }],
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<EventPage>(json).unwrap(), page);
        let kinds = [EventKind::PathChanged, EventKind::StoreUnreachable, EventKind::EntryRestored];
        for kind in kinds {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }

    fn unreachable(number: usize, message: &str) -> NodeEvent {
        let subject = EventSubject { lease: Some(LeaseId::new(format!("n{number}"))), peer: None };
        let time = Timestamp::from_second(i64::try_from(number).unwrap()).unwrap();
        let change = NodeChange::new(EventKind::PeerUnreachable, subject, message);
        NodeEvent { sequence: 1, time, change }
    }

    #[test]
    fn a_digest_of_one_change_is_its_subject_and_sentence() {
        let digest = EventDigest::of(&unreachable(7, "peer is unreachable")).unwrap();
        assert_eq!(digest.message(), "n7: peer is unreachable");
        assert_eq!((digest.reason, digest.number), ("PeerUnreachable", 1));
        let own = NodeChange::new(EventKind::BackendChanged, EventSubject::default(), "changed");
        let own = NodeEvent { sequence: 1, time: Timestamp::UNIX_EPOCH, change: own };
        assert_eq!(EventDigest::of(&own).unwrap().message(), "changed");
        let added = NodeEvent { change: change("peer added"), ..own };
        assert_eq!(EventDigest::of(&added), None);
    }

    #[test]
    fn a_digest_of_many_changes_has_their_number_and_names_the_first() {
        let mut digest = EventDigest::of(&unreachable(1, "gone")).unwrap();
        (2..=5).for_each(|number| digest.add(&unreachable(number, "gone")));
        assert_eq!(digest.message(), "5 changes: n1: gone; n2: gone; n3: gone; 2 more");
        assert_eq!((digest.first.as_second(), digest.last.as_second()), (1, 5));
        let mut more = unreachable(6, "4900 more");
        more.change.number = 4900;
        digest.add(&more);
        assert_eq!(digest.message(), "4905 changes: n1: gone; n2: gone; n3: gone; 4902 more");
    }

    #[test]
    fn the_message_of_a_digest_is_cut_to_whole_characters() {
        let mut digest = EventDigest::of(&unreachable(1, &"节".repeat(1000))).unwrap();
        for number in 2..=3 {
            digest.add(&unreachable(number, &"节".repeat(1000)));
        }
        let message = digest.message();
        assert!(message.len() <= 1024 && message.len() > 1000, "{}", message.len());
        assert!(message.starts_with("3 changes: n1: 节") && message.ends_with('…'), "{message}");
    }

    #[test]
    fn a_subject_names_the_node_if_the_store_names_nodes() {
        let subject = |lease: Option<&str>, peer: Option<&str>| {
            let (lease, peer) = (lease.map(LeaseId::new), peer.map(str::to_owned));
            EventSubject { lease, peer }.to_string()
        };
        let peer = Some("10.244.7.0/24 (172.16.0.7)");
        assert_eq!(subject(Some("10.244.7.0-24"), peer), "10.244.7.0/24 (172.16.0.7)");
        assert_eq!(subject(Some("n7"), peer), "n7 10.244.7.0/24 (172.16.0.7)");
        assert_eq!(subject(Some("hello"), None), "hello");
        assert_eq!(subject(None, None), "this node");
    }
}
