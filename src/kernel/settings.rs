//! Reads and writes the on/off settings of links: files below /proc/sys/net, and ethtool features.

use std::fs;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use tweed_netlink::{Ethtool, Switch};

use crate::model::entry::{Entry, LinkName, RP_FILTER, Setting, SettingKind, SettingStore, Sysctl};
use crate::model::node::Sysctls;
use crate::model::prefix::Family;
use crate::plan::scope::Scope;

#[derive(Default)]
pub(super) struct LinkSettings {
    /// Opened on first use.
    ethtool: Option<Ethtool>,
}

/// A setting could not be written, so the operator must set it.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingError {
    #[error("{name} cannot be written ({}): set it to {value} on this host", source.kind())]
    Sysctl { name: String, value: u8, source: io::Error },
    #[error(
        "it cannot be switched over netlink ({}): run ethtool -K {link} {feature} {state}",
        description(source)
    )]
    Feature { link: LinkName, feature: &'static str, state: &'static str, source: io::Error },
}

impl LinkSettings {
    pub(super) fn read_all(&mut self, scope: &Scope) -> Vec<Entry> {
        let wanted = SettingKind::ALL.into_iter();
        let wanted = wanted.flat_map(|kind| scope.links_with(kind).map(move |link| (kind, link)));
        wanted.filter_map(|(kind, link)| self.read(kind, link)).map(Entry::Setting).collect()
    }

    /// None if the link does not exist, or the kernel does not have the setting.
    fn read(&mut self, kind: SettingKind, link: &LinkName) -> Option<Setting> {
        let on = match kind.policy().store {
            SettingStore::Sysctl(sysctl) => sysctl.on.contains(&effective(&sysctl, link)?),
            SettingStore::Feature(feature) => {
                self.ask(|ethtool| ethtool.is_active(link.as_str(), feature)).ok()??
            }
        };
        Some(Setting { link: link.clone(), kind, on })
    }

    pub(super) fn write(&mut self, setting: &Setting) -> Result<(), SettingError> {
        match setting.kind.policy().store {
            SettingStore::Sysctl(sysctl) => write(&sysctl, setting),
            SettingStore::Feature(feature) => self.switch(feature, setting),
        }
    }

    fn switch(&mut self, feature: &'static str, setting: &Setting) -> Result<(), SettingError> {
        let link = setting.link.clone();
        let (switch, state) = if setting.on { (Switch::On, "on") } else { (Switch::Off, "off") };
        let switched = self.ask(|ethtool| ethtool.switch(link.as_str(), feature, switch));
        switched.map_err(|source| SettingError::Feature { link, feature, state, source })
    }

    /// After an error the socket is closed.
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Ethtool) -> io::Result<T>) -> io::Result<T> {
        let mut ethtool = self.ethtool.take().map_or_else(Ethtool::open, Ok)?;
        let answer = ask(&mut ethtool)?;
        self.ethtool = Some(ethtool);
        Ok(answer)
    }
}

/// Whether settings of links are writable. Opens a file for writing, without changing it.
pub(super) fn writable() -> Sysctls {
    match fs::OpenOptions::new().write(true).open(path(&name(&RP_FILTER, "all"))) {
        Ok(_) => Sysctls::Writable,
        Err(_) => Sysctls::ReadOnly,
    }
}

/// Whether the host creates links with a strict reverse-path filter.
pub(super) fn makes_strict() -> bool {
    let value = effective(&RP_FILTER, &LinkName::new("default"));
    value.is_some_and(|value| RP_FILTER.on.contains(&value))
}

/// Succeeds if the link is gone, and the setting of IPv6 with it: there is nothing to set.
fn write(sysctl: &Sysctl, setting: &Setting) -> Result<(), SettingError> {
    let value = if setting.on { *sysctl.on.start() } else { sysctl.off };
    // A host with read-only settings may already have the required value.
    if effective(sysctl, &setting.link) == Some(value) {
        return Ok(());
    }
    let name = name(sysctl, setting.link.as_str());
    match fs::write(path(&name), value.to_string()) {
        Err(source) if source.kind() == io::ErrorKind::NotFound && sysctl.family == Family::V6 => {
            Ok(())
        }
        written => written.map_err(|source| SettingError::Sysctl { name, value, source }),
    }
}

/// Without IPv6, a link has none of its settings: they are off.
fn effective(sysctl: &Sysctl, link: &LinkName) -> Option<u8> {
    let own = read(sysctl, link.as_str());
    if own.is_none() && sysctl.family == Family::V6 && has_ipv4(link) {
        return Some(sysctl.off);
    }
    let own = own?;
    let all = if sysctl.raised_by_all { read(sysctl, "all") } else { None };
    Some(own.max(all.unwrap_or(0)))
}

fn has_ipv4(link: &LinkName) -> bool {
    read(&RP_FILTER, link.as_str()).is_some()
}

fn read(sysctl: &Sysctl, link: &str) -> Option<u8> {
    fs::read_to_string(path(&name(sysctl, link))).ok()?.trim().parse().ok()
}

/// In the format of `sysctl(8)`, with slashes because link names may contain dots.
fn name(sysctl: &Sysctl, link: &str) -> String {
    let family = sysctl.family.to_string().to_lowercase();
    format!("net/{family}/conf/{link}/{}", sysctl.name)
}

fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

fn description(error: &io::Error) -> String {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw).desc().to_lowercase()
}
