//! What is due when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::changes::Losses;
use crate::model::entry::Key;

/// A packet already past the route lookup still needs the entries of the old path for this long.
const LINGER: Duration = Duration::from_millis(200);
/// Peers that have not heard yet that the tunnel is out of use get this long.
const LINGER_OF_DEVICE: Duration = Duration::from_secs(10);
/// Leases that vanish together are judged together: once no more have followed for this long…
const WITHDRAW: Duration = Duration::from_secs(2);
/// …but no later than this after the first.
const WITHDRAW_LATEST: Duration = Duration::from_secs(30);
/// After the store lost leases, peers get this long to claim theirs again.
const WITHDRAW_AFTER_LOSS: Duration = Duration::from_secs(60);
/// What a store that names us has not named for this long is gone, however much it is.
const LONGEST_BRAKE: Duration = Duration::from_secs(3600);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// A dump costs the more the more peers there are: a storm of changes must not be all that we read.
const DUMP_SPACING: Duration = Duration::from_millis(250);
/// A broken socket is not read for this long.
const DEAF: Duration = Duration::from_millis(100);
const AUDIT: Duration = Duration::from_secs(300);
/// Liveness is judged by it: see `Health`.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// The deadlines of the loop.
#[derive(Debug)]
pub(super) struct Timers {
    /// When to look at a key again.
    keys: BTreeSet<(Instant, Key)>,
    /// Until when unwanted entries stay.
    lingering: BTreeMap<Key, Instant>,
    tasks: BTreeMap<Task, Instant>,
    /// When the first of the leases vanished that are to be judged.
    vanishing: Option<Instant>,
    /// When the last one vanished.
    vanished: Option<Instant>,
    /// Since when the brake has held back losses without any other sign that the store lost data.
    braking: Option<Instant>,
    retries: u32,
    dumped: Option<Instant>,
    chains_read: Option<Instant>,
    listen: Option<Instant>,
    /// From 0 to 1: spreads the audits of many nodes.
    jitter: fn() -> f64,
}

/// What has come due.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// To be looked at again.
    pub(super) keys: Vec<Key>,
    pub(super) tasks: Vec<Task>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Judge the leases that have vanished.
    Withdraw,
    /// Read again what could not be read.
    Retry,
    Dump,
    /// Look at chains: changes of legacy iptables are not notified.
    Chains,
    /// Read everything, as if nothing had ever been notified.
    Audit,
}

impl Timers {
    pub(super) fn new(jitter: fn() -> f64) -> Self {
        let audit = Instant::now() + until_audit(jitter);
        Self {
            keys: BTreeSet::new(),
            lingering: BTreeMap::new(),
            tasks: BTreeMap::from([(Task::Audit, audit)]),
            vanishing: None,
            vanished: None,
            braking: None,
            retries: 0,
            dumped: None,
            chains_read: None,
            listen: None,
            jitter,
        }
    }

    /// When something comes due; no later than the next heartbeat.
    pub(super) fn next(&self) -> Instant {
        let key = self.keys.first().map(|(at, _)| *at);
        let due = self.tasks.values().copied().chain(key).chain(self.listen);
        due.fold(Instant::now() + HEARTBEAT, Instant::min)
    }

    /// Takes what has come due.
    pub(super) fn take_due(&mut self) -> Due {
        let now = Instant::now();
        let is_due = |(task, at): (&Task, &Instant)| (*at <= now).then_some(*task);
        let tasks = self.tasks.iter().filter_map(is_due).collect();
        self.tasks.retain(|_, at| *at > now);
        self.tasks.entry(Task::Audit).or_insert_with(|| now + until_audit(self.jitter));
        self.listen.take_if(|at| *at <= now);
        if !self.tasks.contains_key(&Task::Withdraw) {
            self.vanishing = None;
        }
        Due { tasks, keys: self.take_due_keys(now) }
    }

    fn take_due_keys(&mut self, now: Instant) -> Vec<Key> {
        let mut due = Vec::new();
        while self.keys.first().is_some_and(|(at, _)| *at <= now) {
            due.extend(self.keys.pop_first().map(|(_, key)| key));
        }
        due
    }

    pub(super) fn look_again(&mut self, key: Key, at: Instant) {
        self.keys.insert((at, key));
    }

    /// Whether the unwanted entry `key` has lingered long enough; the first question starts the clock.
    pub(super) fn has_lingered(&mut self, key: &Key) -> bool {
        let now = Instant::now();
        let linger = if matches!(key, Key::Link(_)) { LINGER_OF_DEVICE } else { LINGER };
        let until = *self.lingering.entry(key.clone()).or_insert(now + linger);
        if until > now {
            self.keys.insert((until, key.clone()));
        }
        until <= now
    }

