//! flanneld and `tweedd` in turns on one node: start, events, memory, idle, repair.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tweed_lab::{Backend, Binaries, Daemon, eventually};

use crate::instruments::listener::Listener;
use crate::instruments::peer::{Peer, peers};
use crate::instruments::site::{Site, TIMEOUT};
use crate::instruments::writer::Writer;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, megabytes, precise, spread, thousands, time};

const STARTS: [(Backend, u32); 5] = [
    (Backend::Vxlan, 100),
    (Backend::Vxlan, 1000),
    (Backend::Vxlan, 5000),
    (Backend::HostGw, 1000),
    (Backend::HostGw, 5000),
];
/// Peers of all measurements but the start.
const PEERS: u32 = 5000;
const EVENTS: u32 = 100;
const DELETIONS: u32 = 10;
/// By then, a daemon has freed the memory that only its start needs.
const SETTLED: Duration = Duration::from_secs(3);
/// The length of an idle measurement.
const WINDOW: Duration = Duration::from_secs(30);
/// An entry that is not back by then counts as lost.
const LIMIT: Duration = Duration::from_secs(30);

/// A program, and its figures.
struct Rival<'a> {
    name: &'static str,
    /// None for `tweedd`.
    program: Option<&'a Path>,
    started: Sample<Duration>,
    processor: Sample<Duration>,
    peak: Sample<u64>,
    running: Running,
}

/// Figures of a program that has run for some time.
#[derive(Default)]
struct Running {
    added: Sample<Duration>,
    removed: Sample<Duration>,
    idle: Sample<Duration>,
    resident: Sample<u64>,
    /// In the order of [`entries`]. None: not within the limit.
    repaired: Vec<Option<Duration>>,
}

pub(crate) fn run(
    binaries: &Binaries,
    flanneld: &Path,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    sheet.table(
        "Next to flanneld: the start",
        &[
            "peers",
            "backend",
            "flanneld",
            "tweedd",
            "ratio",
            "CPU of flanneld",
            "CPU of tweedd",
            "peak memory of flanneld",
            "of tweedd",
        ],
    )?;
    for (backend, count) in STARTS {
        let mut site = Site::build(binaries, backend, "")?;
        site.grow(count)?;
        let mut rivals = Rival::both(flanneld);
        for _ in 0..rounds {
            for rival in &mut rivals {
                rival.start(&site, count).with_context(|| rival.name)?;
            }
        }
        show_starts(backend, count, &rivals, sheet)?;
    }
    for backend in Backend::BOTH {
        let mut rivals = Rival::both(flanneld);
        for rival in &mut rivals {
            rival.run(binaries, backend).with_context(|| rival.name)?;
        }
        show_running(backend, &rivals, sheet)?;
    }
    Ok(())
}

impl<'a> Rival<'a> {
    fn both(flanneld: &'a Path) -> [Self; 2] {
        [("flanneld", Some(flanneld)), ("tweedd", None)].map(|(name, program)| {
            let (started, processor, peak, running) = Default::default();
            Self { name, program, started, processor, peak, running }
        })
    }

    fn daemon(&self, site: &Site) -> Result<Daemon> {
        let plan = site.node.daemon(&site.etcd);
        match self.program {
            Some(program) => plan.with_program(program),
            None => plan,
        }
        .start()
    }

    /// From the start on an empty kernel until the last route is there.
    fn start(&mut self, site: &Site, count: u32) -> Result<()> {
        let listener = Listener::start(site.node.namespace())?;
        let start = Instant::now();
        let daemon = self.daemon(site)?;
        let observed = listener.wait_for(peers(0..count), TIMEOUT);
        self.processor.add(daemon.process().processor_time()?);
        self.started.add(observed.with_context(|| daemon.process().last_words())?.last - start);
        std::thread::sleep(SETTLED);
        self.peak.add(daemon.process().peak_kib()?);
        daemon.stop()?;
        site.wipe_node()
    }

