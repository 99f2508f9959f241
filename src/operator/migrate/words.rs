//! What an order comes to, in words.

use std::time::Duration;

use super::outcome::{End, Outcome};
use crate::operator::layout::counted;
use crate::operator::migration::{Lag, Mixing, Picture, Refusal, Step, author, changes, following};

pub(super) fn refused(refusal: &Refusal, picture: &Picture) -> Outcome {
    let details = match refusal {
        Refusal::Obstacles(obstacles) => obstacles.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    };
    Outcome::new(End::Impossible, refusal.to_string(), picture).with(details)
}

pub(super) fn conflict(before: &Picture, now: &Picture, so: &str) -> Outcome {
    let author = author(&before.course, &now.course);
    let who =
        author.map_or_else(|| "somebody".to_owned(), |note| format!("{} at {}", note.by, note.at));
    let message = format!("{who} has changed the config meanwhile; {so}");
    Outcome::new(End::Conflict, message, now).with(changes(&before.course, &now.course))
}

pub(super) fn late(lags: &[Lag], now: &Picture) -> Outcome {
    let message = "not every node does yet what is written: tweedctl migrate status tells when";
    let details = lags.iter().map(ToString::to_string).collect();
    Outcome::new(End::Late, message, now).with(details)
}

/// While it happens.
pub(super) fn announced(step: &Step) -> String {
    match step {
        Step::Mix => "Mixed is turned on".to_owned(),
        Step::Begin { to, stage } => format!("{} begins: {stage}", to.as_str()),
        Step::Reach(stage) => format!("now {stage}"),
        Step::Pause => "paused".to_owned(),
        Step::Finish { mixing: Mixing::On, .. } => "Rollout is removed".to_owned(),
        Step::Finish { mixing: Mixing::Off, .. } => "Mixed and Rollout are removed".to_owned(),
    }
}

/// Once it is in force, and what comes next.
pub(super) fn sentence(step: &Step, picture: &Picture) -> String {
    let silent = match picture.silent().count() {
        0 => String::new(),
        silent => format!("; {} without a report", counted(silent, "node")),
    };
    told(step, picture) + &silent
}

fn told(step: &Step, picture: &Picture) -> String {
    let nodes = picture.members.len() - picture.silent().count();
    let following = following(picture);
    let kind = picture.course.config.backend.kind.as_str();
    match step {
        Step::Mix => "Mixed is on".to_owned(),
        Step::Begin { stage, .. } | Step::Reach(stage) if stage.is_nobody() => {
            let from = picture.course.under_way.as_ref().map_or(kind, |it| it.from.as_str());
            format!("all {nodes} nodes are back on {from}; next: tweedctl migrate finish")
        }
        Step::Begin { stage, .. } | Step::Reach(stage) => {
            let next = if stage.is_all() { "finish" } else { "next" };
            format!(
                "{following} of {nodes} nodes on {kind} ({stage}); next: tweedctl migrate {next}"
            )
        }
        Step::Pause => "paused: tweedctl migrate next --resume goes on".to_owned(),
        Step::Finish { .. } => {
            let mixed = if picture.course.config.mixed {
                "; Mixed stays on, because pairs need it"
            } else {
                ""
            };
            format!("finished: all {nodes} nodes are on {kind}{mixed}")
        }
    }
}

/// What to know once it is in force: the pods that keep an MTU which new ones do not get.
pub(super) fn remarks(step: &Step, picture: &Picture) -> Vec<String> {
    match step {
        Step::Finish { .. } => pods_of_other_mtu(picture).collect(),
        Step::Mix | Step::Begin { .. } | Step::Reach(_) | Step::Pause => Vec::new(),
    }
}

/// Of each node that has such pods, in a line.
pub(super) fn pods_of_other_mtu(picture: &Picture) -> impl Iterator<Item = String> + '_ {
    let reports = picture.members.iter().filter_map(|it| Some((it, it.report.as_ref()?)));
    reports.filter(|(_, report)| report.other_mtu.total > 0).filter_map(|(member, report)| {
        let (node, mtu, pods) = (member.name(), report.pod_mtu?, &report.other_mtu);
        Some(format!("{node}: new pods get MTU {mtu}; these keep theirs: {pods}"))
    })
}

/// `10m`, `90s`.
pub(super) fn short(time: Duration) -> String {
    match time.as_millis().div_ceil(1000) {
        seconds if seconds >= 60 => format!("{}m", seconds.div_ceil(60)),
        seconds => format!("{seconds}s"),
    }
}
