//! Neighbours on tunnel devices.

use std::fmt;
use std::net::IpAddr;

use super::{Key, KeyRef, Kind, LinkName, Ownership};
use crate::mac::MacAddr;

/// The MAC address behind an IP address of the tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub link: LinkName,
    pub address: IpAddr,
    pub mac: MacAddr,
    /// Never aged and never resolved. Entries of tweed always are.
    pub permanent: bool,
}

impl Kind for Neighbour {
    fn key_ref(&self) -> KeyRef<'_> {
        Key::Neighbour(&self.link, self.address)
    }

    fn ownership(&self) -> Ownership {
        if self.permanent { Ownership::Owned } else { Ownership::Foreign }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.permanent { "" } else { " not permanent" };
        write!(f, "neigh {} lladdr {} dev {}{state}", self.address, self.mac, self.link)
    }
}
