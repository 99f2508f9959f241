//! This node: facts of the host in; interface, addresses and adjacency out.

mod overlap;
mod select;

#[cfg(test)]
pub(crate) mod tests;

pub use overlap::{Overlap, Overlapped};
pub use select::{InterfaceOptions, NoInterface};

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::entry::{ChainName, Iptables, LinkName, NexthopId};
use crate::model::prefix::{Family, Prefix};

/// The facts of the host that [`Node`] is chosen from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// In the kernel's order.
    pub interfaces: Vec<Interface>,
    /// The device of each default route of the main table, in the kernel's order; none for a
    /// multipath route.
    pub default_routes: Vec<(Family, Option<LinkName>)>,
    /// The route to the address of `can_reach`.
    pub reach: Option<RouteLookup>,
    pub nexthops: NexthopSupport,
    pub firewalls: Firewalls,
    pub sysctls: Sysctls,
    /// Whether new links get a strict reverse-path filter.
    pub makes_strict: bool,
    pub kernel: Release,
    /// The service address of the API server, if this process runs in a pod of Kubernetes.
    pub service: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
}

impl Default for Release {
    /// A version newer than all that matter.
    fn default() -> Self {
        Self { major: u32::MAX, minor: 0 }
    }
}

impl Release {
    /// Parses texts like `5.4.0-26-generic`.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split(['.', '-', '+']).map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => Self { major, minor },
            _ => Self::default(),
        }
    }

    /// Before Linux 5.7, NAT of an outer packet wrote an offloaded inner checksum into the outer
    /// header. Some vendors backported the fix; which ones cannot be detected.
    pub fn spoils_checksums(self) -> bool {
        self < Self { major: 5, minor: 7 }
    }

    /// Before Linux 5.19, nftables looked up the route back to a source only before routing, and not for
    /// packets that are delivered or forwarded.
    pub fn looks_back_before_routing(self) -> bool {
        self < Self { major: 5, minor: 19 }
    }
}

/// Whether routes may refer to nexthop objects of tweed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NexthopSupport {
    #[default]
    Usable,
    /// The kernel does not support them, or denies permission to create them.
    Unsupported,
    /// Another program has a nexthop object with an id of tweed.
    Taken(NexthopId),
}

/// Whether sysctls of links, below `/proc/sys/net`, are writable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sysctls {
    #[default]
    Writable,
    /// As in an unprivileged pod.
    ReadOnly,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firewalls {
    /// Whether the kernel supports nftables, as far as it was detected.
    pub nftables: bool,
    pub iptables: Iptables,
    /// The chains that have to accept packets of pods, because the host's chain `FORWARD` drops by
    /// policy.
    #[serde(default)]
    pub dropping: BTreeSet<ChainName>,
}

impl Default for Firewalls {
    fn default() -> Self {
        Self { nftables: true, iptables: Iptables::Nft, dropping: BTreeSet::new() }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A network device and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: LinkName,
    /// In bytes.
    pub mtu: u32,
    pub up: bool,
    /// Whether hosts on it reach each other by MAC address: Ethernet with ARP, not point-to-point,
    /// not loopback.
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

/// The lifetime of an address, longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifetime {
    /// Until it is removed (`IFA_F_PERMANENT`).
    Permanent,
    /// Until its DHCP lease or its router advertisement expires.
    Dynamic,
    /// A privacy address, which changes periodically (`IFA_F_TEMPORARY`, IPv6 only).
    Temporary,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLookup {
    pub link: LinkName,
    /// The source address that the kernel would choose.
    pub source: Option<IpAddr>,
}

/// A bridge whose pods have a subnet that this node no longer has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bridge {link} is of subnet {subnet}, which this node no longer has")]
pub struct FormerBridge {
    pub link: LinkName,
    pub subnet: Prefix,
}

/// The bridges among `interfaces` whose pods have addresses of `networks` outside of this node's
/// `subnets`: the node had another subnet when the bridges were created.
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

/// The network properties of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub interface: LinkName,
    /// The MTU of the external interface, in bytes.
    pub mtu: u32,
    /// Whether neighbours on the external interface are reached by MAC address.
    pub layer2: bool,
    /// Whether routes refer to nexthop objects.
    #[serde(default)]
    pub nexthops: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub firewalls: Firewalls,
    #[serde(default, skip_serializing_if = "is_default")]
    pub sysctls: Sysctls,
    #[serde(default)]
    pub kernel: Release,
    /// The prefixes of the interface's addresses. Nodes inside them are on the same link.
    pub on_link: Vec<Prefix>,
    /// The other links with an address whose prefix contains one of the interface. Each answers ARP
    /// requests for the addresses of the interface, and then receives what peers send to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_segment: Vec<LinkName>,
    /// One per enabled family, IPv4 first.
    pub uplinks: Vec<Uplink>,
}

/// The addresses of the external interface in one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    pub address: IpAddr,
    /// The address that peers send to. Behind NAT it differs from `address`.
    pub public_ip: IpAddr,
    /// The source of outer packets: the public IP if this host has it, else `address`.
    pub source: IpAddr,
    /// The other addresses of the interface, if this host does not have the public IP: NAT may
    /// translate it to any of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<IpAddr>,
}

impl Uplink {
    pub const fn family(&self) -> Family {
        Family::of(self.public_ip)
    }
}

/// Whether a link with an address of `prefix` is on the segment of one with the addresses `own`.
fn is_segment_of(prefix: Prefix, mut own: impl Iterator<Item = IpAddr>) -> bool {
    prefix.size() > 1 && own.any(|address| prefix.contains(address))
}

impl Node {
    /// Whether `address` is on the same link as the external interface, and that link is Ethernet.
    pub fn is_adjacent(&self, address: IpAddr) -> bool {
        let shared = |prefix: &&Prefix| prefix.prefix_len() < prefix.family().width();
        self.layer2 && self.on_link.iter().filter(shared).any(|prefix| prefix.contains(address))
    }

    /// Whether a link with an address of `prefix` is on the segment of the external interface.
    pub fn shares_segment(&self, prefix: Prefix) -> bool {
        is_segment_of(prefix, self.uplinks.iter().map(|uplink| uplink.address))
    }

    /// The names of this node in a rollout, see [`crate::model::config::Rollout::follows`].
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.uplinks.iter().map(|uplink| uplink.public_ip.to_string())
    }

    pub fn uplink(&self, family: Family) -> Option<&Uplink> {
        self.uplinks.iter().find(|uplink| uplink.family() == family)
    }
}
