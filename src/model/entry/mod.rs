//! The entries of the kernel, actual or desired. Each kind of entry has one file with its value,
//! its key, its policy, and its text in the syntax of `ip(8)`, `bridge(8)`, `nft(8)` or
//! `iptables(8)`.

mod address;
mod chain;
mod fdb;
mod link;
mod neighbour;
mod nexthop;
mod route;
mod setting;
mod state;
mod table;

pub use address::Address;
pub(crate) use chain::Specification;
pub use chain::{Base, BasePolicy, Chain, ChainName, Iptables};
pub use fdb::Fdb;
pub use link::{Link, LinkKind, LinkName, POD_BRIDGE, Vxlan};
pub use neighbour::Neighbour;
pub use nexthop::{Nexthop, NexthopId};
pub use route::{Route, RouteKind};
pub use setting::{RP_FILTER, Setting, SettingKind, SettingPolicy, SettingStore, Sysctl};
pub use state::KernelState;
pub(crate) use table::nft_chain;
pub use table::{
    Condition, Element, Hook, Match, PEERS, Ports, RENEWED, Renewal, Rule, Side, Table, TableName,
    Verdict,
};

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mac::MacAddr;
use crate::model::prefix::Prefix;

/// The routing protocol number of tweed in `/etc/iproute2/rt_protos`, which marks its routes.
pub const PROTOCOL: u8 = 241;

/// The protocol number of routes made by hand or by flannel.
pub const PROTOCOL_BOOT: u8 = 3;

/// Identifies an entry. The variants are in order of dependency: entries are created in this order
/// and removed in reverse.
///
/// `L` and `T` are the names of links and tables, owned by the key or borrowed from an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key<L = LinkName, T = Arc<TableName>> {
    Link(L),
    Setting(SettingKind, L),
    Address(L, IpAddr, u8),
    Chain(ChainName),
    Table(T),
    /// Written in one transaction with its table.
    Renewal(T),
    /// Written in one transaction with its table, before the peer that it accepts has a path.
    Element(T, IpAddr),
    Fdb(L, MacAddr),
    Neighbour(L, IpAddr),
    Nexthop(NexthopId),
    /// Destination and metric, in the main table.
    Route(Prefix, u32),
}

type KeyRef<'a> = Key<&'a LinkName, &'a Arc<TableName>>;

/// A key, or an entry, which computes its own.
trait Keyed {
    fn key_ref(&self) -> KeyRef<'_>;
}

/// The properties of one kind of entry.
trait Kind: fmt::Display + PartialEq {
    /// Whether they belong to this node and not to a peer. Such kinds come first in the order of
    /// keys.
    const LOCAL: bool = false;
    const REMOVAL: Removal = Removal::Delayed;
    const OWNERSHIP: Ownership = Ownership::Owned;

    fn key_ref(&self) -> KeyRef<'_>;

    fn ownership(&self) -> Ownership {
        Self::OWNERSHIP
    }

    /// Whether `have` equals the desired entry, except for attributes that tweed does not set.
    fn is_met_by(&self, have: &Self) -> bool {
        self == have
    }
}

/// When an entry that is not desired is removed.
#[derive(Clone, Copy, Debug)]
pub enum Removal {
    AtOnce,
    /// Later: peers and packets may still need it.
    Delayed,
    /// Later, and after the rules that replace it are applied.
    AfterRules,
}

/// Whether an entry in the scope of tweed shows that tweed owns it.
#[derive(Clone, Copy, Debug)]
pub enum Ownership {
    Owned,
    Foreign,
    /// It has no mark: the scope decides.
    Unmarked,
}

