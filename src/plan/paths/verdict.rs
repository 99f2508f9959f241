//! The verdict on a direct path, from what became of the questions by both paths.

use std::time::Duration;

use crate::model::path::{Cause, ProbeVerdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As short as can be.
    Small,
    /// As large as pods' packets can be.
    Large,
}

/// What has become of the questions to one peer by one path. Times are counted from the start of
/// probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The last large questions, the newest in the lowest bit; a lost one is set.
    pub(super) lost: u64,
    /// How many of them there were, up to [`Track::WINDOW`].
    pub(super) known: u32,
    /// Large questions lost in a row.
    pub missed: u32,
    /// Large questions answered in a row.
    pub answered: u32,
    /// When the first of those lost in a row was asked.
    pub failing_since: Option<Duration>,
    /// When the last large question that was answered was asked.
    pub large: Option<Duration>,
    /// When the last small question that was answered was asked.
    pub small: Option<Duration>,
    /// When the last answer came.
    pub heard: Option<Duration>,
    /// Of the last answer to a large question.
    pub round_trip: Option<Duration>,
}

impl Track {
    /// So many questions are remembered.
    pub const WINDOW: u32 = 64;

    pub(super) fn take_answer(&mut self, size: Size, sent: Duration, now: Duration) {
        self.heard = Some(now);
        match size {
            Size::Small => self.small = self.small.max(Some(sent)),
            Size::Large => {
                self.note(0);
                self.missed = 0;
                self.failing_since = None;
                self.answered = self.answered.saturating_add(1);
                self.large = self.large.max(Some(sent));
                self.round_trip = Some(now.saturating_sub(sent));
            }
        }
    }

    pub(super) fn take_loss(&mut self, size: Size, sent: Duration) {
        match size {
            Size::Small => {}
            Size::Large => {
                self.note(1);
                self.answered = 0;
                self.missed = self.missed.saturating_add(1);
                self.failing_since.get_or_insert(sent);
            }
        }
    }

    fn note(&mut self, lost: u64) {
        self.lost = self.lost << 1 | lost;
        self.known = (self.known + 1).min(Self::WINDOW);
    }

    /// Of the last large questions: how many there were, and how many of them were lost.
    pub const fn window(&self) -> (u32, u32) {
        (self.known, self.lost.count_ones())
    }

    /// Whether a large question asked after `moment` was answered.
    pub fn carried_since(&self, moment: Duration) -> bool {
        self.large.is_some_and(|asked| asked > moment)
    }
}

/// When a verdict changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// Questions lost in a row that make a path bad.
    pub(super) failures: u32,
    /// Answers in a row that make it good again.
    pub(super) successes: u32,
    /// Who has answered nothing for so long from the start may be flannel.
    pub(super) silence: Duration,
}

/// The verdict after `last` on a peer that was asked for so long without a word of it; no time at
/// all if it has ever spoken.
///
/// A path is bad only if the tunnel carries packets meanwhile: a peer that answers by neither way
/// may just be restarting, and then nothing is gained by another path.
pub(super) fn judge(
    last: ProbeVerdict,
    direct: &Track,
    tunnel: &Track,
    rules: Rules,
    unheard: Duration,
) -> ProbeVerdict {
    let recovered = direct.answered >= rules.successes;
    let is_silent = unheard >= rules.silence && is_silent([direct, tunnel], rules);
    let has_spoken = unheard.is_zero();
    match (last, failure(direct, tunnel, rules)) {
        (_, Some(cause)) => ProbeVerdict::Bad(cause),
        (ProbeVerdict::Bad(_), None) if recovered => ProbeVerdict::Good,
        (ProbeVerdict::Bad(_), None) => last,
        (_, None) if direct.answered > 0 => ProbeVerdict::Good,
        (ProbeVerdict::Pending, None) if is_silent => ProbeVerdict::Silent,
        (ProbeVerdict::Silent, None) if has_spoken => ProbeVerdict::Pending,
        (ProbeVerdict::Pending | ProbeVerdict::Silent | ProbeVerdict::Good, None) => last,
    }
}

/// Whether the peer has left so many questions unanswered by each way it was asked by. That time has
/// passed is not enough: a machine that stood still has not asked.
fn is_silent(tracks: [&Track; 2], rules: Rules) -> bool {
    let mut asked = tracks.into_iter().filter(|track| track.known > 0).peekable();
    asked.peek().is_some() && asked.all(|track| track.missed >= rules.failures)
}

