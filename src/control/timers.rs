//! The deadlines of the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::changes::MissingLeases;
use crate::model::entry::{Key, SettingKind};

/// A packet already past the route lookup needs the entries of the old path for this long.
const LINGER: Duration = Duration::from_millis(200);
/// The time for peers to learn that the tunnel is no longer used.
const LINGER_OF_DEVICE: Duration = Duration::from_secs(10);
/// The time in which all nodes read an edit of the config: kubelets mount one up to 90 s apart. Until then,
/// some send by paths that a strict reverse-path filter drops.
const LINGER_OF_FILTER: Duration = Duration::from_secs(100);
/// Leases that vanish together are evaluated together, when none has followed for this long…
const WITHDRAW: Duration = Duration::from_secs(2);
/// …but no later than this after the first.
const WITHDRAW_LATEST: Duration = Duration::from_secs(30);
/// After the store lost leases, peers have this long to register again.
const WITHDRAW_AFTER_LOSS: Duration = Duration::from_secs(60);
/// Leases still missing after this long are withdrawn whatever their share, if the store lists this
/// node.
const LIMIT_EXPIRY: Duration = Duration::from_secs(3600);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// The cost of a dump grows with the number of peers: a burst of changes must not cause continuous
/// dumps.
const DUMP_SPACING: Duration = Duration::from_millis(250);
/// A socket is not read for this long after an error.
const LISTEN_PAUSE: Duration = Duration::from_millis(100);
const AUDIT: Duration = Duration::from_secs(300);
/// The HTTP server derives liveness from it.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Timers {
    /// When to check a key again.
    keys: BTreeSet<(Instant, Key)>,
    /// The time until which undesired entries are kept.
    lingering: BTreeMap<Key, Instant>,
    tasks: BTreeMap<Task, Instant>,
    /// When the first of the leases to be evaluated vanished.
    vanishing: Option<Instant>,
    /// When the last one vanished.
    vanished: Option<Instant>,
    /// Since when the withdrawal limit has held losses back without any other sign that the store
    /// lost data.
    limited_since: Option<Instant>,
    retries: u32,
    /// The number of failed accesses to the kernel since the last time without one.
    failures: u32,
    dumped: Option<Instant>,
    chains_read: Option<Instant>,
    listen: Option<Instant>,
}

/// Deadlines that have expired.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The keys to check again.
    pub(super) keys: Vec<Key>,
    pub(super) tasks: Vec<Task>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Evaluate the leases that have vanished.
    Withdraw,
    /// Repeat a read that failed.
    Retry,
    Dump,
    /// Read iptables chains: legacy iptables sends no change notifications.
    Chains,
    /// Read everything, independently of notifications.
    Audit,
}

impl Timers {
    pub(super) fn new(jitter: fn() -> f64) -> Self {
        let audit = Instant::now() + until_audit(jitter);
        Self { tasks: BTreeMap::from([(Task::Audit, audit)]), ..Self::default() }
    }

    /// The next deadline; no later than the next heartbeat.
    pub(super) fn next(&self) -> Instant {
        let key = self.keys.first().map(|(at, _)| *at);
        let due = self.tasks.values().copied().chain(key).chain(self.listen);
        due.fold(Instant::now() + HEARTBEAT, Instant::min)
    }

    /// Whether a deadline has expired.
    pub(super) fn is_due(&self) -> bool {
        self.next() <= Instant::now()
    }

    /// Removes and returns the expired deadlines.
    pub(super) fn take_due(&mut self, jitter: fn() -> f64) -> Due {
        let now = Instant::now();
        let is_due = |(task, at): (&Task, &Instant)| (*at <= now).then_some(*task);
        let tasks = self.tasks.iter().filter_map(is_due).collect();
        self.tasks.retain(|_, at| *at > now);
        let mut keys = Vec::new();
        while self.keys.first().is_some_and(|(at, _)| *at <= now) {
            keys.extend(self.keys.pop_first().map(|(_, key)| key));
        }
        self.tasks.entry(Task::Audit).or_insert_with(|| now + until_audit(jitter));
        self.listen.take_if(|at| *at <= now);
        if !self.tasks.contains_key(&Task::Withdraw) {
            self.vanishing = None;
        }
        Due { keys, tasks }
    }

    pub(super) fn check_again(&mut self, key: Key, at: Instant) {
        self.keys.insert((at, key));
    }

