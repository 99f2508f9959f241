//! The task that probes paths, and the paths themselves, whose state a script sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tweed::control::Event;
use tweed::model::path::{Cause, Path, ProbeVerdict, ReachabilityState};
use tweed::model::status::PeerStatus;
use tweed::plan::paths::{ProbeKind, ProbeRequest, Target};
use tweed::plan::trace::Trace;
use tweed::probe::{self, Orders, ProbeEvent};

use crate::notation::prefix;

pub(crate) struct Prober {
    orders: Orders,
    /// The verdict on peers that have none yet: all are as unresponsive as flannel is, or all
    /// answer; none while no verdict is made.
    usual: Option<ProbeVerdict>,
    /// Which verdict the paths to each peer deserve.
    deserved: BTreeMap<IpAddr, ProbeVerdict>,
    /// The last state that the script set for one peer.
    named: Option<(IpAddr, ProbeVerdict)>,
    /// The peers that answer no more.
    stopped: BTreeSet<IpAddr>,
    is_on: bool,
    /// Ahead of the clock of the scenario: verdicts take seconds, and a script waits for none.
    clock: Instant,
}

/// A request that takes longer is lost.
const TIMEOUT: Duration = Duration::from_millis(250);
/// Between two moments at which the loop may ask.
const STEP: Duration = Duration::from_millis(300);

impl Prober {
    pub(crate) fn start(events: &mpsc::Sender<Event>) -> Self {
        let (channels, orders) = probe::channels();
        for event in [ProbeEvent::Channels(channels), ProbeEvent::On] {
            events.try_send(Event::Probe(event)).expect("the loop takes no events");
        }
        let (usual, deserved, named) = (Some(ProbeVerdict::Silent), BTreeMap::new(), None);
        let (stopped, clock) = (BTreeSet::new(), Instant::now());
        Self { orders, usual, deserved, named, stopped, is_on: true, clock }
    }

    /// Runs a command of the script; returns the event for the loop, if any.
    pub(crate) fn perform(&mut self, words: &str) -> Option<ProbeEvent> {
        let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
        let verdict = match word {
            "off" => {
                self.is_on = false;
                return Some(ProbeEvent::Off(rest.to_owned()));
            }
            "stop" => {
                self.stopped.insert(prefix(rest).base());
                return None;
            }
            "awaited" => None,
            "silent" => Some(ProbeVerdict::Silent),
            "good" => Some(ProbeVerdict::Good),
            "no-answer" => Some(ProbeVerdict::Bad(Cause::NoAnswer)),
            "large-lost" => Some(ProbeVerdict::Bad(Cause::LargeLost)),
            _ => panic!("probes are not {words}"),
        };
        if rest.is_empty() {
            self.usual = verdict;
        } else {
            let peer = prefix(rest).base();
            assert!(self.targets().contains_key(&peer), "{peer} is not probed");
            self.stopped.remove(&peer);
            self.named = verdict.map(|verdict| (peer, verdict));
        }
        let was_on = std::mem::replace(&mut self.is_on, true);
        (!was_on).then_some(ProbeEvent::On)
    }

    pub(crate) fn is_probing(&self) -> bool {
        self.is_on && !self.targets().is_empty()
    }

    /// Notes what peers that have no verdict deserve.
    pub(crate) fn expect_verdicts(&mut self, peers: &[PeerStatus]) {
        for (peer, verdict) in verdicts(peers) {
            match self.usual {
                Some(usual) if verdict == ProbeVerdict::Pending => {
                    self.deserved.insert(peer, usual)
                }
                None if verdict == ProbeVerdict::Pending => self.deserved.remove(&peer),
                Some(_) | None => None,
            };
        }
        self.deserved.extend(self.named.take());
        self.clock = self.clock.max(Instant::now());
    }

