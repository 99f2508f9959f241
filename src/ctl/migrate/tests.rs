//! Orders on a cluster in memory: what is printed, what is written, and how it ends.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Parser;
use expect_test::{Expect, expect};

use super::carry_out::Work;
use super::network::{self, Hand, Network};
use super::options::Command;
use super::plan::{Plan, Rows};
use super::status::Status;
use crate::backend::Path;
use crate::config::Kind;
use crate::ctl::options::{self, Arguments};
use crate::ctl::{Answer, Error};
use crate::migration::tests::{Listens, MIXED, Runs, VXLAN, World, note};
use crate::migration::{Stage, Step};
use crate::subnet::etcd::{Away, Holdings, Swap, Written};

/// Something that happens to the cluster once it was looked at so often.
type Event = (usize, fn(&mut World));

/// A store in memory; its nodes take in a change when it is looked at for the second time.
struct Memory {
    world: RefCell<World>,
    reads: RefCell<usize>,
    events: Vec<Event>,
}

impl Network for Memory {
    fn config_key(&self) -> &'static str {
        "/coreos.com/network/config"
    }

    async fn read(&self) -> Result<Holdings, Away> {
        let (mut world, mut reads) = (self.world.borrow_mut(), self.reads.borrow_mut());
        *reads += 1;
        let due = self.events.iter().filter(|(at, _)| *at == *reads);
        due.for_each(|(_, event)| event(&mut world));
        let config = Some(Written { text: world.text.clone(), revision: world.revision });
        let holdings = Holdings { config, records: world.records(), reports: world.reports() };
        world.follow();
        Ok(holdings)
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Away> {
        let mut world = self.world.borrow_mut();
        if world.revision != seen {
            return Ok(Swap::Outdated);
        }
        world.put(text);
        Ok(Swap::Done(world.revision))
    }
}

fn command(line: &str) -> Command {
    let words = ["tweedctl", "migrate"].into_iter().chain(line.split(' '));
    match Arguments::try_parse_from(words).unwrap().command {
        options::Command::Migrate(options) => options.command,
        other => panic!("{other:?}"),
    }
}

/// Gives the orders one after the other, each in a new process so to speak, and compares all they print.
async fn check(world: World, lines: &[(&str, &[Event])], expected: &Expect) -> World {
    let mut world = world;
    let mut said = String::new();
    for (line, events) in lines {
        let memory =
            Memory { world: RefCell::new(world), reads: RefCell::new(0), events: events.to_vec() };
        let command = command(line);
        let hand = Hand::new("root@n1".into(), note(0).at);
        let mut progress = Vec::new();
        let work =
            Work { network: &memory, hand, progress: &mut progress, watching: command.watching() };
        let outcome = work.carry_out(&command.order().unwrap()).await.unwrap();
        let progress = String::from_utf8(progress).unwrap();
        writeln!(said, "# {line}\n{progress}{outcome}{:?}", outcome.verdict()).unwrap();
        world = memory.world.into_inner();
    }
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
    expected.assert_eq(&said);
    world
}

#[tokio::test(start_paused = true)]
async fn a_cluster_moves_stage_by_stage() {
    let world = World::new(VXLAN, 4, 0);
    let lines: [(&str, &[Event]); 6] = [
        ("start --to host-gw --canary 172.16.0.1 --hold 2m", &[]),
        ("next", &[]),
        ("next --percent 100", &[]),
        ("next", &[]),
        ("finish", &[]),
        ("finish", &[]),
    ];
    let world = check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 2m
            14:02:00  Mixed is turned on
            14:02:00  in force on 4 of 4 nodes
            14:02:00  host-gw begins: 172.16.0.1
            14:02:00  in force on 4 of 4 nodes
            14:02:00  watching for 2m; all is well
            14:03:00  watching for 1m; all is well
            1 of 4 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Well
            # next
            14:02:00  in force on 4 of 4 nodes
            14:02:00  now 50 % and 172.16.0.1
            14:02:00  in force on 4 of 4 nodes
            2 of 4 nodes on host-gw (50 % and 172.16.0.1); next: tweedctl migrate next
            Well
            # next --percent 100
            14:02:00  in force on 4 of 4 nodes
            14:02:00  now all nodes
            14:02:00  in force on 4 of 4 nodes
            4 of 4 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Well
            # next
            14:02:00  in force on 4 of 4 nodes
            reached already: all nodes; next: tweedctl migrate finish
            Well
            # finish
            14:02:00  in force on 4 of 4 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  in force on 4 of 4 nodes
            finished: all 4 nodes are on host-gw
            Well
            # finish
            finished: every node is on host-gw
            Well
        "]],
    )
    .await;
    assert_eq!(world.text, r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#);
}

