//! Host settings that drop or block packets of pods: host facts in, findings out.

pub(crate) mod addresses;
pub(crate) mod facts;
pub(crate) mod firewall;
mod links;
mod networkd;
mod others;
#[cfg(test)]
mod tests;
pub(crate) mod unit;

pub use facts::{
    Host, Module, Needs, OtherDaemon, Owner, Place, Port, Process, Routing, Socket, Systemd,
};
pub use unit::Unit;

use std::fmt;

use serde::Serialize;

/// A problem of the host that an operator should know or fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable identifier: it does not change between versions.
    pub id: &'static str,
    pub level: Level,
    pub what: String,
    /// The file, link, process or table that the finding is about.
    #[serde(rename = "where")]
    pub place: String,
    pub why: String,
    #[serde(rename = "cure")]
    pub fix: String,
    /// A configuration file that makes the fix permanent across reboots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_in: Option<DropIn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// `tweedd` refuses to start.
    Fatal,
    /// Packets are lost, or will be.
    Warning,
    /// No packets are lost at present.
    Note,
}

/// A file of `config/`, and the lines of it that fix the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DropIn {
    /// The path relative to `config/` in the sources, and to `/etc` once installed.
    pub file: &'static str,
    pub lines: Vec<String>,
}

pub fn findings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        others::other_daemons(&host.other_daemons),
        links::modules(needs, host),
        others::ports(needs, host),
        addresses::overlaps(needs, host),
        firewall::forwarding_settings(needs, host),
        addresses::bridges(needs, host),
        firewall::chains(needs, host),
        links::mtus(needs, host),
        firewall::reverse_path_filters(needs, host),
        addresses::neighbours(needs, host),
        networkd::findings(needs, host),
    ]
    .concat();
    findings.sort_by_key(|finding| finding.level);
    findings
}

/// The finding for which the daemon refuses to start, if any.
pub fn refusal(other_daemons: &[OtherDaemon]) -> Option<Finding> {
    others::other_daemons(other_daemons).into_iter().find(|finding| finding.level == Level::Fatal)
}

impl Level {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl DropIn {
    fn new(file: &'static str, lines: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { file, lines: lines.into_iter().map(Into::into).collect() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.what, self.why, self.fix)
    }
}
