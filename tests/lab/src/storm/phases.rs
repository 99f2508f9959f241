//! The phases of a storm, and what each costs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Settings;
use super::bare::{self, TTL};
use super::crowd::Crowd;
use super::gauge::{self, Reading};
use super::real::Reals;
use super::report::{Calm, FanOut, Phase, Report, percentile};
use super::scene::Scene;
use super::view::View;

/// A running cluster, and what etcd had used when the phase began.
struct Live<'a> {
    settings: &'a Settings,
    scene: Scene,
    crowd: Crowd,
    reals: Reals,
    before: Reading,
    listings: u64,
    start: Instant,
}

/// The same number of clients, with only the requests that a lease needs: a lower limit of etcd's
/// cost on the same machine.
pub(super) fn bare(settings: &Settings) -> Result<Phase> {
    let mut live = Live::build(settings)?;
    live.begin("bare requests")?;
    let connections = bare::register(&live.scene, settings)?;
    let phase = live.end("bare requests", live.start.elapsed())?;
    drop(connections);
    Ok(Phase { nodes: settings.nodes, ..phase })
}

/// All acquire a lease at once, and none observes the others'. Ends when etcd has the last lease.
pub(super) fn acquire_only(settings: &Settings) -> Result<Phase> {
    let mut live = Live::build(settings)?;
    live.crowd.follow_none();
    live.begin("all nodes acquire a lease")?;
    live.crowd.join(0..settings.nodes);
    live.crowd.wait_for_keys(&live.scene.etcd)?;
    // As many keys as nodes imply as many subnets; a cold start verifies each node's own.
    live.end("leases only", live.start.elapsed())
}

/// From a cold start to a restart of all nodes.
pub(super) fn live(settings: &Settings) -> Result<Report> {
    let mut live = Live::build(settings)?;
    let cold = live.cold_start()?;
    let fan_out = live.fan_out()?;
    let churn = live.churn()?;
    let calm = live.calm("nothing happens")?;
    let away = live.etcd_restart()?;
    let restart = live.daemons_restart()?;
    let renewals = live.calm("renewals")?;
    live.crowd.ensure_distinct()?;
    ensure!(live.crowd.losses() == 0, "{} leases were lost", live.crowd.losses());
    Ok(Report {
        nodes: settings.nodes,
        real: live.reals.len(),
        proxies: live.scene.proxies.cost()?,
        network: settings.network.clone(),
        phases: vec![cold, churn, away, restart],
        fan_out,
        calm,
        renewals,
    })
}

impl<'a> Live<'a> {
    fn build(settings: &'a Settings) -> Result<Self> {
        let scene = Scene::build(settings)?;
        let crowd = Crowd::new(scene.runtime.handle(), scene.servers(), settings);
        let reals = Reals::none();
        let (before, listings, start) = (Reading::default(), 0, Instant::now());
        Ok(Self { settings, scene, crowd, reals, before, listings, start })
    }

    /// All nodes start at once in an empty network; ends when each has observed all others.
    fn cold_start(&mut self) -> Result<Phase> {
        self.begin("cold start")?;
        self.reals = Reals::start(&self.scene, self.settings)?;
        self.crowd.join(0..self.settings.nodes);
        self.crowd.wait_for_leases(&self.scene.etcd)?;
        let took = self.converge()?;
        self.crowd.ensure_distinct()?;
        self.end("cold start", took)
    }

    /// Leases change one after the other.
    fn fan_out(&mut self) -> Result<FanOut> {
        self.begin("single changes")?;
        let mut truth = self.scene.truth()?;
        let mut latencies = Vec::new();
        for change in 0..self.settings.changes {
            latencies.push(self.change(change % self.crowd.len(), &mut truth)?);
        }
        let cost = gauge::read(&self.scene.etcd)? - &self.before;
        let of = |share: f64| {
            let mut each: Vec<Duration> =
                latencies.iter().map(|all| percentile(all, share)).collect();
            each.sort_unstable();
            percentile(&each, 0.5)
        };
        let changes = u32::try_from(self.settings.changes)?.max(1);
        Ok(FanOut { p50: of(0.5), p99: of(0.99), last: of(1.0), cpu: cost.cpu / changes })
    }

