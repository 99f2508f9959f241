//! Streams and requests notice what applications would, and nothing else.

#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

mod cluster;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster::{direct, subnet};
use tweed_lab::{Family, PATIENCE, Tally, Traffic, eventually};

#[test]
fn on_a_quiet_network_messages_and_pages_arrive() -> Result<()> {
    let it = direct(3);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    let (mut first, mut taken) = (Tally::default(), Instant::now());
    eventually(PATIENCE, || {
        taken = Instant::now();
        first += traffic.take()?;
        ensure!(first.echoes > 60 && first.pages > 12, "{first:?}");
        Ok(())
    })?;
    assert!(first.longest_wait > Duration::ZERO);
    let all = traffic.finish()?;
    assert_eq!((first.broken + all.broken, first.failed + all.failed), (0, 0));
    // Six streams, each with ten messages per second.
    let most = 6 * (taken.elapsed().as_millis() / 100 + 2);
    assert!(u128::from(all.echoes) <= most, "{all:?}: not counted again");
    Ok(())
}

#[test]
fn a_path_that_is_cut_just_before_the_counts_are_taken_is_in_them() -> Result<()> {
    let it = direct(2);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    let quiet = traffic.take()?;
    assert_eq!((quiet.broken, quiet.failed), (0, 0));
    it.cut(0, 1);
    let all = traffic.take()?;
    assert_eq!((all.broken, all.failed), (2, 2), "{all:?}");
    Ok(())
}

#[test]
fn a_stream_waits_for_a_path_that_comes_back() -> Result<()> {
    let it = direct(2);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    traffic.take()?;
    it.cut(0, 1);
    std::thread::sleep(Duration::from_millis(400));
    it.nodes[0].ip(format!("route del blackhole {}", subnet(1)))?;
    it.route_directly(0, 1);
    let all = traffic.finish()?;
    assert!(all.longest_wait > Duration::from_millis(200), "{all:?}");
    assert_eq!((all.broken, all.failed), (0, 0));
    Ok(())
}

#[test]
fn a_stream_that_is_reset_is_reported() -> Result<()> {
    let it = direct(2);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    let pod = it.lab.pods()[0].clone();
    // ss(8) closes sockets as a dying process would.
    pod.namespace().run("ss", &["--kill", "--tcp", "state", "established"])?;
    let mut all = Tally::default();
    eventually(PATIENCE, || {
        all += traffic.take()?;
        ensure!(all.broken >= 2, "{all:?}");
        Ok(())
    })?;
    Ok(())
}
