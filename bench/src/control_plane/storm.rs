//! The cost of thousands of nodes that start at once, for the nodes and for etcd.

use anyhow::Result;
use tweed_lab::storm::{self, Phase, Report, Settings};

use crate::report::goal::Goal;
use crate::report::sheet::{Sheet, thousands};

const NODES: [usize; 2] = [1000, 5000];

pub(crate) fn run(sheet: &mut Sheet) -> Result<()> {
    sheet.heading("A cluster that starts at once")?;
    for nodes in NODES {
        let report = storm::run(&Settings { nodes, ..Settings::default() })?;
        sheet.text(report.to_string().trim_end())?;
        sheet.goals(&goals(&report))?;
    }
    Ok(())
}

fn goals(report: &Report) -> Vec<Goal> {
    let nodes = thousands(report.nodes);
    let phase = |name: &str| report.phases.iter().find(|phase| phase.name == name);
    let processor = |phase: &Phase, most| {
        let what = format!("{nodes} nodes, {}, CPU of etcd", phase.name);
        Goal::at_most(what, phase.cost.cpu.as_secs_f64(), most, "s")
    };
    let conflicts = |phase: &Phase| {
        let conflicts = u32::try_from(phase.conflicts()).unwrap_or(u32::MAX);
        let what = format!("{nodes} nodes, {}, subnets fought over", phase.name);
        Goal::at_most(what, conflicts.into(), 0.0, "lost transactions")
    };
    let (acquire, start) = (phase("leases only"), phase("cold start"));
    let goals = [
        acquire.map(conflicts),
        acquire.map(|phase| processor(phase, 2.5)),
        start.map(|phase| processor(phase, 60.0)),
    ];
    goals.into_iter().flatten().collect()
}
