//! Live migrations of eight nodes, each with something that gets in its way: what they cost.

mod case;
mod cases;
mod cost;
mod meanwhile;
mod order;
mod share;

use anyhow::{Context, Result};
use tweed_lab::Binaries;

use self::case::{Case, Kind};
use self::cost::Cost;
use super::goal::Goal;
use super::sheet::{Sheet, thousands, time};

pub(super) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "case",
        "stage",
        "sent",
        "lost",
        "of these, by the reboot",
        "longest outage of a pair",
        "TCP broken",
        "HTTP failed",
        "took",
    ];
    sheet.table("Migration", &head)?;
    let mut results = Vec::new();
    for _ in 0..rounds {
        for case in cases::all() {
            let costs = case.run(binaries).with_context(|| case.name)?;
            show(&case, &costs, sheet)?;
            results.push((case.kind, costs));
        }
    }
    sheet.goals(&goals(&results))
}

fn show(case: &Case, costs: &[Cost], sheet: &mut Sheet) -> Result<()> {
    for (stage, cost) in case.stages.iter().zip(costs) {
        let Cost { count, by_reboot, outage, tally, .. } = cost;
        let (sent, asked) = (thousands(count.sent), thousands(tally.pages + tally.failed));
        let failed = format!("{} of {asked}", tally.failed);
        let (outage, lost) = (time(*outage), thousands(count.lost));
        sheet.row(&[
            &case.name,
            &stage.name,
            &sent,
            &lost,
            by_reboot,
            &outage,
            &tally.broken,
            &failed,
            &cost.told(),
        ])?;
    }
    let overruns: u64 = costs.iter().map(|cost| cost.overruns).max().unwrap_or_default();
    match overruns {
        0 => Ok(()),
        some => sheet.row(&[&case.name, &"(dropped by full queues of the machine)", &"", &some]),
    }
}

/// A flip is what everything but a broken network and flannel's own way is held to.
fn goals(results: &[(Kind, Vec<Cost>)]) -> Vec<Goal> {
    let costs = |kind| results.iter().filter(move |it| it.0 == kind).flat_map(|it| &it.1);
    let sum = |number: fn(&Cost) -> u64| costs(Kind::Flips).map(number).map(count).sum();
    let cut = costs(Kind::CutOff).map(|cost| cost.outage.as_secs_f64()).fold(f64::NAN, f64::max);
    vec![
        Goal::at_most("lost by flips", sum(|it| it.count.lost - it.by_reboot), 0.0, "packets"),
        Goal::at_most("broken by flips", sum(|it| it.tally.broken), 0.0, "TCP streams"),
        Goal::at_most("failed by flips", sum(|it| it.tally.failed), 0.0, "HTTP requests"),
        Goal::at_most("with a wrong path at their end", sum(Cost::wrong), 0.0, "stages"),
        Goal::at_most("longest outage of a pair whose direct path dies", cut, 2.0, "s"),
    ]
}

fn count(number: u64) -> f64 {
    std::time::Duration::from_secs(number).as_secs_f64()
}
