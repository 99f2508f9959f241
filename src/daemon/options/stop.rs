//! Why a command line starts no daemon, as a sentence and an exit code.

use std::io::{self, Write};
use std::process::ExitCode;

/// The command line requests something else than a daemon, or is invalid.
///
/// Shows a value only if the flag is known: after a mistyped flag, it may be a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    #[error("{0}")]
    Help(String),
    #[error("tweedd {}", env!("CARGO_PKG_VERSION"))]
    Version,
    /// `position` is counted from 1.
    #[error("argument {position} is not UTF-8")]
    NotUtf8 { position: usize },
    #[error("{flag} is not a flag: allowed are one or two dashes and a name; see tweedd --help")]
    Malformed { flag: String },
    #[error("{flag} is not a flag of tweedd; tweedd --help lists them")]
    Unknown { flag: String },
    #[error("{flag} is a flag of older flannel, which was removed: {instead}")]
    Removed { flag: String, instead: &'static str },
    #[error("{flag} needs a value")]
    NoValue { flag: String },
    #[error("{name} is {value:?}; allowed: {allowed}")]
    BadValue { name: String, value: String, allowed: String },
    #[error("--kube-subnet-mgr needs NODE_NAME, or POD_NAME and POD_NAMESPACE, in the environment")]
    NoNodeName,
}

impl Stop {
    /// 0 if it was requested, else 2, as for any wrong use of a command.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Help(_) | Self::Version) { 0 } else { 2 }
    }

    /// Prints help on stdout, for pagers, and all else on stderr, as flanneld does.
    pub fn print(&self) -> ExitCode {
        let printed = match self {
            Self::Help(text) => io::stdout().write_all(text.as_bytes()),
            Self::Version => writeln!(io::stderr(), "{self}"),
            refused => writeln!(io::stderr(), "tweedd: {refused}"),
        };
        // An error on stdout or stderr cannot be reported.
        drop(printed);
        ExitCode::from(self.exit_code())
    }
}
