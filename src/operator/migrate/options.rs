//! The command line of `tweedctl migrate`.

use std::convert::Infallible;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum, value_parser};

use crate::model::config::{BackendType, canonical};
use crate::operator::output::{WatchFlag, duration};
use crate::operator::store::StoreFlags;

const EXIT_CODES: &str = "\
Each command is idempotent and works from any host: the network config holds
the whole state of a migration. You may also edit it directly.

Exit codes:
  0  done, or already done
  1  the store cannot be used, or its config is missing or invalid
  2  the command line is invalid
  3  not possible at present; the reason is printed
  4  possible regression of a pair or node, which is printed
  5  another operator has changed the config; nothing was overwritten
  6  written, but the printed nodes have not applied it in time";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::operator) struct MigrateOptions {
    #[command(subcommand)]
    pub(super) command: MigrateCommand,
    #[command(flatten)]
    pub(super) store: StoreFlags,
}

#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Shows the changes, and what blocks the migration; writes nothing
    Plan {
        /// New backend of the nodes
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: BackendType,
        /// Show all pairs, not only the first without the preferred path
        #[arg(long)]
        all: bool,
    },
    #[command(flatten)]
    Order(Order),
    /// Shows the progress: nodes, pairs, stages; writes nothing
    // In the help, after `start`.
    #[command(display_order = 1)]
    Status(WatchFlag),
}

/// The commands that write. Each is idempotent.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Order {
    /// Turns Mixed on if it is off, then changes the first nodes
    Start(Start),
    /// Continues with the next stage: 25, 50, 100 percent of the nodes
    Next {
        /// Continue with this percentage of the nodes instead
        #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        /// Continue although the migration is paused
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        options: StageOptions,
    },
    /// Makes `next` refuse until `next --resume`
    Pause,
    /// Returns all nodes to the old backend, or those of the last stage
    Rollback {
        /// Return only to the previous stage
        #[arg(long)]
        one_stage: bool,
        #[command(flatten)]
        wait: WaitOptions,
    },
    /// Ends the migration; removes Mixed if no pair needs it
    Finish {
        #[command(flatten)]
        wait: WaitOptions,
    },
}

#[derive(Clone, Debug, Args)]
pub(super) struct Start {
    /// New backend of the nodes
    #[arg(long, value_name = "BACKEND", value_enum)]
    pub(super) to: BackendType,
    /// Nodes to change first, by public IP; in Kubernetes also by name
    #[arg(long, value_name = "NODE", num_args = 1.., conflicts_with = "percent")]
    #[arg(value_parser = |name: &str| Ok::<_, Infallible>(canonical(name.to_owned())))]
    pub(super) canary: Vec<String>,
    /// Percentage of the nodes to change first [default: 25]
    #[arg(long, value_parser = value_parser!(u8).range(1..=100))]
    pub(super) percent: Option<u8>,
    #[command(flatten)]
    pub(super) options: StageOptions,
}

/// What to do once a stage is written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct StageOptions {
    /// Observe the stage for this time: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) hold: Duration,
    /// Return to the previous stage on a possible regression
    #[arg(long)]
    pub(super) auto_rollback: bool,
    /// Continue despite nodes that are dead or send no report, and present problems
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) wait: WaitOptions,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct WaitOptions {
    /// Maximum time for all nodes to apply the config
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(super) timeout: Duration,
}

impl Order {
    pub(super) fn options(&self) -> StageOptions {
        match self {
            Self::Start(Start { options, .. }) | Self::Next { options, .. } => *options,
            Self::Rollback { wait, .. } | Self::Finish { wait } => {
                StageOptions { wait: *wait, ..StageOptions::default() }
            }
            Self::Pause => StageOptions::default(),
        }
    }
}

impl ValueEnum for BackendType {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}
