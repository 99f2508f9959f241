//! Stages forward and back.

use tweed_cni::bridge::pods::Pod;

use super::*;

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
            14:02:00  applied on 4 of 4 nodes
            14:02:00  starting host-gw: 172.16.0.1
            14:02:00  applied on 4 of 4 nodes
            14:02:00  observing for 2m; no problems
            14:03:00  observing for 1m; no problems
            1 of 4 nodes on host-gw (172.16.0.1); next: tweedctl migrate next
            Done
            # next
            14:02:00  applied on 4 of 4 nodes
            14:02:00  now Percent 27 and 172.16.0.1
            14:02:00  applied on 4 of 4 nodes
            2 of 4 nodes on host-gw (Percent 27 and 172.16.0.1); next: tweedctl migrate next
            Done
            # next --percent 100
            14:02:00  applied on 4 of 4 nodes
            14:02:00  now all nodes
            14:02:00  applied on 4 of 4 nodes
            4 of 4 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Done
            # next
            14:02:00  applied on 4 of 4 nodes
            already reached: all nodes; next: tweedctl migrate finish
            Done
            # finish
            14:02:00  applied on 4 of 4 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  applied on 4 of 4 nodes
            finished: all 4 nodes are on host-gw
            Done
            # finish
            14:02:00  applied on 4 of 4 nodes
            finished: all 4 nodes are on host-gw
            Done
        "]],
    )
    .await;
    assert_eq!(world.text, r#"{"Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}}"#);
}

#[tokio::test(start_paused = true)]
async fn rollback_from_any_stage_restores_the_config() {
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
            14:02:00  applied on 8 of 8 nodes
            14:02:00  starting host-gw: Percent 16
            14:02:00  applied on 8 of 8 nodes
            2 of 8 nodes on host-gw (Percent 16); next: tweedctl migrate next
            Done
            # next
            14:02:00  applied on 8 of 8 nodes
            14:02:00  now Percent 38
            14:02:00  applied on 8 of 8 nodes
            4 of 8 nodes on host-gw (Percent 38); next: tweedctl migrate next
            Done
            # rollback --one-stage
            14:02:00  now Percent 16
            14:02:00  applied on 8 of 8 nodes
            2 of 8 nodes on host-gw (Percent 16); next: tweedctl migrate next
            Done
            # rollback
            14:02:00  now no node
            14:02:00  applied on 8 of 8 nodes
            all 8 nodes are back on vxlan; next: tweedctl migrate finish
            Done
            # rollback
            14:02:00  applied on 8 of 8 nodes
            the config already selects vxlan for all nodes; next: tweedctl migrate finish
            Done
            # finish
            14:02:00  applied on 8 of 8 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  applied on 8 of 8 nodes
            finished: all 8 nodes are on vxlan
            Done
        "]],
    )
    .await;
    assert_eq!(world.text, VXLAN);
}

#[tokio::test(start_paused = true)]
async fn nodes_with_equal_hashes_are_named_when_they_change() {
    let lines: [(&str, &[Event]); 1] = [("start --to host-gw --percent 25 --hold 90s", &[])];
    check(
        World::new(MIXED, 4, 1),
        &lines,
        &expect![[r"
            # start --to host-gw --percent 25 --hold 90s
            14:02:00  applied on 5 of 5 nodes
            14:02:00  starting host-gw: Percent 27
            14:02:00  applied on 5 of 5 nodes
            14:02:00  observing for 1m 30s; no problems
            14:03:00  observing for 30s; no problems
            2 of 5 nodes on host-gw (Percent 27); next: tweedctl migrate next
              172.16.0.4, 172.16.1.5 change together, because their hashes are equal
            Done
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn mixed_stays_on_if_pairs_need_it() {
    let lines: [(&str, &[Event]); 2] = [("start --to host-gw --percent 100", &[]), ("finish", &[])];
    check(
        World::new(MIXED, 2, 1),
        &lines,
        &expect![[r"
            # start --to host-gw --percent 100
            14:02:00  applied on 3 of 3 nodes
            14:02:00  starting host-gw: all nodes
            14:02:00  applied on 3 of 3 nodes
            3 of 3 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Done
            # finish
            14:02:00  applied on 3 of 3 nodes
            14:02:00  Rollout is removed
            14:02:00  applied on 3 of 3 nodes
            finished: all 3 nodes are on host-gw; Mixed stays on, because pairs need it
            Done
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn finish_names_pods_that_keep_another_mtu() {
    let mut world = World::new(VXLAN, 2, 0);
    let pod = |number| Pod { name: format!("shop/web-{number}"), mtu: 1400 };
    world.nodes[1].other_mtu = (0..7).map(pod).collect::<Vec<_>>().into();
    let lines: [(&str, &[Event]); 2] = [("start --to host-gw --percent 100", &[]), ("finish", &[])];
    check(
        world,
        &lines,
        &expect![[r"
            # start --to host-gw --percent 100
            14:02:00  Mixed is turned on
            14:02:00  applied on 2 of 2 nodes
            14:02:00  starting host-gw: all nodes
            14:02:00  applied on 2 of 2 nodes
            2 of 2 nodes on host-gw (all nodes); next: tweedctl migrate finish
            Done
            # finish
            14:02:00  applied on 2 of 2 nodes
            14:02:00  Mixed and Rollout are removed
            14:02:00  applied on 2 of 2 nodes
            finished: all 2 nodes are on host-gw
              172.16.0.2: new pods get MTU 1450; these keep theirs: shop/web-0 (1400),
                shop/web-1 (1400), shop/web-2 (1400), shop/web-3 (1400), shop/web-4 (1400)
                and 2 more
            Done
        "]],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn programs_read_the_outcome_as_json() {
    let memory = Memory::new(World::new(MIXED, 2, 0), &[]);
    let order = order("start --to host-gw --percent 100");
    let author = Author::new(note(0));
    let ended = carry_out(&memory, author, &order, &mut std::io::sink()).await.unwrap();
    expect![[r#"{"outcome":"done","message":"2 of 2 nodes on host-gw (all nodes); next: tweedctl migrate finish","details":[],"revision":8,"mixed":true,"backend":"host-gw","from":"vxlan","percent":100,"canaries":[],"following":2,"nodes":2,"reporting":2,"lagging":0}"#]]
    .assert_eq(&serde_json::to_string(&ended).unwrap());
}
