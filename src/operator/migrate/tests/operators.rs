//! Concurrent operators, nodes that do not follow, and obstacles.

use super::*;

fn another_continues(world: &mut World) {
    let document = world.state().after(
        &Step::Reach(percent(50)),
        &Note { by: "eve@n3".into(), ..note(3) },
        None,
    );
    world.put(document.text());
}

fn another_puts(world: &mut World) {
    let text = world.text.replacen("\"Percent\":61", "\"Percent\":65", 1);
    world.put(&text);
}

fn another_pauses(world: &mut World) {
    let document = world.state().after(&Step::Pause, &note(5), None);
    world.put(document.text());
}

#[tokio::test(start_paused = true)]
async fn no_operator_overwrites_another_and_each_may_continue() {
    let lines: [(&str, &[Event]); 7] = [
        ("start --to host-gw --percent 25 --hold 1m", &[(8, another_puts)]),
        ("next --hold 1m", &[(9, another_pauses)]),
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
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: Percent 61
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            another client has changed the config meanwhile; this command stops observing
              Rollout.Percent: 61 → 65
            Conflict
            # next --hold 1m
            14:02:00  applied on 3 of 3 nodes
            14:02:00  now all nodes
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            root@n1 at 2026-11-21T14:02:05Z has changed the config meanwhile; this command
              stops observing
            Conflict
            # next
            14:02:00  applied on 3 of 3 nodes
            paused by root@n1 at 2026-11-21T14:02:05Z: tweedctl migrate next --resume
              continues
            Impossible
            # pause
            already paused by root@n1 at 2026-11-21T14:02:05Z
            Done
            # next --resume
            14:02:00  applied on 3 of 3 nodes
            already reached: all nodes; next: tweedctl migrate finish
            Done
            # next --percent 60
            14:02:00  applied on 3 of 3 nodes
            paused by root@n1 at 2026-11-21T14:02:05Z: tweedctl migrate next --resume
              continues
            Impossible
            # start --to host-gw --hold 3s
            14:02:00  applied on 3 of 3 nodes
            14:02:00  already started: all nodes on host-gw
            14:02:00  observing for 3s; no problems
            already started: all nodes on host-gw
            Done
        "]],
    )
    .await;
}

fn does_not_follow(world: &mut World) {
    world.nodes[2].listens = Listens::No;
}

/// Without `Mixed`, too, an order is done only once all nodes have applied the config.
#[tokio::test(start_paused = true)]
async fn nothing_is_done_while_a_node_has_not_applied_it() {
    let mut world = World::new(MIXED, 3, 0);
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: percent(100) });
    let lines: [(&str, &[Event]); 3] = [
        ("finish --timeout 2s", &[(3, does_not_follow)]),
        ("finish --timeout 2s", &[]),
        ("start --to host-gw --timeout 2s", &[]),
    ];
    check(
        world,
        &lines,
        &expect![[r"
        # finish --timeout 2s
        14:02:00  applied on 3 of 3 nodes
        14:02:00  Mixed and Rollout are removed
        14:02:00  applied on 2 of 3 nodes
        not all nodes have applied the config; tweedctl migrate status lists them
          172.16.0.3 has not seen the config yet
        Late
        # finish --timeout 2s
        14:02:00  applied on 2 of 3 nodes
        not all nodes have applied the config; tweedctl migrate status lists them
          172.16.0.3 has not seen the config yet
        Late
        # start --to host-gw --timeout 2s
        14:02:00  applied on 2 of 3 nodes
        not all nodes have applied the config; tweedctl migrate status lists them
          172.16.0.3 has not seen the config yet
        Late
    "]],
    )
    .await;
}

/// An older config is put while a migration is under way.
#[tokio::test(start_paused = true)]
async fn nothing_is_finished_while_nodes_wait() {
    let mut world = World::new(MIXED, 3, 0);
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: percent(50) });
    world.nodes.iter_mut().for_each(|node| node.listens = Listens::No);
    world.put(VXLAN);
    check(
        world,
        &[("finish --timeout 2s", &[])],
        &expect![[r"
        # finish --timeout 2s
        14:02:00  applied on 0 of 3 nodes
        not all nodes have applied the config; tweedctl migrate status lists them
          172.16.0.1 has not seen the config yet
          172.16.0.2 has not seen the config yet
          172.16.0.3 has not seen the config yet
        Late
    "]],
    )
    .await;
}

fn changes_before_the_write(world: &mut World) {
    world.access = Access::ChangesRevision;
}

#[tokio::test(start_paused = true)]
async fn another_revision_of_the_same_text_is_no_conflict() {
    let events: &[Event] = &[
        (2, changes_before_the_write),
        (4, changes_revision),
        (5, changes_revision),
        (12, changes_revision),
    ];
    let lines = [("start --to host-gw --canary 172.16.0.1 --hold 1m", events)];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m
            14:02:00  applied on 3 of 3 nodes
            14:02:01  starting host-gw: 172.16.0.1
            14:02:01  applied on 0 of 3 nodes
            14:02:02  applied on 3 of 3 nodes
            14:02:02  observing for 1m; no problems
            1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Done
        "]],
    )
    .await;
}