    /// `key` is wanted again, or gone.
    pub(super) fn forget(&mut self, key: &Key) {
        self.lingering.remove(key);
    }

    /// As [`Self::forget`], for all that are no difference any more.
    pub(super) fn retain(&mut self, differs: impl Fn(&Key) -> bool) {
        self.lingering.retain(|key, _| differs(key));
    }

    /// One lease has vanished, and there is nothing to wait for: judge it now, unless others vanished
    /// just before.
    pub(super) fn withdraw_now(&mut self) {
        let now = Instant::now();
        if self.vanished.is_some_and(|at| now < at + WITHDRAW) {
            return self.withdraw_soon();
        }
        self.vanished = Some(now);
        self.tasks.insert(Task::Withdraw, now);
    }

    /// Leases have vanished: judge them soon.
    pub(super) fn withdraw_soon(&mut self) {
        let now = Instant::now();
        self.vanished = Some(now);
        let latest = *self.vanishing.get_or_insert(now) + WITHDRAW_LATEST;
        let soon = (now + WITHDRAW).min(latest);
        let at = self.tasks.entry(Task::Withdraw).or_insert(soon);
        *at = soon.max(*at);
    }

    /// The store seems to have lost leases: judge once the others had time to come back.
    pub(super) fn withdraw_later(&mut self) {
        self.tasks.insert(Task::Withdraw, Instant::now() + WITHDRAW_AFTER_LOSS);
    }

    /// Judges the leases that the store no longer names: at once, or when no more follow.
    pub(super) fn judge_losses(&mut self, Losses { before, after, may_grow }: Losses) {
        if after == 0 {
            self.withdraw_nothing();
        } else if after > before || !self.tasks.contains_key(&Task::Withdraw) {
            if may_grow { self.withdraw_soon() } else { self.withdraw_now() }
        }
    }

    /// What had vanished is back. The next loss is judged by itself.
    pub(super) fn withdraw_nothing(&mut self) {
        self.tasks.remove(&Task::Withdraw);
        self.vanishing = None;
        self.braking = None;
    }

    /// The brake holds, and the store names us.
    pub(super) fn brake(&mut self) {
        self.braking.get_or_insert_with(Instant::now);
    }

    /// The brake does not hold, or the store is not to be trusted.
    pub(super) const fn do_not_brake(&mut self) {
        self.braking = None;
    }

    pub(super) fn has_braked_long_enough(&self) -> bool {
        self.braking.is_some_and(|since| since + LONGEST_BRAKE <= Instant::now())
    }

    /// Something could not be read: try again, each time a little later.
    pub(super) fn retry_later(&mut self) {
        if !self.tasks.contains_key(&Task::Retry) {
            self.tasks.insert(Task::Retry, Instant::now() + backoff(self.retries));
            self.retries += 1;
        }
    }

    /// All that is needed has been read.
    pub(super) fn all_is_read(&mut self) {
        self.tasks.remove(&Task::Retry);
        self.retries = 0;
    }

    /// Something has happened of which only a dump tells: at once, unless the last was only just now.
    pub(super) fn dump_soon(&mut self) {
        let now = Instant::now();
        let earliest = self.dumped.map_or(now, |at| at + DUMP_SPACING);
        self.tasks.entry(Task::Dump).or_insert(earliest.max(now));
    }

    pub(super) fn dumped(&mut self) {
        self.dumped = Some(Instant::now());
        self.tasks.remove(&Task::Dump);
    }

    /// Look at chains `period` from now, if not sooner; without one, only when something else asks
    /// for it.
    pub(super) fn look_at_chains(&mut self, period: Option<Duration>) {
        match period {
            Some(period) => {
                self.tasks.entry(Task::Chains).or_insert_with(|| Instant::now() + period);
            }
            None => drop(self.tasks.remove(&Task::Chains)),
        }
    }

    /// Chains have changed: look at once, unless the last look was only just now.
    pub(super) fn look_at_chains_soon(&mut self) {
        let now = Instant::now();
        let earliest = self.chains_read.map_or(now, |at| at + DUMP_SPACING).max(now);
        let at = self.tasks.entry(Task::Chains).or_insert(earliest);
        *at = earliest.min(*at);
    }

    pub(super) fn chains_were_read(&mut self) {
        self.chains_read = Some(Instant::now());
    }

    pub(super) fn listen_later(&mut self) {
        self.listen = Some(Instant::now() + DEAF);
    }

    pub(super) const fn may_listen(&self) -> bool {
        self.listen.is_none()
    }
}

/// Spreads the audits of many nodes.
fn until_audit(jitter: fn() -> f64) -> Duration {
    AUDIT.mul_f64(0.75 + jitter() / 2.0)
}

