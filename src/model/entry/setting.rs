//! On/off settings of links, and how the host stores them.

use std::fmt;
use std::ops::RangeInclusive;

use super::{Key, KeyRef, Kind, LinkName, Ownership, Removal};
use crate::model::prefix::Family;

/// An on/off setting of a link. It can be changed, not removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub link: LinkName,
    pub kind: SettingKind,
    /// Off is the state in which the host drops less.
    pub on: bool,
}

/// The settings that tweed changes, in order of programming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SettingKind {
    /// Whether a link drops packets whose answer would leave by another link (`rp_filter` 1).
    ReversePath,
    /// Whether a link accepts addresses and routes from router advertisements (`accept_ra`).
    AcceptRa,
    /// Whether a link offloads the checksums of the packets that it sends
    /// (`tx-checksum-ip-generic`).
    TxChecksum,
}

#[derive(Clone, Debug)]
pub struct SettingPolicy {
    pub store: SettingStore,
    /// The names of off and on.
    states: [&'static str; 2],
    /// Whether tweed also changes it on the underlay, not only on tunnels.
    pub on_underlay: bool,
    /// What a device does with the setting off, for status output; none if it is not shown.
    pub effect: Option<&'static str>,
    /// What may happen if the host refuses to turn it off.
    pub risk: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub enum SettingStore {
    Sysctl(Sysctl),
    /// A feature of `ethtool(8)`.
    Feature(&'static str),
}

/// A file per link below `/proc/sys/net`.
#[derive(Clone, Debug)]
pub struct Sysctl {
    pub family: Family,
    pub name: &'static str,
    /// The value to write for off.
    pub off: u8,
    /// The values that mean on; the first is written.
    pub on: RangeInclusive<u8>,
    /// Whether the kernel uses the larger of the link's own value and that of `all`.
    pub raised_by_all: bool,
}

pub const RP_FILTER: Sysctl =
    Sysctl { family: Family::V4, name: "rp_filter", off: 2, on: 1..=1, raised_by_all: true };

const ACCEPT_RA: Sysctl =
    Sysctl { family: Family::V6, name: "accept_ra", off: 0, on: 1..=u8::MAX, raised_by_all: false };

impl SettingKind {
    pub const ALL: [Self; 3] = [Self::ReversePath, Self::AcceptRa, Self::TxChecksum];

    pub const fn policy(self) -> SettingPolicy {
        match self {
            Self::ReversePath => SettingPolicy {
                store: SettingStore::Sysctl(RP_FILTER),
                states: ["loose", "strict"],
                on_underlay: true,
                effect: None,
                risk: Some("packets may be lost while backends change"),
            },
            Self::AcceptRa => SettingPolicy {
                store: SettingStore::Sysctl(ACCEPT_RA),
                states: ["0", "1"],
                on_underlay: false,
                effect: None,
                risk: None,
            },
            Self::TxChecksum => SettingPolicy {
                store: SettingStore::Feature("tx-checksum-ip-generic"),
                states: ["off", "on"],
                on_underlay: false,
                effect: Some("computes checksums"),
                risk: Some("packets in the tunnel may have wrong checksums"),
            },
        }
    }

    pub fn on(self, link: &LinkName) -> Setting {
        Setting { link: link.clone(), kind: self, on: true }
    }

    pub fn off(self, link: &LinkName) -> Setting {
        Setting { link: link.clone(), kind: self, on: false }
    }
}

impl Setting {
    pub fn is_on(&self, kind: SettingKind) -> bool {
        self.kind == kind && self.on
    }
}

impl Kind for Setting {
    const LOCAL: bool = true;
    const REMOVAL: Removal = Removal::AtOnce;
    const OWNERSHIP: Ownership = Ownership::Foreign;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Setting(self.kind, &self.link)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SettingPolicy { store, states: [off, on], .. } = self.kind.policy();
        let name = match store {
            SettingStore::Sysctl(sysctl) => sysctl.name,
            SettingStore::Feature(name) => name,
        };
        write!(f, "{name} {} dev {}", if self.on { on } else { off }, self.link)
    }
}