/// The second write fails because the config has changed since the read.
#[tokio::test(start_paused = true)]
async fn one_of_two_concurrent_writes_is_a_conflict() {
    let mut world = World::new(MIXED, 3, 0);
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: percent(25) });
    let memory = Memory::new(world, &[]);
    let seen = read(&memory).await.unwrap();
    another_continues(&mut memory.world.borrow_mut());
    let document = seen.state.after(&Step::Reach(percent(100)), &note(9), None);
    let swap = memory.swap(seen.state.revision, document.text()).await.unwrap();
    assert_eq!(swap, Swap::Outdated);
    let stage = memory.world.borrow().state().under_way.unwrap().stage;
    assert_eq!(stage, percent(50));
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
            14:02:00  applied on 2 of 3 nodes
            not all nodes have applied the config; tweedctl migrate status lists them; Mixed
              stays on: tweedctl migrate finish turns it off if no pair needs it
              172.16.0.2 has not seen the config yet
            Late
            # start --to host-gw --timeout 10s
            14:02:00  applied on 2 of 3 nodes
            not all nodes have applied the config; tweedctl migrate status lists them; Mixed
              stays on: tweedctl migrate finish turns it off if no pair needs it
              172.16.0.2 has not seen the config yet
            Late
            # start --to host-gw --timeout 10s
            14:02:00  applied on 2 of 3 nodes
            14:02:03  applied on 3 of 3 nodes
            14:02:03  starting host-gw: Percent 61
            14:02:03  applied on 3 of 3 nodes
            1 of 3 nodes on host-gw (Percent 61); next: tweedctl migrate next
            Done
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn no_stage_is_written_while_a_node_has_not_applied_the_last_one() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[1].listens = Listens::No;
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: percent(25) });
    let lines: [(&str, &[Event]); 2] = [("next --timeout 1s", &[]), ("finish --timeout 1s", &[])];
    check(
        world,
        &lines,
        &expect![[r"
            # next --timeout 1s
            14:02:00  applied on 2 of 3 nodes
            not all nodes have applied the config; tweedctl migrate status lists them
              172.16.0.2 has not seen the config yet
            Late
            # finish --timeout 1s
            14:02:00  applied on 2 of 3 nodes
            not all nodes have applied the config; tweedctl migrate status lists them
              172.16.0.2 has not seen the config yet
            Late
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn obstacles_are_reported_before_any_write() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[2].runs = Runs::Flannel;
    let lines: [(&str, &[Event]); 2] =
        [("start --to host-gw", &[]), ("start --to host-gw --canary 172.16.0.1 --force", &[])];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw
            14:02:00  applied on 2 of 2 nodes
            blocked by 3 problems; Mixed stays on: tweedctl migrate finish turns it off if
              no pair needs it
              172.16.0.3 sends no report that can be read: it runs flannel, another tweedd,
                or no daemon
              172.16.0.3 would no longer reach 172.16.0.1: flannel ignores a lease of
                host-gw
              172.16.0.3 would no longer reach 172.16.0.2: flannel ignores a lease of
                host-gw
            Impossible
            # start --to host-gw --canary 172.16.0.1 --force
            14:02:00  applied on 2 of 2 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 2 of 2 nodes
            1 of 2 nodes on host-gw (172.16.0.1); next: tweedctl migrate next; 1 node
              without a report
            Done
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_start_reports_that_mixed_stays_on() {
    let mut world = World::new(VXLAN, 3, 0);
    // The daemon may not loosen the filter, which shows only once `Mixed` is on.
    world.nodes[1].strict = true;
    let lines: [(&str, &[Event]); 3] =
        [("start --to host-gw", &[]), ("start --to host-gw", &[]), ("finish", &[])];
    let world = check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw
            14:02:00  Mixed is turned on
            14:02:00  applied on 3 of 3 nodes
            blocked by 1 problem; Mixed stays on: tweedctl migrate finish turns it off if no
              pair needs it
              172.16.0.2 has a strict reverse-path filter on eth0, and its tweedd may not
                change it
            Impossible
            # start --to host-gw
            14:02:00  applied on 3 of 3 nodes
            blocked by 1 problem; Mixed stays on: tweedctl migrate finish turns it off if no
              pair needs it
              172.16.0.2 has a strict reverse-path filter on eth0, and its tweedd may not
                change it
            Impossible
            # finish
            14:02:00  applied on 3 of 3 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  applied on 3 of 3 nodes
            finished: all 3 nodes are on vxlan
            Done
        "]],
    )
    .await;
    assert_eq!(world.text, VXLAN);
}

#[tokio::test(start_paused = true)]
async fn a_missing_config_is_reported_in_one_sentence() {
    struct Empty;
    impl ClusterStore for Empty {
        fn config_name(&self) -> String {
            "key /n/config".to_owned()
        }
        fn hint(&self) -> &'static str {
            "name the servers"
        }
        async fn read(&self) -> Result<StoreContents, Unavailable> {
            Ok(StoreContents::default())
        }
        async fn swap(&self, _: i64, _: &str) -> Result<Swap, Unavailable> {
            Err(Unavailable("no server answers".into()))
        }
    }
    let error = read(&Empty).await.unwrap_err();
    assert!(matches!(&error, Error::Store(why) if why == "key /n/config is missing"), "{error}");
}
