//! The processor time of an audit that finds no difference.

use std::iter::once;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tweed_lab::{Backend, Binaries, Daemon};

use crate::instruments::listener::Listener;
use crate::instruments::peer::peers;
use crate::instruments::script::Script;
use crate::instruments::site::{Site, TIMEOUT};
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, spread, thousands, time};

const COUNTS: [u32; 2] = [5000, 20_000];
/// Foreign routes: a tenth of the routes of the Internet.
const FOREIGN: u32 = 100_000;
/// After an event that causes an audit, the audit ends within this time.
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Status {
    statistics: Statistics,
}

#[derive(Deserialize)]
struct Statistics {
    dumps: u64,
    replaced: u64,
}

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let head = ["peers", "CPU of a look at everything", "CPU of as long without one"];
    sheet.table("A quiet audit", &head)?;
    // These peers are only leases: probes of them would count as the cost of an audit.
    let mut site = Site::build(binaries, Backend::Vxlan, r#""Probe":{"Enabled":false},"#)?;
    let mut goals = Vec::new();
    for count in COUNTS {
        site.grow(count)?;
        let (looking, idle) = measure(&site, count, rounds)?;
        sheet.row(&[&thousands(count), &spread(&looking), &time(idle.median())])?;
        if count == 5000 {
            let cost = looking.median().as_secs_f64() * 1000.0;
            goals.push(Goal::at_most("5,000 peers", cost, 50.0, "ms"));
            let name =
                format!("{} next to {} routes of others", thousands(count), thousands(FOREIGN));
            let link = "link add foreign up type bridge".to_owned();
            Script::write("ip", site.lab.folder().join("foreign"), once(link).chain(foreign()))?
                .run(site.node.namespace())?;
            let (looking, idle) = measure(&site, count, rounds)?;
            site.node.ip("link del foreign")?;
            sheet.row(&[&name, &spread(&looking), &time(idle.median())])?;
        }
    }
    sheet.goals(&goals)
}

fn foreign() -> impl Iterator<Item = String> {
    let first = Ipv4Addr::new(198, 18, 0, 0).to_bits();
    let to = |bits| format!("route add {} dev foreign proto bird", Ipv4Addr::from_bits(bits));
    (first..first + FOREIGN).map(to)
}

/// Any change of the underlay's link makes the daemon list everything, as its audits do: another
/// alias is enough.
fn measure(site: &Site, count: u32, rounds: usize) -> Result<(Sample<Duration>, Sample<Duration>)> {
    let listener = Listener::start(site.node.namespace())?;
    let daemon = site.start_daemon()?;
    listener.wait_for(peers(0..count), TIMEOUT).with_context(|| daemon.process().last_words())?;
    std::thread::sleep(WINDOW);
    let before = statistics(&daemon)?;
    let (mut looking, mut idle) = (Sample::default(), Sample::default());
    for round in 0..rounds {
        idle.add(used(&daemon, || Ok(()))?);
        looking
            .add(used(&daemon, || site.node.ip(format!("link set eth0 alias {round}")).map(drop))?);
    }
    let after = statistics(&daemon)?;
    let looks = usize::try_from(after.dumps - before.dumps)?;
    ensure!(looks == rounds, "the daemon looked {looks} times, not {rounds}");
    ensure!(after.replaced == before.replaced, "the audit was not quiet");
    daemon.stop()?;
    site.wipe_node()?;
    Ok((looking, idle))
}

/// Processor time of the daemon, in the window after `event`.
fn used(daemon: &Daemon, event: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let before = daemon.process().processor_time()?;
    event()?;
    std::thread::sleep(WINDOW);
    Ok(daemon.process().processor_time()?.saturating_sub(before))
}

fn statistics(daemon: &Daemon) -> Result<Statistics> {
    let status: Status = serde_json::from_str(&daemon.ctl(&["status", "-o", "json"])?)?;
    Ok(status.statistics)
}
