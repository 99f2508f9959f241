//! Routes of the main table.

use std::fmt;
use std::net::IpAddr;

use super::{
    Key, KeyRef, Kind, KindPolicy, LinkName, NexthopId, Ownership, PROTOCOL, PROTOCOL_BOOT, Removal,
};
use crate::model::prefix::{Family, Prefix};

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

impl Kind for Route {
    const POLICY: KindPolicy =
        KindPolicy { local: false, removal: Removal::AtOnce, ownership: Ownership::Owned };

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Route(self.destination, self.metric)
    }

    fn ownership(&self) -> Ownership {
        match self.protocol {
            PROTOCOL => Ownership::Owned,
            PROTOCOL_BOOT => Ownership::Unmarked,
            _ => Ownership::Foreign,
        }
    }

    /// A route has the gateway of its nexthop object, whatever the kernel shows of it in addition
    /// to the object's number.
    fn is_met_by(&self, have: &Self) -> bool {
        if self.nexthop.is_none() {
            return self == have;
        }
        let Self { gateway, link, onlink, .. } = self.clone();
        *self == Self { gateway, link, onlink, ..have.clone() }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RouteKind::Unicast | RouteKind::Other => "",
            RouteKind::Unreachable => "unreachable ",
        };
        write!(f, "route {kind}{}", self.destination)?;
        if let Some(nexthop) = self.nexthop {
            write!(f, " nhid {nexthop}")?;
        }
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = &self.link {
            write!(f, " dev {link}")?;
        }
        if self.metric != Self::default_metric(self.destination.family()) {
            write!(f, " metric {}", self.metric)?;
        }
        if self.protocol != PROTOCOL {
            write!(f, " proto {}", self.protocol)?;
        }
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}
