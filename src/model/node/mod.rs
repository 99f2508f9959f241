//! This node: facts of the host in; interface, addresses and adjacency out.

mod overlap;
mod select;

#[cfg(test)]
pub(crate) mod tests;

pub use overlap::{Other, Overlap};
pub use select::{InterfaceOptions, NoInterface};

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::entry::{ChainName, Iptables, LinkName, NexthopId};
use crate::model::prefix::{Family, Prefix};

/// What the host looks like: the input of [`Node`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// In the kernel's order.
    pub interfaces: Vec<Interface>,
    /// The device of each default route of the main table, in the kernel's order; none for a
    /// route with several next hops.
    pub default_routes: Vec<(Family, Option<LinkName>)>,
    /// The way to the address that was asked for.
    pub reach: Option<Reach>,
    pub nexthops: Nexthops,
    pub firewalls: Firewalls,
    pub sysctls: Sysctls,
    /// Whether links are made with a strict reverse-path filter.
    pub makes_strict: bool,
    pub kernel: Release,
    /// The API server as a service, where this runs in a pod of Kubernetes.
    pub service: Option<IpAddr>,
}

/// The version of the kernel, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
}

impl Default for Release {
    /// One that is newer than all that is known.
    fn default() -> Self {
        Self { major: u32::MAX, minor: 0 }
    }
}

impl Release {
    /// As in `5.4.0-26-generic`.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split(['.', '-', '+']).map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => Self { major, minor },
            _ => Self::default(),
        }
    }

    /// Before Linux 5.7, a checksum that was left to the hardware was taken for that of the outer
    /// header when this was translated. Some vendors mended older ones: which, nobody can tell.
    pub fn spoils_checksums(self) -> bool {
        self < Self { major: 5, minor: 7 }
    }
}

/// Whether routes may refer to nexthop objects of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nexthops {
    #[default]
    Usable,
    /// The kernel does not know them, or does not let us make any.
    Unsupported,
    /// Somebody else has an object of one of our numbers.
    Taken(NexthopId),
}

/// Whether settings of links, below `/proc/sys/net`, can be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sysctls {
    #[default]
    Writable,
    /// As in a pod that is not privileged.
    ReadOnly,
}

impl Sysctls {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
    fn are_writable(&self) -> bool {
        *self == Self::Writable
    }
}

/// By what this host can have rules for packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewalls {
    /// Whether its kernel has nftables, as far as we have been told.
    pub nftables: bool,
    /// What it calls iptables.
    pub iptables: Iptables,
    /// The chains that are needed for packets of pods, because the host's chain `FORWARD` in front
    /// of them drops what no rule accepts.
    #[serde(default)]
    pub dropping: BTreeSet<ChainName>,
}

impl Default for Firewalls {
    fn default() -> Self {
        Self { nftables: true, iptables: Iptables::Nft, dropping: BTreeSet::new() }
    }
}

impl Firewalls {
    fn are_usual(&self) -> bool {
        *self == Self::default()
    }
}

/// A network device and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: LinkName,
    /// In bytes.
    pub mtu: u32,
    pub up: bool,
    /// Whether stations on it reach each other by MAC address: Ethernet, not point-to-point, not loopback, with ARP.
    pub layer2: bool,
    /// In the kernel's order.
    pub addresses: Vec<InterfaceAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub address: IpAddr,
    pub prefix_len: u8,
    /// Whether it may be used for new connections: neither deprecated nor tentative.
    pub usable: bool,
    pub lifetime: Lifetime,
}

/// How long an address stays, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// Until somebody removes it (`IFA_F_PERMANENT`).
    Permanent,
    /// Until its lease or its router's word runs out.
    Dynamic,
    /// A privacy address, changed from time to time (`IFA_F_TEMPORARY`, IPv6 only).
    Temporary,
}

/// How the kernel would send to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    pub link: LinkName,
    /// The source address it would take.
    pub source: Option<IpAddr>,
}

/// A bridge of pods of a subnet that this node no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerBridge {
    pub link: LinkName,
    pub subnet: Prefix,
}

impl fmt::Display for FormerBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { link, subnet } = self;
        write!(f, "bridge {link} is of subnet {subnet}, which this node no longer has")
    }
}

/// The bridges among `interfaces` whose pods have addresses of `networks` that are not of this node's
/// `subnets`: it had another subnet when they were made.
pub fn former_bridges(
    interfaces: &[Interface],
    networks: &[Prefix],
    subnets: &[Prefix],
) -> Vec<FormerBridge> {
    let is_former = |subnet: &Prefix| {
        let is_like = |own: &Prefix| {
            (own.family(), own.prefix_len()) == (subnet.family(), subnet.prefix_len())
        };
        let is_of_pods = networks.iter().any(|network| network.covers(*subnet));
        is_of_pods && subnets.iter().any(is_like) && !subnets.contains(subnet)
    };
    let former = |interface: &Interface| {
        let own = interface.addresses.iter().filter_map(|own| {
            let subnet = Prefix::holding(own.address, own.prefix_len)?;
            (subnet.gateway() == own.address).then_some(subnet)
        });
        let subnet = { own }.find(is_former)?;
        Some(FormerBridge { link: interface.name.clone(), subnet })
    };
    interfaces.iter().filter_map(former).collect()
}

/// The node as its peers and the planner see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The external interface.
    pub interface: LinkName,
    /// Of the external interface, in bytes.
    pub mtu: u32,
    /// Whether its neighbours are reached by MAC address.
    pub layer2: bool,
    /// Whether routes refer to nexthop objects.
    #[serde(default)]
    pub nexthops: bool,
    #[serde(default, skip_serializing_if = "Firewalls::are_usual")]
    pub firewalls: Firewalls,
    #[serde(default, skip_serializing_if = "Sysctls::are_writable")]
    pub sysctls: Sysctls,
    /// Whether the kernel spoils the checksum of a packet in the tunnel whose outer packet it
    /// masquerades, see [`Release::spoils_checksums`].
    #[serde(default)]
    pub spoils_checksums: bool,
    /// The prefixes of the interface's addresses: who lies inside is on its link.
    pub on_link: Vec<Prefix>,
    /// One per enabled family, IPv4 first.
    pub uplinks: Vec<Uplink>,
}

/// How one address family leaves the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The interface's own address.
    pub address: IpAddr,
    /// What peers send to; differs from `address` behind address translation.
    pub public_ip: IpAddr,
    /// The source of outer packets: the public IP where this host has it, else `address`.
    pub source: IpAddr,
    /// The interface's other addresses, where this host does not have the public IP: it may be
    /// translated to any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<IpAddr>,
}

impl Uplink {
    pub const fn family(&self) -> Family {
        Family::of(self.public_ip)
    }
}

impl Node {
    /// Whether `address` is one hop away on the external interface: on its link, and that link carries frames.
    pub fn is_adjacent(&self, address: IpAddr) -> bool {
        let shared = |prefix: &&Prefix| prefix.prefix_len() < prefix.family().width();
        self.layer2 && self.on_link.iter().filter(shared).any(|prefix| prefix.contains(address))
    }

    /// What a rollout calls it, see [`crate::model::config::Rollout::follows`].
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.uplinks.iter().map(|uplink| uplink.public_ip.to_string())
    }

    pub fn uplink(&self, family: Family) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| uplink.family() == family)
    }
}
