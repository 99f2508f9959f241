//! `tweed-bench`: what `tweedd` and the CNI plugin cost in time, CPU, memory and packets, next to other programs, as Markdown.
#![allow(
    clippy::disallowed_methods,
    reason = "the bench is synchronous: it sleeps and measures time"
)]

// What is measured.
mod audit;
mod cni;
mod cold_start;
mod data_path;
mod faults;
mod guard;
mod hostile;
mod kubernetes;
mod latency;
mod masquerade;
mod mass_flip;
mod migration;
mod probes;
mod replacement;
mod storm;

// What it is measured with.
mod change;
mod listener;
mod peer;
mod script;
mod site;
mod writer;

// How it is told.
mod goal;
mod machine;
mod plot;
mod sample;
mod sheet;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use tweed_lab::{Binaries, sandbox};

use sheet::Sheet;

/// Packets per second and pair of pods.
const RATE: u32 = 1000;

/// Packets flow for so long after each step.
const PAUSE: Duration = Duration::from_millis(500);

/// Measures time, CPU, memory and lost packets; prints Markdown, and draws.
#[derive(Parser)]
struct Options {
    /// The daemon to measure.
    #[arg(long)]
    tweedd: PathBuf,
    /// Its command line tool.
    #[arg(long)]
    tweedctl: PathBuf,
    /// The CNI plugin to measure, as it is shipped.
    #[arg(long)]
    flannel: PathBuf,
    /// Rounds of every measurement [default: what each of them needs]
    #[arg(long)]
    rounds: Option<usize>,
    /// Only these sections, separated by commas [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<Section>,
    /// Where the results go.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// A part of the bench, in the order of running.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    ColdStart,
    MassFlip,
    Latency,
    Audit,
    Storm,
    Kubernetes,
    DataPath,
    Replacement,
    Masquerade,
    Guard,
    Migration,
    Faults,
    Probes,
    Hostile,
    Cni,
}

impl Section {
    fn run(self, options: &Options, sheet: &mut Sheet) -> Result<()> {
        let binaries = &options.binaries();
        match self {
            Self::ColdStart => cold_start::run(binaries, options.rounds(5), &options.folder, sheet),
            Self::MassFlip => mass_flip::run(binaries, options.rounds(5), sheet),
            Self::Latency => latency::run(binaries, options.rounds(200), sheet),
            Self::Audit => audit::run(binaries, options.rounds(9), sheet),
            Self::Storm => storm::run(sheet),
            Self::Kubernetes => kubernetes::run(binaries, options.rounds(5), sheet),
            Self::DataPath => data_path::run(binaries, options.rounds(9), sheet),
            Self::Replacement => replacement::run(options.rounds(5), sheet),
            Self::Masquerade => masquerade::run(binaries, options.rounds(3), sheet),
            Self::Guard => guard::run(options.rounds(20), sheet),
            Self::Migration => migration::run(binaries, options.rounds(1), sheet),
            Self::Faults => faults::run(binaries, sheet),
            Self::Probes => probes::run(binaries, options.rounds(30), sheet),
            Self::Hostile => hostile::run(binaries, options.rounds(10), sheet),
            Self::Cni => cni::run(&options.flannel, options.rounds(100), sheet),
        }
    }
}

impl Options {
    fn binaries(&self) -> Binaries {
        Binaries { tweedd: self.tweedd.clone(), tweedctl: self.tweedctl.clone() }
    }

    /// `usual`: without a wish of the caller's.
    fn rounds(&self, usual: usize) -> usize {
        self.rounds.unwrap_or(usual)
    }

    fn sections(&self) -> impl Iterator<Item = Section> {
        let all = Section::value_variants().iter().copied();
        all.filter(|section| self.only.is_empty() || self.only.contains(section))
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    if !sandbox::is_inside() {
        return sandbox::enter();
    }
    let mut sheet = Sheet::open(&options.folder)?;
    sheet.text(&machine::describe()?)?;
    options.sections().try_for_each(|section| section.run(options, &mut sheet))?;
    Ok(ExitCode::SUCCESS)
}
