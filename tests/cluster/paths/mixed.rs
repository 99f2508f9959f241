//! Every row of the table of Mixed, with real daemons, in both directions.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Backend, Family, Path, Ping, eventually};

use crate::fixture::cluster::{AT_START, CONFIG, Cluster, ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::{
    Distance, Expected, HOST_GW, HOST_GW_MIXED, Mixed, Side, VXLAN, VXLAN_MIXED, expected,
    expected_of_former, path,
};

/// The nodes before this one are on one segment; this one is behind a router.
const FAR: usize = 3;

/// The backends of the nodes, so that every two kinds meet, on one segment and across the router.
const ASSIGNMENTS: [[Side; 4]; 8] = [
    [VXLAN, HOST_GW, VXLAN_MIXED, VXLAN],
    [HOST_GW_MIXED, HOST_GW_MIXED, VXLAN, VXLAN],
    [HOST_GW_MIXED, HOST_GW, HOST_GW, HOST_GW],
    [VXLAN, VXLAN_MIXED, VXLAN, HOST_GW],
    [VXLAN_MIXED, VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED],
    [VXLAN, HOST_GW, VXLAN, VXLAN_MIXED],
    [HOST_GW, VXLAN, VXLAN_MIXED, HOST_GW_MIXED],
    [HOST_GW_MIXED, VXLAN_MIXED, VXLAN, HOST_GW_MIXED],
];

/// A cluster whose nodes were started with different configs.
struct Table {
    cluster: Cluster,
    sides: Vec<Side>,
    /// Whether the daemon of each node remembers that it was on host-gw.
    were_on_host_gw: Vec<bool>,
}

type Row = (Side, Side, Distance);

impl Table {
    fn start(stack: Stack) -> Result<Self> {
        let config = stack.config(&VXLAN.config());
        let cluster = ClusterPlan::new(FAR, &config).far(1).stack(stack).flags(AT_START).start()?;
        cluster.start_pods()?;
        let nodes = cluster.nodes.len();
        Ok(Self { sides: vec![VXLAN; nodes], were_on_host_gw: vec![false; nodes], cluster })
    }

    /// Nodes without `Mixed` know of none: else they would keep it while peers need it.
    ///
    /// Nodes with `Mixed` start first: a host-gw node sends directly to a vxlan node without `Mixed`
    /// only if that has answered a direct probe before.
    fn assign(&mut self, sides: &[Side]) -> Result<()> {
        for mixed in [Mixed::On, Mixed::Off] {
            for (index, side) in sides.iter().enumerate() {
                if side.mixed == mixed && self.sides[index] != *side {
                    self.cluster.etcd.put(CONFIG, &self.cluster.stack.config(&side.config()))?;
                    match mixed {
                        Mixed::On => drop(self.cluster.daemons[index].restart()?),
                        Mixed::Off => self.cluster.restart_without_checkpoint(index)?,
                    }
                    let is_on_host_gw = side.backend == Backend::HostGw;
                    let were_on_host_gw =
                        self.sides[index].backend == Backend::HostGw || self.were_on_host_gw[index];
                    self.were_on_host_gw[index] =
                        mixed == Mixed::On && (is_on_host_gw || were_on_host_gw);
                    self.sides[index] = *side;
                }
            }
            self.cluster.wait_for_paths(|from, to| path(self.expected(from, to)))?;
        }
        Ok(())
    }

    fn row(&self, from: usize, to: usize) -> Row {
        let is_far = from == FAR || to == FAR;
        let distance = if is_far { Distance::BehindRouter } else { Distance::Adjacent };
        (self.sides[from], self.sides[to], distance)
    }

    fn expected(&self, from: usize, to: usize) -> Expected {
        match self.row(from, to) {
            (HOST_GW, VXLAN_MIXED, distance) if self.were_on_host_gw[to] => {
                expected_of_former(distance)
            }
            (this, peer, distance) => expected(this, peer, distance),
        }
    }

    fn check(&self) -> Result<()> {
        for (from, to) in self.cluster.pairs() {
            for family in self.cluster.stack.families() {
                // If there is no path before and after a change, only the reason changes.
                eventually(PATIENCE, || {
                    self.check_route(from, to, *family)?;
                    self.check_reason(from, to, *family)
                })?;
            }
        }
        self.cluster.stack.families().iter().try_for_each(|family| self.check_pings(*family))
    }

    fn check_route(&self, from: usize, to: usize, family: Family) -> Result<()> {
        let subnet = self.cluster.subnet(to, family)?;
        let routes = self.cluster.nodes[from].routes_to(subnet)?;
        let gateway = match path(self.expected(from, to)) {
            Path::Direct => self.cluster.nodes[to].address(family)?,
            Path::Tunnel => subnet.ip(),
            Path::None => return Ok(()),
        };
        ensure!(routes.len() == 1, "several routes to {subnet}: {routes:?}");
        ensure!(routes[0].gateway == Some(gateway), "not by {gateway}: {routes:?}");
        ensure!(routes[0].protocol.as_deref() == Some("241"), "not marked: {routes:?}");
        Ok(())
    }

    fn check_reason(&self, from: usize, to: usize, family: Family) -> Result<()> {
        let subnet = self.cluster.subnet(to, family)?.to_string();
        let reported = self.cluster.daemons[from].ctl(&["peers", "-o", "json"]);
        // It fails if a peer is not programmed, but still prints its output.
        let reported: Vec<Value> = serde_json::from_str(&reported?)?;
        let peer = reported.iter().find(|peer| peer["subnet"] == subnet.as_str());
        let peer = peer.with_context(|| format!("{subnet} is not in {reported:?}"))?;
        match self.expected(from, to) {
            Ok(path) => {
                ensure!(peer["path"] == path.to_string() && peer["reason"].is_null(), "{peer}");
            }
            Err(reason) => {
                let shown = peer["reason"].as_str().unwrap_or_default();
                ensure!(
                    peer["path"].is_null() && shown.contains(reason),
                    "{shown:?}: no {reason:?}"
                );
            }
        }
        Ok(())
    }

    fn check_pings(&self, family: Family) -> Result<()> {
        // A busy machine answers some pings too late.
        eventually(PATIENCE, || {
            for (from, to, ping) in self.cluster.lab.ping_matrix(family)?.cells() {
                let (from, to) = (index(from)?, index(to)?);
                let both = self.expected(from, to).is_ok() && self.expected(to, from).is_ok();
                let expected = if both { Ping::Answered } else { Ping::Lost };
                ensure!(*ping == expected, "n{} → n{}, {family:?}: {ping}", from + 1, to + 1);
            }
            Ok(())
        })
        .map(drop)
    }
}

/// Node `n3` has index 2.
fn index(name: &str) -> Result<usize> {
    Ok(name.trim_start_matches('n').parse::<usize>()? - 1)
}

fn every_row_holds(stack: Stack) -> Result<()> {
    let mut table = Table::start(stack)?;
    let mut rows = BTreeSet::new();
    for sides in &ASSIGNMENTS {
        table.assign(sides)?;
        table.check().with_context(|| format!("{sides:?}"))?;
        rows.extend(table.cluster.pairs().iter().map(|(from, to)| table.row(*from, *to)));
    }
    ensure!(rows.len() == 32, "only {} of 32 rows were met", rows.len());
    Ok(())
}

#[test]
fn every_row_of_the_table_holds() {
    every_row_holds(Stack::V4).unwrap();
}

#[test]
fn every_row_of_the_table_holds_for_both_families_at_once() {
    every_row_holds(Stack::Dual).unwrap();
}

#[test]
fn a_network_of_ipv6_alone_mixes_too() {
    let mut table = Table::start(Stack::V6).unwrap();
    table.assign(&[HOST_GW_MIXED, VXLAN_MIXED, HOST_GW_MIXED, VXLAN_MIXED]).unwrap();
    table.check().unwrap();
}

/// The last of three nodes is behind a router.
fn direct_routing_goes_around_the_tunnel(mixed: Mixed) -> Result<()> {
    let backend = r#""Backend":{"Type":"vxlan","DirectRouting":true}"#;
    let config = Stack::Dual.config(&format!(r#""Mixed":{},{backend}"#, mixed == Mixed::On));
    let cluster = ClusterPlan::new(2, &config).far(1).stack(Stack::Dual).start()?;
    cluster.start_pods()?;
    let far = |index| index == 2;
    let expected = |from, to| if far(from) || far(to) { Path::Tunnel } else { Path::Direct };
    cluster.wait_for_paths(expected)?;
    // The near node has a standby tunnel only if the direct path may fall back to it.
    let entries = if mixed == Mixed::On { 2 } else { 1 };
    ensure!(cluster.nodes[0].fdb("flannel.1")?.len() == entries, "not {entries} entries");
    ensure!(cluster.nodes[2].fdb("flannel-v6.1")?.len() == 2, "not the two near nodes' entries");
    let mut families = Stack::Dual.families().iter();
    families.try_for_each(|family| cluster.lab.all_reach_each_other(*family))
}

#[test]
fn direct_routing_bypasses_the_tunnel_only_on_the_segment() {
    direct_routing_goes_around_the_tunnel(Mixed::Off).unwrap();
    direct_routing_goes_around_the_tunnel(Mixed::On).unwrap();
}

/// As in clouds that give each machine an address without a link prefix.
fn take_the_prefix_away(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let address = node.address(Family::V4)?;
        node.ip(format!("address del {address}/24 dev eth0"))?;
        node.ip(format!("address add {address}/32 dev eth0"))?;
        node.ip("route add 10.99.1.0/24 dev eth0")?;
    }
    Ok(())
}

#[test]
fn with_an_address_without_a_prefix_no_peer_is_adjacent() {
    let config = |side: Side| Stack::V4.config(&side.config());
    let mut cluster = ClusterPlan::new(2, &config(HOST_GW_MIXED)).build().unwrap();
    take_the_prefix_away(&cluster).unwrap();
    cluster.start_daemons().unwrap();
    cluster.wait_for_paths(|_, _| Path::Tunnel).unwrap();
    cluster.start_pods().unwrap();
    cluster.lab.all_reach_each_other(Family::V4).unwrap();
    cluster.etcd.put(CONFIG, &config(HOST_GW)).unwrap();
    for daemon in &mut cluster.daemons {
        daemon.restart().unwrap();
    }
    eventually(PATIENCE, || {
        let reasons = cluster.daemons[0].get("/readyz")?.body;
        ensure!(reasons.contains("without it there is no path to 10.99.1.12"), "{reasons}");
        Ok(())
    })
    .unwrap();
    cluster.lab.all_reach_each_other(Family::V4).unwrap();
    for index in 0..2 {
        cluster.restart_without_checkpoint(index).unwrap();
    }
    cluster.wait_for_paths(|_, _| Path::None).unwrap();
    eventually(PATIENCE, || {
        let peers = cluster.daemons[0].ctl(&["peers", "-o", "json"])?;
        ensure!(peers.contains("10.99.1.12 is not on the link of eth0"), "{peers}");
        Ok(())
    })
    .unwrap();
}

/// Packets of `mtu` bytes pass, and larger ones do not.
fn pods_get_mtu(stack: Stack, rest: &str, mtu: u32) -> Result<()> {
    let cluster = ClusterPlan::new(2, &stack.config(rest)).stack(stack).start()?;
    let env = cluster.nodes[0].subnet_env()?;
    ensure!(env.mtu == mtu, "{rest}: FLANNEL_MTU is {}, not {mtu}", env.mtu);
    let (from, to) = (cluster.nodes[0].pod()?, cluster.nodes[1].pod()?);
    for family in stack.families() {
        let room = match family {
            Family::V4 => mtu - 28,
            Family::V6 => mtu - 48,
        };
        let address = to.address(*family)?;
        eventually(PATIENCE, || from.ping(address, room)).with_context(|| rest.to_owned())?;
        ensure!(from.ping(address, room + 1).is_err(), "{rest}: {mtu} is too small");
    }
    Ok(())
}

#[test]
fn pods_get_the_mtu_of_both_paths() {
    pods_get_mtu(Stack::V4, &VXLAN.config(), 1450).unwrap();
    pods_get_mtu(Stack::V4, &HOST_GW.config(), 1500).unwrap();
    pods_get_mtu(Stack::V4, &VXLAN_MIXED.config(), 1450).unwrap();
    pods_get_mtu(Stack::V4, &HOST_GW_MIXED.config(), 1450).unwrap();
    pods_get_mtu(Stack::V4, r#""Backend":{"Type":"vxlan","MTU":1400}"#, 1350).unwrap();
}

#[test]
fn a_tunnel_over_ipv6_takes_twenty_bytes_more() {
    pods_get_mtu(Stack::V6, &VXLAN.config(), 1430).unwrap();
    pods_get_mtu(Stack::Dual, &VXLAN.config(), 1430).unwrap();
    pods_get_mtu(Stack::Dual, &HOST_GW_MIXED.config(), 1430).unwrap();
    pods_get_mtu(Stack::Dual, &HOST_GW.config(), 1500).unwrap();
}
