//! Builds a UDP datagram or an ICMP echo request with its IP header, in the same form as a pod's
//! packet on the wire, and reads echo replies.

use std::net::IpAddr;

use tweed_netlink::octets;

use crate::model::prefix::Family;

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Of the header of an echo: type, code, checksum, identifier and sequence number.
const ECHO_HEADER: usize = 8;
const NONCE: usize = 8;
const HOP_LIMIT: u8 = 64;
const UDP_HEADER: usize = 8;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The length of the IP and UDP headers, in bytes.
pub const fn headers(family: Family) -> usize {
    UDP_HEADER + ip_header_length(family)
}

/// Without options.
const fn ip_header_length(family: Family) -> usize {
    match family {
        Family::V4 => 20,
        Family::V6 => 40,
    }
}

/// `payload` from and to `port`, with fragmentation forbidden; none if the addresses are of
/// different families, or the payload is too long. The kernel sets the checksum of the IPv4 header.
pub fn datagram(from: IpAddr, to: IpAddr, port: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let mut packet = ip_header(from, to, UDP, length)?;
    let ports = [port, port, length].map(u16::to_be_bytes);
    let pseudo = pseudo_header(from, to, UDP, length);
    let sum = checksum([pseudo.as_slice(), ports.as_flattened(), &[0, 0], payload]);
    packet.extend(ports.as_flattened());
    packet.extend(sum.to_be_bytes());
    packet.extend(payload);
    Some(packet)
}

/// An ICMP echo request whose data is `nonce`, then zeros up to `size` bytes with the IP header;
/// none if the addresses are of different families.
pub(super) fn echo_request(from: IpAddr, to: IpAddr, nonce: u64, size: u16) -> Option<Vec<u8>> {
    let family = Family::of(to);
    let (protocol, kind) = match family {
        Family::V4 => (ICMP, 8),
        Family::V6 => (ICMPV6, 128),
    };
    let padding = usize::from(size).saturating_sub(ip_header_length(family) + ECHO_HEADER + NONCE);
    let length = u16::try_from(ECHO_HEADER + NONCE + padding).ok()?;
    let mut packet = ip_header(from, to, protocol, length)?;
    // Only ICMPv6 covers the addresses by its checksum.
    let pseudo = match family {
        Family::V4 => Vec::new(),
        Family::V6 => pseudo_header(from, to, protocol, length),
    };
    let nonce = nonce.to_be_bytes();
    let sum = checksum([pseudo.as_slice(), &[kind, 0], &[0; 6], &nonce]);
    packet.extend([kind, 0]);
    packet.extend(sum.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(nonce);
    packet.resize(packet.len() + padding, 0);
    Some(packet)
}

/// The nonce in an echo reply, as a raw socket receives it: with IPv4, after the IP header.
pub(super) fn echo_reply(family: Family, bytes: &[u8]) -> Option<u64> {
    let (message, kind) = match family {
        Family::V4 => (bytes.get(usize::from(bytes.first()? & 0xf) * 4..)?, 0),
        Family::V6 => (bytes, 129),
    };
    let is_reply = message.get(..2)? == [kind, 0];
    let nonce = message.get(ECHO_HEADER..)?.first_chunk()?;
    is_reply.then(|| u64::from_be_bytes(*nonce))
}

/// The header of a packet of `length` bytes after it, with fragmentation forbidden.
fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, length: u16) -> Option<Vec<u8>> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let length = length.checked_add(20)?.to_be_bytes();
            let flags = DO_NOT_FRAGMENT.to_be_bytes();
            let header = [[0x45, 0], length, [0, 0], flags, [HOP_LIMIT, protocol], [0, 0]];
            Some([header.as_flattened(), &from.octets(), &to.octets()].concat())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = [[0x60, 0], [0, 0], length.to_be_bytes(), [protocol, HOP_LIMIT]];
            Some([header.as_flattened(), &from.octets(), &to.octets()].concat())
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    }
}

/// What checksums cover in addition to the packet itself.
fn pseudo_header(from: IpAddr, to: IpAddr, protocol: u8, length: u16) -> Vec<u8> {
    [octets(from), octets(to), vec![0, protocol], length.to_be_bytes().to_vec()].concat()
}

