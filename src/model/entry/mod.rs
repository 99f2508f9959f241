//! What the kernel holds, or should hold. Each kind of entry has one file, with its value, its key,
//! its text in the words of `ip(8)`, `bridge(8)`, `nft(8)` or `iptables(8)`, and its policy.

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
pub use chain::{Base, Chain, ChainName, Iptables, Otherwise};
pub use fdb::Fdb;
pub use link::{Link, LinkKind, LinkName, POD_BRIDGE, Vxlan};
pub use neighbour::Neighbour;
pub use nexthop::{Nexthop, NexthopId};
pub use route::{Route, RouteKind};
pub use setting::{RP_FILTER, Setting, SettingKind, SettingStore, Sysctl};
pub use state::KernelState;
pub use table::{
    Condition, Element, Hook, Marked, Match, PEERS, Ports, RENEWED, Renewal, Rule, Table,
    TableName, Verdict,
};

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::mac::MacAddr;
use crate::model::prefix::Prefix;

/// Our number in `/etc/iproute2/rt_protos`: it marks the routes that are ours.
pub const PROTOCOL: u8 = 241;

/// The protocol number of routes made by hand or by flannel.
pub const PROTOCOL_BOOT: u8 = 3;

/// What tells entries apart. The order of the variants is the order of programming: what an
/// entry needs comes before it; removal runs backwards.
///
/// `L` and `T` are the names of links and tables, the key's own or borrowed from an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key<L = LinkName, T = Arc<TableName>> {
    Link(L),
    Setting(SettingKind, L),
    Address(L, IpAddr, u8),
    Chain(ChainName),
    Table(T),
    /// In one transaction with its table.
    Renewal(T),
    /// In one transaction with its table, before there is a path to the peer that it lets in.
    Element(T, IpAddr),
    Fdb(L, MacAddr),
    Neighbour(L, IpAddr),
    Nexthop(NexthopId),
    /// Destination and metric, in the main table.
    Route(Prefix, u32),
}

/// A key whose names are those of what it belongs to.
type KeyRef<'a> = Key<&'a LinkName, &'a Arc<TableName>>;

/// What has a place in the order of keys.
trait Keyed {
    fn key_ref(&self) -> KeyRef<'_>;
}

/// What a kind of entry says of itself.
trait Kind: fmt::Display + PartialEq {
    const POLICY: KindPolicy;

    fn key_ref(&self) -> KeyRef<'_>;

    fn ownership(&self) -> Ownership {
        Self::POLICY.ownership
    }

    /// Whether `have` is what is wanted, apart from what is not for tweed to set.
    fn is_met_by(&self, have: &Self) -> bool {
        self == have
    }
}

/// What holds for all entries of a kind.
#[derive(Clone, Copy, Debug)]
pub struct KindPolicy {
    /// Whether they are there for this node, not for a peer. Such kinds come first in the order of
    /// keys.
    local: bool,
    pub removal: Removal,
    ownership: Ownership,
}

/// When an unwanted entry is removed.
#[derive(Clone, Copy, Debug)]
pub enum Removal {
    AtOnce,
    /// Peers and packets may need it for a while.
    Delayed,
    /// Likewise, and the rules that replace it come first.
    AfterRules,
}

/// Whether an entry in the scope of tweed shows that tweed owns it.
#[derive(Clone, Copy, Debug)]
pub enum Ownership {
    Owned,
    Foreign,
    /// It bears no mark: its scope decides.
    Unmarked,
}

/// The enum of all kinds, and what is asked of each.
macro_rules! kinds {
    ($($kind:ident),*) => {
        /// One object of the kernel.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Entry {
            $($kind($kind)),*
        }

        impl Entry {
            pub const fn policy(&self) -> KindPolicy {
                match self {
                    $(Self::$kind(_) => $kind::POLICY),*
                }
            }

            pub fn ownership(&self) -> Ownership {
                match self {
                    $(Self::$kind(value) => value.ownership()),*
                }
            }

            /// Whether `have` is what is wanted, apart from what is not for tweed to set.
            pub fn is_met_by(&self, have: &Self) -> bool {
                match (self, have) {
                    // What is desired and there is mostly one and the same.
                    _ if std::ptr::eq(self, have) => true,
                    $((Self::$kind(want), Self::$kind(have)) => want.is_met_by(have),)*
                    _ => false,
                }
            }
        }

        impl Keyed for Entry {
            fn key_ref(&self) -> KeyRef<'_> {
                match self {
                    $(Self::$kind(value) => Kind::key_ref(value)),*
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

// In the order of their keys.
kinds! { Link, Setting, Address, Chain, Table, Renewal, Element, Fdb, Neighbour, Nexthop, Route }

impl Entry {
    pub fn key(&self) -> Key {
        self.key_ref().cloned()
    }

    /// The link it sits on and vanishes with; the link itself for a link. None where there is none.
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

    /// The table in one of whose sets it is, and with which it vanishes.
    pub const fn table(&self) -> Option<&Arc<TableName>> {
        match self {
            Self::Renewal(renewal) => Some(&renewal.table),
            Self::Element(element) => Some(&element.table),
            _ => None,
        }
    }

    /// Whether it is there for our own sake, not for that of a peer. Such entries come first in the
    /// order of keys.
    pub const fn is_local(&self) -> bool {
        self.policy().local
    }

    /// Whether it is in a set of the table `name`, and vanishes with it.
    pub fn is_element_of(&self, name: &TableName) -> bool {
        self.table().is_some_and(|table| **table == *name)
    }

    /// Whether it is a nexthop object that is not ours, whatever its number.
    pub const fn is_foreign_nexthop(&self) -> bool {
        matches!(self, Self::Nexthop(nexthop) if nexthop.protocol != PROTOCOL)
    }

    /// Whether it is a table or a chain for packets of pods: what is done with them beside routing.
    pub fn is_rules(&self) -> bool {
        match self {
            Self::Chain(_) => true,
            Self::Table(table) => !table.has_peers(),
            _ => false,
        }
    }
}

impl Keyed for Key {
    fn key_ref(&self) -> KeyRef<'_> {
        self.map(|link| link, |table| table)
    }
}

impl KeyRef<'_> {
    fn cloned(&self) -> Key {
        self.map(|link| LinkName::clone(link), |table| Arc::clone(table))
    }
}

impl<L, T> Key<L, T> {
    /// The same key with its names in another form.
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
