//! How an order changes the config of a cluster, and what prevents it.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use super::cluster::{ClusterView, Member};
use super::options::{Order, Watching};
use super::outcome::Outcome;
use super::reachability::{Backends, Pair, pairs};
use super::state::{Mixing, Note, Stage, Step, UnderWay};
use crate::model::config::BackendType;
use crate::model::report::NodeReport;
use crate::operator::ExitStatus;

/// The next step of `order` in this state, or the outcome if there is none.
pub(super) fn decide(order: &Order, view: &ClusterView) -> Result<Step, Outcome> {
    match (order, &view.state.under_way) {
        (Order::Start { to, watching, .. }, None) => begin(*to, order.stage(), watching, view),
        (Order::Start { to, watching, .. }, Some(it)) => {
            resume(*to, order.stage(), it, watching, view)
        }
        (Order::Finish { .. }, None) => settle(view),
        (Order::Next { .. } | Order::Pause | Order::Rollback { .. }, None) => {
            Err(refused("no migration is under way: tweedctl migrate start begins one"))
        }
        (Order::Next { percent, resume, watching }, Some(it)) => match &it.paused {
            Some(Note { at, by }) if !resume => Err(refused(format!(
                "paused by {by} at {at}: tweedctl migrate next --resume goes on"
            ))),
            Some(_) | None => advance(*percent, it, watching, view),
        },
        (Order::Pause, Some(it)) => match &it.paused {
            Some(Note { at, by }) => Err(done(format!("paused already, by {by} at {at}"))),
            None => Ok(Step::Pause),
        },
        (Order::Rollback { one_stage: true, .. }, Some(it)) => go_back(before(it), it),
        (Order::Rollback { one_stage: false, .. }, Some(it)) => go_back(Stage::default(), it),
        (Order::Finish { .. }, Some(it)) => finish(it, view),
    }
}

fn begin(
    to: BackendType,
    stage: Option<Stage>,
    watching: &Watching,
    view: &ClusterView,
) -> Result<Step, Outcome> {
    let config = &view.state.config;
    if config.backend.kind == to {
        return Err(done(format!("every node is told to be on {} already", to.as_str())));
    }
    let stage = first_stage(to, stage, watching, view)?;
    if !config.mixed {
        return Ok(Step::Mix);
    }
    // A node without Mixed would drop the first node that changes its backend.
    all_follow(view)?;
    Ok(Step::Begin { to, stage })
}

/// A migration that was rolled back may start again; any operator may continue a running one.
fn resume(
    to: BackendType,
    stage: Option<Stage>,
    under_way: &UnderWay,
    watching: &Watching,
    view: &ClusterView,
) -> Result<Step, Outcome> {
    if under_way.to != to {
        let to = under_way.to.as_str();
        return Err(refused(format!(
            "a migration to {to} is under way: tweedctl migrate rollback takes it back"
        )));
    }
    if !under_way.stage.is_empty() {
        let (reached, to) = (&under_way.stage, to.as_str());
        return Err(done(format!("started already: {reached} on {to}")));
    }
    Ok(Step::Reach(first_stage(to, stage, watching, view)?))
}

/// `stage`, or the default first stage, unless something prevents it.
fn first_stage(
    to: BackendType,
    stage: Option<Stage>,
    watching: &Watching,
    view: &ClusterView,
) -> Result<Stage, Outcome> {
    let stage = stage.or_else(|| further(&Stage::default(), view)).unwrap_or_default();
    let cuts: Vec<_> = pairs(view, Backends::All { kind: to, mixing: Mixing::On })
        .filter(|pair| cut(pair).is_some())
        .collect();
    let mut obstacles = obstacles(view, to, &cuts);
    obstacles.extend(unknown_nodes(view, &stage.nodes));
    obstacles.retain(|it| !watching.force || it.forgivable == Forgivable::No);
    let message = match obstacles.len() {
        0 => return Ok(stage),
        1 => "1 thing is in the way".to_owned(),
        more => format!("{more} things are in the way"),
    };
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
    watching: &Watching,
    view: &ClusterView,
) -> Result<Step, Outcome> {
    let stage = &under_way.stage;
    let next = match percent {
        Some(percent) if percent < stage.percent => {
            return Err(refused(format!(
                "{percent} % is not more than {stage}: tweedctl migrate rollback goes back"
            )));
        }
        Some(percent) => Some(stage.at(percent)),
        None => further(stage, view),
    };
    let Some(next) = next.filter(|next| next != stage || under_way.paused.is_some()) else {
        let next = stage.next_command();
        return Err(done(format!("reached already: {stage}; next: {next}")));
    };
    all_follow(view)?;
    match view.troubles().first_key_value() {
        Some((subject, why)) if !watching.force => Err(refused(format!(
            "not all is well at this stage: {subject}: {why}; --force goes on nevertheless"
        ))),
        _ => Ok(Step::Reach(next)),
    }
}

fn all_follow(view: &ClusterView) -> Result<(), Outcome> {
    let refusal = |lag| refused(format!("not every node has taken the config in yet: {lag}"));
    view.lags().first().map_or(Ok(()), |lag| Err(refusal(lag)))
}

