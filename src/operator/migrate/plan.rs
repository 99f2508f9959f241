//! `tweedctl migrate plan`: what a migration would change, and what stands in its way.

use std::fmt;

use serde::Serialize;

use crate::model::config::Kind;
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::operator::layout::{Table, counted, listed, wrap};
use crate::operator::migration::{
    Member, Mixing, Outlook, Picture, Reach, Situation, Stage, obstacles, stages,
};
use crate::operator::{Answer, Verdict};

/// Which pairs the text shows; the JSON has all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    All,
    /// Those that are not the rule: without the path that the backend is for.
    Special,
}

#[derive(Debug, Serialize)]
pub(super) struct Plan {
    to: &'static str,
    mixed: bool,
    nodes: usize,
    /// Nodes that stay as they are: no report comes from them.
    silent: Vec<String>,
    now: Counts,
    then: Counts,
    stages: Vec<Share>,
    /// The most routes that one node replaces.
    changes_per_node: usize,
    /// Smallest and largest that pods have, in bytes; nobody says where none is given.
    pod_mtu: Option<(u32, u32)>,
    /// Of the nodes' interfaces, likewise.
    underlay_mtu: Option<(u32, u32)>,
    /// Nodes whose filter is strict until Mixed loosens it.
    strict: Vec<String>,
    /// Nodes that do not keep every connection that is translated there.
    breaking: Vec<String>,
    obstacles: Vec<String>,
    pairs: Vec<Pair>,
    #[serde(skip)]
    rows: Rows,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

#[derive(Debug, Serialize)]
struct Pair {
    from: String,
    to: String,
    family: Family,
    now: Option<Path>,
    then: Option<Path>,
    reason: Option<String>,
    #[serde(skip)]
    is_special: bool,
}

impl Plan {
    pub(super) fn new(picture: &Picture, to: Kind, rows: Rows) -> Self {
        let pairs = pairs(picture, to);
        let reports = || picture.members.iter().filter_map(|member| member.report.as_ref());
        let strict = |member: &&Member| {
            member.report.as_ref().is_some_and(|it| !it.mixed && !it.strict_filters.is_empty())
        };
        let breaks = |member: &&Member| {
            member.report.as_ref().is_some_and(|report| !report.keeps_connections)
        };
        Self {
            to: to.as_str(),
            mixed: picture.course.config.mixed,
            nodes: picture.members.len(),
            silent: picture.silent().map(Member::name).collect(),
            now: Counts::of(pairs.iter().map(|pair| pair.now)),
            then: Counts::of(pairs.iter().map(|pair| pair.then)),
            stages: stages(picture).iter().map(|stage| Share::of(picture, stage)).collect(),
            changes_per_node: changes_per_node(&pairs),
            pod_mtu: range(reports().filter_map(|report| report.pod_mtu)),
            underlay_mtu: range(reports().map(|report| report.node.mtu)),
            strict: picture.members.iter().filter(strict).map(Member::name).collect(),
            breaking: picture.members.iter().filter(breaks).map(Member::name).collect(),
            obstacles: obstacles(picture, to).iter().map(ToString::to_string).collect(),
            pairs,
            rows,
        }
    }
}

fn pairs(picture: &Picture, to: Kind) -> Vec<Pair> {
    let then = Situation::Once { kind: to, mixing: Mixing::On };
    let (now, then) = (Outlook::new(picture, Situation::Now), Outlook::new(picture, then));
    let rows = now.views().zip(then.views()).flat_map(|((from, now), (_, then))| {
        then.into_iter().filter_map(move |then| pair(picture, from, &now, then))
    });
    rows.collect()
}

fn pair(picture: &Picture, from: &Member, now: &[Reach], then: Reach) -> Option<Pair> {
    let now = now.iter().find(|now| (now.to, now.family) == (then.to, then.family));
    Some(Pair {
        from: from.name(),
        to: picture.members.get(then.to)?.name(),
        family: then.family,
        now: now.and_then(|now| now.path),
        then: then.path,
        is_special: then.reason.is_some(),
        reason: then.reason.or_else(|| now?.reason.clone()),
    })
}

fn changes_per_node(pairs: &[Pair]) -> usize {
    let by_node = pairs.chunk_by(|one, other| one.from == other.from);
    let changes = |of: &[Pair]| of.iter().filter(|pair| pair.now != pair.then).count();
    by_node.map(changes).max().unwrap_or_default()
}

fn range(values: impl Iterator<Item = u32> + Clone) -> Option<(u32, u32)> {
    Some((values.clone().min()?, values.max()?))
}

impl Counts {
    fn of(paths: impl Iterator<Item = Option<Path>>) -> Self {
        paths.fold(Self::default(), |counts, path| match path {
            Some(Path::Direct) => Self { direct: counts.direct + 1, ..counts },
            Some(Path::Tunnel) => Self { tunnel: counts.tunnel + 1, ..counts },
            None => Self { none: counts.none + 1, ..counts },
        })
    }
}

impl Share {
    fn of(picture: &Picture, stage: &Stage) -> Self {
        Self { percent: stage.percent, nodes: stage.taken(picture) }
    }
}

impl Answer for Plan {
    fn verdict(&self) -> Verdict {
        if self.obstacles.is_empty() { Verdict::Well } else { Verdict::Impossible }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} direct, {} by tunnel, {} without a path", self.direct, self.tunnel, self.none)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.head() {
            writeln!(f, "{}", wrap(&format!("{name:12}{value}"), 12))?;
        }
        let shown = |pair: &&Pair| self.rows == Rows::All || pair.is_special;
        let shown: Vec<&Pair> = self.pairs.iter().filter(shown).collect();
        if !shown.is_empty() {
            writeln!(f)?;
            self.table(&shown).fmt(f)?;
        }
        if !self.obstacles.is_empty() {
            writeln!(f, "\nin the way:")?;
        }
        self.obstacles
            .iter()
            .take(self.limit())
            .try_for_each(|obstacle| writeln!(f, "{}", wrap(&format!("  {obstacle}"), 4)))?;
        let hidden = shown.len().max(self.obstacles.len()).saturating_sub(self.limit());
        if hidden > 0 { writeln!(f, "and {hidden} more: --all or -o json") } else { Ok(()) }
    }
}

