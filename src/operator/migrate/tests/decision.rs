//! The step or outcome of every order in every state.

use std::fmt::Write;

use expect_test::{Expect, expect};

use crate::model::config::BackendType;
use crate::model::path::Path;
use crate::operator::ExitStatus;

use super::super::decision::decide;
use super::super::options::{Order, StageOptions, Start, WaitOptions};
use super::super::state::{Stage, Step};
use super::world::{MIXED, Runs, VXLAN, World, named, percent, start, step};

fn next() -> Order {
    Order::Next { percent: None, resume: false, options: StageOptions::default() }
}

fn rollback(one_stage: bool) -> Order {
    Order::Rollback { one_stage, wait: WaitOptions::default() }
}

fn finish() -> Order {
    Order::Finish { wait: WaitOptions::default() }
}

fn forced(mut order: Order) -> Order {
    if let Order::Start(Start { options, .. }) | Order::Next { options, .. } = &mut order {
        options.force = true;
    }
    order
}

/// Each order given to each world.
fn check(worlds: &[(&str, World)], orders: &[Order], expected: &Expect) {
    let mut lines = String::new();
    for (name, world) in worlds {
        for order in orders {
            let found = match decide(order, &world.view()) {
                Ok(step) => format!("{step:?}"),
                Err(outcome) if outcome.exit_status == ExitStatus::Done => {
                    format!("nothing: {}", outcome.message)
                }
                Err(outcome) => format!("refused: {}", outcome.message),
            };
            writeln!(lines, "{name}, {}: {found}", command_name(order)).unwrap();
        }
    }
    expected.assert_eq(&lines);
}

fn command_name(order: &Order) -> &'static str {
    match order {
        Order::Start(_) => "start",
        Order::Next { .. } => "next",
        Order::Pause => "pause",
        Order::Rollback { one_stage: true, .. } => "rollback --one-stage",
        Order::Rollback { one_stage: false, .. } => "rollback",
        Order::Finish { .. } => "finish",
    }
}

/// A cluster on one segment after these steps.
fn after(text: &str, steps: &[Step]) -> World {
    let mut world = World::new(text, 4, 0);
    for it in steps {
        step(&mut world, it);
    }
    world
}

fn begin(stage: Stage) -> Step {
    Step::Begin { to: BackendType::HostGw, stage }
}

fn all_orders() -> [Order; 6] {
    [start(percent(25)), next(), Order::Pause, rollback(true), rollback(false), finish()]
}

