//! The verdict on a direct path, from the results of probes by both paths.

use std::time::Duration;

use crate::model::path::{Cause, Path, ProbeVerdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Small,
    /// As large as the largest packet of pods.
    Large,
    /// An ICMP echo request: the kernel of the peer answers it, whether a daemon runs or not.
    Echo,
}

/// The results of the probes to one peer by one path. Times are relative to the start of probing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// The last large probes, one bit each, the newest in the lowest bit; 1 means lost.
    pub(super) lost: u128,
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
    /// Consecutive probes of any size that were not answered, and when the first was sent.
    pub(super) unanswered: u32,
    pub(super) unanswered_since: Option<Duration>,
    /// How many of these were lost since the last packet of the peer.
    unheard: u32,
    /// When the last answered echo request since then was sent, and the number of lost ones after it.
    echoed: Option<Duration>,
    echoes_missed: u32,
    /// Whether the peer's kernel did not answer either and, if it does again, no later probe is lost:
    /// the first answers of a peer that is back may be to echo requests.
    is_host_silent: bool,
    /// As `lost`, without the losses of outages: they do not count as a bad path when it is over.
    pub(super) counted: u128,
    /// Consecutive large probes that were lost, since the last outage.
    pub(super) large_missed: u32,
    /// The number of large probes for which the path is still probed faster because of a loss.
    pub(super) watched: u32,
}

impl Track {
    /// How many large probes are remembered.
    pub const WINDOW: u32 = 100;
    /// Consecutive unanswered probes after which nothing gets through.
    pub(super) const UNANSWERED: u32 = 5;
    /// Consecutive unanswered echo requests after which the peer's kernel does not answer any more.
    const ECHOES: u32 = 3;
    /// How many lost large probes make a path a bad one: 5 % of a full window.
    const LOSSES: u32 = Self::WINDOW / 20;

    pub(super) fn record_answer(&mut self, kind: ProbeKind, sent: Duration, now: Duration) {
        if kind == ProbeKind::Echo {
            (self.echoed, self.echoes_missed) = (self.echoed.max(Some(sent)), 0);
            return;
        }
        let is_large = kind == ProbeKind::Large;
        if self.is_silent() || (is_large && self.large_missed >= Self::UNANSWERED) {
            self.counted >>= self.large_missed.min(Self::WINDOW);
            (self.large_missed, self.watched) = (0, 0);
        }
        (self.unanswered, self.unanswered_since) = (0, None);
        (self.echoed, self.echoes_missed, self.is_host_silent) = (None, 0, false);
        self.answered_at = Some(now);
        match kind {
            ProbeKind::Echo => {}
            ProbeKind::Small => self.small = self.small.max(Some(sent)),
            ProbeKind::Large => {
                self.note(0, 0);
                (self.missed, self.large_missed) = (0, 0);
                self.failing_since = None;
                self.answered = self.answered.saturating_add(1);
                self.large = self.large.max(Some(sent));
                self.round_trip = Some(now.saturating_sub(sent));
            }
        }
    }

    pub(super) fn record_loss(&mut self, kind: ProbeKind, sent: Duration) {
        if kind == ProbeKind::Echo {
            self.echoes_missed = self.echoes_missed.saturating_add(1);
            self.echoed = self.echoed.filter(|_| self.echoes_missed < Self::ECHOES);
            self.is_host_silent |= self.echoed.is_none();
            return;
        }
        // A later probe may have been answered before this one was counted as lost.
        if Some(sent) > self.large.max(self.small) {
            self.unanswered = self.unanswered.saturating_add(1);
            self.unheard = self.unheard.saturating_add(1);
            self.unanswered_since.get_or_insert(sent);
            self.is_host_silent &= self.echoed.is_none_or(|echoed| sent <= echoed);
        }
        if kind == ProbeKind::Large {
            // An outage has ended if a later probe was answered already.
            let counts = u32::from(Some(sent) > self.large);
            self.note(1, counts.into());
            self.answered = 0;
            self.missed = self.missed.saturating_add(1);
            self.large_missed = self.large_missed.saturating_add(counts);
            self.failing_since.get_or_insert(sent);
        }
    }

    fn note(&mut self, lost: u128, counted: u128) {
        let full = (1 << Self::WINDOW) - 1;
        self.lost = (self.lost << 1 | lost) & full;
        self.counted = (self.counted << 1 | counted) & full;
        self.known = (self.known + 1).min(Self::WINDOW);
        self.watched = match self.watched.saturating_sub(1) {
            0 if counted > 0 => Self::WINDOW,
            watched => watched,
        };
    }

    /// Records that any packet of the peer arrived, on any path.
    pub(super) const fn record_packet(&mut self) {
        self.unheard = 0;
    }

