//! The verdict on a direct path, from the results of probes by both paths.

use std::time::Duration;

use crate::model::path::{Cause, ProbeVerdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeSize {
    Small,
    /// As large as the largest packet of pods.
    Large,
}

/// The results of the probes to one peer by one path. Times are relative to the start of probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The last large probes, one bit each, the newest in the lowest bit; 1 means lost.
    pub(super) lost: u64,
    /// The number of valid bits in `lost`, up to [`Track::WINDOW`].
    pub(super) known: u32,
    pub missed: u32,
    /// Consecutive large probes that were answered.
    pub answered: u32,
    /// When the first of the consecutive lost large probes was sent.
    pub failing_since: Option<Duration>,
    /// When the last answered large probe was sent.
    pub large: Option<Duration>,
    /// When the last answered small probe was sent.
    pub small: Option<Duration>,
    pub answered_at: Option<Duration>,
    pub round_trip: Option<Duration>,
}

impl Track {
    /// How many large probes are remembered.
    pub const WINDOW: u32 = 64;

    pub(super) fn take_answer(&mut self, size: ProbeSize, sent: Duration, now: Duration) {
        self.answered_at = Some(now);
        match size {
            ProbeSize::Small => self.small = self.small.max(Some(sent)),
            ProbeSize::Large => {
                self.note(0);
                self.missed = 0;
                self.failing_since = None;
                self.answered = self.answered.saturating_add(1);
                self.large = self.large.max(Some(sent));
                self.round_trip = Some(now.saturating_sub(sent));
            }
        }
    }

    pub(super) fn take_loss(&mut self, size: ProbeSize, sent: Duration) {
        if size == ProbeSize::Large {
            self.note(1);
            self.answered = 0;
            self.missed = self.missed.saturating_add(1);
            self.failing_since.get_or_insert(sent);
        }
    }

    fn note(&mut self, lost: u64) {
        self.lost = self.lost << 1 | lost;
        self.known = (self.known + 1).min(Self::WINDOW);
    }

    /// The numbers of remembered large probes, and of lost ones among them.
    pub const fn window(&self) -> (u32, u32) {
        (self.known, self.lost.count_ones())
    }

    /// Whether a large probe that was sent after `moment` was answered.
    pub fn carried_since(&self, moment: Duration) -> bool {
        self.large.is_some_and(|asked| asked > moment)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    /// Consecutive losses after which a path is bad.
    pub(super) failures: u32,
    /// Consecutive answers after which a bad path is good again.
    pub(super) successes: u32,
    /// A peer that has never answered for this long is silent: it may run flannel.
    pub(super) silence: Duration,
}

/// The verdict that follows `last`. `silent_for` is how long the peer has been probed without any
/// packet from it; zero if it has ever sent one.
///
/// A path is bad only if the tunnel works in the same period: a peer that answers on neither path
/// may be restarting, and another path would not help.
pub(super) fn judge(
    last: ProbeVerdict,
    direct: &Track,
    tunnel: &Track,
    thresholds: Thresholds,
    silent_for: Duration,
) -> ProbeVerdict {
    let recovered = direct.answered >= thresholds.successes;
    let is_silent = silent_for >= thresholds.silence && is_silent([direct, tunnel], thresholds);
    let has_spoken = silent_for.is_zero();
    match (last, failure(direct, tunnel, thresholds)) {
        (_, Some(cause)) => ProbeVerdict::Bad(cause),
        (ProbeVerdict::Bad(_), None) if recovered => ProbeVerdict::Good,
        (ProbeVerdict::Bad(_), None) => last,
        (_, None) if direct.answered > 0 => ProbeVerdict::Good,
        (ProbeVerdict::Pending, None) if is_silent => ProbeVerdict::Silent,
        (ProbeVerdict::Silent, None) if has_spoken => ProbeVerdict::Pending,
        (ProbeVerdict::Pending | ProbeVerdict::Silent | ProbeVerdict::Good, None) => last,
    }
}

/// Whether the peer has missed `failures` probes in a row on each path that was probed. Elapsed
/// time is not enough: a suspended machine has not sent any probes.
fn is_silent(tracks: [&Track; 2], thresholds: Thresholds) -> bool {
    let mut asked = tracks.into_iter().filter(|track| track.known > 0).peekable();
    asked.peek().is_some() && asked.all(|track| track.missed >= thresholds.failures)
}

fn failure(direct: &Track, tunnel: &Track, thresholds: Thresholds) -> Option<Cause> {
    let since = direct.failing_since.filter(|_| direct.missed >= thresholds.failures)?;
    let small_passes = direct.small.is_some_and(|asked| asked > since);
    let cause = if small_passes { Cause::LargeLost } else { Cause::NoAnswer };
    tunnel.carried_since(since).then_some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeVerdict::{Bad, Good, Pending, Silent};

    const RULES: Thresholds =
        Thresholds { failures: 3, successes: 5, silence: Duration::from_secs(2) };
    const LONG: Duration = Duration::from_secs(60);

    fn answers(number: u32) -> Track {
        let (large, answered_at) = (Some(LONG), Some(LONG));
        Track { answered: number, known: number, large, answered_at, ..Track::default() }
    }

    fn losses(number: u32) -> Track {
        let failing_since = Some(Duration::from_secs(10));
        Track { missed: number, known: number, failing_since, ..Track::default() }
    }

    fn small_ones_pass(track: Track) -> Track {
        Track { small: Some(LONG), answered_at: Some(LONG), ..track }
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
                "nor one that was answered_at, and left",
                Pending,
                losses(3),
                Track { answered_at: Some(LONG), ..losses(3) },
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
    fn a_peer_is_silent_only_after_the_silence_interval() {
        let lost = losses(3);
        let judged =
            |silent_for| judge(Pending, &lost, &lost, RULES, Duration::from_millis(silent_for));
        assert_eq!((judged(1999), judged(2000)), (Pending, Silent));
    }

    #[test]
    fn a_peer_that_has_sent_a_packet_is_pending_and_not_silent() {
        let lost = losses(99);
        for last in [Pending, Silent] {
            assert_eq!(judge(last, &lost, &lost, RULES, Duration::ZERO), Pending);
        }
    }

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn an_answer_resets_consecutive_losses() {
        let mut track = Track::default();
        track.take_loss(ProbeSize::Large, at(10));
        track.take_loss(ProbeSize::Large, at(20));
        assert_eq!((track.missed, track.failing_since), (2, Some(at(10))));
        track.take_answer(ProbeSize::Large, at(30), at(32));
        assert_eq!((track.missed, track.failing_since, track.answered), (0, None, 1));
        assert_eq!(track.round_trip, Some(at(2)));
        assert_eq!(track.window(), (3, 2));
    }

    #[test]
    fn small_probes_do_not_count_for_large_packets() {
        let mut track = Track::default();
        track.take_loss(ProbeSize::Large, at(10));
        track.take_answer(ProbeSize::Small, at(20), at(21));
        assert_eq!((track.missed, track.answered, track.window()), (1, 0, (1, 1)));
        assert_eq!(track.small, Some(at(20)));
    }

    #[test]
    fn only_the_last_probes_are_remembered() {
        let mut track = Track::default();
        (0..100).for_each(|sent| track.take_loss(ProbeSize::Large, at(sent)));
        assert_eq!(track.window(), (64, 64));
        (0..60).for_each(|sent| track.take_answer(ProbeSize::Large, at(sent), Duration::ZERO));
        assert_eq!(track.window(), (64, 4));
    }
}