/// So much of anything is shown unless all is asked for.
const SHOWN: usize = 20;

/// So many nodes are named within a sentence.
const FEW: usize = 5;

impl Plan {
    fn head(&self) -> Vec<(&'static str, String)> {
        let mixed = if self.mixed { "on" } else { "off; start turns it on first" };
        let reporting = self.nodes - self.silent.len();
        let stages = self
            .stages
            .iter()
            .map(|Share { percent, nodes }| format!("{} at {percent} %", counted(*nodes, "node")));
        let effort = format!(
            "at most {} per node, each replaced in place; a stage takes seconds, and what you hold",
            counted(self.changes_per_node, "route")
        );
        let mut head = vec![
            ("to", format!("{}, of {}", self.to, counted(self.nodes, "node"))),
            ("Mixed", mixed.to_owned()),
            ("reports", format!("from {reporting} of {}", counted(self.nodes, "node"))),
            ("now", self.now.to_string()),
            ("then", self.then.to_string()),
            ("stages", stages.collect::<Vec<_>>().join(", ")),
            ("effort", effort),
            ("MTU", self.mtus()),
        ];
        if !self.strict.is_empty() {
            head.push((
                "filters",
                format!("strict until Mixed is on: {}", listed(&self.strict, "")),
            ));
        }
        if !self.breaking.is_empty() {
            head.push((
                "NAT",
                format!(
                    "each change of path may end masqueraded connections on {}: tweedd keeps them \
                     with --ip-masq, by nftables or iptables",
                    abridged(&self.breaking)
                ),
            ));
        }
        head
    }

    /// A pod keeps the MTU that it was made with.
    fn mtus(&self) -> String {
        let (pods, below) = (bytes(self.pod_mtu), bytes(self.underlay_mtu));
        let mtus = self.pod_mtu.zip(self.underlay_mtu);
        let too_large = mtus.is_some_and(|((_, largest), (least, _))| largest >= least);
        if too_large && self.now.tunnel < self.then.tunnel {
            format!("{pods} for pods, {below} below: make pods anew, their packets are too large")
        } else {
            format!("{pods} for pods, {below} below")
        }
    }

    fn table(&self, pairs: &[&Pair]) -> Table {
        let mut table = Table::new(&["FROM", "TO", "NOW", "THEN"]);
        for pair in pairs.iter().take(self.limit()) {
            let path = |path: Option<Path>| path.map_or("-", Path::as_str).to_owned();
            let cells = [pair.from.clone(), pair.to.clone(), path(pair.now), path(pair.then)];
            table.row(&cells, pair.reason.clone());
        }
        table
    }

    const fn limit(&self) -> usize {
        match self.rows {
            Rows::All => usize::MAX,
            Rows::Special => SHOWN,
        }
    }
}

/// The first few of these nodes.
fn abridged(nodes: &[String]) -> String {
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
