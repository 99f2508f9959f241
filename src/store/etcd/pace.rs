//! How long to wait for a server, and how long to hold back from it, by the time it takes to answer.

use std::time::Duration;

/// What a node does to spare an etcd that thousands of nodes use at once. Each part works without
/// the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Pauses between the requests of one node.
    Pause,
    /// Takes a subnet before all leases are read.
    Reserve,
    /// Waits for a turn before all leases are read.
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

/// For the answer of a server that has not been busy, where there are others.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// An idle server answers sooner, wherever it is.
pub(super) const BRISK: Duration = Duration::from_millis(100);
/// etcd gives up on a request after seven seconds. Until it comes near, requests at once cost it
/// less than the same ones spread over time.
const BREATHLESS: Duration = Duration::from_secs(3);
const LONGEST_BREATH: Duration = Duration::from_secs(10);
const LONGEST_COURTESY: Duration = Duration::from_secs(20);
const SHORTEST_TURN: Duration = Duration::from_secs(1);
/// What each node of a crowd adds to the time over which all come back.
const SPREAD_PER_NODE: Duration = Duration::from_millis(2);

/// How long to wait for one of `servers` that took `latency` before. Who asks a busy server again
/// before it has answered makes it do the work twice; a dead one is noticed by its pings.
pub(super) fn patience(latency: Duration, servers: usize) -> Duration {
    match servers {
        0 | 1 => LONGEST_TIMEOUT,
        _ => latency.saturating_mul(4).clamp(TIMEOUT, LONGEST_TIMEOUT),
    }
}

/// The longest pause between two requests to a server that takes `latency` to answer: thousands of
/// nodes that start together shall not have it choke on all their requests at once.
pub(super) fn breath(latency: Duration) -> Duration {
    latency.saturating_sub(BREATHLESS).saturating_mul(2).min(LONGEST_BREATH)
}

/// The most that we hold back with what can wait.
pub(super) fn courtesy(latency: Duration) -> Duration {
    latency.saturating_sub(BRISK).saturating_mul(10).min(LONGEST_COURTESY)
}

/// The longest wait for our turn at a server that takes `latency` to answer, in a crowd of so many.
pub(super) fn turn(latency: Duration, crowd: u32) -> Duration {
    let spread = SPREAD_PER_NODE.saturating_mul(crowd);
    courtesy(latency).max(spread).clamp(SHORTEST_TURN, LONGEST_COURTESY)
}

/// What a latency says after `age`: a server that was busy then need not be so now.
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
        assert_eq!((breath(brisk), courtesy(brisk)), (Duration::ZERO, Duration::ZERO));
        let slow = Duration::from_millis(300);
        assert_eq!((breath(slow), courtesy(slow)), (Duration::ZERO, Duration::from_secs(2)));
        assert_eq!((breath(TIMEOUT * 2), courtesy(TIMEOUT)), (LONGEST_BREATH, LONGEST_COURTESY));
    }

    #[test]
    fn a_lease_waits_only_for_a_server_that_might_give_up_on_it() {
        assert_eq!(breath(BREATHLESS), Duration::ZERO);
        assert_eq!(breath(BREATHLESS + BRISK), BRISK * 2);
    }

    #[test]
    fn a_turn_takes_the_longer_the_more_wait_for_theirs() {
        assert_eq!(turn(BRISK, 0), SHORTEST_TURN);
        assert_eq!(turn(BRISK, 4000), Duration::from_secs(8));
        assert_eq!(turn(BRISK * 11, 4000), Duration::from_secs(10));
        assert_eq!(turn(BRISK, u32::MAX), LONGEST_COURTESY);
    }

    #[test]
    fn who_got_no_answer_in_time_waits_longer_for_the_next() {
        assert_eq!(patience(Duration::from_millis(300), 3), TIMEOUT);
        assert_eq!(patience(TIMEOUT, 3), TIMEOUT * 4);
        assert_eq!(patience(TIMEOUT * 4, 3), LONGEST_TIMEOUT);
    }

    #[test]
    fn a_busy_time_is_forgotten() {
        let seconds = Duration::from_secs;
        assert_eq!(faded(seconds(8), seconds(4)), seconds(8));
        assert_eq!(faded(seconds(8), seconds(10)), seconds(2));
        assert_eq!(breath(faded(LONGEST_TIMEOUT, seconds(3600))), Duration::ZERO);
    }

    #[test]
    fn where_there_is_one_server_it_gets_all_the_time() {
        assert_eq!(patience(Duration::ZERO, 1), LONGEST_TIMEOUT);
    }
}
