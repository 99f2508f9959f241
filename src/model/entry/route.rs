//! Routes of the main table.

use std::fmt;
use std::net::IpAddr;

use super::{
    Key, KeyRef, Kind, KindPolicy, LinkName, NexthopId, Ownership, PROTOCOL, PROTOCOL_BOOT, Removal,
};
use crate::model::prefix::{Family, Prefix};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub kind: RouteKind,
    pub destination: Prefix,
    pub metric: u32,
    pub gateway: Option<IpAddr>,
    /// None for routes without a device of their own.
    pub link: Option<LinkName>,
    /// Treat the gateway as adjacent although no address of the link covers it.
    pub onlink: bool,
    /// The nexthop object with its gateway and link; none if the route has its own.
    pub nexthop: Option<NexthopId>,
    pub protocol: u8,
}

/// What happens to packets that match a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    Unicast,
    /// They are rejected with an ICMP unreachable message.
    Unreachable,
    /// Any other type, such as a blackhole or several next hops; never created by tweed.
    Other,
}

impl Route {
    /// The metric that the kernel reports for a route without one.
    pub const fn default_metric(family: Family) -> u32 {
        match family {
            Family::V4 => 0,
            Family::V6 => 1024,
        }
    }

    /// `destination via gateway dev link`, with tweed's protocol.
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

    /// Rejects packets to `destination` that no other route matches; with tweed's protocol.
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

    /// With a nexthop object, gateway and link are not compared: the kernel may report those of the
    /// object in addition to its id.
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
