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

/// Shows what tweedd routes, how and why, and what the kernel differs in
#[derive(Debug, Parser)]
#[command(name = "tweedctl", version, after_help = EXIT_CODES)]
pub struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
    /// text, in 80 columns, or json
    #[arg(short, long, value_name = "FORM", global = true, value_enum)]
    #[arg(default_value_t = Output::Text, hide_possible_values = true)]
    pub(super) output: Output,
    #[command(flatten)]
    pub(super) files: Files,
}

const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  the kernel differs, a peer is not programmed, the daemon is not ready,
     something was refused, an address is lost, the host is in the way
  2  the command line or a file named on it is wrong
  3  cannot tell: no daemon, no file, no permission
tweedctl migrate has codes of its own: tweedctl migrate --help";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// The daemon at a glance: ready or not, and why
    Status,
    /// Every peer with its path, or the reason why it has none
    Peers,
    /// Every lease of the store, and why it is set aside if it is
    Leases,
    /// What a node would program: no daemon, no privileges, no network
    Plan(PlanOptions),
    /// What the kernel differs in from what it should hold; changes nothing
    Diff,
    /// What of ours the kernel and the disk hold, and its removal
    Cleanup(CleanupOptions),
    /// Gives this node back to flanneld: routes and all else in its form
    Handover(HandoverOptions),
    /// What of this host is in the way of packets, and what mends it
    Doctor(DoctorOptions),
    /// The addresses of this node's containers
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
        let said = files("tweedctl --socket /s --state-file /t status");
        assert_eq!((said.socket(), said.state_file()), ("/s".into(), "/t".into()));
    }

    #[test]
    fn a_vni_needs_a_network() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).is_ok();
        assert!(!parse("tweedctl cleanup --vni 3"));
        assert!(parse("tweedctl cleanup --vni 3 --network 10.244.0.0/16"));
    }
}
