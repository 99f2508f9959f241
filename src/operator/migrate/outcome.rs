//! How an order ended: what to tell, and the exit code.

use std::fmt;

use serde::Serialize;

use crate::operator::layout::wrap;
use crate::operator::migration::{ALL, Picture, Stage, following, lags};
use crate::operator::{Answer, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    #[serde(rename = "outcome")]
    pub(super) end: End,
    pub(super) message: String,
    /// What stands in the way, who lags, which pairs are worse off, what somebody else changed.
    pub(super) details: Vec<String>,
    #[serde(flatten)]
    pub(super) standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum End {
    Done,
    Impossible,
    Degraded,
    Conflict,
    Late,
}

/// How far the cluster is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Standing {
    /// Of the config key.
    revision: i64,
    mixed: bool,
    backend: &'static str,
    /// None if no migration is under way.
    from: Option<&'static str>,
    percent: Option<u8>,
    canaries: Vec<String>,
    pub(super) following: usize,
    pub(super) nodes: usize,
    reporting: usize,
    pub(super) lagging: usize,
}

impl Outcome {
    pub(super) fn new(end: End, message: impl Into<String>, picture: &Picture) -> Self {
        let (message, standing) = (message.into(), Standing::of(picture));
        Self { end, message, details: Vec::new(), standing }
    }

    pub(super) fn with(self, details: Vec<String>) -> Self {
        Self { details, ..self }
    }
}

impl Standing {
    pub(super) fn of(picture: &Picture) -> Self {
        let course = &picture.course;
        let under_way = course.under_way.as_ref();
        Self {
            revision: course.revision,
            mixed: course.config.mixed,
            backend: course.config.backend.kind.as_str(),
            from: under_way.map(|it| it.from.as_str()),
            percent: under_way.map(|it| it.stage.percent),
            canaries: under_way.map(|it| it.stage.nodes.clone()).unwrap_or_default(),
            following: following(picture),
            nodes: picture.members.len(),
            reporting: picture.members.len() - picture.silent().count(),
            lagging: lags(picture).len(),
        }
    }
}

impl Standing {
    /// Nodes on the new backend, as a line of marks, and how many do what they are told.
    pub(super) fn progress(&self) -> String {
        let reporting = self.reporting;
        let in_force = format!("in force on {} of {reporting} nodes", reporting - self.lagging);
        if self.from.is_none() {
            return in_force;
        }
        let done = (self.following * BAR).checked_div(reporting).unwrap_or_default();
        let (done, left) = ("#".repeat(done), ".".repeat(BAR.saturating_sub(done)));
        format!("[{done}{left}] {} of {reporting}; {in_force}", self.following)
    }
}

const BAR: usize = 24;

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mixed = if self.mixed { ", mixed" } else { "" };
        let Some(from) = self.from else {
            return write!(f, "none; the nodes are told to be on {}{mixed}", self.backend);
        };
        let stage = Stage { percent: self.percent.unwrap_or(ALL), nodes: self.canaries.clone() };
        write!(f, "{from} → {}, {stage}{mixed}", self.backend)
    }
}

impl Answer for Outcome {
    fn verdict(&self) -> Verdict {
        match self.end {
            End::Done => Verdict::Well,
            End::Impossible => Verdict::Impossible,
            End::Degraded => Verdict::Degraded,
            End::Conflict => Verdict::Conflict,
            End::Late => Verdict::Late,
        }
    }
}

/// More is in the JSON.
const SHOWN: usize = 20;

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", wrap(&self.message, 2))?;
        for detail in self.details.iter().take(SHOWN) {
            writeln!(f, "{}", wrap(&format!("  {detail}"), 4))?;
        }
        match self.details.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more: -o json tells all"),
        }
    }
}
