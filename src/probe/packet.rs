//! Encodes and decodes probes: requests and answers, sealed with the cluster's secret.

use std::net::{IpAddr, Ipv6Addr};

use super::{Keyring, Stamp};
use crate::model::path::Path;
use crate::model::probe_secret::Secret;

/// A probe from one daemon to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kind: PacketKind,
    /// The path of the request and of its answer.
    pub path: Path,
    /// Identifies the request; its answer has the same one.
    pub nonce: u64,
    /// The first address of the subnet of the sender, and of the receiver.
    pub from: IpAddr,
    pub to: IpAddr,
    /// None in packets of older daemons, which ignore it.
    pub stamp: Option<Stamp>,
}

#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) packet: Packet,
    /// The length of its payload, in bytes.
    pub(super) length: usize,
    pub(super) secret: Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Request,
    Answer,
}

/// Why bytes are no valid probe of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAProbe {
    #[error("it is too short")]
    Short,
    #[error("it is of another protocol or version")]
    Foreign,
    #[error("its seal is not of this cluster's secret")]
    Seal,
    #[error("its fields are invalid")]
    Fields,
}

/// Indexed by the code in a packet.
const CODES: [(PacketKind, Path); 4] = [
    (PacketKind::Request, Path::Direct),
    (PacketKind::Answer, Path::Direct),
    (PacketKind::Request, Path::Tunnel),
    (PacketKind::Answer, Path::Tunnel),
];
const MAGIC: [u8; 2] = *b"tw";
const VERSION: u8 = 1;
const BODY: usize = 44;
/// Marks a stamp after the body; older daemons pad with zeros.
const STAMPED: u8 = 1;
/// The length of a stamp with its mark, in bytes.
const STAMP: usize = 17;
/// The length of a packet without padding, in bytes.
pub const SHORTEST: usize = BODY + STAMP + Secret::SEAL;

impl Packet {
    /// The answer to this request, by the same path, without a stamp yet.
    #[must_use]
    pub const fn answered(self) -> Self {
        Self { kind: PacketKind::Answer, from: self.to, to: self.from, stamp: None, ..self }
    }

    /// Pads to `length` bytes, at least [`SHORTEST`]; the seal covers the padding.
    pub fn encode(&self, secret: &Secret, length: usize) -> Vec<u8> {
        let code =
            u8::from(self.kind == PacketKind::Answer) | u8::from(self.path == Path::Tunnel) << 1;
        let mut bytes = Vec::with_capacity(length.max(SHORTEST));
        bytes.extend(MAGIC);
        bytes.extend([VERSION, code]);
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(octets(self.from));
        bytes.extend(octets(self.to));
        bytes.extend(self.stamp.into_iter().flat_map(stamped));
        bytes.resize(length.max(SHORTEST) - Secret::SEAL, 0);
        let seal = secret.seal(&bytes);
        bytes.extend(seal.as_ref());
        bytes
    }

    pub fn decode(bytes: &[u8], secret: &Secret) -> Result<Self, NotAProbe> {
        Self::unseal(bytes, |sealed, seal| secret.has_sealed(sealed, seal).then_some(()))
            .map(|(packet, ())| packet)
    }

    /// The same, with any secret of `keyring`; returns also the secret of the seal.
    pub(super) fn open<'a>(
        bytes: &[u8],
        keyring: &'a Keyring,
    ) -> Result<(Self, &'a Secret), NotAProbe> {
        Self::unseal(bytes, |sealed, seal| keyring.secret_of(sealed, seal))
    }

    fn unseal<T>(
        bytes: &[u8],
        secret_of: impl FnOnce(&[u8], &[u8]) -> Option<T>,
    ) -> Result<(Self, T), NotAProbe> {
        let (sealed, seal) =
            bytes.split_last_chunk::<{ Secret::SEAL }>().ok_or(NotAProbe::Short)?;
        let (body, rest) = sealed.split_first_chunk::<BODY>().ok_or(NotAProbe::Short)?;
        if !body.starts_with(&MAGIC) || body.get(2) != Some(&VERSION) {
            return Err(NotAProbe::Foreign);
        }
        let secret = secret_of(sealed, seal).ok_or(NotAProbe::Seal)?;
        let packet = fields(body).ok_or(NotAProbe::Fields)?;
        Ok((Self { stamp: stamp(rest), ..packet }, secret))
    }
}

fn stamped(Stamp { session, count }: Stamp) -> Vec<u8> {
    [&[STAMPED][..], &session.to_be_bytes(), &count.to_be_bytes()].concat()
}

/// The stamp after the body; none if `rest` does not begin with one.
fn stamp(rest: &[u8]) -> Option<Stamp> {
    let (mark, rest) = rest.split_first()?;
    let (session, rest) = rest.split_first_chunk::<8>()?;
    let count = rest.first_chunk::<8>()?;
    let (session, count) = (u64::from_be_bytes(*session), u64::from_be_bytes(*count));
    (*mark == STAMPED).then_some(Stamp { session, count })
}

