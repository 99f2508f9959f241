//! Paths between nodes, now and later, and obstacles.

use std::fmt::Write;

use expect_test::{Expect, expect};

use crate::model::config::BackendType;
use crate::model::path::Path;

use super::super::cluster::ClusterView;
use super::super::obstacle::Obstacles;
use super::super::pairs::{self, PairTotals};
use super::super::reachability::{Backends, Reachability};
use super::super::state::Step;
use super::world::{Listens, MIXED, Runs, VXLAN, World, named, percent, step};
use crate::model::prefix::Family;

const THEN: Backends = Backends::All { kind: BackendType::HostGw, mixed: true };

/// All obstacles: those that `--force` does not accept, and the others.
fn obstacles(view: &ClusterView, kind: BackendType) -> [Vec<String>; 2] {
    let mut obstacles = Obstacles::of_nodes(view);
    obstacles.add_failing(view, kind, &(0..view.members.len()).collect());
    pairs::cut(view, Backends::All { kind, mixed: true }).for_each(|pair| obstacles.add_cut(&pair));
    [obstacles.fatal.first, obstacles.forgivable.first]
}

fn check(view: &ClusterView, backends: Backends, expected: &Expect) {
    expected.assert_eq(&lines(view, Reachability::new(view, backends)));
}

fn lines(view: &ClusterView, mut reachability: Reachability<'_>) -> String {
    let mut lines = String::new();
    for (at, from) in view.members.iter().enumerate() {
        let reaches = reachability.from(at);
        for (to, peer) in view.members.iter().enumerate() {
            for reach in Family::ALL.iter().filter_map(|family| reaches.to(to, *family)) {
                let path = reach.path.map_or("nothing", Path::as_str);
                let reason = reach.reason.as_ref().map(|reason| format!(" ({reason})"));
                let reason = reason.unwrap_or_default();
                writeln!(lines, "{} → {} {path}{reason}", from.name, peer.name).unwrap();
            }
        }
    }
    lines
}

/// A change of one node, by which others may judge its lease differently.
type Mistake = fn(&mut ClusterView);

#[test]
fn nodes_that_plan_alike_have_the_paths_that_each_would_plan_alone() {
    let mistakes: [Mistake; 8] = [
        |_| {},
        |view| {
            let ip = view.members[0].lease.endpoints[0].public_ip;
            view.members[2].lease.endpoints[0].public_ip = ip;
        },
        |view| view.members[2].lease.endpoints[0].vtep = view.members[0].lease.endpoints[0].vtep,
        |view| view.members[2].lease.endpoints[0].subnet = "10.244.1.0/25".parse().unwrap(),
        |view| view.members[2].lease.endpoints[0].subnet = "10.244.0.0/22".parse().unwrap(),
        |view| view.members[2].lease.endpoints[0].subnet = "10.1.0.0/24".parse().unwrap(),
        |view| view.members[2].lease.endpoints[0].public_ip = "10.244.2.9".parse().unwrap(),
        |view| view.members[2].lease.endpoints[0].vtep = None,
    ];
    for (number, mistake) in mistakes.into_iter().enumerate() {
        let mut world = begun(World::new(MIXED, 4, 2));
        world.nodes[3].runs = Runs::Flannel;
        world.finds_failing(2, 1);
        world.reports_path(1, 2, Some(Path::Tunnel), "its direct path did not answer");
        let mut view = world.view();
        mistake(&mut view);
        for backends in [Backends::AsReported, THEN] {
            let alike = lines(&view, Reachability::new(&view, backends));
            let alone = lines(&view, Reachability::new(&view, backends).each_alone());
            assert_eq!(alike, alone, "mistake {number}, {backends:?}");
        }
        for mixed in [true, false] {
            let then = Backends::All { kind: BackendType::HostGw, mixed };
            for from in pairs::by_node(&view, then) {
                let mut counted = PairTotals::default();
                from.iter().for_each(|pair| counted.add(&pair));
                assert_eq!(from.figures, counted, "mistake {number}, {mixed}");
            }
        }
    }
}

fn begun(mut world: World) -> World {
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: named("172.16.0.1") });
    world
}

#[test]
fn a_vxlan_cluster_is_tunnels_and_becomes_routes_where_the_link_allows_it() {
    let view = World::new(VXLAN, 2, 1).view();
    check(
        &view,
        Backends::AsReported,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 tunnel
        172.16.0.1 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.0.2 → 172.16.0.1 tunnel
        172.16.0.2 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.1.3 → 172.16.0.1 tunnel (172.16.0.1 is not on the link of eth0)
        172.16.1.3 → 172.16.0.2 tunnel (172.16.0.2 is not on the link of eth0)
    "]],
    );
    check(
        &view,
        THEN,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 direct
        172.16.0.1 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.0.2 → 172.16.0.1 direct
        172.16.0.2 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.1.3 → 172.16.0.1 tunnel (172.16.0.1 is not on the link of eth0)
        172.16.1.3 → 172.16.0.2 tunnel (172.16.0.2 is not on the link of eth0)
    "]],
    );
}

