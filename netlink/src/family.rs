//! Address families.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Length of an address in bits.
    pub const fn width(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The name that its programs of iptables begin with.
    pub const fn iptables(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }

    /// The address whose number is `number`; the upper bits of a number too large are dropped.
    pub fn address(self, number: u128) -> IpAddr {
        match self {
            Self::V4 => {
                Ipv4Addr::from_bits(u32::try_from(number & u128::from(u32::MAX)).unwrap_or(0))
                    .into()
            }
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }

    /// The range of multicast addresses.
    pub fn multicast(self) -> IpNetwork {
        let (base, length) = match self {
            Self::V4 => (IpAddr::from([224, 0, 0, 0]), 4),
            Self::V6 => (IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
        };
        IpNetwork::new(base, length).unwrap_or(base.into())
    }

    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