fn go_back(stage: Stage, under_way: &UnderWay) -> Result<Step, Outcome> {
    if !under_way.stage.is_empty() {
        return Ok(Step::Reach(stage));
    }
    let from = under_way.from.as_str();
    Err(done(format!("every node is told to be back on {from}; next: tweedctl migrate finish")))
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
                "half way, at {stage}: tweedctl migrate next or rollback comes first"
            )));
        }
    };
    all_follow(view)?;
    Ok(Step::Finish { kind, mixing: still_mixing(view, kind) })
}

fn settle(view: &ClusterView) -> Result<Step, Outcome> {
    let config = &view.state.config;
    let kind = config.backend.kind;
    if config.mixed && still_mixing(view, kind) == Mixing::Off {
        return Ok(Step::Finish { kind, mixing: Mixing::Off });
    }
    let mixed = if config.mixed { "; Mixed stays on, because pairs need it" } else { "" };
    Err(done(format!("finished: every node is on {}{mixed}", kind.as_str())))
}

/// Whether a pair still needs `Mixed` once all nodes are on `kind`.
fn still_mixing(view: &ClusterView, kind: BackendType) -> Mixing {
    let needed = view.members.iter().any(|member| member.backend() != Some(kind))
        || !failing(view, kind).is_empty()
        || pairs(view, Backends::All { kind, mixing: Mixing::Off })
            .any(|pair| cut(&pair).is_some());
    if needed { Mixing::On } else { Mixing::Off }
}

fn done(message: String) -> Outcome {
    Outcome::new(ExitStatus::Well, message)
}

fn refused(message: impl Into<String>) -> Outcome {
    Outcome::new(ExitStatus::Impossible, message)
}

/// A reason not to start, with the node or pair concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) text: String,
    pub(super) forgivable: Forgivable,
}

/// Whether `--force` accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgivable {
    /// The nodes concerned keep their state: one without a report, a pair that stays in the tunnel.
    Yes,
    No,
}

/// What prevents a move to `kind`.
pub(super) fn obstacles(
    view: &ClusterView,
    kind: BackendType,
    pairs: &[Pair<'_>],
) -> Vec<Obstacle> {
    let of_nodes = view.members.iter().flat_map(of_node);
    of_nodes.chain(failing(view, kind)).chain(pairs.iter().filter_map(cut)).collect()
}

/// The names in `nodes` that match no node.
pub(super) fn unknown_nodes(view: &ClusterView, nodes: &[String]) -> Vec<Obstacle> {
    let known: BTreeSet<String> = view.members.iter().flat_map(Member::names).collect();
    let unknown = nodes.iter().filter(|node| !known.contains(*node));
    unknown.map(|node| Obstacle::fatal(format!("{node} is the public IP of no node"))).collect()
}

fn of_node(member: &Member) -> Vec<Obstacle> {
    let node = &member.name;
    let Some(report) = &member.report else {
        let text = format!("{node} sends no report: it runs flannel or an older tweedd, or none");
        return vec![Obstacle { text, forgivable: Forgivable::Yes }];
    };
    let invalid = report.invalid.iter().map(|why| format!("{node} cannot use the config: {why}"));
    let waits = report.pending.iter().map(|what| format!("{node} waits: {what}"));
    invalid.chain(waits).chain(strict(node, report)).map(Obstacle::fatal).collect()
}

fn strict(node: &str, report: &NodeReport) -> Option<String> {
    let links: Vec<String> = report.strict_filters.iter().map(ToString::to_string).collect();
    // With Mixed, tweedd has already loosened all filters that it may change.
    let is_strict = report.mixed && !links.is_empty();
    let links = links.join(" and ");
    is_strict
        .then(|| format!("{node} filters strictly on {links}, and its tweedd may not change that"))
}

/// The pairs on one link that would change to a direct path on which probes fail.
pub(super) fn failing(view: &ClusterView, kind: BackendType) -> Vec<Obstacle> {
    if kind != BackendType::HostGw {
        return Vec::new();
    }
    let subnets =
        view.members.iter().rev().flat_map(|member| {
            member.lease.subnets().map(move |subnet| (subnet.base(), &member.name))
        });
    let owners: BTreeMap<_, _> = subnets.collect();
    let failing = view.reporting().flat_map(|(from, report)| {
        let owners = &owners;
        report.failing.iter().map(move |(peer, why)| {
            let to = owners.get(peer).map_or_else(|| peer.to_string(), ToString::to_string);
            let text = format!("{} would stay in the tunnel to {to}: {why}", from.name);
            Obstacle { text, forgivable: Forgivable::Yes }
        })
    });
    failing.collect()
}

/// The obstacle of a pair that would lose its path.
pub(super) fn cut(pair: &Pair<'_>) -> Option<Obstacle> {
    if pair.now.is_none() || pair.then.is_some() {
        return None;
    }
    let why = pair.reason.as_deref().unwrap_or_default();
    let text = format!("{} would no longer reach {}: {why}", pair.from, pair.to);
    let forgivable = if pair.both_report { Forgivable::No } else { Forgivable::Yes };
    Some(Obstacle { text, forgivable })
}

impl Obstacle {
    const fn fatal(text: String) -> Self {
        Self { text, forgivable: Forgivable::No }
    }
}
