//! How fast to ask: soon where it matters, and never more than a node and its network can well bear.

use std::time::Duration;

/// How urgent the next question to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Its path is not known yet.
    Unjudged,
    /// A question was lost: does the path still work?
    Doubtful,
    Steady,
    /// It never answers.
    Silent,
}

/// Questions per second, once all paths are known.
const STEADY: f64 = 20.0;
/// Questions per second while paths are unknown or in doubt.
const BURST: f64 = 200.0;
/// So many of those may go at once.
const AT_ONCE: f64 = 40.0;
/// A silent peer is asked so many times less often.
const SILENT: u32 = 8;

impl Pace {
    /// The time between two turns of one of `peers`.
    pub(super) fn interval(self, interval: Duration, peers: usize) -> Duration {
        let number = u32::try_from(peers).unwrap_or(u32::MAX);
        let steady = interval.max(Duration::from_secs_f64(f64::from(number) / STEADY));
        match self {
            Self::Unjudged => interval / 4,
            Self::Doubtful => interval / 10,
            Self::Steady => steady,
            Self::Silent => steady * SILENT,
        }
    }

    /// Whether such questions are counted against the [`Budget`].
    pub(super) const fn is_urgent(self) -> bool {
        matches!(self, Self::Unjudged | Self::Doubtful)
    }
}

/// An answer that took longer does not count.
pub fn answer_timeout(interval: Duration) -> Duration {
    (interval / 4).max(Duration::from_millis(50))
}

/// When there is room for urgent questions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    free: Duration,
}

impl Budget {
    /// Makes room for `questions`, once for all: they may go at the moment returned, or later.
    pub(super) fn reserve(&mut self, questions: usize, now: Duration) -> Duration {
        let number = u32::try_from(questions).unwrap_or(u32::MAX);
        let seconds = |questions: f64| Duration::from_secs_f64(questions / BURST);
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
    fn few_peers_are_asked_at_every_interval() {
        assert_eq!(Pace::Steady.interval(SECOND, 3), SECOND);
        assert_eq!(Pace::Steady.interval(SECOND, 20), SECOND);
    }

    #[test]
    fn many_peers_share_twenty_questions_a_second() {
        assert_eq!(Pace::Steady.interval(SECOND, 1000), Duration::from_secs(50));
        assert_eq!(Pace::Silent.interval(SECOND, 1000), Duration::from_secs(400));
    }

    #[test]
    fn doubts_are_cleared_within_an_interval() {
        let Rules { failures, interval } = Rules { failures: 3, interval: SECOND };
        let found =
            answer_timeout(interval) + Pace::Doubtful.interval(interval, 1000) * (failures - 1);
        assert!(found + answer_timeout(interval) < interval, "{found:?}");
    }

    struct Rules {
        failures: u32,
        interval: Duration,
    }

    #[test]
    fn urgent_questions_have_a_bound_too() {
        let mut budget = Budget::default();
        let now = SECOND * 100;
        let slots: Vec<Duration> = (0..1000).map(|_| budget.reserve(2, now)).collect();
        let within = |time| slots.iter().filter(|slot| **slot <= time).count();
        assert_eq!(within(now), 20);
        assert_eq!(within(now + SECOND), 120);
        assert_eq!(slots.last(), Some(&(now + SECOND * 98 / 10)));
    }
}
