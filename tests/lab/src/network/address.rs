//! Address families, and the addresses in a prefix.

use std::fmt::{Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use ipnetwork::IpNetwork;
use serde::Deserialize;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Display for Family {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        out.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The flag of `ip(8)` and `ping(8)`.
    pub fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }
}

/// An address of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub address: IpNetwork,
    pub scope: String,
}

#[derive(Deserialize)]
pub(super) struct AddressesJson {
    pub(super) ifname: String,
    pub(super) addr_info: Vec<AddressJson>,
}

#[derive(Deserialize)]
pub(super) struct AddressJson {
    local: IpAddr,
    prefixlen: u8,
    scope: String,
}

impl TryFrom<AddressJson> for Address {
    type Error = anyhow::Error;

    fn try_from(json: AddressJson) -> Result<Self> {
        let address = IpNetwork::new(json.local, json.prefixlen)?;
        Ok(Self { address, scope: json.scope })
    }
}

/// The `index`th address of a prefix, with the length of the prefix.
pub(crate) fn nth(prefix: IpNetwork, index: u32) -> Result<IpNetwork> {
    let address: IpAddr = match prefix.network() {
        IpAddr::V4(base) => Ipv4Addr::from_bits(base.to_bits().saturating_add(index)).into(),
        IpAddr::V6(base) => Ipv6Addr::from_bits(base.to_bits() + u128::from(index)).into(),
    };
    ensure!(prefix.contains(address), "{prefix} has no address number {index}");
    Ok(IpNetwork::new(address, prefix.prefix())?)
}
