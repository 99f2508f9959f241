//! The lab from the command line.
#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

mod bench;
mod cluster;
mod demo;
mod sandbox;
mod screen;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tweed_lab::Binaries;

use screen::Screen;

/// A cluster of network namespaces in one machine.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Moves a live cluster from VXLAN to host-gw, node by node, and counts lost packets.
    ///
    /// Exits 0 if nothing was lost and every path is right at the end, 1 otherwise.
    /// The environment variable `TWEED_LAB_LOGS` names a folder to keep logs in.
    Demo {
        /// The daemon to show.
        #[arg(long)]
        tweedd: PathBuf,
        /// Its command line tool.
        #[arg(long)]
        tweedctl: PathBuf,
    },
    /// Measures time, processor, memory and lost packets; prints Markdown, and draws.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    if !sandbox::is_inside() {
        return sandbox::enter();
    }
    match arguments.command {
        Command::Demo { tweedd, tweedctl } => {
            demo::run(Binaries { tweedd, tweedctl }, &mut Screen::stdout())
        }
        Command::Bench(options) => bench::run(&options),
    }
}
