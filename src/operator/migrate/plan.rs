//! `tweedctl migrate plan`: what a migration would change, and what prevents it.

use std::fmt;

use serde::Serialize;

use super::cluster::ClusterView;
use super::decision::stages;
use super::obstacle::Obstacles;
use super::outcome::{abridged, tied};
use super::pairs::{self, Counts, Pair, PairTotals};
use super::reachability::Backends;
use crate::model::config::BackendType;
use crate::model::path::Path;
use crate::model::report::NodeReport;
use crate::operator::layout::{TextTable, counted, listed, or_dash, wrap};
use crate::operator::{Answer, ExitStatus};

#[derive(Debug, Serialize)]
pub(super) struct MigrationPlan<'a> {
    to: &'static str,
    mixed: bool,
    nodes: usize,
    /// Those whose reports are not those of dead nodes.
    reporting: usize,
    /// Nodes without a report, which keep their state.
    silent: Vec<&'a str>,
    now: Counts,
    then: Counts,
    stages: Vec<Share>,
    /// The nodes that change together at the end of a stage, because their hashes are equal.
    ties: Vec<Vec<&'a str>>,
    /// The most routes that one node replaces.
    changes_per_node: usize,
    /// Smallest and largest MTU of pods, in bytes; none if no report has one.
    pod_mtu: Option<(u32, u32)>,
    /// Smallest and largest MTU of the nodes' interfaces, in bytes.
    underlay_mtu: Option<(u32, u32)>,
    /// Nodes whose reverse path filter is strict until Mixed loosens it.
    strict: Vec<&'a str>,
    /// Nodes that break some of the connections that they translate.
    breaking: Vec<&'a str>,
    /// The first ones.
    obstacles: Vec<String>,
    obstacles_total: usize,
    /// All pairs, or the first ones without the preferred path of the backend.
    pairs: Vec<Pair<'a>>,
    /// The number of pairs without the preferred path.
    special: usize,
    #[serde(skip)]
    shown: Shown,
}

/// The pairs of a plan that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    All,
    /// The first ones without the preferred path of the backend.
    Special,
}

/// How many nodes follow at a percentage.
#[derive(Clone, Copy, Debug, Serialize)]
struct Share {
    percent: u8,
    nodes: usize,
}

impl<'a> MigrationPlan<'a> {
    pub(super) fn new(view: &'a ClusterView, to: BackendType, shown: Shown) -> Self {
        let mut obstacles = Obstacles::of_nodes(view);
        obstacles.add_failing(view, to, &(0..view.members.len()).collect());
        let survey = Survey::of(view, to, shown, &mut obstacles);
        let reports = || view.reporting().map(|(_, report)| report);
        let nodes_where = |is: fn(&NodeReport) -> bool| -> Vec<&'a str> {
            let matching = view.reporting().filter(|(_, report)| is(report));
            matching.map(|(member, _)| member.name.as_str()).collect()
        };
        let share = |(percent, stage)| Share { percent, nodes: view.following_at(&stage) };
        Self {
            to: to.as_str(),
            mixed: view.state.config.mixed,
            nodes: view.members.len(),
            reporting: view.reporting().count(),
            silent: view.silent().map(|member| member.name.as_str()).collect(),
            now: survey.now,
            then: survey.then,
            stages: stages(view).map(share).collect(),
            ties: stages(view).filter_map(|(_, stage)| view.tie(&stage)).collect(),
            changes_per_node: survey.changes_per_node,
            pod_mtu: range(reports().filter_map(|report| report.pod_mtu)),
            underlay_mtu: range(reports().map(|report| report.node.mtu)),
            strict: nodes_where(|report| !report.mixed && !report.strict_filters.is_empty()),
            breaking: nodes_where(|report| !report.keeps_connections),
            obstacles_total: obstacles.total(),
            obstacles: obstacles.into_texts(),
            pairs: survey.pairs,
            special: survey.special,
            shown,
        }
    }
}

/// The figures of all pairs, and those that are shown.
#[derive(Default)]
struct Survey<'a> {
    now: Counts,
    then: Counts,
    pairs: Vec<Pair<'a>>,
    special: usize,
    changes_per_node: usize,
}

impl<'a> Survey<'a> {
    /// Adds the pairs that would lose their path to `obstacles`.
    fn of(view: &'a ClusterView, to: BackendType, shown: Shown, obstacles: &mut Obstacles) -> Self {
        let mut survey = Self::default();
        for from in pairs::by_node(view, Backends::All { kind: to, mixed: true }) {
            let PairTotals { now, then, changed, special, cut } = from.figures;
            survey.now.add(now);
            survey.then.add(then);
            survey.special += special;
            survey.changes_per_node = survey.changes_per_node.max(changed);
            if cut > 0 {
                from.iter().for_each(|pair| obstacles.add_cut(&pair));
            }
            match shown {
                Shown::All => survey.pairs.extend(from.iter()),
                Shown::Special if special > 0 => {
                    let more = SHOWN.saturating_sub(survey.pairs.len());
                    survey.pairs.extend(from.iter().filter(|pair| pair.is_special).take(more));
                }
                Shown::Special => {}
            }
        }
        survey
    }
}

