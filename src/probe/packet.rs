//! Encodes and decodes packets between daemons: probes, and questions about other packets. All are
//! sealed with the cluster's secret.

use std::net::{IpAddr, Ipv6Addr};

use super::{Keyring, Stamp};
use crate::model::path::Path;
use crate::model::probe_secret::Secret;

/// A packet from one daemon to another.
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
    /// Whether the sender sends packets directly to the receiver. A sender that does not answers no
    /// direct request.
    pub takes_direct: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    pub(super) packet: Packet,
    /// The public IP to send it to if it takes the direct path.
    pub(super) gateway: IpAddr,
    /// What follows its stamp; empty in probes.
    pub(super) content: Vec<u8>,
    /// The least length of its payload, in bytes.
    pub(super) length: usize,
    pub(super) secret: Secret,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Request,
    Answer,
    /// What happens to a packet on the receiver's node. Older daemons reject this kind.
    TraceRequest,
    TraceAnswer,
}

/// Indexed by the code in a packet.
const CODES: [(PacketKind, Path); 8] = [
    (PacketKind::Request, Path::Direct),
    (PacketKind::Answer, Path::Direct),
    (PacketKind::Request, Path::Tunnel),
    (PacketKind::Answer, Path::Tunnel),
    (PacketKind::TraceRequest, Path::Direct),
    (PacketKind::TraceAnswer, Path::Direct),
    (PacketKind::TraceRequest, Path::Tunnel),
    (PacketKind::TraceAnswer, Path::Tunnel),
];
const MAGIC: [u8; 2] = *b"tw";
const VERSION: u8 = 1;
const BODY: usize = 44;
/// Marks a stamp after the body; older daemons pad with zeros.
const STAMPED: u8 = 1;
/// Marks the stamp of a sender that sends nothing directly. To older daemons, this is padding.
const STAMPED_TUNNEL_ONLY: u8 = 2;
/// The length of a stamp with its mark, in bytes.
const STAMP: usize = 17;
/// The length of a packet without padding, in bytes.
pub const SHORTEST: usize = BODY + STAMP + Secret::SEAL;

impl Packet {
    /// A packet without a stamp yet, of a sender that sends packets directly, too.
    pub const fn new(kind: PacketKind, path: Path, nonce: u64, from: IpAddr, to: IpAddr) -> Self {
        Self { kind, path, nonce, from, to, stamp: None, takes_direct: true }
    }

    /// The answer to this request, by the same path, without a stamp yet.
    #[must_use]
    pub const fn answered(self, takes_direct: bool) -> Self {
        let (kind, from, to) = (self.kind.answer(), self.to, self.from);
        Self { kind, from, to, stamp: None, takes_direct, ..self }
    }

    /// Pads to `length` bytes, at least [`SHORTEST`]; the seal covers the padding. A packet with
    /// `content`, which follows the stamp, must have one.
    pub fn encode(&self, content: &[u8], secret: &Secret, length: usize) -> Vec<u8> {
        let length = length.max(SHORTEST + content.len());
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, self.kind.code() | u8::from(self.path == Path::Tunnel) << 1]);
        bytes.extend(self.nonce.to_be_bytes());
        bytes.extend(octets(self.from));
        bytes.extend(octets(self.to));
        let mark = if self.takes_direct { STAMPED } else { STAMPED_TUNNEL_ONLY };
        bytes.extend(self.stamp.into_iter().flat_map(|stamp| stamped(mark, stamp)));
        bytes.extend(content);
        bytes.resize(length - Secret::SEAL, 0);
        let seal = secret.seal(&bytes);
        bytes.extend(seal.as_ref());
        bytes
    }

    /// The packet in `bytes`, and the secret of `keyring` that it is sealed with; none if it is no
    /// probe of this cluster.
    pub fn open<'a>(bytes: &[u8], keyring: &'a Keyring) -> Option<(Self, &'a Secret)> {
        let (sealed, seal) = bytes.split_last_chunk::<{ Secret::SEAL }>()?;
        let (body, rest) = sealed.split_first_chunk::<BODY>()?;
        if !body.starts_with(&MAGIC) || body.get(2) != Some(&VERSION) {
            return None;
        }
        let secret = keyring.secret_of(sealed, seal)?;
        let (stamp, takes_direct) = stamp(rest).unzip();
        let takes_direct = takes_direct.unwrap_or(true);
        let packet = Self { stamp, takes_direct, ..fields(body)? };
        // Only probes were ever sent without a stamp.
        (stamp.is_some() || !packet.kind.is_of_trace()).then_some((packet, secret))
    }

    /// What follows the stamp in a packet that was opened, padding included.
    pub fn content(bytes: &[u8]) -> &[u8] {
        bytes.get(BODY + STAMP..bytes.len().saturating_sub(Secret::SEAL)).unwrap_or_default()
    }
}

