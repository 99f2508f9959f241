//! Which way of replacing a route loses no packet: a stream through a node whose route is flipped.

mod case;
mod shell;
mod stage;

use anyhow::{Context, Result};
use tweed_lab::Count;

use crate::report::sheet::Sheet;
use case::Case;
use stage::Stage;

/// A thousand flips of each kind and family in each round.
pub(crate) fn run(rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let stage = Stage::build()?;
    let head = ["family", "what is replaced, 1,000 times", "sent", "lost, run by run"];
    sheet.table("Replacing a route", &head)?;
    for paths in &stage.paths {
        let cases = case::all(paths);
        let mut counts = vec![Vec::new(); cases.len()];
        for _ in 0..rounds {
            for (case, counts) in cases.iter().zip(&mut counts) {
                counts.push(stage.measure(case, paths).with_context(|| case.name)?);
            }
        }
        cases.iter().zip(&counts).try_for_each(|(case, counts)| show(case, counts, sheet))?;
    }
    Ok(())
}

fn show(Case { family, name, .. }: &Case, counts: &[Count], sheet: &mut Sheet) -> Result<()> {
    let sent: u64 = counts.iter().map(|count| count.sent).sum();
    let lost: Vec<_> = counts.iter().map(|count| count.lost.to_string()).collect();
    sheet.row(&[family, name, &sent, &lost.join(" ")])
}
