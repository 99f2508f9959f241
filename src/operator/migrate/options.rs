//! The command line of `tweedctl migrate`.

use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::plan::Rows;
use super::store::Stores;
use crate::model::config::Kind;
use crate::operator::migration::{Back, Force, OnPause, Order, Stage};

const EXIT_CODES: &str = "\
Every command may be given again, and from any terminal: what is under way
stands in the network config alone, and may be changed there as well.

Exit codes:
  0  done, or done already
  1  the store cannot be used, or holds no config that can be read
  2  the command line is wrong
  3  not possible as things stand; it says why
  4  a pair is worse off than before; it says which, and which way
  5  somebody else has changed the config; nothing was overwritten
  6  written, but some node did not follow in time; it says which";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::operator) struct MigrateOptions {
    #[command(subcommand)]
    pub(super) command: Command,
    #[command(flatten)]
    pub(super) stores: Stores,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// What would change, and what stands in the way; writes nothing
    Plan {
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: To,
        /// Every pair, not only those that are special
        #[arg(long)]
        all: bool,
    },
    /// Turns Mixed on where it is off, then takes the first nodes over
    Start {
        #[arg(long, value_name = "BACKEND", value_enum)]
        to: To,
        /// Public IPs of the nodes to go first, alone; in Kubernetes their names too
        #[arg(long, value_name = "NODE", num_args = 1.., conflicts_with = "percent")]
        canary: Vec<String>,
        /// Share of the nodes to go first [default: 25, or more]
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        #[command(flatten)]
        watching: Watching,
    },
    /// How far it is: nodes, pairs, stages; writes nothing
    Status {
        /// Again and again, until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// On to the next stage: 25, 50, 100 percent
    Next {
        /// To this share instead
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
        percent: Option<u8>,
        /// Although the migration is paused
        #[arg(long)]
        resume: bool,
        #[command(flatten)]
        watching: Watching,
    },
    /// Keeps `next` from going on until it is told to --resume
    Pause,
    /// Takes all nodes back, or those of the last stage
    Rollback {
        /// Only to the stage before
        #[arg(long)]
        one_stage: bool,
        #[command(flatten)]
        patience: Patience,
    },
    /// Ends it where all are; without Mixed if no pair needs it
    Finish {
        #[command(flatten)]
        patience: Patience,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum To {
    Vxlan,
    HostGw,
}

/// What to do once a stage is written.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Watching {
    /// Watch it for so long: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(super) hold: Duration,
    /// Go back to the stage before if a pair is worse off
    #[arg(long)]
    auto_rollback: bool,
    /// In spite of silent nodes, or of what is wrong already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pub(super) patience: Patience,
}

#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Patience {
    /// Wait for all nodes to follow for so long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(super) timeout: Duration,
}

/// Whether a stage that harms is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHarm {
    Stop,
    GoBack,
}

impl Command {
    /// The order, with how to watch what comes of it; none for commands that only look.
    pub(super) fn order(&self) -> Option<Order> {
        Some(match self {
            Self::Plan { .. } | Self::Status { .. } => return None,
            Self::Start { to, canary, percent, .. } => {
                let canaries = || Stage {
                    percent: 0,
                    nodes: canary.iter().map(|name| canonical(name)).collect(),
                };
                let canaries = (!canary.is_empty()).then(canaries);
                let stage = percent.map(Stage::percent).or(canaries);
                Order::Start { to: (*to).into(), stage }
            }
            Self::Next { percent, resume, .. } => {
                let pause = if *resume { OnPause::End } else { OnPause::Respect };
                Order::Next { percent: *percent, pause }
            }
            Self::Pause => Order::Pause,
            Self::Rollback { one_stage, .. } => {
                Order::Rollback(if *one_stage { Back::OneStage } else { Back::ToTheStart })
            }
            Self::Finish { .. } => Order::Finish,
        })
    }

    /// Whither, and what of it to show.
    pub(super) fn plan(&self) -> Option<(Kind, Rows)> {
        let Self::Plan { to, all } = self else { return None };
        Some(((*to).into(), if *all { Rows::All } else { Rows::Special }))
    }

    /// Whether to look again and again.
    pub(super) const fn again(&self) -> bool {
        matches!(self, Self::Status { watch: true })
    }

    pub(super) const fn watching(&self) -> Watching {
        match self {
            Self::Start { watching, .. } | Self::Next { watching, .. } => *watching,
            Self::Rollback { patience, .. } | Self::Finish { patience } => {
                Watching { patience: *patience, ..Watching::NONE }
            }
            Self::Plan { .. } | Self::Status { .. } | Self::Pause => Watching::NONE,
        }
    }
}

impl Watching {
    const NONE: Self = Self {
        hold: Duration::ZERO,
        auto_rollback: false,
        force: false,
        patience: Patience { timeout: Duration::ZERO },
    };

    pub(super) const fn force(self) -> Force {
        if self.force { Force::Yes } else { Force::No }
    }

    pub(super) const fn on_harm(self) -> OnHarm {
        if self.auto_rollback { OnHarm::GoBack } else { OnHarm::Stop }
    }
}

impl From<To> for Kind {
    fn from(to: To) -> Self {
        match to {
            To::Vxlan => Self::Vxlan,
            To::HostGw => Self::HostGw,
        }
    }
}

/// As nodes write their addresses.
fn canonical(name: &str) -> String {
    name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |ip| ip.to_string())
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "a time like 90s, 10m or 1h")?;
    let unit = match text.get(digits.len()..).unwrap_or_default() {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("a time like 90s, 10m or 1h"),
    };
    Ok(Duration::from_secs(number.saturating_mul(unit)))
}
