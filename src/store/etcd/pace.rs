//! Timeouts and waits of requests, according to the latency of the server.

use std::time::Duration;

/// The timeout for a server that was not busy, if there are others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The latency of an idle server is lower, unless it is far away.
pub(super) const BRISK: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(20);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// The time that each waiting node adds to the period over which all send their requests.
const SPREAD_PER_NODE: Duration = Duration::from_millis(2);

/// The timeout for one of `servers` that had this `latency` before. A retry before a busy server
/// has answered would double its work; pings detect a dead server.
pub(super) fn answer_timeout(latency: Duration, servers: usize) -> Duration {
    match servers {
        0 | 1 => LONGEST_TIMEOUT,
        _ => latency.saturating_mul(4).clamp(TIMEOUT, LONGEST_TIMEOUT),
    }
}

/// Whether thousands of nodes may be using a server with this `latency` at once.
pub(super) fn is_busy(latency: Duration) -> bool {
    latency > BRISK
}

/// The longest wait before a request that `waiting` other nodes send too.
pub(super) fn wait(latency: Duration, waiting: u32) -> Duration {
    let load = latency.saturating_sub(BRISK).saturating_mul(10);
    let spread = SPREAD_PER_NODE.saturating_mul(waiting);
    load.max(spread).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

/// A latency that was measured `age` ago, which decays: a server that was busy may not be so now.
pub(super) fn faded(latency: Duration, age: Duration) -> Duration {
    let halvings = u32::try_from(age.as_secs() / 5).unwrap_or(u32::MAX);
    latency / 1_u32.checked_shl(halvings).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_server_is_busy() {
        assert!(!is_busy(BRISK));
        assert!(is_busy(Duration::from_millis(300)));
    }

    #[test]
    fn the_wait_grows_with_the_latency_and_the_number_of_waiting_nodes() {
        assert_eq!(wait(BRISK, 0), SHORTEST_WAIT);
        assert_eq!(wait(Duration::from_millis(300), 0), Duration::from_secs(2));
        assert_eq!(wait(TIMEOUT, 0), LONGEST_WAIT);
        assert_eq!(wait(BRISK, 4000), Duration::from_secs(8));
        assert_eq!(wait(BRISK * 11, 4000), Duration::from_secs(10));
        assert_eq!(wait(BRISK, u32::MAX), LONGEST_WAIT);
    }

    #[test]
    fn the_timeout_grows_with_the_latency() {
        assert_eq!(answer_timeout(Duration::from_millis(300), 3), TIMEOUT);
        assert_eq!(answer_timeout(TIMEOUT, 3), TIMEOUT * 4);
        assert_eq!(answer_timeout(TIMEOUT * 4, 3), LONGEST_TIMEOUT);
    }

    #[test]
    fn a_high_latency_decays() {
        let seconds = Duration::from_secs;
        assert_eq!(faded(seconds(8), seconds(4)), seconds(8));
        assert_eq!(faded(seconds(8), seconds(10)), seconds(2));
        assert!(!is_busy(faded(LONGEST_TIMEOUT, seconds(3600))));
    }

    #[test]
    fn a_single_server_has_the_longest_timeout() {
        assert_eq!(answer_timeout(Duration::ZERO, 1), LONGEST_TIMEOUT);
    }
}
