//! The command line of the lab.
#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

mod demo;
mod keep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tweed_lab::{Binaries, sandbox, storm};

use demo::screen::Screen;

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
    /// Starts a cluster in the background and leaves it running, to try things in.
    ///
    /// Prints the names and addresses of its nodes and pods. `exec` runs commands in them.
    Up {
        #[command(flatten)]
        wanted: keep::Wanted,
        /// The name of the cluster, if there are several.
        #[arg(long, default_value = "lab")]
        name: String,
    },
    /// Runs a command in a node or pod of a running cluster; exits with its code.
    ///
    /// In a node, tweedctl finds its daemon, and etcdctl the store: `tweed-lab exec n1 tweedctl peers`.
    Exec {
        /// The name of the cluster.
        #[arg(long, default_value = "lab")]
        name: String,
        /// A node (`n1`) or a pod (`pod-n1`).
        place: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Ends a running cluster and deletes all that belongs to it.
    Down {
        /// The name of the cluster.
        #[arg(long, default_value = "lab")]
        name: String,
    },
    /// Starts thousands of simulated daemons at once on a real etcd, and reports what that costs.
    ///
    /// They run the real subnet manager and touch no kernel.
    /// Exits 0 if all got subnets of their own and saw all others after every phase, 1 otherwise.
    Storm {
        /// Simulated daemons.
        #[arg(long, default_value_t = 1000)]
        nodes: usize,
        /// Of all pods: the wider, the more subnets of 256 addresses; repeat it to compare.
        #[arg(long, default_value = "10.0.0.0/8")]
        network: Vec<String>,
        /// Seconds over which the daemons start.
        #[arg(long, default_value_t = 1.0)]
        jitter: f64,
        /// Processes of `etcd grpc-proxy` between the simulated daemons and etcd.
        #[arg(long, default_value_t = 0)]
        proxies: usize,
        /// Real daemons among the simulated ones.
        #[arg(long, default_value_t = 0, requires = "tweedd", requires = "tweedctl")]
        real: usize,
        /// What the real daemons run.
        #[arg(long)]
        tweedd: Option<PathBuf>,
        /// Its command line tool.
        #[arg(long)]
        tweedctl: Option<PathBuf>,
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
    let is_inside = sandbox::is_inside();
    match arguments.command {
        Command::Exec { name, place, command } => keep::exec(&name, &place, &command)?,
        Command::Down { name } => keep::down(&name)?,
        Command::Up { name, .. } if !is_inside => keep::up(&name)?,
        _ if !is_inside => return sandbox::enter(),
        Command::Up { wanted, .. } => keep::keep(wanted)?,
        Command::Demo { tweedd, tweedctl } => {
            return demo::run(Binaries { tweedd, tweedctl }, &mut Screen::stdout());
        }
        Command::Storm { nodes, network, jitter, proxies, real, tweedd, tweedctl } => {
            let [tweedd, tweedctl] = [tweedd, tweedctl].map(Option::unwrap_or_default);
            let settings = storm::Settings {
                nodes,
                spread: Duration::try_from_secs_f64(jitter)?,
                proxies,
                real,
                binaries: Binaries { tweedd, tweedctl },
                progress: |text| eprintln!("{text}"),
                ..storm::Settings::default()
            };
            run_storms(&settings, network)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_storms(settings: &storm::Settings, networks: Vec<String>) -> Result<()> {
    for network in networks {
        let report = storm::run(&storm::Settings { network, ..settings.clone() })?;
        Screen::stdout().block(report)?;
    }
    Ok(())
}
