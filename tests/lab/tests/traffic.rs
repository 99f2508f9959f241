//! Streams and requests notice what applications would, and nothing else.

mod cluster;

use std::time::Duration;

use anyhow::Result;
use cluster::{direct, subnet};
use tweed_lab::{Family, Tally, Traffic, eventually};

#[test]
fn on_a_quiet_network_messages_and_pages_arrive() -> Result<()> {
    let it = direct(3);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    let mut first = Tally::default();
    eventually(Duration::from_secs(20), || {
        first += traffic.take();
        first.echoes > 60 && first.pages > 12
    })?;
    assert!(first.longest_wait > Duration::ZERO);
    let all = traffic.finish()?;
    assert_eq!((first.broken + all.broken, first.failed + all.failed), (0, 0));
    assert!(all.echoes < first.echoes, "{all:?}: not counted again");
    Ok(())
}

#[test]
fn without_a_path_pages_fail_and_a_stream_waits_for_it() -> Result<()> {
    let it = direct(2);
    let traffic = Traffic::start(&it.lab.pairs(Family::V4))?;
    it.nodes[0].ip(format!("route del {}", subnet(1)))?;
    // Otherwise the default route would return an error, which ends a stream.
    it.nodes[0].ip(format!("route add blackhole {}", subnet(1)))?;
    let mut all = Tally::default();
    eventually(Duration::from_secs(8), || {
        all += traffic.take();
        all.failed > 0
    })?;
    it.nodes[0].ip(format!("route del blackhole {}", subnet(1)))?;
    it.route_directly(0, 1);
    eventually(Duration::from_secs(20), || {
        all += traffic.take();
        all.longest_wait > Duration::from_millis(200)
    })?;
    all += traffic.finish()?;
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
    eventually(Duration::from_secs(10), || {
        all += traffic.take();
        all.broken >= 2
    })?;
    Ok(())
}
