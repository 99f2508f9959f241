//! The programs of iptables: what they list, and what they write.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::kernel::codec;
use crate::model::entry::{Chain, ChainName, Iptables};
use crate::model::prefix::Family;
use crate::plan::diff::Op;

/// Others may hold the lock of iptables: so many seconds are waited for it.
const LOCK: &str = "2";
/// No program takes so long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Rules were not written, or not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{program} is not installed: install the package iptables")]
    Missing { program: String },
    #[error("{program} cannot be run: {source}")]
    Unrunnable { program: String, source: io::Error },
    #[error("{program} did not end within {} s", PATIENCE.as_secs())]
    Hanging { program: String },
    #[error("{program} refused: {words}")]
    Refused { program: String, words: String },
}

/// One kind of iptables for one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Programs {
    iptables: Iptables,
    family: Family,
}

impl Programs {
    pub(super) const fn of(name: ChainName) -> Self {
        Self { iptables: name.iptables, family: name.family }
    }

    /// All tables, or one of them, as `iptables-save` prints them: others may be far larger. Those
    /// that are not there are not made.
    pub(super) async fn list(self, table: Option<&str>) -> Result<String, Error> {
        let arguments: Vec<&str> = table.into_iter().flat_map(|table| ["-t", table]).collect();
        let output = self.run("save", &arguments, "").await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(super) async fn carry_out(self, op: &Op, chain: &Chain) -> Result<(), Error> {
        let script = codec::script(op, chain, &self.list(None).await?);
        self.run("restore", &["--wait", LOCK, "--noflush"], &script).await.map(drop)
    }

    async fn run(self, verb: &str, arguments: &[&str], input: &str) -> Result<Output, Error> {
        let (program, path) = self.find(verb)?;
        let mut command = Command::new(path);
        command.args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = match timeout(PATIENCE, converse(command, input)).await {
            Ok(Ok(output)) => output,
            Ok(Err(source)) => return Err(Error::Unrunnable { program, source }),
            Err(_) => return Err(Error::Hanging { program }),
        };
        let words = || String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        if output.status.success() {
            Ok(output)
        } else {
            Err(Error::Refused { program, words: words() })
        }
    }

    /// The program of this kind, by its own name or by that of the host's usual one.
    fn find(self, verb: &str) -> Result<(String, PathBuf), Error> {
        let word = word(self.family);
        let own = format!("{word}-{}-{verb}", self.iptables);
        let usual = Some(format!("{word}-{verb}")).filter(|_| usual() == self.iptables);
        let names = [Some(own.clone()), usual].into_iter().flatten();
        let mut found = names.filter_map(|name| Some((name.clone(), installed(&name)?)));
        found.next().ok_or(Error::Missing { program: own })
    }

    /// Whether the kernel has `table` in the legacy form; a listing tells what is in it.
    pub(super) fn has_legacy_table(self, table: &str) -> bool {
        let file = match self.family {
            Family::V4 => "ip_tables_names",
            Family::V6 => "ip6_tables_names",
        };
        let names = fs::read_to_string(PathBuf::from("/proc/thread-self/net").join(file));
        names.is_ok_and(|names| names.lines().any(|name| name == table))
    }
}

/// Which of the two this host calls iptables.
pub(in crate::kernel) fn usual() -> Iptables {
    let path = installed("iptables").and_then(|path| path.canonicalize().ok());
    path.map_or(Iptables::Nft, |path| kind(&path))
}

/// Programs that know both kinds are links to one that has the kind in its name; before there were
/// two kinds, there was the one that is legacy now.
fn kind(program: &Path) -> Iptables {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let is_legacy = !name.contains("nft") && !name.contains("wrapper");
    if is_legacy { Iptables::Legacy } else { Iptables::Nft }
}

async fn converse(mut command: Command, input: &str) -> io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not listen says why.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    child.wait_with_output().await
}

const fn word(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Where the program `name` is.
fn installed(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    let mut places = env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_program_shows_in_what_it_is_a_link_to() {
        let kinds = ["xtables-nft-multi", "xtables-legacy-multi", "xtables-multi", "iptables"];
        let [nft, legacy, old, older] = kinds.map(|name| kind(&Path::new("/sbin").join(name)));
        assert_eq!((nft, legacy), (Iptables::Nft, Iptables::Legacy));
        assert_eq!((old, older), (Iptables::Legacy, Iptables::Legacy));
    }
}
