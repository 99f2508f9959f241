//! What the plan of this node is made from: the daemon knows it, or else the checkpoint.

use std::net::IpAddr;
use std::sync::Arc;

use super::Error;
use super::daemon::{self, Unanswered};
use super::options::Files;
use crate::daemon::checkpoint;
use crate::model::checkpoint::Checkpoint;
use crate::model::lease::{Lease, Peers};
use crate::model::local::Local;
use crate::model::path::Detours;
use crate::plan::desired::Desired;
use crate::plan::preflight::Needs;
use crate::plan::scope::Scope;

/// The inputs, and where they come from.
pub(super) struct Known {
    /// In words, after "of".
    pub(super) source: String,
    pub(super) local: Local,
    leases: Vec<Arc<Lease>>,
    detours: Detours,
}

/// Why the inputs are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("{daemon}, and there is no checkpoint {path}")]
    Nowhere { daemon: String, path: String },
    #[error("{daemon}, and {checkpoint}")]
    Unusable { daemon: String, checkpoint: checkpoint::Error },
}

impl From<Unknown> for Error {
    fn from(unknown: Unknown) -> Self {
        let advice = "start tweedd, or name them with --socket and --state-file";
        Self::CannotTell(format!("{unknown}: {advice}"))
    }
}

/// Asks the daemon, and where it cannot tell, the checkpoint.
pub(super) async fn read(files: &Files) -> Result<Known, Unknown> {
    let socket = files.socket();
    let asked: Result<Option<Checkpoint>, Unanswered> = daemon::ask(&socket, "/inputs").await;
    let daemon = match asked {
        Ok(Some(inputs)) => {
            return Ok(Known::new(inputs, format!("the daemon on {}", socket.display())));
        }
        Ok(None) => format!("the daemon on {} does not know enough yet", socket.display()),
        Err(unanswered) => unanswered.to_string(),
    };
    let path = files.state_file().display().to_string();
    match checkpoint::load::<Checkpoint>(&files.state_file()) {
        Ok(Some(mut inputs)) => {
            inputs.forget_other_boot(&checkpoint::this_host());
            Ok(Known::new(inputs, format!("the checkpoint {path}, because {daemon}")))
        }
        Ok(None) => Err(Unknown::Nowhere { daemon, path }),
        Err(checkpoint) => Err(Unknown::Unusable { daemon, checkpoint }),
    }
}

impl Known {
    fn new(inputs: Checkpoint, source: String) -> Self {
        let Checkpoint { local, leases, detours, host: _ } = inputs;
        Self { source, local, leases, detours }
    }

    /// What the kernel should hold, planned as the daemon plans.
    pub(super) fn desired(&self) -> Desired {
        let mut peers = Peers::remembered(self.leases.iter().cloned());
        Desired::plan(&self.local, &mut peers, &self.detours)
    }

    /// What this host has to be good for.
    pub(super) fn needs(&self) -> Needs {
        let endpoints = self.leases.iter().flat_map(|lease| &lease.endpoints);
        let peers: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.public_ip).collect();
        Needs::of(&self.local, &peers)
    }

    /// What in the kernel concerns us.
    pub(super) fn scope(&self) -> Scope {
        let endpoints = self.leases.iter().flat_map(|lease| &lease.endpoints);
        self.local.scope(endpoints.map(|endpoint| endpoint.public_ip).collect())
    }
}
