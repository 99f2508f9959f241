//! `tweedctl cleanup`: lists or removes tweed's kernel entries and files.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::layout::{counted, listed, wrap, wrap_entry};
use super::node::{self, Files, NoInputs, PlanInputs, Unanswered};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::config::Pool;
use crate::model::entry::{ChainName, KernelState, LinkName};
use crate::model::lease::LeaseId;
use crate::model::prefix::{Family, Prefix};
use crate::model::status::Readiness;
use crate::plan::backend;
use crate::plan::diff::{Op, cleanup_ops};
use crate::plan::scope::{Extent, Scope};

#[derive(Debug, Args)]
pub(super) struct CleanupOptions {
    /// Remove the entries and files [default: only list them]
    #[arg(long)]
    yes: bool,
    /// Remove them even if a daemon is running
    #[arg(long)]
    force: bool,
    /// Network of the pods, if neither daemon nor checkpoint has it
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// VNI of the tunnel, with --network
    #[arg(long, value_name = "N", default_value_t = 1, requires = "networks")]
    vni: u32,
}

/// The entries and files that a command removes or changes, and the outcome.
#[derive(Serialize)]
pub(super) struct Removal {
    /// Where the scope was read.
    source: String,
    pub(super) entries: Vec<String>,
    pub(super) files: Vec<PathBuf>,
    pub(super) outcome: RemovalOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RemovalOutcome {
    Listed,
    Removed,
    /// What was not removed, with the reason. Files stay as long as an entry stays.
    Refused(Vec<String>),
}

/// What tweed owns on this node, and what of it remains.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) source: String,
    pub(super) scope: Scope,
    pub(super) remaining: KernelState,
    pub(super) lease: Option<LeaseId>,
}

pub(super) async fn answer(
    files: &Files,
    options: &CleanupOptions,
    mut kernel: impl Kernel,
) -> Result<Removal, Error> {
    if options.yes && !options.force {
        refuse_next_to_daemon(&files.socket(), "stop it first, or use --force").await?;
    }
    // Nothing is left, as after an earlier removal: no reason to fail.
    let otherwise = present_files(files).is_empty().then(Owned::nothing);
    let owned = Owned::find(files, &options.networks, options.vni, otherwise).await?;
    let actual = node::dump(&mut kernel, &owned.scope).await?;
    let ops = cleanup_ops(&owned.remaining, &actual, &owned.scope);
    let mut removal = Removal::new(owned.source, &ops, present_files(files));
    if options.yes {
        removal.outcome = remove(&mut kernel, ops, &removal.files).await?;
    }
    Ok(removal)
}

/// A running daemon would restore all entries.
pub(super) async fn refuse_next_to_daemon(socket: &Path, advice: &str) -> Result<(), Error> {
    match node::ask::<Readiness>(socket, "/readyz").await {
        Err(Unanswered::Absent(_)) => Ok(()),
        Ok(_) | Err(Unanswered::Forbidden(_) | Unanswered::Silent { .. }) => Err(Error::Refused(
            format!("the daemon on {} would restore all entries: {advice}", socket.display()),
        )),
    }
}

impl Owned {
    /// From the flags, else from the daemon or its checkpoint; `otherwise` if there is neither.
    pub(super) async fn find(
        files: &Files,
        networks: &[Prefix],
        vni: u32,
        otherwise: Option<Self>,
    ) -> Result<Self, Error> {
        if !networks.is_empty() {
            return Ok(Self::named(networks, vni));
        }
        let (otherwise, unknown) = match node::read_inputs(files).await {
            Ok(known) => return Ok(Self::known(&known)),
            Err(unknown @ NoInputs::Nowhere { .. }) => (otherwise, unknown),
            Err(unknown @ NoInputs::Unusable { .. }) => (None, unknown),
        };
        let advice = "name the network with --network and --vni";
        otherwise.ok_or_else(|| Error::Unavailable(format!("{unknown}: {advice}")))
    }

    fn known(known: &PlanInputs) -> Self {
        let local = &known.checkpoint.local;
        Self {
            source: format!("read from {}", known.source),
            scope: Scope { extent: Extent::Everything, ..known.scope() },
            remaining: backend::restored(&local.strict),
            lease: local.own.as_ref().map(|own| own.id.clone()),
        }
    }