    /// Whether nothing gets through.
    pub(super) const fn is_silent(&self) -> bool {
        self.unanswered >= Self::UNANSWERED
    }

    /// Whether nothing gets through, and the kernel of the peer must answer soon to show that only its
    /// daemon is silent.
    pub(super) const fn needs_echo(&self) -> bool {
        self.is_silent() && (self.echoes_missed > 0) == self.echoed.is_some()
    }

    /// Whether the peer's kernel answers although no probe is answered; none if that is not known yet.
    pub(super) const fn is_echoed(&self) -> Option<bool> {
        match (self.echoed, self.echoes_missed) {
            (None, 0) => None,
            (echoed, _) => Some(echoed.is_some()),
        }
    }

    /// Whether nothing gets through, and the peer's kernel shows whether only its daemon is silent; none
    /// if that is not known yet.
    pub(super) const fn is_only_daemon_silent(&self) -> Option<bool> {
        match self.is_echoed() {
            Some(_) if self.is_silent() => Some(!self.is_host_silent),
            _ => None,
        }
    }

    /// Whether packets of the peer arrive while nothing gets through. Not every packet after the
    /// first loss shows that: a peer may have sent its last one just before it stopped.
    pub(super) const fn is_heard(&self) -> bool {
        self.is_silent() && self.unheard < Self::UNANSWERED
    }

    /// Whether more probes must show if packets still get through: the last one was lost, or the
    /// last large ones, fewer than `failures`.
    pub(super) fn is_doubtful(&self, failures: u32) -> bool {
        let is_undecided = self.unanswered > 0 || (1..failures).contains(&self.large_missed);
        is_undecided && !self.is_silent()
    }

    /// Whether recent losses require more frequent probes, until the share of losses is known.
    pub(super) const fn is_watched(&self) -> bool {
        self.watched > 0 && !self.is_silent()
    }

    /// Whether small probes are answered, and `failures` large ones in a row were lost.
    pub(super) fn loses_large(&self, failures: u32) -> bool {
        self.large_missed >= failures && self.small > self.failing_since
    }

    /// Whether too many of the last large probes were lost, apart from outages: also from one that
    /// has just begun, before an echo shows what is silent.
    pub(super) fn is_lossy(&self) -> bool {
        let outage = if self.is_silent() { self.large_missed.min(Self::WINDOW) } else { 0 };
        (self.counted >> outage).count_ones() >= Self::LOSSES
    }

    /// The numbers of remembered large probes, and of lost ones among them.
    pub const fn window(&self) -> (u32, u32) {
        (self.known, self.lost.count_ones())
    }
}

/// The large direct probes that were lost in a row while the tunnel carried others.
///
/// Losses while the peer answered on neither path do not count: it may have been restarting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// When the first of the last large probes that the tunnel carried in a row was sent.
    tunnel_works_since: Option<Duration>,
    lost: u32,
    /// When the first of the lost ones was sent.
    since: Option<Duration>,
}

impl Comparison {
    pub(super) fn record_answer(&mut self, path: Path, sent: Duration) {
        match path {
            Path::Direct => self.forget_direct(),
            Path::Tunnel => {
                self.tunnel_works_since.get_or_insert(sent);
            }
        }
    }

    /// `carried` is when the last large probe that the tunnel carried was sent.
    pub(super) fn record_loss(&mut self, path: Path, sent: Duration, carried: Option<Duration>) {
        match path {
            Path::Direct if self.tunnel_works_since.is_some_and(|since| since <= sent) => {
                self.lost = self.lost.saturating_add(1);
                self.since.get_or_insert(sent);
            }
            Path::Direct => {}
            Path::Tunnel => {
                self.tunnel_works_since = carried.filter(|carried| *carried > sent);
                self.forget_direct();
            }
        }
    }

