//! A storm: thousands of simulated daemons in one process, with the real subnet manager and a real
//! etcd, without a kernel.

mod bare;
mod crowd;
mod gauge;
mod limit;
mod node;
mod phases;
mod proxy;
mod real;
mod report;
mod scene;
mod view;

use std::time::Duration;

use anyhow::Result;

use crate::Binaries;

pub use gauge::Cost;
pub use proxy::ProxyCost;
pub use report::{Calm, FanOut, Phase, Report};

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Simulated daemons.
    pub nodes: usize,
    /// The network of all pods; each node gets a /24 of it.
    pub network: String,
    /// All daemons start within this time, one after the other.
    pub spread: Duration,
    /// The number of lease changes whose propagation to all nodes is timed.
    pub changes: usize,
    /// The duration of the idle phase.
    pub calm: Duration,
    /// Interval of renewals of a lease, to measure their cost.
    pub renewal: Duration,
    /// The duration of etcd's outage.
    pub away: Duration,
    /// Processes of `etcd grpc-proxy` between the simulated daemons and etcd: each daemon uses one.
    pub proxies: usize,
    /// Real daemons among the simulated ones, each on its own node.
    pub real: usize,
    /// The binaries of the real daemons.
    pub binaries: Binaries,
    /// Called with each line of progress.
    pub progress: fn(&str),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 1000,
            network: "10.0.0.0/8".to_owned(),
            spread: Duration::from_secs(1),
            changes: 20,
            calm: Duration::from_secs(10),
            renewal: Duration::from_secs(10),
            away: Duration::from_secs(3),
            proxies: 0,
            real: 0,
            binaries: Binaries::default(),
            progress: |_| {},
        }
    }
}

/// Runs all phases; fails if a node stops or its view differs from the others'.
pub fn run(settings: &Settings) -> Result<Report> {
    limit::raise_open_files(settings.nodes)?;
    let first = [phases::bare(settings)?, phases::acquire_only(settings)?];
    let report = phases::live(settings)?;
    let phases = first.into_iter().chain(report.phases).collect();
    Ok(Report { phases, ..report })
}
