//! What the kernel holds, or should hold: its entries, and what tells them apart.

mod chain;
pub mod display;
mod entries;
mod key;
mod link;
mod nexthop;
mod table;

pub use chain::{Base, Chain, ChainName, Iptables, Otherwise};
pub use entries::KernelState;
pub use key::Key;
pub use link::{Link, LinkKind, LinkName, POD_BRIDGE, Vxlan};
pub use nexthop::{Lane, Nexthop, NexthopId};
pub use table::{
    Condition, Element, Hook, Marked, Match, PEERS, Ports, RENEWED, Renewal, Rule, Table,
    TableName, Verdict,
};

use std::net::IpAddr;
use std::sync::Arc;

use crate::mac::MacAddr;
use crate::model::prefix::{Family, Prefix};

/// Our number in `/etc/iproute2/rt_protos`: it marks the routes that are ours.
pub const PROTOCOL: u8 = 241;

/// The protocol number of routes made by hand or by flannel.
pub const PROTOCOL_BOOT: u8 = 3;

/// One object of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Link(Link),
    ReversePath(ReversePath),
    AcceptRa(AcceptRa),
    TxChecksum(TxChecksum),
    Address(Address),
    Chain(Chain),
    Table(Table),
    Renewal(Renewal),
    Element(Element),
    Fdb(Fdb),
    Neighbour(Neighbour),
    Nexthop(Nexthop),
    Route(Route),
}

/// Whether a link drops packets whose answer would leave by another link (`rp_filter` 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReversePath {
    pub link: LinkName,
    pub strict: bool,
}

/// Whether a link takes addresses and routes from router advertisements (`accept_ra`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptRa {
    pub link: LinkName,
    pub accept: bool,
}

/// Whether a link leaves the checksums of what it sends to whoever comes behind it
/// (`tx-checksum-ip-generic`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxChecksum {
    pub link: LinkName,
    pub offloaded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: LinkName,
    pub address: IpAddr,
    pub prefix_len: u8,
}

/// The underlay address behind a MAC address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fdb {
    pub link: LinkName,
    pub mac: MacAddr,
    pub destination: IpAddr,
}

/// The MAC address behind an IP address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub link: LinkName,
    pub address: IpAddr,
    pub mac: MacAddr,
    /// Never aged, never asked for; what we program always is.
    pub permanent: bool,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub kind: RouteKind,
    pub destination: Prefix,
    pub metric: u32,
    pub gateway: Option<IpAddr>,
    /// None for routes without one of their own.
    pub link: Option<LinkName>,
    /// Take the gateway for adjacent although no address says so.
    pub onlink: bool,
    /// The nexthop object by which it has gateway and link; none if they are its own.
    pub nexthop: Option<NexthopId>,
    pub protocol: u8,
}

/// What becomes of packets that take a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// They are sent on.
    Unicast,
    /// Who sent them is told that there is no way.
    Unreachable,
    /// Anything else, such as a blackhole or several next hops; never made by us.
    Other,
}

impl Route {
    /// The metric that the kernel shows for a route without one.
    pub const fn default_metric(family: Family) -> u32 {
        match family {
            Family::V4 => 0,
            Family::V6 => 1024,
        }
    }

    /// `destination via gateway dev link`, marked as ours.
    pub fn via(destination: Prefix, gateway: IpAddr, link: LinkName) -> Self {
        Self {
            kind: RouteKind::Unicast,
            destination,
            metric: Self::default_metric(destination.family()),
            gateway: Some(gateway),
            link: Some(link),
            onlink: false,
            nexthop: None,
            protocol: PROTOCOL,
        }
    }

    /// For packets to `destination` that no other route takes, marked as ours.
    pub const fn unreachable(destination: Prefix) -> Self {
        Self {
            kind: RouteKind::Unreachable,
            destination,
            metric: u32::MAX,
            gateway: None,
            link: None,
            onlink: false,
            nexthop: None,
            protocol: PROTOCOL,
        }
    }

    #[must_use]
    pub fn onlink(self) -> Self {
        Self { onlink: true, ..self }
    }
}

impl Entry {
    /// The link it sits on and vanishes with; the link itself for a link. None where there is none.
    pub fn link(&self) -> Option<&LinkName> {
        match self {
            Self::Link(link) => Some(&link.name),
            Self::ReversePath(filter) => Some(&filter.link),
            Self::AcceptRa(accept) => Some(&accept.link),
            Self::TxChecksum(checksum) => Some(&checksum.link),
            Self::Address(address) => Some(&address.link),
            Self::Table(_) | Self::Renewal(_) | Self::Element(_) | Self::Chain(_) => None,
            Self::Fdb(fdb) => Some(&fdb.link),
            Self::Neighbour(neighbour) => Some(&neighbour.link),
            Self::Nexthop(nexthop) => nexthop.link.as_ref(),
            Self::Route(route) => route.link.as_ref(),
        }
    }

    /// Whether it is there for our own sake, not for that of a peer. Such entries come first in the
    /// order of keys.
    pub const fn is_local(&self) -> bool {
        match self {
            Self::Link(_)
            | Self::ReversePath(_)
            | Self::AcceptRa(_)
            | Self::TxChecksum(_)
            | Self::Address(_)
            | Self::Chain(_)
            | Self::Table(_)
            | Self::Renewal(_) => true,
            Self::Element(_)
            | Self::Fdb(_)
            | Self::Neighbour(_)
            | Self::Nexthop(_)
            | Self::Route(_) => false,
        }
    }

    /// The table in one of whose sets it is, and with which it vanishes.
    pub fn table(&self) -> Option<&Arc<TableName>> {
        match self {
            Self::Renewal(renewal) => Some(&renewal.table),
            Self::Element(element) => Some(&element.table),
            _ => None,
        }
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

    /// Whether `have` is what is wanted. A route has the gateway of its nexthop object, whatever
    /// the kernel shows of it beside the object's number; what the host does with packets that it
    /// has no rule for is no part of a chain of ours.
    pub fn is_met_by(&self, have: &Self) -> bool {
        match (self, have) {
            // What is desired and there is mostly one and the same.
            _ if std::ptr::eq(self, have) => true,
            (Self::Route(want), Self::Route(have)) if want.nexthop.is_some() => {
                let Route { gateway, link, onlink, .. } = want.clone();
                *want == Route { gateway, link, onlink, ..have.clone() }
            }
            (Self::Chain(want), Self::Chain(have)) => {
                *want == Chain { otherwise: want.otherwise, ..have.clone() }
            }
            // Time passes.
            (Self::Renewal(want), Self::Renewal(have)) => {
                *want == Renewal { left: want.left, ..have.clone() }
            }
            _ => self == have,
        }
    }
}
