//! From etcd's commit of a new lease to its route in the kernel, with few peers and with many.

use std::time::Duration;

use anyhow::{Context, Result};
use tweed_lab::{Binaries, Daemon};

use super::PAUSE;
use super::goal::Goal;
use super::listener::Listener;
use super::peer::{Backend, peers};
use super::sample::{Sample, ratio};
use super::sheet::{Sheet, precise, thousands};
use super::site::{PATIENCE, Site};
use super::writer::Writer;

const FEW: u32 = 10;
const MANY: u32 = 5000;
/// Between two events nothing happens for so long.
const APART: Duration = Duration::from_millis(10);

/// A daemon that already has peers, and gets more.
struct Line {
    site: Site,
    peers: u32,
    daemon: Daemon,
    listener: Listener,
    writer: Writer,
    from_commit: Sample<Duration>,
    from_write: Sample<Duration>,
}

/// `events` to each of four daemons, who take turns.
pub(super) fn run(binaries: &Binaries, events: usize, sheet: &mut Sheet) -> Result<()> {
    let kinds = Backend::BOTH.into_iter().flat_map(|backend| [(backend, FEW), (backend, MANY)]);
    let start = |(backend, peers)| Line::start(binaries, backend, peers);
    let mut lines = kinds.map(start).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(PAUSE);
    for number in 0..u32::try_from(events)? {
        lines.iter_mut().try_for_each(|line| line.add(number))?;
    }
    show(&lines, sheet)?;
    sheet.goals(
        &Backend::BOTH.iter().flat_map(|backend| goals(*backend, &lines)).collect::<Vec<_>>(),
    )
}

impl Line {
    fn start(binaries: &Binaries, backend: Backend, count: u32) -> Result<Self> {
        let mut site = Site::build(binaries, backend, "")?;
        site.grow(count)?;
        let writer = Writer::connect(&site.etcd, site.node.namespace())?;
        let daemon = site.start_daemon()?;
        daemon.wait_ready()?;
        let listener = Listener::start(site.node.namespace())?;
        let (from_commit, from_write) = Default::default();
        Ok(Self { site, peers: count, daemon, listener, writer, from_commit, from_write })
    }

    /// One more peer than those that are there, and those added before.
    fn add(&mut self, number: u32) -> Result<()> {
        let added = self.peers + number;
        for peer in peers(added..added + 1) {
            let (key, value) = peer.lease(self.site.backend);
            let written = self.writer.put(&key, &value)?;
            let heard = self.listener.wait_for([peer], PATIENCE);
            let route = heard.with_context(|| self.daemon.process().last_words())?.last;
            self.from_commit.add(route.saturating_duration_since(written.committed));
            self.from_write.add(route - written.sent);
        }
        std::thread::sleep(APART);
        Ok(())
    }
}

fn show(lines: &[Line], sheet: &mut Sheet) -> Result<()> {
    let head = ["backend", "peers", "from the commit, p50", "p99", "from the write, p50", "p99"];
    sheet.table("One event", &head)?;
    lines.iter().try_for_each(|line| {
        let [p50, p99] = [50, 99].map(|percent| precise(line.from_commit.percentile(percent)));
        let [w50, w99] = [50, 99].map(|percent| precise(line.from_write.percentile(percent)));
        sheet.row(&[&line.site.backend.name(), &thousands(line.peers), &p50, &p99, &w50, &w99])
    })
}

fn goals(backend: Backend, lines: &[Line]) -> Vec<Goal> {
    let of = |peers| lines.iter().find(|it| it.site.backend == backend && it.peers == peers);
    let (Some(few), Some(many)) = (of(FEW), of(MANY)) else { return Vec::new() };
    let name = backend.name();
    let millis = |percent| many.from_commit.percentile(percent).as_secs_f64() * 1000.0;
    let growth = ratio(&many.from_commit, &few.from_commit);
    vec![
        Goal::at_most(format!("{name}, p50 at 5,000 peers against 10"), growth, 1.2, "×"),
        Goal::at_most(format!("{name}, p50 at 5,000 peers"), millis(50), 0.8, "ms"),
        Goal::at_most(format!("{name}, p99 at 5,000 peers"), millis(99), 2.0, "ms"),
    ]
}
