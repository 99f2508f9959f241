//! Builds a UDP datagram with its IP header, in the same form as a pod's packet on the wire.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::prefix::Family;

const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;
const UDP_HEADER: usize = 8;
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The length of the IP and UDP headers, in bytes.
pub const fn headers(family: Family) -> usize {
    UDP_HEADER
        + match family {
            Family::V4 => 20,
            Family::V6 => 40,
        }
}

/// `payload` from and to `port`, with fragmentation forbidden; none if the addresses are of
/// different families, or the payload is too long. The kernel sets the checksum of the IPv4 header.
pub fn datagram(from: IpAddr, to: IpAddr, port: u16, payload: &[u8]) -> Option<Vec<u8>> {
    let mut packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ipv4(from, to, payload.len())?,
        (IpAddr::V6(from), IpAddr::V6(to)) => ipv6(from, to, payload.len())?,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let length = u16::try_from(UDP_HEADER + payload.len()).ok()?;
    let ports = [port, port, length].map(u16::to_be_bytes);
    let pseudo = [octets(from), octets(to), vec![0, UDP], length.to_be_bytes().to_vec()].concat();
    let sum = checksum([pseudo.as_slice(), ports.as_flattened(), &[0, 0], payload]);
    packet.extend(ports.as_flattened());
    packet.extend(sum.to_be_bytes());
    packet.extend(payload);
    Some(packet)
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> Option<Vec<u8>> {
    let length = u16::try_from(headers(Family::V4) + payload).ok()?.to_be_bytes();
    let flags = DO_NOT_FRAGMENT.to_be_bytes();
    let header = [[0x45, 0], length, [0, 0], flags, [HOP_LIMIT, UDP], [0, 0]];
    Some([header.as_flattened(), &from.octets(), &to.octets()].concat())
}

fn ipv6(from: Ipv6Addr, to: Ipv6Addr, payload: usize) -> Option<Vec<u8>> {
    let length = u16::try_from(UDP_HEADER + payload).ok()?.to_be_bytes();
    let header = [[0x60, 0], [0, 0], length, [UDP, HOP_LIMIT]];
    Some([header.as_flattened(), &from.octets(), &to.octets()].concat())
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The UDP checksum of `parts`, each of even length except the last. Never zero, which in UDP means
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

    fn shown(from: &str, to: &str, payload: &[u8]) -> String {
        let packet = datagram(from.parse().unwrap(), to.parse().unwrap(), 8475, payload).unwrap();
        packet.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
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
    fn addresses_of_different_families_make_no_datagram() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(datagram(v4, v6, 1, b""), None);
        assert_eq!(datagram(v4, v4, 1, &vec![0; 65_536]), None);
    }
}
