//! The output of `status`.

use super::*;

fn check_status(world: &World, expected: &Expect) {
    let text = MigrationStatus::new(&world.view(), note(100).at).to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    expected.assert_eq(&text);
}

#[test]
fn a_status_without_a_migration_shows_the_nodes() {
    check_status(
        &World::new(MIXED, 3, 1),
        &expect![[r"
            migration none; the config selects vxlan, mixed
            progress  applied on 4 of 4 nodes
            pairs     0 direct, 0 by tunnel, 0 skipped, 0 rejected

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
fn a_status_compares_loss_and_latency_with_those_before() {
    let mut world = World::new(MIXED, 2, 0);
    let canary = Stage { percent: 0, nodes: vec!["172.16.0.1".into()] };
    let measured = |world: &mut World, lost, round_trip| {
        let quality = crate::model::report::Quality::measured(1000, lost, round_trip);
        for node in &mut world.nodes {
            node.quality = Some(quality);
        }
    };
    measured(&mut world, 0, 480);
    let begin = Step::Begin { to: BackendType::HostGw, stage: canary };
    for (second, lost, round_trip, step) in
        [(10, 0, 480, begin), (40, 1, 190, Step::Reach(percent(100)))]
    {
        measured(&mut world, lost, round_trip);
        let document = world.state().after(&step, &note(second), world.view().quality());
        world.put(document.text());
        world.follow();
    }
    measured(&mut world, 0, 95);
    check_status(
        &world,
        &expect![[r"
            migration vxlan → host-gw, all nodes, mixed
            progress  [########################] 2 of 2; applied on 2 of 2 nodes
            pairs     0 direct, 0 by tunnel, 0 skipped, 0 rejected

            STAGE        SINCE                 FOR    LOSS   LATENCY  BY
            before       -                     -      0 %    500 us   -
            1 named      2026-11-21T14:02:10Z  30s    0.1 %  200 us   root@n1
            Percent 100  2026-11-21T14:02:40Z  1m 0s  0 %    100 us   root@n1

            NODE        BACKEND  PATHS
            172.16.0.1  host-gw  .=
            172.16.0.2  host-gw  =.
            = direct  o by tunnel  x no path, in the order of the rows
        "]],
    );
}

#[test]
fn a_status_shows_stages_nodes_pairs_and_troubles() {
    let mut world = World::new(MIXED, 3, 1);
    let canary = Stage { percent: 0, nodes: vec!["172.16.0.1".into()] };
    for (second, step) in [
        (10, Step::Begin { to: BackendType::HostGw, stage: canary }),
        (75, Step::Reach(percent(100))),
        (90, Step::Pause),
    ] {
        let document = world.state().after(&step, &note(second), None);
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
            progress  [########################] 3 of 3; applied on 2 of 3 nodes
            pairs     0 direct, 0 by tunnel, 0 skipped, 0 rejected
            paused    by root@n1 at 2026-11-21T14:03:30Z
            waiting   172.16.0.2 has not seen the config yet
            problem   172.16.0.1 → 172.16.0.2, by tunnel: its direct path did not answer
            unknown   172.16.0.3 sends no report

            STAGE        SINCE                 FOR    LOSS  LATENCY  BY
            1 named      2026-11-21T14:02:10Z  1m 5s  -     -        root@n1
            Percent 100  2026-11-21T14:03:15Z  25s    -     -        root@n1

            NODE        BACKEND  PATHS
            172.16.0.1  host-gw  .o=o
            172.16.0.2  host-gw  =.=o
            172.16.0.3  host-gw  ==.=
            172.16.1.4  host-gw  ooo.
            = direct  o by tunnel  x no path, in the order of the rows
        "]],
    );
}
