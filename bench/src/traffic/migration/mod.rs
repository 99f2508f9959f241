//! The cost of live migrations of eight nodes, each with a fault.

mod case;
mod cases;
mod cost;
mod meanwhile;
mod order;
mod rules;
mod share;

use std::fmt::Display;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Kind};

use self::case::{Case, HeldTo};
use self::cost::Cost;
use crate::report::goal::Goal;
use crate::report::sheet::Sheet;

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "case",
        "stage",
        "sent",
        "lost",
        "of these, by the reboot",
        "longest outage of a pair",
        "TCP broken",
        "HTTP failed",
    ];
    let kinds = Kind::ALL.map(Kind::as_str);
    let head = head.into_iter().chain(kinds).chain(["worst exchange", "took"]);
    sheet.table("Migration", &head.collect::<Vec<_>>())?;
    let mut results = Vec::new();
    for _ in 0..rounds {
        for case in cases::all() {
            let costs = case.run(binaries).with_context(|| case.name)?;
            show(&case, &costs, sheet)?;
            results.push((case.held_to, costs));
        }
    }
    rules::show(results.iter().filter(|it| it.0 == HeldTo::Flips).map(|it| &it.1), sheet)?;
    sheet.goals(&goals(&results))
}

fn show(case: &Case, costs: &[Cost], sheet: &mut Sheet) -> Result<()> {
    for (stage, cost) in case.stages.iter().zip(costs) {
        let cells = [case.name.to_owned(), stage.name.to_owned()].into_iter().chain(cost.cells());
        let cells: Vec<_> = cells.collect();
        sheet.row(&cells.iter().map(|cell| cell as &dyn Display).collect::<Vec<_>>())?;
    }
    let overruns: u64 = costs.iter().map(|cost| cost.overruns).max().unwrap_or_default();
    match overruns {
        0 => Ok(()),
        some => sheet.row(&[&case.name, &"(dropped by full queues of the machine)", &"", &some]),
    }
}

/// The goals apply to every flip, except on a broken network and with flannel's own procedure.
fn goals(results: &[(HeldTo, Vec<Cost>)]) -> Vec<Goal> {
    let costs = |kind| results.iter().filter(move |it| it.0 == kind).flat_map(|it| &it.1);
    let sum = |number: fn(&Cost) -> u64| costs(HeldTo::Flips).map(number).map(count).sum();
    let cut = costs(HeldTo::CutOff).map(|cost| cost.outage.as_secs_f64()).fold(f64::NAN, f64::max);
    let reboots = costs(HeldTo::Flips).filter_map(|cost| cost.outage_by_reboot);
    let rebooted = reboots.map(|outage| outage.as_secs_f64()).fold(f64::NAN, f64::max);
    vec![
        Goal::at_most("lost by flips", sum(|it| it.count.lost - it.by_reboot), 0.0, "packets"),
        Goal::at_most("longest outage of a pair by a reboot", rebooted, 1.0, "s"),
        Goal::at_most("broken by flips", sum(|it| it.tally.broken), 0.0, "TCP streams"),
        Goal::at_most("broken by flips", sum(Cost::broken), 0.0, "other connections"),
        Goal::at_most("failed by flips", sum(|it| it.tally.failed), 0.0, "HTTP requests"),
        Goal::at_most("with a wrong path at their end", sum(Cost::wrong), 0.0, "stages"),
        Goal::at_most("longest outage of a pair whose direct path dies", cut, 2.0, "s"),
    ]
}

fn count(number: u64) -> f64 {
    std::time::Duration::from_secs(number).as_secs_f64()
}
