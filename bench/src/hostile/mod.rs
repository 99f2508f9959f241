//! The effect of hostile clients, packets and leases on a node: packet loss of pods, silence of the
//! health port, processor time, memory.

mod clients;
mod frames;
mod leases;
mod packets;
mod scene;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tweed_lab::{Binaries, Count, Daemon, Family, Pair, ProbePlan};

use self::scene::Scene;
use crate::instruments::listener::Listener;
use crate::report::goal::Goal;
use crate::report::sheet::{Sheet, megabytes, thousands, time};
use crate::{PAUSE, RATE};

/// The pause between two requests to `/healthz`.
const APART: Duration = Duration::from_millis(20);

/// One kind of attack on the first of two nodes.
struct Case {
    name: &'static str,
    /// Attacks for the given time, or until everything is written; returns the number of attacks.
    attack: fn(&Scene, Duration) -> Result<u64>,
    /// The unit in which attacks are counted.
    unit: &'static str,
    remains: Remains,
}

/// What remains after the attack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remains {
    Nothing,
    /// Leases, which the node reads again at its next start.
    Leases,
}

struct Figures {
    attacks: u64,
    packets: Count,
    overruns: u64,
    silence: Duration,
    used: Duration,
    lasted: Duration,
    peak_kib: u64,
    /// The time from the end of the attack until the node works as before; none after a timeout.
    well_after: Option<Duration>,
    /// The time until a daemon that starts with all leases in the store is ready; none after a
    /// timeout.
    start: Option<Duration>,
}

const CASES: [Case; 9] = [
    transient("5,000 slow HTTP clients", clients::attack, "connections"),
    transient("garbage at the probe port, 100,000/s", packets::garbage, "packets"),
    transient("replays at the probe port, 100,000/s", packets::replays, "packets"),
    transient("learnt MACs, 100,000/s", frames::attack, "frames"),
    stored("10,000 hostile leases", |scene, _| leases::hostile(scene, 10_000)),
    stored("1,000 leases of one MAC", |scene, _| leases::of_one_mac(scene, 1000)),
    stored("5,000 leases of one MAC", |scene, _| leases::of_one_mac(scene, 5000)),
    stored("100 leases of 60 kB", |scene, _| leases::long(scene, 100, 60_000)),
    stored("65 values of 1 MB", |scene, _| leases::long(scene, 65, 1_000_000)),
];

const fn transient(
    name: &'static str,
    attack: fn(&Scene, Duration) -> Result<u64>,
    unit: &'static str,
) -> Case {
    Case { name, attack, unit, remains: Remains::Nothing }
}

const fn stored(name: &'static str, attack: fn(&Scene, Duration) -> Result<u64>) -> Case {
    Case { name, attack, unit: "leases", remains: Remains::Leases }
}

/// Clients, packets and frames are sent for `seconds`.
pub(crate) fn run(binaries: &Binaries, seconds: usize, sheet: &mut Sheet) -> Result<()> {
    let lasting = Duration::from_secs(u64::try_from(seconds)?);
    let head = [
        "attack",
        "done",
        "sent by pods",
        "lost",
        "dropped by full queues of the machine",
        "longest silence of `/healthz`",
        "CPU",
        "memory at most",
        "well again after",
        "next start",
    ];
    sheet.table("Hostile load", &head)?;
    let mut all = Vec::new();
    for case in &CASES {
        match case.measure(binaries, lasting).context(case.name) {
            Ok(figures) => {
                case.show(&figures, sheet)?;
                all.push(figures);
            }
            // A failed attack must not discard the results of the others.
            Err(error) => {
                sheet.row(&[&format!("**failed**: {error:#}")])?;
                sheet.miss(case.name);
            }
        }
    }
    sheet.goals(&goals(&all))
}