    pub(super) const fn forget_direct(&mut self) {
        (self.lost, self.since) = (0, None);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    [direct, tunnel]: [&Track; 2],
    comparison: &Comparison,
    thresholds: Thresholds,
    silent_for: Duration,
) -> ProbeVerdict {
    let recovered = direct.answered >= thresholds.successes;
    let is_silent = silent_for >= thresholds.silence && is_silent([direct, tunnel], thresholds);
    let has_spoken = silent_for.is_zero();
    match (last, failure([direct, tunnel], comparison, thresholds)) {
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

fn failure(
    [direct, tunnel]: [&Track; 2],
    comparison: &Comparison,
    thresholds: Thresholds,
) -> Option<Cause> {
    let since = comparison.since.filter(|_| comparison.lost >= thresholds.failures)?;
    let small_passes = direct.small > Some(since);
    let cause = if small_passes { Cause::LargeLost } else { Cause::NoAnswer };
    (tunnel.large > Some(since)).then_some(cause)
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

    fn small_answers(track: Track) -> Track {
        Track { small: Some(LONG), answered_at: Some(LONG), ..track }
    }

    #[test]
    fn each_row_of_the_table_holds() {
        let no_answer = Bad(Cause::NoAnswer);
        let large_lost = Bad(Cause::LargeLost);
        let nothing = Track::default();
        let old = Track { large: Some(Duration::from_secs(5)), ..answers(1) };
        let rows = [
            ("one answer makes a path good", Pending, answers(1), nothing, Good),
            ("a silent peer begins to answer", Silent, answers(1), nothing, Good),
            ("no probe has a result yet", Pending, nothing, nothing, Pending),
            ("two losses do not make a peer silent", Pending, losses(2), losses(2), Pending),
            ("the tunnel has too few losses for silence", Pending, losses(9), losses(2), Pending),
            ("a peer that never answers is silent", Pending, losses(9), losses(9), Silent),
            ("without a tunnel, direct losses suffice", Pending, losses(9), nothing, Silent),
            (
                "a peer that stopped answering is silent",
                Pending,
                losses(3),
                Track { answered_at: Some(LONG), ..losses(3) },
                Silent,
            ),
            ("a silent peer stays silent", Silent, losses(99), losses(99), Silent),
            ("two losses do not make a good path bad", Good, losses(2), answers(9), Good),
            ("only the tunnel answers", Good, losses(3), answers(1), no_answer),
            ("the same before the first verdict", Pending, losses(3), answers(1), no_answer),
            ("the same for a silent peer", Silent, losses(3), answers(1), no_answer),
            ("a restarting peer answers on no path", Good, losses(9), losses(9), Good),
            ("earlier answers on the tunnel do not count", Good, losses(9), old, Good),
            ("only large probes are lost", Good, small_answers(losses(3)), answers(1), large_lost),
            ("small probes are lost too", large_lost, losses(3), answers(1), no_answer),
            ("four answers are too few to recover", no_answer, answers(4), answers(9), no_answer),
            ("five answers make a bad path good", no_answer, answers(5), answers(9), Good),
            ("a bad path recovers without the tunnel", no_answer, answers(5), losses(9), Good),
            ("direct probes have no result yet", Pending, nothing, answers(1), Pending),
        ];
        for (row, last, direct, tunnel, expected) in rows {
            assert_eq!(judged(last, direct, tunnel, LONG), expected, "{row}");
        }
    }

    /// The verdict if the tunnel worked while the direct probes were lost.
    fn judged(
        last: ProbeVerdict,
        direct: Track,
        tunnel: Track,
        silent_for: Duration,
    ) -> ProbeVerdict {
        let comparison = Comparison {
            tunnel_works_since: None,
            lost: direct.missed,
            since: direct.failing_since,
        };
        judge(last, [&direct, &tunnel], &comparison, RULES, silent_for)
    }

    #[test]
    fn a_peer_is_silent_only_after_the_silence_interval() {
        let lost = losses(3);
        let after = |silent_for| judged(Pending, lost, lost, Duration::from_millis(silent_for));
        assert_eq!((after(1999), after(2000)), (Pending, Silent));
    }

    #[test]
    fn a_peer_that_has_sent_a_packet_is_pending_and_not_silent() {
        let lost = losses(99);
        for last in [Pending, Silent] {
            assert_eq!(judged(last, lost, lost, Duration::ZERO), Pending);
        }
    }

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn an_answer_resets_consecutive_losses() {
        let mut track = Track::default();
        track.record_loss(ProbeKind::Large, at(10));
        track.record_loss(ProbeKind::Large, at(20));
        assert_eq!((track.missed, track.failing_since), (2, Some(at(10))));
        track.record_answer(ProbeKind::Large, at(30), at(32));
        assert_eq!((track.missed, track.failing_since, track.answered), (0, None, 1));
        assert_eq!(track.round_trip, Some(at(2)));
        assert_eq!(track.window(), (3, 2));
    }

    #[test]
    fn small_probes_do_not_count_for_large_packets() {
        let mut track = Track::default();
        track.record_loss(ProbeKind::Large, at(10));
        track.record_answer(ProbeKind::Small, at(20), at(21));
        assert_eq!((track.missed, track.answered, track.window()), (1, 0, (1, 1)));
        assert_eq!(track.small, Some(at(20)));
    }

    #[test]
    fn only_the_last_probes_are_remembered() {
        let mut track = Track::default();
        (0..150).for_each(|sent| track.record_loss(ProbeKind::Large, at(sent)));
        assert_eq!(track.window(), (100, 100));
        (0..96).for_each(|sent| track.record_answer(ProbeKind::Large, at(sent), Duration::ZERO));
        assert_eq!(track.window(), (100, 4));
    }
}
