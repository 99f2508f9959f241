//! How soon the board reports that peers became unreachable or reachable again.

use std::cell::RefCell;

use super::*;
use crate::model::path::{DegradedCause, UnknownCause};

/// A cluster of `number` peers that answer by `path`, the path in use. Between nodes without
/// `Mixed`, only that path is probed.
fn cluster(number: u16, path: Path, mixed: bool) -> World {
    let target = |peer| {
        let public_ip = IpAddr::from([172, 16, high(peer), low(peer)]);
        let (direct, tunnel) = (mixed || path == Path::Direct, mixed || path == Path::Tunnel);
        Target { public_ip, direct, tunnel }
    };
    let mut world = World::of((0..number).map(|peer| (wide(peer), target(peer))), ALL);
    for peer in 0..number {
        let used = UsedPath { path, direct_fails: false };
        world.board.use_path(wide(peer), Some(used), world.now);
    }
    // Until all have answered at the steady pace.
    world.run(round(number) * 2 + SECOND * 10);
    assert_eq!(world.counts().reachable, usize::from(number));
    world.board.take_moved();
    world
}

fn wide(peer: u16) -> IpAddr {
    IpAddr::from([10, 128 + high(peer), low(peer), 0])
}

const fn high(peer: u16) -> u8 {
    peer.to_be_bytes()[0]
}

const fn low(peer: u16) -> u8 {
    peer.to_be_bytes()[1]
}

/// The longest time between two probes of one peer.
fn round(number: u16) -> Duration {
    Pace::Steady.interval(SECOND, number.into()) * 11 / 10
}

/// How long it takes at most to report an unreachable peer.
fn limit(number: u16) -> Duration {
    match number {
        ..=100 => SECOND * 10,
        101..=200 => SECOND * 15,
        201.. => round(number) + SECOND * 3,
    }
}

/// Runs until `peers` peers have this state; returns how long that took.
fn time_until(world: &mut World, state: ReachabilityState, peers: usize) -> Duration {
    let began = world.now;
    while *world.counts().of(state) < peers {
        world.run(TICK);
        assert!(world.now < began + SECOND * 200, "{:?}", world.counts());
    }
    world.now.checked_sub(began).unwrap()
}

const CLUSTERS: [(Path, bool); 4] =
    [(Path::Tunnel, false), (Path::Direct, false), (Path::Tunnel, true), (Path::Direct, true)];

#[test]
fn a_peer_that_falls_silent_is_reported_in_time() {
    for number in [3, 100, 200, 1000] {
        for (path, mixed) in CLUSTERS {
            let mut world = cluster(number, path, mixed);
            let dead = wide(number / 2);
            world.answers = Box::new(move |request| request.peer != dead);
            let took = time_until(&mut world, ReachabilityState::Unreachable, 1);
            assert!(took <= limit(number), "{number} {path:?} {mixed}: {took:?}");
            assert_eq!(world.board.failing().collect::<Vec<_>>(), [dead]);
            let known = world.board.reachability(dead, world.now).unwrap();
            let PeerReachability::Unreachable { cause, since_ms } = known else { panic!() };
            assert_eq!(cause, UnreachableCause::PeerSilent);
            assert!((1..=3000).contains(&since_ms.unwrap()), "{since_ms:?}");
            world.answers = Box::new(ALL);
            let took = time_until(&mut world, ReachabilityState::Reachable, number.into());
            assert!(took <= round(number), "{number} {path:?} {mixed}: {took:?}");
        }
    }
}

#[test]
fn all_peers_that_fall_silent_are_reported_in_time() {
    for number in [3, 100, 200, 1000] {
        for (path, mixed) in CLUSTERS {
            let mut world = cluster(number, path, mixed);
            world.answers = Box::new(NONE);
            let took = time_until(&mut world, ReachabilityState::Unreachable, number.into());
            // Both paths of thousands of peers in doubt, and echo requests, share the budget for urgent
            // probes.
            let compared = if mixed { SECOND * 3 } else { Duration::ZERO };
            assert!(took <= limit(number) + compared, "{number} {path:?} {mixed}: {took:?}");
            let known = world.board.reachability(wide(0), world.now);
            let is_alone = matches!(
                known,
                Some(PeerReachability::Unreachable { cause: UnreachableCause::AllSilent, .. })
            );
            assert!(is_alone, "{known:?}");
            world.answers = Box::new(ALL);
            let took = time_until(&mut world, ReachabilityState::Reachable, number.into());
            assert!(took <= round(number), "{number} {path:?} {mixed}: {took:?}");
        }
    }
}

const ECHO: fn(&ProbeRequest) -> bool = |request| request.kind == ProbeKind::Echo;

