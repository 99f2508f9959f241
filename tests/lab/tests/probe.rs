//! The probe loses nothing by itself, and misses nothing that is lost.

mod cluster;

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster::{direct, islands, ordered_pairs, subnet};
use tweed_lab::{Family, Lab, PATIENCE, Pair, ProbePlan, eventually};

const AWAY: Duration = Duration::from_millis(200);

#[test]
fn a_quiet_network_loses_nothing() -> Result<()> {
    let it = direct(4);
    let pairs = it.lab.pairs(Family::V4);
    assert_eq!(pairs.len(), 12);
    let probe = it.lab.probe(&pairs, 1000)?;
    probe.run_for(Duration::from_secs(5));
    let report = probe.finish()?;
    assert_eq!(report.lost(), 0, "{report}");
    // A sender that moves to another processor overtakes packets that wait for the former one.
    assert!(report.pairs.iter().all(|pair| pair.duplicates == 0));
    assert!(report.total().sent > 0);
    Ok(())
}

#[test]
fn a_route_missing_for_a_moment_affects_only_its_own_pair() -> Result<()> {
    let it = direct(3);
    let probe = it.lab.probe(&it.lab.pairs(Family::V4), 1000)?;
    probe.run_for(Duration::from_millis(500));
    probe.mark("away");
    it.nodes[0].ip(format!("route del {}", subnet(1)))?;
    probe.run_for(AWAY);
    it.route_directly(0, 1);
    probe.mark("back");
    probe.run_for(Duration::from_millis(500));
    let report = probe.finish()?;

    let pair = report.pair("n1", "n2").unwrap();
    assert!(pair.count.lost > 0);
    assert_eq!(report.lost(), pair.count.lost_by_network(), "{report}");
    let away = report.stage("away").unwrap().count;
    assert_eq!(report.lost(), away.lost_by_network(), "{report}");
    // A round that the machine delays hides at most its own delay, at either end.
    assert!(pair.longest_outage + 2 * report.longest_pause >= AWAY, "{report}");
    assert!(pair.longest_silence + 2 * report.longest_pause >= AWAY, "{report}");
    assert_eq!(report.stages.len(), 3);
    Ok(())
}

#[test]
fn replacing_routes_between_tunnel_and_direct_loses_nothing() -> Result<()> {
    let it = islands(3);
    it.prepare_tunnels();
    let both_ways = || {
        ordered_pairs(3).for_each(|(from, to)| it.route_through_tunnel(from, to));
        ordered_pairs(3).for_each(|(from, to)| it.route_directly(from, to));
    };
    both_ways();
    let probe = it.lab.probe(&it.lab.pairs(Family::V4), 1000)?;
    (0..20).for_each(|_| both_ways());
    let report = probe.finish()?;
    assert_eq!(report.lost(), 0, "{report}");
    Ok(())
}

#[test]
fn a_pair_without_a_path_is_named_before_anything_is_counted() {
    let it = direct(2);
    it.cut(0, 1);
    let plan = ProbePlan::new(&it.lab.pairs(Family::V4), 100).warm_within(Duration::from_secs(20));
    let error = format!("{:#}", plan.start().unwrap_err());
    assert!(error.contains("no packet has arrived: n1 → n2"), "{error}");
    assert!(!error.contains("n2 → n1"), "{error}");
}

#[test]
fn a_cold_probe_counts_until_the_path_is_there() -> Result<()> {
    let it = islands(2);
    it.route_directly(1, 0);
    let pairs = it.lab.pairs(Family::V4);
    let probe = ProbePlan::new(&pairs, 1000).cold().payload(1422).start()?;
    probe.run_for(Duration::from_millis(100));
    it.route_directly(0, 1);
    probe.mark("there");
    probe.run_for(Duration::from_millis(100));
    let report = probe.finish()?;
    assert!(report.pair("n1", "n2").unwrap().count.lost > 0, "{report}");
    assert_eq!(report.stage("there").unwrap().count.lost_by_network(), 0, "{report}");
    Ok(())
}

#[test]
fn a_second_pod_of_a_node_has_streams_of_its_own() -> Result<()> {
    let it = direct(2);
    let second = it.nodes[0].pod_in(&cluster::env(1))?;
    assert_eq!(it.lab.pairs(Family::V4).len(), 4);
    let pair = Pair { from: second, to: it.pods[1].clone(), family: Family::V4 };
    assert_eq!(pair.to_string(), "n1.2 → n2");
    let report = it.lab.probe(&[pair], 100)?.finish()?;
    assert_eq!(report.pairs.len(), 1);
    Ok(())
}

#[test]
fn streams_and_pings_run_over_ipv6_too() -> Result<()> {
    let lab = Lab::bare()?;
    let segment = lab.segment("fd99:1::/64")?;
    let (left, right) = (lab.node("left", &segment)?, lab.node("right", &segment)?);
    for (number, node, peer) in [(1, &left, &right), (2, &right, &left)] {
        let env = format!(
            "FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:{number}::1/64\n\
             FLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n"
        );
        node.pod_in(&env.parse()?)?;
        let (subnet, gateway) =
            (format!("fd00:244:0:{}::/64", 3 - number), peer.address(Family::V6)?);
        node.ip(format!("route add {subnet} via {gateway}"))?;
    }
    assert!(lab.pairs(Family::V4).is_empty());
    let report = lab.probe(&lab.pairs(Family::V6), 100)?.finish()?;
    assert_eq!((report.pairs.len(), report.lost()), (2, 0));
    lab.all_reach_each_other(Family::V6)
}

#[test]
fn the_ping_matrix_shows_which_pod_is_cut_off() -> Result<()> {
    let it = direct(3);
    it.lab.all_reach_each_other(Family::V4)?;
    it.nodes[0].ip(format!("route replace blackhole {}", subnet(1)))?;
    let expected = "      n1    n2    n3    \nn1    ·     LOST  ok    \nn2    LOST  ·     ok    \n\
                    n3    ok    ok    ·     \n";
    // A busy machine answers some pings too late.
    eventually(PATIENCE, || {
        let matrix = it.lab.ping_matrix(Family::V4)?;
        ensure!(!matrix.all_answered() && matrix.to_string() == expected, "{matrix}");
        Ok(())
    })
    .map(drop)
}
