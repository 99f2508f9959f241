//! Deadlines on a clock that stands still until it is told to move.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use tokio::runtime::Builder;
use tokio::time::advance;

use super::*;
use crate::model::entry::LinkName;

/// Runs `story` with a fresh agenda.
fn with_agenda(story: impl AsyncFnOnce(&mut Agenda)) {
    let clock = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    clock.block_on(async { story(&mut Agenda::new(|| 0.5)).await });
}

fn key(last: u8) -> Key {
    Key::Neighbour(LinkName::new("flannel.1"), IpAddr::from([10, 244, last, 0]))
}

fn tasks(agenda: &mut Agenda) -> Vec<Task> {
    agenda.take_due().tasks
}

#[test]
fn an_entry_lingers_from_the_first_question_on() {
    with_agenda(async |agenda| {
        assert!(!agenda.has_lingered(&key(3)));
        advance(LINGER / 2).await;
        assert!(!agenda.has_lingered(&key(3)));
        advance(LINGER / 2).await;
        assert_eq!(agenda.take_due().keys, [key(3)]);
        assert!(agenda.has_lingered(&key(3)));
    });
}

#[test]
fn an_entry_that_was_wanted_meanwhile_lingers_anew() {
    with_agenda(async |agenda| {
        agenda.has_lingered(&key(3));
        agenda.forget(&key(3));
        advance(LINGER).await;
        assert!(!agenda.has_lingered(&key(3)));
        agenda.has_lingered(&key(4));
        agenda.retain(|unwanted| *unwanted == key(4));
        advance(LINGER).await;
        assert!(!agenda.has_lingered(&key(3)));
        assert!(agenda.has_lingered(&key(4)));
    });
}

#[test]
fn what_is_due_was_due_once() {
    with_agenda(async |agenda| {
        agenda.has_lingered(&key(3));
        agenda.withdraw_soon();
        agenda.retry_later();
        agenda.dump_soon();
        agenda.listen_later();
        advance(AUDIT).await;
        let all = [Task::Withdraw, Task::Retry, Task::Dump, Task::Audit];
        assert_eq!(tasks(agenda), all);
        assert!(agenda.next() > Instant::now());
        assert_eq!(agenda.take_due(), Due::default());
    });
}

#[test]
fn losses_are_judged_once_no_more_follow() {
    with_agenda(async |agenda| {
        agenda.withdraw_soon();
        advance(WITHDRAW / 2).await;
        agenda.withdraw_soon();
        advance(WITHDRAW / 2).await;
        assert_eq!(tasks(agenda), []);
        advance(WITHDRAW / 2).await;
        assert_eq!(tasks(agenda), [Task::Withdraw]);
    });
}

#[test]
fn a_single_removal_is_judged_now_unless_others_vanished_just_before() {
    with_agenda(async |agenda| {
        agenda.withdraw_now();
        assert_eq!(tasks(agenda), [Task::Withdraw]);
        agenda.withdraw_now();
        assert_eq!(tasks(agenda), []);
        advance(WITHDRAW).await;
        assert_eq!(tasks(agenda), [Task::Withdraw]);
        agenda.withdraw_now();
        assert_eq!(tasks(agenda), [Task::Withdraw]);
        // Another one follows before it was judged.
        advance(WITHDRAW).await;
        agenda.withdraw_now();
        agenda.withdraw_soon();
        assert_eq!(tasks(agenda), []);
    });
}

#[test]
fn the_brake_holds_for_an_hour_without_interruption() {
    with_agenda(async |agenda| {
        agenda.brake();
        advance(LONGEST_BRAKE / 2).await;
        agenda.brake();
        advance(LONGEST_BRAKE / 2).await;
        assert!(agenda.has_braked_long_enough());
        agenda.do_not_brake();
        agenda.brake();
        advance(LONGEST_BRAKE / 2).await;
        assert!(!agenda.has_braked_long_enough());
    });
}

#[test]
fn losses_that_never_cease_are_judged_all_the_same() {
    with_agenda(async |agenda| {
        let began = Instant::now();
        while tasks(agenda).is_empty() {
            agenda.withdraw_soon();
            advance(WITHDRAW / 2).await;
        }
        assert!(began.elapsed() <= WITHDRAW_LATEST + WITHDRAW);
    });
}

#[test]
fn a_loss_does_not_cut_short_the_time_to_come_back() {
    with_agenda(async |agenda| {
        agenda.withdraw_later();
        agenda.withdraw_soon();
        advance(WITHDRAW_AFTER_LOSS.saturating_sub(WITHDRAW)).await;
        assert_eq!(tasks(agenda), []);
        agenda.withdraw_nothing();
        advance(WITHDRAW).await;
        assert_eq!(tasks(agenda), []);
    });
}

#[test]
fn the_first_dump_is_at_once_and_the_next_keeps_its_distance() {
    with_agenda(async |agenda| {
        agenda.dump_soon();
        assert_eq!(tasks(agenda), [Task::Dump]);
        agenda.dumped();
        agenda.dump_soon();
        advance(DUMP_SPACING / 2).await;
        agenda.dump_soon();
        assert_eq!(tasks(agenda), []);
        advance(DUMP_SPACING / 2).await;
        assert_eq!(tasks(agenda), [Task::Dump]);
    });
}

#[test]
fn a_dump_answers_all_that_asked_for_one() {
    with_agenda(async |agenda| {
        agenda.dumped();
        agenda.dump_soon();
        agenda.dumped();
        advance(DUMP_SPACING * 2).await;
        assert_eq!(tasks(agenda), []);
    });
}

#[test]
fn a_backoff_doubles_up_to_its_limit() {
    let delays: Vec<_> = [0, 1, 2, 8, 9, 1000].map(|times| backoff(times).as_millis()).into();
    assert_eq!(delays, [100, 200, 400, 25_600, 30_000, 30_000]);
}

#[test]
fn who_failed_again_waits_longer_until_all_is_read() {
    with_agenda(async |agenda| {
        agenda.retry_later();
        advance(backoff(0)).await;
        assert_eq!(tasks(agenda), [Task::Retry]);
        agenda.retry_later();
        advance(backoff(0)).await;
        assert_eq!(tasks(agenda), []);
        agenda.all_is_read();
        agenda.retry_later();
        advance(backoff(0)).await;
        assert_eq!(tasks(agenda), [Task::Retry]);
    });
}

#[test]
fn a_broken_socket_is_left_alone_for_a_while() {
    with_agenda(async |agenda| {
        agenda.listen_later();
        assert!(!agenda.may_listen());
        advance(DEAF).await;
        agenda.take_due();
        assert!(agenda.may_listen());
    });
}
