//! What an operator orders, and which step of the config that is.

use crate::model::config::Kind;

use super::course::{Note, Step, UnderWay};
use super::lag::lags;
use super::obstacle::{Forgivable, Obstacle, cuts, failing, obstacles, strangers};
use super::outlook::{Mixing, Situation};
use super::picture::Picture;
use super::stage::Stage;
use super::trouble::troubles;

/// An order can be given again and again, from anywhere: what is done already is not done twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Without a stage, to the first one that takes a node.
    Start {
        to: Kind,
        stage: Option<Stage>,
    },
    Next {
        percent: Option<u8>,
        pause: OnPause,
    },
    Pause,
    Rollback(Back),
    Finish,
}

/// What to do about a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPause {
    Respect,
    End,
}

/// How far to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    OneStage,
    ToTheStart,
}

/// Whether to go on in spite of nodes that do not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    Yes,
    No,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Write(Step),
    /// It is done already; the sentence says what comes next.
    Nothing(String),
}

/// Why an order is not possible as things stand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no migration is under way: tweedctl migrate start begins one")]
    NotUnderWay,
    #[error("a migration to {} is under way: tweedctl migrate rollback takes it back", .0.as_str())]
    OtherWay(Kind),
    #[error("paused by {} at {}: tweedctl migrate next --resume goes on", .0.by, .0.at)]
    Paused(Note),
    #[error("{percent} % is not more than {stage}: tweedctl migrate rollback goes back")]
    NotForward { percent: u8, stage: Stage },
    #[error("half way, at {stage}: tweedctl migrate next or rollback comes first")]
    HalfWay { stage: Stage },
    #[error("{} in the way", counted(.0.len()))]
    Obstacles(Vec<Obstacle>),
    #[error("not every node has taken the config in yet: {0}")]
    Lag(String),
    #[error("not all is well at this stage: {0}; --force goes on nevertheless")]
    Trouble(String),
}

/// The step that `order` takes from here.
pub fn decide(order: &Order, picture: &Picture, force: Force) -> Result<Decision, Refusal> {
    let under_way = picture.course.under_way.as_ref();
    match (order, under_way) {
        (Order::Start { to, stage }, None) => begin(*to, stage.as_ref(), picture, force),
        (Order::Start { to, stage }, Some(it)) => resume(*to, stage.as_ref(), it, picture, force),
        (Order::Finish, None) => Ok(settle(picture)),
        (Order::Next { .. } | Order::Pause | Order::Rollback(_), None) => Err(Refusal::NotUnderWay),
        (Order::Next { percent, pause }, Some(it)) => advance(it, *percent, *pause, picture, force),
        (Order::Pause, Some(it)) => Ok(match &it.paused {
            Some(note) => nothing(format!("paused already, by {} at {}", note.by, note.at)),
            None => Decision::Write(Step::Pause),
        }),
        (Order::Rollback(back), Some(it)) => Ok(go_back(*back, it)),
        (Order::Finish, Some(it)) => finish(it, picture),
    }
}

fn begin(
    to: Kind,
    stage: Option<&Stage>,
    picture: &Picture,
    force: Force,
) -> Result<Decision, Refusal> {
    let config = &picture.course.config;
    if config.backend.kind == to {
        return Ok(nothing(format!("every node is told to be on {} already", to.as_str())));
    }
    let stage = first(stage, picture);
    without_obstacles(picture, to, &stage, force)?;
    if !config.mixed {
        return Ok(Decision::Write(Step::Mix));
    }
    // A node without Mixed would drop the first that changes.
    all_have_followed(picture)?;
    Ok(Decision::Write(Step::Begin { to, stage }))
}

/// One that was taken back may start again, and one that runs may be taken over.
fn resume(
    to: Kind,
    stage: Option<&Stage>,
    under_way: &UnderWay,
    picture: &Picture,
    force: Force,
) -> Result<Decision, Refusal> {
    if under_way.to != to {
        return Err(Refusal::OtherWay(under_way.to));
    }
    if !under_way.stage.is_nobody() {
        let reached = &under_way.stage;
        return Ok(nothing(format!("started already: {reached} on {}", to.as_str())));
    }
    let stage = first(stage, picture);
    without_obstacles(picture, to, &stage, force)?;
    Ok(Decision::Write(Step::Reach(stage)))
}

fn first(stage: Option<&Stage>, picture: &Picture) -> Stage {
    stage.cloned().or_else(|| further(&Stage::default(), picture)).unwrap_or_default()
}

/// The stages by the rule, of a migration that starts now.
pub fn stages(picture: &Picture) -> Vec<Stage> {
    let further = |stage: &Stage| further(stage, picture);
    std::iter::successors(further(&Stage::default()), further).collect()
}

