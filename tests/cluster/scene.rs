//! Pods, and a host behind a router that has no routes to pods.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ipnetwork::IpNetwork;
pub use tweed::model::entry::Iptables;
use tweed_lab::{Family, Node, Pod, Router, SegmentPlan};

use crate::cluster::{Cluster, ClusterPlan, Stack};
use crate::flows::{Flows, Tally};
use crate::table::Side;

/// Flags of daemons that masquerade.
pub const BY_NFTABLES: &[&str] = &["--ip-masq"];
pub const BY_IPTABLES: &[&str] = &["--ip-masq", "--iptables"];
/// The destination port of packets.
pub const PORT: u16 = 7000;
/// New flows per second.
const RATE: u32 = 1000;

/// Two nodes with a pod each, and a host behind a router that has no routes to pods.
pub struct Scene {
    pub cluster: Cluster,
    pub pods: Vec<Pod>,
    pub router: Router,
    pub world: Node,
}

impl Scene {
    pub fn start(stack: Stack, side: Side, flags: &'static [&'static str]) -> Result<Self> {
        let plan = ClusterPlan::new(2, &stack.config(&side.config())).stack(stack).flags(flags);
        let mut cluster = plan.build()?;
        let beyond = cluster.lab.segment(match stack {
            Stack::V4 => SegmentPlan::new("10.99.2.0/24"),
            Stack::V6 => SegmentPlan::new("fd99:2::/64"),
            Stack::Dual => SegmentPlan::new("10.99.2.0/24").and("fd99:2::/64"),
        })?;
        let router = cluster.lab.router("router", &[&cluster.segment, &beyond])?;
        let world = cluster.lab.node("world", &beyond)?;
        cluster.start_daemons()?;
        let pods = cluster.nodes.iter().map(Node::pod).collect::<Result<Vec<_>>>()?;
        Ok(Self { cluster, pods, router, world })
    }

    pub fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    pub fn flows_to_world(&self) -> Result<Flows> {
        let target = SocketAddr::new(self.world.address(Family::V4)?, PORT);
        Flows::start(self.pods[0].namespace(), self.world.namespace(), target, RATE)
    }

    /// All flows arrived, each from the address of the node.
    pub fn all_came_from_the_node(&self, flows: Flows) -> Result<Tally> {
        let (tally, node) = (flows.finish()?, self.node().address(Family::V4)?);
        let came = tally.came.get(&node).copied().unwrap_or_default();
        ensure!(tally.came.len() == 1, "not all came from {node}: {tally:?}");
        ensure!(came + tally.overruns >= tally.sent, "some are lost: {tally:?}");
        Ok(tally)
    }

    /// Restarts the daemon of node 1 with these flags.
    pub fn restart_with(&mut self, flags: &[&str]) -> Result<()> {
        if self.cluster.daemons[0].process().is_running() {
            self.cluster.daemons[0].stop()?;
        }
        let plan = self.node().daemon(&self.cluster.etcd);
        let plan = flags.iter().fold(plan, |plan, flag| plan.argument(*flag));
        self.cluster.daemons[0] = plan.start()?;
        self.cluster.daemons[0].wait_ready().map(drop)
    }

    /// On every node, the rules of flanneld's iptables mode, without comments.
    pub fn write_flannels_rules(&self, kind: Iptables) -> Result<()> {
        for (index, node) in self.cluster.nodes.iter().enumerate() {
            for family in self.cluster.stack.families() {
                let subnet = self.cluster.subnet(index, *family)?;
                let subnet = IpNetwork::new(subnet.network(), subnet.prefix())?;
                write_flannels_rules(node, kind, network(*family), subnet)?;
            }
        }
        Ok(())
    }

    /// On every node, the tables of flanneld's nftables mode.
    pub fn write_flannels_tables(&self) -> Result<()> {
        for (index, node) in self.cluster.nodes.iter().enumerate() {
            let subnet = self.cluster.subnet(index, Family::V4)?;
            let (s, c) = (format!("{}/{}", subnet.network(), subnet.prefix()), network(Family::V4));
            let table = format!(
                "table ip flannel-ipv4 {{
                    chain postrtg {{ type nat hook postrouting priority srcnat;
                        meta mark 0x4000 return
                        ip saddr {s} ip daddr {c} return
                        ip saddr {c} ip daddr {s} return
                        ip saddr != {s} ip daddr {c} return
                        ip saddr {c} ip daddr != 224.0.0.0/4 masquerade fully-random
                        ip saddr != {c} ip daddr {c} masquerade fully-random; }}
                    chain forward {{ type filter hook forward priority filter;
                        ip saddr {c} accept
                        ip daddr {c} accept; }}
                }}
                table ip6 flannel-ipv6 {{ }}"
            );
            node.namespace().run("nft", &[&table])?;
        }
        Ok(())
    }
}

/// The network of pods.
pub const fn network(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.244.0.0/16",
        Family::V6 => "fd00:244::/48",
    }
}

/// The rules of flanneld's iptables mode, for one family.
pub fn write_flannels_rules(
    node: &Node,
    kind: Iptables,
    network: &str,
    subnet: IpNetwork,
) -> Result<()> {
    let (program, multicast) = match Family::of(subnet.ip()) {
        Family::V4 => ("iptables", "224.0.0.0/4"),
        Family::V6 => ("ip6tables", "ff00::/8"),
    };
    let program = format!("{program}-{}", kind.as_str());
    let masquerade = "-j MASQUERADE --random-fully";
    let rules = [
        "-t nat -N FLANNEL-POSTRTG".to_owned(),
        "-t nat -A POSTROUTING -j FLANNEL-POSTRTG".to_owned(),
        "-t nat -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN".to_owned(),
        format!("-t nat -A FLANNEL-POSTRTG -s {subnet} -d {network} -j RETURN"),
        format!("-t nat -A FLANNEL-POSTRTG -s {network} -d {subnet} -j RETURN"),
        format!("-t nat -A FLANNEL-POSTRTG ! -s {network} -d {subnet} -j RETURN"),
        format!("-t nat -A FLANNEL-POSTRTG -s {network} ! -d {multicast} {masquerade}"),
        format!("-t nat -A FLANNEL-POSTRTG ! -s {network} -d {network} {masquerade}"),
        "-N FLANNEL-FWD".to_owned(),
        "-A FORWARD -j FLANNEL-FWD".to_owned(),
        format!("-A FLANNEL-FWD -s {network} -j ACCEPT"),
        format!("-A FLANNEL-FWD -d {network} -j ACCEPT"),
    ];
    rules.iter().try_for_each(|rule| {
        let words: Vec<&str> = ["-w"].into_iter().chain(rule.split(' ')).collect();
        node.namespace().run(&program, &words).map(drop)
    })
}
