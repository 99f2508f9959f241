//! Which kernel entries tweed reads, and which of them it owns and may remove.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::entry::{
    Address, BasePolicy, Chain, ChainName, Entry, Key, Link, LinkKind, LinkName, Ownership, Route,
    SettingKind, TableName, Vxlan,
};
use crate::model::lease::Vtep;
use crate::model::prefix::{Family, Prefix};
use crate::plan::allow_list;

/// Which entries to read, and which of them tweed owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The tunnel devices of tweed, whether they exist or not.
    pub tunnels: BTreeSet<LinkName>,
    /// The link below the tunnels, towards the peers.
    pub underlay: Option<LinkName>,
    /// The tables of tweed, whether they exist or not.
    pub tables: BTreeSet<TableName>,
    /// The iptables chains of tweed, whether they exist or not.
    pub chains: BTreeSet<ChainName>,
    pub extent: Extent,
    pub networks: Vec<Prefix>,
    /// The subnets of this node; none without a lease. Their first addresses may be on the
    /// loopback, where they stay when the tunnel device is removed.
    pub subnets: Vec<Prefix>,
    /// The public IPs of the peers: an unmarked route through one of them was made by flannel.
    pub gateways: BTreeSet<IpAddr>,
    /// The tunnel devices that have their address although the config no longer has them: peers may
    /// still send to them.
    pub leaving: BTreeSet<LinkName>,
    /// Those that neither this node nor any peer needs any more.
    pub retired: Vec<Link>,
}

/// Which entries tweed may remove, of those that it owns and that are not desired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// Only entries that no packet depends on.
    #[default]
    Spare,
    Everything,
}

impl Scope {
    /// The part that can be read by netlink alone, without the iptables programs.
    #[must_use]
    pub fn without_chains(&self) -> Self {
        Self { chains: BTreeSet::new(), ..self.clone() }
    }

    /// Whether to read `entry`: it is owned, or it has a key that tweed may need.
    pub fn covers(&self, entry: &Entry) -> bool {
        self.covers_key(&entry.key())
    }

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

    pub fn links_with(&self, kind: SettingKind) -> impl Iterator<Item = &LinkName> {
        let underlay = self.underlay.iter().filter(move |_| kind.policy().on_underlay);
        self.tunnels.iter().chain(underlay)
    }

    /// Whether `other` would read the same entries.
    pub fn sees_the_same(&self, other: &Self) -> bool {
        let Self { tunnels, underlay, tables, chains, networks, .. } = other;
        (&self.tunnels, &self.underlay, &self.networks) == (tunnels, underlay, networks)
            && (&self.tables, &self.chains) == (tables, chains)
    }

    /// Whether tweed may remove `entry` once it is not desired.
    ///
    /// A device that is not desired is kept, because a peer may still send to it. It is removed
    /// only when no peer can, and only if it is exactly the device that tweed would create.
    pub fn owns(&self, entry: &Entry) -> bool {
        self.covers(entry)
            && !(self.extent == Extent::Spare && self.stays_with_device(entry))
            && match entry.ownership() {
                Ownership::Owned => true,
                Ownership::Foreign => false,
                Ownership::Unmarked => self.owns_unmarked(entry),
            }
    }

    /// Whether a device needs the entry as long as peers may send to it. Without an address on the
    /// device, the kernel drops packets of a tunnel whose answers take another path, even if its
    /// reverse-path filter is loose; without the guard, any host could send into the tunnel.
    fn stays_with_device(&self, entry: &Entry) -> bool {
        let is_left = |family| self.leaving.iter().any(|link| link.is_tunnel_of(family));
        match entry {
            Entry::Address(address) => {
                self.leaving.contains(&address.link) && self.is_own_tunnel_address(address)
            }
            Entry::Table(table) => allow_list::is_guard(&table.name) && is_left(table.name.family),
            _ => entry.table().is_some_and(|table| is_left(table.family)),
        }
    }

    fn is_own_tunnel_address(&self, address: &Address) -> bool {
        let Address { address, prefix_len, .. } = *address;
        let mut subnets = self.subnets.iter();
        subnets.any(|it| (it.base(), it.family().width()) == (address, prefix_len))
    }

    fn owns_unmarked(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Link(link) => {
                self.retired.iter().any(|ours| is_same(ours, link) || is_of_former_ip(ours, link))
            }
            Entry::Address(address) => self.owns_address(address),
            Entry::Chain(chain) => self.is_spare(chain),
            Entry::Route(route) => self.is_flannels(route),
            _ => false,
        }
    }

    /// Where the host drops unmatched packets, pods need the accept rules of flannel's chain.
    fn is_spare(&self, chain: &Chain) -> bool {
        chain.base_policy == BasePolicy::Accept || self.extent == Extent::Everything
    }

    /// On a tunnel device, a pod network address is left from an earlier subnet; any other address
    /// is foreign. On the loopback, the address of the current subnet is kept: connections may use
    /// it as their source.
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

    /// Whether `address` is the first address of a subnet as long as ours, which no pod has.
    fn is_first(&self, address: IpAddr) -> bool {
        let is_first_of = |len| Prefix::holding(address, len).map(Prefix::base) == Some(address);
        let of_family = |subnet: &&Prefix| subnet.family() == Family::of(address);
        self.subnets.iter().filter(of_family).any(|subnet| is_first_of(subnet.prefix_len()))
    }

    /// Flannel does not mark its routes, but they have a known form.
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

/// The MTU is ignored: it depends on the underlay and does not identify the creator.
fn is_same(one: &Link, other: &Link) -> bool {
    (&one.name, &one.kind, one.mac) == (&other.name, &other.kind, other.mac)
}

/// Whether tweed created the device when this node had another public IP: the MAC address follows from
/// that.
fn is_of_former_ip(ours: &Link, link: &Link) -> bool {
    let (LinkKind::Vxlan(present), LinkKind::Vxlan(former)) = (&ours.kind, &link.kind) else {
        return false;
    };
    let is_derived = |ip| link.mac == Vtep::derived_mac(ip, former.vni);
    let but_its_ip = Vxlan { local: present.local, ..(**former).clone() };
    ours.name == link.name && **present == but_its_ip && former.local.is_some_and(is_derived)
}
