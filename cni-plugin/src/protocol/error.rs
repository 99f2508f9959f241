//! An error of the CNI protocol: a code that runtimes act on and a sentence that people read.

use std::fmt;
use std::io;

use nix::errno::Errno;

use crate::protocol::json::WrongType;

/// What goes to standard output instead of a result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{msg}{}{details}", if .details.is_empty() { "" } else { "; " })]
pub struct Error {
    /// See the constructors, which name the codes by meaning.
    pub code: u32,
    pub msg: String,
    /// More of it, or nothing.
    pub details: String,
}

/// Defines a constructor for each code of an error that a sentence explains.
macro_rules! codes {
    ($($(#[doc = $meaning:literal])+ $name:ident: $code:literal,)+) => {
        impl Error {
            $($(#[doc = $meaning])+ pub fn $name(msg: impl Into<String>) -> Self {
                Self::of($code, msg)
            })+
        }
    };
}

codes! {
    /// A variable of the environment is missing or wrong; the sentence names it.
    bad_environment: 4,
    /// Standard input cannot be read.
    io: 5,
    /// Standard input is not what it should be.
    decode: 6,
    /// The config can be read and cannot be right.
    invalid_config: 7,
    /// The network namespace cannot be the container's.
    invalid_namespace: 8,
    /// The same call may succeed in a while.
    try_again_later: 11,
    /// Answer of STATUS: no container can be added.
    not_available: 50,
    /// Answer of STATUS: no container can be added, and those that exist may lack connectivity.
    not_available_and_limited: 51,
    /// Everything else.
    failed: 999,
}

impl Error {
    /// The config is of a version that the plugin or the command does not know.
    pub fn incompatible_version(details: impl Into<String>) -> Self {
        Self { details: details.into(), ..Self::of(1, "incompatible CNI versions") }
    }

    fn of(code: u32, msg: impl Into<String>) -> Self {
        Self { code, msg: msg.into(), details: String::new() }
    }

    /// Whether the same call may succeed in a while.
    pub fn is_passing(&self) -> bool {
        self.code == Self::try_again_later("").code
    }

    /// The same error, its sentence led by what was being done.
    #[must_use]
    pub fn context(self, doing: impl fmt::Display) -> Self {
        Self { msg: format!("{doing}: {}", self.msg), ..self }
    }
}

/// The caller adds what was being done.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

/// As from [`io::Error`].
impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::failed(errno.to_string())
    }
}

impl From<WrongType> for Error {
    fn from(error: WrongType) -> Self {
        Self::invalid_config(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_precedes_the_text_and_keeps_the_code() {
        let error = Error::try_again_later("the store is locked").context("allocating for range 0");
        assert_eq!(error.code, 11);
        assert_eq!(error.to_string(), "allocating for range 0: the store is locked");
    }

    #[test]
    fn details_follow_the_text() {
        let error = Error::incompatible_version("config is \"1.0\"");
        assert_eq!(error.to_string(), "incompatible CNI versions; config is \"1.0\"");
    }
}