    /// Everything but the start.
    fn run(&mut self, binaries: &Binaries, backend: Backend) -> Result<()> {
        let mut site = Site::build(binaries, backend, "")?;
        site.grow(PEERS)?;
        let mut writer = Writer::connect(&site.etcd, site.node.namespace())?;
        let listener = Listener::start(site.node.namespace())?;
        let daemon = self.daemon(&site)?;
        listener
            .wait_for(peers(0..PEERS), TIMEOUT)
            .with_context(|| daemon.process().last_words())?;
        std::thread::sleep(SETTLED);
        self.running.resident.add(daemon.resident_kib()?);
        // These peers are only leases, and answer no probes; flanneld sends none.
        site.configure(r#""Probe":{"Enabled":false},"#)?;
        std::thread::sleep(SETTLED);
        let before = daemon.process().processor_time()?;
        std::thread::sleep(WINDOW);
        self.running.idle.add(daemon.process().processor_time()?.saturating_sub(before));
        site.configure("")?;
        for peer in peers(PEERS..PEERS + EVENTS) {
            let (key, value) = peer.lease(backend);
            let written = writer.put(&key, &value)?;
            let route = listener.wait_for([peer], TIMEOUT)?.last;
            self.running.added.add(route - written.sent);
        }
        for peer in peers(PEERS..PEERS + DELETIONS) {
            let written = writer.delete(&peer.lease(backend).0)?;
            let gone = listener.wait_until_removed(peer, TIMEOUT)?;
            self.running.removed.add(gone - written.sent);
            std::thread::sleep(SETTLED);
        }
        for (_, entry) in entries(backend) {
            self.running.repaired.push(entry.repair(&site)?);
        }
        daemon.stop().map(drop)
    }
}

/// An entry towards one peer.
#[derive(Clone, Copy)]
enum Entry {
    Route,
    WrongRoute,
    Neighbour,
    Fdb,
}

fn entries(backend: Backend) -> Vec<(&'static str, Entry)> {
    let routes = [("a deleted route", Entry::Route), ("a wrong route", Entry::WrongRoute)];
    let tunnel =
        [("a deleted neighbour", Entry::Neighbour), ("a deleted forwarding entry", Entry::Fdb)];
    match backend {
        Backend::Vxlan => routes.into_iter().chain(tunnel).collect(),
        Backend::HostGw => routes.into(),
    }
}

impl Entry {
    /// The time until the entry is as it was; none if that takes too long.
    fn repair(self, site: &Site) -> Result<Option<Duration>> {
        let peer = peers(7..8).next().context("no peer")?;
        let before = self.listed(site, peer)?;
        let (base, mac, node) = (peer.base(), peer.mac(), &site.node);
        match self {
            Self::Route => node.ip(format!("route del {base}/24"))?,
            Self::WrongRoute => node.ip(format!("route replace {base}/24 dev lo"))?,
            Self::Neighbour => node.ip(format!("neighbour del {base} dev flannel.1"))?,
            Self::Fdb => node.bridge(format!("fdb del {mac} dev flannel.1"))?,
        };
        let is_back = || Ok::<_, anyhow::Error>(self.listed(site, peer)? == before);
        let waited = eventually(LIMIT, is_back).ok();
        if waited.is_none() {
            node.ip(format!("route replace {}", peer.route(site.backend)))?;
        }
        Ok(waited)
    }

    fn listed(self, site: &Site, peer: Peer) -> Result<String> {
        let (base, mac, node) = (peer.base(), peer.mac(), &site.node);
        let listed = match self {
            Self::Route | Self::WrongRoute => node.ip(format!("route show exact {base}/24"))?,
            Self::Neighbour => node.ip(format!("neighbour show to {base} dev flannel.1"))?,
            Self::Fdb => node.bridge("fdb show dev flannel.1")?,
        };
        let of_peer = |line: &&str| !matches!(self, Self::Fdb) || line.contains(&mac);
        Ok(listed.lines().filter(of_peer).collect::<Vec<_>>().join("\n"))
    }
}

fn show_starts(
    backend: Backend,
    count: u32,
    [flanneld, tweedd]: &[Rival<'_>; 2],
    sheet: &mut Sheet,
) -> Result<()> {
    let memory = |rival: &Rival<'_>| format!("{:.1} MB", megabytes(rival.peak.median()));
    sheet.row(&[
        &thousands(count),
        &backend.name(),
        &spread(&flanneld.started),
        &spread(&tweedd.started),
        &format!("{:.0} ×", ratio(&flanneld.started, &tweedd.started)),
        &time(flanneld.processor.median()),
        &time(tweedd.processor.median()),
        &memory(flanneld),
        &memory(tweedd),
    ])
}

fn show_running(backend: Backend, rivals: &[Rival<'_>; 2], sheet: &mut Sheet) -> Result<()> {
    let heading = format!("Next to flanneld: {}, {} peers", backend.name(), thousands(PEERS));
    sheet.table(&heading, &["", "flanneld", "tweedd"])?;
    let mut row = |name: &str, figure: &dyn Fn(&Running) -> String| {
        let [flanneld, tweedd] = rivals.each_ref().map(|rival| figure(&rival.running));
        sheet.row(&[&name, &flanneld, &tweedd])
    };
    row("a new lease, from the write to the route, p50", &|it| precise(it.added.median()))?;
    row("p99", &|it| precise(it.added.percentile(99)))?;
    row("a deleted lease, from the write to the removal, p50", &|it| precise(it.removed.median()))?;
    row("memory", &|it| format!("{:.1} MB", megabytes(it.resident.median())))?;
    row("CPU in 30 s without an event", &|it| time(it.idle.median()))?;
    for (index, (name, _)) in entries(backend).into_iter().enumerate() {
        row(&format!("{name} is repaired after"), &|it| {
            let repaired = it.repaired.get(index).copied().flatten();
            repaired.map_or_else(|| "not within 30 s".to_owned(), time)
        })?;
    }
    Ok(())
}