    /// Starts the delay of the undesired entry or setting `key`, unless it has begun; returns whether it is
    /// over.
    pub(super) fn check_delay(&mut self, key: &Key) -> bool {
        let now = Instant::now();
        let linger = match key {
            Key::Setting(SettingKind::ReversePath, _) => LINGER_OF_FILTER,
            Key::Link(_) | Key::Setting(..) => LINGER_OF_DEVICE,
            _ => LINGER,
        };
        let until = *self.lingering.entry(key.clone()).or_insert(now + linger);
        if until > now {
            self.keys.insert((until, key.clone()));
        }
        until <= now
    }

    /// The undesired entry `key` is no longer in use: checks it again, if its delay is over.
    pub(super) fn check_unused(&mut self, key: Key) {
        let now = Instant::now();
        if self.lingering.get(&key).is_some_and(|until| *until <= now) {
            self.check_again(key, now);
        }
    }

    /// `key` is desired again, or gone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.lingering.remove(key);
    }

    /// Like [`Self::forget`], for all keys that are no longer a difference.
    pub(super) fn retain(&mut self, differs: impl Fn(&Key) -> bool) {
        self.lingering.retain(|key, _| differs(key));
    }

    /// One lease has vanished and no more are expected: evaluate it now, unless others vanished
    /// shortly before.
    pub(super) fn withdraw_now(&mut self) {
        let now = Instant::now();
        if self.vanished.is_some_and(|at| now < at + WITHDRAW) {
            return self.withdraw_soon();
        }
        self.vanished = Some(now);
        self.tasks.insert(Task::Withdraw, now);
    }

    /// Leases have vanished: evaluate them when no more follow.
    pub(super) fn withdraw_soon(&mut self) {
        let now = Instant::now();
        self.vanished = Some(now);
        let latest = *self.vanishing.get_or_insert(now) + WITHDRAW_LATEST;
        let soon = (now + WITHDRAW).min(latest);
        let at = self.tasks.entry(Task::Withdraw).or_insert(soon);
        *at = soon.max(*at);
    }

    /// The store seems to have lost leases: evaluate them after peers had time to register again.
    pub(super) fn withdraw_later(&mut self) {
        self.tasks.insert(Task::Withdraw, Instant::now() + WITHDRAW_AFTER_LOSS);
    }

    /// Schedules the evaluation of leases missing from the store: at once, or when no more follow.
    pub(super) fn schedule_withdrawal(
        &mut self,
        MissingLeases { before, after, may_grow }: MissingLeases,
    ) {
        if after == 0 {
            self.cancel_withdrawal();
        } else if after > before || !self.tasks.contains_key(&Task::Withdraw) {
            if may_grow { self.withdraw_soon() } else { self.withdraw_now() }
        }
    }

    /// All missing leases are back: the next loss is evaluated separately.
    pub(super) fn cancel_withdrawal(&mut self) {
        self.tasks.remove(&Task::Withdraw);
        self.vanishing = None;
        self.limited_since = None;
    }

    /// The withdrawal limit applies, and the store lists this node's lease.
    pub(super) fn start_limit(&mut self) {
        self.limited_since.get_or_insert_with(Instant::now);
    }

    /// The withdrawal limit does not apply, or the store may have lost data.
    pub(super) const fn end_limit(&mut self) {
        self.limited_since = None;
    }

    pub(super) fn limit_has_expired(&self) -> bool {
        self.limited_since.is_some_and(|since| since + LIMIT_EXPIRY <= Instant::now())
    }

    /// Schedules another look at what is missing on this host, with a growing delay.
    pub(super) fn retry_later(&mut self) {
        if !self.tasks.contains_key(&Task::Retry) {
            self.tasks.insert(Task::Retry, Instant::now() + backoff(self.retries));
            self.retries += 1;
        }
    }

    /// Schedules a retry of a failed access to the kernel, with a growing delay of its own: what is
    /// missing for long does not delay it.
    pub(super) fn retry_failure(&mut self) {
        let at = Instant::now() + backoff(self.failures);
        self.failures += 1;
        let known = self.tasks.entry(Task::Retry).or_insert(at);
        *known = at.min(*known);
    }

    /// The kernel was read and changed without a failure.
    pub(super) const fn end_failures(&mut self) {
        self.failures = 0;
    }

    /// Whether a retry is scheduled.
    pub(super) fn has_retry(&self) -> bool {
        self.tasks.contains_key(&Task::Retry)
    }

    /// All required reads succeeded.
    pub(super) fn all_is_read(&mut self) {
        self.tasks.remove(&Task::Retry);
        self.retries = 0;
    }

    /// Schedules a dump, [`spaced`] from the last one.
    pub(super) fn dump_soon(&mut self) {
        self.tasks.entry(Task::Dump).or_insert_with(|| spaced(self.dumped));
    }

    pub(super) fn dumped(&mut self) {
        self.dumped = Some(Instant::now());
        self.tasks.remove(&Task::Dump);
    }

    /// Schedules a read of chains `period` from now, if none is due earlier; without a period,
    /// cancels the scheduled read.
    pub(super) fn check_chains(&mut self, period: Option<Duration>) {
        match period {
            Some(period) => {
                self.tasks.entry(Task::Chains).or_insert_with(|| Instant::now() + period);
            }
            None => drop(self.tasks.remove(&Task::Chains)),
        }
    }

    /// Schedules a read of changed chains, [`spaced`] from the last one.
    pub(super) fn check_chains_soon(&mut self) {
        let earliest = spaced(self.chains_read);
        let at = self.tasks.entry(Task::Chains).or_insert(earliest);
        *at = earliest.min(*at);
    }

    pub(super) fn chains_were_read(&mut self) {
        self.chains_read = Some(Instant::now());
    }

    pub(super) fn listen_later(&mut self) {
        self.listen = Some(Instant::now() + LISTEN_PAUSE);
    }

    pub(super) const fn may_listen(&self) -> bool {
        self.listen.is_none()
    }
}

