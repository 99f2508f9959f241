//! An IP prefix without host bits, and its arithmetic for both address families.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
pub use tweed_netlink::Family;

use crate::excerpt;

pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Whether `address` is valid on one link only: hosts on other links may have the same one.
pub const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// A network whose host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(IpNetwork);

/// The text is not an address and a length.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not a prefix like 10.5.0.0/16")]
pub struct NotAPrefix(String);

impl Prefix {
    /// The prefix of length `len` that holds `address`; none if `len` exceeds the family's width.
    pub fn holding(address: IpAddr, len: u8) -> Option<Self> {
        IpNetwork::new(address, len).ok().map(Self::from)
    }

    /// The prefix that holds `address` alone.
    pub fn host(address: IpAddr) -> Self {
        Self(address.into())
    }

    pub fn base(self) -> IpAddr {
        self.0.ip()
    }

    pub fn prefix_len(self) -> u8 {
        self.0.prefix()
    }

    pub fn family(self) -> Family {
        Family::of(self.base())
    }

    /// Count of addresses; saturates for `::/0`.
    pub fn size(self) -> u128 {
        let host_bits = self.family().width() - self.prefix_len();
        1_u128.checked_shl(host_bits.into()).unwrap_or(u128::MAX)
    }

    pub fn last(self) -> IpAddr {
        self.0.broadcast()
    }

    pub fn nth(self, offset: u128) -> IpAddr {
        self.family().address(number(self.base()).wrapping_add(offset))
    }

    /// The second address of the prefix: in a subnet, the gateway of its pods.
    pub fn gateway(self) -> IpAddr {
        self.nth(1)
    }

    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(address)
    }

    /// Whether `other` lies entirely inside.
    pub fn covers(self, other: Self) -> bool {
        self.prefix_len() <= other.prefix_len() && self.contains(other.base())
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Prefix {
    type Err = NotAPrefix;

    /// Host bits are masked off.
    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let network: Option<IpNetwork> = text.contains('/').then(|| text.parse().ok()).flatten();
        network.map(Self::from).ok_or_else(|| NotAPrefix(excerpt::value(text)))
    }
}

impl From<IpNetwork> for Prefix {
    fn from(network: IpNetwork) -> Self {
        Self(IpNetwork::new(network.network(), network.prefix()).unwrap_or(network))
    }
}

impl From<Prefix> for IpNetwork {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

impl TryFrom<String> for Prefix {
    type Error = NotAPrefix;

    fn try_from(text: String) -> Result<Self, NotAPrefix> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn host_bits_are_masked_off() {
        assert_eq!(prefix("10.5.72.1/24").to_string(), "10.5.72.0/24");
        assert_eq!(prefix("fd00:1::1/64").to_string(), "fd00:1::/64");
        assert_eq!(prefix("1.2.3.4/0").to_string(), "0.0.0.0/0");
    }

    #[test]
    fn a_text_that_is_not_a_prefix_is_rejected() {
        for text in ["", "10.5.0.0", "10.5.0.0/33", "10.5/16", "fd00::/129", "10.5.0.0/16 "] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_prefix_covers_the_prefixes_inside() {
        let network = prefix("10.5.0.0/16");
        assert!(network.covers(prefix("10.5.3.0/24")));
        assert!(!network.covers(prefix("10.0.0.0/8")));
        assert!(network.overlaps(prefix("10.0.0.0/8")));
        assert!(!network.overlaps(prefix("10.6.0.0/16")));
        assert!(!network.contains("fd00::1".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").covers(network));
    }

    #[test]
    fn addresses_and_size_follow_from_the_length() {
        assert_eq!(prefix("10.5.3.0/24").nth(1).to_string(), "10.5.3.1");
        assert_eq!(prefix("10.5.3.0/24").last().to_string(), "10.5.3.255");
        assert_eq!(prefix("fd00::/64").last().to_string(), "fd00::ffff:ffff:ffff:ffff");
        assert_eq!(prefix("10.5.3.0/24").size(), 256);
        assert_eq!(prefix("::/0").size(), u128::MAX);
    }
}
