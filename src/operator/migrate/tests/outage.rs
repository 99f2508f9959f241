//! Nodes that are dead or unreachable are named, and not what fails because of them.

use super::super::cluster::ClusterView;
use super::super::decision::decide;
use super::super::options::{Order, StageOptions};
use super::world::{named, start};
use super::*;
use crate::model::lease::LeaseId;
use crate::operator::nodes::evidence::ClusterNode;

/// The third of three nodes is dead, and its peers report all that follows from that.
fn with_a_dead_node() -> World {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[2].runs = Runs::Nothing;
    for from in [1, 2] {
        world.finds_failing(from, 3);
        world.reports_path(from, 3, Some(Path::Tunnel), "its direct path did not answer");
    }
    world.finds_failing(3, 1);
    world.reports_path(3, 1, None, "skipped: it published no VTEP");
    world
}

fn next(force: bool) -> Order {
    let options = StageOptions { force, ..StageOptions::default() };
    Order::Next { percent: None, resume: false, options }
}

#[test]
fn a_plan_names_a_dead_node_once() {
    let view = with_a_dead_node().view();
    let text = MigrationPlan::new(&view, BackendType::HostGw, Shown::Special).to_string();
    assert!(text.contains("\nreports     from 2 of 3 nodes\n"), "{text}");
    let (_, obstacles) = text.split_once("blocked by:").unwrap();
    expect![[r"
        blocked by:
          172.16.0.3 is dead: its report is not refreshed for 12 min, and it is not
            reached from 2 of 2 nodes: its host or its daemon is down; start it, or, if
            it is gone, run tweedctl leases release 10.244.3.0/24
    "]]
    .assert_eq(&format!("blocked by:{obstacles}"));
}

#[test]
fn a_status_names_a_dead_node_and_not_its_peers() {
    let mut world = with_a_dead_node();
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: named("172.16.0.1") });
    let status = MigrationStatus::new(&world.view(), note(100).at);
    assert_eq!(status.exit_status(), crate::operator::ExitStatus::Degraded);
    let text = status.to_string();
    let head = text.split("\nNODE").next().unwrap();
    expect![[r"
        migration vxlan → host-gw, 172.16.0.1, mixed
        progress  [############............] 1 of 2; applied on 2 of 2 nodes
        pairs     0 direct, 0 by tunnel, 0 skipped, 0 rejected
        problem   172.16.0.3 is dead: its report is not refreshed for 12 min, and it is
                  not reached from 2 of 2 nodes: its host or its daemon is down; start
                  it, or, if it is gone, run tweedctl leases release 10.244.3.0/24

        STAGE    SINCE                 FOR     LOSS  LATENCY  BY
        1 named  2026-11-21T14:02:00Z  1m 40s  -     -        root@n1
    "]]
    .assert_eq(head);
}

#[test]
fn a_dead_node_prevents_a_stage_unless_it_is_forced() {
    let mut world = with_a_dead_node();
    let refusal = decide(&start(named("172.16.0.1")), &world.view()).unwrap_err();
    assert_eq!((refusal.message.as_str(), refusal.details.len()), ("blocked by 1 problem", 1));
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: named("172.16.0.1") });
    let refusal = decide(&next(false), &world.view()).unwrap_err();
    assert_eq!((refusal.message.as_str(), refusal.details.len()), ("blocked by 1 problem", 1));
    assert!(refusal.details[0].starts_with("172.16.0.3 is dead: "), "{:?}", refusal.details);
    assert!(decide(&next(true), &world.view()).is_ok());
    // A pair that fails for another reason is named, too.
    world.finds_failing(2, 1);
    world.nodes[0].failing.clear();
    let details = decide(&next(false), &world.view()).unwrap_err().details;
    assert!(details[1].starts_with("172.16.0.2 would stay in the tunnel to 172.16.0.1"));
    assert_eq!(details.len(), 2, "{details:?}");
}

#[test]
fn no_stage_waits_for_a_dead_node_or_for_probes_of_it() {
    let mut world = with_a_dead_node();
    world.nodes.iter_mut().flat_map(|it| &mut it.exceptions).for_each(|it| it.probing = true);
    world.put(MIXED);
    world.follow();
    assert_eq!(world.view().lags(), [""; 0]);
    // One that only its peers do not reach applies the config.
    world.nodes[2].runs = Runs::Unreachable;
    assert_eq!(world.view().lags(), ["172.16.0.3 has not seen the config yet"]);
    world.follow();
    assert_eq!(world.view().lags(), [""; 0]);
}

#[test]
fn a_node_that_its_peers_do_not_reach_is_named_before_its_report_is_old() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[2].runs = Runs::Unreachable;
    world.finds_failing(1, 3);
    let refusal = decide(&start(named("172.16.0.1")), &world.view()).unwrap_err();
    assert_eq!(
        refusal.details,
        ["172.16.0.3 is unreachable: it is not reached from 2 of 2 nodes; tweedctl connectivity \
          test shows the causes"]
    );
}

#[test]
fn in_kubernetes_the_node_is_deleted_and_not_its_lease() {
    let world = with_a_dead_node();
    let (mut records, mut reports) = (world.records(), world.reports());
    let id = LeaseId::new("worker-3");
    records[2].lease.as_mut().unwrap().id = id.clone();
    reports[2].report.lease = id.clone();
    for stored in &mut reports {
        stored.report.failing_peers.iter_mut().for_each(|peer| peer.lease = id.clone());
    }
    let view = ClusterView::new(world.state(), ClusterNode::all(records, reports));
    let texts: Vec<_> = view.troubles().values().cloned().collect();
    assert!(texts[0].ends_with("if it is gone, run kubectl delete node worker-3"), "{texts:?}");
}

fn dies(world: &mut World) {
    *world = World { nodes: with_a_dead_node().nodes, ..world.clone() };
}

#[tokio::test(start_paused = true)]
async fn a_stage_in_which_a_node_dies_stops_by_the_name_of_that_node() {
    let start = "start --to host-gw --canary 172.16.0.1 --hold 10m";
    let lines: [(&str, &[Event]); 3] =
        [(start, &[(30, dies)]), ("next", &[]), ("next --force", &[])];
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
          172.16.0.3 is dead: its report is not refreshed for 12 min, and it is not
            reached from 2 of 2 nodes: its host or its daemon is down; start it, or, if
            it is gone, run tweedctl leases release 10.244.3.0/24
        Degraded
        # next
        14:02:00  applied on 2 of 2 nodes
        blocked by 1 problem
          172.16.0.3 is dead: its report is not refreshed for 12 min, and it is not
            reached from 2 of 2 nodes: its host or its daemon is down; start it, or, if
            it is gone, run tweedctl leases release 10.244.3.0/24
        Impossible
        # next --force
        14:02:00  applied on 2 of 2 nodes
        14:02:00  now all nodes
        14:02:00  applied on 2 of 2 nodes
        2 of 2 nodes on host-gw (all nodes); next: tweedctl migrate finish; 1 node dead
        Done
    "]],
    )
    .await;
}
