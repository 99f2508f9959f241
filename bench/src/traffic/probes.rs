//! The cost of path probes where ARP requests with addresses of pods are dropped: lost packets of
//! the same pairs.

use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow};
use tweed_lab::{
    Binaries, Daemon, DaemonPlan, Family, Lab, Node, NodePlan, Path, ProbePlan, Report,
    ReversePath, Segment, SegmentPlan, eventually,
};

use crate::RATE;
use crate::report::goal::Goal;
use crate::report::sheet::{Sheet, thousands, time};

/// The interval at which all neighbours are flushed.
const INTERVAL: Duration = Duration::from_secs(1);
const SETTLED: Duration = Duration::from_secs(60);
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const CONFIG: &str = "/coreos.com/network/config";
const NETWORKS: &str =
    r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Mixed":true"#;
/// Packets that a network with ARP inspection drops, and the IPv6 equivalent.
const INSPECTED: [&str; 2] = [
    "ether type arp arp saddr ip 10.244.0.0/16",
    "icmpv6 type nd-neighbor-solicit ip6 saddr fd00:244::/48",
];
/// As in a container: the daemon cannot loosen the filters of the host.
const READ_ONLY: &str =
    r#"mount -o bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@""#;

/// The network that drops the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dropped {
    ByTheNetwork,
    ByStrictFilters,
}

/// A cluster of two nodes, and the path between its pods.
struct Case {
    name: &'static str,
    backend: &'static str,
    path: Path,
    dropped: Dropped,
}

const CASES: [Case; 3] = [
    Case {
        name: "ARP inspection",
        backend: "vxlan",
        path: Path::Tunnel,
        dropped: Dropped::ByTheNetwork,
    },
    Case {
        name: "ARP inspection",
        backend: "host-gw",
        path: Path::Direct,
        dropped: Dropped::ByTheNetwork,
    },
    Case {
        name: "strict reverse-path filters",
        backend: "vxlan",
        path: Path::Tunnel,
        dropped: Dropped::ByStrictFilters,
    },
];

/// In each round, every node flushes its neighbours once. All cases run at the same time.
pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = ["requests are dropped by", "backend", "sent", "lost", "longest outage of a pair"];
    sheet.table("Path probes and neighbours", &head)?;
    let reports = thread::scope(|scope| {
        let start = |case: &'static Case| scope.spawn(|| case.measure(binaries, rounds));
        let running: Vec<_> = CASES.iter().map(start).collect();
        running.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let mut lost = 0;
    for (case, report) in CASES.iter().zip(reports) {
        let (total, outage) = (report.total(), time(report.longest_outage()));
        sheet.row(&[&case.name, &case.backend, &thousands(total.sent), &total.lost, &outage])?;
        lost += total.lost;
    }
    let lost = u32::try_from(lost).unwrap_or(u32::MAX);
    sheet.goals(&[Goal::at_most("lost, all pairs", lost.into(), 0.0, "packets")])
}

fn join(running: ScopedJoinHandle<'_, Result<Report>>) -> Result<Report> {
    running.join().map_err(|_| anyhow!("a case panicked"))?
}

impl Case {
    fn measure(&self, binaries: &Binaries, rounds: usize) -> Result<Report> {
        let lab = Lab::new(binaries.clone())?;
        let etcd = lab.etcd()?;
        etcd.put(CONFIG, &format!(r#"{{{NETWORKS},"Backend":{{"Type":"{}"}}}}"#, self.backend))?;
        let segment = lab.segment(SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64"))?;
        let nodes = self.nodes(&lab, &segment)?;
        let start = |node: &Node| self.confine(node, node.daemon(&etcd)).start();
        let mut daemons = nodes.iter().map(start).collect::<Result<Vec<_>>>()?;
        daemons.iter().try_for_each(|daemon| daemon.wait_ready().map(drop))?;
        nodes.iter().try_for_each(|node| node.pod().map(drop))?;
        self.wait_for_paths(&nodes)?;
        let pairs: Vec<_> = FAMILIES.iter().flat_map(|family| lab.pairs(*family)).collect();
        let stream = ProbePlan::new(&pairs, RATE).start()?;
        // The cost of a start is counted too.
        daemons.iter_mut().try_for_each(|daemon: &mut Daemon| daemon.restart().map(drop))?;
        for _ in 0..rounds {
            nodes.iter().try_for_each(Node::forget_neighbours)?;
            stream.run_for(INTERVAL);
        }
        stream.finish()
    }

    fn nodes(&self, lab: &Lab, segment: &Segment) -> Result<Vec<Node>> {
        let reverse_path = match self.dropped {
            Dropped::ByStrictFilters => ReversePath::Strict,
            Dropped::ByTheNetwork => {
                INSPECTED.iter().try_for_each(|selector| segment.filter(selector))?;
                ReversePath::Off
            }
        };
        let build = |name| lab.node_with(&NodePlan::new(name, segment).reverse_path(reverse_path));
        ["n1", "n2"].into_iter().map(build).collect()
    }

    fn confine(&self, node: &Node, plan: DaemonPlan) -> DaemonPlan {
        match self.dropped {
            Dropped::ByTheNetwork => plan,
            Dropped::ByStrictFilters => {
                plan.through("unshare", &["--mount", "sh", "-c", READ_ONLY, node.name()])
            }
        }
    }

    fn wait_for_paths(&self, nodes: &[Node]) -> Result<()> {
        for (from, to) in nodes.iter().zip(nodes.iter().rev()) {
            for subnet in to.subnet_env()?.subnets() {
                eventually(SETTLED, || from.path_to(subnet).map(|path| path == self.path))?;
            }
        }
        Ok(())
    }
}
