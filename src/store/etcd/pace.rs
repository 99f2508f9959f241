//! How long to wait for a server, and before a request to it, by the time that it takes to answer.

use std::time::Duration;

/// What a node does to reduce the load of an etcd that thousands of nodes use at once. Each part
/// works without the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Pauses between the requests of one node.
    Pause,
    /// Takes a subnet before all leases are read.
    Reserve,
    /// Waits before all leases are read.
    Queue,
    /// Shares one reading of all leases with other nodes.
    Snapshot,
    /// Opens a watch late, and closes it for a while if it gets many messages.
    Gather,
}

/// The parts that are switched off: none, unless their effect is measured.
const OFF: [Part; 0] = [];

pub(super) fn is_on(part: Part) -> bool {
    !OFF.contains(&part)
}

/// For the answer of a server that was not busy, if there are others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// An idle server answers sooner, wherever it is.
pub(super) const BRISK: Duration = Duration::from_millis(100);
/// etcd cancels a request after seven seconds. Below this latency, requests at once cost it less
/// than the same ones spread over time.
const SLOW: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(20);
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// What each waiting node adds to the time over which all of them ask.
const SPREAD_PER_NODE: Duration = Duration::from_millis(2);

/// How long to wait for one of `servers` that took `latency` before. To ask a busy server again
/// before it has answered makes it do the work twice; pings detect a dead one.
pub(super) fn answer_timeout(latency: Duration, servers: usize) -> Duration {
    match servers {
        0 | 1 => LONGEST_TIMEOUT,
        _ => latency.saturating_mul(4).clamp(TIMEOUT, LONGEST_TIMEOUT),
    }
}

/// The longest pause between two requests to a server that takes `latency` to answer: it spreads
/// the requests of thousands of nodes that start together.
pub(super) fn pause(latency: Duration) -> Duration {
    latency.saturating_sub(SLOW).saturating_mul(2).min(LONGEST_PAUSE)
}

/// The longest pause before a request that can wait.
pub(super) fn backoff(latency: Duration) -> Duration {
    latency.saturating_sub(BRISK).saturating_mul(10).min(LONGEST_BACKOFF)
}

/// The longest wait before a request that `waiting` other nodes send too.
pub(super) fn wait(latency: Duration, waiting: u32) -> Duration {
    let spread = SPREAD_PER_NODE.saturating_mul(waiting);
    backoff(latency).max(spread).clamp(SHORTEST_WAIT, LONGEST_BACKOFF)
}

/// A latency that was measured `age` ago: a server that was busy then need not be so now.
pub(super) fn faded(latency: Duration, age: Duration) -> Duration {
    let halvings = u32::try_from(age.as_secs() / 5).unwrap_or(u32::MAX);
    latency / 1_u32.checked_shl(halvings).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_busy_server_is_given_time() {
        let brisk = Duration::from_millis(40);
        assert_eq!((pause(brisk), backoff(brisk)), (Duration::ZERO, Duration::ZERO));
        let slow = Duration::from_millis(300);
        assert_eq!((pause(slow), backoff(slow)), (Duration::ZERO, Duration::from_secs(2)));
        assert_eq!((pause(TIMEOUT * 2), backoff(TIMEOUT)), (LONGEST_PAUSE, LONGEST_BACKOFF));
    }

    #[test]
    fn a_lease_waits_only_for_a_server_that_might_give_up_on_it() {
        assert_eq!(pause(SLOW), Duration::ZERO);
        assert_eq!(pause(SLOW + BRISK), BRISK * 2);
    }

    #[test]
    fn a_turn_takes_the_longer_the_more_wait_for_theirs() {
        assert_eq!(wait(BRISK, 0), SHORTEST_WAIT);
        assert_eq!(wait(BRISK, 4000), Duration::from_secs(8));
        assert_eq!(wait(BRISK * 11, 4000), Duration::from_secs(10));
        assert_eq!(wait(BRISK, u32::MAX), LONGEST_BACKOFF);
    }

    #[test]
    fn who_got_no_answer_in_time_waits_longer_for_the_next() {
        assert_eq!(answer_timeout(Duration::from_millis(300), 3), TIMEOUT);
        assert_eq!(answer_timeout(TIMEOUT, 3), TIMEOUT * 4);
        assert_eq!(answer_timeout(TIMEOUT * 4, 3), LONGEST_TIMEOUT);
    }

    #[test]
    fn a_busy_time_is_forgotten() {
        let seconds = Duration::from_secs;
        assert_eq!(faded(seconds(8), seconds(4)), seconds(8));
        assert_eq!(faded(seconds(8), seconds(10)), seconds(2));
        assert_eq!(pause(faded(LONGEST_TIMEOUT, seconds(3600))), Duration::ZERO);
    }

    #[test]
    fn where_there_is_one_server_it_gets_all_the_time() {
        assert_eq!(answer_timeout(Duration::ZERO, 1), LONGEST_TIMEOUT);
    }
}