impl PacketKind {
    /// The kind of the answer to this one.
    const fn answer(self) -> Self {
        match self {
            Self::Request | Self::Answer => Self::Answer,
            Self::TraceRequest | Self::TraceAnswer => Self::TraceAnswer,
        }
    }

    /// Its bits in the code of a packet.
    const fn code(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Answer => 1,
            Self::TraceRequest => 4,
            Self::TraceAnswer => 5,
        }
    }

    pub(super) const fn is_of_trace(self) -> bool {
        matches!(self, Self::TraceRequest | Self::TraceAnswer)
    }
}

fn stamped(mark: u8, Stamp { session, count }: Stamp) -> Vec<u8> {
    [&[mark][..], &session.to_be_bytes(), &count.to_be_bytes()].concat()
}

/// The stamp after the body, and whether its sender takes direct packets; none if `rest` does not
/// begin with a stamp.
fn stamp(rest: &[u8]) -> Option<(Stamp, bool)> {
    let (mark, rest) = rest.split_first()?;
    let (session, rest) = rest.split_first_chunk::<8>()?;
    let count = rest.first_chunk::<8>()?;
    let (session, count) = (u64::from_be_bytes(*session), u64::from_be_bytes(*count));
    let takes_direct = match *mark {
        STAMPED => true,
        STAMPED_TUNNEL_ONLY => false,
        _ => return None,
    };
    Some((Stamp { session, count }, takes_direct))
}

fn fields(body: &[u8; BODY]) -> Option<Packet> {
    let (_, rest) = body.split_at_checked(3)?;
    let (number, rest) = rest.split_first()?;
    let (nonce, rest) = rest.split_first_chunk::<8>()?;
    let (from, rest) = rest.split_first_chunk::<16>()?;
    let to = rest.first_chunk::<16>()?;
    let (kind, path) = decode(&CODES, *number)?;
    let nonce = u64::from_be_bytes(*nonce);
    let (from, to) = (address(*from), address(*to));
    let packet = Packet::new(kind, path, nonce, from, to);
    (packet.from.is_ipv4() == packet.to.is_ipv4()).then_some(packet)
}

/// The place of `value` in `codes`.
pub(super) fn code<T: PartialEq>(codes: &[T], value: &T) -> u8 {
    let code = codes.iter().position(|known| known == value);
    code.and_then(|code| code.try_into().ok()).unwrap_or(u8::MAX)
}

pub(super) fn decode<T: Copy>(codes: &[T], code: u8) -> Option<T> {
    codes.get(usize::from(code)).copied()
}

/// IPv4 addresses are encoded as IPv4-mapped IPv6 addresses.
pub(super) const fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

