//! The exchanges of one client, and the wait for those that begin from now on.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use super::Shared;
use crate::wait::{PATIENCE, eventually};

/// Only its own client writes to it; others read.
#[derive(Debug, Default)]
pub(super) struct Progress {
    begun: AtomicU64,
    /// The number of the last exchange that was completed.
    completed: AtomicU64,
    failures: AtomicU64,
}

impl Progress {
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// To call when the exchange is counted.
    pub(super) fn complete(&self) {
        self.completed.store(self.begun(), Ordering::SeqCst);
    }

    /// To call when the failure is counted.
    pub(super) fn fail(&self) {
        self.failures.fetch_add(1, Ordering::SeqCst);
    }

    /// No exchange follows.
    pub(super) fn end(&self) {
        self.completed.store(u64::MAX, Ordering::SeqCst);
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    fn failures(&self) -> u64 {
        self.failures.load(Ordering::SeqCst)
    }
}

/// Waits until every client has completed an exchange that began after this call, or has failed
/// since. An exchange that the network drops ends so, too, instead of being counted as neither.
pub(super) fn settle<'a>(
    shared: &Shared,
    clients: impl Iterator<Item = &'a Progress>,
) -> Result<()> {
    let mut left: Vec<_> = clients.map(|it| (it, it.begun(), it.failures())).collect();
    shared.hurry();
    eventually(PATIENCE, || {
        left.retain(|(client, begun, failures)| {
            client.completed.load(Ordering::SeqCst) <= *begun && client.failures() == *failures
        });
        ensure!(left.is_empty(), "{} clients have neither an answer nor an end", left.len());
        Ok(())
    })
    .map(drop)
}