/// The time until the first peer is unknown, of a cluster whose peers stop their daemons.
fn stopped_daemons(number: u16, path: Path, mixed: bool) -> World {
    let mut world = cluster(number, path, mixed);
    world.answers = Box::new(ECHO);
    let took = time_until(&mut world, ReachabilityState::Unknown, number.into());
    assert!(took <= limit(number) + SECOND * 3, "{number} {path:?} {mixed}: {took:?}");
    let known = world.board.reachability(wide(0), world.now);
    let cause = UnknownCause::DaemonSilent;
    assert_eq!(known, Some(PeerReachability::Unknown { cause }));
    world
}

#[test]
fn peers_whose_kernels_answer_are_not_unreachable() {
    for (path, mixed) in CLUSTERS {
        for number in [3, 100] {
            let mut world = stopped_daemons(number, path, mixed);
            world.run(SECOND * 120);
            assert_eq!(world.counts().unknown, usize::from(number), "it does not change");
            // They come back.
            world.answers = Box::new(ALL);
            let took = time_until(&mut world, ReachabilityState::Reachable, number.into());
            assert!(took <= round(number) * 2, "{number} {path:?} {mixed}: {took:?}");
        }
    }
}

#[test]
fn replayed_packets_of_a_stopped_daemon_are_no_reason_to_probe_without_limit() {
    for (path, mixed) in CLUSTERS {
        let mut world = stopped_daemons(3, path, mixed);
        world.sent.clear();
        for _ in 0..2000 {
            world.board.record_packet(wide(0), world.now);
            world.run(TICK);
        }
        let probes = world.sent.iter().filter(|(_, request)| request.peer == wide(0));
        let turns: BTreeSet<_> = probes.map(|(at, _)| *at).collect();
        // Ten seconds, and ten turns of a doubtful path in each.
        assert!((10..=101).contains(&turns.len()), "{path:?} {mixed}: {}", turns.len());
        let known = world.board.reachability(wide(0), world.now).map(|known| known.state());
        assert_eq!(known, Some(ReachabilityState::Unknown), "{path:?} {mixed}");
        // The first packet after a pause causes a probe at once.
        (world.sent, world.now) = (Vec::new(), world.now + SECOND / 5);
        world.board.record_packet(wide(0), world.now);
        world.run(TICK);
        assert!(world.sent.iter().any(|(_, request)| request.peer == wide(0)), "{path:?} {mixed}");
    }
}

#[test]
fn a_peer_that_is_back_is_never_one_without_a_daemon() {
    for (path, mixed) in CLUSTERS {
        let mut world = cluster(3, path, mixed);
        world.answers = Box::new(NONE);
        time_until(&mut world, ReachabilityState::Unreachable, 3);
        // Its host answers an echo request before its daemon is probed.
        let echoed = RefCell::new(BTreeSet::new());
        world.answers = Box::new(move |request| {
            let mut echoed = echoed.borrow_mut();
            echoed.contains(&request.peer) || (ECHO(request) && echoed.insert(request.peer))
        });
        while world.counts().reachable < 3 {
            world.run(TICK);
            assert_eq!(world.counts().unknown, 0, "{path:?} {mixed}");
        }
    }
}

/// Which answers come later than the others, by one tick.
const LATER: [fn(&ProbeRequest) -> Duration; 3] = [
    |request| TICK * u32::from(request.path == Path::Direct),
    |request| TICK * u32::from(request.path == Path::Tunnel),
    |request| TICK * u32::from(request.kind == ProbeKind::Large),
];

#[test]
fn a_peer_whose_daemon_restarts_is_not_degraded_and_keeps_its_verdict() {
    for (later, (path, mixed)) in LATER.iter().flat_map(|it| CLUSTERS.map(|cluster| (it, cluster)))
    {
        for silence in 1..50 {
            let mut world = cluster(1, path, mixed);
            world.delay = *later;
            world.answers = Box::new(NONE);
            world.run(SECOND * silence / 3);
            world.verdicts.clear();
            world.answers = Box::new(ALL);
            for _ in 0..1000 {
                world.run(TICK);
                assert_eq!(world.counts().degraded, 0, "{path:?} {mixed} {silence}");
            }
            assert_eq!(world.verdicts, BTreeMap::new(), "{path:?} {mixed} {silence}");
        }
    }
}

