//! Peers that answer, stop answering and lose packets, with a simulated clock.

mod reports;

use std::collections::VecDeque;

use super::*;
use crate::model::path::{Cause, Path, ProbeVerdict};
use crate::plan::paths::{ProbeKind, answer_timeout};

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(5);

/// A board and a simulated network.
struct World {
    board: Board,
    now: Duration,
    /// Which probes are answered.
    answers: Box<dyn Fn(&ProbeRequest) -> bool>,
    /// What the answers of the peers contain.
    takes_direct: bool,
    round_trip: Duration,
    /// By how much the answers to some probes are later than the others.
    delay: fn(&ProbeRequest) -> Duration,
    /// Probes whose answers are under way, and when they were sent, by when the answers arrive.
    answered: BTreeMap<(Duration, u64), (Duration, ProbeRequest)>,
    random: u64,
    sent: Vec<(Duration, ProbeRequest)>,
    /// Lost probes, and when their answers time out.
    lost: VecDeque<(Duration, ProbeRequest)>,
    verdicts: BTreeMap<IpAddr, (Duration, ProbeVerdict)>,
}

impl World {
    fn new(peers: u8, answers: fn(&ProbeRequest) -> bool) -> Self {
        Self::of((0..peers).map(|peer| (address(peer), target(peer))), answers)
    }

    fn of(
        peers: impl Iterator<Item = (IpAddr, Target)>,
        answers: fn(&ProbeRequest) -> bool,
    ) -> Self {
        let board = Board::new(&Probe::default());
        let mut world = Self {
            board,
            now: SECOND,
            answers: Box::new(answers),
            takes_direct: true,
            round_trip: Duration::from_millis(1),
            delay: |_| Duration::ZERO,
            answered: BTreeMap::new(),
            random: 1,
            sent: Vec::new(),
            lost: VecDeque::new(),
            verdicts: BTreeMap::new(),
        };
        for (peer, target) in peers {
            world.board.update_target(peer, Some(target), SECOND);
        }
        world
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            let timeout = answer_timeout(self.board.interval);
            while let Some((until, request)) =
                self.lost.front().copied().filter(|(until, _)| *until <= self.now)
            {
                self.lost.pop_front();
                self.board.record_loss(&request, until.checked_sub(timeout).unwrap(), self.now);
            }
            let random = &mut self.random;
            let next = || {
                *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *random
            };
            for request in self.board.requests(self.now, next) {
                self.sent.push((self.now, request));
                if (self.answers)(&request) {
                    let arrival = self.now + self.round_trip + (self.delay)(&request);
                    self.answered.insert((arrival, request.number), (self.now, request));
                } else {
                    self.lost.push_back((self.now + timeout, request));
                }
            }
            while let Some(answer) = self.answered.first_entry()
                && answer.key().0 < self.now + TICK
            {
                let ((came, _), (sent, request)) = answer.remove_entry();
                self.board.record_direct(request.peer, self.takes_direct, came);
                self.board.record_answer(&request, sent, came, self.random);
            }
            for peer in self.board.take_changed() {
                self.verdicts.insert(peer, (self.now, self.board.states[&peer].verdict));
            }
        }
    }

    /// The numbers of peers with a path in use. All have the same address family.
    fn counts(&self) -> ReachabilityCounts {
        self.board.counts.get(&Family::V4).copied().unwrap_or_default()
    }

    fn verdict(&self) -> ProbeVerdict {
        self.board.states[&address(0)].verdict
    }

    /// The time from `moment` to the last verdict.
    fn took(&self, moment: Duration) -> Duration {
        self.verdicts[&address(0)].0.saturating_sub(moment)
    }
}

fn address(peer: u8) -> IpAddr {
    IpAddr::from([10, 244, peer, 0])
}

fn target(peer: u8) -> Target {
    let public_ip = IpAddr::from([172, 16, 0, peer]);
    Target { public_ip, direct: true, tunnel: true }
}