/// Now, or [`DUMP_SPACING`] after the last read.
fn spaced(last: Option<Instant>) -> Instant {
    let now = Instant::now();
    last.map_or(now, |at| at + DUMP_SPACING).max(now)
}

/// A random interval, so that many nodes do not audit at the same time. `jitter` is from 0 to 1.
fn until_audit(jitter: fn() -> f64) -> Duration {
    AUDIT.mul_f64(0.75 + jitter() / 2.0)
}

/// The delay after this many consecutive failures.
pub(super) fn backoff(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16)).min(RETRY_LONGEST)
}

#[cfg(test)]
mod tests {
    //! Tests of the deadlines with a paused clock.

    #![allow(clippy::unwrap_used)]

    use std::net::IpAddr;

    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::*;
    use crate::model::entry::LinkName;

    /// Runs `scenario` with new timers on a paused clock.
    fn with_timers(scenario: impl AsyncFnOnce(&mut Timers)) {
        let clock = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        clock.block_on(async { scenario(&mut Timers::new(|| 0.5)).await });
    }

    fn key(last: u8) -> Key {
        Key::Neighbour(LinkName::new("flannel.1"), IpAddr::from([10, 244, last, 0]))
    }

    fn tasks(timers: &mut Timers) -> Vec<Task> {
        timers.take_due(|| 0.5).tasks
    }

    #[test]
    fn an_entry_lingers_from_the_first_call_on() {
        with_timers(async |timers| {
            assert!(!timers.check_delay(&key(3)));
            advance(LINGER / 2).await;
            assert!(!timers.check_delay(&key(3)));
            advance(LINGER / 2).await;
            assert_eq!(timers.take_due(|| 0.5).keys, [key(3)]);
            assert!(timers.check_delay(&key(3)));
        });
    }

    #[test]
    fn an_entry_that_was_desired_again_lingers_for_the_full_delay() {
        with_timers(async |timers| {
            timers.check_delay(&key(3));
            timers.forget(&key(3));
            advance(LINGER).await;
            assert!(!timers.check_delay(&key(3)));
            timers.check_delay(&key(4));
            timers.retain(|unwanted| *unwanted == key(4));
            advance(LINGER).await;
            assert!(!timers.check_delay(&key(3)));
            assert!(timers.check_delay(&key(4)));
        });
    }

    #[test]
    fn a_deadline_is_reported_once() {
        with_timers(async |timers| {
            timers.check_delay(&key(3));
            timers.withdraw_soon();
            timers.retry_later();
            timers.dump_soon();
            timers.listen_later();
            advance(AUDIT).await;
            let all = [Task::Withdraw, Task::Retry, Task::Dump, Task::Audit];
            assert_eq!(tasks(timers), all);
            assert!(timers.next() > Instant::now());
            assert_eq!(timers.take_due(|| 0.5), Due::default());
        });
    }

    #[test]
    fn losses_are_evaluated_when_no_more_follow() {
        with_timers(async |timers| {
            timers.withdraw_soon();
            advance(WITHDRAW / 2).await;
            timers.withdraw_soon();
            advance(WITHDRAW / 2).await;
            assert_eq!(tasks(timers), []);
            advance(WITHDRAW / 2).await;
            assert_eq!(tasks(timers), [Task::Withdraw]);
        });
    }