fn failure(direct: &Track, tunnel: &Track, rules: Rules) -> Option<Cause> {
    let since = direct.failing_since.filter(|_| direct.missed >= rules.failures)?;
    let small_passes = direct.small.is_some_and(|asked| asked > since);
    let cause = if small_passes { Cause::LargeLost } else { Cause::NoAnswer };
    tunnel.carried_since(since).then_some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeVerdict::{Bad, Good, Pending, Silent};

    const RULES: Rules = Rules { failures: 3, successes: 5, silence: Duration::from_secs(2) };
    const LONG: Duration = Duration::from_secs(60);

    fn answers(number: u32) -> Track {
        let (large, heard) = (Some(LONG), Some(LONG));
        Track { answered: number, known: number, large, heard, ..Track::default() }
    }

    fn losses(number: u32) -> Track {
        let failing_since = Some(Duration::from_secs(10));
        Track { missed: number, known: number, failing_since, ..Track::default() }
    }

    fn small_ones_pass(track: Track) -> Track {
        Track { small: Some(LONG), heard: Some(LONG), ..track }
    }

    #[test]
    fn each_row_of_the_table_holds() {
        let no_answer = Bad(Cause::NoAnswer);
        let large_lost = Bad(Cause::LargeLost);
        let nothing = Track::default();
        let old = Track { large: Some(Duration::from_secs(5)), ..answers(1) };
        let rows = [
            ("one answer is proof", Pending, answers(1), nothing, Good),
            ("a silent peer may begin to answer", Silent, answers(1), nothing, Good),
            ("of nothing it is known what became of it", Pending, nothing, nothing, Pending),
            ("a few lost ones are not silence", Pending, losses(2), losses(2), Pending),
            ("by neither way", Pending, losses(9), losses(2), Pending),
            ("flannel never answers", Pending, losses(9), losses(9), Silent),
            ("nor where there is no tunnel", Pending, losses(9), nothing, Silent),
            (
                "nor one that was heard, and left",
                Pending,
                losses(3),
                Track { heard: Some(LONG), ..losses(3) },
                Silent,
            ),
            ("nor does it later", Silent, losses(99), losses(99), Silent),
            ("some lost ones are no proof", Good, losses(2), answers(9), Good),
            ("the tunnel answers, direct does not", Good, losses(3), answers(1), no_answer),
            ("it never did", Pending, losses(3), answers(1), no_answer),
            ("nor for one who was silent", Silent, losses(3), answers(1), no_answer),
            ("a peer that restarts answers by no way", Good, losses(9), losses(9), Good),
            ("what the tunnel carried before counts not", Good, losses(9), old, Good),
            ("large ones vanish", Good, small_ones_pass(losses(3)), answers(1), large_lost),
            ("it grew worse", large_lost, losses(3), answers(1), no_answer),
            ("a bad path needs many answers", no_answer, answers(4), answers(9), no_answer),
            ("then it is good again", no_answer, answers(5), answers(9), Good),
            ("without the tunnel too", no_answer, answers(5), losses(9), Good),
            ("who answers by the tunnel alone is awaited", Pending, nothing, answers(1), Pending),
        ];
        for (row, last, direct, tunnel, expected) in rows {
            assert_eq!(judge(last, &direct, &tunnel, RULES, LONG), expected, "{row}");
        }
    }

    #[test]
    fn silence_takes_its_time() {
        let lost = losses(3);
        let judged = |unheard| judge(Pending, &lost, &lost, RULES, Duration::from_millis(unheard));
        assert_eq!((judged(1999), judged(2000)), (Pending, Silent));
    }

    #[test]
    fn who_has_spoken_is_awaited_and_not_silent() {
        let lost = losses(99);
        for last in [Pending, Silent] {
            assert_eq!(judge(last, &lost, &lost, RULES, Duration::ZERO), Pending);
        }
    }

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn what_was_lost_in_a_row_ends_with_an_answer() {
        let mut track = Track::default();
        track.take_loss(Size::Large, at(10));
        track.take_loss(Size::Large, at(20));
        assert_eq!((track.missed, track.failing_since), (2, Some(at(10))));
        track.take_answer(Size::Large, at(30), at(32));
        assert_eq!((track.missed, track.failing_since, track.answered), (0, None, 1));
        assert_eq!(track.round_trip, Some(at(2)));
        assert_eq!(track.window(), (3, 2));
    }

    #[test]
    fn small_questions_say_nothing_of_large_packets() {
        let mut track = Track::default();
        track.take_loss(Size::Large, at(10));
        track.take_answer(Size::Small, at(20), at(21));
        assert_eq!((track.missed, track.answered, track.window()), (1, 0, (1, 1)));
        assert_eq!(track.small, Some(at(20)));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut track = Track::default();
        (0..100).for_each(|sent| track.take_loss(Size::Large, at(sent)));
        assert_eq!(track.window(), (64, 64));
        (0..60).for_each(|sent| track.take_answer(Size::Large, at(sent), Duration::ZERO));
        assert_eq!(track.window(), (64, 4));
    }
}
