//! All peers change their backend while the daemon is stopped; its start flips all paths at once.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Backend, Binaries, Family};

use crate::instruments::listener::Listener;
use crate::instruments::peer::{Peer, peers};
use crate::instruments::script::{Script, processor_time_of_children};
use crate::instruments::site::{Site, TIMEOUT};
use crate::report::goal::Goal;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, spread, time};

const PEERS: u32 = 5000;
/// Peers without a node answer no probes.
const MIXED: &str = r#""Mixed":true,"Probe":{"Enabled":false},"#;
/// By then, the daemon has removed the entries of the old paths.
const SETTLED: Duration = Duration::from_secs(2);

/// All peers change to this backend.
struct Turn {
    towards: Backend,
    script: Script,
    daemon_took: Sample<Duration>,
    daemon_used: Sample<Duration>,
    script_took: Sample<Duration>,
    script_used: Sample<Duration>,
}

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut site = Site::build(binaries, Backend::Vxlan, MIXED)?;
    site.grow(PEERS)?;
    fill(&site)?;
    let mut turns = [Turn::new(&site, Backend::HostGw)?, Turn::new(&site, Backend::Vxlan)?];
    let mut idle = Sample::default();
    for _ in 0..rounds {
        for turn in &mut turns {
            turn.start_daemon(&site)?;
            idle.add(start_idle(&site)?);
            turn.run_script(&site)?;
        }
    }
    show(&turns, &idle, sheet)
}

/// Gives the daemon and its rival the same entries.
fn fill(site: &Site) -> Result<()> {
    start_idle(site)?;
    site.prepare_bare()?;
    let routes = peers(0..PEERS).map(|peer| format!("route add {}", peer.route(Backend::Vxlan)));
    let entries = peers(0..PEERS).map(Peer::neighbour).chain(routes);
    let file = |name| site.lab.folder().join(name);
    Script::write("bridge", file("fdb"), peers(0..PEERS).map(Peer::fdb))?
        .run(site.bare.namespace())?;
    Script::write("ip", file("entries"), entries)?.run(site.bare.namespace())
}

/// The processor time of a start that has nothing to change.
fn start_idle(site: &Site) -> Result<Duration> {
    let daemon = site.start_daemon()?;
    daemon.wait_ready()?;
    let used = daemon.process().processor_time()?;
    std::thread::sleep(SETTLED);
    daemon.stop()?;
    Ok(used)
}

impl Turn {
    fn new(site: &Site, towards: Backend) -> Result<Self> {
        let file = site.lab.folder().join(towards.name());
        let lines = peers(0..PEERS).map(|peer| format!("route replace {}", peer.route(towards)));
        let script = Script::write("ip", file, lines)?;
        let (daemon_took, daemon_used, script_took, script_used) = Default::default();
        Ok(Self { towards, script, daemon_took, daemon_used, script_took, script_used })
    }

    fn start_daemon(&mut self, site: &Site) -> Result<()> {
        site.announce(peers(0..PEERS), self.towards)?;
        let listener = Listener::start(site.node.namespace())?;
        let daemon = site.start_daemon()?;
        let observed = listener.wait_for(peers(0..PEERS), TIMEOUT);
        self.daemon_used.add(daemon.process().processor_time()?);
        self.daemon_took.add(observed.with_context(|| daemon.process().last_words())?.length());
        std::thread::sleep(SETTLED);
        daemon.stop()?;
        self.check(site)
    }

    fn run_script(&mut self, site: &Site) -> Result<()> {
        let listener = Listener::start(site.bare.namespace())?;
        let used = processor_time_of_children()?;
        self.script.run(site.bare.namespace())?;
        self.script_used.add(processor_time_of_children()?.saturating_sub(used));
        self.script_took.add(listener.wait_for(peers(0..PEERS), TIMEOUT)?.length());
        Ok(())
    }

    /// Checks that all routes have changed.
    fn check(&self, site: &Site) -> Result<()> {
        let device = match self.towards {
            Backend::Vxlan => "flannel.1",
            Backend::HostGw => "eth0",
        };
        let routes = site.node.routes(Family::V4)?;
        let right = routes.iter().filter(|route| {
            route.destination.ends_with("/24") && route.dev.as_deref() == Some(device)
        });
        let right = right.count();
        ensure!(right == PEERS as usize, "{right} routes by {device} instead of {PEERS}");
        Ok(())
    }
}

fn show(turns: &[Turn], idle: &Sample<Duration>, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "5,000 peers turn to",
        "tweedd",
        "`ip -batch`",
        "ratio",
        "CPU of tweedd, start included",
        "CPU of `ip -batch`",
    ];
    sheet.table("All peers flipped at once", &head)?;
    for turn in turns {
        sheet.row(&[
            &turn.towards.name(),
            &spread(&turn.daemon_took),
            &spread(&turn.script_took),
            &format!("{:.2} ×", ratio(&turn.daemon_took, &turn.script_took)),
            &time(turn.daemon_used.median()),
            &time(turn.script_used.median()),
        ])?;
    }
    sheet.text(&format!(
        "\nA start that has nothing to change uses {} of the processor.",
        time(idle.median())
    ))?;
    let goals = turns.iter().take(1).map(|turn| {
        let what = "vxlan → host-gw, 5,000 peers, against `ip -batch`";
        Goal::at_most(what, ratio(&turn.daemon_took, &turn.script_took), 0.2, "×")
    });
    sheet.goals(&goals.collect::<Vec<_>>())
}
