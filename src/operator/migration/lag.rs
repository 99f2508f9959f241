//! Which nodes do not do yet what the config tells them.

use crate::model::config::Kind;
use crate::model::report::NodeReport;

use super::course::Course;
use super::picture::{Member, Picture};

/// A node that lags behind, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node} {why}")]
pub struct Lag {
    pub node: String,
    pub why: String,
}

/// The nodes that lag; of those that do not report nobody can tell.
pub fn lags(picture: &Picture) -> Vec<Lag> {
    let lag = |member: &Member| {
        let why = why(&picture.course, member, member.report.as_ref()?)?;
        Some(Lag { node: member.name(), why })
    };
    picture.members.iter().filter_map(lag).collect()
}

/// How many of the nodes that report follow the new backend, or will.
pub fn following(picture: &Picture) -> usize {
    let reporting = picture.members.iter().filter(|member| member.report.is_some());
    reporting.filter(|member| picture.course.counts_in(member)).count()
}

fn why(course: &Course, member: &Member, report: &NodeReport) -> Option<String> {
    let seen = i64::try_from(report.config_revision).unwrap_or(i64::MAX);
    let wanted = course.kind_of(member);
    if let Some(why) = &report.invalid {
        Some(format!("cannot use the config: {why}"))
    } else if seen < course.revision {
        Some("has not seen the config yet".to_owned())
    } else if let Some(what) = &report.pending {
        Some(format!("waits: {what}"))
    } else if report.backend != wanted {
        Some(format!("is still on {}", report.backend.as_str()))
    } else if report.mixed != course.config.mixed {
        Some(format!("has Mixed still {}", if report.mixed { "on" } else { "off" }))
    } else {
        let awaited = report.exceptions.iter().find(|exception| exception.probing)?;
        Some(format!("still uses the tunnel to {}: {}", awaited.lease, awaited.reason))
    }
}

impl Course {
    /// The backend that the config tells `member` to be on.
    pub fn kind_of(&self, member: &Member) -> Kind {
        match &self.config.rollout {
            Some(rollout) if !self.counts_in(member) => rollout.from,
            Some(_) | None => self.config.backend.kind,
        }
    }

    /// Whether `member` follows `Backend`.
    pub fn counts_in(&self, member: &Member) -> bool {
        self.config.rollout.as_ref().is_none_or(|rollout| rollout.follows(member.names()))
    }
}