    #[test]
    fn a_single_removal_is_evaluated_now_unless_others_vanished_shortly_before() {
        with_timers(async |timers| {
            timers.withdraw_now();
            assert_eq!(tasks(timers), [Task::Withdraw]);
            timers.withdraw_now();
            assert_eq!(tasks(timers), []);
            advance(WITHDRAW).await;
            assert_eq!(tasks(timers), [Task::Withdraw]);
            timers.withdraw_now();
            assert_eq!(tasks(timers), [Task::Withdraw]);
            // Another lease vanishes before the evaluation.
            advance(WITHDRAW).await;
            timers.withdraw_now();
            timers.withdraw_soon();
            assert_eq!(tasks(timers), []);
        });
    }

    #[test]
    fn the_withdrawal_limit_expires_after_an_uninterrupted_hour() {
        with_timers(async |timers| {
            timers.start_limit();
            advance(LIMIT_EXPIRY / 2).await;
            timers.start_limit();
            advance(LIMIT_EXPIRY / 2).await;
            assert!(timers.limit_has_expired());
            timers.end_limit();
            timers.start_limit();
            advance(LIMIT_EXPIRY / 2).await;
            assert!(!timers.limit_has_expired());
        });
    }

    #[test]
    fn continuous_losses_are_evaluated_by_the_latest_deadline() {
        with_timers(async |timers| {
            let began = Instant::now();
            while tasks(timers).is_empty() {
                timers.withdraw_soon();
                advance(WITHDRAW / 2).await;
            }
            assert!(began.elapsed() <= WITHDRAW_LATEST + WITHDRAW);
        });
    }

    #[test]
    fn a_loss_does_not_shorten_the_time_to_register_again() {
        with_timers(async |timers| {
            timers.withdraw_later();
            timers.withdraw_soon();
            advance(WITHDRAW_AFTER_LOSS.saturating_sub(WITHDRAW)).await;
            assert_eq!(tasks(timers), []);
            timers.cancel_withdrawal();
            advance(WITHDRAW).await;
            assert_eq!(tasks(timers), []);
        });
    }

    #[test]
    fn the_first_dump_is_immediate_and_the_next_waits_for_the_interval() {
        with_timers(async |timers| {
            timers.dump_soon();
            assert_eq!(tasks(timers), [Task::Dump]);
            timers.dumped();
            timers.dump_soon();
            advance(DUMP_SPACING / 2).await;
            timers.dump_soon();
            assert_eq!(tasks(timers), []);
            advance(DUMP_SPACING / 2).await;
            assert_eq!(tasks(timers), [Task::Dump]);
        });
    }

    #[test]
    fn one_dump_serves_all_earlier_requests() {
        with_timers(async |timers| {
            timers.dumped();
            timers.dump_soon();
            timers.dumped();
            advance(DUMP_SPACING * 2).await;
            assert_eq!(tasks(timers), []);
        });
    }

    #[test]
    fn a_backoff_doubles_up_to_its_limit() {
        let delays: Vec<_> = [0, 1, 2, 8, 9, 1000].map(|times| backoff(times).as_millis()).into();
        assert_eq!(delays, [100, 200, 400, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn a_repeated_failure_waits_longer_until_a_read_succeeds() {
        with_timers(async |timers| {
            timers.retry_later();
            advance(backoff(0)).await;
            assert_eq!(tasks(timers), [Task::Retry]);
            timers.retry_later();
            advance(backoff(0)).await;
            assert_eq!(tasks(timers), []);
            timers.all_is_read();
            timers.retry_later();
            advance(backoff(0)).await;
            assert_eq!(tasks(timers), [Task::Retry]);
        });
    }

    #[test]
    fn what_is_missing_for_long_does_not_delay_the_retry_of_a_failure() {
        with_timers(async |timers| {
            for times in 0..5 {
                timers.retry_later();
                advance(backoff(times)).await;
                assert_eq!(tasks(timers), [Task::Retry]);
            }
            timers.retry_later();
            for times in 0..2 {
                timers.retry_failure();
                advance(backoff(times) / 2).await;
                assert_eq!(tasks(timers), []);
                advance(backoff(times) / 2).await;
                assert_eq!(tasks(timers), [Task::Retry]);
            }
        });
    }

    #[test]
    fn a_failed_socket_is_not_read_during_the_pause() {
        with_timers(async |timers| {
            timers.listen_later();
            assert!(!timers.may_listen());
            advance(LISTEN_PAUSE).await;
            timers.take_due(|| 0.5);
            assert!(timers.may_listen());
        });
    }
}
