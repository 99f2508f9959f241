//! The counts of streams and requests.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The sum over all pairs, in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages returned through a stream.
    pub echoes: u64,
    /// Streams that were reset, or silent for ten seconds.
    pub broken: u64,
    /// The longest time until a message was returned.
    pub longest_wait: Duration,
    /// Pages received, each by its own connection.
    pub pages: u64,
    /// Pages with an error, or silent for 15 seconds.
    pub failed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    echoes: AtomicU64,
    broken: AtomicU64,
    longest_wait_us: AtomicU64,
    pages: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    pub(super) fn echo(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.echoes.fetch_add(1, Ordering::Relaxed);
        self.longest_wait_us.fetch_max(micros, Ordering::Relaxed);
    }

    pub(super) fn broken(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn page(&self) {
        self.pages.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts so far; resets them.
    pub(super) fn take(&self) -> Tally {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        Tally {
            echoes: take(&self.echoes),
            broken: take(&self.broken),
            longest_wait: Duration::from_micros(take(&self.longest_wait_us)),
            pages: take(&self.pages),
            failed: take(&self.failed),
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.echoes += other.echoes;
        self.broken += other.broken;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        self.pages += other.pages;
        self.failed += other.failed;
    }
}
