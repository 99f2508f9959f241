//! `tweedctl cleanup`: lists or removes tweed's kernel entries and files.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::layout::{counted, listed, wrap, wrap_entry};
use super::node::Files;
use super::node::{self, Known, Unanswered, Unknown};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::config::Pool;
use crate::model::entry::{KernelState, LinkName};
use crate::model::prefix::{Family, Prefix};
use crate::model::status::Readiness;
use crate::plan::diff::{Op, cleanup_ops};
use crate::plan::scope::{Extent, Scope};
use crate::plan::{backend, masquerade};

#[derive(Debug, Args)]
pub(super) struct CleanupOptions {
    /// Remove it; without this, only list it
    #[arg(long)]
    yes: bool,
    /// Remove it although a daemon is running
    #[arg(long)]
    force: bool,
    /// The network, where neither daemon nor checkpoint can tell
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// The VNI that goes with --network
    #[arg(long, value_name = "N", default_value_t = 1, requires = "networks")]
    vni: u32,
}

/// The entries and files of tweed, and how many of them are removed.
#[derive(Serialize)]
pub(super) struct Leftovers {
    /// Where the scope was read.
    source: String,
    entries: Vec<String>,
    files: Vec<PathBuf>,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Listed,
    Removed,
    /// What was not removed, with the reason. Files stay as long as an entry stays.
    Refused(Vec<String>),
}

/// The scope of the removal, and what it keeps.
pub(super) struct Ours {
    pub(super) source: String,
    pub(super) scope: Scope,
    pub(super) remaining: KernelState,
}

pub(super) async fn answer(
    files: &Files,
    options: &CleanupOptions,
    mut kernel: impl Kernel,
) -> Result<Leftovers, Error> {
    if options.yes && !options.force {
        refuse_beside_a_daemon(&files.socket(), "stop it first, or say --force").await?;
    }
    let ours = ours(files, options).await?;
    let actual = node::dump(&mut kernel, &ours.scope).await?;
    let ops = cleanup_ops(&ours.remaining, &actual, &ours.scope);
    let mut leftovers = Leftovers {
        source: ours.source,
        entries: ops.iter().map(ToString::to_string).collect(),
        files: left_behind(files),
        outcome: Outcome::Listed,
    };
    if options.yes {
        leftovers.outcome = remove(&mut kernel, ops, &leftovers.files).await?;
    }
    Ok(leftovers)
}

/// A running daemon would restore all entries.
pub(super) async fn refuse_beside_a_daemon(socket: &Path, advice: &str) -> Result<(), Error> {
    match node::ask::<Readiness>(socket, "/readyz").await {
        Err(Unanswered::Absent(_)) => Ok(()),
        Ok(_) | Err(Unanswered::Forbidden(_) | Unanswered::Silent { .. }) => Err(Error::Refused(
            format!("a daemon is on {} and would put everything back: {advice}", socket.display()),
        )),
    }
}

async fn ours(files: &Files, options: &CleanupOptions) -> Result<Ours, Error> {
    if !options.networks.is_empty() {
        return Ok(Ours::named(&options.networks, options.vni));
    }
    match node::read_inputs(files).await {
        Ok(known) => Ok(Ours::known(&known)),
        // Nothing is left, as after an earlier removal: no reason to fail.
        Err(Unknown::Nowhere { .. }) if left_behind(files).is_empty() => Ok(Ours::nothing()),
        Err(unknown) => {
            Err(Error::CannotTell(format!("{unknown}: say which --network and --vni are ours")))
        }
    }
}

impl Ours {
    pub(super) fn known(known: &Known) -> Self {
        let scope = Scope { extent: Extent::Everything, ..known.scope() };
        let remaining = backend::restored(&known.local.strict);
        Self { source: format!("known from {}", known.source), scope, remaining }
    }

    pub(super) fn named(networks: &[Prefix], vni: u32) -> Self {
        let tunnels: BTreeSet<LinkName> =
            Family::ALL.map(|family| LinkName::tunnel(family, vni)).into();
        let tables = backend::table_names(vni).collect();
        let chains = masquerade::chain_names();
        let source = format!("as --network {} and --vni {vni} say", listed(networks, ""));
        // The own subnet is unknown, so the usual subnet length is assumed.
        let subnet =
            |network: &Prefix| Prefix::holding(network.base(), Pool::usual_len(network.family()));
        let subnets = networks.iter().filter_map(subnet).collect();
        let (networks, extent) = (networks.to_vec(), Extent::Everything);
        let scope =
            Scope { tunnels, tables, chains, extent, networks, subnets, ..Scope::default() };
        Self { source, scope, remaining: KernelState::default() }
    }

    fn nothing() -> Self {
        let source = "there is no daemon, no checkpoint and no subnet file; if routes are left, \
                      say which --network and --vni are ours";
        Self {
            source: source.to_owned(),
            scope: Scope::default(),
            remaining: KernelState::default(),
        }
    }
}

/// The daemon's files that exist.
fn left_behind(files: &Files) -> Vec<PathBuf> {
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
) -> Result<Outcome, Error> {
    let broken = |error| Error::CannotTell(format!("removing kernel entries broke off: {error}"));
    let refused = kernel.apply(&ops).await.map_err(broken)?;
    let refused: Vec<String> = if refused.is_empty() {
        files.iter().filter_map(|path| remove_file(path).err()).collect()
    } else {
        refused.iter().map(ToString::to_string).collect()
    };
    Ok(if refused.is_empty() { Outcome::Removed } else { Outcome::Refused(refused) })
}

fn remove_file(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("- file {}: {error}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Answer for Leftovers {
    fn exit_status(&self) -> ExitStatus {
        self.outcome.exit_status()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_changes(f, &self.entries, &self.files)?;
        self.outcome.write(f, [&self.summary(), &self.source])
    }
}

/// Kernel entries, then files.
pub(super) fn write_changes(
    f: &mut fmt::Formatter<'_>,
    entries: &[String],
    files: &[PathBuf],
) -> fmt::Result {
    for entry in entries {
        writeln!(f, "{}", wrap_entry(entry, 4))?;
    }
    for path in files {
        writeln!(f, "- file {}", path.display())?;
    }
    Ok(())
}

impl Outcome {
    pub(super) const fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Listed | Self::Removed => ExitStatus::Well,
            Self::Refused(_) => ExitStatus::Amiss,
        }
    }

    /// `sentences`, then the refused operations.
    pub(super) fn write<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        sentences: impl IntoIterator<Item = &'a String>,
    ) -> fmt::Result {
        for sentence in sentences {
            writeln!(f, "{}", wrap(sentence, 2))?;
        }
        if let Self::Refused(refused) = self {
            for refusal in refused {
                writeln!(f, "{}", wrap(&format!("refused: {refusal}"), 4))?;
            }
        }
        Ok(())
    }
}

impl Leftovers {
    fn summary(&self) -> String {
        if self.entries.is_empty() && self.files.is_empty() {
            return "nothing of ours is left".to_owned();
        }
        let entries = match self.entries.len() {
            1 => "1 kernel entry".to_owned(),
            count => format!("{count} kernel entries"),
        };
        let found = format!("{entries} and {}", counted(self.files.len(), "file"));
        match &self.outcome {
            Outcome::Listed => format!("{found} of ours; --yes removes them"),
            Outcome::Removed => format!("removed {found}"),
            Outcome::Refused(refused) => {
                format!("{found} of ours, of which {} refused: run it again", refused.len())
            }
        }
    }
}
