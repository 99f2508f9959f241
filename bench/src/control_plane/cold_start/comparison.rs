//! The starts at one number of peers and with one backend.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tweed_lab::Backend;

use crate::instruments::listener::Listener;
use crate::instruments::peer::{Peer, peers};
use crate::instruments::script::{Script, processor_time_of_children};
use crate::instruments::site::{Site, TIMEOUT};
use crate::report::sample::{Sample, ratio};

/// By then, the daemon has freed the memory that only its start needs.
const SETTLED: Duration = Duration::from_secs(2);

pub(super) struct Comparison {
    pub(super) peers: u32,
    pub(super) backend: Backend,
    pub(super) daemon: Cost,
    pub(super) script: Cost,
    /// Peak memory of the daemon, in KiB.
    pub(super) peak: Sample<u64>,
    pub(super) resident: Sample<u64>,
    scripts: Vec<Script>,
}

#[derive(Default)]
pub(super) struct Cost {
    pub(super) time: Sample<Duration>,
    pub(super) processor: Sample<Duration>,
}

#[derive(Clone, Copy)]
pub(super) enum Program {
    Daemon,
    Script,
}

impl Program {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "tweedd",
            Self::Script => "ip -batch",
        }
    }
}

impl Comparison {
    pub(super) fn prepare(site: &Site, peers: u32) -> Result<Self> {
        let (daemon, script, peak, resident) = Default::default();
        let scripts = scripts(site, peers)?;
        Ok(Self { peers, backend: site.backend, daemon, script, peak, resident, scripts })
    }

    pub(super) fn describe(&self, daemon: &str) -> String {
        format!("{daemon}, {}, {} peers", self.backend.name(), self.peers)
    }

    pub(super) fn start_daemon(&mut self, site: &Site) -> Result<()> {
        let listener = Listener::start(site.node.namespace())?;
        let start = Instant::now();
        let daemon = site.start_daemon()?;
        let observed = listener.wait_for(peers(0..self.peers), TIMEOUT);
        self.daemon.processor.add(daemon.process().processor_time()?);
        let last = observed.with_context(|| daemon.process().last_words())?.last;
        self.daemon.time.add(last - start);
        std::thread::sleep(SETTLED);
        self.peak.add(daemon.process().peak_kib()?);
        self.resident.add(daemon.resident_kib()?);
        daemon.stop()?;
        site.wipe_node()
    }

    pub(super) fn run_scripts(&mut self, site: &Site) -> Result<()> {
        site.prepare_bare()?;
        let listener = Listener::start(site.bare.namespace())?;
        let (start, used) = (Instant::now(), processor_time_of_children()?);
        self.scripts.iter().try_for_each(|script| script.run(site.bare.namespace()))?;
        self.script.processor.add(processor_time_of_children()?.saturating_sub(used));
        let last = listener.wait_for(peers(0..self.peers), TIMEOUT)?.last;
        self.script.time.add(last - start);
        site.wipe_bare()
    }

    pub(super) const fn cost(&self, program: Program) -> &Cost {
        match program {
            Program::Daemon => &self.daemon,
            Program::Script => &self.script,
        }
    }

    pub(super) fn ratio(&self) -> f64 {
        ratio(&self.daemon.time, &self.script.time)
    }
}

/// The entries that a daemon creates, in its order: the routes come last.
fn scripts(site: &Site, count: u32) -> Result<Vec<Script>> {
    let file = |name| site.lab.folder().join(name);
    let all = || peers(0..count);
    let routes = all().map(|peer| format!("route add {}", peer.route(site.backend)));
    Ok(match site.backend {
        Backend::Vxlan => vec![
            Script::write("nft", file("peers"), set_of_peers(count))?,
            Script::write("bridge", file("fdb"), all().map(Peer::fdb))?,
            Script::write("ip", file("entries"), all().map(Peer::neighbour).chain(routes))?,
        ],
        Backend::HostGw => vec![Script::write("ip", file("entries"), routes)?],
    })
}

/// The peers that the guard of the tunnel admits, added by one command, which is the fastest way.
fn set_of_peers(count: u32) -> impl Iterator<Item = String> {
    let peers: Vec<String> = peers(0..count).map(Peer::admission).collect();
    let elements = format!("add element ip guard peers {{ {} }}", peers.join(", "));
    let set = "add set ip guard peers { type ipv4_addr; }".to_owned();
    ["add table ip guard".to_owned(), set, elements].into_iter()
}
