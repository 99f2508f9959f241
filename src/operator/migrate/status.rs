//! `tweedctl migrate status`: the progress of a migration, and the state of the cluster.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::cluster::{ClusterView, sentence};
use super::outcome::{ClusterProgress, pods_of_other_mtu};
use super::reachability::{Backends, Reach, Reachability, Reaches};
use super::state::{Note, Reached};
use crate::model::config::BackendType;
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::report::{NodeReport, Quality};
use crate::operator::layout::{TextTable, or_dash, wrap};
use crate::operator::{Answer, ExitStatus};

#[derive(Debug, Serialize)]
pub(in crate::operator) struct MigrationStatus {
    #[serde(flatten)]
    progress: ClusterProgress,
    paused: Option<Note>,
    stages: Vec<Reached>,
    lags: Vec<String>,
    troubles: Vec<String>,
    /// The nodes that are degraded, stale or not ready, as `tweedctl nodes` lists them.
    failing_nodes: Vec<String>,
    silent: Vec<String>,
    /// Those with an MTU other than that of new pods, by node.
    pods: Vec<String>,
    direct: usize,
    tunnel: usize,
    skipped: usize,
    rejected: usize,
    /// None if the nodes do not probe.
    quality: Option<Quality>,
    /// Empty in a large cluster.
    matrix: Vec<MatrixRow>,
    #[serde(skip)]
    now: Timestamp,
}

/// The path of one node to each node, itself included: `=` direct, `o` by tunnel, `x` none.
#[derive(Debug, Serialize)]
struct MatrixRow {
    node: String,
    backend: &'static str,
    paths: String,
}

/// A larger matrix does not fit on a line.
const WIDEST: usize = 32;

/// The maximum number of lines of each kind in the text; the JSON has all.
const SHOWN: usize = 20;

impl MigrationStatus {
    pub(super) fn new(view: &ClusterView, now: Timestamp) -> Self {
        let under_way = view.state.under_way.as_ref();
        let troubles = view.troubles();
        let sum = |count: fn(&NodeReport) -> usize| {
            view.reporting().map(|(_, report)| count(report)).sum()
        };
        Self {
            progress: ClusterProgress::of(view),
            paused: under_way.and_then(|it| it.paused.clone()),
            stages: under_way.map(|it| it.history.clone()).unwrap_or_default(),
            lags: view.lags(),
            troubles: troubles.iter().map(sentence).collect(),
            failing_nodes: view.members.iter().filter_map(|it| it.failure.clone()).collect(),
            silent: view.silent().map(|member| member.name.clone()).collect(),
            pods: pods_of_other_mtu(view).collect(),
            direct: sum(|report| report.peers.direct),
            tunnel: sum(|report| report.peers.tunnel),
            skipped: sum(|report| report.peers.skipped),
            rejected: sum(|report| report.peers.rejected),
            quality: view.quality(),
            matrix: if view.members.len() <= WIDEST { matrix(view) } else { Vec::new() },
            now,
        }
    }

    pub(in crate::operator) const fn is_under_way(&self) -> bool {
        self.progress.from.is_some()
    }
}

fn matrix(view: &ClusterView) -> Vec<MatrixRow> {
    let mut reachability = Reachability::new(view, Backends::AsReported);
    let rows = view.members.iter().enumerate().map(|(from, member)| {
        let reaches = reachability.from(from);
        let paths = (0..view.members.len()).map(|to| match worst(&reaches, to) {
            Some(mark) => mark,
            None if to == from => '.',
            None => 'x',
        });
        let backend = member.backend().map_or("other", BackendType::as_str);
        MatrixRow { node: member.name.clone(), backend, paths: paths.collect() }
    });
    rows.collect()
}

/// The mark of the worst path to a node: the marks sort from best to worst.
fn worst(reaches: &Reaches, to: usize) -> Option<char> {
    let mark = |reach: &Reach| match reach.path {
        Some(Path::Direct) => '=',
        Some(Path::Tunnel) => 'o',
        None => 'x',
    };
    Family::ALL.iter().filter_map(|family| reaches.to(to, *family)).map(mark).max()
}

impl Answer for MigrationStatus {
    fn exit_status(&self) -> ExitStatus {
        let is_fine = self.troubles.is_empty() && self.failing_nodes.is_empty();
        if is_fine { ExitStatus::Done } else { ExitStatus::Degraded }
    }
}

impl fmt::Display for MigrationStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.head() {
            writeln!(f, "{}", wrap(&format!("{name:10}{value}"), 10))?;
        }
        if !self.stages.is_empty() {
            write!(f, "\n{}", self.history())?;
        }
        if !self.matrix.is_empty() {
            let mut table = TextTable::new(&["NODE", "BACKEND", "PATHS"]);
            for MatrixRow { node, backend, paths } in &self.matrix {
                table.row(&[node, backend, paths], None);
            }
            writeln!(f, "\n{table}= direct  o by tunnel  x no path, in the order of the rows")?;
        }
        Ok(())
    }
}

impl MigrationStatus {
    fn head(&self) -> Vec<(&'static str, String)> {
        let Self { progress, direct, tunnel, skipped, rejected, .. } = self;
        let pairs =
            format!("{direct} direct, {tunnel} by tunnel, {skipped} skipped, {rejected} rejected");
        let mut head = vec![
            ("migration", progress.to_string()),
            ("progress", progress.bar()),
            ("pairs", pairs),
        ];
        let paused = self.paused.iter().map(|Note { at, by }| format!("by {by} at {at}"));
        head.extend(paused.map(|it| ("paused", it)));
        let silent: Vec<_> =
            self.silent.iter().map(|node| format!("{node} sends no report")).collect();
        for (name, lines) in [
            ("waiting", &self.lags),
            ("problem", &self.troubles),
            ("failing", &self.failing_nodes),
            ("unknown", &silent),
            ("pods", &self.pods),
        ] {
            head.extend(lines.iter().take(SHOWN).map(|line| (name, line.clone())));
        }
        head
    }

    /// Each stage with its loss and latency; the first row is before all stages.
    fn history(&self) -> TextTable {
        let mut table = TextTable::new(&["STAGE", "SINCE", "FOR", "LOSS", "LATENCY", "BY"]);
        if let Some(it) = self.stages.first().and_then(|first| first.before) {
            table.row(&[&"before", &"-", &"-", &it.loss(), &it.latency(), &"-"], None);
        }
        let later = self.stages.iter().skip(1).map(|reached| (reached.note.at, reached.before));
        let ends = later.chain([(self.now, self.quality)]);
        for (reached, (end, quality)) in self.stages.iter().zip(ends) {
            let Note { at, by } = &reached.note;
            let [loss, latency] =
                [Quality::loss, Quality::latency].map(|of| or_dash(quality.map(of)));
            let cells: [&dyn fmt::Display; 6] =
                [&stage(reached), at, &elapsed(*at, end), &loss, &latency, by];
            table.row(&cells, None);
        }
        table
    }
}

fn stage(reached: &Reached) -> String {
    match (reached.percent, reached.nodes) {
        (0, 0) => "no node".to_owned(),
        (0, nodes) => format!("{nodes} named"),
        (percent, 0) => format!("Percent {percent}"),
        (percent, nodes) => format!("Percent {percent} and {nodes} named"),
    }
}

/// `2h 3m`, `4m 5s`, `6s`; nothing if `end` is the earlier one, because clocks differ.
fn elapsed(start: Timestamp, end: Timestamp) -> String {
    match end.duration_since(start).as_secs().max(0) {
        seconds if seconds >= 3600 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        seconds if seconds >= 60 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds => format!("{seconds}s"),
    }
}
