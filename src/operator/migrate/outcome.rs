//! The outcome of an order: its texts and exit code.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Serialize;

use super::cluster::ClusterView;
use super::state::{Note, Stage, Step};
use crate::operator::layout::{counted, listed, wrap};
use crate::operator::{Answer, ExitStatus};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    #[serde(rename = "outcome")]
    pub(super) exit_status: ExitStatus,
    pub(super) message: String,
    /// Obstacles, nodes that lag, pairs with a possible regression, or changes of another operator.
    pub(super) details: Vec<String>,
}

/// An outcome, and the cluster after it.
#[derive(Debug, Serialize)]
pub(super) struct CommandEnd {
    #[serde(flatten)]
    pub(super) outcome: Outcome,
    #[serde(flatten)]
    pub(super) progress: ClusterProgress,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ClusterProgress {
    /// The revision of the config key.
    revision: i64,
    mixed: bool,
    backend: &'static str,
    /// None if no migration is under way.
    pub(super) from: Option<&'static str>,
    percent: Option<u8>,
    canaries: Vec<String>,
    following: usize,
    nodes: usize,
    reporting: usize,
    lagging: usize,
}

/// The number of details in the text; the JSON has all.
const SHOWN: usize = 20;

impl Outcome {
    pub(super) fn new(exit_status: ExitStatus, message: impl Into<String>) -> Self {
        Self { exit_status, message: message.into(), details: Vec::new() }
    }

    pub(super) fn with(self, details: Vec<String>) -> Self {
        Self { details, ..self }
    }

    /// The outcome of a `start` after which no migration is under way: `Mixed` may have been turned
    /// on nevertheless.
    pub(super) fn about_mixed(mut self, view: &ClusterView) -> Self {
        use ExitStatus::{Degraded, Impossible, Late};
        let is_idle = view.state.under_way.is_none() && view.state.config.mixed;
        if is_idle && matches!(self.exit_status, Impossible | Late | Degraded) {
            self.message.push_str(
                "; Mixed stays on: tweedctl migrate finish turns it off if no pair needs it",
            );
        }
        self
    }

    /// The config changed since `before`, so this command ends.
    pub(super) fn conflict(before: &ClusterView, now: &ClusterView, consequence: &str) -> Self {
        let author = match now.state.author(&before.state) {
            Some(Note { at, by }) => format!("{by} at {at}"),
            None => "another client".to_owned(),
        };
        let message = format!("{author} has changed the config meanwhile; {consequence}");
        Self::new(ExitStatus::Conflict, message).with(now.state.changes(&before.state))
    }

