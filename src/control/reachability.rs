//! Whether the peers answer by the paths in use: for status, readiness and the recorder.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tokio::time::Instant;

use super::Control;
use super::changes::Changes;
use super::readiness::SHOWN;
use crate::model::event::{EventKind, EventSubject};
use crate::model::lease::{Endpoint, Lease};
use crate::model::path::{PeerReachability, ReachabilityState, UnknownCause};
use crate::model::status::ReachabilityCounts;
use crate::plan::paths::Board;

/// How many unreachable peers the status names.
const NAMED: usize = 10;

/// What was last recorded about the peers.
#[derive(Debug, Default)]
pub(super) struct LoggedPeers {
    /// The peers that are degraded, unreachable or no longer answer probes, and since when.
    failing: BTreeMap<IpAddr, (ReachabilityState, Instant)>,
    /// The peers whose reachability may differ from what was recorded.
    moved: BTreeSet<IpAddr>,
}

impl Control {
    /// Whether the peer of `endpoint`, which has a path, answers by it.
    pub(super) fn reachability(&self, endpoint: &Endpoint) -> PeerReachability {
        self.known_reachability(endpoint.subnet.base()).unwrap_or_else(|| {
            let is_off =
                !self.is_probing() || (self.current_board().is_none() && !self.paths.is_starting());
            let cause = if is_off { UnknownCause::ProbesOff } else { UnknownCause::TooEarly };
            PeerReachability::Unknown { cause }
        })
    }

    /// The number of peers with a path in each state.
    pub(super) fn reachability_counts(&self) -> ReachabilityCounts {
        let mut counts = ReachabilityCounts::default();
        for (lease, plan) in self.derived.desired.peers().values().flatten() {
            let planned = plan.paths.iter().filter(|(_, planned)| planned.is_ok());
            let states = planned.filter_map(|(family, _)| lease.endpoint(*family));
            let states = states.map(|endpoint| self.reachability(endpoint).state());
            if let Some(state) = states.reduce(ReachabilityState::worse) {
                *counts.of(state) += 1;
            }
        }
        counts
    }

    pub(super) fn first_unreachable(&self) -> Vec<String> {
        let unreachable =
            self.failing().filter(|(_, it)| it.state() == ReachabilityState::Unreachable);
        let unreachable = self.once_per_lease(unreachable.map(|(peer, _)| peer));
        unreachable.into_iter().take(NAMED).filter_map(|peer| self.peer_name(peer)).collect()
    }

    /// One sentence for all peers that fail for the same reason, the unreachable ones first.
    pub(super) fn reachability_warnings(&self) -> Vec<String> {
        let failing = self.failing().map(|(peer, reachability)| (reachability, peer));
        let mut groups = PeerReachability::groups(failing);
        groups.sort_by_cached_key(|(group, _)| Reverse((group.state(), group.cause())));
        let total = if groups.is_empty() { 0 } else { self.peers_with_path() };
        let warning = |(group, peers): (PeerReachability, Vec<IpAddr>)| {
            let peers = self.once_per_lease(peers);
            let cause = group.cause().unwrap_or_default();
            let are = if peers.len() == 1 { "is" } else { "are" };
            let named = peers.iter().filter_map(|peer| self.peer_name(*peer)).take(SHOWN);
            let mut named: Vec<String> = named.collect();
            let more = peers.len().saturating_sub(SHOWN);
            named.extend((more > 0).then(|| format!("{more} more")));
            let (number, state) = (peers.len(), group.state().as_str());
            format!("{number} of {total} peers {are} {state}: {}: {cause}", named.join(", "))
        };
        groups.into_iter().map(warning).collect()
    }

    fn peers_with_path(&self) -> usize {
        let peers = self.derived.desired.peers().values().flatten();
        peers.filter(|(_, plan)| plan.paths.iter().any(|(_, planned)| planned.is_ok())).count()
    }

