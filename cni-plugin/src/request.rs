//! What the runtime asks for: the environment, parsed once.

mod arguments;
mod names;

use std::env;
use std::path::PathBuf;

use crate::attachment::Attachment;
use crate::error::Error;
use crate::excerpt;
pub use names::check_network_name;
pub(crate) use names::flaw_of_interface;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// A container's interface and the network namespace that it lives in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub attachment: Attachment,
    pub netns: PathBuf,
}

/// A command with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    Add(Sandbox),
    Check(Sandbox),
    /// The namespace may be gone, or not be told.
    Del {
        attachment: Attachment,
        netns: Option<PathBuf>,
    },
    Gc,
    Status,
    Version,
}

/// One call of the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub verb: Verb,
    /// `CNI_ARGS`, as it stands.
    pub arguments: String,
    /// Where other plugins are looked for, in this order.
    pub path: Vec<PathBuf>,
    /// Whose namespace a container may have.
    pub netns_rule: NetnsRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetnsRule {
    /// The namespace of a container is not the plugin's own.
    Foreign,
    /// `CNI_NETNS_OVERRIDE`: any.
    Any,
}

impl Request {
    /// None without `CNI_COMMAND`: a person called, not a runtime.
    ///
    /// # Errors
    /// A name is missing or malformed; all missing ones are told at once.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        Self::parse(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As [`from_environment`](Self::from_environment), with `variable` for the environment.
    pub fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(command) = value("CNI_COMMAND") else { return Ok(None) };
        let command = Command::parse(&command)?;
        names::check_present(command, &value)?;
        let path = value("CNI_PATH").unwrap_or_default();
        Ok(Some(Self {
            verb: command.verb(&value)?,
            arguments: value("CNI_ARGS").unwrap_or_default(),
            path: env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
            netns_rule: NetnsRule::parse(&value("CNI_NETNS_OVERRIDE").unwrap_or_default()),
        }))
    }

    /// What `CNI_ARGS` says under `key`.
    ///
    /// # Errors
    /// `CNI_ARGS` is malformed.
    pub fn argument(&self, key: &str) -> Result<Option<&str>, Error> {
        arguments::value(&self.arguments, key)
    }
}

impl Verb {
    pub const fn command(&self) -> Command {
        match self {
            Self::Add(_) => Command::Add,
            Self::Check(_) => Command::Check,
            Self::Del { .. } => Command::Del,
            Self::Gc => Command::Gc,
            Self::Status => Command::Status,
            Self::Version => Command::Version,
        }
    }
}

impl Command {
    const ALL: [Self; 6] =
        [Self::Add, Self::Del, Self::Check, Self::Gc, Self::Status, Self::Version];

    fn parse(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|command| command.as_str() == text);
        known.ok_or_else(|| {
            Error::bad_environment(format!("unknown CNI_COMMAND: {}", excerpt::value(text)))
        })
    }

    /// As `CNI_COMMAND` spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    fn verb(self, value: &impl Fn(&str) -> Option<String>) -> Result<Verb, Error> {
        let netns = value("CNI_NETNS").map(PathBuf::from);
        let sandbox = || {
            let netns = netns.clone().unwrap_or_default();
            Ok::<_, Error>(Sandbox { attachment: names::attachment(self, value)?, netns })
        };
        Ok(match self {
            Self::Add => Verb::Add(sandbox()?),
            Self::Check => Verb::Check(sandbox()?),
            Self::Del => Verb::Del { attachment: names::attachment(self, value)?, netns },
            Self::Gc => Verb::Gc,
            Self::Status => Verb::Status,
            Self::Version => Verb::Version,
        })
    }
}

impl NetnsRule {
    fn parse(text: &str) -> Self {
        let says_any = text == "1" || text.eq_ignore_ascii_case("true");
        if says_any { Self::Any } else { Self::Foreign }
    }
}

#[cfg(test)]
mod tests;
