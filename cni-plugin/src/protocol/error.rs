//! An error of the CNI protocol: a code that runtimes act on and a sentence that people read.

use std::fmt;
use std::io;

use nix::errno::Errno;

use crate::protocol::json::WrongType;

/// What goes to standard output instead of a result.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Error {
    /// See the constructors, which name the codes by meaning.
    pub code: u32,
    pub msg: String,
    /// More of it, or nothing.
    pub details: String,
}

impl Error {
    /// The config is of a version that the plugin or the command does not know.
    pub fn incompatible_version(details: impl Into<String>) -> Self {
        Self { details: details.into(), ..Self::of(1, "incompatible CNI versions") }
    }

    /// A variable of the environment is missing or wrong; the sentence names it.
    pub fn bad_environment(msg: impl Into<String>) -> Self {
        Self::of(4, msg)
    }

    /// Standard input cannot be read.
    pub fn io(msg: impl Into<String>) -> Self {
        Self::of(5, msg)
    }

    /// Standard input is not what it should be.
    pub fn decode(msg: impl Into<String>) -> Self {
        Self::of(6, msg)
    }

    /// The config can be read and cannot be right.
    pub fn invalid_config(msg: impl Into<String>) -> Self {
        Self::of(7, msg)
    }

    /// The network namespace cannot be the container's.
    pub fn invalid_namespace(msg: impl Into<String>) -> Self {
        Self::of(8, msg)
    }

    /// The same call may succeed in a while.
    pub fn try_again_later(msg: impl Into<String>) -> Self {
        Self::of(11, msg)
    }

    /// Answer of STATUS: no container can be added.
    pub fn not_available(msg: impl Into<String>) -> Self {
        Self::of(50, msg)
    }

    /// Answer of STATUS: no container can be added, and those that exist may lack connectivity.
    pub fn not_available_and_limited(msg: impl Into<String>) -> Self {
        Self::of(51, msg)
    }

    /// Everything else.
    pub fn failed(msg: impl Into<String>) -> Self {
        Self::of(999, msg)
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if self.details.is_empty() { Ok(()) } else { write!(f, "; {}", self.details) }
    }
}

impl std::error::Error for Error {}

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
