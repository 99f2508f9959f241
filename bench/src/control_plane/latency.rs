//! From etcd's commit of a new lease to its route in the kernel, and from that of a deleted lease to
//! the removal of its route, with few peers and with many.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tweed_lab::{Backend, Binaries, Daemon};

use crate::PAUSE;
use crate::instruments::listener::Listener;
use crate::instruments::peer::peers;
use crate::instruments::site::{Site, TIMEOUT};
use crate::instruments::writer::{Writer, Written};
use crate::report::goal::Goal;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, precise, thousands};

const FEW: u32 = 10;
const MANY: u32 = 5000;
/// The pause between two events.
const APART: Duration = Duration::from_millis(10);
/// The maximum number of leases that are deleted.
const DELETIONS: usize = 50;
/// The pause between two deletions; the daemon may delay removals of leases that vanish together.
const DELETIONS_APART: Duration = Duration::from_millis(2500);

/// A daemon that has peers, and gets more.
struct Line {
    site: Site,
    peers: u32,
    daemon: Daemon,
    listener: Listener,
    writer: Writer,
    added: Delays,
    removed: Delays,
}

/// The time until the kernel has the change.
#[derive(Default)]
struct Delays {
    from_commit: Sample<Duration>,
    from_write: Sample<Duration>,
}

/// Measures `events` for each of four daemons, alternately.
pub(crate) fn run(binaries: &Binaries, events: usize, sheet: &mut Sheet) -> Result<()> {
    let kinds = Backend::BOTH.into_iter().flat_map(|backend| [(backend, FEW), (backend, MANY)]);
    let start = |(backend, peers)| Line::start(binaries, backend, peers);
    let mut lines = kinds.map(start).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(PAUSE);
    for number in 0..u32::try_from(events)? {
        lines.iter_mut().try_for_each(|line| line.add(number))?;
    }
    for number in 0..u32::try_from(events.min(DELETIONS))? {
        lines.iter_mut().try_for_each(|line| line.remove(number))?;
        std::thread::sleep(DELETIONS_APART);
    }
    show("One event", &lines, |line| &line.added, sheet)?;
    show("One deleted lease", &lines, |line| &line.removed, sheet)?;
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
        let (added, removed) = Default::default();
        Ok(Self { site, peers: count, daemon, listener, writer, added, removed })
    }

    /// Adds a peer after those of the site and those that were added before.
    fn add(&mut self, number: u32) -> Result<()> {
        let added = self.peers + number;
        for peer in peers(added..added + 1) {
            let (key, value) = peer.lease(self.site.backend);
            let written = self.writer.put(&key, &value)?;
            let observed = self.listener.wait_for([peer], TIMEOUT);
            let route = observed.with_context(|| self.daemon.process().last_words())?.last;
            self.added.add(written, route);
        }
        std::thread::sleep(APART);
        Ok(())
    }

    /// Removes the peer that [`add`](Self::add) added with this number.
    fn remove(&mut self, number: u32) -> Result<()> {
        let added = self.peers + number;
        for peer in peers(added..added + 1) {
            let (key, _) = peer.lease(self.site.backend);
            let written = self.writer.delete(&key)?;
            let removed = self.listener.wait_until_removed(peer, TIMEOUT);
            let removed = removed.with_context(|| self.daemon.process().last_words())?;
            self.removed.add(written, removed);
        }
        Ok(())
    }
}

impl Delays {
    fn add(&mut self, written: Written, followed: Instant) {
        self.from_commit.add(followed.saturating_duration_since(written.committed));
        self.from_write.add(followed - written.sent);
    }
}

fn show(
    heading: &str,
    lines: &[Line],
    delays: fn(&Line) -> &Delays,
    sheet: &mut Sheet,
) -> Result<()> {
    let head = ["backend", "peers", "from the commit, p50", "p99", "from the write, p50", "p99"];
    sheet.table(heading, &head)?;
    lines.iter().try_for_each(|line| {
        let Delays { from_commit, from_write } = delays(line);
        let [p50, p99] = [50, 99].map(|percent| precise(from_commit.percentile(percent)));
        let [w50, w99] = [50, 99].map(|percent| precise(from_write.percentile(percent)));
        sheet.row(&[&line.site.backend.name(), &thousands(line.peers), &p50, &p99, &w50, &w99])
    })
}

fn goals(backend: Backend, lines: &[Line]) -> Vec<Goal> {
    let of = |peers| lines.iter().find(|it| it.site.backend == backend && it.peers == peers);
    let (Some(few), Some(many)) = (of(FEW), of(MANY)) else { return Vec::new() };
    let name = backend.name();
    let millis =
        |sample: &Sample<Duration>, percent| sample.percentile(percent).as_secs_f64() * 1000.0;
    let growth = ratio(&many.added.from_commit, &few.added.from_commit);
    let (added, removed) = (&many.added.from_commit, &many.removed.from_commit);
    vec![
        Goal::at_most(format!("{name}, p50 at 5,000 peers against 10"), growth, 1.2, "×"),
        Goal::at_most(format!("{name}, p50 at 5,000 peers"), millis(added, 50), 0.8, "ms"),
        Goal::at_most(format!("{name}, p99 at 5,000 peers"), millis(added, 99), 2.0, "ms"),
        Goal::at_most(
            format!("{name}, deleted lease, p50 at 5,000 peers"),
            millis(removed, 50),
            10.0,
            "ms",
        ),
    ]
}
