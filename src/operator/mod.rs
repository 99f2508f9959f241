//! `tweedctl`: the commands of operators, with output as text, JSON or YAML.

mod cleanup;
mod dashboard;
mod diff;
mod doctor;
mod events;
mod handover;
mod ipam;
mod layout;
mod leases;
mod manual;
mod migrate;
mod node;
mod nodes;
mod output;
mod peers;
mod plan;
mod status;
mod store;
mod sysdump;
mod trace;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde::Serialize;

pub use self::migrate::migrate;
use self::node::Files;
use self::nodes::connectivity::{self, ConnectivityCommand};
use self::output::{Answer, Output, WatchFlag, write};
use crate::kernel::Kernel;

/// Shows and checks the state of tweedd on this node, and migrates clusters
#[derive(Debug, Parser)]
#[command(name = "tweedctl", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    files: Files,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  success, and nothing to report
  1  a difference, a peer that is not programmed, a daemon that is not ready,
     a refused operation, a leaked address, or a warning of doctor
  2  the command line is invalid, or a file named on it
  3  unknown: no daemon, no file, or no permission; parts of sysdump are missing
  5  a peer is degraded or unreachable, and nothing else is wrong; or a packet
     would be dropped
tweedctl migrate has other codes: tweedctl migrate --help";

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows whether the daemon is ready, and its state
    Status(status::StatusOptions),
    /// Lists each peer with its path, or the reason why it has none
    Peers(peers::PeersOptions),
    /// Lists each node of the cluster, and which of them fail
    Nodes(nodes::NodesOptions),
    /// Shows the cluster as a page in a browser, live or as a file
    Dashboard(dashboard::DashboardOptions),
    /// Tests whether the nodes of the cluster reach each other
    #[command(subcommand)]
    Connectivity(ConnectivityCommand),
    /// Lists, reserves and releases leases, and counts free subnets
    Leases(leases::LeasesOptions),
    /// Shows the last changes on this node, and follows further ones
    Events(events::EventsOptions),
    /// Writes the state of this node into one archive, without secrets
    Sysdump(sysdump::SysdumpOptions),
    /// Shows what a node would program; needs no daemon or privileges
    Plan(plan::PlanOptions),
    /// Lists the differences between kernel and plan; changes nothing
    Diff(WatchFlag),
    /// Shows what happens to a packet here and on the peer, hop by hop
    Trace(trace::TraceOptions),
    /// Lists or removes the kernel entries and files of tweed
    Cleanup(cleanup::CleanupOptions),
    /// Gives this node back to flanneld, with routes in flannel's form
    Handover(handover::HandoverOptions),
    /// Lists what drops or blocks packets, and how to fix it
    Doctor(doctor::DoctorOptions),
    /// Checks the addresses of this node's containers
    #[command(subcommand)]
    Ipam(ipam::IpamCommand),
    /// Moves a live cluster to another backend in stages, and back
    Migrate(migrate::MigrateOptions),
    /// Prints a script that completes command lines in a shell
    Completions(manual::CompletionsOptions),
    /// Writes the man pages of tweedctl and tweedd
    Man(manual::ManOptions),
}

/// The result of a command, with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitStatus {
    Done,
    /// Drift, an unprogrammed peer, a daemon that is not ready, or a refused operation.
    Problems,
    /// A part of the host could not be examined, or is missing in an archive.
    Unexamined,
    /// A peer is degraded or unreachable, or a packet would be dropped.
    Failing,
    /// Only of `migrate`: it cannot continue in this state.
    Impossible,
    /// Only of `migrate`: a pair has lost its path, or has a worse one than before.
    Degraded,
    /// Only of `migrate`: another operator has changed the config.
    Conflict,
    /// Only of `migrate`: a node did not follow in time.
    Late,
}

