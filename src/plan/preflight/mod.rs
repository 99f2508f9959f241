//! What drops or blocks packets of pods: facts of the host, the daemon and its peers in, findings out.

pub(crate) mod addresses;
pub mod cni;
pub mod daemon;
pub(crate) mod facts;
pub(crate) mod firewall;
mod links;
mod networkd;
mod others;
pub mod peers;
#[cfg(test)]
mod tests;
pub(crate) mod unit;

pub use facts::{
    Host, Needs, Obstacle, OtherDaemon, Owner, Port, Routing, Socket, Systemd, Unread,
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
    /// A part of the host could not be examined, so it may drop packets.
    Unknown,
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
    let findings = [
        host.other_daemons.iter().map(others::other_daemon).collect(),
        links::underlay_down(needs, host),
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
        cni::findings(&host.cni),
        host.unread.iter().map(others::not_examined).collect(),
    ];
    worst_first(findings.concat())
}

pub fn worst_first(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.level);
    findings
}

/// The finding for which the daemon refuses to start, if any.
pub fn refusal(other_daemons: &[OtherDaemon]) -> Option<Finding> {
    let mut findings = other_daemons.iter().map(others::other_daemon);
    findings.find(|finding| finding.level == Level::Fatal)
}

impl Level {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Note => "note",
        }
    }
}

impl Finding {
    /// Of this kind and place, for the texts of a finding.
    fn of(level: Level, id: &'static str, place: impl Into<String>) -> Self {
        let (what, why, fix) = (String::new(), String::new(), String::new());
        Self { id, level, what, place: place.into(), why, fix, drop_in: None }
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
