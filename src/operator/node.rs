//! The inputs of commands on this node: the daemon's responses, the inputs of its plan, the kernel.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::{DeserializeOwned, IgnoredAny};
use tweed_http as http;

use super::Error;
use crate::daemon::checkpoint;
use crate::kernel::Kernel;
use crate::kernel::host::Places;
use crate::model::checkpoint::Checkpoint;
use crate::model::entry::KernelState;
use crate::model::lease::Peers;
use crate::plan::desired::Desired;
use crate::plan::scope::Scope;

/// The files of the daemon.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Files of the daemon")]
pub(super) struct Files {
    /// Subnet file
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/flannel/subnet.env")]
    pub(super) subnet_file: PathBuf,
    /// Control socket [default: subnet.sock next to the subnet file]
    #[arg(long, global = true, value_name = "PATH", alias = "control-socket")]
    socket: Option<PathBuf>,
    /// Checkpoint [default: next to the subnet file, or that of the unit]
    #[arg(long, global = true, value_name = "PATH")]
    state_file: Option<PathBuf>,
}

impl Files {
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.subnet_file.with_extension("sock"))
    }

    /// The checkpoint that was saved last: the named one, or that of the daemon's default or of the
    /// unit and the manifests on the same host.
    pub(super) fn state_file(&self) -> PathBuf {
        let saved = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
        // Of equal ones, the last: that of the default.
        self.state_files().rev().max_by_key(saved).unwrap_or_default()
    }

    /// All places where the daemon of the subnet file may have saved checkpoints, its default first; an
    /// older one may be left of a daemon with other flags.
    pub(super) fn state_files(&self) -> impl DoubleEndedIterator<Item = PathBuf> {
        let is_usual = self.subnet_file.ends_with("run/flannel/subnet.env");
        let root = self.subnet_file.ancestors().nth(3).filter(|_| is_usual);
        let lasting = root.map(|root| root.join(LASTING)).filter(|_| self.state_file.is_none());
        let usual = || self.subnet_file.with_extension("state.json");
        [self.state_file.clone().unwrap_or_else(usual)].into_iter().chain(lasting)
    }
}

/// The checkpoint of the systemd unit and the manifests, below the root. A reboot keeps it.
pub(super) const LASTING: &str = "var/lib/tweed/state.json";

/// Where container runtimes find CNI configs and plugins.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct CniFolders {
    /// Folder of the CNI configs [default: /etc/cni/net.d]
    #[arg(long, value_name = "PATH")]
    cni_conf_dir: Option<PathBuf>,
    /// Folder of plugins, repeatable [default: see docs/guides/doctor.md]
    #[arg(long, value_name = "PATH")]
    cni_bin_dir: Vec<PathBuf>,
}

impl CniFolders {
    /// The places of a host with its files below `root`.
    pub(super) fn places(&self, root: &Path) -> Places {
        let usual = Places::below(root);
        let named = Some(self.cni_bin_dir.clone()).filter(|folders| !folders.is_empty());
        Places {
            cni_configs: self.cni_conf_dir.clone().unwrap_or(usual.cni_configs),
            cni_plugins: named.unwrap_or(usual.cni_plugins),
            ..usual
        }
    }
}

/// Why the daemon did not respond.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("no daemon answers on {0}")]
    Absent(String),
    #[error("only root may query the daemon on {0}")]
    Forbidden(String),
    #[error("the request to the daemon on {socket} failed: {reason}")]
    Silent { socket: String, reason: String },
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        let advice = match &unanswered {
            Unanswered::Absent(_) => ": start tweedd, or name its socket with --socket",
            Unanswered::Forbidden(_) | Unanswered::Silent { .. } => "",
        };
        Self::Unavailable(format!("{unanswered}{advice}"))
    }
}

/// The response of the daemon behind `socket` at `path`.
pub(super) async fn ask<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, Unanswered> {
    let text = text(socket, path).await?;
    serde_json::from_str(&text).map_err(|error| Unanswered::Silent {
        socket: socket.display().to_string(),
        reason: format!("{path} is in the format of another version: {error}"),
    })
}

/// The same, as the daemon wrote it.
pub(super) async fn text(socket: &Path, path: &str) -> Result<String, Unanswered> {
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
    let text = String::from_utf8_lossy(&body);
    // "Not ready" is a valid response too.
    let is_json = || serde_json::from_str::<IgnoredAny>(&text).is_ok();
    if status == 200 || (status == 503 && is_json()) {
        Ok(text.into_owned())
    } else {
        Err(silent(format!("{path} returned {status}: {}", text.trim())))
    }
}

/// The inputs of the plan, and their source.
pub(super) struct PlanInputs {
    /// For a sentence, after "of".
    pub(super) source: String,
    pub(super) checkpoint: Checkpoint,
}

/// Why the inputs are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoInputs {
    #[error("{daemon}, and there is no checkpoint {path}")]
    Nowhere { daemon: String, path: String },
    #[error("{daemon}, and {checkpoint}")]
    Unusable { daemon: String, checkpoint: checkpoint::LoadError },
}

impl From<NoInputs> for Error {
    fn from(reason: NoInputs) -> Self {
        Self::Unavailable(format!(
            "{reason}: start tweedd, or name them with --socket and --state-file"
        ))
    }
}

/// Reads the inputs from the daemon, else from the checkpoint.
pub(super) async fn read_inputs(files: &Files) -> Result<PlanInputs, NoInputs> {
    let socket = files.socket();
    let daemon = match ask::<Option<Checkpoint>>(&socket, "/inputs").await {
        Ok(Some(checkpoint)) => {
            let source = format!("the daemon on {}", socket.display());
            return Ok(PlanInputs { source, checkpoint });
        }
        Ok(None) => format!("the daemon on {} has no config or lease yet", socket.display()),
        Err(unanswered) => unanswered.to_string(),
    };
    read_checkpoint(files, daemon)
}

/// Reads the inputs from the checkpoint; `daemon` is the reason why the daemon has none.
pub(super) fn read_checkpoint(files: &Files, daemon: String) -> Result<PlanInputs, NoInputs> {
    let path = files.state_file().display().to_string();
    match checkpoint::load::<Checkpoint>(&files.state_file()) {
        Ok(Some(mut checkpoint)) => {
            checkpoint.forget_other_boot(&checkpoint::this_host());
            let source = format!("the checkpoint {path}, because {daemon}");
            Ok(PlanInputs { source, checkpoint })
        }
        Ok(None) => Err(NoInputs::Nowhere { daemon, path }),
        Err(checkpoint) => Err(NoInputs::Unusable { daemon, checkpoint }),
    }
}

impl PlanInputs {
    /// What the kernel should hold, planned as the daemon plans.
    pub(super) fn desired(&self) -> Desired {
        let Checkpoint { local, leases, fallbacks, .. } = &self.checkpoint;
        Desired::plan(local, &mut Peers::from_checkpoint(leases.iter().cloned()), fallbacks)
    }

    /// The part of the kernel's state that tweed manages.
    pub(super) fn scope(&self) -> Scope {
        self.checkpoint.local.scope(self.checkpoint.public_ips().collect())
    }
}

/// What the kernel holds of `scope`.
pub(super) async fn dump(kernel: &mut impl Kernel, scope: &Scope) -> Result<KernelState, Error> {
    let unread = |error| Error::Unavailable(format!("the kernel cannot be read: {error}"));
    kernel.dump(scope, &KernelState::default()).await.map_err(unread)
}
