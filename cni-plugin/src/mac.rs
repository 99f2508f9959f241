//! Hardware addresses.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mac([u8; 6]);

impl Mac {
    /// None if it is of another length.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// One that nobody else has, of those that anybody may make up.
    pub(crate) fn random() -> io::Result<Self> {
        const LOCAL: u8 = 0b10;
        const MULTICAST: u8 = 0b01;
        let mut octets = [0; 6];
        File::open("/dev/urandom")?.read_exact(&mut octets)?;
        if let Some(first) = octets.first_mut() {
            *first = (*first | LOCAL) & !MULTICAST;
        }
        Ok(Self(octets))
    }

    pub(crate) const fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.map(|octet| format!("{octet:02x}")).join(":"))
    }
}

/// The text is not six pairs of hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MAC address")]
pub(crate) struct NotAMac(String);

impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let octet = |pair: &str| u8::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 2);
        let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
        octets.and_then(|octets| Self::of(&octets)).ok_or_else(|| NotAMac(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mac: Mac = "0A:58:0a:f4:07:02".parse().unwrap();
        assert_eq!(mac.to_string(), "0a:58:0a:f4:07:02");
        for text in ["", "0a:58", "0a:58:0a:f4:07:2", "0a:58:0a:f4:07:02:03", "zz:58:0a:f4:07:02"] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_random_one_is_for_one_link_and_made_up() {
        for _ in 0..64 {
            assert_eq!(Mac::random().unwrap().octets()[0] & 0b11, 0b10);
        }
    }
}
