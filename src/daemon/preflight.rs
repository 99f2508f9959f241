//! Checks the host when the daemon starts, and regularly.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::Shared;
use crate::control::Query;
use crate::kernel::host::{self, Places};
use crate::kernel::{Kernel, NetlinkKernel};
use crate::plan::preflight::{self, Finding, Level, Needs};
use crate::random::random;

/// The interval, roughly, at which the host is checked again.
const AGAIN: Duration = Duration::from_secs(600);

/// # Errors
/// Another daemon manages the routes of this host.
pub(super) fn refuse_other_daemons() -> Result<()> {
    match preflight::refusal(&host::other_daemons(&Places::default())) {
        Some(finding) => anyhow::bail!("{finding}"),
        None => Ok(()),
    }
}

/// Logs host settings that drop or block traffic, once the subnets are usable, and those that are
/// new at later checks. Never ends.
pub(super) async fn check_host(shared: Shared) -> Result<()> {
    let mut progress = shared.progress.clone();
    progress.wait_for(|progress| progress.usable.is_some()).await.context("the loop has ended")?;
    drop(progress);
    let mut known = Vec::new();
    loop {
        match examine(&shared).await {
            Ok(findings) => {
                findings.iter().filter(|finding| !known.contains(*finding)).for_each(log);
                shared.findings.send_replace(Some(by_level(&findings)));
                known = findings;
            }
            Err(error) => tracing::warn!(error = format!("{error:#}"), "checking the host failed"),
        }
        sleep(AGAIN.mul_f64(0.5 + random::<f64>())).await;
    }
}

fn by_level(findings: &[Finding]) -> BTreeMap<Level, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.level).or_default() += 1;
    }
    counts
}

async fn examine(shared: &Shared) -> Result<Vec<Finding>> {
    let inputs = shared.wait_for(Query::Checkpoint).await?;
    let Some(inputs) = inputs else { return Ok(Vec::new()) };
    let needs = Needs::of(&inputs);
    let facts = NetlinkKernel::open()?.facts(None).await.context("reading the links")?;
    // Reading about many other processes may take long.
    let look = move || {
        let found = host::gather(&needs, facts.interfaces, &Places::default());
        preflight::findings(&needs, &found)
    };
    spawn_blocking(look).await.context("checking the host")
}

fn log(finding: &Finding) {
    let Finding { id, level, what, why, fix, .. } = finding;
    match level {
        Level::Fatal | Level::Warning => tracing::warn!(id, %why, %fix, "{what}"),
        Level::Unknown | Level::Note => tracing::info!(id, %why, %fix, "{what}"),
    }
}