    /// `step` is applied; the message has what comes next. Details are the nodes that changed
    /// together because of equal hashes, or the pods that keep an MTU other than that of new pods.
    pub(super) fn done(step: &Step, view: &ClusterView) -> Self {
        let (nodes, kind) = (view.reporting().count(), view.state.config.backend.kind.as_str());
        let mut details = Vec::new();
        let message = match step {
            Step::Mix => "Mixed is on".to_owned(),
            Step::Begin { stage, .. } | Step::Reach(stage) if stage.is_empty() => {
                let from = view.state.under_way.as_ref().map_or(kind, |it| it.from.as_str());
                format!("all {nodes} nodes are back on {from}; next: tweedctl migrate finish")
            }
            Step::Begin { stage, .. } | Step::Reach(stage) => {
                let (following, next) = (view.following(), stage.next_command());
                details.extend(view.tie(stage).map(|nodes| tied(&nodes)));
                format!("{following} of {nodes} nodes on {kind} ({stage}); next: {next}")
            }
            Step::Pause => "paused: tweedctl migrate next --resume continues".to_owned(),
            Step::Finish { .. } => {
                details.extend(pods_of_other_mtu(view));
                finished(view)
            }
        };
        let dead = view.members.iter().filter(|member| member.is_dead()).count();
        let silent = view.silent().count();
        let others = [(silent, "without a report"), (dead, "dead")].into_iter();
        let others = others.filter(|(count, _)| *count > 0);
        let others = others.map(|(count, what)| format!("; {} {what}", counted(count, "node")));
        Self::new(ExitStatus::Done, message + &others.collect::<Vec<_>>().concat()).with(details)
    }
}

pub(super) fn done(message: String) -> Outcome {
    Outcome::new(ExitStatus::Done, message)
}

pub(super) fn refused(message: impl Into<String>) -> Outcome {
    Outcome::new(ExitStatus::Impossible, message)
}

/// The text while a step is carried out.
pub(super) fn announced(step: &Step) -> String {
    match step {
        Step::Mix => "Mixed is turned on".to_owned(),
        Step::Begin { to, stage } => format!("starting {}: {stage}", to.as_str()),
        Step::Reach(stage) => format!("now {stage}"),
        Step::Pause => "paused".to_owned(),
        Step::Finish { mixed: true, .. } => "Rollout is removed".to_owned(),
        Step::Finish { mixed: false, .. } => "Mixed and Rollout are removed".to_owned(),
    }
}

pub(super) fn finished(view: &ClusterView) -> String {
    let (nodes, config) = (view.reporting().count(), &view.state.config);
    let mixed = if config.mixed { "; Mixed stays on, because pairs need it" } else { "" };
    format!("finished: all {nodes} nodes are on {}{mixed}", config.backend.kind.as_str())
}

/// Why these nodes change at the same percentage.
pub(super) fn tied(nodes: &[&str]) -> String {
    format!("{} change together, because their hashes are equal", abridged(nodes))
}

/// The first few of these nodes.
pub(super) fn abridged(nodes: &[&str]) -> String {
    /// The number of nodes that a sentence names.
    const FEW: usize = 5;
    let (shown, hidden) = nodes.split_at_checked(FEW).unwrap_or((nodes, &[]));
    match hidden.len() {
        0 => listed(shown, ""),
        more => format!("{} and {}", listed(shown, ""), counted(more, "more node")),
    }
}

/// A line for each node whose pods have an MTU other than that of new pods.
pub(super) fn pods_of_other_mtu(view: &ClusterView) -> impl Iterator<Item = String> {
    let affected = view.reporting().filter(|(_, report)| report.other_mtu.total > 0);
    affected.filter_map(|(member, report)| {
        let (node, mtu, pods) = (&member.name, report.pod_mtu?, &report.other_mtu);
        Some(format!("{node}: new pods get MTU {mtu}; these keep theirs: {pods}"))
    })
}

/// In whole seconds, rounded up, as in `1m 30s`.
pub(super) fn short(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1000);
    format!("{:#}", SignedDuration::from_secs(seconds.try_into().unwrap_or(i64::MAX)))
}

impl ClusterProgress {
    pub(super) fn of(view: &ClusterView) -> Self {
        let (config, under_way) = (&view.state.config, view.state.under_way.as_ref());
        Self {
            revision: view.state.revision,
            mixed: config.mixed,
            backend: config.backend.kind.as_str(),
            from: under_way.map(|it| it.from.as_str()),
            percent: under_way.map(|it| it.stage.percent),
            canaries: under_way.map(|it| it.stage.nodes.clone()).unwrap_or_default(),
            following: view.following(),
            nodes: view.members.len(),
            reporting: view.reporting().count(),
            lagging: view.lags().len(),
        }
    }

    /// A bar of the nodes on the new backend, and the number of nodes that applied the config.
    pub(super) fn bar(&self) -> String {
        const WIDTH: usize = 24;
        let Self { reporting, following, lagging, .. } = self;
        let applied = format!("applied on {} of {reporting} nodes", reporting - lagging);
        if self.from.is_none() {
            return applied;
        }
        let done = (following * WIDTH).checked_div(*reporting).unwrap_or_default();
        let (done, left) = ("#".repeat(done), ".".repeat(WIDTH.saturating_sub(done)));
        format!("[{done}{left}] {following} of {reporting}; {applied}")
    }
}

impl fmt::Display for ClusterProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mixed = if self.mixed { ", mixed" } else { "" };
        let Some((from, percent)) = self.from.zip(self.percent) else {
            return write!(f, "none; the config selects {}{mixed}", self.backend);
        };
        let stage = Stage { percent, nodes: self.canaries.clone() };
        write!(f, "{from} → {}, {stage}{mixed}", self.backend)
    }
}

impl Answer for CommandEnd {
    fn exit_status(&self) -> ExitStatus {
        self.outcome.exit_status
    }
}

impl fmt::Display for CommandEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { message, details, .. } = &self.outcome;
        writeln!(f, "{}", wrap(message, 2))?;
        for detail in details.iter().take(SHOWN) {
            writeln!(f, "{}", wrap(&format!("  {detail}"), 4))?;
        }
        match details.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more: -o json shows all"),
        }
    }
}
