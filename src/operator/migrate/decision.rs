//! How an order changes the config of a cluster, and what prevents it.

use std::collections::BTreeSet;
use std::iter::successors;

use super::cluster::{ClusterView, Member, sentence};
use super::obstacle::Obstacles;
use super::options::{Order, StageOptions, Start};
use super::outcome::{Outcome, done, finished, refused};
use super::pairs;
use super::reachability::Backends;
use super::state::{HISTORY, Note, STEPS, Stage, Step, UnderWay};
use crate::model::config::BackendType;
use crate::model::report::NodeReport;
use crate::operator::layout::counted;

/// The next step of `order` in this state, or the outcome if there is none. All reporting nodes
/// must have applied the config, unless `Mixed` is off.
pub(super) fn decide(order: &Order, view: &ClusterView) -> Result<Step, Outcome> {
    let Some(under_way) = &view.state.under_way else {
        return match order {
            Order::Start(start) => begin(start, view),
            Order::Finish { .. } => settle(view),
            Order::Next { .. } | Order::Pause | Order::Rollback { .. } => {
                Err(refused("no migration is under way: tweedctl migrate start begins one"))
            }
        };
    };
    match order {
        Order::Start(start) => resume(start, under_way, view),
        Order::Next { percent, resume, options } => match &under_way.paused {
            Some(Note { at, by }) if !resume => Err(refused(format!(
                "paused by {by} at {at}: tweedctl migrate next --resume continues"
            ))),
            Some(_) | None => advance(*percent, under_way, options, view),
        },
        Order::Pause => match &under_way.paused {
            Some(Note { at, by }) => Err(done(format!("already paused by {by} at {at}"))),
            None => Ok(Step::Pause),
        },
        Order::Rollback { one_stage: true, .. } => go_back(before(under_way), under_way),
        Order::Rollback { one_stage: false, .. } => go_back(Stage::default(), under_way),
        Order::Finish { .. } => finish(under_way, view),
    }
}

fn begin(start: &Start, view: &ClusterView) -> Result<Step, Outcome> {
    let (config, to) = (&view.state.config, start.to);
    if config.backend.kind == to {
        return Err(done(format!("the config already selects {} for all nodes", to.as_str())));
    }
    let stage = first_stage(start, view)?;
    if !config.mixed {
        return Ok(Step::Mix);
    }
    Ok(Step::Begin { to, stage })
}

/// A migration that was rolled back may start again; any operator may continue a running one.
fn resume(start: &Start, under_way: &UnderWay, view: &ClusterView) -> Result<Step, Outcome> {
    let UnderWay { to, stage, .. } = under_way;
    let kind = to.as_str();
    if *to != start.to {
        return Err(refused(format!(
            "a migration to {kind} is under way: tweedctl migrate rollback reverts it"
        )));
    }
    if !stage.is_empty() {
        return Err(done(format!("already started: {stage} on {kind}")));
    }
    Ok(Step::Reach(first_stage(start, view)?))
}

/// The stage that `start` names, or the default one, unless something prevents it.
fn first_stage(start: &Start, view: &ClusterView) -> Result<Stage, Outcome> {
    let none = Stage::default();
    let stage = match start.percent {
        Some(percent) => view.stage_of(percent, &none),
        None if start.canary.is_empty() => further(&none, view).map_or(none, |(_, stage)| stage),
        None => Stage { percent: 0, nodes: start.canary.clone() },
    };
    let mut obstacles = Obstacles::of_nodes(view);
    obstacles.add_failing(view, start.to, &added(view, &Stage::default(), &stage));
    obstacles.add_unknown(view, &stage.nodes);
    for pair in pairs::cut(view, Backends::All { kind: start.to, mixed: true }) {
        obstacles.add_cut(&pair);
    }
    obstacles.refuse(start.options).map(|()| stage)
}

/// The default stages of a migration that starts now, each with its share of the nodes in percent.
pub(super) fn stages(view: &ClusterView) -> impl Iterator<Item = (u8, Stage)> {
    successors(further(&Stage::default(), view), |(_, stage)| further(stage, view))
}

/// The next default stage that adds a node: in a small cluster, not each stage does.
fn further(stage: &Stage, view: &ClusterView) -> Option<(u8, Stage)> {
    let follow = view.following_at(stage);
    let takes_more = |later: &Stage| later.is_all() || view.following_at(later) > follow;
    let mut later = STEPS.into_iter().map(|share| (share, view.stage_of(share, stage)));
    later.find(|(_, later)| takes_more(later)).filter(|_| !stage.is_all())
}