    /// The time until each node has observed the change of one.
    fn change(&self, index: usize, truth: &mut View) -> Result<Vec<Duration>> {
        let start = Instant::now();
        self.crowd.flip(index)?;
        self.crowd.wait_for_leases(&self.scene.etcd)?;
        truth.put_lease(&self.crowd.published(index)?.context("no lease")?);
        self.crowd.wait_for_view(&self.scene.etcd, truth.digest())?;
        Ok(self.crowd.latencies(start))
    }

    /// One in a hundred joins, leaves or changes its backend.
    fn churn(&mut self) -> Result<Phase> {
        self.begin("joins, leaves and flips")?;
        let share = (self.settings.nodes / 100).max(1);
        let left_behind = self.crowd.leave(share);
        // Stopped nodes are not counted.
        self.listings = self.crowd.listings();
        for lease in left_behind {
            self.scene.etcd.revoke(lease.grant.context("a lease without a term")?)?;
        }
        (0..share).try_for_each(|index| self.crowd.flip(index))?;
        self.crowd.join(self.settings.nodes..self.settings.nodes + share);
        self.crowd.wait_for_leases(&self.scene.etcd)?;
        let took = self.converge()?;
        self.end("1 % join, 1 % leave, 1 % flip", took)
    }

    fn calm(&mut self, name: &'static str) -> Result<Calm> {
        let revision = self.scene.revision()?;
        self.begin(name)?;
        std::thread::sleep(self.settings.calm);
        let took = self.start.elapsed();
        let cost = gauge::read(&self.scene.etcd)? - &self.before;
        let writes = self.scene.revision()? - revision;
        Ok(Calm { name, took, cost, writes, resident_kib: gauge::resident_kib(&self.scene.etcd)? })
    }

    /// Ends when all nodes observe again and have all changes.
    fn etcd_restart(&mut self) -> Result<Phase> {
        self.begin("etcd restarts")?;
        self.scene.etcd.stop()?;
        std::thread::sleep(self.settings.away);
        self.scene.etcd.start()?;
        // The counters of the new process start at zero.
        (self.before, self.start) = (Reading::default(), Instant::now());
        self.crowd.flip(0)?;
        self.crowd.wait_for_leases(&self.scene.etcd)?;
        let took = self.converge()?;
        self.end("etcd restarts", took)
    }

    fn daemons_restart(&mut self) -> Result<Phase> {
        self.begin("all daemons restart")?;
        self.crowd.renew_with_margin(TTL.saturating_sub(self.settings.renewal));
        self.listings = 0;
        self.crowd.restart();
        self.crowd.wait_for_leases(&self.scene.etcd)?;
        let took = self.converge()?;
        self.end("all daemons restart", took)
    }

    /// Waits until all views equal etcd's content; returns the time since the phase began.
    fn converge(&self) -> Result<Duration> {
        let total = self.crowd.len() + self.reals.len();
        self.reals.wait_for_peers(total.saturating_sub(1))?;
        let truth = self.scene.truth()?.digest();
        ensure!(truth.leases == total, "{total} nodes, but etcd holds {} leases", truth.leases);
        self.crowd.wait_for_view(&self.scene.etcd, truth)?;
        Ok(self.start.elapsed())
    }

    fn begin(&mut self, name: &str) -> Result<()> {
        (self.settings.progress)(name);
        self.before = gauge::read(&self.scene.etcd)?;
        self.listings = self.crowd.listings();
        self.start = Instant::now();
        Ok(())
    }

    fn end(&self, name: &'static str, took: Duration) -> Result<Phase> {
        let cost = gauge::read(&self.scene.etcd)? - &self.before;
        let listings = self.crowd.listings() - self.listings;
        let nodes = self.crowd.len() + self.reals.len();
        let phase = Phase { name, nodes, took, cost, listings };
        (self.settings.progress)(&phase.to_string());
        Ok(phase)
    }
}
