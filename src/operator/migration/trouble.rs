//! What is wrong now, and what of it was not wrong before.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::lease::LeaseId;
use crate::model::path::Path;
use crate::model::report::{Exception, NodeReport};

use super::picture::{Member, Picture};

/// What something is wrong with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Pair {
        from: String,
        to: String,
        path: Option<Way>,
    },
    Node(String),
    /// What a node's probes find. They tell of the last minute.
    Probes(String),
}

/// [`Path`], in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Direct,
    Tunnel,
}

/// Each trouble with its reason.
pub type Troubles = BTreeMap<Subject, String>;

/// What the nodes say is wrong.
pub fn troubles(picture: &Picture) -> Troubles {
    let reports =
        picture.members.iter().filter_map(|member| Some((member, member.report.as_ref()?)));
    reports.flat_map(|(member, report)| of_node(picture, member, report)).collect()
}

/// What is wrong `now` and was not `before`. A node that is gone, or no longer reports, counts.
pub fn degraded(before: &Picture, now: &Picture) -> Troubles {
    let known = troubles(before);
    let new = troubles(now).into_iter().filter(|(subject, _)| !known.contains_key(subject));
    new.chain(slower(before, now)).chain(lost(before, now)).collect()
}

fn of_node(picture: &Picture, member: &Member, report: &NodeReport) -> Vec<(Subject, String)> {
    let from = member.name();
    let pair = |exception: &Exception| {
        let (to, path) = (name(picture, &exception.lease), exception.path.map(Way::from));
        (Subject::Pair { from: from.clone(), to, path }, exception.reason.clone())
    };
    let untold = report.exceptions_total.saturating_sub(report.exceptions.len());
    let more = (untold > 0)
        .then(|| (Subject::Node(from.clone()), format!("{untold} more peers like these")));
    let invalid = report.invalid.as_ref();
    let invalid =
        invalid.map(|why| (Subject::Node(from.clone()), format!("cannot use the config: {why}")));
    let lasting = report.exceptions.iter().filter(|exception| !exception.probing);
    lasting.map(pair).chain(more).chain(invalid).collect()
}

/// What probes find worse than they did.
fn slower(before: &Picture, now: &Picture) -> Vec<(Subject, String)> {
    let quality = |member: &Member| member.report.as_ref()?.quality;
    let slower = |member: &Member| {
        let (before, now) = (quality(member)?, quality(now.member(&member.lease.id)?)?);
        Some((Subject::Probes(member.name()), now.worse_than(before)?))
    };
    before.members.iter().filter_map(slower).collect()
}

fn lost(before: &Picture, now: &Picture) -> Vec<(Subject, String)> {
    let lost = |member: &Member| {
        let why = match now.member(&member.lease.id) {
            None => "its lease is gone",
            Some(now) if now.report.is_none() && member.report.is_some() => "it no longer reports",
            Some(_) => return None,
        };
        Some((Subject::Node(member.name()), why.to_owned()))
    };
    before.members.iter().filter_map(lost).collect()
}

fn name(picture: &Picture, id: &LeaseId) -> String {
    picture.member(id).map_or_else(|| id.to_string(), Member::name)
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) | Self::Probes(node) => f.write_str(node),
            Self::Pair { from, to, path: None } => write!(f, "{from} → {to}"),
            Self::Pair { from, to, path: Some(Way::Direct) } => write!(f, "{from} → {to}, direct"),
            Self::Pair { from, to, path: Some(Way::Tunnel) } => {
                write!(f, "{from} → {to}, by tunnel")
            }
        }
    }
}

impl From<Path> for Way {
    fn from(path: Path) -> Self {
        match path {
            Path::Direct => Self::Direct,
            Path::Tunnel => Self::Tunnel,
        }
    }
}
