//! Two nodes that reach each other directly and through a tunnel, a pod on each, and no daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Count, Family, Lab, Node, Pair, Pod, ProbePlan, SegmentPlan, SubnetEnv};

use super::case::{Case, Paths};
use super::shell::Shell;

/// Packets per second, if the machine can send them.
const RATE: u32 = 50_000;
const FLIPS: usize = 1000;
const APART: Duration = Duration::from_millis(1);
/// The time in which packets flow before the first flip and after the last.
const PAUSE: Duration = Duration::from_millis(50);
/// The MAC address of the tunnel devices of the far node.
const MAC: &str = "02:00:00:00:00:02";

pub(super) struct Stage {
    // Removes everything when it is dropped.
    _lab: Lab,
    near: Node,
    pods: (Pod, Pod),
    pub(super) paths: Vec<Paths>,
}

impl Stage {
    pub(super) fn build() -> Result<Self> {
        let lab = Lab::bare()?;
        let segment = lab.segment(SegmentPlan::new("10.99.1.0/24").and("fd99:1::/64"))?;
        let (near, far) = (lab.node("near", &segment)?, lab.node("far", &segment)?);
        let pods = (near.pod_in(&subnets(1)?)?, far.pod_in(&subnets(2)?)?);
        let families = [(Family::V4, "flannel.1"), (Family::V6, "flannel-v6.1")];
        let paths = families.into_iter().map(|(family, device)| {
            let subnet = subnets(2)?.subnet(family).context("no subnet")?;
            let (base, address) = (subnet.ip(), far.address(family)?);
            add_tunnel(&near, family, device)?;
            add_tunnel(&far, family, device)?;
            far.change_mac(device, MAC)?;
            near.ip(format!("neighbour add {base} lladdr {MAC} dev {device} nud permanent"))?;
            near.bridge(format!("fdb add {MAC} dev {device} dst {address} self permanent"))?;
            // The kernel accepts an IPv6 gateway only on a device that has a route to it.
            near.ip(format!("route add {base} dev {device}"))?;
            let direct = format!("via {address} dev eth0");
            let tunnel = format!("via {base} dev {device} onlink");
            Ok(Paths { family, subnet, direct, tunnel })
        });
        let paths = paths.collect::<Result<_>>()?;
        Ok(Self { _lab: lab, near, pods, paths })
    }

    /// The cost of a thousand flips.
    pub(super) fn measure(&self, case: &Case, paths: &Paths) -> Result<Count> {
        let subnet = paths.subnet;
        let mut setup = Shell::start(self.near.namespace())?;
        setup.write(&case.setup)?;
        setup.finish()?;
        let count = self.flip_under_load(case, paths.family)?;
        let left = self.near.ip(format!("{} route show {subnet}", paths.family.flag()))?;
        ensure!(left.lines().count() == 1, "one route was to be left, not: {left}");
        self.near.ip(format!("route del {subnet}"))?;
        self.near.ip("nexthop flush")?;
        Ok(count)
    }

    fn flip_under_load(&self, case: &Case, family: Family) -> Result<Count> {
        let mut shell = Shell::start(self.near.namespace())?;
        let (from, to) = self.pods.clone();
        let probe = ProbePlan::new(&[Pair { from, to, family }], RATE).start()?;
        probe.run_for(PAUSE);
        for _ in 0..FLIPS / 2 {
            for lines in [&case.there, &case.back] {
                shell.write(lines)?;
                probe.run_for(APART);
            }
        }
        shell.finish()?;
        probe.run_for(PAUSE);
        Ok(probe.finish()?.total())
    }
}

/// The subnet file that a daemon writes for the pods of node `number`.
fn subnets(number: u8) -> Result<SubnetEnv> {
    Ok(SubnetEnv {
        networks: vec!["10.244.0.0/16".parse()?, "fd00::/16".parse()?],
        gateways: vec![
            format!("10.244.{number}.1/24").parse()?,
            format!("fd00:{number}::1/64").parse()?,
        ],
        mtu: 1430,
        masquerade: false,
    })
}

fn add_tunnel(node: &Node, family: Family, device: &str) -> Result<()> {
    let kind =
        format!("type vxlan id 1 dstport 8472 nolearning dev eth0 local {}", node.address(family)?);
    node.ip(format!("link add {device} {kind}"))?;
    node.ip(format!("link set {device} mtu 1430 up")).map(drop)
}
