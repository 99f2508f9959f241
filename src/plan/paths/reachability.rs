//! Whether a peer is reachable by the path in use: for reports only, the plan does not depend on it.

use std::time::Duration;

use super::state::{ProbeState, UsedPath};
use super::verdict::Thresholds;
use crate::model::path::{DegradedCause, Path, PeerReachability, UnknownCause, UnreachableCause};

/// Silence is unreachability only for a peer that has sent a packet before: another may run flannel.
pub(super) fn reachability(
    state: &ProbeState,
    used: UsedPath,
    thresholds: Thresholds,
    now: Duration,
) -> PeerReachability {
    let track = state.track(used.path);
    if state.first_packet.is_none() {
        let probed_for = state.first_probe.map(|since| now.saturating_sub(since));
        let is_old = probed_for.is_some_and(|time| time >= thresholds.silence);
        let cause = if is_old { UnknownCause::NeverAnswered } else { UnknownCause::TooEarly };
        return PeerReachability::Unknown { cause };
    }
    let is_only_daemon_silent = track.is_only_daemon_silent();
    if is_only_daemon_silent == Some(true) {
        return PeerReachability::Unknown { cause: UnknownCause::DaemonSilent };
    }
    if let (Some(false), Some(since)) = (is_only_daemon_silent, track.unanswered_since) {
        let since_ms = u64::try_from(now.saturating_sub(since).as_millis()).ok();
        return PeerReachability::Unreachable { cause: cause(state, used.path, since), since_ms };
    }
    if track.answered_at.is_none() {
        return PeerReachability::Unknown { cause: UnknownCause::TooEarly };
    }
    let faults = [
        (used.direct_fails, DegradedCause::DirectFails),
        (track.loses_large(thresholds.failures), DegradedCause::LargeLost),
        (track.is_lossy(), DegradedCause::Loss),
    ];
    let fault = faults.into_iter().find_map(|(is_present, cause)| is_present.then_some(cause));
    fault.map_or(PeerReachability::Reachable, |cause| PeerReachability::Degraded { cause })
}

