//! `tweedctl migrate plan`: what a migration would change, and what prevents it.

use std::fmt;

use serde::Serialize;

use super::cluster::ClusterView;
use super::decision::{obstacles, stages};
use super::reachability::{Backends, Pair, pairs};
use super::state::Stage;
use crate::model::config::BackendType;
use crate::model::path::Path;
use crate::model::report::NodeReport;
use crate::operator::layout::{Table, counted, listed, or_dash, wrap};
use crate::operator::{Answer, ExitStatus};

#[derive(Debug, Serialize)]
pub(super) struct MigrationPlan<'a> {
    to: &'static str,
    mixed: bool,
    nodes: usize,
    /// Nodes without a report, which keep their state.
    silent: Vec<&'a str>,
    now: Counts,
    then: Counts,
    stages: Vec<Share>,
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
    obstacles: Vec<String>,
    pairs: Vec<Pair<'a>>,
    /// Whether the text shows all pairs, as the JSON does; otherwise those without the preferred
    /// path of the backend.
    #[serde(skip)]
    pub(super) shows_all: bool,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Counts {
    direct: usize,
    tunnel: usize,
    none: usize,
}

/// How many nodes follow at a percentage.
#[derive(Clone, Copy, Debug, Serialize)]
struct Share {
    percent: u8,
    nodes: usize,
}

impl<'a> MigrationPlan<'a> {
    pub(super) fn new(view: &'a ClusterView, to: BackendType) -> Self {
        let pairs: Vec<Pair<'_>> = pairs(view, Backends::All { kind: to, mixed: true }).collect();
        let reports = || view.reporting().map(|(_, report)| report);
        let nodes_where = |is: fn(&NodeReport) -> bool| -> Vec<&'a str> {
            let matching = view.reporting().filter(|(_, report)| is(report));
            matching.map(|(member, _)| member.name.as_str()).collect()
        };
        let share =
            |stage: Stage| Share { percent: stage.percent, nodes: view.following_at(&stage) };
        Self {
            to: to.as_str(),
            mixed: view.state.config.mixed,
            nodes: view.members.len(),
            silent: view.silent().map(|member| member.name.as_str()).collect(),
            now: Counts::of(&pairs, |pair| pair.now),
            then: Counts::of(&pairs, |pair| pair.then),
            stages: stages(view).map(share).collect(),
            changes_per_node: changes_per_node(&pairs),
            pod_mtu: range(reports().filter_map(|report| report.pod_mtu)),
            underlay_mtu: range(reports().map(|report| report.node.mtu)),
            strict: nodes_where(|report| !report.mixed && !report.strict_filters.is_empty()),
            breaking: nodes_where(|report| !report.keeps_connections),
            obstacles: obstacles(view, to, &pairs).into_iter().map(|it| it.text).collect(),
            pairs,
            shows_all: false,
        }
    }
}

fn changes_per_node(pairs: &[Pair<'_>]) -> usize {
    let by_node = pairs.chunk_by(|one, other| one.from == other.from);
    let changes = |of: &[Pair<'_>]| of.iter().filter(|pair| pair.now != pair.then).count();
    by_node.map(changes).max().unwrap_or_default()
}

fn range(values: impl Iterator<Item = u32>) -> Option<(u32, u32)> {
    let ranges = values.map(|value| (value, value));
    ranges.reduce(|(least, most), (value, _)| (least.min(value), most.max(value)))
}

impl Counts {
    fn of(pairs: &[Pair<'_>], path: impl Fn(&Pair<'_>) -> Option<Path>) -> Self {
        let count = |wanted| pairs.iter().filter(|pair| path(pair) == wanted).count();
        let (direct, tunnel) = (count(Some(Path::Direct)), count(Some(Path::Tunnel)));
        Self { direct, tunnel, none: pairs.len() - direct - tunnel }
    }
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
        let limit = if self.shows_all { usize::MAX } else { SHOWN };
        let is_shown = |pair: &&Pair<'_>| self.shows_all || pair.is_special;
        let count = self.pairs.iter().filter(is_shown).count();
        if count > 0 {
            write!(f, "\n{}", table(self.pairs.iter().filter(is_shown).take(limit)))?;
        }
        if !self.obstacles.is_empty() {
            writeln!(f, "\nblocked by:")?;
        }
        for obstacle in self.obstacles.iter().take(limit) {
            writeln!(f, "{}", wrap(&format!("  {obstacle}"), 4))?;
        }
        match count.max(self.obstacles.len()).saturating_sub(limit) {
            0 => Ok(()),
            hidden => writeln!(f, "and {hidden} more: --all or -o json"),
        }
    }
}

/// The number of pairs and of obstacles in the text, unless `--all` is given.
const SHOWN: usize = 20;

/// The number of nodes that a sentence names.
const FEW: usize = 5;

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
            ("reports", format!("from {} of {nodes}", self.nodes - self.silent.len())),
            ("now", self.now.to_string()),
            ("then", self.then.to_string()),
            ("stages", stages.join(", ")),
            ("effort", effort),
            ("MTU", self.mtus()),
        ];
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

fn table<'a>(pairs: impl Iterator<Item = &'a Pair<'a>>) -> Table {
    let mut table = Table::new(&["FROM", "TO", "NOW", "THEN"]);
    for Pair { from, to, now, then, reason, .. } in pairs {
        let [now, then] = [now, then].map(|path| or_dash(path.map(Path::as_str)));
        table.row(&[from, to, &now, &then], reason.clone());
    }
    table
}

/// The first few of these nodes.
fn abridged(nodes: &[&str]) -> String {
    let (shown, hidden) = nodes.split_at_checked(FEW).unwrap_or((nodes, &[]));
    match hidden.len() {
        0 => listed(shown, ""),
        more => format!("{} and {}", listed(shown, ""), counted(more, "more node")),
    }
}

fn bytes(range: Option<(u32, u32)>) -> String {
    match range {
        None => "unknown".to_owned(),
        Some((least, most)) if least == most => least.to_string(),
        Some((least, most)) => format!("{least} to {most}"),
    }
}
