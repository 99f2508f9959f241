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