/// The next stage by the rule that takes a node more: in a small cluster not each of them does.
fn further(stage: &Stage, picture: &Picture) -> Option<Stage> {
    let mut later = std::iter::successors(stage.next(), Stage::next);
    later.find(|later| later.is_all() || later.taken(picture) > stage.taken(picture))
}

fn without_obstacles(
    picture: &Picture,
    to: Kind,
    stage: &Stage,
    force: Force,
) -> Result<(), Refusal> {
    let mut obstacles = obstacles(picture, to);
    obstacles.extend(strangers(picture, &stage.nodes));
    obstacles.retain(|it| !(force == Force::Yes && it.forgivable() == Forgivable::Yes));
    if obstacles.is_empty() { Ok(()) } else { Err(Refusal::Obstacles(obstacles)) }
}

fn advance(
    under_way: &UnderWay,
    percent: Option<u8>,
    pause: OnPause,
    picture: &Picture,
    force: Force,
) -> Result<Decision, Refusal> {
    let stage = &under_way.stage;
    let paused = under_way.paused.clone().filter(|_| pause == OnPause::Respect);
    if let Some(note) = paused {
        return Err(Refusal::Paused(note));
    }
    let next = match percent {
        Some(percent) if percent < stage.percent => {
            return Err(Refusal::NotForward { percent, stage: stage.clone() });
        }
        Some(percent) => Some(stage.at(percent)),
        None => further(stage, picture),
    };
    let Some(next) = next.filter(|next| next != stage || under_way.paused.is_some()) else {
        let next = if stage.is_all() { "finish" } else { "next" };
        return Ok(nothing(format!("reached already: {stage}; next: tweedctl migrate {next}")));
    };
    all_is_well(picture, force)?;
    Ok(Decision::Write(Step::Reach(next)))
}

fn all_have_followed(picture: &Picture) -> Result<(), Refusal> {
    lags(picture).first().map_or(Ok(()), |lag| Err(Refusal::Lag(lag.to_string())))
}

fn all_is_well(picture: &Picture, force: Force) -> Result<(), Refusal> {
    all_have_followed(picture)?;
    match troubles(picture).first_key_value() {
        Some((subject, why)) if force == Force::No => {
            Err(Refusal::Trouble(format!("{subject}: {why}")))
        }
        _ => Ok(()),
    }
}

fn go_back(back: Back, under_way: &UnderWay) -> Decision {
    if under_way.stage.is_nobody() {
        let from = under_way.from.as_str();
        return nothing(format!(
            "every node is told to be back on {from}; next: tweedctl migrate finish"
        ));
    }
    Decision::Write(Step::Reach(match back {
        Back::OneStage => before(under_way),
        Back::ToTheStart => Stage::default(),
    }))
}

/// The stage that was reached before this one; if nobody recorded it, the one before by the rule.
fn before(under_way: &UnderWay) -> Stage {
    let stage = &under_way.stage;
    let mut recorded = under_way.history.iter().rev().map(|entry| entry.percent);
    let lower = recorded.find(|percent| *percent < stage.percent);
    lower.map_or_else(|| stage.previous(), |percent| stage.at(percent))
}

fn finish(under_way: &UnderWay, picture: &Picture) -> Result<Decision, Refusal> {
    let kind = match &under_way.stage {
        stage if stage.is_all() => under_way.to,
        stage if stage.is_nobody() => under_way.from,
        stage => return Err(Refusal::HalfWay { stage: stage.clone() }),
    };
    all_have_followed(picture)?;
    let mixing = still_mixing(picture, kind);
    Ok(Decision::Write(Step::Finish { kind, mixing }))
}

fn settle(picture: &Picture) -> Decision {
    let config = &picture.course.config;
    let kind = config.backend.kind;
    match (config.mixed, still_mixing(picture, kind)) {
        (false, _) => nothing(format!("finished: every node is on {}", kind.as_str())),
        (true, Mixing::On) => nothing(format!(
            "finished: every node is on {}; Mixed stays on, because pairs need it",
            kind.as_str()
        )),
        (true, Mixing::Off) => Decision::Write(Step::Finish { kind, mixing: Mixing::Off }),
    }
}

/// Whether a pair needs `Mixed` once all are on `kind`.
fn still_mixing(picture: &Picture, kind: Kind) -> Mixing {
    let then = Situation::Once { kind, mixing: Mixing::Off };
    let elsewhere = |member: &super::Member| member.backend() != Some(kind);
    let needed = !cuts(picture, then).is_empty()
        || !failing(picture, kind).is_empty()
        || picture.members.iter().any(elsewhere);
    if needed { Mixing::On } else { Mixing::Off }
}

const fn nothing(sentence: String) -> Decision {
    Decision::Nothing(sentence)
}

fn counted(obstacles: usize) -> String {
    if obstacles == 1 { "1 thing is".to_owned() } else { format!("{obstacles} things are") }
}