    /// The first of the addresses of each lease, so that a peer with two address families counts
    /// once.
    fn once_per_lease(&self, peers: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
        let mut leases = BTreeSet::new();
        let is_first =
            |peer: &IpAddr| self.lease_at(*peer).is_none_or(|lease| leases.insert(&lease.id));
        peers.into_iter().filter(is_first).collect()
    }

    /// Records which peers became reachable or unreachable.
    pub(super) fn note_reachability(&mut self) -> Changes {
        let moved = self.paths.take_moved();
        let report = !moved.is_empty();
        self.paths.logged.moved.extend(moved);
        Changes { report, ..Changes::default() }
    }

    /// Records the peers that became reachable or unreachable, each once per change.
    pub(super) fn record_reachability(&mut self) {
        // A change of the plan may have changed paths.
        self.take(Self::note_reachability);
        for peer in std::mem::take(&mut self.paths.logged.moved) {
            if let Some((kind, sentence)) = self.peer_change(peer) {
                let lease = self.lease_at(peer);
                let subject = lease.and_then(|it| Some(EventSubject::at(it, endpoint(it, peer)?)));
                self.recorder.note(kind, || (subject.unwrap_or_default(), sentence));
            }
        }
    }

    /// The change of a peer since it was last recorded, if there is one.
    fn peer_change(&mut self, peer: IpAddr) -> Option<(EventKind, String)> {
        let known = self.known_reachability(peer);
        let failing = &mut self.paths.logged.failing;
        let before = failing.get(&peer).copied();
        let is_daemon_silent =
            known == Some(PeerReachability::Unknown { cause: UnknownCause::DaemonSilent });
        let is_shown = |state: &ReachabilityState| state.is_failing() || is_daemon_silent;
        let Some(state) = known.map(|it| it.state()).filter(is_shown) else {
            let (before, since) = failing.remove(&peer)?;
            let seconds = since.elapsed().as_secs();
            let is_back = known == Some(PeerReachability::Reachable);
            return is_back.then(|| recovery(before, seconds));
        };
        if before.is_some_and(|(before, _)| before == state) {
            return None;
        }
        failing.insert(peer, (state, Instant::now()));
        known.map(failure)
    }

    /// The degraded and unreachable peers.
    fn failing(&self) -> impl Iterator<Item = (IpAddr, PeerReachability)> {
        let peers = self.current_board().into_iter().flat_map(Board::failing);
        peers.filter_map(|peer| Some((peer, self.known_reachability(peer)?)))
    }

    fn known_reachability(&self, peer: IpAddr) -> Option<PeerReachability> {
        self.current_board()?.reachability(peer, self.paths.now())
    }

    /// As in `10.244.7.0/24 (172.16.0.7)`.
    fn peer_name(&self, peer: IpAddr) -> Option<String> {
        endpoint(self.lease_at(peer)?, peer).map(ToString::to_string)
    }
}

fn failure(reachability: PeerReachability) -> (EventKind, String) {
    let cause = reachability.cause().unwrap_or_default();
    let kind = match reachability.state() {
        ReachabilityState::Unknown => {
            return (EventKind::PeerUnknown, format!("peer does not answer probes: {cause}"));
        }
        ReachabilityState::Degraded => EventKind::PeerDegraded,
        ReachabilityState::Unreachable | ReachabilityState::Reachable => EventKind::PeerUnreachable,
    };
    (kind, format!("peer is {}: {cause}", reachability.state().as_str()))
}

/// `before` is the state that the peer had for `seconds`.
fn recovery(before: ReachabilityState, seconds: u64) -> (EventKind, String) {
    let what = match before {
        ReachabilityState::Unknown => "answers probes again",
        ReachabilityState::Unreachable => "is reachable again",
        ReachabilityState::Degraded | ReachabilityState::Reachable => "is no longer degraded",
    };
    (EventKind::PeerReachable, format!("peer {what} after {seconds} s"))
}

/// The endpoint of the peer whose subnet starts with this address.
fn endpoint(lease: &Lease, peer: IpAddr) -> Option<&Endpoint> {
    lease.endpoints.iter().find(|it| it.subnet.base() == peer)
}
