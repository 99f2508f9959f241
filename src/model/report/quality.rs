//! Loss and latency of paths, rounded to coarse steps so that noise does not cause new reports.

use serde::{Deserialize, Serialize};

use crate::model::path::Path;
use crate::model::status::{PeerStatus, ProbeResults};

/// The loss and latency of the paths in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Quality {
    /// Lost probes per thousand.
    pub lost: u32,
    /// In microseconds.
    pub round_trip: u32,
}

/// The minimum number of probes. Of fewer, losses before the peer was ready are too large a share.
const ENOUGH: u32 = 32;
/// Increases below this are noise, in lost probes per thousand.
const LOSS: u32 = 10;
/// Increases below this are noise, in microseconds: each value is the time of a single answer.
const DELAY: u32 = 10_000;

impl Quality {
    /// Computes the quality from the numbers of probes and a typical round-trip time; rounded up.
    pub fn measured(asked: u32, lost: u32, round_trip_us: u32) -> Self {
        let share = u64::from(lost) * 1000;
        let share = share.checked_div(u64::from(asked)).unwrap_or_default();
        let lost = u32::try_from(share).unwrap_or(1000).max(u32::from(lost > 0));
        Self { lost: stepped(lost), round_trip: stepped(round_trip_us) }
    }

    /// The quality of the paths in use to `peers`; none if none of them is probed.
    pub fn of_peers(peers: &[PeerStatus]) -> Option<Self> {
        let mut all: Vec<&ProbeResults> = peers.iter().filter_map(in_use).collect();
        all.sort_by_key(|results| results.round_trip_us);
        let usual = all.get(all.len() / 2)?.round_trip_us.unwrap_or_default();
        let (asked, lost) = all
            .iter()
            .fold((0, 0), |(asked, lost), results| (asked + results.asked, lost + results.lost));
        Some(Self::measured(asked, lost, usual.try_into().unwrap_or(u32::MAX)))
    }

    /// Of several nodes, the highest loss and the median round-trip time.
    pub fn of_all(qualities: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut all: Vec<Self> = qualities.into_iter().collect();
        all.sort_by_key(|quality| quality.round_trip);
        let lost = all.iter().map(|quality| quality.lost).max()?;
        Some(Self { lost, round_trip: all.get(all.len() / 2)?.round_trip })
    }

    /// What is clearly worse than `before`, if anything.
    pub fn worse_than(self, before: Self) -> Option<String> {
        if self.lost >= LOSS && self.lost > before.lost.saturating_mul(2) {
            Some(format!("it loses {}, {} before", self.loss(), before.loss()))
        } else if self.round_trip > before.round_trip.saturating_mul(4).saturating_add(DELAY) {
            Some(format!("answers take {}, {} before", self.latency(), before.latency()))
        } else {
            None
        }
    }

    /// As in `0.2 %`.
    pub fn loss(self) -> String {
        match (self.lost / 10, self.lost % 10) {
            (whole, 0) => format!("{whole} %"),
            (whole, tenths) => format!("{whole}.{tenths} %"),
        }
    }

    /// As in `0.2 ms`.
    pub fn latency(self) -> String {
        match self.round_trip {
            us @ ..1000 => format!("{us} us"),
            us => format!("{} ms", us / 1000),
        }
    }
}

/// The probe results of the path in use to this peer, if it is probed.
fn in_use(peer: &PeerStatus) -> Option<&ProbeResults> {
    let probes = peer.probes.as_ref()?;
    let results = match peer.path? {
        Path::Direct => probes.direct.as_ref(),
        Path::Tunnel => probes.tunnel.as_ref(),
    };
    results.filter(|results| results.asked >= ENOUGH)
}

/// Rounds up to the next of 0, 1, 2, 5, 10, 20, 50, …
fn stepped(value: u32) -> u32 {
    let steps =
        (0..10).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u32.saturating_pow(power)));
    std::iter::once(0).chain(steps).find(|step| *step >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::path::ProbeVerdict;
    use crate::model::status::PathStatus;

    #[test]
    fn noise_causes_no_new_report() {
        assert_eq!(Quality::measured(100, 0, 210), Quality::measured(100, 0, 430));
        assert_eq!(Quality::measured(1000, 3, 210), Quality::measured(1000, 5, 210));
        assert_ne!(Quality::measured(1000, 0, 210), Quality::measured(100_000, 1, 210));
        assert_eq!(Quality::measured(0, 0, 0), Quality { lost: 0, round_trip: 0 });
    }

    #[test]
    fn only_a_noticeable_change_is_worse() {
        let quality = |lost, round_trip| Quality { lost, round_trip };
        assert_eq!(quality(5, 500).worse_than(quality(0, 200)), None);
        assert_eq!(quality(20, 200).worse_than(quality(10, 200)), None);
        let lossy = quality(20, 200).worse_than(quality(2, 200));
        assert_eq!(lossy.as_deref(), Some("it loses 2 %, 0.2 % before"));
        assert_eq!(quality(0, 10_000).worse_than(quality(0, 500)), None);
        let slow = quality(0, 20_000).worse_than(quality(0, 500));
        assert_eq!(slow.as_deref(), Some("answers take 20 ms, 500 us before"));
    }

    #[test]
    fn the_worst_loss_and_the_median_time_of_many_nodes_are_used() {
        let all =
            [(0, 200), (50, 5000), (0, 100)].map(|(lost, round_trip)| Quality { lost, round_trip });
        assert_eq!(Quality::of_all(all), Some(Quality { lost: 50, round_trip: 200 }));
        assert_eq!(Quality::of_all([]), None);
    }
    #[test]
    fn the_paths_in_use_count_once_there_are_enough_probes() {
        let results = |asked, lost| ProbeResults {
            asked,
            lost,
            round_trip_us: Some(400),
            answered_ms_ago: Some(1),
        };
        let peer = |path, direct, tunnel| PeerStatus {
            lease: crate::model::lease::LeaseId::new("10.5.1.0-24"),
            family: None,
            subnet: None,
            public_ip: None,
            backend: "vxlan".to_owned(),
            path: Some(path),
            reason: None,
            programmed: true,
            reachability: None,
            probes: Some(PathStatus {
                verdict: ProbeVerdict::Good,
                direct: Some(direct),
                tunnel: Some(tunnel),
            }),
        };
        let young = peer(Path::Direct, results(31, 1), results(64, 0));
        assert_eq!(Quality::of_peers(std::slice::from_ref(&young)), None);
        let lossy = peer(Path::Direct, results(40, 4), results(64, 0));
        let well = peer(Path::Tunnel, results(64, 64), results(60, 0));
        let quality = Quality { lost: 50, round_trip: 500 };
        assert_eq!(Quality::of_peers(&[young, lossy, well]), Some(quality));
    }
}
