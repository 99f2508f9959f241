//! What the runtime asks for: the environment, parsed once.

use std::env;
use std::fmt;
use std::path::PathBuf;

use crate::excerpt;
use crate::protocol::error::Error;

/// The kernel's limit for the name of an interface, in bytes.
const LONGEST_INTERFACE: usize = 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// One interface of one container: what is added, checked and deleted.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Attachment {
    pub container_id: String,
    pub interface: String,
}

/// An attachment and the network namespace of its container.
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
    /// The namespace may be gone, or not be given.
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
    /// Which network namespaces a container may have.
    pub netns_rule: NetnsRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetnsRule {
    /// The namespace of a container is not the plugin's own.
    Foreign,
    /// `CNI_NETNS_OVERRIDE`: any.
    Any,
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of container {}", self.interface, self.container_id)
    }
}

impl Request {
    /// None without `CNI_COMMAND`: a person called, not a runtime.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        Self::parse(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// As [`from_environment`](Self::from_environment), with `variable` for the environment.
    pub fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(command) = value("CNI_COMMAND") else { return Ok(None) };
        let command = Command::parse(&command)?;
        check_present(command, &value)?;
        let path = value("CNI_PATH").unwrap_or_default();
        Ok(Some(Self {
            verb: command.verb(&value)?,
            arguments: value("CNI_ARGS").unwrap_or_default(),
            path: env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect(),
            netns_rule: NetnsRule::parse(&value("CNI_NETNS_OVERRIDE").unwrap_or_default()),
        }))
    }

    /// The value of the last pair with exactly `key` in `CNI_ARGS`, as in `IP=10.244.7.9;K=V`.
    pub fn argument(&self, key: &str) -> Result<Option<&str>, Error> {
        let mut found = None;
        for pair in self.arguments.split(';').filter(|_| !self.arguments.is_empty()) {
            let split = pair.split_once('=').filter(|(_, value)| !value.contains('='));
            let (name, value) = split.ok_or_else(|| {
                Error::bad_environment(format!("CNI_ARGS: invalid pair {}", excerpt::quoted(pair)))
            })?;
            if name == key {
                found = Some(value);
            }
        }
        Ok(found)
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
            Ok::<_, Error>(Sandbox { attachment: attachment(self, value)?, netns })
        };
        Ok(match self {
            Self::Add => Verb::Add(sandbox()?),
            Self::Check => Verb::Check(sandbox()?),
            Self::Del => Verb::Del { attachment: attachment(self, value)?, netns },
            Self::Gc => Verb::Gc,
            Self::Status => Verb::Status,
            Self::Version => Verb::Version,
        })
    }
}

impl NetnsRule {
    fn parse(text: &str) -> Self {
        let is_any = text == "1" || text.eq_ignore_ascii_case("true");
        if is_any { Self::Any } else { Self::Foreign }
    }
}

fn check_present(command: Command, value: &impl Fn(&str) -> Option<String>) -> Result<(), Error> {
    let missing: Vec<_> =
        needed(command).iter().copied().filter(|name| value(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(",");
    Err(Error::bad_environment(format!("required env variables [{names}] missing")))
}

const fn needed(command: Command) -> &'static [&'static str] {
    match command {
        Command::Add | Command::Check => {
            &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
        }
        Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
        Command::Gc | Command::Status => &["CNI_PATH"],
        Command::Version => &[],
    }
}

/// A DEL takes every name that another plugin may have added.
fn attachment(
    command: Command,
    value: &impl Fn(&str) -> Option<String>,
) -> Result<Attachment, Error> {
    let container_id = value("CNI_CONTAINERID").unwrap_or_default();
    if !is_identifier(&container_id) {
        return Err(Error::bad_environment(format!(
            "CNI_CONTAINERID: invalid characters in {}",
            excerpt::quoted(&container_id)
        )));
    }
    let interface = value("CNI_IFNAME").unwrap_or_default();
    let is_new = command != Command::Del;
    let unprintable = (is_new && !is_legible(&interface)).then_some("is not printable");
    match flaw_of_interface(&interface).or(unprintable) {
        Some(flaw) => {
            let shown = excerpt::quoted(&interface);
            Err(Error::bad_environment(format!("CNI_IFNAME {shown} {flaw}")))
        }
        None => Ok(Attachment { container_id, interface }),
    }
}

/// The name must be usable as that of a directory.
pub fn check_network_name(name: &str) -> Result<(), Error> {
    match name {
        "" => Err(Error::invalid_config("missing network name")),
        _ if is_identifier(name) => Ok(()),
        _ => {
            let name = excerpt::quoted(name);
            Err(Error::invalid_config(format!("invalid characters found in network name {name}")))
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let follows = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(follows)
}

/// What is no text is shown by a mark in its place.
fn is_legible(name: &str) -> bool {
    excerpt::is_printable(name) && !name.contains(char::REPLACEMENT_CHARACTER)
}

/// What the kernel does not take as the name of an interface.
pub(crate) fn flaw_of_interface(name: &str) -> Option<&'static str> {
    let is_forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
    match name {
        "" => Some("is empty"),
        "." | ".." => Some("is . or .."),
        _ if name.len() > LONGEST_INTERFACE => Some("is too long: at most 15 bytes"),
        _ if name.contains(is_forbidden) => Some("contains / or : or white space"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