/// The positions of the nodes that change their backend if `later` follows `stage`.
fn added(view: &ClusterView, stage: &Stage, later: &Stage) -> BTreeSet<usize> {
    let [stage, later] = [stage, later].map(|it| it.rollout(view.state.config.backend.kind));
    let changes = |member: &Member| !member.follows(Some(&stage)) && member.follows(Some(&later));
    let positions = view.members.iter().enumerate().filter(|(_, member)| changes(member));
    positions.map(|(position, _)| position).collect()
}

fn advance(
    percent: Option<u8>,
    under_way: &UnderWay,
    options: &StageOptions,
    view: &ClusterView,
) -> Result<Step, Outcome> {
    let stage = &under_way.stage;
    let next = match percent {
        Some(percent) => Some(reaching(percent, stage, view)?),
        None => further(stage, view).map(|(_, next)| next),
    };
    let Some(next) = next.filter(|next| next != stage || under_way.paused.is_some()) else {
        let next = stage.next_command();
        return Err(done(format!("already reached: {stage}; next: {next}")));
    };
    let mut obstacles = Obstacles::of_absent(view);
    obstacles.add_failing(view, under_way.to, &added(view, stage, &next));
    obstacles.refuse(*options)?;
    match view.troubles().first_key_value() {
        Some(trouble) if !options.force => Err(refused(format!(
            "this stage has problems: {}; --force continues nevertheless",
            sentence(trouble)
        ))),
        _ => Ok(Step::Reach(next)),
    }
}

/// The stage with `percent` of the nodes; `stage` itself if it has as many.
fn reaching(percent: u8, stage: &Stage, view: &ClusterView) -> Result<Stage, Outcome> {
    let next = view.stage_of(percent, stage);
    let [wanted, follow] = [&next, stage].map(|stage| view.following_at(stage));
    if wanted < follow {
        return Err(refused(format!(
            "{percent} % are {}, and {follow} have changed already: to go back, use tweedctl \
             migrate rollback",
            counted(wanted, "node")
        )));
    }
    Ok(if next.percent > stage.percent { next } else { stage.clone() })
}

fn go_back(stage: Stage, under_way: &UnderWay) -> Result<Step, Outcome> {
    if !under_way.stage.is_empty() {
        return Ok(Step::Reach(stage));
    }
    let from = under_way.from.as_str();
    Err(done(format!(
        "the config already selects {from} for all nodes; next: tweedctl migrate finish"
    )))
}

/// The stage before this one; before the first one, no node has changed.
fn before(under_way: &UnderWay) -> Stage {
    let UnderWay { stage, history, .. } = under_way;
    let mut recorded = history.iter().rev().map(|reached| reached.percent);
    match recorded.find(|percent| *percent < stage.percent) {
        Some(percent) => stage.at(percent),
        None if (1..HISTORY).contains(&history.len()) => Stage::default(),
        // The first stage is not recorded: the rollout was written by hand, or has many stages.
        None => stage.previous(),
    }
}

fn finish(under_way: &UnderWay, view: &ClusterView) -> Result<Step, Outcome> {
    let kind = match &under_way.stage {
        stage if stage.is_all() => under_way.to,
        stage if stage.is_empty() => under_way.from,
        stage => {
            return Err(refused(format!(
                "not complete, at {stage}: run tweedctl migrate next or rollback first"
            )));
        }
    };
    Ok(Step::Finish { kind, mixed: needs_mixed(view, kind) })
}

fn settle(view: &ClusterView) -> Result<Step, Outcome> {
    let config = &view.state.config;
    let kind = config.backend.kind;
    if config.mixed && !needs_mixed(view, kind) {
        return Ok(Step::Finish { kind, mixed: false });
    }
    Err(done(finished(view)))
}

/// Whether a pair still needs `Mixed` once all nodes are on `kind`.
fn needs_mixed(view: &ClusterView, kind: BackendType) -> bool {
    let fails = |(_, report): (&Member, &NodeReport)| !report.failing.is_empty();
    view.members.iter().any(|member| member.backend() != Some(kind))
        || (kind == BackendType::HostGw && view.reporting().any(fails))
        || pairs::cut(view, Backends::All { kind, mixed: false }).next().is_some()
}
