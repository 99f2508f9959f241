//! Runs the iptables programs to list and write rules.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::excerpt;
use crate::kernel::codec;
use crate::model::entry::{Chain, ChainName, Iptables};
use crate::model::prefix::Family;
use crate::plan::diff::Op;

/// The time to wait for the iptables lock, in seconds.
const LOCK: &str = "2";
/// A program that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why rules were not read or not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("{program} is not installed: install the package iptables")]
    Missing { program: String },
    #[error("{program} cannot be run: {source}")]
    Unrunnable { program: String, source: io::Error },
    #[error("{program} did not end within {} s", TIMEOUT.as_secs())]
    Hanging { program: String },
    #[error("{program} refused: {words}")]
    Refused { program: String, words: String },
}

/// The programs of one kind of iptables for one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Programs {
    iptables: Iptables,
    family: Family,
}

impl Programs {
    pub(super) const fn of(name: ChainName) -> Self {
        Self { iptables: name.iptables, family: name.family }
    }

    /// The output of `iptables-save` for all tables, or for one of them, because other tables may
    /// be far larger. Does not create missing tables.
    pub(super) async fn list(self, table: Option<&str>) -> Result<String, ProgramError> {
        let arguments: Vec<&str> = table.into_iter().flat_map(|table| ["-t", table]).collect();
        let output = self.run("save", &arguments, "").await?;
        let listing = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(table) = table {
            self.check(table, &listing)?;
        }
        Ok(listing)
    }

    /// Fails if the listing does not show the rules of `table`.
    fn check(self, table: &str, listing: &str) -> Result<(), ProgramError> {
        let Some(words) = codec::incompatible(table, listing) else { return Ok(()) };
        let (program, _) = self.find("save")?;
        Err(ProgramError::Refused { program, words: words.to_owned() })
    }

    pub(super) async fn carry_out(self, op: &Op, chain: &Chain) -> Result<(), ProgramError> {
        let listing = self.list(None).await?;
        self.check(chain.name.base.table(), &listing)?;
        let script = codec::script(op, chain, &listing);
        self.run("restore", &["--wait", LOCK, "--noflush"], &script).await.map(drop)
    }

    async fn run(
        self,
        verb: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<Output, ProgramError> {
        let (program, path) = self.find(verb)?;
        let mut command = Command::new(path);
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = match timeout(TIMEOUT, run_to_end(command, input)).await {
            Ok(Ok(output)) => output,
            Ok(Err(source)) => return Err(ProgramError::Unrunnable { program, source }),
            Err(_) => return Err(ProgramError::Hanging { program }),
        };
        if output.status.success() {
            Ok(output)
        } else {
            Err(ProgramError::Refused { program, words: sentence(&output.stderr) })
        }
    }

    /// The program of this kind, under its own name or under the name of the host's default one.
    fn find(self, verb: &str) -> Result<(String, PathBuf), ProgramError> {
        let word = self.family.iptables();
        let own = format!("{word}-{}-{verb}", self.iptables);
        let usual = Some(format!("{word}-{verb}")).filter(|_| usual() == self.iptables);
        let names = [Some(own.clone()), usual].into_iter().flatten();
        let mut found = names.filter_map(|name| Some((name.clone(), installed(&name)?)));
        found.next().ok_or(ProgramError::Missing { program: own })
    }

    /// Whether the legacy kernel module has `table`. Its rules are only in a listing.
    pub(super) fn has_legacy_table(self, table: &str) -> bool {
        let file = match self.family {
            Family::V4 => "ip_tables_names",
            Family::V6 => "ip6_tables_names",
        };
        let names = fs::read_to_string(PathBuf::from("/proc/thread-self/net").join(file));
        names.is_ok_and(|names| names.lines().any(|name| name == table))
    }
}

/// Whether this host has iptables, of whatever kind.
pub(in crate::kernel) fn is_installed() -> bool {
    installed("iptables").is_some()
}

/// The kind of iptables that `iptables` runs on this host.
pub(in crate::kernel) fn usual() -> Iptables {
    let path = installed("iptables").and_then(|path| path.canonicalize().ok());
    path.map_or(Iptables::Nft, |path| kind(&path))
}

/// The file name of the link target shows the kind. A target without a kind is legacy, which was
/// once the only one.
fn kind(program: &Path) -> Iptables {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let is_legacy = !name.contains("nft") && !name.contains("wrapper");
    if is_legacy { Iptables::Legacy } else { Iptables::Nft }
}

async fn run_to_end(mut command: Command, input: &str) -> io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program does not read its input, its error output explains why.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    child.wait_with_output().await
}

/// What a program wrote to its error output, as one line.
fn sentence(written: &[u8]) -> String {
    excerpt::sentence(&String::from_utf8_lossy(written).trim().replace('\n', "; "))
}

/// The path of the program `name`.
fn installed(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    let mut places = env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_target_of_a_program_shows_its_kind() {
        let kinds = ["xtables-nft-multi", "xtables-legacy-multi", "xtables-multi", "iptables"];
        let [nft, legacy, old, older] = kinds.map(|name| kind(&Path::new("/sbin").join(name)));
        assert_eq!((nft, legacy), (Iptables::Nft, Iptables::Legacy));
        assert_eq!((old, older), (Iptables::Legacy, Iptables::Legacy));
    }

    #[test]
    fn a_long_error_output_is_cut_to_one_printable_line() {
        assert_eq!(sentence(b"line 1 failed\nBad argument\n"), "line 1 failed; Bad argument");
        let flood = sentence(&b"\x1b[31mBad rule\n".repeat(10_000));
        assert!(flood.chars().count() <= excerpt::SENTENCE + 1, "{} bytes", flood.len());
        assert!(!flood.contains('\x1b'), "{flood}");
    }
}
