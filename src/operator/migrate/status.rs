//! `tweedctl migrate status`: how far a migration is, and how all is meanwhile.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::outcome::Standing;
use super::words::pods_of_other_mtu;
use crate::model::config::Kind;
use crate::model::path::Path;
use crate::model::report::Quality;
use crate::operator::layout::{Table, wrap};
use crate::operator::migration::{
    Entry, Lag, Member, Moment, Note, Outlook, Picture, Situation, lags, troubles,
};
use crate::operator::{Answer, Verdict};

#[derive(Debug, Serialize)]
pub(super) struct Status {
    #[serde(flatten)]
    standing: Standing,
    paused: Option<Note>,
    stages: Vec<Entry>,
    lags: Vec<String>,
    troubles: Vec<String>,
    silent: Vec<String>,
    /// Those with another MTU than new ones get, by node.
    pods: Vec<String>,
    direct: usize,
    tunnel: usize,
    left_out: usize,
    set_aside: usize,
    /// None where nobody probes.
    quality: Option<Quality>,
    /// Empty in a large cluster.
    matrix: Vec<Row>,
    #[serde(skip)]
    now: Moment,
}

/// How one node reaches all in turn, itself included: `=` direct, `o` by tunnel, `x` not at all.
#[derive(Debug, Serialize)]
struct Row {
    node: String,
    backend: &'static str,
    paths: String,
}

/// A matrix of more nodes does not fit on a line.
const WIDEST: usize = 32;

impl Status {
    pub(super) fn new(picture: &Picture, now: Moment) -> Self {
        let under_way = picture.course.under_way.as_ref();
        let reports = || picture.members.iter().filter_map(|member| member.report.as_ref());
        let troubles = troubles(picture);
        Self {
            standing: Standing::of(picture),
            paused: under_way.and_then(|it| it.paused.clone()),
            stages: under_way.map(|it| it.history.clone()).unwrap_or_default(),
            lags: lags(picture).iter().map(Lag::to_string).collect(),
            troubles: troubles.iter().map(|(subject, why)| format!("{subject}: {why}")).collect(),
            silent: picture.silent().map(Member::name).collect(),
            pods: pods_of_other_mtu(picture).collect(),
            direct: reports().map(|report| report.peers.direct).sum(),
            tunnel: reports().map(|report| report.peers.tunnel).sum(),
            left_out: reports().map(|report| report.peers.left_out).sum(),
            set_aside: reports().map(|report| report.peers.set_aside).sum(),
            quality: picture.quality(),
            matrix: if picture.members.len() <= WIDEST { matrix(picture) } else { Vec::new() },
            now,
        }
    }
}

fn matrix(picture: &Picture) -> Vec<Row> {
    let outlook = Outlook::new(picture, Situation::Now);
    let rows = outlook.views().enumerate().map(|(from, (member, view))| {
        let paths = (0..picture.members.len()).map(|to| {
            let mut reaches = view.iter().filter(|reach| reach.to == to).peekable();
            match reaches.peek() {
                None if to == from => '.',
                None => 'x',
                // Of two families the worse one counts.
                Some(_) => reaches.map(|reach| mark(reach.path)).max().unwrap_or('x'),
            }
        });
        let backend = member.backend().map_or("other", Kind::as_str);
        Row { node: member.name(), backend, paths: paths.collect() }
    });
    rows.collect()
}

/// In the order of their characters the worst comes last.
const fn mark(path: Option<Path>) -> char {
    match path {
        Some(Path::Direct) => '=',
        Some(Path::Tunnel) => 'o',
        None => 'x',
    }
}

impl Answer for Status {
    fn verdict(&self) -> Verdict {
        if self.troubles.is_empty() { Verdict::Well } else { Verdict::Degraded }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.head() {
            writeln!(f, "{}", wrap(&format!("{name:10}{value}"), 10))?;
        }
        if !self.stages.is_empty() {
            writeln!(f)?;
            self.history().fmt(f)?;
        }
        if !self.matrix.is_empty() {
            writeln!(f)?;
            self.pairs().fmt(f)?;
            writeln!(f, "= direct  o by tunnel  x no path, in the order of the rows")?;
        }
        Ok(())
    }
}

/// The JSON tells all of them.
const SHOWN: usize = 20;

impl Status {
    fn head(&self) -> Vec<(&'static str, String)> {
        let Self { standing, .. } = self;
        let mut head = vec![
            ("migration", standing.to_string()),
            ("progress", standing.progress()),
            ("pairs", self.counts()),
        ];
        let paused =
            self.paused.iter().map(|Note { at, by }| ("paused", format!("by {by} at {at}")));
        head.extend(paused);
        let some = |name, all: &[String]| {
            let shown = all.iter().take(SHOWN).cloned();
            shown.map(|it| (name, it)).collect::<Vec<(&'static str, String)>>()
        };
        head.extend(some("waiting", &self.lags));
        head.extend(some("wrong", &self.troubles));
        let silent =
            self.silent.iter().map(|node| format!("{node} sends no report")).collect::<Vec<_>>();
        head.extend(some("unknown", &silent));
        head.extend(some("pods", &self.pods));
        head
    }

    fn counts(&self) -> String {
        let Self { direct, tunnel, left_out, set_aside, .. } = self;
        format!("{direct} direct, {tunnel} by tunnel, {left_out} left out, {set_aside} set aside")
    }

    /// Each stage with how well packets travelled while it lasted; first, how they did before all.
    fn history(&self) -> Table {
        let mut table = Table::new(&["STAGE", "SINCE", "FOR", "LOSS", "LATENCY", "BY"]);
        let none = || "-".to_owned();
        if let Some(before) = self.stages.first().and_then(|first| first.before) {
            let cells =
                ["before".to_owned(), none(), none(), before.loss(), before.latency(), none()];
            table.row(&cells, None);
        }
        let later = self.stages.iter().skip(1).map(|entry| (entry.note.at, entry.before));
        let ends = later.chain([(self.now, self.quality)]);
        for (entry, (end, quality)) in self.stages.iter().zip(ends) {
            let cells = [
                stage(entry),
                entry.note.at.to_string(),
                lasting(end.since(entry.note.at)),
                quality.map_or_else(none, Quality::loss),
                quality.map_or_else(none, Quality::latency),
                entry.note.by.clone(),
            ];
            table.row(&cells, None);
        }
        table
    }

    fn pairs(&self) -> Table {
        let mut table = Table::new(&["NODE", "BACKEND", "PATHS"]);
        for Row { node, backend, paths } in &self.matrix {
            table.row(&[node.clone(), (*backend).to_owned(), paths.clone()], None);
        }
        table
    }
}

fn stage(entry: &Entry) -> String {
    match (entry.percent, entry.nodes) {
        (0, 0) => "nobody".to_owned(),
        (0, nodes) => format!("{nodes} named"),
        (percent, 0) => format!("{percent} %"),
        (percent, nodes) => format!("{percent} % and {nodes} named"),
    }
}

/// `2h 3m`, `4m 5s`, `6s`.
fn lasting(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 3600 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        seconds if seconds >= 60 => format!("{}m {}s", seconds / 60, seconds % 60),
        seconds => format!("{seconds}s"),
    }
}