/// Why nothing gets through by `path` since `since`.
fn cause(state: &ProbeState, path: Path, since: Duration) -> UnreachableCause {
    let (other, silent) = match path {
        Path::Direct => (Path::Tunnel, UnreachableCause::DirectSilent),
        Path::Tunnel => (Path::Direct, UnreachableCause::TunnelSilent),
    };
    let other = state.track(other);
    if other.answered_at.is_some_and(|answered| answered > since) && !other.is_silent() {
        silent
    } else if state.track(path).is_heard() {
        UnreachableCause::OneDirection
    } else {
        UnreachableCause::PeerSilent
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::state::Target;
    use super::super::verdict::{ProbeKind, Track};
    use super::*;
    use crate::model::path::ReachabilityState;

    const RULES: Thresholds =
        Thresholds { failures: 3, successes: 5, silence: Duration::from_secs(5) };
    const SECOND: Duration = Duration::from_secs(1);
    const START: Duration = Duration::from_secs(100);

    /// A path with these results, one per second: `+` and `-` for a large probe that was answered
    /// or lost, `s` and `x` for a small one, `e` and `l` for an echo request.
    fn results(results: &str) -> Track {
        let mut track = Track::default();
        for (number, result) in (0..).zip(results.chars()) {
            let sent = START + SECOND * number;
            match result {
                '+' => track.record_answer(ProbeKind::Large, sent, sent),
                's' => track.record_answer(ProbeKind::Small, sent, sent),
                '-' => track.record_loss(ProbeKind::Large, sent),
                'e' => track.record_answer(ProbeKind::Echo, sent, sent),
                'l' => track.record_loss(ProbeKind::Echo, sent),
                _ => track.record_loss(ProbeKind::Small, sent),
            }
        }
        track
    }

    fn state(direct: Track, tunnel: Track) -> ProbeState {
        let public_ip = IpAddr::from([172, 16, 0, 9]);
        let target = Target { public_ip, direct: true, tunnel: true };
        let mut state = ProbeState::new(target, 0);
        *state.track_mut(Path::Direct) = direct;
        *state.track_mut(Path::Tunnel) = tunnel;
        (state.first_packet, state.first_probe) = (Some(START), Some(START));
        state
    }

    fn by(state: &ProbeState, path: Path) -> PeerReachability {
        let used = UsedPath { path, direct_fails: false };
        reachability(state, used, RULES, START + SECOND * 1000)
    }

    const REACHABLE: PeerReachability = PeerReachability::Reachable;

    const fn degraded(cause: DegradedCause) -> PeerReachability {
        PeerReachability::Degraded { cause }
    }

    const fn unreachable(cause: UnreachableCause, since: u64) -> PeerReachability {
        PeerReachability::Unreachable { cause, since_ms: Some((1000 - since) * 1000) }
    }

    #[test]
    fn each_row_of_the_table_holds() {
        let loss = degraded(DegradedCause::Loss);
        let large_lost = degraded(DegradedCause::LargeLost);
        let silent = |since| unreachable(UnreachableCause::PeerSilent, since);
        let daemon_silent = PeerReachability::Unknown { cause: UnknownCause::DaemonSilent };
        let too_early = PeerReachability::Unknown { cause: UnknownCause::TooEarly };
        let with_losses = |lost: usize| ["+".repeat(100 - 2 * lost), "-+".repeat(lost)].concat();
        let rows = [
            ("the last probe was answered", "+".to_owned(), REACHABLE),
            ("no result yet", String::new(), too_early),
            ("a path that was never answered is undecided", "----".to_owned(), too_early),
            ("and is silent after five probes", "----l-".to_owned(), silent(0)),
            ("some lost probes are no outage", "+-x-x".to_owned(), REACHABLE),
            ("five in a row are", "+-x-x-l".to_owned(), silent(1)),
            ("of any size", "+xxlxxx".to_owned(), silent(1)),
            ("five large ones are no share of losses", "+-----".to_owned(), REACHABLE),
            ("but earlier losses still are", with_losses(5) + "-----", loss),
            ("without an echo, too", "+xxlxlxlxlxl".to_owned(), silent(1)),
            ("not before an echo is missing", "+xxxxxx".to_owned(), REACHABLE),
            ("a kernel answers without its daemon", "+xxexexex".to_owned(), daemon_silent),
            ("which two lost echoes do not change", "+xxexxxll".to_owned(), daemon_silent),
            ("three do", "+xxexxxlll".to_owned(), silent(1)),
            ("the host may be back as a whole", "+xxexxxllle".to_owned(), silent(1)),
            ("its daemon is not", "+xxexxxlllex".to_owned(), daemon_silent),
            ("a peer that is back is reachable", "+xxexxxllle+".to_owned(), REACHABLE),
            ("an answer ends it", "+xxexexex+".to_owned(), REACHABLE),
            ("and what the kernel answered before", "+xxexexex+xxxxxl".to_owned(), silent(10)),
            ("one answer ends it", "+----l--+".to_owned(), REACHABLE),
            ("also that to a small probe", "+----l--s".to_owned(), REACHABLE),
            ("four of a hundred are few", with_losses(4), REACHABLE),
            ("five of a hundred are many", with_losses(5), loss),
            ("losses leave the window", [with_losses(9), "+".repeat(100)].concat(), REACHABLE),
            ("the losses of an outage do not count", format!("{}+", "-".repeat(50)), REACHABLE),
            ("later ones do", format!("{}{}", "-".repeat(50), "+-".repeat(5)), loss),
            ("those before it do", format!("{}------+", "+-".repeat(6)), loss),
            ("an outage of large ones is over", format!("+{}+", "-s".repeat(50)), REACHABLE),
            ("large ones are lost", "+-s-s-s".to_owned(), large_lost),
            ("two are too few for that", "+-s-s".to_owned(), REACHABLE),
            ("after an outage as well", format!("{}s-s-s-s", "-".repeat(9)), large_lost),
        ];
        for (row, path, expected) in rows {
            let (used, other) = (results(&path), Track::default());
            assert_eq!(by(&state(used, other), Path::Direct), expected, "{row}: {path}");
            assert_eq!(by(&state(other, used), Path::Tunnel), expected, "{row}: {path}");
        }
    }

    #[test]
    fn the_path_that_is_not_used_only_names_the_cause() {
        let (silent, answered) = (results("+-----l"), results("+++++++"));
        assert_eq!(by(&state(silent, answered), Path::Tunnel), REACHABLE);
        assert_eq!(by(&state(answered, silent), Path::Direct), REACHABLE);
        let tunnel = unreachable(UnreachableCause::TunnelSilent, 1);
        assert_eq!(by(&state(answered, silent), Path::Tunnel), tunnel);
        let direct = unreachable(UnreachableCause::DirectSilent, 1);
        assert_eq!(by(&state(silent, answered), Path::Direct), direct);
        let both = unreachable(UnreachableCause::PeerSilent, 1);
        assert_eq!(by(&state(silent, silent), Path::Direct), both);
    }

    #[test]
    fn packets_of_a_silent_peer_show_that_one_direction_works() {
        let mut peer = state(results("+-----l"), Track::default());
        let cause = |peer: &ProbeState| match by(peer, Path::Direct) {
            PeerReachability::Unreachable { cause, .. } => cause,
            other => panic!("{other:?}"),
        };
        assert_eq!(cause(&peer), UnreachableCause::PeerSilent);
        peer.record_packet(START + SECOND * 6);
        assert_eq!(cause(&peer), UnreachableCause::OneDirection);
        // Then it stops.
        for seconds in 7..12 {
            assert_eq!(cause(&peer), UnreachableCause::OneDirection);
            let sent = START + SECOND * seconds;
            peer.track_mut(Path::Direct).record_loss(ProbeKind::Large, sent);
        }
        assert_eq!(cause(&peer), UnreachableCause::PeerSilent);
    }

    #[test]
    fn a_packet_that_was_under_way_when_a_peer_stopped_shows_no_direction() {
        let mut peer = state(results("+-l"), Track::default());
        peer.record_packet(START + SECOND * 2);
        let direct = peer.track_mut(Path::Direct);
        direct.record_loss(ProbeKind::Large, START + SECOND * 2);
        for seconds in 3..7 {
            direct.record_loss(ProbeKind::Small, START + SECOND * seconds);
        }
        assert_eq!(by(&peer, Path::Direct), unreachable(UnreachableCause::PeerSilent, 1));
    }

    #[test]
    fn a_peer_on_its_fallback_is_degraded() {
        let state = state(results("+----"), results("+++++"));
        let used = UsedPath { path: Path::Tunnel, direct_fails: true };
        let now = START + SECOND * 10;
        let expected = degraded(DegradedCause::DirectFails);
        assert_eq!(reachability(&state, used, RULES, now), expected);
    }

    #[test]
    fn a_peer_that_never_sent_a_packet_stays_unknown() {
        let mut silent = state(results("---------"), results("---------"));
        silent.first_packet = None;
        let used = UsedPath { path: Path::Direct, direct_fails: false };
        let cause = |seconds| match reachability(&silent, used, RULES, START + SECOND * seconds) {
            PeerReachability::Unknown { cause } => cause,
            other => panic!("{other:?}"),
        };
        assert_eq!((cause(4), cause(5)), (UnknownCause::TooEarly, UnknownCause::NeverAnswered));
        assert_eq!(by(&silent, Path::Direct).state(), ReachabilityState::Unknown);
    }
}
