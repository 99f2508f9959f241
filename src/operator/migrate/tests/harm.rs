//! Stages with a possible regression of a pair.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stage_that_harms_a_pair_stops_by_itself() {
    let lines: [(&str, &[Event]); 2] =
        [("start --to host-gw --canary 172.16.0.1 --hold 10m", &[(30, falls_back)]), ("next", &[])];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 10m
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 10m; no problems
            possible regression at 172.16.0.1; tweedctl migrate rollback reverts it
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
            # next
            14:02:00  applied on 3 of 3 nodes
            this stage has problems: 172.16.0.1 → 172.16.0.2, by tunnel: its direct path did
              not answer; --force continues nevertheless
            Impossible
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn auto_rollback_takes_back_a_stage_that_harms_a_pair() {
    let start = "start --to host-gw --canary 172.16.0.1 --hold 10m --auto-rollback";
    let lines: [(&str, &[Event]); 1] = [(start, &[(30, falls_back)])];
    let world = check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 10m --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 10m; no problems
            14:02:30  now no node
            14:02:30  applied on 3 of 3 nodes
            possible regression, rolled back: all 3 nodes are back on vxlan; next: tweedctl
              migrate finish
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.state().under_way.unwrap().stage.is_empty());
}

fn falls_back_in_ipv4(world: &mut World) {
    let reason = "its direct path did not answer";
    world.reports_path(1, 2, Some(Path::Tunnel), reason);
    world.nodes[0].exceptions.last_mut().unwrap().family = Some(Family::V4);
}

