//! Probe rates: fast where a path is unknown or doubtful, and limited for the node and the network.

use std::time::Duration;

/// How urgent the next probe of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Unjudged,
    /// A probe was lost, so the path may have failed.
    Doubtful,
    /// Some probes were lost: the share of losses must be measured.
    Watched,
    Steady,
    /// The peer has never answered.
    Silent,
}

/// Probes per second once the state of all paths is known.
const STEADY: f64 = 20.0;
/// Probes per second while the state of paths is unknown or doubtful.
const BURST: f64 = 200.0;
/// How many of the urgent probes may be sent at once.
const AT_ONCE: f64 = 40.0;
/// The factor by which the interval of a silent peer is longer.
const SILENT: u32 = 8;

impl Pace {
    /// The time between two probes of one of `peers`.
    pub(super) fn interval(self, interval: Duration, peers: usize) -> Duration {
        let number = u32::try_from(peers).unwrap_or(u32::MAX);
        let steady = interval.max(Duration::from_secs_f64(f64::from(number) / STEADY));
        match self {
            Self::Unjudged => interval / 4,
            Self::Doubtful => interval / 10,
            Self::Watched => interval,
            Self::Steady => steady,
            Self::Silent => steady * SILENT,
        }
    }

    /// Whether a verdict is awaited, so that all paths are probed.
    pub(super) const fn is_urgent(self) -> bool {
        matches!(self, Self::Unjudged | Self::Doubtful)
    }

    /// Whether probes at this pace count against the [`Budget`].
    pub(super) const fn is_limited(self) -> bool {
        matches!(self, Self::Unjudged | Self::Doubtful | Self::Watched)
    }
}

/// The time after which a probe without an answer is lost. Not shorter than a busy host may take to
/// schedule two daemons: a late answer would count as a loss of the path.
pub fn answer_timeout(interval: Duration) -> Duration {
    (interval / 4).max(Duration::from_millis(200))
}

/// A rate limit for urgent probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    free: Duration,
}

impl Budget {
    /// Reserves `requests` probes; they may be sent from the returned time on.
    pub(super) fn reserve(&mut self, requests: usize, now: Duration) -> Duration {
        let number = u32::try_from(requests).unwrap_or(u32::MAX);
        let seconds = |requests: f64| Duration::from_secs_f64(requests / BURST);
        let unspent = now.saturating_sub(seconds(AT_ONCE));
        self.free = self.free.max(unspent) + seconds(number.into());
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn few_peers_are_probed_at_every_interval() {
        assert_eq!(Pace::Steady.interval(SECOND, 3), SECOND);
        assert_eq!(Pace::Steady.interval(SECOND, 20), SECOND);
    }

    #[test]
    fn many_peers_share_twenty_probes_per_second() {
        assert_eq!(Pace::Steady.interval(SECOND, 1000), Duration::from_secs(50));
        assert_eq!(Pace::Silent.interval(SECOND, 1000), Duration::from_secs(400));
    }

    #[test]
    fn a_doubtful_path_is_judged_within_an_interval() {
        let Thresholds { failures, interval } = Thresholds { failures: 3, interval: SECOND };
        let found =
            answer_timeout(interval) + Pace::Doubtful.interval(interval, 1000) * (failures - 1);
        assert!(found + answer_timeout(interval) < interval, "{found:?}");
    }

    struct Thresholds {
        failures: u32,
        interval: Duration,
    }

    #[test]
    fn urgent_probes_are_limited_too() {
        let mut budget = Budget::default();
        let now = SECOND * 100;
        let slots: Vec<Duration> = (0..1000).map(|_| budget.reserve(2, now)).collect();
        let within = |time| slots.iter().filter(|slot| **slot <= time).count();
        assert_eq!(within(now), 20);
        assert_eq!(within(now + SECOND), 120);
        assert_eq!(slots.last(), Some(&(now + SECOND * 98 / 10)));
    }
}