#[test]
fn during_a_migration_each_node_has_its_own_backend() {
    check(
        &begun(World::new(MIXED, 2, 1)).view(),
        Backends::AsReported,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 direct
        172.16.0.1 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.0.2 → 172.16.0.1 direct
        172.16.0.2 → 172.16.1.3 tunnel (172.16.1.3 is not on the link of eth0)
        172.16.1.3 → 172.16.0.1 tunnel (172.16.0.1 is not on the link of eth0)
        172.16.1.3 → 172.16.0.2 tunnel (172.16.0.2 is not on the link of eth0)
    "]],
    );
}

#[test]
fn without_mixed_a_node_behind_a_router_would_be_cut_off() {
    let then = Backends::All { kind: BackendType::HostGw, mixed: false };
    check(
        &World::new(MIXED, 1, 1).view(),
        then,
        &expect![[r"
        172.16.0.1 → 172.16.1.2 nothing (skipped: gateway 172.16.1.2 is not on the link of eth0)
        172.16.1.2 → 172.16.0.1 nothing (skipped: gateway 172.16.0.1 is not on the link of eth0)
    "]],
    );
}

#[test]
fn flannel_stays_as_it_is_and_ignores_the_new_backend() {
    let mut world = World::new(MIXED, 2, 0);
    world.nodes[1].runs = Runs::Flannel;
    check(
        &world.view(),
        THEN,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 tunnel (it has never answered a probe: it may run flannel, which may drop direct packets)
        172.16.0.2 → 172.16.0.1 nothing (flannel ignores a lease of host-gw)
    "]],
    );
    let found = obstacles(&world.view(), BackendType::HostGw);
    assert_eq!(found[0], [""; 0]);
    expect![[r"
        172.16.0.2 sends no report that can be read: it runs flannel, another tweedd, or no daemon
        172.16.0.2 would no longer reach 172.16.0.1: flannel ignores a lease of host-gw"]]
    .assert_eq(&found[1].join("\n"));
}

#[test]
fn the_report_of_a_node_precedes_its_computed_plan() {
    let mut world = begun(World::new(MIXED, 2, 0));
    world.reports_path(1, 2, Some(Path::Tunnel), "its direct path did not answer");
    check(
        &world.view(),
        Backends::AsReported,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 tunnel (its direct path did not answer)
        172.16.0.2 → 172.16.0.1 direct
    "]],
    );
}

#[test]
fn a_failing_direct_path_is_an_obstacle_before_any_node_takes_it() {
    let mut world = World::new(MIXED, 2, 0);
    world.finds_failing(1, 2);
    check(
        &world.view(),
        THEN,
        &expect![[r"
        172.16.0.1 → 172.16.0.2 tunnel (its direct path fails: probes through the tunnel are answered, direct ones are not)
        172.16.0.2 → 172.16.0.1 direct
    "]],
    );
    let found = |kind| obstacles(&world.view(), kind);
    let [fatal, forgivable] = found(BackendType::HostGw);
    expect![[r"172.16.0.1 would stay in the tunnel to 172.16.0.2: its direct path fails: probes through the tunnel are answered, direct ones are not"]]
    .assert_eq(&forgivable.join("\n"));
    assert_eq!(fatal, [""; 0]);
    assert_eq!(found(BackendType::Vxlan).concat(), [""; 0]);
}

#[test]
fn strict_filters_are_an_obstacle_once_mixed_is_on() {
    for (text, expected) in [(VXLAN, 0), (MIXED, 1)] {
        let mut world = World::new(text, 2, 0);
        world.nodes[0].strict = true;
        let [fatal, forgivable] = obstacles(&world.view(), BackendType::HostGw);
        assert_eq!((fatal.len(), forgivable.len()), (expected, 0), "{text}");
    }
}

#[test]
fn a_node_that_has_not_followed_lags_with_a_reason() {
    let mut world = World::new(MIXED, 3, 0);
    world.nodes[1].listens = Listens::No;
    step(&mut world, &Step::Begin { to: BackendType::HostGw, stage: percent(100) });
    let lags = world.view().lags();
    assert_eq!(lags, ["172.16.0.2 has not seen the config yet"]);
    world.follow();
    world.nodes[1].listens = Listens::Yes;
    world.follow();
    assert_eq!(world.view().lags(), [""; 0]);
}

#[test]
fn a_stage_is_not_applied_while_probes_are_awaited() {
    let mut world = begun(World::new(MIXED, 3, 0));
    world.reports_path(1, 2, Some(Path::Tunnel), "its direct path is not verified yet");
    world.nodes[0].exceptions[0].probing = true;
    let lags = world.view().lags();
    let expected =
        "172.16.0.1 still uses the tunnel to 10.244.2.0-24: its direct path is not verified yet";
    assert_eq!((lags, world.view().troubles().len()), (vec![expected.to_owned()], 0));
}

#[test]
fn only_new_troubles_are_regressions() {
    let mut world = World::new(MIXED, 3, 0);
    world.reports_path(3, 1, None, "skipped: long ago");
    let before = world.view();
    assert_eq!(before.troubles().len(), 1);
    let mut world = begun(world);
    world.reports_path(1, 2, Some(Path::Tunnel), "its direct path did not answer");
    let mut now = world.view();
    now.members.pop();
    let worse = now.degraded(&before);
    let texts: Vec<_> = worse.iter().map(|(subject, why)| format!("{subject}: {why}")).collect();
    expect![[r"
        172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
        172.16.0.3: its lease is removed"]]
    .assert_eq(&texts.join("\n"));
}