#[test]
fn a_host_that_goes_down_after_its_daemon_is_unreachable() {
    for (path, mixed) in CLUSTERS {
        for number in [3, 100] {
            let mut world = stopped_daemons(number, path, mixed);
            world.answers = Box::new(NONE);
            let took = time_until(&mut world, ReachabilityState::Unreachable, number.into());
            assert!(took <= round(number) * 2 + SECOND * 6, "{number} {path:?} {mixed}: {took:?}");
            // The host is up again first.
            world.answers = Box::new(ECHO);
            time_until(&mut world, ReachabilityState::Unknown, number.into());
        }
    }
}

#[test]
fn a_silent_peer_costs_no_more_probes_than_one_that_answers() {
    let mut world = cluster(100, Path::Tunnel, false);
    let sent = |world: &mut World| {
        world.sent.clear();
        world.run(SECOND * 60);
        world.sent.len()
    };
    let before = sent(&mut world);
    world.answers = Box::new(NONE);
    world.run(SECOND * 30);
    let after = sent(&mut world);
    assert!(after <= before * 11 / 10, "{before}, {after}");
}

#[test]
fn a_tunnel_that_fails_alone_is_the_cause() {
    let mut world = cluster(3, Path::Tunnel, true);
    world.answers = Box::new(|request| request.path == Path::Direct);
    time_until(&mut world, ReachabilityState::Unreachable, 3);
    let known = world.board.reachability(wide(0), world.now);
    let is_tunnel = matches!(
        known,
        Some(PeerReachability::Unreachable { cause: UnreachableCause::TunnelSilent, .. })
    );
    assert!(is_tunnel, "{known:?}");
}

#[test]
fn a_path_that_drops_only_large_packets_is_degraded() {
    let mut world = cluster(3, Path::Tunnel, false);
    world.answers = Box::new(|request| request.kind == ProbeKind::Small);
    time_until(&mut world, ReachabilityState::Degraded, 3);
    // It stays so, however long.
    for _ in 0..100 {
        world.run(SECOND);
        let known = world.board.reachability(wide(0), world.now);
        let cause = DegradedCause::LargeLost;
        assert_eq!(known, Some(PeerReachability::Degraded { cause }));
    }
    // After an outage, too.
    world.answers = Box::new(NONE);
    time_until(&mut world, ReachabilityState::Unreachable, 3);
    world.answers = Box::new(|request| request.kind == ProbeKind::Small);
    time_until(&mut world, ReachabilityState::Degraded, 3);
    world.answers = Box::new(ALL);
    let took = time_until(&mut world, ReachabilityState::Reachable, 3);
    assert!(took <= round(3), "{took:?}");
}

#[test]
fn a_lossy_path_in_a_large_cluster_is_measured_soon() {
    let mut world = cluster(1000, Path::Tunnel, false);
    let lossy = wide(7);
    world.answers = Box::new(move |request| request.peer != lossy || request.number % 10 > 0);
    while world.board.states[&lossy].track(Path::Tunnel).watched == 0 {
        world.run(SECOND);
    }
    let took = time_until(&mut world, ReachabilityState::Degraded, 1);
    assert!(took <= SECOND * 150, "{took:?}");
    let known = world.board.reachability(lossy, world.now);
    assert_eq!(known, Some(PeerReachability::Degraded { cause: DegradedCause::Loss }));
}

#[test]
fn a_peer_without_a_path_is_not_counted() {
    let mut world = cluster(3, Path::Tunnel, false);
    world.board.use_path(wide(0), None, world.now);
    assert_eq!(world.counts().total(), 2);
    assert_eq!(world.board.reachability(wide(0), world.now), None);
    world.board.update_target(wide(1), None, world.now);
    assert_eq!(world.counts().total(), 1);
    assert_eq!(world.board.take_moved(), [wide(0), wide(1)].into());
}

#[test]
fn a_peer_that_never_answers_through_the_tunnel_is_unknown_and_rarely_probed() {
    let mut world = cluster(1, Path::Tunnel, false);
    let target = world.board.states[&wide(0)].target;
    world.answers = Box::new(NONE);
    world.board.update_target(wide(0), None, world.now);
    world.board.update_target(wide(0), Some(target), world.now);
    let used = UsedPath { path: Path::Tunnel, direct_fails: false };
    world.board.use_path(wide(0), Some(used), world.now);
    world.run(SECOND * 10);
    let known = world.board.reachability(wide(0), world.now);
    let cause = UnknownCause::NeverAnswered;
    assert_eq!(known, Some(PeerReachability::Unknown { cause }));
    world.sent.clear();
    world.run(SECOND * 60);
    assert!(world.sent.len() <= 10, "{}", world.sent.len());
    // Its first packet is a reason to probe it at once.
    world.answers = Box::new(ALL);
    world.board.record_packet(wide(0), world.now);
    time_until(&mut world, ReachabilityState::Reachable, 1);
}
