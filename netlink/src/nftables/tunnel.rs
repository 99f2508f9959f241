//! What a rule asks of packets that may be those of a tunnel, and of the way they came.

use nix::libc::{
    IFNAMSIZ, IPPROTO_UDP, NFT_CMP_EQ, NFT_META_IIFNAME, NFT_META_L4PROTO,
    NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1,
};

use super::expression::{Match, compare_with, expression, load_payload, meta, register};
use super::numbers::{NFTA_FIB_DREG, NFTA_FIB_FLAGS, NFTA_FIB_RESULT};
use crate::message::Message;

/// Offset and length in the header of UDP, in bytes.
pub(super) const PORT: (u32, u32) = (2, 2);

/// Likewise; the header of VXLAN is behind that of UDP.
pub(super) const VNI: (u32, u32) = (12, 3);

/// `NFT_FIB_RESULT_OIF` of `linux/netfilter/nf_tables.h`.
pub(super) const ROUTE_DEVICE: u32 = 1;

/// The route to the source by the device that the packet came by: whether there is one.
/// `NFTA_FIB_F_SADDR`, `NFTA_FIB_F_IIF` and `NFTA_FIB_F_PRESENT`.
pub(super) const BACK_BY_INPUT: u32 = 1 | 1 << 3 | 1 << 5;

/// What the kernel makes of `BACK_BY_INPUT` if there is, and if there is not.
pub(super) const PRESENT: &[u8] = &[1];
pub(super) const MISSING: &[u8] = &[0];

pub(super) fn udp_to(rule: Message, port: u16) -> Message {
    let udp = compare_with(meta(rule, NFT_META_L4PROTO), NFT_CMP_EQ, &UDP);
    let loaded = load_payload(udp, NFT_PAYLOAD_TRANSPORT_HEADER, PORT);
    compare_with(loaded, NFT_CMP_EQ, &port.to_be_bytes())
}

pub(super) fn vni(rule: Message, operation: i32, vni: u32) -> Message {
    let [_, number @ ..] = vni.to_be_bytes();
    compare_with(load_payload(rule, NFT_PAYLOAD_TRANSPORT_HEADER, VNI), operation, &number)
}

pub(super) fn came_by(rule: Message, link: &str) -> Message {
    compare_with(meta(rule, NFT_META_IIFNAME), NFT_CMP_EQ, &name(link))
}

pub(super) fn came_as_routed(rule: Message, rule_for: Match) -> Message {
    let asked = expression(rule, "fib", |data| {
        data.be32(NFTA_FIB_DREG, register(NFT_REG_1))
            .be32(NFTA_FIB_RESULT, ROUTE_DEVICE)
            .be32(NFTA_FIB_FLAGS, BACK_BY_INPUT)
    });
    let found = match rule_for {
        Match::Is => PRESENT,
        Match::IsNot => MISSING,
    };
    compare_with(asked, NFT_CMP_EQ, found)
}

/// As the kernel has the protocol in a packet.
#[expect(clippy::cast_possible_truncation, reason = "protocols have one byte")]
pub(super) const UDP: [u8; 1] = [IPPROTO_UDP as u8];

/// The names of interfaces fill all the room that there is for one.
fn name(link: &str) -> Vec<u8> {
    let mut name: Vec<u8> = link.bytes().take(IFNAMSIZ - 1).collect();
    name.resize(IFNAMSIZ, 0);
    name
}
