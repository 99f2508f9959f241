//! The verdict on a direct path, from what became of the questions by both ways.

use std::time::Duration;

use super::Track;
use crate::model::path::{Cause, Verdict};

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
    last: Verdict,
    direct: &Track,
    tunnel: &Track,
    rules: Rules,
    unheard: Duration,
) -> Verdict {
    let recovered = direct.answered >= rules.successes;
    let is_silent = unheard >= rules.silence && is_silent([direct, tunnel], rules);
    let has_spoken = unheard.is_zero();
    match (last, failure(direct, tunnel, rules)) {
        (_, Some(cause)) => Verdict::Bad(cause),
        (Verdict::Bad(_), None) if recovered => Verdict::Good,
        (Verdict::Bad(_), None) => last,
        (_, None) if direct.answered > 0 => Verdict::Good,
        (Verdict::Pending, None) if is_silent => Verdict::Silent,
        (Verdict::Silent, None) if has_spoken => Verdict::Pending,
        (Verdict::Pending | Verdict::Silent | Verdict::Good, None) => last,
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
    use Verdict::{Bad, Good, Pending, Silent};

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
}
