//! What in the kernel concerns us, and what of it is ours to remove.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::entry::{
    Address, Chain, ChainName, Entry, Key, Link, LinkName, Otherwise, Ownership, Route,
    SettingKind, TableName,
};
use crate::model::prefix::{Family, Prefix};

/// Which entries to read, and which of them we own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The links of ours, whether they exist or not.
    pub tunnels: BTreeSet<LinkName>,
    /// The link below them, towards the peers.
    pub underlay: Option<LinkName>,
    /// The tables of ours, whether they exist or not.
    pub tables: BTreeSet<TableName>,
    /// The chains of ours in iptables, likewise.
    pub chains: BTreeSet<ChainName>,
    pub extent: Extent,
    /// The networks whose subnets we route.
    pub networks: Vec<Prefix>,
    /// Our own subnets; none as long as no lease is held. Their first addresses may be on the
    /// loopback, where they stay when the tunnel device goes.
    pub subnets: Vec<Prefix>,
    /// The public IPs of the peers: a route through one of them that bears no mark is flannel's.
    pub gateways: BTreeSet<IpAddr>,
    /// The tunnel devices that neither we nor any peer needs any more.
    pub retired: Vec<Link>,
}

/// How much goes of what is ours and nobody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// What packets do not depend on.
    #[default]
    Spare,
    Everything,
}

impl Scope {
    /// What of it the kernel itself can be asked for, without any program.
    #[must_use]
    pub fn without_chains(&self) -> Self {
        Self { chains: BTreeSet::new(), ..self.clone() }
    }

    /// Whether `entry` is of any interest: ours, or in the place of something that may be ours.
    pub fn covers(&self, entry: &Entry) -> bool {
        self.covers_key(&entry.key())
    }

    /// Whether an entry of this key would be of any interest.
    pub fn covers_key(&self, key: &Key) -> bool {
        match key {
            Key::Table(table) => self.tables.contains(table),
            Key::Renewal(table) | Key::Element(table, _) => self.tables.contains(table.as_ref()),
            Key::Chain(chain) => self.chains.contains(chain),
            Key::Nexthop(id) => self.networks.iter().any(|network| id.leads_into(*network)),
            Key::Route(destination, _) => self.networks.iter().any(|n| n.covers(*destination)),
            Key::Setting(kind, link) => self.links_with(*kind).any(|covered| covered == link),
            Key::Address(link, address, prefix_len) if link.is_loopback() => {
                *prefix_len == Family::of(*address).width() && self.is_of_network(*address)
            }
            Key::Address(link, ..)
            | Key::Link(link)
            | Key::Fdb(link, _)
            | Key::Neighbour(link, _) => self.tunnels.contains(link),
        }
    }

    /// The links whose setting of this kind is of interest.
    pub fn links_with(&self, kind: SettingKind) -> impl Iterator<Item = &LinkName> {
        let underlay = self.underlay.iter().filter(move |_| kind.policy().on_underlay);
        self.tunnels.iter().chain(underlay)
    }

    /// Whether `other` would read the same entries.
    pub fn sees_the_same(&self, other: &Self) -> bool {
        let seen = |scope: &Self| {
            let links = (scope.tunnels.clone(), scope.underlay.clone());
            (links, scope.tables.clone(), scope.chains.clone(), scope.networks.clone())
        };
        seen(self) == seen(other)
    }

    /// Whether `entry` is ours to remove once nobody wants it.
    ///
    /// A device is not removed for being unwanted: a peer may still send to it. Only once none
    /// can, and only if it is exactly the one that we would make.
    pub fn owns(&self, entry: &Entry) -> bool {
        self.covers(entry)
            && match entry.ownership() {
                Ownership::Owned => true,
                Ownership::Foreign => false,
                Ownership::Unmarked => self.owns_unmarked(entry),
            }
    }

    fn owns_unmarked(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Link(link) => self.retired.iter().any(|ours| is_same(ours, link)),
            Entry::Address(address) => self.owns_address(address),
            Entry::Chain(chain) => self.is_spare(chain),
            Entry::Route(route) => self.is_flannels(route),
            _ => false,
        }
    }

    /// Where the host drops what it has no rule for, a chain of flannel's lets pods through.
    fn is_spare(&self, chain: &Chain) -> bool {
        chain.otherwise == Otherwise::Accepted || self.extent == Extent::Everything
    }

    /// On a device of ours, an address of the network is a leftover of an earlier subnet; any other
    /// is foreign. On the loopback, that of our own subnet stays: connections may have it as their
    /// source.
    fn owns_address(&self, address: &Address) -> bool {
        let is_spare = || match self.extent {
            Extent::Everything => true,
            Extent::Spare => self.subnets.iter().all(|subnet| subnet.base() != address.address),
        };
        self.is_of_network(address.address)
            && (!address.link.is_loopback() || (self.is_first(address.address) && is_spare()))
    }

    fn is_of_network(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether `address` is the first of a subnet as long as ours, which no pod can have.
    fn is_first(&self, address: IpAddr) -> bool {
        let is_first_of = |len| Prefix::holding(address, len).map(Prefix::base) == Some(address);
        let of_family = |subnet: &&Prefix| subnet.family() == Family::of(address);
        self.subnets.iter().filter(of_family).any(|subnet| is_first_of(subnet.prefix_len()))
    }

    /// Flannel leaves its routes without a mark, but with a shape.
    fn is_flannels(&self, route: &Route) -> bool {
        let base = route.destination.base();
        let into_tunnel = route.link.as_ref().is_some_and(|link| self.tunnels.contains(link));
        match route.gateway {
            Some(gateway) if into_tunnel => route.onlink && gateway == base,
            Some(gateway) => self.gateways.contains(&gateway),
            None => false,
        }
    }
}

/// The MTU follows the underlay, and tells nothing of who made it.
fn is_same(one: &Link, other: &Link) -> bool {
    (&one.name, &one.kind, one.mac) == (&other.name, &other.kind, other.mac)
}
