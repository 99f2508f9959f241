//! What is due when.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::kernel::state::Key;

/// A packet already past the route lookup still needs the entries of the old path for this long.
const LINGER: Duration = Duration::from_millis(200);
/// Leases that vanish together are judged together.
const WITHDRAW: Duration = Duration::from_secs(2);
/// After the store lost leases, peers get this long to claim theirs again.
const WITHDRAW_AFTER_LOSS: Duration = Duration::from_secs(60);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
const AUDIT: Duration = Duration::from_secs(300);
/// Liveness is judged by it: see `Health`.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// The deadlines of the loop.
#[derive(Debug)]
pub(super) struct Agenda {
    lingering: BTreeMap<Key, Instant>,
    withdraw: Option<Instant>,
    retry: Option<Instant>,
    retries: u32,
    audit: Instant,
    heartbeat: Instant,
    /// From 0 to 1: spreads the audits of many nodes.
    jitter: fn() -> f64,
}

/// What has come due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    pub removals: Vec<Key>,
    pub withdraw: bool,
    pub retry: bool,
    pub audit: bool,
}

impl Agenda {
    pub(super) fn new(jitter: fn() -> f64) -> Self {
        let now = Instant::now();
        Self {
            lingering: BTreeMap::new(),
            withdraw: None,
            retry: None,
            retries: 0,
            audit: now + AUDIT.mul_f64(0.75 + jitter() / 2.0),
            heartbeat: now + HEARTBEAT,
            jitter,
        }
    }

    /// When something comes due.
    pub(super) fn next(&self) -> Instant {
        let lingering = self.lingering.values().min().copied();
        let optional = [lingering, self.withdraw, self.retry].into_iter().flatten();
        optional.fold(self.audit.min(self.heartbeat), Instant::min)
    }

    /// Takes what has come due off the agenda.
    pub(super) fn take_due(&mut self) -> Due {
        let now = Instant::now();
        let is_due = |at: &mut Option<Instant>| at.take_if(|at| *at <= now).is_some();
        let audit = self.audit <= now;
        if audit {
            self.audit = now + AUDIT.mul_f64(0.75 + (self.jitter)() / 2.0);
        }
        if self.heartbeat <= now {
            self.heartbeat = now + HEARTBEAT;
        }
        Due {
            removals: self
                .lingering
                .iter()
                .filter(|(_, at)| **at <= now)
                .map(|(key, _)| key.clone())
                .collect(),
            withdraw: is_due(&mut self.withdraw),
            retry: is_due(&mut self.retry),
            audit,
        }
    }

    /// Whether the unwanted entry `key` has lingered long enough; the first question starts the clock.
    pub(super) fn has_lingered(&mut self, key: &Key) -> bool {
        let now = Instant::now();
        let until = *self.lingering.entry(key.clone()).or_insert(now + LINGER);
        if until <= now {
            self.lingering.remove(key);
        }
        until <= now
    }

    /// `key` is wanted again, or gone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.lingering.remove(key);
    }

    /// Leases have vanished: judge them soon, and with them what vanishes until then.
    pub(super) fn withdraw_soon(&mut self) {
        self.withdraw.get_or_insert_with(|| Instant::now() + WITHDRAW);
    }

    /// The store seems to have lost leases: judge once the others had time to come back.
    pub(super) fn withdraw_later(&mut self) {
        self.withdraw = Some(Instant::now() + WITHDRAW_AFTER_LOSS);
    }

    /// What had vanished is back. The next loss is judged by itself.
    pub(super) const fn withdraw_nothing(&mut self) {
        self.withdraw = None;
    }

    /// Something was refused: try again, each time a little later.
    pub(super) fn retry_later(&mut self) {
        if self.retry.is_none() {
            let delay = RETRY_FIRST.saturating_mul(1 << self.retries.min(16)).min(RETRY_LONGEST);
            self.retry = Some(Instant::now() + delay);
            self.retries += 1;
        }
    }

    /// Nothing is refused any more.
    pub(super) fn all_is_well(&mut self) {
        self.retry = None;
        self.retries = 0;
    }
}
