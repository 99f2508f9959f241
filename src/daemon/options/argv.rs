//! Reads the command line in the syntax of Go's `flag` package, and then the environment.

use std::ffi::OsString;
use std::fmt::Display;

use clap::{Arg, Command};

use super::stop::Stop;
use super::values::{Allowed, boolean, integer};

const ABOUT: &str = "A flannel-compatible route daemon whose nodes may mix backends";
const SYNTAX: &str = "\
A flag has one dash or two, and its value after `=` or a space; a boolean only after `=`.
A flag that is not given is read from the environment: --etcd-prefix from FLANNELD_ETCD_PREFIX.";
/// Has no environment variable.
const VERSION: &str = "version";

/// A flag as it is declared. As in Go, the default determines the type: boolean, integer or text.
#[derive(Clone, Copy, Default)]
pub(super) struct Flag {
    heading: &'static str,
    help: &'static str,
    name: &'static str,
    value_name: &'static str,
    default: Option<&'static str>,
}

impl Flag {
    /// The flag and its parser come from [`one`], [`optional`] or [`list`].
    pub(super) fn new<T>(
        heading: &'static str,
        help: &'static str,
        (flag, _): (Self, impl Fn(&[&str]) -> Result<T, Allowed>),
    ) -> Self {
        Self { heading, help: help.trim_start(), ..flag }
    }

    fn is_boolean(&self) -> bool {
        matches!(self.default, Some("true" | "false"))
    }

    /// What Go's parser allows, if it rejects `value`. It does not check the bounds of integers.
    fn refusal(&self, value: &str) -> Option<Allowed> {
        if self.is_boolean() {
            return boolean(value).err();
        }
        self.default.and_then(integer).filter(|_| integer(value).is_none()).map(|_| "a number")
    }
}

/// A flag of which the last value is used.
pub(super) fn one<T>(
    name: &'static str,
    value_name: &'static str,
    default: &'static str,
    parse: impl Fn(&str) -> Result<T, Allowed>,
) -> (Flag, impl Fn(&[&str]) -> Result<T, Allowed>) {
    let flag = Flag { name, value_name, default: Some(default), ..Flag::default() };
    (flag, move |values: &[&str]| parse(values.last().copied().unwrap_or_default()))
}

/// The same without a default; an empty value unsets it.
pub(super) fn optional<T>(
    name: &'static str,
    value_name: &'static str,
    parse: impl Fn(&str) -> Result<T, Allowed>,
) -> (Flag, impl Fn(&[&str]) -> Result<Option<T>, Allowed>) {
    let read = move |values: &[&str]| {
        values.last().filter(|value| !value.is_empty()).map(|value| parse(value)).transpose()
    };
    (Flag { name, value_name, ..Flag::default() }, read)
}

/// A flag of which all values are used, except empty ones.
pub(super) fn list(
    name: &'static str,
    value_name: &'static str,
) -> (Flag, impl Fn(&[&str]) -> Result<Vec<String>, Allowed>) {
    let read = |values: &[&str]| {
        let given = values.iter().filter(|value| !value.is_empty());
        Ok(given.map(|value| (*value).to_owned()).collect())
    };
    (Flag { name, value_name, ..Flag::default() }, read)
}

/// The flags that were given, in order, with their values as text.
pub(super) struct GivenFlags {
    given: Vec<GivenFlag>,
    /// On values that are ignored or read differently, as by flanneld.
    pub(super) warnings: Vec<String>,
}

struct GivenFlag {
    flag: &'static str,
    value: String,
    /// The flag or the variable.
    source: String,
}

impl GivenFlags {
    /// Stops at the first argument that is no flag, and at `--`, as flanneld does.
    pub(super) fn read(
        arguments: impl IntoIterator<Item: Into<OsString>>,
        flags: &[Flag],
    ) -> Result<Self, Stop> {
        let mut given = Vec::new();
        let mut words = (1..).zip(arguments).map(|(position, word)| {
            let word: OsString = word.into();
            word.into_string().map_err(|_| Stop::NotUtf8 { position })
        });
        while let Some(word) = words.next().transpose()? {
            let Some((name, value)) = split(&word)? else { break };
            let flag = find(name, flags)?;
            let source = format!("--{name}");
            let value = match value {
                Some(value) => value.to_owned(),
                None if flag.is_boolean() => "true".to_owned(),
                None => words
                    .next()
                    .transpose()?
                    .ok_or_else(|| Stop::NoValue { flag: source.clone() })?,
            };
            given.push(GivenFlag { flag: flag.name, value, source });
        }
        Ok(Self { given, warnings: Vec::new() })
    }

