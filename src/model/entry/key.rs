//! What tells entries apart, and the order of programming.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Address, ChainName, Element, Entry, LinkName, NexthopId, TableName};
use crate::mac::MacAddr;
use crate::model::prefix::Prefix;

/// What tells entries apart. The order of the variants is the order of programming: what an
/// entry needs comes before it; removal runs backwards.
///
/// `L` and `T` are the names of links and tables, the key's own or borrowed from an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key<L = LinkName, T = Arc<TableName>> {
    Link(L),
    ReversePath(L),
    AcceptRa(L),
    TxChecksum(L),
    Address(L, IpAddr, u8),
    Chain(ChainName),
    Table(T),
    /// In one transaction with its table.
    Renewal(T),
    /// Whoever sends us packets is let in first; in one transaction with its table.
    Element(T, IpAddr),
    Fdb(L, MacAddr),
    Neighbour(L, IpAddr),
    Nexthop(NexthopId),
    /// Destination and metric, in the main table.
    Route(Prefix, u32),
}

/// A key whose names are those of what it belongs to.
pub(super) type KeyRef<'a> = Key<&'a LinkName, &'a Arc<TableName>>;

/// What has a place in the order of keys.
pub(super) trait Keyed {
    fn key_ref(&self) -> KeyRef<'_>;
}

impl Entry {
    pub fn key(&self) -> Key {
        self.key_ref().cloned()
    }
}

impl Keyed for Entry {
    fn key_ref(&self) -> KeyRef<'_> {
        match self {
            Self::Link(link) => Key::Link(&link.name),
            Self::ReversePath(filter) => Key::ReversePath(&filter.link),
            Self::AcceptRa(accept) => Key::AcceptRa(&accept.link),
            Self::TxChecksum(checksum) => Key::TxChecksum(&checksum.link),
            Self::Address(Address { link, address, prefix_len }) => {
                Key::Address(link, *address, *prefix_len)
            }
            Self::Chain(chain) => Key::Chain(chain.name),
            Self::Table(table) => Key::Table(&table.name),
            Self::Renewal(renewal) => Key::Renewal(&renewal.table),
            Self::Element(Element { table, address }) => Key::Element(table, *address),
            Self::Fdb(fdb) => Key::Fdb(&fdb.link, fdb.mac),
            Self::Neighbour(neighbour) => Key::Neighbour(&neighbour.link, neighbour.address),
            Self::Nexthop(nexthop) => Key::Nexthop(nexthop.id),
            Self::Route(route) => Key::Route(route.destination, route.metric),
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
            Self::ReversePath(name) => Key::ReversePath(link(name)),
            Self::AcceptRa(name) => Key::AcceptRa(link(name)),
            Self::TxChecksum(name) => Key::TxChecksum(link(name)),
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
