//! Streams and requests notice what applications would, and nothing else.

#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

mod cluster;

use std::time::{Duration, Instant};

use anyhow::Result;
use cluster::{direct, subnet};
use tweed_lab::{Family, PATIENCE, Tally, Traffic, eventually};

#[test]
fn on_a_quiet_network_messages_and_pages_arrive() -> Result<()> {
    let it = direct(3);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    let (mut first, mut taken) = (Tally::default(), Instant::now());
    eventually(PATIENCE, || {
        taken = Instant::now();
        first += traffic.take();
        first.echoes > 60 && first.pages > 12
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
fn without_a_path_pages_fail_and_a_stream_waits_for_it() -> Result<()> {
    let it = direct(2);
    let cut = || -> Result<()> {
        it.nodes[0].ip(format!("route del {}", subnet(1)))?;
        // Otherwise the default route would return an error, which ends a stream.
        it.nodes[0].ip(format!("route add blackhole {}", subnet(1))).map(drop)
    };
    let join = || -> Result<()> {
        it.nodes[0].ip(format!("route del blackhole {}", subnet(1)))?;
        it.route_directly(0, 1);
        Ok(())
    };
    // Until a page fails, the pauses of TCP become longer than a stream waits.
    let pages = Traffic::start(&it.lab.pairs(Family::V4))?;
    cut()?;
    eventually(PATIENCE, || pages.take().failed > 0)?;
    join()?;
    pages.finish()?;
    let (streams, mut all) = (Traffic::start(&it.lab.pairs(Family::V4))?, Tally::default());
    cut()?;
    std::thread::sleep(Duration::from_millis(400));
    join()?;
    eventually(PATIENCE, || {
        all += streams.take();
        all.longest_wait > Duration::from_millis(200)
    })?;
    all += streams.finish()?;
    assert_eq!(all.broken, 0);
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
        all += traffic.take();
        all.broken >= 2
    })?;
    Ok(())
}
