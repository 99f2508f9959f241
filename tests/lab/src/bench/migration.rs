//! Migrations of four nodes, one by one, with a stream between every two pods.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Count, Files, Path, Report};

use super::sheet::{Sheet, time};
use super::{PAUSE, RATE};
use crate::cluster::{BEHIND_ROUTER, Cluster};

/// A migration, and what it has cost so far.
struct Case {
    name: &'static str,
    backend: &'static str,
    between: Between,
    nodes: Vec<Cost>,
    total: Count,
    longest_outage: Duration,
    wrong_paths: usize,
}

/// What the flip of one node has cost.
#[derive(Clone, Copy, Default)]
struct Cost {
    sent: u64,
    /// From the stop of its daemon until the next one was ready.
    lost_meanwhile: u64,
    /// Of these, between other nodes.
    lost_elsewhere: u64,
    lost_later: u64,
}

/// What happens to a node between the stop and the start of its daemon.
#[derive(Clone, Copy)]
enum Between {
    Nothing,
    /// What a reboot takes away is gone.
    Wipe,
}

pub(super) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut cluster = Cluster::build(binaries.clone())?;
    cluster.configure(&config("vxlan"))?;
    cluster.start_all()?;
    let mut cases = cases(cluster.size());
    for _ in 0..rounds {
        cases.iter_mut().try_for_each(|case| case.migrate(&mut cluster))?;
    }
    show_flips(&cases, &cluster, sheet)?;
    show_totals(&cases, rounds, sheet)
}

fn config(backend: &str) -> String {
    format!(r#"{{"Network":"10.244.0.0/16","Mixed":true,"Backend":{{"Type":"{backend}"}}}}"#)
}

/// Each ends where the next begins.
fn cases(nodes: usize) -> Vec<Case> {
    let case = |name, backend, between| Case {
        name,
        backend,
        between,
        nodes: vec![Cost::default(); nodes],
        total: Count::default(),
        longest_outage: Duration::ZERO,
        wrong_paths: 0,
    };
    vec![
        case("vxlan → host-gw", "host-gw", Between::Nothing),
        case("host-gw → vxlan", "vxlan", Between::Nothing),
        case("vxlan → host-gw, each node wiped", "host-gw", Between::Wipe),
        case("host-gw → vxlan, each node wiped", "vxlan", Between::Wipe),
    ]
}

impl Case {
    fn migrate(&mut self, cluster: &mut Cluster) -> Result<()> {
        let probe = cluster.probe(RATE)?;
        probe.run_for(PAUSE);
        cluster.configure(&config(self.backend))?;
        for index in 0..cluster.size() {
            probe.mark(cluster.node(index)?.name());
            cluster.daemon(index)?.stop()?;
            match self.between {
                Between::Nothing => {}
                Between::Wipe => cluster.node(index)?.wipe(Files::Kept)?,
            }
            cluster.daemon(index)?.start()?;
            cluster.daemon(index)?.wait_ready()?;
            probe.mark(&later(cluster.node(index)?.name()));
            probe.run_for(PAUSE);
        }
        let right = cluster.wait_for(|from, to| self.path_at_the_end(from, to));
        probe.run_for(PAUSE);
        self.wrong_paths += usize::from(right.is_err());
        self.add(&probe.finish()?, cluster)
    }

    fn path_at_the_end(&self, from: &str, to: &str) -> Path {
        let is_far = [from, to].contains(&BEHIND_ROUTER);
        if self.backend == "vxlan" || is_far { Path::Tunnel } else { Path::Direct }
    }

    fn add(&mut self, report: &Report, cluster: &Cluster) -> Result<()> {
        self.total += report.total();
        self.longest_outage = self.longest_outage.max(report.longest_outage());
        for (index, cost) in self.nodes.iter_mut().enumerate() {
            let name = cluster.node(index)?.name();
            let (meanwhile, later) = (count(report, name)?, count(report, &later(name))?);
            cost.sent += meanwhile.sent + later.sent;
            cost.lost_meanwhile += meanwhile.lost;
            cost.lost_elsewhere += lost_elsewhere(report, name);
            cost.lost_later += later.lost;
        }
        Ok(())
    }
}

/// The stage after the flip of a node.
fn later(node: &str) -> String {
    format!("{node} is back")
}

fn count(report: &Report, stage: &str) -> Result<Count> {
    Ok(report.stage(stage).with_context(|| format!("no stage {stage}"))?.count)
}

fn lost_elsewhere(report: &Report, node: &str) -> u64 {
    let others = report.pairs.iter().filter(|pair| pair.from != node && pair.to != node);
    let in_stage = others.flat_map(|pair| report.stages.iter().zip(&pair.stages));
    in_stage.filter(|(stage, _)| stage.name == node).map(|(_, count)| count.lost).sum()
}

fn show_flips(cases: &[Case], cluster: &Cluster, sheet: &mut Sheet) -> Result<()> {
    let (meanwhile, elsewhere) = ("lost from stop to ready", "of these, between other nodes");
    let head = ["migration", "flip of", "sent", meanwhile, elsewhere, "lost later"];
    sheet.table("Each flip", &head)?;
    for case in cases {
        for (index, cost) in case.nodes.iter().enumerate() {
            let node = cluster.describe(index)?;
            let Cost { sent, lost_meanwhile, lost_elsewhere, lost_later } = cost;
            let cells: [&dyn Display; 6] =
                [&case.name, &node, sent, lost_meanwhile, lost_elsewhere, lost_later];
            sheet.row(&cells)?;
        }
    }
    Ok(())
}

fn show_totals(cases: &[Case], rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head =
        ["migration", "times", "sent", "lost", "longest outage of a pair", "paths at the end"];
    sheet.table("Each migration", &head)?;
    let mut all = Count::default();
    for case in cases {
        let paths = match case.wrong_paths {
            0 => "right".to_owned(),
            wrong => format!("wrong {wrong} times"),
        };
        all += case.total;
        let (count, outage) = (case.total, time(case.longest_outage));
        sheet.row(&[&case.name, &rounds, &count.sent, &count.lost, &outage, &paths])?;
    }
    sheet.row(&[&"all", &(rounds * cases.len()), &all.sent, &all.lost, &"", &""])
}
