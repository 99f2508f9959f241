//! A live cluster of eight nodes changes its backend while other faults occur.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, Flannel, Path, Probe, Tally, Traffic, eventually, lock, paths};

use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{Distance, HOST_GW_MIXED, Side, VXLAN_MIXED, expected, path};

/// Packets per second and ordered pair of pods; eight nodes have 56 pairs.
const RATE: u32 = 100;
/// How long packets flow after each step.
const PAUSE: Duration = Duration::from_millis(300);

/// Six nodes on a segment and two behind a router, under traffic.
struct Migration {
    cluster: Cluster,
    /// A node that runs flanneld.
    flannel: Option<Flannel>,
    probe: Probe,
    traffic: Traffic,
}

impl Migration {
    fn start(plan: &ClusterPlan) -> Result<Self> {
        Self::with(plan.start()?, None)
    }

    fn with(cluster: Cluster, flannel: Option<Flannel>) -> Result<Self> {
        cluster.start_pods()?;
        let pairs = cluster.lab.pairs(Family::V4);
        // The traffic needs paths; the probe waits for them.
        let probe = cluster.lab.probe(&pairs, RATE)?;
        let traffic = Traffic::start(&pairs)?;
        Ok(Self { cluster, flannel, probe, traffic })
    }

    /// Writes the config that has the nodes with these indices on host-gw.
    fn edit(&self, followers: &[usize]) -> Result<()> {
        let address = |index: &usize| self.cluster.nodes[*index].address(Family::V4);
        let nodes = followers.iter().map(address).collect::<Result<Vec<_>>>()?;
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        let rollout = format!(r#","Rollout":{{"From":{{"Type":"vxlan"}},"Nodes":{nodes:?}}}"#);
        let rest = match followers.len() {
            0 => VXLAN_MIXED.config(),
            some if some == self.cluster.nodes.len() => HOST_GW_MIXED.config(),
            _ => HOST_GW_MIXED.config() + &rollout,
        };
        self.cluster.etcd.put(CONFIG, &Stack::V4.config(&rest))
    }

    /// Waits until every path matches the table for these nodes on host-gw.
    fn follow(&self, what: &str, followers: &[usize]) -> Result<()> {
        let cluster = &self.cluster;
        let followers: BTreeSet<&str> =
            followers.iter().map(|index| cluster.nodes[*index].name()).collect();
        let took = eventually(PATIENCE, || {
            for (from, to, is) in paths(&cluster.nodes, Family::V4)?.cells() {
                let wanted = self.wanted(&followers, from, to);
                ensure!(*is == wanted, "{from} → {to}: {is}, not {wanted}");
            }
            Ok(())
        });
        println!("{what}: paths right {:.0?} later", took.context(what.to_owned())?);
        self.flannel.iter().try_for_each(|flannel| flannel.follow(&cluster.etcd))?;
        self.probe.run_for(PAUSE);
        Ok(())
    }

    fn wanted(&self, followers: &BTreeSet<&str>, from: &str, to: &str) -> Path {
        let is_far = |name: &str| name == "n7" || name == "n8";
        // It keeps the entries of the time when all nodes were on vxlan, and answers no probe.
        if (from == OTHER || to == OTHER) && self.flannel.is_some() {
            return Path::Tunnel;
        }
        let distance =
            if is_far(from) == is_far(to) { Distance::Adjacent } else { Distance::BehindRouter };
        let side = |name: &str| -> Side {
            if followers.contains(name) { HOST_GW_MIXED } else { VXLAN_MIXED }
        };
        path(expected(side(from), side(to), distance))
    }

    fn step(&self, what: &str, followers: &[usize]) -> Result<()> {
        self.probe.mark(what);
        self.edit(followers)?;
        self.follow(what, followers)
    }

    fn finish(self) -> Result<()> {
        let report = self.probe.finish()?;
        println!("{report}");
        ensure!(report.lost() == 0, "lost packets:\n{report}");
        let tally = self.traffic.finish()?;
        let Tally { broken, failed, .. } = tally;
        ensure!(broken == 0 && failed == 0 && tally.echoes > 0 && tally.pages > 0, "{tally:?}");
        Ok(())
    }
}

/// The name of the node that runs flanneld.
const OTHER: &str = "other";
const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

/// Such a cluster with its traffic loads a processor: one at a time.
static EIGHT: Mutex<()> = Mutex::new(());

fn eight() -> (MutexGuard<'static, ()>, ClusterPlan) {
    let turn = lock(&EIGHT);
    (turn, ClusterPlan::new(6, &Stack::V4.config(&VXLAN_MIXED.config())).far(2))
}

#[test]
fn eight_nodes_flip_by_one_edit_while_etcd_loses_a_member_and_a_daemon_dies() {
    let (_turn, plan) = eight();
    let mut migration = Migration::start(&plan.members(3)).unwrap();
    migration.step("one edit", ALL).unwrap();
    migration.step("and back", &[]).unwrap();

    migration.probe.mark("the leader dies");
    migration.edit(ALL).unwrap();
    // There is none while the members of a busy machine elect one.
    let mut leader = 0;
    let is_there = || {
        leader = migration.cluster.etcd.leader()?;
        Ok::<_, anyhow::Error>(())
    };
    eventually(PATIENCE, is_there).unwrap();
    migration.cluster.etcd.member(leader).unwrap().kill().unwrap();
    migration.follow("the leader dies", ALL).unwrap();
    // An operator waits for a leader too.
    migration.cluster.etcd.wait_ready().unwrap();
    migration.step("back without it", &[]).unwrap();
    migration.cluster.etcd.start().unwrap();

    migration.probe.mark("daemons die");
    migration.edit(&[0, 1, 6]).unwrap();
    for index in [0, 3] {
        migration.cluster.daemons[index].kill().unwrap();
        migration.cluster.daemons[index].start().unwrap();
    }
    migration.follow("daemons die", &[0, 1, 6]).unwrap();
    migration.finish().unwrap();
}

#[test]
fn eight_nodes_flip_in_stages_while_nodes_join_and_another_operator_writes() {
    let (_turn, plan) = eight();
    let mut migration = Migration::start(&plan).unwrap();
    migration.probe.mark("a node joins");
    migration.edit(&[0, 1, 6]).unwrap();
    let node = migration.cluster.lab.node("n9", &migration.cluster.segment).unwrap();
    migration.cluster.add(node).unwrap();
    migration.follow("a node joins", &[0, 1, 6]).unwrap();

    migration.probe.mark("two write at once");
    migration.edit(&[0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    migration.edit(&[2, 3]).unwrap();
    migration.follow("two write at once", &[2, 3]).unwrap();

    migration.step("all", &[0, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    migration.step("back in part", &[1, 7, 8]).unwrap();
    migration.step("back", &[]).unwrap();
    migration.finish().unwrap();
}

#[test]
fn a_node_of_another_implementation_stays_reachable_throughout() {
    let plan = ClusterPlan::new(3, &Stack::V4.config(&VXLAN_MIXED.config()));
    let mut cluster = plan.start().unwrap();
    let other = cluster.lab.node(OTHER, &cluster.segment).unwrap();
    let [network, subnet] = ["10.244.0.0/16", "10.244.250.0/24"].map(|it| it.parse().unwrap());
    let flannel = Flannel::join(&other, &cluster.etcd, network, subnet).unwrap();
    cluster.nodes.push(other);
    let migration = Migration::with(cluster, Some(flannel)).unwrap();
    migration.follow("before", &[]).unwrap();
    for followers in [&[1][..], &[0, 1, 2], &[0], &[]] {
        migration.step(&format!("{followers:?}"), followers).unwrap();
    }
    migration.finish().unwrap();
}
