//! Tables by name, the families that they are for, and their numbers in netfilter.

use nix::libc::{NFPROTO_INET, NFPROTO_IPV4, NFPROTO_IPV6};

use crate::Family;
use crate::message::byte;

/// A table that the kernel may have.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    pub family: TableFamily,
    pub name: &'a str,
}

/// The address families of the packets that the chains of a table receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFamily {
    /// Those of both, as in `inet`.
    Both,
    /// Those of one, as in `ip` and `ip6`.
    Only(Family),
}

impl Family {
    /// How `nft(8)` calls its tables and addresses.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    /// How `nft(8)` numbers the type of its addresses, and their length in bytes.
    pub(super) const fn key(self) -> (u32, u32) {
        match self {
            Self::V4 => (7, 4),
            Self::V6 => (8, 16),
        }
    }

    /// As netfilter numbers it.
    pub(crate) fn protocol(self) -> u8 {
        TableFamily::Only(self).number()
    }
}

impl TableFamily {
    /// How `nft(8)` calls it.
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Both => "inet",
            Self::Only(family) => family.keyword(),
        }
    }

    pub fn includes(self, family: Family) -> bool {
        matches!(self, Self::Both) || self == Self::Only(family)
    }

    pub(super) const ALL: [Self; 3] = [Self::Both, Self::Only(Family::V4), Self::Only(Family::V6)];

    /// As netfilter numbers it.
    pub(super) fn number(self) -> u8 {
        byte(match self {
            Self::Both => NFPROTO_INET,
            Self::Only(Family::V4) => NFPROTO_IPV4,
            Self::Only(Family::V6) => NFPROTO_IPV6,
        })
    }

    pub(super) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}
