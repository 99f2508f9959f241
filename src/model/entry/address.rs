//! Addresses of links.

use std::fmt;
use std::net::IpAddr;

use super::{Key, KeyRef, Kind, LinkName, Ownership, Removal};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: LinkName,
    pub address: IpAddr,
    pub prefix_len: u8,
}

impl Kind for Address {
    const LOCAL: bool = true;
    const REMOVAL: Removal = Removal::AtOnce;
    const OWNERSHIP: Ownership = Ownership::Unmarked;

    fn key_ref(&self) -> KeyRef<'_> {
        Key::Address(&self.link, self.address, self.prefix_len)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "addr {}/{} dev {}", self.address, self.prefix_len, self.link)
    }
}
