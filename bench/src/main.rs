//! `tweed-bench`: the cost of `tweedd` and the CNI plugin in time, CPU, memory and packets,
//! compared with other programs, as Markdown.
#![allow(
    clippy::disallowed_methods,
    reason = "the bench is synchronous: it sleeps and measures time"
)]

// What is measured.
mod cni;
mod control_plane;
mod firewall;
mod hostile;
mod services;
mod traffic;

// What it is measured with, and how it is shown.
mod instruments;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use tweed_lab::{Binaries, sandbox};

use report::sheet::Sheet;

/// Packets per second and pair of pods.
const RATE: u32 = 1000;

/// The time in which packets flow after each step.
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
    /// A flanneld of the flannel project, for the section `flannel`.
    #[arg(long)]
    flanneld: Option<PathBuf>,
    /// The service proxy, for the section `services`.
    #[arg(long)]
    tweed_proxy: Option<PathBuf>,
    /// The kube-proxy that `make judge-proxy` compiles, to measure it in the section `services`, too.
    #[arg(long)]
    kube_proxy: Option<PathBuf>,
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
    /// Only with `--flanneld`.
    Flannel,
    Nodes,
    DataPath,
    Replacement,
    Masquerade,
    Guard,
    Migration,
    Faults,
    Probes,
    ProbeCost,
    Hostile,
    /// Only with `--tweed-proxy`.
    Services,
    Cni,
}

impl Section {
    fn run(self, options: &Options, sheet: &mut Sheet) -> Result<()> {
        let binaries = &options.binaries();
        match self {
            Self::ColdStart => {
                control_plane::cold_start::run(binaries, options.rounds(5), &options.folder, sheet)
            }
            Self::MassFlip => control_plane::mass_flip::run(binaries, options.rounds(5), sheet),
            Self::Latency => control_plane::latency::run(binaries, options.rounds(200), sheet),
            Self::Audit => control_plane::audit::run(binaries, options.rounds(9), sheet),
            Self::Storm => control_plane::storm::run(sheet),
            Self::Kubernetes => control_plane::kubernetes::run(binaries, options.rounds(5), sheet),
            Self::Flannel => match &options.flanneld {
                Some(flanneld) => {
                    control_plane::flannel::run(binaries, flanneld, options.rounds(3), sheet)
                }
                None if options.only.is_empty() => Ok(()),
                None => bail!("the section `flannel` needs --flanneld"),
            },
            Self::Nodes => control_plane::nodes::run(binaries, options.rounds(9), sheet),
            Self::DataPath => traffic::data_path::run(binaries, options.rounds(9), sheet),
            Self::Replacement => traffic::replacement::run(options.rounds(5), sheet),
            Self::Masquerade => firewall::masquerade::run(binaries, options.rounds(3), sheet),
            Self::Guard => firewall::guard::run(options.rounds(20), sheet),
            Self::Migration => traffic::migration::run(binaries, options.rounds(1), sheet),
            Self::Faults => traffic::faults::run(binaries, sheet),
            Self::Probes => traffic::probes::run(binaries, options.rounds(30), sheet),
            Self::ProbeCost => control_plane::probe_cost::run(binaries, options.rounds(30), sheet),
            Self::Hostile => hostile::run(binaries, options.rounds(10), sheet),
            Self::Services => match &options.tweed_proxy {
                Some(proxy) => {
                    services::run(proxy, options.kube_proxy.as_deref(), options.rounds(200), sheet)
                }
                None if options.only.is_empty() => Ok(()),
                None => bail!("the section `services` needs --tweed-proxy"),
            },
            Self::Cni => cni::run(&options.flannel, options.rounds(100), sheet),
        }
    }
}

impl Options {
    fn binaries(&self) -> Binaries {
        Binaries { tweedd: self.tweedd.clone(), tweedctl: self.tweedctl.clone() }
    }

    /// The number of rounds: `usual`, unless the caller has set one.
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
    sheet.text(&report::machine::describe()?)?;
    for section in options.sections() {
        if let Err(error) = section.run(options, &mut sheet) {
            // The figures of the others are worth having.
            let name =
                section.to_possible_value().map_or_else(String::new, |it| it.get_name().into());
            sheet.text(&format!("\n**failed:** {name}: {error:#}"))?;
            sheet.miss(name);
        }
    }
    sheet.conclude()?;
    Ok(ExitCode::SUCCESS)
}
