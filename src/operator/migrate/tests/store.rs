//! A store that fails while an order is carried out, and an output that is closed.

use std::io;

use super::*;
use crate::operator::ExitStatus;

fn is_lost(world: &mut World) {
    world.access = Access::Unreachable;
}

fn is_back(world: &mut World) {
    world.access = Access::Answers;
}

const START: &str = "start --to host-gw --canary 172.16.0.1 --hold 1m --auto-rollback";

#[tokio::test(start_paused = true)]
async fn an_unreachable_store_does_not_end_the_observation() {
    let events: &[Event] = &[(8, is_lost), (98, is_back), (110, falls_back)];
    let world = check(
        World::new(MIXED, 3, 0),
        &[(START, events)],
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            14:02:04  the store cannot be used: no answer from etcd; retrying for up to 10m
            14:03:50  now no node
            14:03:50  applied on 3 of 3 nodes
            possible regression, rolled back: all 3 nodes are back on vxlan; next: tweedctl
              migrate finish
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.state().under_way.unwrap().stage.is_empty());
}

fn one_does_not_follow(world: &mut World) {
    world.nodes[2].listens = Listens::No;
}

fn is_back_and_one_follows(world: &mut World) {
    is_back(world);
    world.nodes[2].listens = Listens::Yes;
}

/// Nodes do not read the store then, either.
#[tokio::test(start_paused = true)]
async fn time_without_the_store_does_not_count_as_waiting() {
    let events: &[Event] =
        &[(3, one_does_not_follow), (4, is_lost), (204, is_back_and_one_follows)];
    check(
        World::new(MIXED, 3, 0),
        &[("start --to host-gw --canary 172.16.0.1 --hold 5s --timeout 1s", events)],
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 5s --timeout 1s
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  the store cannot be used: no answer from etcd; retrying for up to 10m
            14:05:20  applied on 2 of 3 nodes
            14:05:21  applied on 3 of 3 nodes
            14:05:21  observing for 5s; no problems
            1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Done
        "]],
    )
    .await;
}

fn loses_the_answer(world: &mut World) {
    world.access = Access::LosesAnswer;
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_answer_is_lost_is_found_by_the_next_read() {
    let events: &[Event] = &[(2, loses_the_answer)];
    check(
        World::new(MIXED, 3, 0),
        &[("start --to host-gw --canary 172.16.0.1", events)],
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Done
        "]],
    )
    .await;
}

fn refuses_writes(world: &mut World) {
    world.access = Access::ReadOnly;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_is_written_when_the_store_is_back() {
    let events: &[Event] = &[(30, falls_back), (31, refuses_writes), (50, is_back)];
    let world = check(
        World::new(MIXED, 3, 0),
        &[(START, events)],
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            14:02:30  the store cannot be used: no answer from etcd; retrying for up to 10m
            14:02:46  now no node
            14:02:46  applied on 3 of 3 nodes
            possible regression, rolled back: all 3 nodes are back on vxlan; next: tweedctl
              migrate finish
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.state().under_way.unwrap().stage.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_fails_names_the_troubles() {
    let events: &[Event] = &[(30, falls_back), (31, refuses_writes)];
    check(
        World::new(MIXED, 3, 0),
        &[(START, events)],
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            14:02:30  the store cannot be used: no answer from etcd; retrying for up to 10m
            possible regression, and the rollback failed: no answer from etcd; the last step
              is written (starting host-gw: 172.16.0.1), and no command observes it any
              more: run tweedctl migrate status, and on a problem tweedctl migrate rollback
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
}

/// The error of an order to three nodes in which these events happen.
async fn error(order: &Order, events: &[Event]) -> String {
    let memory = Memory::new(World::new(MIXED, 3, 0), events);
    let ended = carry_out(&memory, Author::new(note(0)), order, &mut io::sink()).await;
    ended.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn a_command_that_gives_up_names_the_step_that_is_not_observed() {
    let unobserved = "no answer from etcd; the last step is written (starting host-gw: 172.16.0.1), \
                      and no command observes it any more: run tweedctl migrate status, and on a \
                      problem tweedctl migrate rollback";
    assert_eq!(error(&order(START), &[(8, is_lost)]).await, unobserved);
    // Right after the write.
    assert_eq!(error(&order(START), &[(3, is_lost)]).await, unobserved);
    // Before it.
    let unwritten =
        "no answer from etcd; run tweedctl migrate status before you repeat this command";
    assert_eq!(error(&order(START), &[(2, is_lost)]).await, unwritten);
}

#[tokio::test(start_paused = true)]
async fn a_first_write_that_fails_is_not_repeated() {
    let begun = tokio::time::Instant::now();
    let error = error(&order(START), &[(2, refuses_writes)]).await;
    assert_eq!(error, "no answer from etcd: name the servers");
    assert!(begun.elapsed().is_zero());
}

/// As `head`, which reads some lines and ends.
struct Pipe {
    lines: usize,
}

impl io::Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let ends = bytes.contains(&b'\n');
        self.lines = self.lines.checked_sub(ends.into()).ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_pipe_ends_an_order_only_before_its_first_step() {
    for (lines, is_ended) in [(0, true), (1, false), (2, false)] {
        let memory = Memory::new(World::new(MIXED, 3, 0), &[(30, falls_back)]);
        let author = Author::new(note(0));
        let ended = carry_out(&memory, author, &order(START), &mut Pipe { lines }).await;
        let under_way = memory.world.into_inner().state().under_way;
        if is_ended {
            assert!(matches!(ended, Err(Error::Output(_))) && under_way.is_none());
        } else {
            assert_eq!(ended.unwrap().exit_status(), ExitStatus::Degraded);
            assert!(under_way.unwrap().stage.is_empty(), "the stage is rolled back");
        }
    }
    let memory = Memory::new(World::new(MIXED, 3, 0), &[(30, falls_back)]);
    let words = ["tweedctl", "migrate"].into_iter().chain(START.split(' '));
    let arguments = Arguments::try_parse_from(words).unwrap();
    let (order, author) = (MigrateCommand::Order(order(START)), Author::new(note(0)));
    let output = (arguments.output, &mut Pipe { lines: 1 });
    assert_eq!(answer(&memory, &order, author, output).await.unwrap(), ExitStatus::Degraded);
}