pub(super) fn address(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::probe::hex;

    fn secret() -> Secret {
        Secret::new(&[7; 32])
    }

    fn opened(bytes: &[u8]) -> Option<Packet> {
        Some(Packet::open(bytes, &Keyring::new(secret()))?.0)
    }

    fn any_packet() -> impl Strategy<Value = Packet> {
        let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
        // An IPv4-mapped IPv6 address would be decoded as IPv4.
        let v6 = any::<([u8; 15], [u8; 15])>().prop_map(|(a, b)| (disguised(a), disguised(b)));
        let kind = prop_oneof![
            Just(PacketKind::Request),
            Just(PacketKind::Answer),
            Just(PacketKind::TraceRequest),
            Just(PacketKind::TraceAnswer),
        ];
        let path = prop_oneof![Just(Path::Direct), Just(Path::Tunnel)];
        let stamp = proptest::option::of(any::<(u64, u64)>());
        let stamp = stamp.prop_map(|it| it.map(|(session, count)| Stamp { session, count }));
        let rest = (stamp, any::<bool>());
        (kind, path, any::<u64>(), prop_oneof![v4, v6], rest).prop_map(
            |(kind, path, nonce, (from, to), (stamp, takes_direct))| {
                let of_trace = kind.is_of_trace().then_some(Stamp { session: 3, count: 4 });
                let stamp = stamp.or(of_trace);
                // Only a stamp has the mark.
                let takes_direct = takes_direct || stamp.is_none();
                Packet { kind, path, nonce, from, to, stamp, takes_direct }
            },
        )
    }

    fn disguised(rest: [u8; 15]) -> IpAddr {
        let mut octets = [0xfd; 16];
        octets[1..].copy_from_slice(&rest);
        octets.into()
    }

    fn request(stamp: Option<Stamp>) -> Packet {
        let [from, to] = ["10.244.1.0", "10.244.2.0"].map(|text| text.parse().unwrap());
        let nonce = 0x0102_0304_0506_0708;
        Packet { stamp, ..Packet::new(PacketKind::Request, Path::Tunnel, nonce, from, to) }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let stamp = Stamp { session: 0x1112_1314_1516_1718, count: 9 };
        let bytes = request(Some(stamp)).encode(&[], &secret(), 0);
        let mapped = "00000000000000000000ffff";
        let body = format!("747701020102030405060708{mapped}0af40100{mapped}0af40200");
        assert_eq!(hex(&bytes[..BODY]), body);
        assert_eq!(hex(&bytes[BODY..BODY + STAMP]), "0111121314151617180000000000000009");
        assert_eq!(bytes.len(), SHORTEST);
    }

    #[test]
    fn the_bytes_of_a_question_about_a_packet_are_those_of_a_probe_with_content() {
        let stamp = Some(Stamp { session: 0x1112_1314_1516_1718, count: 9 });
        let packet = Packet { kind: PacketKind::TraceRequest, ..request(stamp) };
        let bytes = packet.encode(b"content", &secret(), 0);
        let mapped = "00000000000000000000ffff";
        let body = format!("747701060102030405060708{mapped}0af40100{mapped}0af40200");
        assert_eq!(hex(&bytes[..BODY]), body);
        assert_eq!(hex(&bytes[BODY..BODY + STAMP]), "0111121314151617180000000000000009");
        assert_eq!(Packet::content(&bytes), b"content");
        assert_eq!(bytes.len(), SHORTEST + 7);
        assert_eq!(opened(&bytes), Some(packet));
        let answer = packet.answered(true);
        assert_eq!((answer.kind, answer.nonce), (PacketKind::TraceAnswer, packet.nonce));
        let answer = Packet { stamp, ..answer }.encode(b"", &secret(), 0);
        assert_eq!((answer[3], Packet::content(&answer)), (7, &b""[..]));
    }

    /// A question without a stamp could be sent again and again.
    #[test]
    fn only_probes_may_lack_a_stamp() {
        for kind in [PacketKind::TraceRequest, PacketKind::TraceAnswer] {
            let packet = Packet { kind, ..request(None) };
            assert_eq!(opened(&packet.encode(&[], &secret(), 0)), None);
        }
    }

    /// As daemons do that know only the first four.
    #[test]
    fn unknown_kinds_are_rejected() {
        let bytes = request(Some(Stamp { session: 1, count: 1 })).encode(&[], &secret(), 0);
        for code in 0..=u8::MAX {
            let mut other = bytes[..bytes.len() - Secret::SEAL].to_vec();
            other[3] = code;
            other.extend(secret().seal(&other.clone()).as_ref());
            assert_eq!(opened(&other).is_some(), usize::from(code) < CODES.len(), "{code}");
        }
    }

    /// An older daemon reads the body, and ignores the rest as padding.
    #[test]
    fn packets_of_older_daemons_are_read_and_have_no_stamp() {
        let stamped = request(Some(Stamp { session: 1, count: 1 })).encode(&[], &secret(), 0);
        for padding in [0, 5, STAMP, 1300] {
            let mut old = stamped[..BODY].to_vec();
            old.resize(BODY + padding, 0);
            old.extend(secret().seal(&old.clone()).as_ref());
            assert_eq!(opened(&old), Some(request(None)), "{padding}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(packet in any_packet(), length in 0_usize..9000) {
            let bytes = packet.encode(&[], &secret(), length);
            prop_assert_eq!(bytes.len(), length.max(SHORTEST));
            prop_assert_eq!(opened(&bytes), Some(packet));
        }

        #[test]
        fn a_changed_byte_is_rejected(
            packet in any_packet(), length in 0_usize..300, at in 0_usize..300, bits in 1_u8..=255
        ) {
            let mut bytes = packet.encode(&[], &secret(), length);
            let at = at % bytes.len();
            bytes[at] ^= bits;
            prop_assert_eq!(opened(&bytes), None);
        }

        #[test]
        fn a_truncated_or_extended_packet_is_rejected(packet in any_packet(), length in 0_usize..300) {
            let bytes = packet.encode(&[], &secret(), 200);
            let mut other = bytes.clone();
            other.resize(length, 0);
            prop_assume!(other.len() != bytes.len());
            prop_assert_eq!(opened(&other), None);
        }

        #[test]
        fn another_secret_does_not_open_a_packet(packet in any_packet()) {
            let bytes = packet.encode(&[], &Secret::new(&[8; 32]), 0);
            prop_assert_eq!(opened(&bytes), None);
        }

        #[test]
        fn random_bytes_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(opened(&bytes), None);
        }

        #[test]
        fn sealed_random_bytes_are_rejected_or_decoded(body in proptest::array::uniform32(any::<u8>())) {
            let mut bytes = [b"tw\x01".as_slice(), &body, &[0; 9], &body].concat();
            bytes.extend(secret().seal(&bytes).as_ref().to_vec());
            if let Some(packet) = opened(&bytes) {
                prop_assert_eq!(packet.from.is_ipv4(), packet.to.is_ipv4());
            }
        }
    }
}