fn fields(body: &[u8; BODY]) -> Option<Packet> {
    let (_, rest) = body.split_at_checked(3)?;
    let (code, rest) = rest.split_first()?;
    let (nonce, rest) = rest.split_first_chunk::<8>()?;
    let (from, rest) = rest.split_first_chunk::<16>()?;
    let to = rest.first_chunk::<16>()?;
    let (kind, path) = *CODES.get(usize::from(*code))?;
    let nonce = u64::from_be_bytes(*nonce);
    let (from, to) = (address(*from), address(*to));
    let packet = Packet { kind, path, nonce, from, to, stamp: None };
    (packet.from.is_ipv4() == packet.to.is_ipv4()).then_some(packet)
}

/// IPv4 addresses are encoded as IPv4-mapped IPv6 addresses.
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
        // An IPv4-mapped IPv6 address would be decoded as IPv4.
        let v6 = any::<([u8; 15], [u8; 15])>().prop_map(|(a, b)| (disguised(a), disguised(b)));
        let kind = prop_oneof![Just(PacketKind::Request), Just(PacketKind::Answer)];
        let path = prop_oneof![Just(Path::Direct), Just(Path::Tunnel)];
        let stamp = proptest::option::of(any::<(u64, u64)>());
        let stamp = stamp.prop_map(|it| it.map(|(session, count)| Stamp { session, count }));
        (kind, path, any::<u64>(), prop_oneof![v4, v6], stamp).prop_map(
            |(kind, path, nonce, (from, to), stamp)| Packet { kind, path, nonce, from, to, stamp },
        )
    }

    fn disguised(rest: [u8; 15]) -> IpAddr {
        let mut octets = [0xfd; 16];
        octets[1..].copy_from_slice(&rest);
        octets.into()
    }

    fn request(stamp: Option<Stamp>) -> Packet {
        Packet {
            kind: PacketKind::Request,
            path: Path::Tunnel,
            nonce: 0x0102_0304_0506_0708,
            from: "10.244.1.0".parse().unwrap(),
            to: "10.244.2.0".parse().unwrap(),
            stamp,
        }
    }

    fn shown(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let stamp = Stamp { session: 0x1112_1314_1516_1718, count: 9 };
        let bytes = request(Some(stamp)).encode(&secret(), 0);
        let mapped = "00000000000000000000ffff";
        let body = format!("747701020102030405060708{mapped}0af40100{mapped}0af40200");
        assert_eq!(shown(&bytes[..BODY]), body);
        assert_eq!(shown(&bytes[BODY..BODY + STAMP]), "0111121314151617180000000000000009");
        assert_eq!(bytes.len(), SHORTEST);
    }

    /// An older daemon reads the body, and ignores the rest as padding.
    #[test]
    fn packets_of_older_daemons_are_read_and_have_no_stamp() {
        let stamped = request(Some(Stamp { session: 1, count: 1 })).encode(&secret(), 0);
        for padding in [0, 5, STAMP, 1300] {
            let mut old = stamped[..BODY].to_vec();
            old.resize(BODY + padding, 0);
            old.extend(secret().seal(&old.clone()).as_ref());
            assert_eq!(Packet::decode(&old, &secret()), Ok(request(None)), "{padding}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(packet in any_packet(), length in 0_usize..9000) {
            let bytes = packet.encode(&secret(), length);
            prop_assert_eq!(bytes.len(), length.max(SHORTEST));
            prop_assert_eq!(Packet::decode(&bytes, &secret()), Ok(packet));
        }

        #[test]
        fn a_changed_byte_is_rejected(
            packet in any_packet(), length in 0_usize..300, at in 0_usize..300, bits in 1_u8..=255
        ) {
            let mut bytes = packet.encode(&secret(), length);
            let at = at % bytes.len();
            bytes[at] ^= bits;
            prop_assert!(Packet::decode(&bytes, &secret()).is_err());
        }

        #[test]
        fn a_truncated_or_extended_packet_is_rejected(packet in any_packet(), length in 0_usize..300) {
            let bytes = packet.encode(&secret(), 200);
            let mut other = bytes.clone();
            other.resize(length, 0);
            prop_assume!(other.len() != bytes.len());
            prop_assert!(Packet::decode(&other, &secret()).is_err());
        }

        #[test]
        fn another_secret_does_not_open_a_packet(packet in any_packet()) {
            let bytes = packet.encode(&Secret::new(&[8; 32]), 0);
            prop_assert_eq!(Packet::decode(&bytes, &secret()), Err(NotAProbe::Seal));
        }

        #[test]
        fn random_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert!(Packet::decode(&bytes, &secret()).is_err());
        }

        #[test]
        fn sealed_random_bytes_are_rejected_or_decoded(body in proptest::array::uniform32(any::<u8>())) {
            let mut bytes = [b"tw\x01".as_slice(), &body, &[0; 9], &body].concat();
            bytes.extend(secret().seal(&bytes).as_ref().to_vec());
            if let Ok(packet) = Packet::decode(&bytes, &secret()) {
                prop_assert_eq!(packet.from.is_ipv4(), packet.to.is_ipv4());
            }
        }
    }
}