fn range(values: impl Iterator<Item = u32>) -> Option<(u32, u32)> {
    let ranges = values.map(|value| (value, value));
    ranges.reduce(|(least, most), (value, _)| (least.min(value), most.max(value)))
}

impl Answer for MigrationPlan<'_> {
    fn exit_status(&self) -> ExitStatus {
        if self.obstacles.is_empty() { ExitStatus::Done } else { ExitStatus::Impossible }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} direct, {} by tunnel, {} without a path", self.direct, self.tunnel, self.none)
    }
}

impl fmt::Display for MigrationPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.head() {
            writeln!(f, "{}", wrap(&format!("{name:12}{value}"), 12))?;
        }
        let (limit, pairs) = match self.shown {
            Shown::All => (usize::MAX, self.pairs.len()),
            Shown::Special => (SHOWN, self.special),
        };
        if !self.pairs.is_empty() {
            write!(f, "\n{}", table(self.pairs.iter()))?;
        }
        if !self.obstacles.is_empty() {
            writeln!(f, "\nblocked by:")?;
        }
        for obstacle in self.obstacles.iter().take(limit) {
            writeln!(f, "{}", wrap(&format!("  {obstacle}"), 4))?;
        }
        let obstacles = self.obstacles_total - self.obstacles.len().min(limit);
        match obstacles.max(pairs - self.pairs.len()) {
            0 => Ok(()),
            hidden => writeln!(f, "and {hidden} more: --all"),
        }
    }
}

/// The number of pairs and of obstacles in the text, unless `--all` is given.
const SHOWN: usize = 20;

impl MigrationPlan<'_> {
    fn head(&self) -> Vec<(&'static str, String)> {
        let mixed = if self.mixed { "on" } else { "off; start turns it on first" };
        let nodes = counted(self.nodes, "node");
        let stage = |it: &Share| format!("{} at {} %", counted(it.nodes, "node"), it.percent);
        let stages: Vec<String> = self.stages.iter().map(stage).collect();
        let effort = format!(
            "at most {} per node, each replaced in place; a stage takes seconds, plus the time of --hold",
            counted(self.changes_per_node, "route")
        );
        let mut head = vec![
            ("to", format!("{}, of {nodes}", self.to)),
            ("Mixed", mixed.to_owned()),
            ("reports", format!("from {} of {nodes}", self.reporting)),
            ("now", self.now.to_string()),
            ("then", self.then.to_string()),
            ("stages", stages.join(", ")),
            ("effort", effort),
            ("MTU", self.mtus()),
        ];
        head.extend(self.ties.iter().map(|nodes| ("hashes", tied(nodes))));
        if !self.strict.is_empty() {
            let nodes = listed(&self.strict, "");
            head.push(("filters", format!("strict until Mixed is on: {nodes}")));
        }
        if !self.breaking.is_empty() {
            let nodes = abridged(&self.breaking);
            let breaking = format!(
                "each change of path may end masqueraded connections on {nodes}: tweedd keeps \
                 them with --ip-masq, by nftables or iptables"
            );
            head.push(("NAT", breaking));
        }
        head
    }

    /// A pod keeps the MTU that it was created with.
    fn mtus(&self) -> String {
        let mtus = self.pod_mtu.zip(self.underlay_mtu);
        let too_large = mtus.is_some_and(|((_, largest), (least, _))| largest >= least)
            && self.now.tunnel < self.then.tunnel;
        let advice =
            if too_large { ": recreate the pods, their packets are too large" } else { "" };
        let (pods, below) = (bytes(self.pod_mtu), bytes(self.underlay_mtu));
        format!("{pods} for pods, {below} for interfaces{advice}")
    }
}

fn table<'a>(pairs: impl Iterator<Item = &'a Pair<'a>>) -> TextTable {
    let mut table = TextTable::new(&["FROM", "TO", "NOW", "THEN"]);
    for Pair { from, to, now, then, reason, .. } in pairs {
        let [now, then] = [now, then].map(|path| or_dash(path.map(Path::as_str)));
        table.row(&[from, to, &now, &then], reason.as_deref().map(str::to_owned));
    }
    table
}

fn bytes(range: Option<(u32, u32)>) -> String {
    match range {
        None => "unknown".to_owned(),
        Some((least, most)) if least == most => least.to_string(),
        Some((least, most)) => format!("{least} to {most}"),
    }
}
