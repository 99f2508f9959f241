//! Checks the host when the daemon starts, and regularly.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
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
    let mut known = BTreeSet::new();
    loop {
        match examine(&shared).await {
            Ok(findings) => {
                new_ones(&mut known, &findings).for_each(log);
                shared.findings.send_replace(Some(by_level(&findings)));
            }
            Err(error) => tracing::warn!(error = format!("{error:#}"), "checking the host failed"),
        }
        sleep(AGAIN.mul_f64(0.5 + random::<f64>())).await;
    }
}

/// What makes a finding another one than that of the last check; numbers in its text do not.
type Name = (&'static str, String, Level);

fn new_ones<'a>(
    known: &mut BTreeSet<Name>,
    findings: &'a [Finding],
) -> impl Iterator<Item = &'a Finding> {
    let name = |finding: &Finding| (finding.id, finding.place.clone(), finding.level);
    let former = mem::replace(known, findings.iter().map(name).collect());
    findings.iter().filter(move |finding| !former.contains(&name(finding)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_whose_numbers_change_is_not_new() {
        let finding = |id, what: &str, place: &str| Finding {
            id,
            level: Level::Warning,
            what: what.to_owned(),
            place: place.to_owned(),
            why: String::new(),
            fix: String::new(),
            drop_in: None,
        };
        let mut known = BTreeSet::new();
        let mut logged = |findings: &[Finding]| {
            new_ones(&mut known, findings).map(|it| it.what.clone()).collect::<Vec<_>>()
        };
        assert_eq!(logged(&[finding("neighbours", "90 peers", "gc_thresh")]), ["90 peers"]);
        assert!(logged(&[finding("neighbours", "91 peers", "gc_thresh")]).is_empty());
        let both = [finding("neighbours", "92 peers", "gc_thresh"), finding("mtu", "1400", "eth0")];
        assert_eq!(logged(&both), ["1400"]);
        assert!(logged(&[]).is_empty());
        assert_eq!(logged(&both[..1]), ["92 peers"], "it was away");
        let worse = Finding { level: Level::Fatal, ..both[0].clone() };
        assert_eq!(logged(&[worse]), ["92 peers"]);
    }
}
