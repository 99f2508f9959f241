//! A netlink message in the making.

use std::array;
use std::net::IpAddr;

use nix::libc::{NLA_F_NESTED, NLM_F_REQUEST};

/// Of the header in front of every message, in bytes.
pub(crate) const HEADER: usize = 16;

/// Where the header has its flags and its sequence number.
const FLAGS: usize = 6;
const SEQUENCE: usize = 8;

/// A request: a header, the fixed part of its family, and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// `flags` in addition to that of every request.
    pub fn new(kind: u16, flags: i32, fixed: &[u8]) -> Self {
        let flags = word(NLM_F_REQUEST | flags);
        let mut bytes = Vec::with_capacity(HEADER + fixed.len());
        bytes.extend([0; 4]);
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        Self { bytes }.padded()
    }

    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.padded()
    }

    /// As a text that ends with a zero.
    pub fn text(self, kind: u16, value: &str) -> Self {
        let ended: Vec<u8> = value.bytes().chain([0]).collect();
        self.bytes(kind, &ended)
    }

    pub fn u8(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub fn ip(self, kind: u16, value: IpAddr) -> Self {
        self.bytes(kind, &octets(value))
    }

    /// In the order of the network, as nftables wants its numbers.
    pub fn be32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// An attribute that holds what `fill` adds.
    pub fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | word(NLA_F_NESTED)).to_ne_bytes());
        let mut filled = fill(self);
        let length = u16::try_from(filled.bytes.len() - start).unwrap_or(u16::MAX);
        filled.put(start, &length.to_ne_bytes());
        filled
    }

    /// A part of fixed form in front of nested attributes.
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.padded()
    }

    /// Adds `fill`'s part if there is a `value` for it.
    pub fn with<T>(self, value: Option<T>, fill: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => fill(self, value),
            None => self,
        }
    }

    /// What goes over the wire as number `sequence`, with `flags` added.
    pub fn finish(mut self, sequence: u32, flags: i32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.put(0, &length.to_ne_bytes());
        self.put(SEQUENCE, &sequence.to_ne_bytes());
        let added = word(flags).to_ne_bytes();
        for (place, bits) in self.bytes.iter_mut().skip(FLAGS).zip(added) {
            *place |= bits;
        }
        self.bytes
    }

    fn put(&mut self, offset: usize, value: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(offset).zip(value) {
            *place = *byte;
        }
    }

    fn padded(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }
}

/// The fixed part of a family: what is known of it, and zeros.
pub(crate) fn fixed<const LENGTH: usize>(known: &[u8]) -> [u8; LENGTH] {
    array::from_fn(|index| known.get(index).copied().unwrap_or_default())
}

/// For numbers of the C library that are small, whatever type they have there.
pub(crate) fn word(number: i32) -> u16 {
    u16::try_from(number).unwrap_or_default()
}

pub(crate) fn byte(number: i32) -> u8 {
    u8::try_from(number).unwrap_or_default()
}

/// In the order of the network.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;

    #[test]
    fn nested_attributes_are_read_back() {
        let message = Message::new(16, 0, &[0; 16])
            .text(3, "cni0")
            .nest(18, |info| info.text(1, "bridge").nest(2, |data| data.u8(7, 1)).u32(9, 5));
        let bytes = message.finish(1, 0);
        let all = Attributes::of(&bytes[HEADER + 16..]);
        assert_eq!(all.text(3), Some("cni0"));
        let info = all.nested(18).unwrap();
        assert_eq!(info.text(1), Some("bridge"));
        assert_eq!(info.nested(2).unwrap().u8(7), Some(1));
        assert_eq!(info.u32(9), Some(5));
    }

    #[test]
    fn length_sequence_and_flags_are_filled_in_at_the_end() {
        let bytes = Message::new(16, 0, &[0; 5]).finish(7, 4);
        assert_eq!(bytes.len(), HEADER + 8);
        assert_eq!(bytes[..4], 24_u32.to_ne_bytes());
        assert_eq!(bytes[FLAGS..FLAGS + 2], 5_u16.to_ne_bytes());
        assert_eq!(bytes[SEQUENCE..SEQUENCE + 4], 7_u32.to_ne_bytes());
    }
}
