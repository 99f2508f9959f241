//! What the first ADD takes that finds no index of the store, or one that does not count any more.

use std::time::Duration;

use anyhow::Result;

use super::call::{Container, Verb};
use super::contest::Contest;
use super::host::Host;
use super::store::Store;
use crate::bench::sample::Sample;
use crate::bench::sheet::{Sheet, precise, spread, thousands};

pub(super) fn run(
    contests: &[Contest<'_>],
    container: &Container,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    let head = [
        "reservations",
        "index counts",
        "another program was there",
        "no index",
        "`bridge` and `host-local`, always",
    ];
    sheet.table("An ADD that rebuilds the index", &head)?;
    for contest in contests {
        let host = &contest.ours.host;
        sheet.row(&[
            &thousands(contest.reservations),
            &precise(contest.ours.alone.add.median()),
            &spread(&measure(host, container, rounds, Store::disturb)?),
            &spread(&measure(host, container, rounds, Store::lose_index)?),
            &precise(contest.theirs.alone.add.median()),
        ])?;
    }
    Ok(())
}

/// `spoil` comes before each ADD, and is not timed.
fn measure(
    host: &Host<'_>,
    container: &Container,
    rounds: usize,
    spoil: fn(&Store) -> Result<()>,
) -> Result<Sample<Duration>> {
    let mut sample = Sample::default();
    for _ in 0..rounds {
        spoil(&host.store)?;
        sample.add(host.time(Verb::Add, container)?);
        host.time(Verb::Del, container)?;
    }
    Ok(sample)
}
