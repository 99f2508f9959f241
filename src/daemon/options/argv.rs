//! The words of the command line in the syntax of Go's `flag` package, and the environment behind them.

use std::ffi::OsString;

use clap::builder::ValueRange;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};

use super::stop::Stop;
use super::values::{boolean, integer};

const VARIABLE_PREFIX: &str = "FLANNELD_";

/// Flags that flannel had once, and what to do without them.
const GONE: [(&str, &str); 8] = [
    ("remote", CLIENT_SERVER),
    ("remote-keyfile", CLIENT_SERVER),
    ("remote-certfile", CLIENT_SERVER),
    ("remote-cafile", CLIENT_SERVER),
    ("listen", CLIENT_SERVER),
    ("networks", NETWORKS),
    ("subnet-dir", NETWORKS),
    ("use-multi-cluster-cidr", "each node has one subnet per address family"),
];
const CLIENT_SERVER: &str = "every node talks to etcd itself, see --etcd-endpoints";
const NETWORKS: &str = "start one daemon per network, with its own --etcd-prefix and --subnet-file";

/// Flags that Go's parser takes for integers; it does not know their bounds.
const NUMBERS: [&str; 7] = [
    "subnet-lease-renew-margin",
    "max-withdraw",
    "healthz-port",
    "metrics-port",
    "iptables-resync",
    "iptables-masquerade-bit",
    "v",
];

/// The flags that were given and not yet judged, in order.
pub(super) struct Settings {
    given: Vec<Setting>,
    /// What is ignored or read differently, as flanneld does it.
    pub(super) warnings: Vec<String>,
}

struct Setting {
    flag: String,
    value: String,
    /// The flag or the variable, as the operator knows it.
    name: String,
}

impl Settings {
    /// Stops reading at the first word that is no flag, and at `--`, as flanneld does.
    pub(super) fn read(
        arguments: impl IntoIterator<Item: Into<OsString>>,
        command: &Command,
    ) -> Result<Self, Stop> {
        let mut settings = Vec::new();
        let mut words = (1..).zip(arguments).map(|(position, word)| text(position, word));
        while let Some(word) = words.next() {
            let word = word?;
            let Some((flag, value)) = split(&word)? else { break };
            let name = format!("--{flag}");
            let argument = find(flag, command)?;
            let value = match value {
                Some(value) => value.to_owned(),
                None if is_boolean(argument) => "true".to_owned(),
                None => words.next().ok_or_else(|| Stop::NoValue { flag: name.clone() })??,
            };
            settings.push(Setting { flag: flag.to_owned(), value, name });
        }
        Ok(Self { given: settings, warnings: Vec::new() })
    }

    /// A bad value is not our concern yet.
    pub(super) fn ask_for_version(&self) -> bool {
        let version = self.given.iter().rfind(|setting| setting.flag == "version");
        version.is_some_and(|setting| boolean(&setting.value) == Ok(true))
    }

    /// Asks for the variable of each flag that was not given. An empty one counts as unset, and so
    /// does one that Go's parser refuses.
    pub(super) fn add_environment(
        &mut self,
        environment: impl Fn(&str) -> Option<String>,
        command: &Command,
    ) {
        for argument in command.get_arguments() {
            let Some(flag) = argument.get_long().filter(|flag| *flag != "version") else {
                continue;
            };
            let name = variable(flag);
            let value = environment(&name).filter(|value| !value.is_empty());
            let Some(value) = value.filter(|_| self.value(flag).is_none()) else { continue };
            match malformed(argument, flag, &value) {
                Some(allowed) => self.ignore(&Stop::BadValue { name, value, allowed }),
                None => self.given.push(Setting { flag: flag.to_owned(), value, name }),
            }
        }
    }

    /// Warns of what would be a reason to stop if flanneld did not run with it.
    pub(super) fn ignore(&mut self, reason: &Stop) {
        self.warnings.push(format!("{reason}; it is ignored, as in flanneld"));
    }

