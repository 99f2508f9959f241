//! From the start of a daemon on an empty kernel until the last route is there, against `ip -batch` with the same entries.

mod comparison;

use std::fs::write;
use std::path::Path;

use anyhow::{Context, Result};
use tweed_lab::{Backend, Binaries};

use crate::instruments::site::Site;
use crate::report::goal::Goal;
use crate::report::plot::{Plot, Series};
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, megabytes, spread, thousands, time};
use comparison::{Comparison, Program};

const COUNTS: [u32; 4] = [100, 1000, 5000, 20_000];

pub(crate) fn run(
    binaries: &Binaries,
    rounds: usize,
    folder: &Path,
    sheet: &mut Sheet,
) -> Result<()> {
    let build = |backend| Site::build(binaries, backend, "");
    let mut sites = Backend::BOTH.into_iter().map(build).collect::<Result<Vec<_>>>()?;
    sheet.table(
        "Cold start",
        &[
            "peers",
            "backend",
            "tweedd",
            "`ip -batch`",
            "ratio",
            "CPU of tweedd",
            "CPU of `ip -batch`",
            "memory at most",
            "memory later",
        ],
    )?;
    let mut comparisons = Vec::new();
    for peers in COUNTS {
        for comparison in hold(&mut sites, peers, rounds)? {
            show(&comparison, sheet)?;
            comparisons.push(comparison);
        }
    }
    sheet.goals(&goals(&comparisons))?;
    let file = folder.join("cold-start.svg");
    write(&file, plot(&comparisons).render()).with_context(|| file.display().to_string())
}

/// Rounds alternate between backends and rivals, so that noise hits all alike.
fn hold(sites: &mut [Site], peers: u32, rounds: usize) -> Result<Vec<Comparison>> {
    let prepare = |site: &mut Site| {
        site.grow(peers)?;
        Comparison::prepare(site, peers)
    };
    let mut comparisons = sites.iter_mut().map(prepare).collect::<Result<Vec<_>>>()?;
    for _ in 0..rounds {
        for (site, comparison) in sites.iter().zip(&mut comparisons) {
            comparison.start_daemon(site).with_context(|| comparison.describe("tweedd"))?;
            comparison.run_scripts(site).with_context(|| comparison.describe("ip -batch"))?;
        }
    }
    Ok(comparisons)
}

fn show(comparison: &Comparison, sheet: &mut Sheet) -> Result<()> {
    let memory = |kib: &Sample<u64>| format!("{:.1} MB", megabytes(kib.median()));
    sheet.row(&[
        &thousands(comparison.peers),
        &comparison.backend.name(),
        &spread(&comparison.daemon.time),
        &spread(&comparison.script.time),
        &format!("{:.2} ×", comparison.ratio()),
        &time(comparison.daemon.processor.median()),
        &time(comparison.script.processor.median()),
        &memory(&comparison.peak),
        &memory(&comparison.resident),
    ])
}

fn goals(comparisons: &[Comparison]) -> Vec<Goal> {
    let of =
        |peers, backend| comparisons.iter().find(|it| it.peers == peers && it.backend == backend);
    let vxlan = |peers| of(peers, Backend::Vxlan);
    let against = |peers, most| {
        let what = format!("vxlan, {} peers, against `ip -batch`", thousands(peers));
        vxlan(peers).map(|it| Goal::at_most(what, it.ratio(), most, "×"))
    };
    let resident = |peers, most| {
        let what = format!("vxlan, {} peers, memory later", thousands(peers));
        vxlan(peers).map(|it| Goal::at_most(what, megabytes(it.resident.median()), most, "MB"))
    };
    let per_peer = |backend: Backend| {
        let (few, many) = (of(1000, backend)?, of(20_000, backend)?);
        let growth = ratio(&many.daemon.time, &few.daemon.time) / 20.0;
        let what = format!("{}, cost per peer at 20,000 against 1,000", backend.name());
        Some(Goal::at_most(what, growth, 1.5, "×"))
    };
    let goals = [
        against(5000, 0.25),
        against(20_000, 0.06),
        per_peer(Backend::Vxlan),
        per_peer(Backend::HostGw),
        resident(5000, 20.0),
        resident(20_000, 50.0),
    ];
    goals.into_iter().flatten().collect()
}

fn plot(comparisons: &[Comparison]) -> Plot {
    let series = |program: Program, backend: Backend| {
        let of = comparisons.iter().filter(|it| it.backend == backend);
        let millis = |it: &Comparison| it.cost(program).time.median().as_secs_f64() * 1000.0;
        let points = of.map(|it| (f64::from(it.peers), millis(it))).collect();
        Series { name: format!("{}, {}", program.name(), backend.name()), points }
    };
    Plot {
        title: "Cold start, until the last route is in the kernel".to_owned(),
        across: "peers".to_owned(),
        up: "milliseconds".to_owned(),
        series: vec![
            series(Program::Daemon, Backend::Vxlan),
            series(Program::Daemon, Backend::HostGw),
            series(Program::Script, Backend::Vxlan),
            series(Program::Script, Backend::HostGw),
        ],
    }
}
