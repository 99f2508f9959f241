//! One migration from its first stage to its last, under traffic.

use std::time::Instant;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Family, Path, Probe, Traffic};

use super::cost::Cost;
use super::meanwhile::Meanwhile;
use super::order::Order;
use super::rules;
use super::share::{NO_NODE, Share};
use crate::PAUSE;
use tweed_lab::cluster::{Cluster, Shape};

pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) held_to: HeldTo,
    pub(super) shape: Shape,
    /// Packets per second and ordered pair of pods.
    pub(super) rate: u32,
    /// The config before the first stage.
    pub(super) before: String,
    pub(super) company: Company,
    /// Whether packets with addresses of pods pass before the first daemon starts.
    pub(super) foreign: Foreign,
    pub(super) stages: Vec<Stage>,
}

/// Packets per second and ordered pair of pods, of which eight nodes have 56.
const RATE: u32 = 400;

/// Six nodes on a segment and two behind a router.
pub(super) const SHAPE: Shape =
    Shape { flags: rules::FLAGS, proxies: rules::PROXIES, ..Shape::of(6, 2) };

/// The goals that the figures of a case must meet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldTo {
    Flips,
    /// The network drops packets on direct paths.
    CutOff,
    /// No goals: the case is only a comparison.
    Comparison,
}

/// What else is on the segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    None,
    /// A node that runs another implementation.
    Flannel,
}

pub(super) struct Stage {
    pub(super) name: &'static str,
    pub(super) order: Order,
    pub(super) meanwhile: Meanwhile,
    /// The expected entries of the table afterwards.
    pub(super) then: Then,
}

/// The paths that are expected.
#[derive(Clone, Copy)]
pub(super) struct Then {
    /// The nodes on host-gw.
    pub(super) share: Share,
    /// Whether direct paths of the segment carry packets.
    pub(super) foreign: Foreign,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    Passes,
    Dropped,
}

impl Case {
    pub(super) fn run(&self, binaries: &Binaries) -> Result<Vec<Cost>> {
        let mut cluster = self.build(binaries)?;
        let mut connections = cluster.connections()?;
        let traffic = Traffic::start(&cluster.pairs())?;
        let probe = cluster.probe(self.rate)?;
        probe.run_for(PAUSE);
        traffic.take()?;
        let mut costs = Vec::new();
        for stage in &self.stages {
            // Connections of earlier stages stay open.
            connections.open()?;
            let cost = stage.run(&mut cluster, &probe, &traffic).with_context(|| stage.name)?;
            costs.push(Cost { connections: connections.take()?, ..cost });
        }
        let report = probe.finish()?;
        let last = traffic.finish()?;
        if let Some(cost) = costs.last_mut() {
            cost.tally += last;
        }
        // Packets before the first mark were sent before the first stage.
        let costs = costs.into_iter().enumerate();
        Ok(costs.map(|(index, cost)| cost.with(&report, index + 1)).collect())
    }

    fn build(&self, binaries: &Binaries) -> Result<Cluster> {
        let mut cluster = Cluster::build(binaries.clone(), self.shape)?;
        cluster.configure(&self.before)?;
        match self.foreign {
            Foreign::Passes => {}
            Foreign::Dropped => Meanwhile::ForeignDropped.happen(&mut cluster)?,
        }
        cluster.start_all()?;
        match self.company {
            Company::None => {}
            Company::Flannel => cluster.join_flannel()?,
        }
        cluster.wait_for(|_, _| Path::Tunnel)?;
        // tweedctl would show a node that has not reported yet as one that runs flannel.
        cluster.wait_for_mixed(self.before.contains(r#""Mixed":true"#))?;
        Ok(cluster)
    }
}

impl Stage {
    fn run(&self, cluster: &mut Cluster, probe: &Probe, traffic: &Traffic) -> Result<Cost> {
        let victim = self.meanwhile.victim(cluster)?;
        probe.mark(self.name);
        let started = Instant::now();
        let running = self.order.begin(cluster)?;
        self.meanwhile.happen(cluster)?;
        running.finish()?;
        let is_right = self.wait(cluster).is_ok();
        let took = is_right.then(|| started.elapsed());
        cluster.notify_flannel()?;
        probe.run_for(PAUSE);
        Ok(Cost { took, victim, tally: traffic.take()?, ..Cost::default() })
    }

    /// Waits until every path is the expected one.
    fn wait(&self, cluster: &Cluster) -> Result<()> {
        if let Some(mixes) = self.order.mixes() {
            cluster.wait_for_mixed(mixes)?;
        }
        let follows = self.then.followers(cluster)?;
        let follows = |name: &str| follows.iter().any(|follower| follower == name);
        cluster.wait_for(|from, to| {
            let is_cut = self.then.foreign == Foreign::Dropped && cluster.are_near(from, to);
            let wants = (follows(from) || follows(to)) && cluster.are_adjacent(from, to);
            // Nodes of another implementation keep the tunnel, and answer no probe.
            let is_foreign = cluster.is_flannel(from) || cluster.is_flannel(to);
            if wants && !is_cut && !is_foreign { Path::Direct } else { Path::Tunnel }
        })
    }
}

impl Then {
    fn followers(self, cluster: &Cluster) -> Result<Vec<String>> {
        let mut followers = Vec::new();
        for node in cluster.nodes().iter().filter(|node| !cluster.is_flannel(node.name())) {
            if self.share.follows(node.address(Family::V4)?) {
                followers.push(node.name().to_owned());
            }
        }
        Ok(followers)
    }
}

impl Stage {
    /// One edit with `Mixed`, after which `share` is on host-gw.
    pub(super) const fn edit(name: &'static str, share: Share) -> Self {
        Self::order(name, Order::Edit(share), share)
    }

    pub(super) const fn order(name: &'static str, order: Order, share: Share) -> Self {
        let then = Then { share, foreign: Foreign::Passes };
        Self { name, order, meanwhile: Meanwhile::Nothing, then }
    }

    pub(super) const fn meanwhile(self, meanwhile: Meanwhile) -> Self {
        Self { meanwhile, ..self }
    }

    /// The segment drops packets with addresses of pods.
    pub(super) const fn cut(self) -> Self {
        let then = Then { foreign: Foreign::Dropped, ..self.then };
        Self { then, ..self }
    }
}

impl Case {
    /// Six nodes on a segment and two behind a router, on vxlan with `Mixed`.
    pub(super) fn of(name: &'static str, stages: Vec<Stage>) -> Self {
        Self {
            name,
            held_to: HeldTo::Flips,
            shape: SHAPE,
            rate: RATE,
            before: NO_NODE.config(),
            company: Company::None,
            foreign: Foreign::Passes,
            stages,
        }
    }
}
