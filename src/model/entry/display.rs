//! Entries in the words of `ip(8)`, `bridge(8)`, `nft(8)` and `iptables(8)`, for logs, the command line and golden tests.

mod chain;
mod table;

pub(crate) use chain::Specification;

use std::fmt;

use tweed_netlink::TX_CHECKSUM;

use crate::model::entry::{
    AcceptRa, Address, Entry, Fdb, Link, LinkKind, Neighbour, Nexthop, PROTOCOL, ReversePath,
    Route, RouteKind, TxChecksum, Vxlan,
};

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => link.fmt(f),
            Self::ReversePath(filter) => filter.fmt(f),
            Self::AcceptRa(accept) => accept.fmt(f),
            Self::TxChecksum(checksum) => checksum.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Table(table) => table.fmt(f),
            Self::Renewal(renewal) => renewal.fmt(f),
            Self::Element(element) => element.fmt(f),
            Self::Chain(chain) => chain.fmt(f),
            Self::Fdb(fdb) => fdb.fmt(f),
            Self::Neighbour(neighbour) => neighbour.fmt(f),
            Self::Nexthop(nexthop) => nexthop.fmt(f),
            Self::Route(route) => route.fmt(f),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.up { "up" } else { "down" };
        write!(f, "link {} {state} mtu {} address {} {}", self.name, self.mtu, self.mac, self.kind)
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(vxlan) => vxlan.fmt(f),
            Self::Other(kind) => write!(f, "type {kind}"),
        }
    }
}

impl fmt::Display for Vxlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type vxlan id {}", self.vni)?;
        if let Some(group) = self.group {
            write!(f, " remote {group}")?;
        }
        if let Some(local) = self.local {
            write!(f, " local {local}")?;
        }
        if let Some(underlay) = &self.underlay {
            write!(f, " dev {underlay}")?;
        }
        write!(f, " dstport {}", self.port)?;
        f.write_str(if self.learning { " learning" } else { " nolearning" })?;
        f.write_str(if self.l2miss { " l2miss" } else { "" })?;
        f.write_str(if self.gbp { " gbp" } else { "" })
    }
}

impl fmt::Display for ReversePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = if self.strict { "strict" } else { "loose" };
        write!(f, "rp_filter {filter} dev {}", self.link)
    }
}

impl fmt::Display for AcceptRa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accept_ra {} dev {}", u8::from(self.accept), self.link)
    }
}

impl fmt::Display for TxChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.offloaded { "on" } else { "off" };
        write!(f, "{TX_CHECKSUM} {state} dev {}", self.link)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "addr {}/{} dev {}", self.address, self.prefix_len, self.link)
    }
}

impl fmt::Display for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fdb {} dst {} dev {}", self.mac, self.destination, self.link)
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.permanent { "" } else { " not permanent" };
        write!(f, "neigh {} lladdr {} dev {}{state}", self.address, self.mac, self.link)
    }
}

impl fmt::Display for Nexthop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nexthop id {}", self.id)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(link) = &self.link {
            write!(f, " dev {link}")?;
        }
        if self.protocol != PROTOCOL {
            write!(f, " proto {}", self.protocol)?;
        }
        f.write_str(if self.onlink { " onlink" } else { "" })
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
