//! The command line of `tweedctl`.

use clap::{Parser, Subcommand};

use super::cleanup::CleanupOptions;
use super::doctor::DoctorOptions;
use super::handover::HandoverOptions;
use super::ipam::IpamCommand;
use super::layout::Output;
use super::migrate::MigrateOptions;
use super::node::Files;
use super::plan::PlanOptions;

/// Shows and checks the state of tweedd on this node, and migrates clusters
#[derive(Debug, Parser)]
#[command(name = "tweedctl", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
    /// Output format: text or json
    #[arg(short, long, value_name = "FORMAT", global = true, value_enum)]
    #[arg(default_value_t = Output::Text, hide_possible_values = true)]
    pub(super) output: Output,
    #[command(flatten)]
    pub(super) files: Files,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  success, and nothing to report
  1  a difference, a peer that is not programmed, a daemon that is not ready,
     a refused operation, a leaked address, or a warning of doctor
  2  the command line is invalid, or a file named on it
  3  unknown: no daemon, no file, or no permission
tweedctl migrate has other codes: tweedctl migrate --help";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Shows whether the daemon is ready, and its state
    Status,
    /// Lists each peer with its path, or the reason why it has none
    Peers,
    /// Lists each lease in the store, and the reason for each rejected one
    Leases,
    /// Shows what a node would program; needs no daemon or privileges
    Plan(PlanOptions),
    /// Lists the differences between kernel and plan; changes nothing
    Diff,
    /// Lists or removes the kernel entries and files of tweed
    Cleanup(CleanupOptions),
    /// Gives this node back to flanneld, with routes in the form of flannel
    Handover(HandoverOptions),
    /// Lists host settings that drop or block packets, and how to fix them
    Doctor(DoctorOptions),
    /// Checks the addresses of this node's containers
    #[command(subcommand)]
    Ipam(IpamCommand),
    /// Moves a live cluster to another backend, stage by stage, and back
    Migrate(MigrateOptions),
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
