//! Which packets of a peer are new, and how many of its requests are answered.
//!
//! No clocks are compared: a packet is new if its count is new in its session. A session begins
//! with each start of its sender. Once a session has answered a request of this node, it is known
//! to be the present one; until then, its packets may be replayed ones.

use std::time::Duration;

/// Identifies a packet of a sender. Packets of older daemons have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// A random number, different after each start of the sender.
    pub session: u64,
    /// Greater than those of all earlier packets of the session.
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sender {
    proven: Option<Session>,
    proven_requests: Bucket,
    /// Another session, of a restarted peer or of an attacker.
    unproven: Option<Session>,
    /// Requests of unproven sessions, and of older daemons.
    other_requests: Bucket,
    /// Questions of the proven session about packets.
    traces: Bucket,
    /// Reports that the peer is alive.
    reports: Bucket,
}

/// How many questions of all peers about packets are answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TraceLimit {
    all: Bucket,
    /// Of unproven sessions, which may be replayed ones.
    unproven: Bucket,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    id: u64,
    highest: u64,
    /// A bitmap: the lowest bit is for `highest`, the next one for the count before it, and so on.
    received: u128,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bucket {
    full_at: Duration,
}

/// The number of requests of one peer that are answered per period, even all at once. The paths of
/// a peer in doubt need 44: four requests ten times in an interval, jitter included.
const REQUESTS: u32 = 50;
/// The number of reports per period that a peer is alive: as often as a path in doubt is probed.
const REPORTS: u32 = 10;
const LONGEST_PERIOD: Duration = Duration::from_secs(1);
/// The number of questions about packets that are answered per second: of one peer, and of all.
const TRACES: u32 = 2;
const ALL_TRACES: u32 = 20;

impl Sender {
    /// Notes a packet; returns whether it is new, as far as known.
    pub(super) fn take(&mut self, stamp: Option<Stamp>) -> bool {
        let Some(stamp) = stamp else { return true };
        let sessions = [&mut self.proven, &mut self.unproven];
        let known = sessions.into_iter().flatten().find(|it| it.id == stamp.session);
        if let Some(session) = known {
            return session.take(stamp.count);
        }
        self.unproven = Some(Session::beginning_with(stamp));
        true
    }

    /// Notes a packet that answers a request of this node, so that its session is the present one.
    pub(super) fn prove(&mut self, stamp: Option<Stamp>) {
        let Some(stamp) = stamp.filter(|stamp| !self.has_proven(*stamp)) else { return };
        let known = self.unproven.take().filter(|session| session.id == stamp.session);
        self.proven = Some(known.unwrap_or_else(|| Session::beginning_with(stamp)));
    }

    /// Counts a request with this stamp; returns whether it is within the limit of this period. Replayed
    /// packets never count towards the limit of a proven session.
    pub(super) fn spend_request(
        &mut self,
        stamp: Option<Stamp>,
        interval: Duration,
        now: Duration,
    ) -> bool {
        let is_proven = stamp.is_some_and(|stamp| self.has_proven(stamp));
        let bucket = if is_proven { &mut self.proven_requests } else { &mut self.other_requests };
        bucket.take(REQUESTS, interval.min(LONGEST_PERIOD), now)
    }

    /// Counts a question about a packet with this stamp; returns whether it is within the limits of this
    /// second.
    pub(super) fn spend_trace(
        &mut self,
        stamp: Option<Stamp>,
        limit: &mut TraceLimit,
        now: Duration,
    ) -> bool {
        let is_proven = stamp.is_some_and(|stamp| self.has_proven(stamp));
        let bucket = if is_proven { &mut self.traces } else { &mut limit.unproven };
        bucket.take(TRACES, LONGEST_PERIOD, now) && limit.all.take(ALL_TRACES, LONGEST_PERIOD, now)
    }

    /// Counts a report that the peer is alive; returns whether it is within the limit. Of alternating
    /// sessions, each packet seems to be new.
    pub(super) fn spend_report(&mut self, interval: Duration, now: Duration) -> bool {
        self.reports.take(REPORTS, interval.min(LONGEST_PERIOD), now)
    }

    fn has_proven(&self, stamp: Stamp) -> bool {
        self.proven.is_some_and(|session| session.id == stamp.session)
    }
}

impl Session {
    const fn beginning_with(Stamp { session, count }: Stamp) -> Self {
        Self { id: session, highest: count, received: 1 }
    }

    /// Notes a packet; returns whether it is new. A packet whose count is too far behind is not.
    fn take(&mut self, count: u64) -> bool {
        if count > self.highest {
            let ahead = u32::try_from(count - self.highest).unwrap_or(u32::MAX);
            self.received = self.received.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = count;
            return true;
        }
        let behind = u32::try_from(self.highest - count).unwrap_or(u32::MAX);
        let bit = 1_u128.checked_shl(behind).unwrap_or(0);
        let is_new = bit != 0 && self.received & bit == 0;
        self.received |= bit;
        is_new
    }
}

