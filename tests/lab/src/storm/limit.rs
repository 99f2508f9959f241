//! The limit of open files for thousands of connections, which etcd inherits from this process.

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that a process opens in addition to its connections, and etcd to its clients'.
const OTHER_FILES: u64 = 500;

/// While a connection is replaced, a node may have two.
pub(super) fn raise_open_files(nodes: usize) -> Result<()> {
    let wanted = 2 * u64::try_from(nodes)? + OTHER_FILES;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft >= wanted {
        return Ok(());
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted));
    ensure!(
        raised.is_ok() || hard >= wanted,
        "{nodes} nodes need {wanted} open files, but only {hard} are allowed: raise `ulimit -Hn`"
    );
    let set = raised.or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, wanted, hard));
    set.context("raising the limit of open files")
}
