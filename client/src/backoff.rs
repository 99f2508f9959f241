//! How long to wait before a retry.

use std::time::Duration;

/// Doubles with each attempt, up to a bound, with jitter, so that thousands of nodes do not retry
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    tries: u32,
    shortest: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::up_to(Self::LONGEST)
    }
}

impl Backoff {
    pub const SHORTEST: Duration = Duration::from_millis(200);
    pub const LONGEST: Duration = Duration::from_secs(30);

    pub const fn up_to(longest: Duration) -> Self {
        Self::between(Self::SHORTEST, longest)
    }

    pub const fn between(shortest: Duration, longest: Duration) -> Self {
        Self { tries: 0, shortest, longest }
    }

    /// `random`, from 0 to 1, times the longest delay of this attempt.
    pub fn delay(&mut self, random: f64) -> Duration {
        let doubled =
            self.shortest.saturating_mul(1_u32.checked_shl(self.tries).unwrap_or(u32::MAX));
        self.tries = self.tries.saturating_add(1);
        doubled.min(self.longest).mul_f64(random.clamp(0.0, 1.0))
    }

    /// After a success: the next delay is short again.
    pub const fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_delay_doubles_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..10).map(|_| backoff.delay(1.0).as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        for _ in 0..100 {
            assert_eq!(backoff.delay(1.0), Backoff::LONGEST);
        }
    }

    #[test]
    fn a_lower_bound_is_kept() {
        let mut backoff = Backoff::up_to(Duration::from_secs(1));
        let delays: Vec<u128> = (0..5).map(|_| backoff.delay(1.0).as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn jitter_may_reduce_a_delay_to_zero() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.delay(0.0), Duration::ZERO);
        assert_eq!(backoff.delay(0.25), Duration::from_millis(100));
    }

    #[test]
    fn success_shortens_the_next_delay() {
        let mut backoff = Backoff::default();
        backoff.delay(1.0);
        backoff.delay(1.0);
        backoff.reset();
        assert_eq!(backoff.delay(1.0), Backoff::SHORTEST);
    }
}