/// How long to wait after so many failures in a row.
pub(super) fn backoff(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16)).min(RETRY_LONGEST)
}

#[cfg(test)]
mod tests {
    //! Deadlines on a clock that stands still until it is told to move.

    #![allow(clippy::unwrap_used)]

    use std::net::IpAddr;

    use tokio::runtime::Builder;
    use tokio::time::advance;

    use super::*;
    use crate::model::entry::LinkName;

    /// Runs `story` with a fresh timers.
    fn with_timers(story: impl AsyncFnOnce(&mut Timers)) {
        let clock = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        clock.block_on(async { story(&mut Timers::new(|| 0.5)).await });
    }

    fn key(last: u8) -> Key {
        Key::Neighbour(LinkName::new("flannel.1"), IpAddr::from([10, 244, last, 0]))
    }

    fn tasks(timers: &mut Timers) -> Vec<Task> {
        timers.take_due().tasks
    }

    #[test]
    fn an_entry_lingers_from_the_first_question_on() {
        with_timers(async |timers| {
            assert!(!timers.has_lingered(&key(3)));
            advance(LINGER / 2).await;
            assert!(!timers.has_lingered(&key(3)));
            advance(LINGER / 2).await;
            assert_eq!(timers.take_due().keys, [key(3)]);
            assert!(timers.has_lingered(&key(3)));
        });
    }

    #[test]
    fn an_entry_that_was_wanted_meanwhile_lingers_anew() {
        with_timers(async |timers| {
            timers.has_lingered(&key(3));
            timers.forget(&key(3));
            advance(LINGER).await;
            assert!(!timers.has_lingered(&key(3)));
            timers.has_lingered(&key(4));
            timers.retain(|unwanted| *unwanted == key(4));
            advance(LINGER).await;
            assert!(!timers.has_lingered(&key(3)));
            assert!(timers.has_lingered(&key(4)));
        });
    }

    #[test]
    fn what_is_due_was_due_once() {
        with_timers(async |timers| {
            timers.has_lingered(&key(3));
            timers.withdraw_soon();
            timers.retry_later();
            timers.dump_soon();
            timers.listen_later();
            advance(AUDIT).await;
            let all = [Task::Withdraw, Task::Retry, Task::Dump, Task::Audit];
            assert_eq!(tasks(timers), all);
            assert!(timers.next() > Instant::now());
            assert_eq!(timers.take_due(), Due::default());
        });
    }

    #[test]
    fn losses_are_judged_once_no_more_follow() {
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
    fn a_single_removal_is_judged_now_unless_others_vanished_just_before() {
        with_timers(async |timers| {
            timers.withdraw_now();
            assert_eq!(tasks(timers), [Task::Withdraw]);
            timers.withdraw_now();
            assert_eq!(tasks(timers), []);
            advance(WITHDRAW).await;
            assert_eq!(tasks(timers), [Task::Withdraw]);
            timers.withdraw_now();
            assert_eq!(tasks(timers), [Task::Withdraw]);
            // Another one follows before it was judged.
            advance(WITHDRAW).await;
            timers.withdraw_now();
            timers.withdraw_soon();
            assert_eq!(tasks(timers), []);
        });
    }

    #[test]
    fn the_brake_holds_for_an_hour_without_interruption() {
        with_timers(async |timers| {
            timers.brake();
            advance(LONGEST_BRAKE / 2).await;
            timers.brake();
            advance(LONGEST_BRAKE / 2).await;
            assert!(timers.has_braked_long_enough());
            timers.do_not_brake();
            timers.brake();
            advance(LONGEST_BRAKE / 2).await;
            assert!(!timers.has_braked_long_enough());
        });
    }

    #[test]
    fn losses_that_never_cease_are_judged_all_the_same() {
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
    fn a_loss_does_not_cut_short_the_time_to_come_back() {
        with_timers(async |timers| {
            timers.withdraw_later();
            timers.withdraw_soon();
            advance(WITHDRAW_AFTER_LOSS.saturating_sub(WITHDRAW)).await;
            assert_eq!(tasks(timers), []);
            timers.withdraw_nothing();
            advance(WITHDRAW).await;
            assert_eq!(tasks(timers), []);
        });
    }

    #[test]
    fn the_first_dump_is_at_once_and_the_next_keeps_its_distance() {
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
    fn a_dump_answers_all_that_asked_for_one() {
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
    fn who_failed_again_waits_longer_until_all_is_read() {
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
    fn a_broken_socket_is_left_alone_for_a_while() {
        with_timers(async |timers| {
            timers.listen_later();
            assert!(!timers.may_listen());
            advance(DEAF).await;
            timers.take_due();
            assert!(timers.may_listen());
        });
    }
}