/// What was known about one address family hides nothing of the other one.
#[tokio::test(start_paused = true)]
async fn each_address_family_of_a_pair_counts() {
    let mut world = World::new(MIXED, 3, 0);
    falls_back(&mut world);
    world.nodes[0].exceptions.last_mut().unwrap().family = Some(Family::V6);
    world.nodes[0].is_dual = true;
    let lines: [(&str, &[Event]); 1] =
        [("start --to host-gw --canary 172.16.0.3 --hold 1m", &[(30, falls_back_in_ipv4)])];
    check(
        world,
        &lines,
        &expect![[r"
        # start --to host-gw --canary 172.16.0.3 --hold 1m
        14:02:00  applied on 3 of 3 nodes
        14:02:00  starting host-gw: 172.16.0.3
        14:02:00  applied on 3 of 3 nodes
        14:02:00  observing for 1m; no problems
        possible regression at 172.16.0.3; tweedctl migrate rollback reverts it
          172.16.0.1 → 172.16.0.2 (IPv4), by tunnel: its direct path did not answer
        Degraded
    "]],
    )
    .await;
}

fn probes_many(world: &mut World) {
    for peer in 1..=100 {
        world.reports_path(1, 2, Some(Path::Tunnel), "its direct path is probed");
        let probed = world.nodes[0].exceptions.last_mut().unwrap();
        (probed.lease, probed.probing) = (LeaseId::new(format!("10.245.{peer}.0-24")), true);
    }
    world.nodes[0].unlisted = 900;
}

fn has_probed(world: &mut World) {
    world.nodes[0].exceptions.clear();
    world.nodes[0].unlisted = 0;
}

/// Of very many peers, a report names only the first ones.
#[tokio::test(start_paused = true)]
async fn peers_that_are_still_probed_are_awaited() {
    let lines: [(&str, &[Event]); 1] =
        [("start --to host-gw --canary 172.16.0.1", &[(3, probes_many), (20, has_probed)])];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
        # start --to host-gw --canary 172.16.0.1
        14:02:00  applied on 3 of 3 nodes
        14:02:00  starting host-gw: 172.16.0.1
        14:02:00  applied on 2 of 3 nodes
        14:02:16  applied on 3 of 3 nodes
        1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
        Done
    "]],
    )
    .await;
}

fn falls_back_and_one_does_not_follow(world: &mut World) {
    falls_back(world);
    world.nodes[2].listens = Listens::No;
}

fn follows_again(world: &mut World) {
    world.nodes[2].listens = Listens::Yes;
}

/// The trouble lasts for less than the tolerance when the timeout ends.
#[tokio::test(start_paused = true)]
async fn auto_rollback_does_not_wait_for_a_node_that_does_not_follow() {
    let start = "start --to host-gw --canary 172.16.0.1 --timeout 2s --auto-rollback";
    let events: &[Event] = &[(3, falls_back_and_one_does_not_follow), (11, follows_again)];
    let lines = [(start, events)];
    let world = check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --timeout 2s --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 2 of 3 nodes
            14:02:04  now no node
            14:02:04  applied on 2 of 3 nodes
            14:02:06  applied on 3 of 3 nodes
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
async fn a_rollback_that_a_node_does_not_apply_is_written() {
    let start = "start --to host-gw --canary 172.16.0.1 --auto-rollback";
    let lines: [(&str, &[Event]); 1] = [(start, &[(3, falls_back_and_one_does_not_follow)])];
    let world = check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 2 of 3 nodes
            14:02:04  now no node
            14:02:04  applied on 2 of 3 nodes
            possible regression; the rollback is written, but not all nodes have applied the
              config; tweedctl migrate status lists them
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.state().under_way.unwrap().stage.is_empty());
}

/// The first step turns Mixed on.
#[tokio::test(start_paused = true)]
async fn troubles_since_the_first_step_count() {
    let lines: [(&str, &[Event]); 1] =
        [("start --to host-gw --canary 172.16.0.1", &[(3, falls_back)])];
    check(
        World::new(VXLAN, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1
            14:02:00  Mixed is turned on
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 0s; 1 possible regression
            possible regression at 172.16.0.1; tweedctl migrate rollback reverts it
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn auto_rollback_of_the_first_stage_returns_all_nodes() {
    let start = "start --to host-gw --percent 100 --hold 10m --auto-rollback";
    let lines: [(&str, &[Event]); 1] = [(start, &[(30, falls_back)])];
    let world = check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --percent 100 --hold 10m --auto-rollback
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: all nodes
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 10m; no problems
            14:02:30  now no node
            14:02:30  applied on 3 of 3 nodes
            possible regression, rolled back: all 3 nodes are back on vxlan; next: tweedctl
              migrate finish
              172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            Degraded
        "]],
    )
    .await;
    assert!(world.state().under_way.unwrap().stage.is_empty());
}

fn recovers(world: &mut World) {
    world.nodes[0].exceptions.clear();
}

#[tokio::test(start_paused = true)]
async fn temporary_troubles_do_not_stop_a_stage() {
    let events: &[Event] = &[(8, falls_back), (10, recovers)];
    let lines = [("start --to host-gw --canary 172.16.0.1 --hold 1m", events)];
    check(
        World::new(MIXED, 3, 0),
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 3 of 3 nodes
            14:02:00  observing for 1m; no problems
            1 of 3 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Done
        "]],
    )
    .await;
}

fn gets_slow(world: &mut World) {
    world.nodes[1].quality = Some(crate::model::report::Quality::measured(100, 5, 200));
}

#[tokio::test(start_paused = true)]
async fn a_stage_in_which_probes_are_lost_stops_by_itself() {
    let mut world = World::new(MIXED, 2, 0);
    for node in &mut world.nodes {
        node.quality = Some(crate::model::report::Quality::measured(100, 0, 200));
    }
    let events: &[Event] = &[(8, gets_slow)];
    let lines = [("start --to host-gw --canary 172.16.0.1 --hold 1m", events)];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw --canary 172.16.0.1 --hold 1m
            14:02:00  applied on 2 of 2 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 2 of 2 nodes
            14:02:00  observing for 1m; no problems
            possible regression at 172.16.0.1; tweedctl migrate rollback reverts it
              172.16.0.2: it loses 5 %, 0 % before
            Degraded
        "]],
    )
    .await;
}
