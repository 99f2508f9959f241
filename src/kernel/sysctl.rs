//! Settings of a link that live in files below /proc/sys/net.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::model::entry::{AcceptRa, LinkName, ReversePath};
use crate::model::node::Sysctls;
use crate::model::prefix::Family;

/// A setting and the value wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sysctl {
    setting: Setting,
    link: LinkName,
    value: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    RpFilter,
    AcceptRa,
}

/// The value could not be set; the operator has to.
#[derive(Debug, thiserror::Error)]
#[error("{name} cannot be written ({}): set it to {value} on this host", source.kind())]
pub(super) struct NotWritten {
    name: String,
    value: u8,
    source: io::Error,
}

const STRICT: u8 = 1;
const LOOSE: u8 = 2;

impl Sysctl {
    pub(super) fn reverse_path(filter: &ReversePath) -> Self {
        let value = if filter.strict { STRICT } else { LOOSE };
        Self { setting: Setting::RpFilter, link: filter.link.clone(), value }
    }

    pub(super) fn accept_ra(accept: &AcceptRa) -> Self {
        let value = u8::from(accept.accept);
        Self { setting: Setting::AcceptRa, link: accept.link.clone(), value }
    }

    /// Without IPv6 there is nothing to accept: that its file is missing is no error.
    pub(super) fn write(&self) -> Result<(), NotWritten> {
        // A host that lets nothing be written may have it as wanted all the same.
        if in_force(self.setting, &self.link) == Some(self.value) {
            return Ok(());
        }
        let name = self.setting.name(self.link.as_str());
        match fs::write(path(&name), self.value.to_string()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.setting.family() {
                Family::V6 => Ok(()),
                Family::V4 => Err(NotWritten { name, value: self.value, source: error }),
            },
            written => written.map_err(|source| NotWritten { name, value: self.value, source }),
        }
    }
}

/// Whether settings of links can be written: a setting is opened for it, and nothing written.
pub(super) fn writable() -> Sysctls {
    let setting = path(&Setting::RpFilter.name("all"));
    match fs::OpenOptions::new().write(true).open(setting) {
        Ok(_) => Sysctls::Writable,
        Err(_) => Sysctls::ReadOnly,
    }
}

pub(super) fn read_reverse_path(link: &LinkName) -> Option<ReversePath> {
    let strict = in_force(Setting::RpFilter, link)? == STRICT;
    Some(ReversePath { link: link.clone(), strict })
}

/// Whether a link that is created has a strict reverse-path filter.
pub(super) fn makes_strict() -> bool {
    in_force(Setting::RpFilter, &LinkName::new("default")) == Some(STRICT)
}

/// None where there is no IPv6.
pub(super) fn read_accept_ra(link: &LinkName) -> Option<AcceptRa> {
    let accept = in_force(Setting::AcceptRa, link)? != 0;
    Some(AcceptRa { link: link.clone(), accept })
}

fn in_force(setting: Setting, link: &LinkName) -> Option<u8> {
    let own = read(setting, link.as_str())?;
    Some(match setting {
        // Of the link's own value and that of all links, the kernel goes by the larger.
        Setting::RpFilter => own.max(read(setting, "all").unwrap_or(0)),
        Setting::AcceptRa => own,
    })
}

fn read(setting: Setting, link: &str) -> Option<u8> {
    fs::read_to_string(path(&setting.name(link))).ok()?.trim().parse().ok()
}

impl Setting {
    /// As `sysctl(8)` takes it: with slashes, because names of links have dots.
    fn name(self, link: &str) -> String {
        match self {
            Self::RpFilter => format!("net/ipv4/conf/{link}/rp_filter"),
            Self::AcceptRa => format!("net/ipv6/conf/{link}/accept_ra"),
        }
    }

    const fn family(self) -> Family {
        match self {
            Self::RpFilter => Family::V4,
            Self::AcceptRa => Family::V6,
        }
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}