/// The checksum of UDP and ICMP of `parts`, each of even length except the last. Never zero, which in UDP means
/// that there is no checksum.
fn checksum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let word = |pair: &[u8]| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    };
    let sum: u32 = parts.into_iter().flat_map(|part| part.chunks(2)).map(word).sum();
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    match u16::try_from(twice).map(|sum| !sum) {
        Ok(0) | Err(_) => 0xffff,
        Ok(sum) => sum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::hex;

    fn shown(from: &str, to: &str, payload: &[u8]) -> String {
        let packet = datagram(from.parse().unwrap(), to.parse().unwrap(), 8475, payload).unwrap();
        hex(&packet)
    }

    #[test]
    fn a_datagram_of_ipv4_is_never_fragmented() {
        let header = "4500001f0000400040110000".to_owned() + "0af40100" + "0af40200";
        let text = shown("10.244.1.0", "10.244.2.0", b"abc");
        assert_eq!(text, header + "211b211b000b" + "e057" + "616263");
    }

    #[test]
    fn a_datagram_of_ipv6_has_a_checksum() {
        let header = "60000000000b1140".to_owned()
            + "fd440001000000000000000000000000"
            + "fd440002000000000000000000000000";
        let text = shown("fd44:1::", "fd44:2::", b"abc");
        assert_eq!(text, header + "211b211b000b" + "feb2" + "616263");
    }

    #[test]
    fn an_echo_request_has_the_checksum_of_its_family() {
        let shown = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|text| text.parse().unwrap());
            let packet = echo_request(from, to, 0x0102, 0).unwrap();
            hex(&packet)
        };
        let ipv4 = "45000024000040004001".to_owned() + "0000" + "0af40100" + "0af40200";
        let echo = "0800f6fd00000000".to_owned() + "0000000000000102";
        assert_eq!(shown("10.244.1.0", "10.244.2.0"), ipv4 + &echo);
        let ipv6 = shown("fd44:1::", "fd44:2::");
        assert_eq!((&ipv6[..16], &ipv6[80..84]), ("6000000000103a40", "8000"));
    }

    #[test]
    fn an_echo_request_has_the_size_that_is_asked_for() {
        for (from, to, family) in
            [("10.244.1.5", "10.244.2.0", Family::V4), ("fd44:1::5", "fd44:2::", Family::V6)]
        {
            let [from, to] = [from, to].map(|text| text.parse().unwrap());
            let packet = echo_request(from, to, 0x0102, 1450).unwrap();
            assert_eq!(packet.len(), 1450);
            let header = ip_header_length(family);
            let length = u16::from_be_bytes(match family {
                Family::V4 => [packet[2], packet[3]],
                Family::V6 => [packet[4], packet[5]],
            });
            let counted = if family == Family::V4 { 1450 } else { 1450 - 40 };
            assert_eq!(length, counted);
            // Zeros change no checksum; of IPv6, the length does.
            let smallest = echo_request(from, to, 0x0102, 0).unwrap();
            let sums = [&packet, &smallest].map(|it| [it[header + 2], it[header + 3]]);
            assert_eq!(sums[0] == sums[1], family == Family::V4);
        }
    }

    #[test]
    fn only_an_echo_reply_with_a_nonce_is_one() {
        let nonce = 0x0102_u64.to_be_bytes();
        let v4 = |kind| [&[0x46; 1][..], &[0; 23], &[kind, 0, 1, 2, 3, 4, 5, 6], &nonce].concat();
        assert_eq!(echo_reply(Family::V4, &v4(0)), Some(0x0102), "with options of IPv4");
        assert_eq!(echo_reply(Family::V4, &v4(8)), None, "a request");
        assert_eq!(echo_reply(Family::V4, &v4(0)[..39]), None, "cut");
        assert_eq!(echo_reply(Family::V4, &[]), None);
        let v6 = [&[129, 0, 1, 2, 3, 4, 5, 6][..], &nonce, &[0; 9]].concat();
        assert_eq!(echo_reply(Family::V6, &v6), Some(0x0102), "with padding");
    }

    #[test]
    fn addresses_of_different_families_make_no_datagram() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(datagram(v4, v6, 1, b""), None);
        assert_eq!(datagram(v4, v4, 1, &vec![0; 65_536]), None);
    }
}
