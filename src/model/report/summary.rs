//! The parts of a report that a list of all nodes shows.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{CowStrDeserializer, Error};

use super::{DaemonState, Exception, FailingPeer, MISSED, PeerGroup};
use crate::excerpt;
use crate::model::config::BackendType;
use crate::model::lease::LeaseId;
use crate::model::path::{PeerReachability, ReachabilityState};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::ReachabilityCounts;

/// A part of a [`super::NodeReport`]. It is read several times faster than the whole, and needs
/// less memory, since other parts are skipped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ReportSummary {
    pub version: String,
    pub lease: LeaseId,
    #[serde(default)]
    pub name: Option<String>,
    pub subnets: Vec<Prefix>,
    pub backend: BackendType,
    pub mixed: bool,
    #[serde(default)]
    pub pod_mtu: Option<u32>,
    #[serde(default)]
    pub reachability: ReachabilityCounts,
    #[serde(default)]
    pub failing_peers: Vec<FailingPeer>,
    #[serde(default)]
    pub groups: Vec<PeerGroup>,
    #[serde(default)]
    pub exceptions: Vec<Exception>,
    #[serde(default)]
    pub refresh_seconds: Option<u64>,
    #[serde(default)]
    pub daemon: Option<DaemonState>,
}

impl ReportSummary {
    /// Parses the summary of a report and cuts its texts; none if it is not a report.
    pub fn decode(json: &[u8]) -> Option<Self> {
        let mut report: Self = serde_json::from_slice(json).ok()?;
        let reason = report.daemon.iter_mut().filter_map(|daemon| daemon.reason.as_mut());
        let exceptions = report.exceptions.iter_mut().map(|exception| &mut exception.reason);
        let texts = [&mut report.version].into_iter().chain(&mut report.name);
        for text in texts.chain(reason).chain(exceptions) {
            *text = excerpt::sentence(text);
        }
        Some(report)
    }

    /// Whether the report has missed three refreshes, the last of which was this long ago; without
    /// a time, there was none.
    pub fn is_stale(&self, age: Option<Duration>) -> bool {
        let longest = |seconds| Duration::from_secs(seconds).saturating_mul(MISSED);
        self.refresh_seconds.is_some_and(|seconds| age.is_none_or(|age| age >= longest(seconds)))
    }
}

/// The fields of a [`FailingPeer`] in a report. Thousands of reports may name a hundred each; to
/// read a flattened enum would copy every field first.
#[derive(Deserialize)]
pub(super) struct FlatPeer<'a> {
    lease: LeaseId,
    #[serde(default)]
    family: Option<Family>,
    state: ReachabilityState,
    #[serde(default, borrow)]
    cause: Cow<'a, str>,
    #[serde(default)]
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
