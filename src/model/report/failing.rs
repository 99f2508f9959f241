//! A peer that is degraded or unreachable, in a report. Thousands of reports may name a hundred each.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::de::IntoDeserializer;
use serde::de::value::{CowStrDeserializer, Error};
use serde::{Deserialize, Serialize};

use crate::model::lease::LeaseId;
use crate::model::path::{PeerReachability, ReachabilityState};
use crate::model::prefix::Family;
use crate::model::status::PeerStatus;

/// A peer that is degraded or unreachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FlatPeer<'_>")]
pub struct FailingPeer {
    pub lease: LeaseId,
    pub family: Option<Family>,
    #[serde(flatten)]
    pub reachability: PeerReachability,
    /// Since when it is degraded or unreachable; none in the loop's report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// The unreachable and degraded ones among `peers`, as many as a report may contain.
pub fn failing_peers(peers: &[PeerStatus]) -> Vec<FailingPeer> {
    let failing = peers.iter().filter_map(|peer| {
        let reachability = peer.reachability.filter(|it| it.state().is_failing())?;
        let (lease, family) = (peer.lease.clone(), peer.family);
        Some(FailingPeer { lease, family, reachability, since: None })
    });
    let mut failing: Vec<FailingPeer> = failing.collect();
    failing.sort_by_key(|peer| std::cmp::Reverse(peer.reachability.state()));
    failing.truncate(super::MOST);
    failing
}

impl FailingPeer {
    pub(super) fn is(&self, other: &Self) -> bool {
        let state = |peer: &Self| peer.reachability.state();
        self.lease == other.lease && self.family == other.family && state(self) == state(other)
    }

    /// When it started to fail, in whole seconds.
    pub(super) fn start(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = self.reachability.since_ms().unwrap_or_default() / 1000;
        Timestamp::from_second(now.as_second().saturating_sub_unsigned(seconds)).ok()
    }
}

/// The fields of a [`FailingPeer`] in a report. To read a flattened enum would copy every field
/// first.
#[derive(Deserialize)]
struct FlatPeer<'a> {
    lease: LeaseId,
    family: Option<Family>,
    state: ReachabilityState,
    #[serde(default, borrow)]
    cause: Cow<'a, str>,
    since: Option<Timestamp>,
}

impl TryFrom<FlatPeer<'_>> for FailingPeer {
    type Error = Error;

    fn try_from(peer: FlatPeer<'_>) -> Result<Self, Error> {
        let FlatPeer { lease, family, state, cause, since } = peer;
        let cause: CowStrDeserializer<'_, Error> = cause.into_deserializer();
        let reachability = match state {
            ReachabilityState::Reachable => PeerReachability::Reachable,
            ReachabilityState::Degraded => {
                PeerReachability::Degraded { cause: Deserialize::deserialize(cause)? }
            }
            ReachabilityState::Unreachable => PeerReachability::Unreachable {
                cause: Deserialize::deserialize(cause)?,
                since_ms: None,
            },
            ReachabilityState::Unknown => {
                PeerReachability::Unknown { cause: Deserialize::deserialize(cause)? }
            }
        };
        Ok(Self { lease, family, reachability, since })
    }
}