    pub(super) fn named(networks: &[Prefix], vni: u32) -> Self {
        let tunnels: BTreeSet<LinkName> =
            Family::ALL.map(|family| LinkName::tunnel(family, vni)).into();
        let tables = backend::table_names(vni).collect();
        let chains = ChainName::all().collect();
        let source = format!("from --network {} and --vni {vni}", listed(networks, ""));
        // The own subnet is unknown, so the usual subnet length is assumed.
        let subnet =
            |network: &Prefix| Prefix::holding(network.base(), Pool::usual_len(network.family()));
        let subnets = networks.iter().filter_map(subnet).collect();
        let (networks, extent) = (networks.to_vec(), Extent::Everything);
        let scope =
            Scope { tunnels, tables, chains, extent, networks, subnets, ..Scope::default() };
        Self { source, scope, ..Self::default() }
    }

    fn nothing() -> Self {
        let source = "no daemon, checkpoint or subnet file found; if routes are left, name the \
                      network with --network and --vni"
            .to_owned();
        Self { source, ..Self::default() }
    }
}

/// The daemon's files that exist.
fn present_files(files: &Files) -> Vec<PathBuf> {
    existing([files.subnet_file.clone(), files.socket(), files.state_file()])
}

pub(super) fn existing(files: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
}

/// Entries first, then files: without the checkpoint, the entries of tweed are unknown.
pub(super) async fn remove(
    kernel: &mut impl Kernel,
    ops: Vec<Op>,
    files: &[PathBuf],
) -> Result<RemovalOutcome, Error> {
    let broken = |error| Error::Unavailable(format!("removing kernel entries failed: {error}"));
    let refused = kernel.apply(&ops).await.map_err(broken)?;
    let mut refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if refused.is_empty() {
        refused.extend(files.iter().filter_map(remove_file));
    }
    Ok(if refused.is_empty() { RemovalOutcome::Removed } else { RemovalOutcome::Refused(refused) })
}

/// Why the file is not removed, if it still exists.
fn remove_file(path: &PathBuf) -> Option<String> {
    let error = fs::remove_file(path).err().filter(|it| it.kind() != io::ErrorKind::NotFound)?;
    Some(format!("- file {}: {error}", path.display()))
}

impl Answer for Removal {
    fn exit_status(&self) -> ExitStatus {
        let is_refused = matches!(self.outcome, RemovalOutcome::Refused(_));
        if is_refused { ExitStatus::Problems } else { ExitStatus::Done }
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &self.summary(), None)
    }
}

impl Removal {
    pub(super) fn new(source: String, ops: &[Op], files: Vec<PathBuf>) -> Self {
        let entries = ops.iter().map(ToString::to_string).collect();
        Self { source, entries, files, outcome: RemovalOutcome::Listed }
    }

    /// Kernel entries, files, `summary`, the source, `report`, and the refused operations.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        summary: &str,
        report: Option<&str>,
    ) -> fmt::Result {
        for entry in &self.entries {
            writeln!(f, "{}", wrap_entry(entry, 4))?;
        }
        for path in &self.files {
            writeln!(f, "- file {}", path.display())?;
        }
        for sentence in [summary, &self.source].into_iter().chain(report) {
            writeln!(f, "{}", wrap(sentence, 2))?;
        }
        if let RemovalOutcome::Refused(refused) = &self.outcome {
            for refusal in refused {
                writeln!(f, "{}", wrap(&format!("refused: {refusal}"), 4))?;
            }
        }
        Ok(())
    }

    fn summary(&self) -> String {
        if self.entries.is_empty() && self.files.is_empty() {
            return "no entries or files of tweed found".to_owned();
        }
        let entries = match self.entries.len() {
            1 => "1 kernel entry".to_owned(),
            count => format!("{count} kernel entries"),
        };
        let found = format!("{entries} and {}", counted(self.files.len(), "file"));
        match &self.outcome {
            RemovalOutcome::Listed => format!("{found} of tweed; --yes removes them"),
            RemovalOutcome::Removed => format!("removed {found}"),
            RemovalOutcome::Refused(refused) => {
                let count = refused.len();
                format!("{found} of tweed, of which {count} refused: run the command again")
            }
        }
    }
}
