//! How long to wait for a server, and how long to hold back from it, by the time it takes to answer.

use std::time::Duration;

/// For the answer to one request, of a server that was not busy before.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// An idle server answers sooner, wherever it is.
const BRISK: Duration = Duration::from_millis(100);
const LONGEST_COURTESY: Duration = Duration::from_secs(20);

/// The most that we hold back from a server which takes so long to answer.
pub(super) fn courtesy(latency: Duration) -> Duration {
    latency.saturating_sub(BRISK).saturating_mul(10).min(LONGEST_COURTESY)
}

const LONGEST_PATIENCE: Duration = Duration::from_secs(30);

/// How long to wait for a server that took `latency` before. To ask a busy one again before it
/// answers is to make it do the same work twice, and the busier for it.
pub(super) fn patience(latency: Duration) -> Duration {
    latency.saturating_mul(4).clamp(TIMEOUT, LONGEST_PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_busy_server_is_given_time() {
        assert_eq!(courtesy(Duration::from_millis(40)), Duration::ZERO);
        assert_eq!(courtesy(Duration::from_millis(300)), Duration::from_secs(2));
        assert_eq!(courtesy(TIMEOUT), LONGEST_COURTESY);
    }

    #[test]
    fn who_got_no_answer_in_time_waits_longer_for_the_next() {
        assert_eq!(patience(Duration::from_millis(300)), TIMEOUT);
        assert_eq!(patience(TIMEOUT), TIMEOUT * 4);
        assert_eq!(patience(TIMEOUT * 4), LONGEST_PATIENCE);
    }
}
