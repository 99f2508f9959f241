//! A MAC address.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::excerpt;

/// An Ethernet address, shown in lower case with colons.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddr([u8; 6]);

/// The text was not six hexadecimal octets joined by colons.
#[derive(Debug, thiserror::Error)]
#[error("\"{0}\" is not a MAC address like 0a:58:0a:f4:01:02")]
pub struct NotAMac(String);

impl MacAddr {
    pub const fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    /// The locally administered unicast address that belongs to `identity`, today and after every reboot.
    pub fn derived_from(identity: &str) -> Self {
        let hash = stable_hash(identity);
        let [_, _, octets @ ..] = (hash ^ (hash >> 48)).to_be_bytes();
        let [first, rest @ ..] = octets;
        let [second, third, fourth, fifth, sixth] = rest;
        Self([(first & 0xfc) | 0x02, second, third, fourth, fifth, sixth])
    }

    pub const fn octets(self) -> [u8; 6] {
        self.0
    }

    /// Whether one station can own it: neither multicast nor all zero.
    pub const fn is_unicast(self) -> bool {
        let [first, ..] = self.0;
        first & 1 == 0 && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, octet) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ":" };
            write!(f, "{separator}{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let octets: Option<Vec<u8>> = text.split(':').map(octet).collect();
        octets
            .and_then(|octets| octets.try_into().ok())
            .map(Self)
            .ok_or_else(|| NotAMac(excerpt::value(text)))
    }
}

/// The 64-bit FNV-1a hash: stable over versions and platforms, which the standard hasher does not
/// promise.
pub fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn octet(text: &str) -> Option<u8> {
    let is_two_digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_two_digits.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}

impl TryFrom<String> for MacAddr {
    type Error = NotAMac;

    fn try_from(text: String) -> Result<Self, NotAMac> {
        text.parse()
    }
}

impl From<MacAddr> for String {
    fn from(mac: MacAddr) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_octets_give_the_same_address() {
        let mac: MacAddr = "C6:d2:32:6f:8f:44".parse().unwrap();
        assert_eq!(mac.octets(), [0xc6, 0xd2, 0x32, 0x6f, 0x8f, 0x44]);
        assert_eq!(mac.to_string(), "c6:d2:32:6f:8f:44");
    }

    #[test]
    fn invalid_macs_are_refused() {
        for text in [
            "",
            "0a:58",
            "c6:d2:32:6f:8f",
            "0a:58:0a:f4:07:2",
            "c6:d2:32:6f:8f:44:00",
            "c6:d2:32:6f:8f:4g",
            "zz:58:0a:f4:07:02",
            "c6d2326f8f44",
            "+6:d2:32:6f:8f:44",
        ] {
            assert!(text.parse::<MacAddr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_derived_address_is_unicast_local_and_never_changes() {
        let mac = MacAddr::derived_from("10.0.0.1 vni 1");
        assert_eq!(mac.octets()[0] & 0x03, 0x02);
        assert_eq!(mac, MacAddr::derived_from("10.0.0.1 vni 1"));
        assert_ne!(mac, MacAddr::derived_from("10.0.0.2 vni 1"));
        assert_eq!(mac.to_string(), "de:c5:40:8b:12:bc");
    }
}
