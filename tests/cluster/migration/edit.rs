//! One config change in etcd changes the running cluster, without packet loss.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{Family, Probe, eventually};

use crate::fixture::cluster::{CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{HOST_GW, HOST_GW_MIXED, Side, VXLAN, VXLAN_MIXED, wait_for_sides};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 1000;
/// How long packets flow after each step.
const PAUSE: Duration = Duration::from_millis(300);

/// A cluster under traffic whose config is changed.
struct EditedCluster {
    cluster: Cluster,
    sides: Vec<Side>,
    probe: Probe,
}

impl EditedCluster {
    fn start(plan: &ClusterPlan, side: Side) -> Result<Self> {
        let cluster = plan.start()?;
        cluster.start_pods()?;
        let sides = vec![side; cluster.nodes.len()];
        wait_for_sides(&cluster, &sides)?;
        let families = cluster.stack.families().iter();
        let pairs: Vec<_> = families.flat_map(|family| cluster.lab.pairs(*family)).collect();
        let probe = cluster.lab.probe(&pairs, RATE)?;
        Ok(Self { cluster, sides, probe })
    }

    /// Writes the config, with `rest` next to the side's own fields, and waits until the paths are
    /// those of `sides`.
    fn edit(&mut self, side: Side, rest: &str, sides: &[Side]) -> Result<()> {
        self.probe.mark(&format!("{side:?}"));
        let config = self.cluster.stack.config(&format!("{}{rest}", side.config()));
        self.cluster.etcd.put(CONFIG, &config)?;
        self.sides = sides.to_vec();
        let followed = wait_for_sides(&self.cluster, &self.sides)?;
        println!("{config}: paths right {followed:.0?} later");
        self.probe.run_for(PAUSE);
        Ok(())
    }

    /// The same for all nodes.
    fn edit_all(&mut self, side: Side) -> Result<()> {
        self.edit(side, "", &vec![side; self.sides.len()])
    }

    fn finish(self) -> Result<()> {
        let report = self.probe.finish()?;
        println!("{report}");
        ensure!(report.lost() == 0, "lost packets:\n{report}");
        Ok(())
    }
}

fn one_edit_flips_a_cluster_and_another_takes_it_back(stack: Stack) -> Result<()> {
    let config = stack.config(&VXLAN_MIXED.config());
    let plan = ClusterPlan::new(3, &config).far(1).stack(stack);
    let mut it = EditedCluster::start(&plan, VXLAN_MIXED)?;
    for _ in 0..3 {
        it.edit_all(HOST_GW_MIXED)?;
        it.edit_all(VXLAN_MIXED)?;
    }
    it.finish()
}

#[test]
fn one_edit_flips_a_cluster_without_a_lost_packet() {
    one_edit_flips_a_cluster_and_another_takes_it_back(Stack::V4).unwrap();
}

#[test]
fn one_edit_flips_both_families_without_a_lost_packet() {
    one_edit_flips_a_cluster_and_another_takes_it_back(Stack::Dual).unwrap();
}

#[test]
fn a_rollout_moves_named_nodes_first_and_back_without_a_lost_packet() {
    let plan = ClusterPlan::new(3, &Stack::V4.config(&VXLAN_MIXED.config()));
    let mut it = EditedCluster::start(&plan, VXLAN_MIXED).unwrap();
    let names: Vec<IpAddr> =
        it.cluster.nodes.iter().map(|node| node.address(Family::V4).unwrap()).collect();
    let rollout = |rest: &str| format!(r#","Rollout":{{"From":{{"Type":"vxlan"}},{rest}}}"#);
    let (stay, go) = (VXLAN_MIXED, HOST_GW_MIXED);
    let one = rollout(&format!(r#""Nodes":["{}"]"#, names[1]));
    it.edit(HOST_GW_MIXED, &one, &[stay, go, stay]).unwrap();
    let two = rollout(&format!(r#""Nodes":["{}","{}"]"#, names[1], names[2]));
    it.edit(HOST_GW_MIXED, &two, &[stay, go, go]).unwrap();
    it.edit(HOST_GW_MIXED, &rollout(r#""Percent":100"#), &[go, go, go]).unwrap();
    it.edit(HOST_GW_MIXED, &one, &[stay, go, stay]).unwrap();
    // Each node computes its own position in the rollout.
    let share = |ip: &IpAddr| tweed::model::config::share(&ip.to_string());
    let median = share(&names[0]).max(share(&names[1]).min(share(&names[2])));
    let by_share: Vec<_> =
        names.iter().map(|ip| if share(ip) < median { go } else { stay }).collect();
    it.edit(HOST_GW_MIXED, &rollout(&format!(r#""Percent":{median}"#)), &by_share).unwrap();
    it.edit(HOST_GW_MIXED, &rollout(r#""Percent":0"#), &[stay, stay, stay]).unwrap();
    it.finish().unwrap();
}

/// The node's report in etcd.
fn report(cluster: &Cluster, index: usize) -> Result<Value> {
    let lease = cluster.lease(index)?;
    let key = lease.key.replace("/subnets/", "/tweed/nodes/");
    let entry = cluster.etcd.get(&key)?.with_context(|| format!("{key} is missing"))?;
    ensure!(entry.lease == lease.lease, "{key} does not vanish with the lease");
    Ok(serde_json::from_str(&entry.value)?)
}

#[test]
fn a_cluster_changes_its_backend_by_edits_alone() {
    let plan = ClusterPlan::new(3, &Stack::V4.config(&VXLAN.config()));
    let mut it = EditedCluster::start(&plan, VXLAN).unwrap();
    let mtu = |it: &EditedCluster, node: usize| it.cluster.nodes[node].subnet_env().unwrap().mtu;
    it.edit_all(VXLAN_MIXED).unwrap();
    for node in 0..3 {
        eventually(PATIENCE, || {
            let report = report(&it.cluster, node)?;
            ensure!(report["mixed"] == true && report["pending"].is_null(), "{report}");
            Ok(())
        })
        .unwrap();
    }
    it.edit_all(HOST_GW_MIXED).unwrap();
    it.cluster.wait_until_applied().unwrap();
    assert_eq!(mtu(&it, 0), 1450);
    it.edit_all(HOST_GW).unwrap();
    for (index, node) in it.cluster.nodes.iter().enumerate() {
        eventually(PATIENCE, || {
            ensure!(node.link("flannel.1")?.is_none(), "the device is still there");
            ensure!(node.subnet_env()?.mtu == 1500, "pods get less than they could");
            ensure!(!it.cluster.lease(index)?.value.contains("VtepMAC"), "a VTEP is published");
            Ok(())
        })
        .unwrap();
    }
    // The way back: the tunnel is recreated before any node sends through it.
    it.edit_all(HOST_GW_MIXED).unwrap();
    it.cluster.wait_until_applied().unwrap();
    it.edit_all(VXLAN_MIXED).unwrap();
    it.edit_all(VXLAN).unwrap();
    it.finish().unwrap();
}

#[test]
fn an_invalid_edit_is_reported_by_every_node_and_changes_nothing() {
    let plan = ClusterPlan::new(2, &Stack::V4.config(&VXLAN.config()));
    let mut it = EditedCluster::start(&plan, VXLAN).unwrap();
    let cases = [
        (HOST_GW.config(), "without Mixed, Backend.Type host-gw is applied at the next start"),
        (r#""SubnetLen":25"#.to_owned(), "SubnetLen cannot change on a running node"),
        (r#""Mixed":7"#.to_owned(), "Mixed is 7, but must be true or false"),
    ];
    for (rest, sentence) in cases {
        it.cluster.etcd.put(CONFIG, &Stack::V4.config(&rest)).unwrap();
        for (index, daemon) in it.cluster.daemons.iter().enumerate() {
            eventually(PATIENCE, || {
                let response = daemon.get("/readyz")?;
                ensure!(
                    response.status == 200 && response.body.contains(sentence),
                    "{}",
                    response.body
                );
                ensure!(daemon.ctl(&["status"])?.contains("vxlan"), "another backend is in effect");
                let report = report(&it.cluster, index)?;
                let reported = [&report["pending"], &report["invalid"]];
                let reported =
                    reported.iter().any(|reported| reported.to_string().contains(sentence));
                ensure!(reported, "not reported: {report}");
                let metrics = daemon.get("/metrics")?.body;
                let is_shown = |name: &str| metrics.contains(&format!("\ntweed_config_{name} 1\n"));
                ensure!(is_shown("pending") != is_shown("invalid"), "{metrics}");
                Ok(())
            })
            .unwrap();
        }
        it.probe.run_for(PAUSE);
    }
    it.cluster.etcd.delete(CONFIG).unwrap();
    eventually(PATIENCE, || {
        let response = it.cluster.daemons[0].get("/readyz")?.body;
        ensure!(response.contains("key /coreos.com/network/config is missing"), "{response}");
        Ok(())
    })
    .unwrap();
    it.edit_all(VXLAN).unwrap();
    eventually(PATIENCE, || {
        let response: Value = serde_json::from_str(&it.cluster.daemons[0].get("/readyz")?.body)?;
        ensure!(response == json!({"ready": true, "reasons": []}), "{response}");
        Ok(())
    })
    .unwrap();
    it.finish().unwrap();
}
