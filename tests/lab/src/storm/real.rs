//! Real daemons among the simulated ones, each on its own node with a kernel.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Settings;
use super::scene::Scene;
use crate::node::Node;
use crate::node::daemon::Daemon;
use crate::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(300);
/// Outside all networks of pods that a storm may use.
const SEGMENT: &str = "192.168.7.0/24";

pub(super) struct Reals {
    daemons: Vec<(Node, Daemon)>,
}

impl Reals {
    pub(super) fn none() -> Self {
        Self { daemons: Vec::new() }
    }

    /// Starts the number in the settings, and does not wait for them.
    pub(super) fn start(scene: &Scene, settings: &Settings) -> Result<Self> {
        if settings.real == 0 {
            return Ok(Self::none());
        }
        let segment = scene.lab.segment(SEGMENT)?;
        let start = |number: usize| {
            let node = scene.lab.node(&format!("real{number}"), &segment)?;
            let daemon = node.daemon(&scene.etcd).start()?;
            Ok((node, daemon))
        };
        Ok(Self { daemons: (1..=settings.real).map(start).collect::<Result<_>>()? })
    }

    pub(super) fn len(&self) -> usize {
        self.daemons.len()
    }

    /// Waits until each has programmed this number of peers.
    pub(super) fn wait_for_peers(&self, peers: usize) -> Result<()> {
        self.daemons.iter().try_for_each(|(node, daemon)| {
            let seen = eventually(TIMEOUT, || {
                let known = programmed(daemon)?;
                ensure!(known == peers, "{known} of {peers} peers");
                Ok(())
            });
            seen.map(drop).with_context(|| node.name().to_owned())
        })
    }
}

fn programmed(daemon: &Daemon) -> Result<usize> {
    let status: Value = serde_json::from_str(&daemon.ctl(&["status", "-o", "json"])?)?;
    let count = |kind: &str| status.get("peers").and_then(|peers| peers.get(kind)?.as_u64());
    let known = ["direct", "tunnel"].iter().filter_map(|kind| count(kind)).sum::<u64>();
    Ok(usize::try_from(known)?)
}
