//! One peer under probe.

use std::time::Duration;

use super::board::{Asked, Size};
use super::judge::{Rules, judge};
use super::pace::Pace;
use super::{Target, Track};
use crate::model::path::{Path, Verdict};

/// A peer, what is known of the ways to it, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pub target: Target,
    pub direct: Track,
    pub tunnel: Track,
    pub verdict: Verdict,
    /// When anything first came from it: then it is not flannel, and answers probes from then on.
    spoke: Option<Duration>,
    /// When it was first asked.
    begun: Option<Duration>,
    turns: u32,
    /// Times that its direct path went bad of late.
    relapses: u32,
    /// When its direct path last went bad.
    failed: Duration,
}

/// The tunnel that stands by is asked at every so many turns.
const STANDBY: u32 = 4;
/// Who has been good for so long is trusted like anybody else.
const FORGIVEN: Duration = Duration::from_secs(600);
/// A path that flaps has to prove itself ever longer, up to so many doublings.
const MOST_DOUBLINGS: u32 = 3;

impl Subject {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            direct: Track::default(),
            tunnel: Track::default(),
            verdict: Verdict::Pending,
            spoke: None,
            begun: None,
            turns: 0,
            relapses: 0,
            failed: Duration::ZERO,
        }
    }

    /// The same node as `self`, of which nothing else is known any more.
    pub(super) fn anew(&self, target: Target) -> Self {
        let is_same = self.target.public_ip == target.public_ip;
        Self { spoke: self.spoke.filter(|_| is_same), ..Self::new(target) }
    }

    /// Of the way `path`.
    pub const fn track(&self, path: Path) -> &Track {
        match path {
            Path::Direct => &self.direct,
            Path::Tunnel => &self.tunnel,
        }
    }

    /// Of the last large questions by `path` since anything first came from the peer: how many there
    /// were, and how many of them were lost.
    pub fn window(&self, path: Path) -> (u32, u32) {
        self.spoke.map_or((0, 0), |_| self.track(path).window())
    }

    pub(super) fn pace(&self, rules: Rules) -> Pace {
        let fails = |track: &Track| track.missed >= rules.failures;
        // Where nothing can be compared, there is no hurry.
        let is_dead = fails(&self.direct) && (fails(&self.tunnel) || !self.target.tunnel);
        match self.verdict {
            _ if !self.target.direct => Pace::Steady,
            Verdict::Pending if is_dead && self.spoke.is_some() => Pace::Steady,
            Verdict::Pending => Pace::Unjudged,
            Verdict::Good if self.direct.missed > 0 && !is_dead => Pace::Doubtful,
            Verdict::Silent => Pace::Silent,
            Verdict::Good | Verdict::Bad(_) => Pace::Steady,
        }
    }

    /// What to ask in the next turn.
    pub(super) fn questions(&self, rules: Rules) -> Vec<(Path, Size)> {
        let Target { direct, tunnel, .. } = self.target;
        let pace = self.pace(rules);
        let tunnel = tunnel && (!direct || pace.is_urgent() || self.turns.is_multiple_of(STANDBY));
        let doubtful = direct && pace.is_urgent() && self.direct.missed > 0;
        let questions = [
            (direct, (Path::Direct, Size::Large)),
            (doubtful, (Path::Direct, Size::Small)),
            (tunnel, (Path::Tunnel, Size::Large)),
        ];
        questions.into_iter().filter_map(|(wanted, question)| wanted.then_some(question)).collect()
    }

    pub(super) fn take_turn(&mut self, now: Duration) {
        self.begun.get_or_insert(now);
        self.turns = self.turns.wrapping_add(1);
    }

    /// Takes any packet of it for a sign of life. What it left unanswered until then, before it
    /// probed paths itself, says nothing of the paths.
    pub(super) fn hear(&mut self, now: Duration) {
        if self.spoke.is_none() {
            self.spoke = Some(now);
            (self.direct, self.tunnel) = (Track::default(), Track::default());
        }
    }

    pub(super) fn take_answer(&mut self, asked: &Asked, now: Duration) {
        self.hear(now);
        self.track_mut(asked.path).take_answer(asked, now);
    }

    pub(super) fn take_loss(&mut self, asked: &Asked) {
        if self.spoke.is_none_or(|spoke| asked.at >= spoke) {
            self.track_mut(asked.path).take_loss(asked);
        }
    }

    /// Judges anew; returns whether the verdict has changed.
    pub(super) fn judge(&mut self, rules: Rules, now: Duration) -> bool {
        let begun = self.begun.filter(|_| self.spoke.is_none());
        let unheard = begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun));
        let successes = rules.successes << self.relapses.saturating_sub(1).min(MOST_DOUBLINGS);
        let rules = Rules { successes, ..rules };
        let last = self.verdict;
        self.verdict = judge(last, &self.direct, &self.tunnel, rules, unheard);
        if matches!(self.verdict, Verdict::Bad(_)) && !matches!(last, Verdict::Bad(_)) {
            let forgiven = now.saturating_sub(self.failed) > FORGIVEN;
            self.relapses = if forgiven { 1 } else { self.relapses + 1 };
            self.failed = now;
        }
        last != self.verdict
    }

    const fn track_mut(&mut self, path: Path) -> &mut Track {
        match path {
            Path::Direct => &mut self.direct,
            Path::Tunnel => &mut self.tunnel,
        }
    }
}
