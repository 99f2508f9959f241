//! When connections of UDP are deleted. Times are those since any fixed time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::conntrack::Stale;
use super::diff::PASSED;

/// What is to be deleted: it stays until that has succeeded.
#[derive(Debug, Default)]
pub struct Deletions {
    /// Until when they are deleted again: packets that were on their way may have made them again. None
    /// before the table is as it is to be.
    stale: BTreeMap<Stale, Option<Duration>>,
    /// Whether all connections are to be looked at, because it is not known which ones are stale.
    is_review_due: bool,
    /// When the next attempt is made after one that failed.
    retry_at: Option<Duration>,
}

/// The time between two attempts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(5);

/// If more than these could not be deleted, all connections are looked at instead.
const MOST_STALE: usize = 10_000;

impl Deletions {
    pub fn add(&mut self, stale: impl IntoIterator<Item = Stale>) {
        for one in stale {
            self.stale.insert(one, None);
            self.retry_at = None;
        }
    }

    pub const fn review(&mut self) {
        self.is_review_due = true;
    }

    pub const fn is_review_due(&self) -> bool {
        self.is_review_due
    }

    /// The table is as it is to be: packets lead to none of these any more.
    pub fn mark_applied(&mut self, now: Duration) {
        for until in self.stale.values_mut() {
            until.get_or_insert(now + PASSED);
        }
    }

    /// Whether to make an attempt.
    pub fn are_due(&self, now: Duration) -> bool {
        let is_something = self.is_review_due || !self.stale.is_empty();
        is_something && self.retry_at.is_none_or(|at| at <= now)
    }

    pub fn stale(&self) -> BTreeSet<Stale> {
        self.stale.keys().copied().collect()
    }

    /// An attempt that had begun at `begun` has succeeded.
    pub fn succeeded(&mut self, begun: Duration) {
        self.stale.retain(|_, until| until.is_none_or(|until| until > begun));
        (self.is_review_due, self.retry_at) = (false, None);
    }

    pub fn failed(&mut self, now: Duration) {
        self.retry_at = Some(now + BETWEEN_ATTEMPTS);
        if self.stale.len() > MOST_STALE {
            self.stale.clear();
            self.is_review_due = true;
        }
    }

    /// When the next attempt is to be made, if the last one succeeded.
    pub fn due(&self) -> Option<Duration> {
        let first = self.stale.values().flatten().min().copied();
        first.filter(|_| self.retry_at.is_none())
    }

    /// When the next attempt is to be made, if the last one failed.
    pub const fn retry_at(&self) -> Option<Duration> {
        self.retry_at
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn stale(port: u16) -> Stale {
        let address = |port| SocketAddr::from(([10, 1, 0, 2], port));
        Stale { to: address(53), answered_by: address(port) }
    }

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn connections_are_deleted_twice() {
        let mut deletions = Deletions::default();
        assert!(!deletions.are_due(at(0)));
        deletions.add([stale(1)]);
        deletions.mark_applied(at(10));
        assert!(deletions.are_due(at(10)));
        deletions.succeeded(at(5));
        assert_eq!(deletions.due(), Some(at(110)));
        assert!(deletions.are_due(at(110)));
        deletions.succeeded(at(110));
        assert!(deletions.stale().is_empty() && deletions.due().is_none());
    }

    #[test]
    fn what_could_not_be_deleted_is_tried_again_until_it_is() {
        let mut deletions = Deletions::default();
        deletions.add([stale(1)]);
        deletions.mark_applied(at(10));
        for round in 0..100 {
            let now = at(10) + BETWEEN_ATTEMPTS * round;
            assert!(deletions.are_due(now));
            deletions.failed(now);
            assert!(!deletions.are_due(now + at(200)), "it does not keep the program busy");
            assert_eq!(deletions.due(), None);
            assert_eq!(deletions.retry_at(), Some(now + BETWEEN_ATTEMPTS));
            assert_eq!(deletions.stale(), [stale(1)].into());
        }
        // Another one waits for nothing.
        let now = at(10) + BETWEEN_ATTEMPTS * 99 + at(300);
        deletions.add([stale(2)]);
        assert!(deletions.are_due(now));
        deletions.mark_applied(now);
        deletions.succeeded(now);
        assert_eq!(deletions.stale(), [stale(2)].into(), "whose second time is still to come");
    }

    /// The table could not be written to the end.
    #[test]
    fn what_is_stale_stays_so_until_the_table_is_written() {
        let mut deletions = Deletions::default();
        deletions.add([stale(1)]);
        deletions.succeeded(at(1000));
        assert_eq!((deletions.stale(), deletions.due()), ([stale(1)].into(), None));
        deletions.mark_applied(at(2000));
        assert_eq!(deletions.due(), Some(at(2000) + PASSED));
    }

    #[test]
    fn what_cannot_be_deleted_takes_no_endless_room() {
        let mut deletions = Deletions::default();
        deletions.add((0..10_000).map(stale));
        deletions.failed(at(0));
        assert!(!deletions.is_review_due());
        deletions.add([stale(10_000)]);
        deletions.failed(at(0));
        assert!(deletions.is_review_due() && deletions.stale().is_empty());
        assert!(deletions.are_due(BETWEEN_ATTEMPTS));
        deletions.succeeded(BETWEEN_ATTEMPTS);
        assert!(!deletions.is_review_due());
    }
}
