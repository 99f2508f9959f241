//! The address families of a cluster, and the addresses in them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use clap::ValueEnum;
use tweed::model::entry::{LinkName, Route};
use tweed::model::prefix::{Family, Prefix};

/// The families in which pods have addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    V4,
    V6,
    Dual,
}

/// The interface of a node on the segment.
pub(crate) const UNDERLAY: &str = "eth0";
pub(crate) const VNI: u32 = 1;
/// The last byte of the router's addresses, which forwards no packets of pods.
const ROUTER: u8 = 254;

impl Stack {
    pub const fn families(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &Family::ALL,
        }
    }

    pub fn has(self, family: Family) -> bool {
        self.families().contains(&family)
    }

    /// The family whose addresses are named if one is enough.
    pub fn first(self) -> Family {
        if self == Self::V6 { Family::V6 } else { Family::V4 }
    }

    /// The pools of the network config.
    pub(crate) const fn pools(self) -> &'static str {
        match self {
            Self::V4 => r#""Network":"10.244.0.0/16""#,
            Self::V6 => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48""#,
            Self::Dual => {
                r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#
            }
        }
    }

    /// The subnets that Kubernetes assigns to a node, by its number.
    pub(crate) fn subnets(self, number: usize) -> Vec<Prefix> {
        self.families().iter().filter_map(|family| subnet(*family, number)).collect()
    }

    /// A route of another program, which must stay.
    pub(crate) fn foreign_route(self) -> Option<Route> {
        let destination = match self.first() {
            Family::V4 => "192.168.99.0/24",
            Family::V6 => "fd00:99::/64",
        };
        let (link, gateway) = (LinkName::new(UNDERLAY), router(self.first()));
        Some(Route { protocol: 4, ..Route::via(destination.parse().ok()?, gateway, link) })
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
            Self::Dual => "both families",
        })
    }
}

/// The subnet of pods with this number.
pub(crate) fn subnet(family: Family, number: usize) -> Option<Prefix> {
    match family {
        Family::V4 => {
            let base = Ipv4Addr::new(10, 244, number.try_into().ok()?, 0);
            Prefix::holding(base.into(), 24)
        }
        Family::V6 => {
            let base = Ipv6Addr::new(0xfd00, 0x244, 0, number.try_into().ok()?, 0, 0, 0, 0);
            Prefix::holding(base.into(), 64)
        }
    }
}

pub(crate) fn tunnel(family: Family) -> LinkName {
    LinkName::tunnel(family, VNI)
}

/// An address on the segment, by its last byte.
pub(crate) fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(172, 16, 0, last).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x16, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

pub(crate) fn router(family: Family) -> IpAddr {
    address(family, ROUTER)
}

/// The length of the segment's prefix.
pub(crate) const fn segment_len(family: Family) -> u8 {
    match family {
        Family::V4 => 24,
        Family::V6 => 64,
    }
}

/// Outside of the cluster.
pub(crate) const fn outside(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    }
}

/// The subnets of a node's pods; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    first: Prefix,
    second: Option<Prefix>,
}

impl Pods {
    pub fn new(subnets: impl IntoIterator<Item = Prefix>) -> Option<Self> {
        let mut subnets = subnets.into_iter();
        Some(Self { first: subnets.next()?, second: subnets.next() })
    }

    pub(crate) fn all(self) -> impl Iterator<Item = Prefix> {
        [Some(self.first), self.second].into_iter().flatten()
    }

    pub fn of(self, family: Family) -> Option<Prefix> {
        self.all().find(|subnet| subnet.family() == family)
    }

    /// The name of the lease in etcd has this part.
    pub(crate) fn name(self) -> String {
        format!("{}-{}", self.first.base(), self.first.prefix_len())
    }
}

impl fmt::Display for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.second.iter().try_for_each(|second| write!(f, " and {second}"))
    }
}