#[test]
fn every_order_has_an_answer_in_every_state() {
    let worlds = [
        ("vxlan", after(VXLAN, &[])),
        ("mixed", after(MIXED, &[])),
        ("canary", after(MIXED, &[begin(named("172.16.0.1"))])),
        ("25 %", after(MIXED, &[begin(percent(25))])),
        ("paused", after(MIXED, &[begin(percent(25)), Step::Pause])),
        ("100 %", after(MIXED, &[begin(percent(25)), Step::Reach(percent(100))])),
        ("back", after(MIXED, &[begin(percent(25)), Step::Reach(Stage::default())])),
    ];
    check(
        &worlds,
        &all_orders(),
        &expect![[r#"
            vxlan, start: Mix
            vxlan, next: refused: no migration is under way: tweedctl migrate start begins one
            vxlan, pause: refused: no migration is under way: tweedctl migrate start begins one
            vxlan, rollback --one-stage: refused: no migration is under way: tweedctl migrate start begins one
            vxlan, rollback: refused: no migration is under way: tweedctl migrate start begins one
            vxlan, finish: nothing: finished: all 4 nodes are on vxlan
            mixed, start: Begin { to: HostGw, stage: Stage { percent: 27, nodes: [] } }
            mixed, next: refused: no migration is under way: tweedctl migrate start begins one
            mixed, pause: refused: no migration is under way: tweedctl migrate start begins one
            mixed, rollback --one-stage: refused: no migration is under way: tweedctl migrate start begins one
            mixed, rollback: refused: no migration is under way: tweedctl migrate start begins one
            mixed, finish: Finish { kind: Vxlan, mixed: false }
            canary, start: nothing: already started: 172.16.0.1 on host-gw
            canary, next: Reach(Stage { percent: 27, nodes: ["172.16.0.1"] })
            canary, pause: Pause
            canary, rollback --one-stage: Reach(Stage { percent: 0, nodes: [] })
            canary, rollback: Reach(Stage { percent: 0, nodes: [] })
            canary, finish: refused: not complete, at 172.16.0.1: run tweedctl migrate next or rollback first
            25 %, start: nothing: already started: Percent 25 on host-gw
            25 %, next: Reach(Stage { percent: 27, nodes: [] })
            25 %, pause: Pause
            25 %, rollback --one-stage: Reach(Stage { percent: 0, nodes: [] })
            25 %, rollback: Reach(Stage { percent: 0, nodes: [] })
            25 %, finish: refused: not complete, at Percent 25: run tweedctl migrate next or rollback first
            paused, start: nothing: already started: Percent 25 on host-gw
            paused, next: refused: paused by root@n1 at 2026-11-21T14:02:00Z: tweedctl migrate next --resume continues
            paused, pause: nothing: already paused by root@n1 at 2026-11-21T14:02:00Z
            paused, rollback --one-stage: Reach(Stage { percent: 0, nodes: [] })
            paused, rollback: Reach(Stage { percent: 0, nodes: [] })
            paused, finish: refused: not complete, at Percent 25: run tweedctl migrate next or rollback first
            100 %, start: nothing: already started: all nodes on host-gw
            100 %, next: nothing: already reached: all nodes; next: tweedctl migrate finish
            100 %, pause: Pause
            100 %, rollback --one-stage: Reach(Stage { percent: 25, nodes: [] })
            100 %, rollback: Reach(Stage { percent: 0, nodes: [] })
            100 %, finish: Finish { kind: HostGw, mixed: false }
            back, start: Reach(Stage { percent: 27, nodes: [] })
            back, next: Reach(Stage { percent: 27, nodes: [] })
            back, pause: Pause
            back, rollback --one-stage: nothing: the config already selects vxlan for all nodes; next: tweedctl migrate finish
            back, rollback: nothing: the config already selects vxlan for all nodes; next: tweedctl migrate finish
            back, finish: Finish { kind: Vxlan, mixed: false }
        "#]],
    );
}

#[test]
fn a_migration_in_the_other_direction_is_refused_during_one() {
    let world = after(MIXED, &[begin(percent(25))]);
    let options = StageOptions { force: true, ..StageOptions::default() };
    let to = BackendType::Vxlan;
    let order = Order::Start(Start { to, canary: vec![], percent: None, options });
    let refusal = decide(&order, &world.view()).unwrap_err();
    assert_eq!(
        refusal.message,
        "a migration to host-gw is under way: tweedctl migrate rollback reverts it"
    );
}

#[test]
fn next_with_resume_ends_a_pause() {
    let world = after(MIXED, &[begin(percent(25)), Step::Pause]);
    let order = Order::Next { percent: None, resume: true, options: StageOptions::default() };
    assert_eq!(decide(&order, &world.view()), Ok(Step::Reach(percent(27))));
}

#[test]
fn rollback_returns_to_the_previous_stage() {
    let steps = [begin(percent(10)), Step::Reach(percent(60))];
    let decision = decide(&rollback(true), &after(MIXED, &steps).view());
    assert_eq!(decision, Ok(Step::Reach(percent(10))));
}

#[test]
fn rollback_of_the_first_stage_returns_all_nodes() {
    for first in [percent(60), percent(100), named("172.16.0.1")] {
        let world = after(MIXED, &[begin(first.clone())]);
        let decision = decide(&rollback(true), &world.view());
        assert_eq!(decision, Ok(Step::Reach(Stage::default())), "{first}");
    }
}

#[test]
fn rollback_without_a_record_of_the_first_stage_returns_to_the_default_one() {
    let mut by_hand = World::new(MIXED, 4, 0);
    let rollout = "\"Mixed\":true,\"Rollout\":{\"From\":{\"Type\":\"vxlan\"},\"Percent\":100}";
    let text = MIXED.replacen("vxlan", "host-gw", 1);
    by_hand.put(&text.replacen("\"Mixed\":true", rollout, 1));
    let many = vec![Step::Reach(percent(100)); 20];
    let many = after(MIXED, &[vec![begin(percent(10))], many].concat());
    for world in [by_hand, many] {
        assert_eq!(decide(&rollback(true), &world.view()), Ok(Step::Reach(percent(50))));
    }
}

#[test]
fn mixed_stays_on_if_a_router_separates_nodes() {
    let mut world = World::new(MIXED, 2, 1);
    step(&mut world, &begin(percent(100)));
    check(
        &[("100 %", world)],
        &[finish()],
        &expect![[r"
            100 %, finish: Finish { kind: HostGw, mixed: true }
        "]],
    );
}

#[test]
fn mixed_stays_on_if_a_direct_path_fails() {
    let mut world = World::new(MIXED, 2, 0);
    step(&mut world, &begin(percent(100)));
    world.finds_failing(2, 1);
    check(
        &[("100 %", world)],
        &[finish()],
        &expect![[r"
            100 %, finish: Finish { kind: HostGw, mixed: true }
        "]],
    );
}

#[test]
fn flannel_nodes_prevent_a_start_without_force() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[2].runs = Runs::Flannel;
    let order = start(percent(25));
    let refusal = decide(&order, &world.view()).unwrap_err();
    assert_eq!(refusal.message, "blocked by 3 problems");
    assert!(decide(&forced(order.clone()), &world.view()).is_ok());
    world.nodes[1].strict = true;
    let refusal = decide(&forced(order), &world.view()).unwrap_err();
    assert_eq!(refusal.message, "blocked by 1 problem");
}

#[test]
fn next_is_refused_while_nodes_report_troubles() {
    let mut world = World::new(MIXED, 3, 0);
    step(&mut world, &begin(percent(25)));
    world.reports_path(1, 2, Some(Path::Tunnel), "its direct path did not answer");
    check(
        &[("fallen back", world.clone())],
        &[next()],
        &expect![[r"
            fallen back, next: refused: this stage has problems: 172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer; --force continues nevertheless
        "]],
    );
    assert!(decide(&forced(next()), &world.view()).is_ok());
}

/// It may have been added since the first stage, with an image that has flanneld.
#[test]
fn next_is_refused_while_a_node_sends_no_report() {
    let mut world = World::new(MIXED, 3, 0);
    step(&mut world, &begin(percent(25)));
    world.nodes[2].runs = Runs::Flannel;
    let refusal = decide(&next(), &world.view()).unwrap_err();
    assert_eq!(refusal.message, "blocked by 1 problem");
    assert!(decide(&forced(next()), &world.view()).is_ok());
}

#[test]
fn rollback_from_any_share_returns_to_the_canaries() {
    let steps =
        [begin(named("172.16.0.1")), Step::Reach(Stage { percent: 60, ..named("172.16.0.1") })];
    let decision = decide(&rollback(true), &after(MIXED, &steps).view());
    assert_eq!(decision, Ok(Step::Reach(named("172.16.0.1"))));
}

#[test]
fn a_percentage_is_that_share_of_the_nodes() {
    for nodes in [1, 3, 5, 8, 100, 200] {
        let view = World::new(MIXED, nodes, 0).view();
        for share in 1..100 {
            let wanted = (usize::from(nodes) * usize::from(share) / 100).max(1);
            let stage = view.stage_of(share, &Stage::default());
            let follow = view.following_at(&stage);
            assert!(follow >= wanted, "{share} % of {nodes}: {stage}, {follow}");
            let fewer = percent(stage.percent - 1);
            assert!(view.following_at(&fewer) < wanted, "{share} % of {nodes}: {stage}");
        }
        // A node that is added later follows, too.
        assert_eq!(view.stage_of(100, &Stage::default()), percent(100));
    }
    let five = World::new(MIXED, 5, 0).view();
    assert_eq!(five.following_at(&five.stage_of(25, &Stage::default())), 1);
}

#[test]
fn named_nodes_count_towards_a_percentage() {
    let view = World::new(MIXED, 4, 0).view();
    let canary = named("172.16.0.1");
    assert_eq!(view.stage_of(25, &canary), canary);
    let half = view.stage_of(50, &canary);
    assert_eq!((view.following_at(&half), half.nodes), (2, canary.nodes));
}

#[test]
fn a_stage_that_adds_no_node_is_skipped() {
    for (nodes, expected) in [(1, vec![1, 1]), (3, vec![1, 3]), (8, vec![2, 4, 8])] {
        let mut world = World::new(MIXED, nodes, 0);
        let mut reached = Vec::new();
        let mut order = start(Stage::default());
        while let Ok(it) = decide(&order, &world.view()) {
            step(&mut world, &it);
            reached.push(world.view().following());
            order = next();
        }
        assert_eq!(reached, expected);
    }
}

fn next_with(percent: u8) -> Order {
    Order::Next { percent: Some(percent), resume: false, options: StageOptions::default() }
}

#[test]
fn next_with_a_smaller_share_is_refused() {
    let world = after(MIXED, &[begin(percent(100))]);
    let refusal = decide(&next_with(50), &world.view()).unwrap_err();
    assert_eq!(
        refusal.message,
        "50 % are 2 nodes, and 4 have changed already: to go back, use tweedctl migrate rollback"
    );
    // Written by another client: as many nodes follow at a lower percentage.
    let world = after(MIXED, &[begin(percent(50))]);
    let reached = decide(&next_with(25), &world.view()).unwrap_err();
    assert_eq!(reached.exit_status, ExitStatus::Done, "{}", reached.message);
}

#[test]
fn a_failing_pair_prevents_only_a_stage_that_changes_one_of_its_nodes() {
    let mut world = World::new(MIXED, 4, 0);
    world.finds_failing(3, 4);
    for (canary, is_refused) in [("172.16.0.1", false), ("172.16.0.3", true), ("172.16.0.4", true)]
    {
        let decision = decide(&start(named(canary)), &world.view());
        assert_eq!(decision.is_err(), is_refused, "{canary}: {decision:?}");
    }
    step(&mut world, &begin(named("172.16.0.1")));
    // The hash of node 4 is the smallest.
    let refusal = decide(&next(), &world.view()).unwrap_err();
    assert_eq!(refusal.message, "blocked by 1 problem");
    assert!(refusal.details[0].starts_with("172.16.0.3 would stay in the tunnel to 172.16.0.4"));
    assert!(decide(&forced(next()), &world.view()).is_ok());
}

#[test]
fn an_unknown_canary_is_refused() {
    let world = World::new(MIXED, 3, 0);
    let refusal = decide(&forced(start(named("172.16.0.99"))), &world.view()).unwrap_err();
    assert_eq!(refusal.details[0], "no node has the public IP or name 172.16.0.99");
}

/// What a percentage means is not known, and `--force` would change all nodes at once.
#[test]
fn without_a_report_nothing_begins() {
    let mut world = World::new(MIXED, 4, 0);
    world.nodes.iter_mut().for_each(|node| node.runs = Runs::Flannel);
    for order in [start(percent(5)), start(named("172.16.0.1"))] {
        let refused = decide(&forced(order), &world.view()).unwrap_err();
        assert_eq!(refused.details, ["no node sends a report that can be read"]);
    }
    step(&mut world, &begin(named("172.16.0.1")));
    let refused = decide(&forced(next()), &world.view()).unwrap_err();
    assert_eq!(refused.details, ["no node sends a report that can be read"]);
    assert_eq!(world.view().stage_of(5, &Stage::default()), Stage::default());
}
