//! A storm: thousands of simulated daemons in one process, the real subnet manager on a real etcd, and no kernel.

mod bare;
mod crowd;
mod gauge;
mod limit;
mod node;
mod phases;
mod real;
mod report;
mod scene;
mod view;

use std::time::Duration;

use anyhow::Result;

use crate::Binaries;

pub use gauge::Cost;
pub use report::{Calm, FanOut, Phase, Report};

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Simulated daemons.
    pub nodes: usize,
    /// Of all pods; each node gets a /24 of it.
    pub network: String,
    /// All daemons start within this time, one after the other.
    pub spread: Duration,
    /// Changes of one lease whose way to everybody is timed.
    pub changes: usize,
    /// How long the cluster is left alone, to see what that costs.
    pub calm: Duration,
    /// Time between two renewals of a lease, for the measure of what renewals cost.
    pub renewal: Duration,
    /// How long etcd is away.
    pub away: Duration,
    /// Real daemons among the simulated ones, each in a node of its own.
    pub real: usize,
    /// What the real daemons run.
    pub binaries: Binaries,
    /// Gets a line whenever there is something to tell.
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
            real: 0,
            binaries: Binaries::default(),
            progress: |_| {},
        }
    }
}

/// Goes through all phases; each is an error if somebody gives up or sees something else than the others.
pub fn run(settings: &Settings) -> Result<Report> {
    limit::raise_open_files(settings.nodes)?;
    let first = [phases::bare(settings)?, phases::acquire_only(settings)?];
    let report = phases::live(settings)?;
    let phases = first.into_iter().chain(report.phases).collect();
    Ok(Report { phases, ..report })
}
