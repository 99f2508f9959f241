//! The inputs of commands on this node: the daemon's responses, the inputs of its plan, the kernel.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::de::DeserializeOwned;

use super::Error;
use crate::daemon::{checkpoint, http};
use crate::kernel::Kernel;
use crate::model::checkpoint::Checkpoint;
use crate::model::entry::KernelState;
use crate::model::lease::{Lease, Peers};
use crate::model::local::Local;
use crate::model::path::Fallbacks;
use crate::plan::desired::Desired;
use crate::plan::preflight::Needs;
use crate::plan::scope::Scope;

/// Where the daemon keeps what concerns us.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Where the daemon is")]
pub(super) struct Files {
    /// Its subnet file
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/flannel/subnet.env")]
    pub(super) subnet_file: PathBuf,
    /// Its control socket [default: beside it, subnet.sock]
    #[arg(long, global = true, value_name = "PATH", alias = "control-socket")]
    socket: Option<PathBuf>,
    /// Its checkpoint [default: beside it, subnet.state.json]
    #[arg(long, global = true, value_name = "PATH")]
    state_file: Option<PathBuf>,
}

impl Files {
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.subnet_file.with_extension("sock"))
    }

    pub(super) fn state_file(&self) -> PathBuf {
        self.state_file.clone().unwrap_or_else(|| self.subnet_file.with_extension("state.json"))
    }
}

/// Why the daemon did not respond.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("no daemon answers on {0}")]
    Absent(String),
    #[error("only root may ask the daemon on {0}")]
    Forbidden(String),
    #[error("the daemon on {socket} gives no answer: {reason}")]
    Silent { socket: String, reason: String },
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        Self::CannotTell(match &unanswered {
            Unanswered::Absent(_) => {
                format!("{unanswered}: start tweedd, or name its socket with --socket")
            }
            Unanswered::Forbidden(_) | Unanswered::Silent { .. } => unanswered.to_string(),
        })
    }
}

/// The response of the daemon behind `socket` at `path`.
pub(super) async fn ask<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Unanswered> {
    let name = || socket.display().to_string();
    let silent = |reason: String| Unanswered::Silent { socket: name(), reason };
    let (status, body) =
        http::get_unix(socket, path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Unanswered::Absent(name())
            }
            io::ErrorKind::PermissionDenied => Unanswered::Forbidden(name()),
            _ => silent(error.to_string()),
        })?;
    match (status, serde_json::from_slice(&body)) {
        // "Not ready" is a valid response too.
        (200 | 503, Ok(answer)) => Ok(answer),
        (200, Err(error)) => Err(silent(format!("{path} is of another version: {error}"))),
        (_, _) => {
            let says = String::from_utf8_lossy(&body);
            Err(silent(format!("{path} is {status}, {}", says.trim())))
        }
    }
}

/// The inputs of the plan, and their source.
pub(super) struct Known {
    /// For a sentence, after "of".
    pub(super) source: String,
    pub(super) local: Local,
    leases: Vec<Arc<Lease>>,
    fallbacks: Fallbacks,
}

/// Why the inputs are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unknown {
    #[error("{daemon}, and there is no checkpoint {path}")]
    Nowhere { daemon: String, path: String },
    #[error("{daemon}, and {checkpoint}")]
    Unusable { daemon: String, checkpoint: checkpoint::LoadError },
}

impl From<Unknown> for Error {
    fn from(unknown: Unknown) -> Self {
        let advice = "start tweedd, or name them with --socket and --state-file";
        Self::CannotTell(format!("{unknown}: {advice}"))
    }
}

/// Reads the inputs from the daemon, else from the checkpoint.
pub(super) async fn read_inputs(files: &Files) -> Result<Known, Unknown> {
    let socket = files.socket();
    let asked: Result<Option<Checkpoint>, Unanswered> = ask(&socket, "/inputs").await;
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
        let Checkpoint { local, leases, fallbacks, host: _ } = inputs;
        Self { source, local, leases, fallbacks }
    }

    /// What the kernel should hold, planned as the daemon plans.
    pub(super) fn desired(&self) -> Desired {
        let mut peers = Peers::from_checkpoint(self.leases.iter().cloned());
        Desired::plan(&self.local, &mut peers, &self.fallbacks)
    }

    /// The host settings that the plan requires.
    pub(super) fn needs(&self) -> Needs {
        let endpoints = self.leases.iter().flat_map(|lease| &lease.endpoints);
        let peers: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.public_ip).collect();
        Needs::of(&self.local, &peers)
    }

    /// The part of the kernel's state that tweed manages.
    pub(super) fn scope(&self) -> Scope {
        let endpoints = self.leases.iter().flat_map(|lease| &lease.endpoints);
        self.local.scope(endpoints.map(|endpoint| endpoint.public_ip).collect())
    }
}

/// What the kernel holds of `scope`.
pub(super) async fn dump(kernel: &mut impl Kernel, scope: &Scope) -> Result<KernelState, Error> {
    let unread = |error| Error::CannotTell(format!("the kernel cannot be read: {error}"));
    kernel.dump(scope, &KernelState::default()).await.map_err(unread)
}
