//! Routes of the main table.

use std::fmt;
use std::net::IpAddr;

use super::{
    Key, KeyRef, Kind, LinkName, NexthopId, Ownership, PROTOCOL, PROTOCOL_BOOT, Removal,
    write_option,
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
        let metric = Self::default_metric(destination.family());
        let (kind, gateway, link) = (RouteKind::Unicast, Some(gateway), Some(link));
        Self { kind, metric, gateway, link, ..Self::unreachable(destination) }
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
    const REMOVAL: Removal = Removal::AtOnce;

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
        let usual_metric = Self::default_metric(self.destination.family());
        write_option(f, "nhid", self.nexthop)?;
        write_option(f, "via", self.gateway)?;
        write_option(f, "dev", self.link.as_ref())?;
        write_option(f, "metric", Some(self.metric).filter(|it| *it != usual_metric))?;
        write_option(f, "proto", Some(self.protocol).filter(|it| *it != PROTOCOL))?;
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}
