//! Forwarding entries of tunnel devices.

use std::fmt;
use std::net::IpAddr;

use super::{Key, KeyRef, Kind, LinkName};
use crate::mac::MacAddr;

/// The underlay address behind a MAC address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fdb {
    pub link: LinkName,
    pub mac: MacAddr,
    pub destination: IpAddr,
}

impl Kind for Fdb {
    fn key_ref(&self) -> KeyRef<'_> {
        Key::Fdb(&self.link, self.mac)
    }
}

impl fmt::Display for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fdb {} dst {} dev {}", self.mac, self.destination, self.link)
    }
}