    /// Flags that another program has parsed.
    pub(super) fn of(given: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Self {
        let setting = |(flag, value): (_, Option<String>)| {
            Some(GivenFlag { flag, value: value?, source: format!("--{flag}") })
        };
        Self { given: given.into_iter().filter_map(setting).collect(), warnings: Vec::new() }
    }

    /// Reads the variable of each flag that was not given. A variable counts as unset if it is
    /// empty or if Go's parser rejects it.
    pub(super) fn add_environment(
        &mut self,
        environment: impl Fn(&str) -> Option<String>,
        flags: &[Flag],
    ) {
        for flag in flags.iter().filter(|flag| flag.name != VERSION) {
            let name = format!("FLANNELD_{}", flag.name.to_uppercase().replace('-', "_"));
            let value = environment(&name).filter(|value| !value.is_empty());
            let Some(value) = value.filter(|_| self.last(flag.name).is_none()) else { continue };
            match flag.refusal(&value).map(str::to_owned) {
                Some(allowed) => self.ignore(&Stop::BadValue { name, value, allowed }),
                None => self.given.push(GivenFlag { flag: flag.name, value, source: name }),
            }
        }
    }

    pub(super) fn value<T>(
        &self,
        (flag, parse): (Flag, impl Fn(&[&str]) -> Result<T, Allowed>),
    ) -> Result<T, Stop> {
        let given = self.given.iter().filter(|setting| setting.flag == flag.name);
        let mut values: Vec<&str> = given.map(|setting| setting.value.as_str()).collect();
        if values.is_empty() {
            values.extend(flag.default);
        }
        let last = values.last().copied().unwrap_or_default();
        parse(&values).map_err(|allowed| self.bad_value(flag.name, last, allowed))
    }

    pub(super) fn bad_value(&self, flag: &str, value: &str, allowed: impl Into<String>) -> Stop {
        let (name, value) = (self.name(flag), value.to_owned());
        Stop::BadValue { name, value, allowed: allowed.into() }
    }

    /// Adds a warning of a mistake that flanneld ignores.
    pub(super) fn ignore(&mut self, reason: &impl Display) {
        self.warnings.push(format!("{reason}; it is ignored, as in flanneld"));
    }

    /// Adds a warning if `flag` was given another number than the one that is `used`.
    pub(super) fn warn_of_bounds(&mut self, flag: &str, used: u64) {
        let given = self.last(flag).and_then(|setting| integer(&setting.value));
        if let Some(given) = given.filter(|given| u64::try_from(*given) != Ok(used)) {
            self.warnings.push(format!("{} is {given}; {used} is used", self.name(flag)));
        }
    }

    /// The flag or the variable that gave `flag` its value.
    pub(super) fn name(&self, flag: &str) -> String {
        self.last(flag).map_or_else(|| format!("--{flag}"), |setting| setting.source.clone())
    }

    fn last(&self, flag: &str) -> Option<&GivenFlag> {
        self.given.iter().rfind(|setting| setting.flag == flag)
    }
}

/// Name and value of a flag; none if `word` is no flag.
fn split(word: &str) -> Result<Option<(&str, Option<&str>)>, Stop> {
    let Some(rest) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
        return Ok(None);
    };
    let given = rest.split_once('=');
    let (flag, value) = given.map_or((rest, None), |(flag, value)| (flag, Some(value)));
    match (flag, value) {
        ("", None) => Ok(None),
        ("", Some(_)) => Err(Stop::Malformed { flag: "-=".to_owned() }),
        _ if flag.starts_with('-') => Err(Stop::Malformed { flag: format!("--{flag}") }),
        _ => Ok(Some((flag, value))),
    }
}

fn find<'a>(name: &str, flags: &'a [Flag]) -> Result<&'a Flag, Stop> {
    if name == "help" || name == "h" {
        return Err(Stop::Help(command(flags).render_help().to_string()));
    }
    let flag = format!("--{name}");
    flags.iter().find(|known| known.name == name).ok_or_else(|| match removed_flag(name) {
        Some(instead) => Stop::Removed { flag, instead },
        None => Stop::Unknown { flag },
    })
}

/// The replacement of a flag that flannel has removed.
fn removed_flag(flag: &str) -> Option<&'static str> {
    match flag {
        "remote" | "remote-keyfile" | "remote-certfile" | "remote-cafile" | "listen" => {
            Some("every node connects to etcd itself, see --etcd-endpoints")
        }
        "networks" | "subnet-dir" => {
            Some("start one daemon per network, with its own --etcd-prefix and --subnet-file")
        }
        "use-multi-cluster-cidr" => Some("each node has one subnet per address family"),
        _ => None,
    }
}

/// The flags as clap describes them.
pub(super) fn command(flags: &[Flag]) -> Command {
    let arguments = flags.iter().map(|flag| {
        let argument = Arg::new(flag.name).long(flag.name).help(flag.help);
        let argument = argument.help_heading(flag.heading).value_name(flag.value_name);
        let argument =
            argument.default_values(flag.default).hide_default_value(flag.name == VERSION);
        if flag.is_boolean() { argument.num_args(0..=1).require_equals(true) } else { argument }
    });
    let command = Command::new("tweedd").about(ABOUT).after_help(SYNTAX).args(arguments);
    command.override_usage("tweedd [--flag=value]...")
}
