//! The command line of `tweedctl`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::doctor::DoctorOptions;
use super::ipam::IpamCommand;
use super::migrate::{Etcd, MigrateOptions};
use crate::model::prefix::Prefix;

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

const LEASES: &str = "\
The leases are a JSON object {key: value}, or what this prints:
  etcdctl get --prefix /coreos.com/network/subnets";

const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  the kernel differs, a peer is not programmed, the daemon is not ready,
     something was refused, an address is lost, the host is in the way
  2  the command line or a file named on it is wrong
  3  cannot tell: no daemon, no file, no permission
tweedctl migrate has codes of its own: tweedctl migrate --help";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}

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

/// Where the daemon keeps what concerns us.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Where the daemon is")]
pub(super) struct Files {
    /// Its subnet file
    #[arg(long, global = true, value_name = "PATH", default_value = "/run/flannel/subnet.env")]
    pub(super) subnet_file: PathBuf,
    /// Its control socket [default: beside it, subnet.sock]
    #[arg(long, global = true, value_name = "PATH", alias = "control-socket")]
    socket: Option<PathBuf>,
    /// Its checkpoint [default: beside it, subnet.state.json]
    #[arg(long, global = true, value_name = "PATH")]
    state_file: Option<PathBuf>,
}

impl Files {
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.subnet_file.with_extension("sock"))
    }

    pub(super) fn state_file(&self) -> PathBuf {
        self.state_file.clone().unwrap_or_else(|| self.subnet_file.with_extension("state.json"))
    }
}

#[derive(Debug, Args)]
#[command(after_help = LEASES)]
pub(super) struct PlanOptions {
    /// The network config, in JSON
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// The leases, as said below; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(super) leases: PathBuf,
    /// The node's public IP; with two families, once for each
    #[arg(long = "public-ip", value_name = "IP", required = true)]
    pub(super) public_ips: Vec<IpAddr>,
    /// The node's interface towards its peers
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    pub(super) interface: String,
    /// Of that interface, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub(super) mtu: u32,
    /// Who is on its link [default: the /24 or /64 around it]
    #[arg(long, value_name = "PREFIX")]
    pub(super) on_link: Vec<Prefix>,
    /// Plan for a daemon with this flag
    #[arg(long)]
    pub(super) ip_masq: bool,
    /// Likewise
    #[arg(long)]
    pub(super) iptables: bool,
}

#[derive(Debug, Args)]
pub(super) struct CleanupOptions {
    /// Remove it; without this, only list it
    #[arg(long)]
    pub(super) yes: bool,
    /// Remove it although a daemon is running
    #[arg(long)]
    pub(super) force: bool,
    /// The network, where neither daemon nor checkpoint can tell
    #[arg(long = "network", value_name = "PREFIX")]
    pub(super) networks: Vec<Prefix>,
    /// The VNI that goes with --network
    #[arg(long, value_name = "N", default_value_t = 1, requires = "networks")]
    pub(super) vni: u32,
}

/// Stop tweedd before. Device, addresses, neighbours, forwarding entries, subnet
/// file and lease stay; no packet is lost, and it may be given again.
#[derive(Debug, Args)]
pub(super) struct HandoverOptions {
    /// Only list what would change
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The network, where neither checkpoint nor subnet file can tell
    #[arg(long = "network", value_name = "PREFIX")]
    pub(super) networks: Vec<Prefix>,
    /// The VNI, where there is no checkpoint
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) vni: u32,
    #[command(flatten)]
    pub(super) etcd: Etcd,
}

#[cfg(test)]
mod tests {
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
    fn files_lie_beside_the_subnet_file_unless_said() {
        let files = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap().files;
        let derived = files("tweedctl status --subnet-file /run/a/b.env");
        assert_eq!(derived.socket(), PathBuf::from("/run/a/b.sock"));
        assert_eq!(derived.state_file(), PathBuf::from("/run/a/b.state.json"));
        let said = files("tweedctl --socket /s --state-file /t status");
        assert_eq!((said.socket(), said.state_file()), ("/s".into(), "/t".into()));
    }

    #[test]
    fn a_vni_goes_with_a_network() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).is_ok();
        assert!(!parse("tweedctl cleanup --vni 3"));
        assert!(parse("tweedctl cleanup --vni 3 --network 10.244.0.0/16"));
    }
}