/// Why a command has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Refused(String),
    /// The command line, or a file named on it, is wrong.
    #[error("{0}")]
    Usage(String),
    /// No daemon, no file, no permission.
    #[error("{0}")]
    Unavailable(String),
    /// The store is unreachable, or its config is missing or invalid.
    #[error("{0}")]
    Store(String),
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// Runs the command on this host, and writes its result to `out`. Commands that need a kernel get it
/// from `open`.
pub async fn run<K: Kernel>(
    arguments: Arguments,
    open: impl Fn() -> Result<K, Error>,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let Arguments { command, output, files } = arguments;
    let socket = files.socket();
    match command {
        Command::Status(options) => {
            let ask = async || status::answer(&options, &socket).await;
            options.watch.show(out, output, ask).await
        }
        Command::Peers(options) => {
            let ask = async || peers::answer(&options, &socket).await;
            options.watch.show(out, output, ask).await
        }
        Command::Leases(options) => leases::run(options, &socket, output, out).await,
        Command::Events(options) => events::run(&socket, &options, output, out).await,
        Command::Sysdump(options) => sysdump::run(&files, &options, open, output, out).await,
        Command::Nodes(options) => {
            let ask = async || nodes::answer(&options, &socket).await;
            options.watch.show(out, output, ask).await
        }
        Command::Dashboard(options) => dashboard::run(&options, &socket, out).await,
        Command::Connectivity(ConnectivityCommand::Test(options)) => {
            let ask = async || connectivity::answer(&options, &socket).await;
            options.watch.show(out, output, ask).await
        }
        Command::Plan(options) => write(out, output, &plan::answer(&options)?),
        Command::Diff(watch) => {
            let ask = async || diff::answer(&files, open()?).await;
            watch.show(out, output, ask).await
        }
        Command::Trace(options) => {
            write(out, output, &trace::answer(&files, &options, open).await?)
        }
        Command::Cleanup(options) => {
            write(out, output, &cleanup::answer(&files, &options, open()?).await?)
        }
        Command::Handover(options) => {
            write(out, output, &handover::answer(&files, &options, open()?).await?)
        }
        Command::Doctor(options) => {
            write(out, output, &doctor::answer(&files, &options, open()).await)
        }
        Command::Ipam(command) => write(out, output, &ipam::answer(&command)?),
        Command::Migrate(options) => migrate::run(&options, &socket, output, out).await,
        Command::Completions(options) => manual::write_completions(&options, out),
        Command::Man(options) => manual::write_pages(&options),
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(exit_status: ExitStatus) -> Self {
        Self::from(match exit_status {
            ExitStatus::Done => 0,
            ExitStatus::Problems => 1,
            ExitStatus::Unexamined | ExitStatus::Impossible => 3,
            ExitStatus::Degraded => 4,
            ExitStatus::Failing | ExitStatus::Conflict => 5,
            ExitStatus::Late => 6,
        })
    }
}

impl From<&Error> for ExitCode {
    fn from(error: &Error) -> Self {
        match error {
            Error::Refused(_) | Error::Store(_) => Self::from(1),
            Error::Usage(_) => Self::from(2),
            // The reader closed the pipe, as `head` does.
            Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Self::SUCCESS,
            Error::Unavailable(_) | Error::Output(_) => Self::from(3),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_help_fits_in_80_columns() {
        let mut command = Arguments::command();
        command.build();
        let helps = command.get_subcommands().cloned().chain([command.clone()]);
        for mut command in helps {
            let help = command.render_long_help().to_string();
            assert!(help.lines().all(|line| line.len() <= 80), "{help}");
        }
    }

    #[test]
    fn files_are_next_to_the_subnet_file_by_default() {
        let files = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap().files;
        let derived = files("tweedctl status --subnet-file /run/a/b.env");
        assert_eq!(derived.socket(), PathBuf::from("/run/a/b.sock"));
        assert_eq!(derived.state_file(), PathBuf::from("/run/a/b.state.json"));
        // The unit and the manifests keep the checkpoint over a reboot.
        let root = tempfile::tempdir().unwrap();
        let subnet_file = root.path().join("run/flannel/subnet.env");
        let usual = files(&format!("tweedctl status --subnet-file {}", subnet_file.display()));
        let lasting = root.path().join("var/lib/tweed/state.json");
        assert_eq!(usual.state_file(), subnet_file.with_extension("state.json"));
        for file in [&lasting, &usual.state_file()] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
            assert_eq!(usual.state_file(), *file);
        }
        let named = files("tweedctl --socket /s --state-file /t status");
        assert_eq!((named.socket(), named.state_file()), ("/s".into(), "/t".into()));
    }

    #[test]
    fn a_vni_needs_a_network() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).is_ok();
        assert!(!parse("tweedctl cleanup --vni 3"));
        assert!(parse("tweedctl cleanup --vni 3 --network 10.244.0.0/16"));
    }
}
