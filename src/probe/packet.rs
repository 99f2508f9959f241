//! The bytes of a probe: a question or its answer, sealed with the cluster's secret.

use std::net::{IpAddr, Ipv6Addr};

use super::Secret;
use crate::backend::Path;

/// What travels between two daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kind: Kind,
    /// The way it goes, and its answer with it.
    pub path: Path,
    /// Of the question, repeated by its answer.
    pub nonce: u64,
    /// The first address of the sender's subnet.
    pub from: IpAddr,
    /// The first address of the receiver's subnet.
    pub to: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Question,
    Answer,
}

/// Why bytes are no probe of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it is too short")]
    Short,
    #[error("it is of another protocol or version")]
    Foreign,
    #[error("its seal is not of this cluster's secret")]
    Seal,
    #[error("its fields make no sense")]
    Fields,
}

const MAGIC: [u8; 2] = *b"tw";
const VERSION: u8 = 1;
const BODY: usize = 44;
/// In bytes, with nothing but what must be there.
pub const SHORTEST: usize = BODY + Secret::SEAL;

impl Packet {
    /// The answer to this question, by the same way.
    #[must_use]
    pub const fn answered(self) -> Self {
        Self { kind: Kind::Answer, from: self.to, to: self.from, ..self }
    }

    /// `length` bytes, but never fewer than [`SHORTEST`]; the seal covers the padding too.
    pub fn encode(&self, secret: &Secret, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length.max(SHORTEST));
        bytes.extend(MAGIC);
        bytes.extend([VERSION, code(self.kind, self.path)]);
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(octets(self.from));
        bytes.extend(octets(self.to));
        bytes.resize(length.max(SHORTEST) - Secret::SEAL, 0);
        let seal = secret.seal(&bytes);
        bytes.extend(seal.as_ref());
        bytes
    }

    pub fn decode(bytes: &[u8], secret: &Secret) -> Result<Self, Malformed> {
        let (sealed, seal) =
            bytes.split_last_chunk::<{ Secret::SEAL }>().ok_or(Malformed::Short)?;
        let body = sealed.first_chunk::<BODY>().ok_or(Malformed::Short)?;
        if !body.starts_with(&MAGIC) || body.get(2) != Some(&VERSION) {
            return Err(Malformed::Foreign);
        }
        if !secret.has_sealed(sealed, seal) {
            return Err(Malformed::Seal);
        }
        fields(body).ok_or(Malformed::Fields)
    }
}

fn fields(body: &[u8; BODY]) -> Option<Packet> {
    let (_, rest) = body.split_at_checked(3)?;
    let (code, rest) = rest.split_first()?;
    let (nonce, rest) = rest.split_first_chunk::<8>()?;
    let (from, rest) = rest.split_first_chunk::<16>()?;
    let to = rest.first_chunk::<16>()?;
    let (kind, path) = decoded(*code)?;
    let nonce = u64::from_be_bytes(*nonce);
    let packet = Packet { kind, path, nonce, from: address(*from), to: address(*to) };
    (packet.from.is_ipv4() == packet.to.is_ipv4()).then_some(packet)
}

const fn code(kind: Kind, path: Path) -> u8 {
    match (kind, path) {
        (Kind::Question, Path::Direct) => 0,
        (Kind::Answer, Path::Direct) => 1,
        (Kind::Question, Path::Tunnel) => 2,
        (Kind::Answer, Path::Tunnel) => 3,
    }
}

const fn decoded(code: u8) -> Option<(Kind, Path)> {
    match code {
        0 => Some((Kind::Question, Path::Direct)),
        1 => Some((Kind::Answer, Path::Direct)),
        2 => Some((Kind::Question, Path::Tunnel)),
        3 => Some((Kind::Answer, Path::Tunnel)),
        _ => None,
    }
}

/// IPv4 addresses travel in the form that IPv6 has for them.
const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret() -> Secret {
        Secret::new(&[7; 32])
    }

    fn any_packet() -> impl Strategy<Value = Packet> {
        let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
        // An address of IPv6 that is one of IPv4 in disguise would be read as the latter.
        let v6 = any::<([u8; 15], [u8; 15])>().prop_map(|(a, b)| (disguised(a), disguised(b)));
        let kind = prop_oneof![Just(Kind::Question), Just(Kind::Answer)];
        let path = prop_oneof![Just(Path::Direct), Just(Path::Tunnel)];
        (kind, path, any::<u64>(), prop_oneof![v4, v6]).prop_map(|(kind, path, nonce, ends)| {
            Packet { kind, path, nonce, from: ends.0, to: ends.1 }
        })
    }

    fn disguised(rest: [u8; 15]) -> IpAddr {
        let mut octets = [0xfd; 16];
        octets[1..].copy_from_slice(&rest);
        octets.into()
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let packet = Packet {
            kind: Kind::Question,
            path: Path::Tunnel,
            nonce: 0x0102_0304_0506_0708,
            from: "10.244.1.0".parse().unwrap(),
            to: "10.244.2.0".parse().unwrap(),
        };
        let bytes = packet.encode(&secret(), 0);
        let shown = |text: String, byte: &u8| text + &format!("{byte:02x}");
        let shown = bytes[..BODY].iter().fold(String::new(), shown);
        let mapped = "00000000000000000000ffff";
        assert_eq!(shown, format!("747701020102030405060708{mapped}0af40100{mapped}0af40200"));
        assert_eq!(bytes.len(), SHORTEST);
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(packet in any_packet(), length in 0_usize..9000) {
            let bytes = packet.encode(&secret(), length);
            prop_assert_eq!(bytes.len(), length.max(SHORTEST));
            prop_assert_eq!(Packet::decode(&bytes, &secret()), Ok(packet));
        }

        #[test]
        fn a_changed_byte_is_noticed(
            packet in any_packet(), length in 0_usize..300, at in 0_usize..300, bits in 1_u8..=255
        ) {
            let mut bytes = packet.encode(&secret(), length);
            let at = at % bytes.len();
            bytes[at] ^= bits;
            prop_assert!(Packet::decode(&bytes, &secret()).is_err());
        }

        #[test]
        fn a_cut_or_grown_packet_is_noticed(packet in any_packet(), length in 0_usize..300) {
            let bytes = packet.encode(&secret(), 200);
            let mut other = bytes.clone();
            other.resize(length, 0);
            prop_assume!(other.len() != bytes.len());
            prop_assert!(Packet::decode(&other, &secret()).is_err());
        }

        #[test]
        fn another_secret_opens_nothing(packet in any_packet()) {
            let bytes = packet.encode(&Secret::new(&[8; 32]), 0);
            prop_assert_eq!(Packet::decode(&bytes, &secret()), Err(Malformed::Seal));
        }

        #[test]
        fn hostile_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(Packet::decode(&bytes, &secret()).is_err());
        }

        #[test]
        fn sealed_nonsense_is_refused_or_read(body in proptest::array::uniform32(any::<u8>())) {
            let mut bytes = [b"tw\x01".as_slice(), &body, &[0; 9]].concat();
            bytes.extend(secret().seal(&bytes).as_ref().to_vec());
            if let Ok(packet) = Packet::decode(&bytes, &secret()) {
                prop_assert_eq!(packet.from.is_ipv4(), packet.to.is_ipv4());
            }
        }
    }
}