const ALL: fn(&ProbeRequest) -> bool = |_| true;
const NONE: fn(&ProbeRequest) -> bool = |_| false;
const TUNNEL: fn(&ProbeRequest) -> bool = |request| request.path == Path::Tunnel;
const SMALL: fn(&ProbeRequest) -> bool =
    |request| request.path == Path::Tunnel || request.kind == ProbeKind::Small;

#[test]
fn the_first_answer_makes_a_path_good() {
    let mut world = World::new(1, ALL);
    world.run(TICK * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
}

#[test]
fn a_failed_direct_path_is_detected_within_two_intervals() {
    for phase in 0..20 {
        let mut world = World::new(1, ALL);
        world.run(SECOND * 5 + phase * SECOND / 20);
        (world.answers, world.sent) = (Box::new(TUNNEL), Vec::new());
        let died = world.now;
        world.run(SECOND * 3);
        assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
        assert!(world.took(died) < SECOND * 2, "{:?}", world.took(died));
    }
}

#[test]
fn a_path_that_drops_large_packets_is_detected() {
    let mut world = World::new(1, ALL);
    world.run(SECOND * 5);
    world.answers = Box::new(SMALL);
    world.run(SECOND * 3);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::LargeLost));
}

#[test]
fn a_path_that_never_worked_is_detected_soon() {
    let mut world = World::new(1, TUNNEL);
    world.run(SECOND * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
}

#[test]
fn a_peer_that_answers_on_no_path_keeps_its_verdict() {
    let mut world = World::new(1, ALL);
    world.run(SECOND * 5);
    world.answers = Box::new(NONE);
    world.run(SECOND * 60);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
    world.answers = Box::new(TUNNEL);
    world.run(SECOND * 10);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
}

#[test]
fn a_peer_that_never_answers_is_silent_after_five_intervals() {
    let mut world = World::new(1, NONE);
    world.run(SECOND * 7);
    assert_eq!(world.verdict(), ProbeVerdict::Silent);
    assert!(world.took(SECOND) >= SECOND * 5);
    world.sent.clear();
    world.run(SECOND * 60);
    assert!(world.sent.len() <= 20, "{}", world.sent.len());
    world.answers = Box::new(ALL);
    world.run(SECOND * 20);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
}

#[test]
fn after_a_suspend_no_peer_is_taken_for_silent() {
    let mut world = World::new(1, NONE);
    world.run(TICK);
    world.now += SECOND * 10;
    world.run(TICK);
    assert_eq!(world.verdict(), ProbeVerdict::Pending);
    world.answers = Box::new(TUNNEL);
    world.run(SECOND * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
}

#[test]
fn a_silent_peer_that_probes_us_is_probed_at_once() {
    let mut world = World::new(1, NONE);
    world.run(SECOND * 20);
    assert_eq!(world.verdict(), ProbeVerdict::Silent);
    (world.answers, world.sent) = (Box::new(ALL), Vec::new());
    world.board.record_packet(address(0), world.now);
    world.run(TICK * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
}

#[test]
fn a_peer_that_has_sent_a_packet_is_never_silent() {
    let mut world = World::new(1, NONE);
    world.run(TICK);
    world.board.record_packet(address(0), world.now);
    world.run(SECOND * 60);
    assert_eq!(world.verdict(), ProbeVerdict::Pending);
    world.sent.clear();
    world.run(SECOND * 60);
    assert!(world.sent.len() <= 90, "{}", world.sent.len());
    world.answers = Box::new(TUNNEL);
    world.run(SECOND * 10);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
}

#[test]
fn a_silent_peer_that_sends_a_packet_becomes_pending() {
    let mut world = World::new(1, NONE);
    world.run(SECOND * 20);
    assert_eq!(world.verdict(), ProbeVerdict::Silent);
    world.board.record_packet(address(0), world.now);
    world.run(TICK);
    assert_eq!(world.verdict(), ProbeVerdict::Pending);
}

#[test]
fn a_silent_peer_can_be_probed_again_from_the_start() {
    let mut world = World::new(1, NONE);
    world.run(SECOND * 60);
    assert_eq!(world.verdict(), ProbeVerdict::Silent);
    world.board.restart(&[address(0)].into(), world.now);
    world.answers = Box::new(TUNNEL);
    world.run(TICK);
    assert_eq!(world.verdict(), ProbeVerdict::Pending);
    world.run(SECOND * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Bad(Cause::NoAnswer));
}

#[test]
fn a_bad_path_recovers_after_several_consecutive_answers() {
    let mut world = World::new(1, TUNNEL);
    world.run(SECOND * 10);
    world.answers = Box::new(ALL);
    let repaired = world.now;
    world.run(SECOND * 20);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
    assert!(world.took(repaired) > SECOND * 3, "{:?}", world.took(repaired));
}

#[test]
fn a_path_that_flaps_needs_more_answers_to_recover() {
    let mut world = World::new(1, ALL);
    let mut proofs = Vec::new();
    for _ in 0..3 {
        world.answers = Box::new(TUNNEL);
        world.run(SECOND * 5);
        world.answers = Box::new(ALL);
        let repaired = world.now;
        world.run(SECOND * 60);
        assert_eq!(world.verdict(), ProbeVerdict::Good);
        proofs.push(world.took(repaired));
    }
    assert!(proofs[1] > proofs[0] * 3 / 2 && proofs[2] > proofs[1] * 3 / 2, "{proofs:?}");
}

#[test]
fn a_peer_that_takes_no_direct_packets_yet_is_not_judged() {
    let mut world = World::new(1, TUNNEL);
    world.takes_direct = false;
    for _ in 0..2000 {
        world.run(TICK * 4);
        assert_eq!(world.verdict(), ProbeVerdict::Pending);
    }
    world.sent.clear();
    world.run(SECOND / 2);
    assert!(world.sent.len() <= 3, "{}", world.sent.len());
    world.takes_direct = true;
    world.answers = Box::new(ALL);
    world.run(SECOND * 2);
    assert_eq!(world.verdict(), ProbeVerdict::Good);
}

#[test]
fn a_peer_that_no_longer_takes_direct_packets_keeps_its_verdict() {
    for away in 1..40 {
        let mut world = World::new(1, ALL);
        world.run(SECOND * 5);
        // It restarts without `Mixed`: some direct probes are under way when it answers.
        world.answers = Box::new(NONE);
        world.run(TICK * away * 4);
        (world.answers, world.takes_direct) = (Box::new(TUNNEL), false);
        world.round_trip = SECOND / 5;
        world.run(SECOND * 60);
        assert_eq!(world.verdict(), ProbeVerdict::Good, "{away}");
    }
}

#[test]
fn many_peers_take_twenty_probes_per_second() {
    let mut world = World::new(250, ALL);
    world.run(SECOND * 30);
    assert!(world.verdicts.values().all(|(_, verdict)| *verdict == ProbeVerdict::Good));
    world.sent.clear();
    world.run(SECOND * 60);
    let rate = world.sent.len() / 60;
    assert!((15..=30).contains(&rate), "{rate}");
}

#[test]
fn many_new_peers_are_judged_within_seconds_and_within_the_rate_limit() {
    let mut world = World::new(250, ALL);
    world.run(SECOND * 4);
    assert_eq!(world.verdicts.values().filter(|(_, it)| *it == ProbeVerdict::Good).count(), 250);
    let busiest = (0..4).map(|second| {
        let (from, to) = (SECOND * (second + 1), SECOND * (second + 2));
        world.sent.iter().filter(|(at, _)| (from..to).contains(at)).count()
    });
    assert!(busiest.max() <= Some(300));
}

#[test]
fn a_peer_at_another_address_is_pending_again() {
    let mut world = World::new(1, ALL);
    world.run(SECOND);
    let moved = Target { public_ip: IpAddr::from([172, 16, 9, 9]), ..target(0) };
    world.answers = Box::new(NONE);
    world.board.update_target(address(0), Some(moved), world.now);
    world.run(TICK);
    assert_eq!(world.verdict(), ProbeVerdict::Pending);
    world.board.update_target(address(0), None, world.now);
    world.run(SECOND * 10);
    world.sent.clear();
    world.run(SECOND * 10);
    assert_eq!((world.sent.len(), world.board.next()), (0, None));
}

#[test]
fn a_probe_of_a_former_target_does_not_count_for_the_new_one() {
    let mut board = Board::new(&Probe::default());
    board.update_target(address(1), Some(target(1)), SECOND);
    let former = board.requests(SECOND, || 0)[0];
    let moved = Target { public_ip: IpAddr::from([172, 16, 9, 9]), ..target(1) };
    board.update_target(address(1), Some(moved), SECOND);
    board.record_answer(&former, SECOND, SECOND, 0);
    board.record_loss(&former, SECOND, SECOND);
    let state = |board: &Board| board.states[&address(1)].clone();
    let mut unknown = ProbeState::new(moved, former.number + 1);
    unknown.turn = SECOND;
    assert_eq!(*state(&board), unknown);
    let request = board.requests(SECOND, || 0)[0];
    board.record_answer(&request, SECOND, SECOND, 0);
    assert_eq!(state(&board).verdict, ProbeVerdict::Good);
}

#[test]
fn a_delayed_loop_counts_no_loss() {
    let mut board = Board::new(&Probe::default());
    board.update_target(address(1), Some(target(1)), SECOND);
    // The requests are sent a minute later, and their answers applied another minute later.
    let (sent, applied) = (SECOND * 60, SECOND * 120);
    for request in board.requests(SECOND, || 0) {
        board.record_answer(&request, sent, sent + TICK, 0);
    }
    board.requests(applied, || 0);
    let state = &board.states[&address(1)];
    let direct = state.track(Path::Direct);
    assert_eq!((state.verdict, direct.missed), (ProbeVerdict::Good, 0));
    assert_eq!(direct.round_trip, Some(TICK));
}

#[test]
fn losses_before_the_peer_probed_paths_are_not_counted() {
    let state = |world: &World| world.board.states[&address(0)].clone();
    let mut world = World::new(1, NONE);
    world.run(SECOND * 80);
    assert_eq!(state(&world).window(Path::Direct), (0, 0));
    world.answers = Box::new(ALL);
    world.run(SECOND * 20);
    for path in [Path::Direct, Path::Tunnel] {
        let (asked, lost) = state(&world).window(path);
        assert!(asked > 0 && lost == 0, "{lost} of {asked}");
    }
    // From then on, losses are counted.
    world.answers = Box::new(NONE);
    world.run(SECOND * 5);
    assert!(state(&world).window(Path::Direct).1 >= 3);
}

#[test]
fn a_direct_path_is_not_judged_by_probes_before_the_peer_probed_paths() {
    let state = |world: &World| world.board.states[&address(0)].clone();
    let mut world = World::new(1, NONE);
    world.run(SECOND * 80);
    // Its first packet is the answer through the tunnel.
    world.answers = Box::new(TUNNEL);
    while state(&world).track(Path::Tunnel).answered_at.is_none() {
        world.run(TICK);
    }
    world.answers = Box::new(ALL);
    // A silent peer is probed again only some seconds later.
    for _ in 0..2000 {
        world.run(TICK);
        assert!(!matches!(world.verdict(), ProbeVerdict::Bad(_)));
        assert_eq!(state(&world).window(Path::Direct).1, 0);
    }
    assert_eq!(world.verdict(), ProbeVerdict::Good);
}