impl Bucket {
    /// Whether one more of `most` per period is within the limit.
    fn take(&mut self, most: u32, period: Duration, now: Duration) -> bool {
        let full_at = self.full_at.max(now) + period / most;
        let may_take = full_at <= now + period;
        if may_take {
            self.full_at = full_at;
        }
        may_take
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const fn stamp(session: u64, count: u64) -> Stamp {
        Stamp { session, count }
    }

    fn answered(sender: &mut Sender, stamps: impl Iterator<Item = Option<Stamp>>) -> usize {
        let mut now = SECOND * 100;
        let mut answered = 0;
        for stamp in stamps {
            now += Duration::from_micros(27);
            answered += usize::from(sender.take(stamp) && sender.spend_request(stamp, SECOND, now));
        }
        answered
    }

    #[test]
    fn a_replayed_request_is_answered_once() {
        let mut sender = Sender::default();
        sender.prove(Some(stamp(1, 1)));
        assert_eq!(answered(&mut sender, (0..37_000).map(|_| Some(stamp(1, 2)))), 1);
    }

    #[test]
    fn replayed_packets_are_answered_fifty_times_a_second_and_block_no_new_one() {
        // Replays for one second: of an older daemon, of two alternating sessions, of many
        // sessions.
        let two = |number: u64| Some(stamp(7 + number % 2, 1));
        let many = |number: u64| Some(stamp(7 + number, 1));
        let floods: [Box<dyn Fn(u64) -> Option<Stamp>>; 3] =
            [Box::new(|_| None), Box::new(two), Box::new(many)];
        for flood in floods {
            let mut sender = Sender::default();
            sender.prove(Some(stamp(1, 1)));
            let replayed = answered(&mut sender, (0..37_000).map(flood));
            assert!((50..=100).contains(&replayed), "{replayed}");
            assert_eq!(answered(&mut sender, (2..42).map(|count| Some(stamp(1, count)))), 40);
        }
    }

    #[test]
    fn a_restarted_peer_is_answered_at_once_and_its_old_packets_are_not() {
        let mut sender = Sender::default();
        sender.prove(Some(stamp(1, 1)));
        assert!(
            sender.take(Some(stamp(2, 1)))
                && sender.spend_request(Some(stamp(2, 1)), SECOND, SECOND)
        );
        sender.prove(Some(stamp(2, 2)));
        assert!(!sender.take(Some(stamp(2, 1))), "it was received before the session was proven");
        assert_eq!(answered(&mut sender, (3..43).map(|count| Some(stamp(2, count)))), 40);
    }

    #[test]
    fn a_peer_is_answered_in_doubt_and_at_the_shortest_interval() {
        let interval = Duration::from_millis(100);
        let mut sender = Sender::default();
        sender.prove(Some(stamp(1, 0)));
        for count in 1..1000_u64 {
            let now = interval / 33 * u32::try_from(count).unwrap();
            assert!(sender.spend_request(Some(stamp(1, count)), interval, now), "{count}");
        }
    }

    #[test]
    fn a_peer_may_ask_about_two_packets_per_second_and_replayed_questions_block_none() {
        let (mut limit, mut sender) = (TraceLimit::default(), Sender::default());
        sender.prove(Some(stamp(1, 1)));
        let mut asked = |number: u32, session: u64| {
            let (now, stamp) = (SECOND * 100 + SECOND / 1000 * number, Some(stamp(session, 2)));
            usize::from(sender.spend_trace(stamp, &mut limit, now))
        };
        // A flood of recorded questions for ten seconds, and one new question in each second.
        let (mut replayed, mut answered) = (0, 0);
        for number in 0..10_000 {
            replayed += asked(number, 7);
            answered += if number % 1000 == 500 { asked(number, 1) } else { 0 };
        }
        assert_eq!(answered, 10);
        assert!((20..=22).contains(&replayed), "{replayed}");
        let many: usize = (20_000..30_000).map(|number| asked(number, 1)).sum();
        assert!((20..=22).contains(&many), "{many}");
    }

    #[test]
    fn all_peers_together_may_ask_about_twenty_packets_per_second() {
        let mut limit = TraceLimit::default();
        let answered = (0..10_000).filter(|number| {
            let (mut sender, now) = (Sender::default(), SECOND * 100 + SECOND / 1000 * *number);
            sender.prove(Some(stamp(1, 1)));
            sender.spend_trace(Some(stamp(1, 2)), &mut limit, now)
        });
        let answered = answered.count();
        assert!((200..=220).contains(&answered), "{answered}");
    }

    proptest! {
        #[test]
        fn a_count_is_new_once_also_with_some_reordering(
            counts in proptest::collection::vec(0_u64..300, 1..600)
        ) {
            let mut sender = Sender::default();
            let (mut seen, mut highest) = (BTreeSet::new(), 0);
            for count in counts {
                let is_new = sender.take(Some(stamp(1, count)));
                prop_assert!(!(is_new && seen.contains(&count)), "{} twice", count);
                prop_assert!(is_new || seen.contains(&count) || highest - count >= 128);
                seen.insert(count);
                highest = highest.max(count);
            }
        }
    }
}
