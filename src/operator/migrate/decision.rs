//! How an order changes the config of a cluster, and what prevents it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use super::cluster::{ClusterView, Member};
use super::options::{Order, StageOptions, Start};
use super::outcome::{Outcome, finished};
use super::reachability::{Backends, Pair, pairs};
use super::state::{Note, Stage, Step, UnderWay};
use crate::model::config::BackendType;
use crate::operator::ExitStatus;
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
    let stage = start.stage().or_else(|| further(&Stage::default(), view)).unwrap_or_default();
    let pairs = pairs(view, Backends::All { kind: start.to, mixed: true });
    let cuts: Vec<_> = pairs.filter(|pair| cut(pair).is_some()).collect();
    let mut obstacles = obstacles(view, start.to, &cuts);
    obstacles.extend(unknown_nodes(view, &stage.nodes));
    obstacles.retain(|it| !(start.options.force && it.is_forgivable));
    if obstacles.is_empty() {
        return Ok(stage);
    }
    let message = format!("blocked by {}", counted(obstacles.len(), "problem"));
    Err(refused(message).with(obstacles.into_iter().map(|it| it.text).collect()))
}

/// The default stages of a migration that starts now.
pub(super) fn stages(view: &ClusterView) -> impl Iterator<Item = Stage> {
    successors(further(&Stage::default(), view), |stage| further(stage, view))
}

/// The next default stage that adds a node: in a small cluster, not each stage does.
fn further(stage: &Stage, view: &ClusterView) -> Option<Stage> {
    let follow = view.following_at(stage);
    let takes_more = |later: &Stage| later.is_all() || view.following_at(later) > follow;
    successors(stage.next(), Stage::next).find(takes_more)
}

fn advance(
    percent: Option<u8>,
    under_way: &UnderWay,
    options: &StageOptions,
    view: &ClusterView,
) -> Result<Step, Outcome> {
    let stage = &under_way.stage;
    if let Some(percent) = percent.filter(|percent| *percent < stage.percent) {
        return Err(refused(format!(
            "{percent} % is less than {stage}: to go back, use tweedctl migrate rollback"
        )));
    }
    let next = percent.map_or_else(|| further(stage, view), |percent| Some(stage.at(percent)));
    let Some(next) = next.filter(|next| next != stage || under_way.paused.is_some()) else {
        let next = stage.next_command();
        return Err(done(format!("already reached: {stage}; next: {next}")));
    };
    match view.troubles().first_key_value() {
        Some((subject, why)) if !options.force => Err(refused(format!(
            "this stage has problems: {subject}: {why}; --force continues nevertheless"
        ))),
        _ => Ok(Step::Reach(next)),
    }
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

/// The stage before this one; the default one if none is recorded.
fn before(under_way: &UnderWay) -> Stage {
    let stage = &under_way.stage;
    let mut recorded = under_way.history.iter().rev().map(|reached| reached.percent);
    let lower = recorded.find(|percent| *percent < stage.percent);
    lower.map_or_else(|| stage.previous(), |percent| stage.at(percent))
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
    view.members.iter().any(|member| member.backend() != Some(kind))
        || !failing(view, kind).is_empty()
        || pairs(view, Backends::All { kind, mixed: false }).any(|pair| cut(&pair).is_some())
}

fn done(message: String) -> Outcome {
    Outcome::new(ExitStatus::Done, message)
}

fn refused(message: impl Into<String>) -> Outcome {
    Outcome::new(ExitStatus::Impossible, message)
}

/// A reason not to start, with the node or pair concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) text: String,
    /// Whether `--force` accepts it: the nodes concerned keep their state. One sends no report, or
    /// a pair keeps the tunnel.
    pub(super) is_forgivable: bool,
}

/// What prevents a move to the backend `to`.
pub(super) fn obstacles(view: &ClusterView, to: BackendType, pairs: &[Pair<'_>]) -> Vec<Obstacle> {
    let of_nodes = view.members.iter().flat_map(of_node);
    of_nodes.chain(failing(view, to)).chain(pairs.iter().filter_map(cut)).collect()
}

/// The names in `nodes` that match no node.
fn unknown_nodes(view: &ClusterView, nodes: &[String]) -> Vec<Obstacle> {
    let known: BTreeSet<String> = view.members.iter().flat_map(Member::names).collect();
    let unknown = nodes.iter().filter(|node| !known.contains(*node));
    unknown
        .map(|node| Obstacle::fatal(format!("no node has the public IP or name {node}")))
        .collect()
}

fn of_node(member: &Member) -> Vec<Obstacle> {
    let node = &member.name;
    let Some(report) = &member.report else {
        let text =
            format!("{node} sends no report: it runs flannel, an older tweedd, or no daemon");
        return vec![Obstacle { text, is_forgivable: true }];
    };
    let invalid = report.invalid.iter().map(|why| format!("{node} cannot use the config: {why}"));
    let waits = report.pending.iter().map(|what| format!("{node} waits: {what}"));
    let links: Vec<String> = report.strict_filters.iter().map(ToString::to_string).collect();
    let links = links.join(" and ");
    // With Mixed, tweedd has already loosened all filters that it may change.
    let strict = (report.mixed && !links.is_empty()).then(|| {
        format!(
            "{node} has a strict reverse-path filter on {links}, and its tweedd may not change it"
        )
    });
    invalid.chain(waits).chain(strict).map(Obstacle::fatal).collect()
}

/// The pairs on one link that would change to a direct path on which probes fail.
fn failing(view: &ClusterView, kind: BackendType) -> Vec<Obstacle> {
    if kind != BackendType::HostGw {
        return Vec::new();
    }
    // Of two leases with one first address, the earlier one counts.
    let subnets =
        view.members.iter().rev().flat_map(|member| {
            member.lease.subnets().map(move |subnet| (subnet.base(), &member.name))
        });
    let owners: BTreeMap<_, _> = subnets.collect();
    let mut obstacles = Vec::new();
    for (from, report) in view.reporting() {
        for (peer, why) in &report.failing {
            let to = owners.get(peer).map_or_else(|| peer.to_string(), ToString::to_string);
            let text = format!("{} would stay in the tunnel to {to}: {why}", from.name);
            obstacles.push(Obstacle { text, is_forgivable: true });
        }
    }
    obstacles
}

/// The obstacle of a pair that would lose its path.
fn cut(pair: &Pair<'_>) -> Option<Obstacle> {
    if pair.now.is_none() || pair.then.is_some() {
        return None;
    }
    let why = pair.reason.as_deref().unwrap_or_default();
    let text = format!("{} would no longer reach {}: {why}", pair.from, pair.to);
    Some(Obstacle { text, is_forgivable: !pair.both_report })
}

impl Obstacle {
    const fn fatal(text: String) -> Self {
        Self { text, is_forgivable: false }
    }
}
