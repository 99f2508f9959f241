//! Timeouts and pauses of requests, according to the latency of the server.

use std::time::Duration;

/// Measures that reduce the load on an etcd that thousands of nodes use at once. Each works without
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Pauses between the requests of one node.
    Pause,
    /// Reserves a subnet before all leases are read.
    Reserve,
    /// Waits before all leases are read.
    Queue,
    /// Shares one listing of all leases with other nodes.
    Snapshot,
    /// Opens a watch later, and closes it for some time if it gets many messages.
    Gather,
}

/// The parts that are switched off: none, except to measure their effect.
const OFF: [Part; 0] = [];

pub(super) fn is_on(part: Part) -> bool {
    !OFF.contains(&part)
}

/// The timeout for a server that was not busy, if there are others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The latency of any idle server is lower, also at a distance.
pub(super) const BRISK: Duration = Duration::from_millis(100);
/// etcd cancels a request after seven seconds. Below this latency, requests at once cost it less
/// than the same ones spread over time.
const SLOW: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(20);
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

/// The longest pause between two requests to a server with this `latency`: it distributes the
/// requests of thousands of nodes that start together.
pub(super) fn pause(latency: Duration) -> Duration {
    latency.saturating_sub(SLOW).saturating_mul(2).min(LONGEST_PAUSE)
}

/// The longest pause before a request that can wait.
pub(super) fn backoff(latency: Duration) -> Duration {
    latency.saturating_sub(BRISK).saturating_mul(10).min(LONGEST_BACKOFF)
}

/// The longest pause before a request that `waiting` other nodes send too.
pub(super) fn wait(latency: Duration, waiting: u32) -> Duration {
    let spread = SPREAD_PER_NODE.saturating_mul(waiting);
    backoff(latency).max(spread).clamp(SHORTEST_WAIT, LONGEST_BACKOFF)
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
    fn only_a_busy_server_causes_pauses() {
        let brisk = Duration::from_millis(40);
        assert_eq!((pause(brisk), backoff(brisk)), (Duration::ZERO, Duration::ZERO));
        let slow = Duration::from_millis(300);
        assert_eq!((pause(slow), backoff(slow)), (Duration::ZERO, Duration::from_secs(2)));
        assert_eq!((pause(TIMEOUT * 2), backoff(TIMEOUT)), (LONGEST_PAUSE, LONGEST_BACKOFF));
    }

    #[test]
    fn a_lease_waits_only_for_a_server_that_might_cancel_requests() {
        assert_eq!(pause(SLOW), Duration::ZERO);
        assert_eq!(pause(SLOW + BRISK), BRISK * 2);
    }

    #[test]
    fn the_pause_grows_with_the_number_of_waiting_nodes() {
        assert_eq!(wait(BRISK, 0), SHORTEST_WAIT);
        assert_eq!(wait(BRISK, 4000), Duration::from_secs(8));
        assert_eq!(wait(BRISK * 11, 4000), Duration::from_secs(10));
        assert_eq!(wait(BRISK, u32::MAX), LONGEST_BACKOFF);
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
        assert_eq!(pause(faded(LONGEST_TIMEOUT, seconds(3600))), Duration::ZERO);
    }

    #[test]
    fn a_single_server_has_the_longest_timeout() {
        assert_eq!(answer_timeout(Duration::ZERO, 1), LONGEST_TIMEOUT);
    }
}
