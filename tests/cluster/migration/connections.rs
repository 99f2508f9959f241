//! No connection of hosts, of external machines or of pods breaks while a live cluster moves to
//! another backend and back, whatever translates addresses on its nodes.

use anyhow::{Context, Result, ensure};
use tweed_lab::{Connections, Family, Path, Probe, Proxy, Worker};

use crate::fixture::cluster::{Cluster, ClusterPlan, Stack};
use crate::fixture::scene::{BY_IPTABLES, BY_NFTABLES};
use crate::fixture::table::VXLAN;
use crate::migration::migrate::{done, follow, nothing_lost, wait_for_reports};

/// Packets per second and ordered pair of pods.
const RATE: u32 = 100;

/// The translation on a node: the flags of its daemon, and the program that handles services.
type Rules = (&'static [&'static str], Proxy);

const ALL: [Rules; 6] = [
    (BY_NFTABLES, Proxy::Plain),
    (BY_IPTABLES, Proxy::Plain),
    (BY_NFTABLES, Proxy::KubeIptables),
    (BY_IPTABLES, Proxy::KubeIptables),
    (BY_NFTABLES, Proxy::KubeNftables),
    (BY_IPTABLES, Proxy::KubeNftables),
];

/// Both start orders of kube-proxy and the daemon, and the other kind of iptables.
const OTHERS: [Rules; 4] = [
    (BY_IPTABLES, Proxy::KubeIptables),
    (BY_IPTABLES, Proxy::KubeNftables),
    (BY_NFTABLES, Proxy::KubeIptablesLegacy),
    (BY_NFTABLES, Proxy::KubeNftables),
];

/// Whether kube-proxy starts before the daemon of its node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KubeProxy {
    First,
    Last,
}

/// One node for each of the rules, and connections between all of them.
struct Scenario {
    cluster: Cluster,
    connections: Connections,
    probe: Probe,
    /// By stage.
    broken: Vec<String>,
}

impl Scenario {
    fn start(stack: Stack, rules: &[Rules], kube_proxy: KubeProxy) -> Result<Self> {
        let config = stack.config(&VXLAN.config());
        let mut cluster = ClusterPlan::new(0, &config).stack(stack).build()?;
        for (number, (flags, proxy)) in (1..).zip(rules) {
            let node = cluster.lab.node(&format!("n{number}"), &cluster.segment)?;
            if kube_proxy == KubeProxy::First {
                node.sync_services(*proxy, &[])?;
            }
            cluster.flags = flags;
            cluster.add(node)?;
        }
        cluster.start_pods()?;
        cluster.wait_for_paths(|_, _| Path::Tunnel)?;
        wait_for_reports(&cluster)?;
        let outside = cluster.lab.node("outside", &cluster.segment)?;
        let workers = cluster.nodes.iter().cloned().zip(cluster.lab.pods()).zip(rules);
        let workers = workers.map(|((node, pod), (_, proxy))| Worker { node, pod, proxy: *proxy });
        let pairs = (0..rules.len()).map(|from| (from, (from + 1) % rules.len()));
        let connections = Connections::prepare(workers.collect(), pairs, &outside)?;
        let families = stack.families().iter();
        let pairs: Vec<_> = families.flat_map(|family| cluster.lab.pairs(*family)).collect();
        let probe = cluster.lab.probe(&pairs, RATE)?;
        Ok(Self { cluster, connections, probe, broken: Vec::new() })
    }

    /// Opens more connections, runs the migration command, and checks all open connections.
    fn stage(&mut self, line: &str, followers: &[usize]) -> Result<()> {
        self.connections.open()?;
        done(&self.cluster, line)?;
        follow(&self.cluster, followers)?;
        self.connections.sync_services()?;
        for outcome in self.connections.take()?.into_values() {
            self.broken.extend(outcome.broken.into_iter().map(|text| format!("{line}: {text}")));
        }
        Ok(())
    }

    fn migrate(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.cluster.nodes.len()).collect();
        let canary = self.cluster.nodes[0].address(Family::V4)?;
        self.stage(&format!("start --to host-gw --canary {canary}"), &[0])?;
        self.stage("next --percent 100", &all)?;
        self.stage("rollback --one-stage", &[0])?;
        self.stage("next --percent 100", &all)?;
        self.stage("finish", &all)?;
        self.stage("start --to vxlan --percent 100", &[])?;
        self.stage("finish", &[])
    }

    fn finish(self) -> Result<()> {
        let (count, lines) = (self.broken.len(), self.broken.join("\n"));
        ensure!(count == 0, "{count} connections are broken:\n{lines}");
        nothing_lost(self.probe).context("from pod to pod")
    }
}

#[test]
fn no_connection_breaks_on_the_way_to_host_gw_and_back_with_any_firewall_and_kube_proxy() {
    let mut scenario = Scenario::start(Stack::V4, &ALL, KubeProxy::First).unwrap();
    scenario.migrate().unwrap();
    scenario.finish().unwrap();
}

#[test]
fn no_connection_of_either_family_breaks_where_kube_proxy_starts_after_the_daemon() {
    let mut scenario = Scenario::start(Stack::Dual, &OTHERS, KubeProxy::Last).unwrap();
    scenario.migrate().unwrap();
    scenario.finish().unwrap();
}