    /// Warns if `flag` was given as another number than the one that is `used`.
    pub(super) fn warn_of_bounds(&mut self, flag: &str, used: u64) {
        let given = self.value(flag).and_then(integer);
        if given.is_some_and(|given| u64::try_from(given) != Ok(used)) {
            let (name, given) = (self.name(flag), given.unwrap_or_default());
            self.warnings.push(format!("{name} is {given}; {used} is used"));
        }
    }

    /// The last text of `flag`.
    pub(super) fn value(&self, flag: &str) -> Option<&str> {
        let given = self.given.iter().rfind(|setting| setting.flag == flag);
        given.map(|setting| setting.value.as_str())
    }

    /// The same in the one form that leaves no doubt, program first: the last of each flag, or all
    /// of a list.
    pub(super) fn words(&self, command: &Command) -> Vec<String> {
        let mut words = vec!["tweedd".to_owned()];
        for (index, Setting { flag, value, .. }) in self.given.iter().enumerate() {
            let argument = command.get_arguments().find(|known| known.get_long() == Some(flag));
            let is_list = argument.is_some_and(is_list);
            let later = self.given.iter().skip(index + 1).any(|setting| setting.flag == *flag);
            if is_list || !later {
                // What is unset by default is unset by an empty value.
                let unset = argument.is_some_and(|known| known.get_default_values().is_empty());
                if !(unset && value.is_empty()) {
                    words.push(format!("--{flag}={value}"));
                }
            }
        }
        words
    }

    /// What the operator set `flag` by; the flag itself if he did not.
    pub(super) fn name(&self, flag: &str) -> String {
        let given = self.given.iter().rfind(|setting| setting.flag == flag);
        given.map_or_else(|| format!("--{flag}"), |setting| setting.name.clone())
    }

    /// Says in our words which value the parser refused.
    pub(super) fn blame(&self, error: &clap::Error) -> Stop {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => text.as_str(),
            _ => "",
        };
        let shown = context(ContextKind::InvalidArg).trim_start_matches('-');
        let flag = shown.split([' ', '=', '[']).next().unwrap_or(shown);
        let reason = std::error::Error::source(error);
        Stop::BadValue {
            name: self.name(flag),
            value: context(ContextKind::InvalidValue).to_owned(),
            allowed: reason.map_or_else(|| error.kind().to_string(), ToString::to_string),
        }
    }
}

fn text(position: usize, word: impl Into<OsString>) -> Result<String, Stop> {
    word.into().into_string().map_err(|_| Stop::NotUtf8 { position })
}

/// Name and value of a flag; none if the word is not one.
fn split(word: &str) -> Result<Option<(&str, Option<&str>)>, Stop> {
    let Some(rest) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
        return Ok(None);
    };
    let (flag, value) = match rest.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        None => (rest, None),
    };
    match (flag, value) {
        ("", None) => Ok(None),
        ("", Some(_)) => Err(Stop::Malformed { flag: "-=".to_owned() }),
        _ if flag.starts_with('-') => Err(Stop::Malformed { flag: format!("--{flag}") }),
        _ => Ok(Some((flag, value))),
    }
}

fn find<'a>(flag: &str, command: &'a Command) -> Result<&'a Arg, Stop> {
    if flag == "help" || flag == "h" {
        return Err(Stop::Help(command.clone().render_help().to_string()));
    }
    let known = command.get_arguments().find(|argument| argument.get_long() == Some(flag));
    known.ok_or_else(|| {
        let gone = GONE.iter().find(|(gone, _)| *gone == flag);
        let flag = format!("--{flag}");
        match gone {
            Some((_, instead)) => Stop::Gone { flag, instead },
            None => Stop::Unknown { flag },
        }
    })
}

fn is_boolean(argument: &Arg) -> bool {
    argument.get_num_args() == Some(ValueRange::new(0..=1))
}

fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

/// The form that Go's parser asks for, if `value` does not have it.
fn malformed(argument: &Arg, flag: &str, value: &str) -> Option<String> {
    let is_no_number = NUMBERS.contains(&flag) && integer(value).is_none();
    let expected = if is_boolean(argument) { boolean(value).err() } else { None };
    expected.or(is_no_number.then_some("a number")).map(str::to_owned)
}

fn variable(flag: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", flag.to_uppercase().replace(['-', '.'], "_"))
}
