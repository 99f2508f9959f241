//! `tweed-judges`: `tweedd` in the lab, next to programs that others wrote.
#![allow(
    clippy::disallowed_methods,
    reason = "judges are synchronous: they sleep and measure time"
)]

mod api_server;
mod flannel;
mod kubernetes;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tweed_lab::{Binaries, sandbox};

use verdict::Verdicts;

/// Runs cases, prints a table of verdicts as Markdown, and exits 1 if a case failed.
#[derive(Parser)]
struct Arguments {
    /// The daemon to judge.
    #[arg(long)]
    tweedd: PathBuf,
    /// Its command line tool.
    #[arg(long)]
    tweedctl: PathBuf,
    /// The table goes to a file in this folder.
    #[arg(long, default_value = "target/judges")]
    folder: PathBuf,
    /// Only cases whose name contains this text [default: all]
    #[arg(long)]
    only: Option<String>,
    /// One case of each kind.
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    judge: Judge,
}

#[derive(Subcommand)]
enum Judge {
    /// Nodes that run flanneld, in the same cluster and in turns on the same nodes.
    Flannel {
        /// A flanneld of the flannel project.
        #[arg(long)]
        flanneld: PathBuf,
    },
    /// A real API server, next to the one of the lab.
    ApiServer {
        /// Without TLS and authentication, as `kubectl proxy` offers it.
        #[arg(long)]
        url: String,
    },
    /// A cluster of Kubernetes, with the shipped manifest.
    Kubernetes {
        /// One program that contains those of Kubernetes, in the folder of its tests.
        #[arg(long)]
        kubernetes: PathBuf,
        /// The CNI plugin to judge.
        #[arg(long)]
        plugin: PathBuf,
        /// The folder of flanneld, its helpers and its manifest.
        #[arg(long)]
        flannel: PathBuf,
        /// The folder of an older tweed, with its manifest.
        #[arg(long)]
        former: PathBuf,
        /// The folder of Helm, of the DNS server, and of kube-network-policies.
        #[arg(long)]
        tools: PathBuf,
    },
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
    let Arguments { tweedd, tweedctl, folder, only, short, judge } = arguments;
    let binaries = Binaries { tweedd, tweedctl };
    let verdicts = match judge {
        Judge::Flannel { flanneld } => {
            let mut verdicts = Verdicts::open(&folder.join("flannel.md"), only)?;
            flannel::run(&flannel::Programs { flanneld, binaries }, short, &mut verdicts)?;
            verdicts
        }
        Judge::ApiServer { url } => {
            let mut verdicts = Verdicts::open(&folder.join("api-server.md"), only)?;
            api_server::run(&url, &mut verdicts)?;
            verdicts
        }
        Judge::Kubernetes { kubernetes, plugin, flannel, former, tools } => {
            let mut verdicts = Verdicts::open(&folder.join("kubernetes.md"), only)?;
            let programs =
                kubernetes::Programs { kubernetes, plugin, flannel, binaries, former, tools };
            kubernetes::run(&programs, &mut verdicts)?;
            verdicts
        }
    };
    verdicts.finish()
}