    /// Whether a peer can have the verdict that it deserves, and has another one, or is not yet
    /// reported as unreachable or as reachable again.
    pub(crate) fn has_to_go_on(&self, peers: &[PeerStatus]) -> bool {
        let targets = self.targets();
        let are_unnoticed = peers.iter().any(|peer| {
            let state = peer.reachability.map(|it| it.state());
            let is_stopped = peer.subnet.is_some_and(|it| self.stopped.contains(&it.base()));
            is_stopped != (state == Some(ReachabilityState::Unreachable))
        });
        let are_unjudged = verdicts(peers).any(|(peer, verdict)| {
            // A peer that answers no more keeps its verdict.
            let deserved = self.deserved.get(&peer).filter(|_| !self.stopped.contains(&peer));
            let deserved = deserved.filter(|deserved| **deserved != verdict);
            let target = targets.get(&peer);
            deserved.zip(target).is_some_and(|(deserved, target)| is_possible(*deserved, target))
        });
        // Without a direct path there is no verdict: the answer itself is awaited.
        let are_awaited = peers.iter().any(|peer| {
            let base = peer.subnet.map(tweed::model::prefix::Prefix::base);
            let is_good = |it: IpAddr| self.deserved.get(&it) == Some(&ProbeVerdict::Good);
            let target = base.filter(|it| is_good(*it)).and_then(|it| targets.get(&it));
            let state = peer.reachability.map(|it| it.state());
            target.is_some_and(|it| it.tunnel && !it.direct)
                && state == Some(ReachabilityState::Unknown)
        });
        are_unnoticed || are_unjudged || are_awaited
    }

    /// The next moment at which the loop asks.
    pub(crate) fn due(&mut self) -> ProbeEvent {
        let due = *self.orders.due.borrow();
        let next = self.clock + STEP;
        self.clock = due.map_or(next, |due| next.max(due));
        ProbeEvent::Due { at: self.clock }
    }

    /// What becomes of the requests of the loop.
    pub(crate) fn results(&mut self) -> Vec<ProbeEvent> {
        let mut results = Vec::new();
        while let Ok(request) = self.orders.requests.try_recv() {
            let (sent, deserved) = (self.clock, self.deserved.get(&request.peer));
            let is_answered = deserved.is_some_and(|it| is_answered(*it, &request));
            results.push(if is_answered && !self.stopped.contains(&request.peer) {
                ProbeEvent::Answered { request, sent, at: sent, takes_direct: true }
            } else {
                ProbeEvent::Lost { request, sent, at: sent + TIMEOUT }
            });
        }
        results
    }

    /// The answer of the loop to the question of a peer.
    pub(crate) fn answered(&mut self) -> Option<Trace> {
        self.orders.answers.try_recv().ok().map(|answered| answered.trace)
    }

    fn targets(&self) -> BTreeMap<IpAddr, Target> {
        self.orders.targets.borrow().peers.clone()
    }
}

/// The verdict on each peer that is probed.
fn verdicts(peers: &[PeerStatus]) -> impl Iterator<Item = (IpAddr, ProbeVerdict)> {
    peers.iter().filter_map(|peer| Some((peer.subnet?.base(), peer.probes.as_ref()?.verdict)))
}

/// Whether there are paths by which this verdict can come about.
fn is_possible(verdict: ProbeVerdict, target: &Target) -> bool {
    match verdict {
        ProbeVerdict::Pending => true,
        ProbeVerdict::Silent => target.direct || target.tunnel,
        ProbeVerdict::Good => target.direct,
        ProbeVerdict::Bad(_) => target.direct && target.tunnel,
    }
}

/// Whether a peer whose direct path deserves `verdict` answers `request`.
fn is_answered(verdict: ProbeVerdict, request: &ProbeRequest) -> bool {
    match verdict {
        ProbeVerdict::Pending | ProbeVerdict::Silent => false,
        ProbeVerdict::Good => true,
        ProbeVerdict::Bad(Cause::NoAnswer) => request.path == Path::Tunnel,
        ProbeVerdict::Bad(Cause::LargeLost) => {
            request.path == Path::Tunnel || request.kind != ProbeKind::Large
        }
    }
}
