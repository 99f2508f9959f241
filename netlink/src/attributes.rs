//! The attributes of a netlink message, as they came.

use std::iter;
use std::net::IpAddr;
use std::str;

use nix::libc::NLA_TYPE_MASK;

/// A sequence of attributes. An attribute that is cut off is ignored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The first of `kind`.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    /// The kind and the value of each.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.0;
        iter::from_fn(move || {
            let length = usize::from(u16_at(rest, 0)?);
            let kind = u16_at(rest, 2)? & u16::try_from(NLA_TYPE_MASK & 0xffff).unwrap_or(u16::MAX);
            let value = rest.get(4..length)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            Some((kind, value))
        })
    }

    pub fn nested(self, kind: u16) -> Option<Self> {
        self.get(kind).map(Self)
    }

    /// Without the zero at its end.
    pub fn text(self, kind: u16) -> Option<&'a str> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        str::from_utf8(bytes.get(..end)?).ok()
    }

    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    pub fn u32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    pub fn ip(self, kind: u16) -> Option<IpAddr> {
        self.get(kind).and_then(ip)
    }

    /// In the order of the network, as nftables has its numbers.
    pub fn be32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().ok().map(u32::from_be_bytes)
    }
}

pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..offset + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..offset + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The address in `bytes`: its length gives the family.
pub fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_attribute_ends_the_list() {
        let whole = [5, 0, 1, 0, 9, 0, 0, 0, 8, 0, 2, 0, 1, 0, 0, 0];
        let kinds =
            |bytes: &[u8]| Attributes::of(bytes).iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(kinds(&whole), [1, 2]);
        for end in 9..whole.len() {
            assert_eq!(kinds(&whole[..end]), [1], "{end}");
        }
        assert_eq!(kinds(&[2, 0, 1, 0]), [] as [u16; 0]);
    }
}
