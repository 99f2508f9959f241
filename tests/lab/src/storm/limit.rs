//! Room for thousands of connections: etcd inherits the limit of open files from us.

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What a process opens beside the connections, and etcd beside its clients'.
const BESIDE: u64 = 500;

/// Connections come and go: for a moment a node may have two.
pub(super) fn raise_open_files(nodes: usize) -> Result<()> {
    let wanted = 2 * u64::try_from(nodes)? + BESIDE;
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
