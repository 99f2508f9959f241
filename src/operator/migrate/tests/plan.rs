//! The output of `plan`.

use super::*;

fn check_plan(plan: &MigrationPlan<'_>, expected: &Expect) {
    let text = plan.to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    expected.assert_eq(&text);
}

#[test]
fn a_plan_shows_changes_and_exceptions() {
    check_plan(
        &MigrationPlan::new(&World::new(VXLAN, 2, 1).view(), BackendType::HostGw, Shown::Special),
        &expect![[r"
            to          host-gw, of 3 nodes
            Mixed       off; start turns it on first
            reports     from 3 of 3 nodes
            now         0 direct, 6 by tunnel, 0 without a path
            then        2 direct, 4 by tunnel, 0 without a path
            stages      1 node at 25 %, 3 nodes at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, plus the time of --hold
            MTU         1450 for pods, 1500 for interfaces

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
fn a_plan_with_all_shows_every_pair() {
    let view = World::new(VXLAN, 2, 0).view();
    check_plan(
        &MigrationPlan::new(&view, BackendType::HostGw, Shown::All),
        &expect![[r"
            to          host-gw, of 2 nodes
            Mixed       off; start turns it on first
            reports     from 2 of 2 nodes
            now         0 direct, 2 by tunnel, 0 without a path
            then        2 direct, 0 by tunnel, 0 without a path
            stages      1 node at 25 %, 2 nodes at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, plus the time of --hold
            MTU         1450 for pods, 1500 for interfaces

            FROM        TO          NOW     THEN
            172.16.0.1  172.16.0.2  tunnel  direct
            172.16.0.2  172.16.0.1  tunnel  direct
        "]],
    );
}

#[test]
fn a_plan_shows_obstacles() {
    let mut world = World::new(MIXED, 2, 0);
    world.nodes[0].strict = true;
    world.nodes[1].runs = Runs::Flannel;
    check_plan(
        &MigrationPlan::new(&world.view(), BackendType::HostGw, Shown::Special),
        &expect![[r"
            to          host-gw, of 2 nodes
            Mixed       on
            reports     from 1 of 2 nodes
            now         0 direct, 2 by tunnel, 0 without a path
            then        0 direct, 1 by tunnel, 1 without a path
            stages      1 node at 25 %, 1 node at 100 %
            effort      at most 1 route per node, each replaced in place; a stage takes
                        seconds, plus the time of --hold
            MTU         1450 for pods, 1500 for interfaces

            FROM        TO          NOW     THEN
            172.16.0.1  172.16.0.2  tunnel  tunnel
                it has never answered a probe: it may run flannel, which may drop direct
                  packets
            172.16.0.2  172.16.0.1  tunnel  -
                flannel ignores a lease of host-gw

            blocked by:
              172.16.0.1 has a strict reverse-path filter on eth0, and its tweedd may not
                change it
              172.16.0.2 sends no report that can be read: it runs flannel, another tweedd,
                or no daemon
              172.16.0.2 would no longer reach 172.16.0.1: flannel ignores a lease of
                host-gw
        "]],
    );
}

/// The plan's sentence on connections if these nodes do not keep them.
fn about_connections(nodes: u8, breaking: usize) -> Option<String> {
    let mut world = World::new(VXLAN, nodes, 0);
    world.nodes.iter_mut().take(breaking).for_each(|node| node.keeps_connections = false);
    let text = MigrationPlan::new(&world.view(), BackendType::HostGw, Shown::Special).to_string();
    let (_, output) = text.split_once("NAT ")?;
    Some(output.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn nodes_that_do_not_keep_connections_are_named() {
    let output = |nodes: &str| {
        format!(
            "each change of path may end masqueraded connections on {nodes}: tweedd keeps them \
             with --ip-masq, by nftables or iptables"
        )
    };
    assert_eq!(about_connections(2, 0), None);
    assert!(about_connections(2, 1).unwrap().starts_with(&output("172.16.0.1")));
    let few = "172.16.0.1, 172.16.0.2, 172.16.0.3, 172.16.0.4, 172.16.0.5 and 2 more nodes";
    assert!(about_connections(9, 7).unwrap().starts_with(&output(few)));
}

#[test]
fn a_large_plan_is_a_summary() {
    let view = World::new(VXLAN, 100, 100).view();
    let plan = MigrationPlan::new(&view, BackendType::HostGw, Shown::Special);
    let text = plan.to_string();
    assert!(text.lines().count() < 60, "{text}");
    assert!(text.ends_with("and 19980 more: --all\n"), "{text}");
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!((json["pairs"].as_array().unwrap().len(), &json["special"]), (20, &20_000.into()));
}

#[test]
fn a_plan_keeps_only_the_first_obstacles() {
    let mut world = World::new(MIXED, 40, 0);
    world.nodes.iter_mut().for_each(|node| node.runs = Runs::Flannel);
    world.nodes[0].runs = Runs::Tweed;
    let plan = |world: &World| {
        let view = world.view();
        let plan = MigrationPlan::new(&view, BackendType::HostGw, Shown::Special);
        serde_json::to_value(&plan).unwrap()
    };
    let count = |plan: &serde_json::Value| plan["obstacles"].as_array().unwrap().len();
    // No flannel reaches the node that changes.
    let few = plan(&world);
    assert_eq!((count(&few), &few["obstacles_total"]), (78, &78.into()));
    world.nodes.iter_mut().take(35).for_each(|node| node.runs = Runs::Tweed);
    for from in 1..=35 {
        (1..=35).filter(|to| *to != from).for_each(|to| world.finds_failing(from, to));
    }
    let many = plan(&world);
    assert_eq!((count(&many), &many["obstacles_total"]), (1000, &(5 + 5 * 35 + 35 * 34).into()));
}

#[test]
fn nodes_that_change_together_are_named() {
    // The hashes of the last two nodes are equal.
    let view = World::new(VXLAN, 4, 1).view();
    let plan = MigrationPlan::new(&view, BackendType::HostGw, Shown::Special).to_string();
    let words = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    let stages = "stages 2 nodes at 25 %, 5 nodes at 100 %";
    assert!(words.contains(stages), "{plan}");
    let tied = "hashes 172.16.0.4, 172.16.1.5 change together, because their hashes are equal";
    assert!(words.contains(tied), "{plan}");
}