#[tokio::test(start_paused = true)]
async fn it_is_taken_back_from_any_stage_and_leaves_no_trace() {
    let lines: [(&str, &[Event]); 6] = [
        ("start --to host-gw", &[]),
        ("next", &[]),
        ("rollback --one-stage", &[]),
        ("rollback", &[]),
        ("rollback", &[]),
        ("finish", &[]),
    ];
    let world = check(
        World::new(VXLAN, 8, 0),
        &lines,
        &expect![[r"
            # start --to host-gw
            14:02:00  Mixed is turned on
            14:02:00  in force on 8 of 8 nodes
            14:02:00  host-gw begins: 25 %
            14:02:00  in force on 8 of 8 nodes
            2 of 8 nodes on host-gw (25 %); next: tweedctl migrate next
            Well
            # next
            14:02:00  in force on 8 of 8 nodes
            14:02:00  now 50 %
            14:02:00  in force on 8 of 8 nodes
            4 of 8 nodes on host-gw (50 %); next: tweedctl migrate next
            Well
            # rollback --one-stage
            14:02:00  now 25 %
            14:02:00  in force on 8 of 8 nodes
            2 of 8 nodes on host-gw (25 %); next: tweedctl migrate next
            Well
            # rollback
            14:02:00  now nobody
            14:02:00  in force on 8 of 8 nodes
            all 8 nodes are back on vxlan; next: tweedctl migrate finish
            Well
            # rollback
            every node is told to be back on vxlan; next: tweedctl migrate finish
            Well
            # finish
            14:02:00  in force on 8 of 8 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  in force on 8 of 8 nodes
            finished: all 8 nodes are on vxlan
            Well
        "]],
    )
    .await;
    assert_eq!(world.text, VXLAN);
}

#[tokio::test(start_paused = true)]
async fn mixed_stays_on_where_pairs_need_it() {
    let lines: [(&str, &[Event]); 2] = [("start --to host-gw --percent 100", &[]), ("finish", &[])];
    check(
        World::new(MIXED, 2, 1),
        &lines,
        &expect![[r"
            # start --to host-gw --percent 100
            14:02:00  in force on 3 of 3 nodes
            14:02:00  host-gw begins: all nodes
            14:02:00  in force on 3 of 3 nodes
            3 of 3 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Well
            # finish
            14:02:00  in force on 3 of 3 nodes
            14:02:00  Rollout is removed
            14:02:00  in force on 3 of 3 nodes
            finished: all 3 nodes are on host-gw; Mixed stays on, because pairs need it
            Well
        "]],
    )
    .await;
}

fn falls_back(world: &mut World) {
    world.tells(1, 2, Some(Path::Tunnel), "its direct path did not answer");
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_harms_a_pair_stops_by_itself() {
    let lines: [(&str, &[Event]); 2] =
        [("start --to host-gw --canary 172.16.0.1 --hold 10m", &[(30, falls_back)]), ("next", &[])];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 10m
            14:02:00  in force on 3 of 3 nodes
            14:02:00  host-gw begins: 172.16.0.1
            14:02:00  in force on 3 of 3 nodes
            14:02:00  watching for 10m; all is well
            worse off than before, at 172.16.0.1; tweedctl migrate rollback takes it back
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
            # next
            14:02:00  in force on 3 of 3 nodes
            not all is well at this stage: 172.16.0.1 → 172.16.0.2, by tunnel: its direct
              path did not answer; --force goes on nevertheless
            Impossible
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_harms_a_pair_is_taken_back_where_that_was_asked_for() {
    let start = "start --to host-gw --canary 172.16.0.1 --hold 10m --auto-rollback";
    let lines: [(&str, &[Event]); 1] = [(start, &[(30, falls_back)])];
    let world = check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 10m --auto-rollback
            14:02:00  in force on 3 of 3 nodes
            14:02:00  host-gw begins: 172.16.0.1
            14:02:00  in force on 3 of 3 nodes
            14:02:00  watching for 10m; all is well
            14:02:30  now nobody
            14:02:30  in force on 3 of 3 nodes
            worse off than before, and so taken back: all 3 nodes are back on vxlan; next:
              tweedctl migrate finish
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.picture().course.under_way.unwrap().stage.is_nobody());
}

fn recovers(world: &mut World) {
    world.nodes[0].exceptions.clear();
}

#[tokio::test(start_paused = true)]
async fn what_passes_by_itself_is_no_harm() {
    let events: &[Event] = &[(8, falls_back), (10, recovers)];
    let lines = [("start --to host-gw --canary 172.16.0.1 --hold 1m", events)];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
        # start --to host-gw --canary 172.16.0.1 --hold 1m
        14:02:00  in force on 3 of 3 nodes
        14:02:00  host-gw begins: 172.16.0.1
        14:02:00  in force on 3 of 3 nodes
        14:02:00  watching for 1m; all is well
        1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
        Well
    "]],
    )
    .await;
}

fn gets_slow(world: &mut World) {
    world.nodes[1].quality = Some(crate::report::Quality::measured(100, 5, 200));
}

#[tokio::test(start_paused = true)]
async fn a_stage_in_which_probes_are_lost_stops_by_itself() {
    let mut world = World::new(MIXED, 2, 0);
    for node in &mut world.nodes {
        node.quality = Some(crate::report::Quality::measured(100, 0, 200));
    }
    let events: &[Event] = &[(8, gets_slow)];
    let lines = [("start --to host-gw --canary 172.16.0.1 --hold 1m", events)];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m
            14:02:00  in force on 2 of 2 nodes
            14:02:00  host-gw begins: 172.16.0.1
            14:02:00  in force on 2 of 2 nodes
            14:02:00  watching for 1m; all is well
            worse off than before, at 172.16.0.1; tweedctl migrate rollback takes it back
              172.16.0.2: it loses 5 %, 0 % before
            Degraded
        "]],
    )
    .await;
}

fn somebody_goes_on(world: &mut World) {
    let course = world.picture().course;
    let document = course.after(
        &Step::Reach(Stage::percent(50)),
        &crate::migration::Note { by: "eve@n3".into(), ..note(3) },
        None,
    );
    world.put(document.text());
}

fn somebody_puts(world: &mut World) {
    let text = world.text.replacen("\"Percent\":25", "\"Percent\":40", 1);
    world.put(&text);
}

fn somebody_pauses(world: &mut World) {
    let document = world.picture().course.after(&Step::Pause, &note(5), None);
    world.put(document.text());
}

#[tokio::test(start_paused = true)]
async fn nobody_is_overwritten_and_everybody_may_go_on() {
    let lines: [(&str, &[Event]); 7] = [
        ("start --to host-gw --percent 25 --hold 1m", &[(8, somebody_puts)]),
        ("next --hold 1m", &[(9, somebody_pauses)]),
        ("next", &[]),
        ("pause", &[]),
        ("next --resume", &[]),
        ("next --percent 60", &[]),
        ("start --to host-gw --hold 3s", &[]),
    ];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --percent 25 --hold 1m
            14:02:00  in force on 3 of 3 nodes
            14:02:00  host-gw begins: 25 %
            14:02:00  in force on 3 of 3 nodes
            14:02:00  watching for 1m; all is well
            somebody has changed the config meanwhile; this command no longer watches
              Rollout.Percent: 25 → 40
            Conflict
            # next --hold 1m
            14:02:00  in force on 3 of 3 nodes
            14:02:00  now all nodes
            14:02:00  in force on 3 of 3 nodes
            14:02:00  watching for 1m; all is well
            root@n1 at 2026-11-21T14:02:05Z has changed the config meanwhile; this command
              no longer watches
            Conflict
            # next
            14:02:00  in force on 3 of 3 nodes
            paused by root@n1 at 2026-11-21T14:02:05Z: tweedctl migrate next --resume goes
              on
            Impossible
            # pause
            paused already, by root@n1 at 2026-11-21T14:02:05Z
            Well
            # next --resume
            14:02:00  in force on 3 of 3 nodes
            reached already: all nodes; next: tweedctl migrate finish
            Well
            # next --percent 60
            14:02:00  in force on 3 of 3 nodes
            paused by root@n1 at 2026-11-21T14:02:05Z: tweedctl migrate next --resume goes
              on
            Impossible
            # start --to host-gw --hold 3s
            14:02:00  in force on 3 of 3 nodes
            14:02:00  started already: all nodes on host-gw
            14:02:00  watching for 3s; all is well
            started already: all nodes on host-gw
            Well
        "]],
    )
    .await;
}

/// Two operators at the same moment: the second write meets another config.
#[tokio::test(start_paused = true)]
async fn of_two_at_the_same_moment_one_is_told_so() {
    let mut world = World::new(MIXED, 3, 0);
    crate::migration::tests::step(
        &mut world,
        &Step::Begin { to: Kind::HostGw, stage: Stage::percent(25) },
    );
    let memory = Memory { world: RefCell::new(world), reads: RefCell::new(0), events: vec![] };
    let seen = network::picture(&memory).await.unwrap();
    somebody_goes_on(&mut memory.world.borrow_mut());
    let document = seen.course.after(&Step::Reach(Stage::percent(100)), &note(9), None);
    let swap = network::swap(&memory, seen.course.revision, &document).await.unwrap();
    assert_eq!(swap, Swap::Outdated);
    let stage = memory.world.borrow().picture().course.under_way.unwrap().stage;
    assert_eq!(stage, Stage::percent(50));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_follow_is_named() {
    let mut world = World::new(VXLAN, 3, 0);
    world.nodes[1].listens = Listens::No;
    let lines: [(&str, &[Event]); 3] = [
        ("start --to host-gw --timeout 10s", &[]),
        ("start --to host-gw --timeout 10s", &[]),
        ("start --to host-gw --timeout 10s", &[(4, |world| world.nodes[1].listens = Listens::Yes)]),
    ];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw --timeout 10s
            14:02:00  Mixed is turned on
            14:02:00  in force on 2 of 3 nodes
            not every node does yet what is written: tweedctl migrate status tells when
              172.16.0.2 has not seen the config yet
            Late
            # start --to host-gw --timeout 10s
            14:02:00  in force on 2 of 3 nodes
            not every node does yet what is written: tweedctl migrate status tells when
              172.16.0.2 has not seen the config yet
            Late
            # start --to host-gw --timeout 10s
            14:02:00  in force on 2 of 3 nodes
            14:02:03  in force on 3 of 3 nodes
            14:02:03  host-gw begins: all nodes
            14:02:03  in force on 3 of 3 nodes
            3 of 3 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Well
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_stands_in_the_way_is_told_before_anything_is_written() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[2].runs = Runs::Flannel;
    let lines: [(&str, &[Event]); 2] =
        [("start --to host-gw", &[]), ("start --to host-gw --canary 172.16.0.1 --force", &[])];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw
            14:02:00  in force on 2 of 2 nodes
            3 things are in the way
              172.16.0.3 sends no report: it runs flannel or an older tweedd, or none
              172.16.0.3 would no longer reach 172.16.0.1: flannel ignores a lease of
                host-gw
              172.16.0.3 would no longer reach 172.16.0.2: flannel ignores a lease of
                host-gw
            Impossible
            # start --to host-gw --canary 172.16.0.1 --force
            14:02:00  in force on 2 of 2 nodes
            14:02:00  host-gw begins: 172.16.0.1
            14:02:00  in force on 2 of 2 nodes
            1 of 2 nodes on host-gw (172.16.0.1); next: tweedctl migrate next; 1 node
              without a report
            Well
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_a_config_one_sentence_says_what_is_missing() {
    struct Empty;
    impl Network for Empty {
        fn config_key(&self) -> &'static str {
            "/n/config"
        }
        async fn read(&self) -> Result<Holdings, Away> {
            Ok(Holdings::default())
        }
        async fn swap(&self, _: i64, _: &str) -> Result<Swap, Away> {
            Err(Away("nobody is there".into()))
        }
    }
    let error = network::picture(&Empty).await.unwrap_err();
    assert!(matches!(&error, Error::Store(why) if why == "key /n/config is missing"), "{error}");
}

fn check_plan(world: &World, rows: Rows, expected: &Expect) {
    let text = Plan::new(&world.picture(), Kind::HostGw, rows).to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    expected.assert_eq(&text);
}

#[test]
fn a_plan_shows_what_changes_and_what_is_special() {
    check_plan(
        &World::new(VXLAN, 2, 1),
        Rows::Special,
        &expect![[r"
            to          host-gw, of 3 nodes
            Mixed       off; start turns it on first
            reports     from 3 of 3 nodes
            now         0 direct, 6 by tunnel, 0 without a path
            then        2 direct, 4 by tunnel, 0 without a path
            stages      1 node at 50 %, 3 nodes at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, and what you hold
            MTU         1450 for pods, 1500 below

            FROM        TO          NOW     THEN
            172.16.0.1  172.16.1.3  tunnel  tunnel
                172.16.1.3 is not on the link of eth0
            172.16.0.2  172.16.1.3  tunnel  tunnel
                172.16.1.3 is not on the link of eth0
            172.16.1.3  172.16.0.1  tunnel  tunnel
                172.16.0.1 is not on the link of eth0
            172.16.1.3  172.16.0.2  tunnel  tunnel
                172.16.0.2 is not on the link of eth0
        "]],
    );
}

#[test]
fn a_plan_shows_every_pair_to_who_asks_for_it() {
    check_plan(
        &World::new(VXLAN, 2, 0),
        Rows::All,
        &expect![[r"
            to          host-gw, of 2 nodes
            Mixed       off; start turns it on first
            reports     from 2 of 2 nodes
            now         0 direct, 2 by tunnel, 0 without a path
            then        2 direct, 0 by tunnel, 0 without a path
            stages      2 nodes at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, and what you hold
            MTU         1450 for pods, 1500 below

            FROM        TO          NOW     THEN
            172.16.0.1  172.16.0.2  tunnel  direct
            172.16.0.2  172.16.0.1  tunnel  direct
        "]],
    );
}

#[test]
fn a_plan_shows_what_stands_in_the_way() {
    let mut world = World::new(MIXED, 2, 0);
    world.nodes[0].strict = true;
    world.nodes[1].runs = Runs::Flannel;
    check_plan(
        &world,
        Rows::Special,
        &expect![[r"
            to          host-gw, of 2 nodes
            Mixed       on
            reports     from 1 of 2 nodes
            now         0 direct, 2 by tunnel, 0 without a path
            then        1 direct, 0 by tunnel, 1 without a path
            stages      1 node at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, and what you hold
            MTU         1450 for pods, 1500 below

            FROM        TO          NOW     THEN
            172.16.0.2  172.16.0.1  tunnel  -
                flannel ignores a lease of host-gw

            in the way:
              172.16.0.1 filters strictly on eth0, and its tweedd may not change that
              172.16.0.2 sends no report: it runs flannel or an older tweedd, or none
              172.16.0.2 would no longer reach 172.16.0.1: flannel ignores a lease of
                host-gw
        "]],
    );
}

#[test]
fn a_large_plan_is_a_summary() {
    let text = Plan::new(&World::new(VXLAN, 100, 100).picture(), Kind::HostGw, Rows::Special);
    let text = text.to_string();
    assert!(text.lines().count() < 60, "{text}");
    assert!(text.ends_with("more: --all or -o json\n"), "{text}");
}

fn check_status(world: &World, expected: &Expect) {
    let text = Status::new(&world.picture(), note(100).at).to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    expected.assert_eq(&text);
}

#[test]
fn a_status_without_a_migration_shows_the_nodes() {
    check_status(
        &World::new(MIXED, 3, 1),
        &expect![[r"
        migration none; the nodes are told to be on vxlan, mixed
        progress  in force on 4 of 4 nodes
        pairs     0 direct, 0 by tunnel, 0 left out, 0 set aside

        NODE        BACKEND  PATHS
        172.16.0.1  vxlan    .ooo
        172.16.0.2  vxlan    o.oo
        172.16.0.3  vxlan    oo.o
        172.16.1.4  vxlan    ooo.
        = direct  o by tunnel  x no path, in the order of the rows
    "]],
    );
}

#[test]
fn a_status_sets_loss_and_latency_beside_those_before() {
    let mut world = World::new(MIXED, 2, 0);
    let canary = Stage { percent: 0, nodes: vec!["172.16.0.1".into()] };
    let measured = |world: &mut World, lost, round_trip| {
        let quality = crate::report::Quality::measured(1000, lost, round_trip);
        for node in &mut world.nodes {
            node.quality = Some(quality);
        }
    };
    measured(&mut world, 0, 480);
    let begin = Step::Begin { to: Kind::HostGw, stage: canary };
    for (second, lost, round_trip, step) in
        [(10, 0, 480, begin), (40, 1, 190, Step::Reach(Stage::percent(100)))]
    {
        measured(&mut world, lost, round_trip);
        let document = world.picture().after(&step, &note(second));
        world.put(document.text());
        world.follow();
    }
    measured(&mut world, 0, 95);
    check_status(
        &world,
        &expect![[r"
        migration vxlan → host-gw, all nodes, mixed
        progress  [########################] 2 of 2; in force on 2 of 2 nodes
        pairs     0 direct, 0 by tunnel, 0 left out, 0 set aside

        STAGE    SINCE                 FOR    LOSS   LATENCY  BY
        before   -                     -      0 %    500 us   -
        1 named  2026-11-21T14:02:10Z  30s    0.1 %  200 us   root@n1
        100 %    2026-11-21T14:02:40Z  1m 0s  0 %    100 us   root@n1

        NODE        BACKEND  PATHS
        172.16.0.1  host-gw  .=
        172.16.0.2  host-gw  =.
        = direct  o by tunnel  x no path, in the order of the rows
    "]],
    );
}

#[test]
fn a_status_shows_stages_nodes_and_pairs_and_what_is_wrong() {
    let mut world = World::new(MIXED, 3, 1);
    let canary = Stage { percent: 0, nodes: vec!["172.16.0.1".into()] };
    for (second, step) in [
        (10, Step::Begin { to: Kind::HostGw, stage: canary }),
        (75, Step::Reach(Stage::percent(100))),
        (90, Step::Pause),
    ] {
        let document = world.picture().course.after(&step, &note(second), None);
        world.put(document.text());
        world.follow();
    }
    world.put(&format!("{} ", world.text));
    world.nodes[1].listens = Listens::No;
    world.follow();
    world.nodes[2].runs = Runs::Flannel;
    falls_back(&mut world);
    check_status(
        &world,
        &expect![[r"
            migration vxlan → host-gw, all nodes, mixed
            progress  [########################] 3 of 3; in force on 2 of 3 nodes
            pairs     0 direct, 0 by tunnel, 0 left out, 0 set aside
            paused    by root@n1 at 2026-11-21T14:03:30Z
            waiting   172.16.0.2 has not seen the config yet
            wrong     172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            unknown   172.16.0.3 sends no report

            STAGE    SINCE                 FOR    LOSS  LATENCY  BY
            1 named  2026-11-21T14:02:10Z  1m 5s  -     -        root@n1
            100 %    2026-11-21T14:03:15Z  25s    -     -        root@n1

            NODE        BACKEND  PATHS
            172.16.0.1  host-gw  .o=o
            172.16.0.2  host-gw  =.=o
            172.16.0.3  host-gw  ==.=
            172.16.1.4  host-gw  ooo.
            = direct  o by tunnel  x no path, in the order of the rows
        "]],
    );
}

#[test]
fn times_are_read_as_people_write_them() {
    let hold = |text: &str| command(&format!("next --hold {text}")).watching().hold;
    assert_eq!(hold("90"), Duration::from_secs(90));
    assert_eq!(hold("90s"), Duration::from_secs(90));
    assert_eq!(hold("10m"), Duration::from_secs(600));
    assert_eq!(hold("2h"), Duration::from_secs(7200));
    let refused = Arguments::try_parse_from(["tweedctl", "migrate", "next", "--hold", "10d"]);
    assert!(refused.is_err());
}