/// Defines the enum of all kinds, and its dispatch to each kind.
macro_rules! kinds {
    ($($kind:ident),*) => {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Entry {
            $($kind($kind)),*
        }

        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum EntryKind {
            $($kind),*
        }

        impl EntryKind {
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name in metrics and logs.
            pub fn name(self) -> String {
                match self {
                    $(Self::$kind => stringify!($kind)),*
                }
                .to_lowercase()
            }
        }

        impl Entry {
            pub const fn kind(&self) -> EntryKind {
                match self {
                    $(Self::$kind(_) => EntryKind::$kind),*
                }
            }

            /// See `Kind::LOCAL`.
            pub const fn is_local(&self) -> bool {
                match self {
                    $(Self::$kind(_) => $kind::LOCAL),*
                }
            }

            pub const fn removal(&self) -> Removal {
                match self {
                    $(Self::$kind(_) => $kind::REMOVAL),*
                }
            }

            pub fn ownership(&self) -> Ownership {
                match self {
                    $(Self::$kind(value) => value.ownership()),*
                }
            }

            /// See `Kind::is_met_by`.
            pub fn is_met_by(&self, have: &Self) -> bool {
                match (self, have) {
                    // Desired and actual entries are mostly shared.
                    _ if std::ptr::eq(self, have) => true,
                    $((Self::$kind(want), Self::$kind(have)) => want.is_met_by(have),)*
                    _ => false,
                }
            }

            fn key_ref(&self) -> KeyRef<'_> {
                match self {
                    $(Self::$kind(value) => value.key_ref()),*
                }
            }
        }

        impl fmt::Display for Entry {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind(value) => value.fmt(f)),*
                }
            }
        }
    };
}

// In the order of their keys: entries of the node come first, routes last.
kinds! { Link, Setting, Address, Chain, Table, Renewal, Element, Fdb, Neighbour, Nexthop, Route }

impl Entry {
    pub fn key(&self) -> Key {
        self.key_ref().cloned()
    }

    /// The link that it is removed with: its own name for a link; none if it depends on no link.
    pub fn link(&self) -> Option<&LinkName> {
        match self {
            Self::Link(link) => Some(&link.name),
            Self::Setting(setting) => Some(&setting.link),
            Self::Address(address) => Some(&address.link),
            Self::Fdb(fdb) => Some(&fdb.link),
            Self::Neighbour(neighbour) => Some(&neighbour.link),
            Self::Nexthop(nexthop) => nexthop.link.as_ref(),
            Self::Route(route) => route.link.as_ref(),
            Self::Chain(_) | Self::Table(_) | Self::Renewal(_) | Self::Element(_) => None,
        }
    }

    /// The table that contains it as a set element, and with which it is removed.
    pub const fn table(&self) -> Option<&Arc<TableName>> {
        match self {
            Self::Renewal(renewal) => Some(&renewal.table),
            Self::Element(element) => Some(&element.table),
            _ => None,
        }
    }

    /// Whether it is in a set of the table `name`, and is removed with it.
    pub fn is_element_of(&self, name: &TableName) -> bool {
        self.table().is_some_and(|table| **table == *name)
    }

    /// Whether it is a nexthop object that tweed did not create, whatever its id.
    pub const fn is_foreign_nexthop(&self) -> bool {
        matches!(self, Self::Nexthop(nexthop) if nexthop.protocol != PROTOCOL)
    }

    /// Whether it is a table or a chain with rules for packets of pods.
    pub fn is_rules(&self) -> bool {
        match self {
            Self::Chain(_) => true,
            Self::Table(table) => !table.has_peers(),
            _ => false,
        }
    }
}

impl Keyed for &Key {
    fn key_ref(&self) -> KeyRef<'_> {
        self.map(|link| link, |table| table)
    }
}

impl Keyed for Arc<Entry> {
    fn key_ref(&self) -> KeyRef<'_> {
        Entry::key_ref(self)
    }
}

impl KeyRef<'_> {
    fn cloned(&self) -> Key {
        self.map(|link| LinkName::clone(link), |table| Arc::clone(table))
    }
}

/// Writes ` NAME VALUE`, if there is a value.
fn write_option(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    value: Option<impl fmt::Display>,
) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " {name} {value}"))
}

impl<L, T> Key<L, T> {
    fn map<'a, M, U>(&'a self, link: impl Fn(&'a L) -> M, table: impl Fn(&'a T) -> U) -> Key<M, U> {
        match self {
            Self::Link(name) => Key::Link(link(name)),
            Self::Setting(kind, name) => Key::Setting(*kind, link(name)),
            Self::Address(name, address, len) => Key::Address(link(name), *address, *len),
            Self::Chain(name) => Key::Chain(*name),
            Self::Table(name) => Key::Table(table(name)),
            Self::Renewal(name) => Key::Renewal(table(name)),
            Self::Element(name, address) => Key::Element(table(name), *address),
            Self::Fdb(name, mac) => Key::Fdb(link(name), *mac),
            Self::Neighbour(name, address) => Key::Neighbour(link(name), *address),
            Self::Nexthop(id) => Key::Nexthop(*id),
            Self::Route(destination, metric) => Key::Route(*destination, *metric),
        }
    }
}
