//! `tweedctl`: the commands of operators, with output as text or JSON.

mod cleanup;
mod diff;
mod doctor;
mod handover;
mod ipam;
mod layout;
mod leases;
mod migrate;
mod node;
mod options;
mod peers;
mod plan;
mod status;

pub use options::Arguments;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use self::layout::Output;
use self::leases::LeaseList;
use self::options::Command;
use self::peers::PeerList;
use crate::excerpt;
use crate::kernel::{Kernel, NetlinkKernel};

/// The result of a command, with its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitStatus {
    Done = 0,
    /// Drift, an unprogrammed peer, a daemon that is not ready, or a refused operation.
    Problems = 1,
    /// A migration cannot continue in this state.
    Impossible = 3,
    /// A pair has lost its path, or has a worse one than before.
    Degraded = 4,
    /// Another operator has changed the config.
    Conflict = 5,
    /// A node did not follow in time.
    Late = 6,
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

/// The result of a command: text by `Display`, JSON by `Serialize`.
trait Answer: Display + Serialize {
    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Done
    }
}

/// Runs the command on this host, and writes its result to `out`.
pub async fn run(arguments: Arguments, out: &mut impl Write) -> Result<ExitStatus, Error> {
    let unusable = |error| Error::Unavailable(format!("netlink cannot be used: {error}"));
    run_on(arguments, || NetlinkKernel::open().map_err(unusable), out).await
}

/// As [`run`]; commands that need a kernel get it from `open`.
pub async fn run_on<K: Kernel>(
    arguments: Arguments,
    open: impl FnOnce() -> Result<K, Error>,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let Arguments { command, output, files } = arguments;
    match command {
        Command::Status => write(out, output, &status::ask(&files).await?),
        Command::Peers => {
            write(out, output, &PeerList(node::ask(&files.socket(), "/peers").await?))
        }
        Command::Leases => {
            write(out, output, &LeaseList(node::ask(&files.socket(), "/leases").await?))
        }
        Command::Plan(options) => write(out, output, &plan::answer(&options)?),
        Command::Diff => write(out, output, &diff::answer(&files, open()?).await?),
        Command::Cleanup(options) => {
            write(out, output, &cleanup::answer(&files, &options, open()?).await?)
        }
        Command::Handover(options) => {
            write(out, output, &handover::answer(&files, &options, open()?).await?)
        }
        Command::Doctor(options) => {
            write(out, output, &doctor::answer(&files, &options, open()?).await?)
        }
        Command::Ipam(command) => write(out, output, &ipam::answer(&command)?),
        Command::Migrate(options) => migrate::run(&options, output, out).await,
    }
}

fn write(out: &mut impl Write, output: Output, answer: &impl Answer) -> Result<ExitStatus, Error> {
    match output {
        Output::Text => write!(out, "{answer}")?,
        Output::Json => {
            let json = serde_json::to_string_pretty(answer).map_err(io::Error::from)?;
            writeln!(out, "{}", excerpt::printable_json(json))?;
        }
    }
    out.flush()?;
    Ok(answer.exit_status())
}

impl From<ExitStatus> for ExitCode {
    fn from(exit_status: ExitStatus) -> Self {
        Self::from(exit_status as u8)
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
    use std::fmt;

    use super::*;

    /// A result that contains text of other nodes.
    #[derive(Serialize)]
    struct Written(&'static str);

    impl fmt::Display for Written {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Answer for Written {}

    #[test]
    fn json_drives_no_terminal() {
        let mut out = Vec::new();
        write(&mut out, Output::Json, &Written("\u{9b}2J\u{202e}")).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\"\\u009b2J\\u202e\"\n");
    }
}