impl Case {
    fn measure(&self, binaries: &Binaries, lasting: Duration) -> Result<Figures> {
        let mut scene = Scene::build(binaries)?;
        let pairs = scene.lab.pairs(Family::V4);
        let is_over = AtomicBool::new(false);
        let figures = thread::scope(|scope| -> Result<_> {
            let health = scope.spawn(|| longest_silence(&scene.daemon, &is_over));
            let figures = self.attack_under_traffic(&scene, &pairs, lasting);
            is_over.store(true, Ordering::SeqCst);
            let silence = health.join().map_err(|_| anyhow!("the asker panicked"))?;
            figures.map(|figures| Figures { silence, ..figures })
        })?;
        match self.remains {
            Remains::Nothing => Ok(figures),
            Remains::Leases => {
                let start = scene.daemon.restart().ok();
                let later = scene.daemon.process().peak_kib().unwrap_or_default();
                let peak_kib = figures.peak_kib.max(later);
                Ok(Figures { peak_kib, start, ..figures })
            }
        }
    }

    fn attack_under_traffic(
        &self,
        scene: &Scene,
        pairs: &[Pair],
        lasting: Duration,
    ) -> Result<Figures> {
        let listener = Listener::start(scene.victim.namespace())?;
        let stream = ProbePlan::new(pairs, RATE).start()?;
        stream.run_for(PAUSE);
        let process = scene.daemon.process();
        let (started, before) = (Instant::now(), process.processor_time()?);
        let attacks = (self.attack)(scene, lasting)?;
        let ended = Instant::now();
        let well_after = scene.wait_until_well(&listener).ok().map(|()| ended.elapsed());
        let (lasted, used) = (started.elapsed(), process.processor_time()?.saturating_sub(before));
        stream.run_for(PAUSE);
        let report = stream.finish()?;
        Ok(Figures {
            attacks,
            packets: report.total(),
            overruns: report.overruns,
            silence: Duration::ZERO,
            used,
            lasted,
            peak_kib: process.peak_kib()?,
            well_after,
            start: None,
        })
    }

    fn show(&self, figures: &Figures, sheet: &mut Sheet) -> Result<()> {
        let late = || "**too late**".to_owned();
        let start = match self.remains {
            Remains::Nothing => time(Duration::ZERO),
            Remains::Leases => figures.start.map_or_else(late, time),
        };
        sheet.row(&[
            &self.name,
            &format!("{} {}", thousands(figures.attacks), self.unit),
            &thousands(figures.packets.sent),
            &thousands(figures.packets.lost),
            &thousands(figures.overruns),
            &time(figures.silence),
            &format!("{} in {}", time(figures.used), time(figures.lasted)),
            &format!("{:.1} MB", megabytes(figures.peak_kib)),
            &figures.well_after.map_or_else(late, time),
            &start,
        ])
    }
}

/// The longest time without a successful answer of `/healthz`.
fn longest_silence(daemon: &Daemon, is_over: &AtomicBool) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    loop {
        let was_over = is_over.load(Ordering::SeqCst);
        let is_good = daemon.get("/healthz").is_ok_and(|answer| answer.status == 200);
        longest = longest.max(last.elapsed());
        if is_good {
            last = Instant::now();
        }
        if was_over {
            return longest;
        }
        thread::sleep(APART);
    }
}

fn goals(all: &[Figures]) -> Vec<Goal> {
    let lost: u64 = all.iter().map(|figures| figures.packets.lost).sum();
    let lost = u32::try_from(lost).unwrap_or(u32::MAX);
    let silence = all.iter().map(|figures| figures.silence.as_secs_f64()).fold(0.0, f64::max);
    let memory = all.iter().map(|figures| megabytes(figures.peak_kib)).fold(0.0, f64::max);
    let well = all.iter().filter(|figures| figures.well_after.is_some()).count();
    let unwell = u32::try_from(CASES.len() - well).unwrap_or(u32::MAX);
    let leases = CASES.iter().filter(|case| case.remains == Remains::Leases).count();
    let started = all.iter().filter(|figures| figures.start.is_some()).count();
    let late = u32::try_from(leases - started).unwrap_or(u32::MAX);
    vec![
        Goal::at_most("lost, all attacks", lost.into(), 0.0, "packets"),
        Goal::at_most("longest silence of `/healthz`", silence, 1.0, "s"),
        Goal::at_most("memory at most", memory, 64.0, "MB"),
        Goal::at_most("after which all is not well again", unwell.into(), 0.0, "attacks"),
        Goal::at_most("next starts that are too late", late.into(), 0.0, "starts"),
    ]
}
