//! Nexthop objects, and their ids, by which tweed recognizes its own.

use std::fmt;
use std::net::IpAddr;

use super::{Key, KeyRef, Kind, LinkName, Ownership, PROTOCOL, write_option};
use crate::model::path::Path;
use crate::model::prefix::{Family, Prefix, number};

/// A next hop that routes refer to by id. The kernel finds it by id; without it, the kernel
/// compares the gateway of each new route with those of all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nexthop {
    pub id: NexthopId,
    /// None for nexthop objects without a gateway, and for groups.
    pub gateway: Option<IpAddr>,
    pub link: Option<LinkName>,
    /// Treat the gateway as adjacent although no address of the link covers it.
    pub onlink: bool,
    pub protocol: u8,
}

/// The id of a nexthop object. All programs of the host share one id space.
///
/// Ids of tweed are computed from the subnet that they lead to, so that they need not be stored:
///
/// ```text
/// 1111 | family | path | number of the subnet
///    4 |      1 |    1 |                   26   bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexthopId(pub u32);

const OURS: u32 = 0b1111 << 28;
const V6: u32 = 1 << 27;
const DIRECT: u32 = 1 << 26;
const SUBNET_BITS: u8 = 26;

impl NexthopId {
    /// The id for `path` to `subnet` of `network`. Each path has its own id, so a route moves from
    /// one object to the other. None if the network has more subnets of this length than there are
    /// ids.
    pub fn of(network: Prefix, subnet: Prefix, path: Path) -> Option<Self> {
        let fits = is_numbered(network) && subnet.prefix_len() <= unit(network.family());
        let path = match path {
            Path::Tunnel => 0,
            Path::Direct => DIRECT,
        };
        fits.then(|| {
            Self(OURS | family_bit(subnet.family()) | path | subnet_number(network, subnet))
        })
    }

    /// Whether it is in the id range of tweed.
    pub const fn is_ours(self) -> bool {
        self.0 & OURS == OURS
    }

    /// Whether it is an id of tweed for some path into `network`.
    pub fn leads_into(self, network: Prefix) -> bool {
        self.is_ours()
            && is_numbered(network)
            && self.0 & V6 == family_bit(network.family())
            && (self.0 & NUMBER) >> free_bits(network) == network_number(network)
    }
}

impl Kind for Nexthop {
    fn key_ref(&self) -> KeyRef<'_> {
        Key::Nexthop(self.id)
    }

    fn ownership(&self) -> Ownership {
        if self.protocol == PROTOCOL { Ownership::Owned } else { Ownership::Foreign }
    }
}

impl fmt::Display for Nexthop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nexthop id {}", self.id)?;
        write_option(f, "via", self.gateway)?;
        write_option(f, "dev", self.link.as_ref())?;
        write_option(f, "proto", Some(self.protocol).filter(|it| *it != PROTOCOL))?;
        f.write_str(if self.onlink { " onlink" } else { "" })
    }
}

impl fmt::Display for NexthopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const NUMBER: u32 = DIRECT - 1;

/// The prefix length of the smallest subnets that have an id each.
const fn unit(family: Family) -> u8 {
    match family {
        Family::V4 => 26,
        Family::V6 => 64,
    }
}

/// Whether all subnets of `network` have distinct ids.
fn is_numbered(network: Prefix) -> bool {
    let unit = unit(network.family());
    (unit - SUBNET_BITS..=unit).contains(&network.prefix_len())
}

/// The number of the network in the high bits, then that of the subnet in it.
fn subnet_number(network: Prefix, subnet: Prefix) -> u32 {
    let free = free_bits(network);
    let within = unit_number(subnet.base()) & !(u128::MAX << free);
    network_number(network) << free | u32::try_from(within).unwrap_or(NUMBER)
}

/// The number of bits that distinguish the subnets of `network`.
fn free_bits(network: Prefix) -> u8 {
    unit(network.family()) - network.prefix_len()
}

/// The number of `network` in the remaining bits, folded if it has more bits itself.
fn network_number(network: Prefix) -> u32 {
    let free = free_bits(network);
    let bits = SUBNET_BITS - free;
    let mut rest = unit_number(network.base()) >> free;
    let mut folded = 0;
    while bits > 0 && rest > 0 {
        folded ^= rest & !(u128::MAX << bits);
        rest >>= bits;
    }
    u32::try_from(folded).unwrap_or(NUMBER)
}

/// The number of the smallest numbered subnet that contains `address`.
fn unit_number(address: IpAddr) -> u128 {
    let family = Family::of(address);
    number(address) >> (family.width() - unit(family))
}

const fn family_bit(family: Family) -> u32 {
    match family {
        Family::V4 => 0,
        Family::V6 => V6,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn ids(network: &str, subnets: &[&str]) -> Vec<Option<NexthopId>> {
        let network = prefix(network);
        let paths = [Path::Tunnel, Path::Direct];
        let of = |subnet| paths.map(|path| NexthopId::of(network, prefix(subnet), path));
        subnets.iter().copied().flat_map(of).collect()
    }

    #[test]
    fn every_path_of_a_host_has_its_own_id() {
        let v4 = ids("10.0.0.0/8", &["10.0.0.0/24", "10.0.1.0/24", "10.255.255.0/24"]);
        let small = ids("172.16.0.0/16", &["172.16.0.0/26", "172.16.0.64/26", "172.16.1.0/26"]);
        let v6 = ids("fd00:10::/48", &["fd00:10::/64", "fd00:10:0:1::/64", "fd00:10:0:ffff::/64"]);
        let all: Vec<NexthopId> = [v4, small, v6].into_iter().flatten().flatten().collect();
        assert_eq!(all.len(), 18);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(all.iter().all(|id| id.is_ours()));
    }

    #[test]
    fn an_id_identifies_its_network() {
        let id = ids("10.1.0.0/16", &["10.1.7.0/24"])[0].unwrap();
        assert!(id.leads_into(prefix("10.1.0.0/16")));
        assert!(!id.leads_into(prefix("10.2.0.0/16")));
        let id = ids("fd00:10::/48", &["fd00:10:0:7::/64"])[1].unwrap();
        assert!(id.leads_into(prefix("fd00:10::/48")));
        assert!(!id.leads_into(prefix("fd00:11::/48")));
        assert!(!id.leads_into(prefix("10.1.0.0/16")));
    }

    #[test]
    fn subnets_outside_of_the_id_range_have_no_id() {
        assert_eq!(ids("10.0.0.0/16", &["10.0.0.0/27"]), [None, None]);
        assert_eq!(ids("fd00::/32", &["fd00::/64"]), [None, None]);
        assert_eq!(ids("fd00::/64", &["fd00::/80"]), [None, None]);
    }

    #[test]
    fn foreign_ids_are_not_ours() {
        for id in [1, 250_000_000, 1 << 28, 0b1110 << 28] {
            assert!(!NexthopId(id).is_ours());
        }
    }
}
