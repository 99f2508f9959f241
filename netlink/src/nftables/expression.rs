//! Rules as the expressions of the kernel: they load, compare, and decide.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    IFNAMSIZ, IPPROTO_UDP, NF_ACCEPT, NF_DROP, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_CT_STATE,
    NFT_CT_STATUS, NFT_GOTO, NFT_JUMP, NFT_LOOKUP_F_INV, NFT_META_IIFNAME, NFT_META_L4PROTO,
    NFT_META_MARK, NFT_META_NFPROTO, NFT_META_OIFNAME, NFT_NAT_DNAT, NFT_NAT_SNAT, NFT_NG_RANDOM,
    NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1, NFT_REG_VERDICT,
    NFT_REG32_00, NFT_REJECT_ICMP_UNREACH, NFT_REJECT_ICMPX_PORT_UNREACH, NFT_REJECT_ICMPX_UNREACH,
    NFT_RETURN,
};

use super::family::TableFamily;
use super::key::{Field, Key, REGISTER, Side};
use super::nfta;
use super::rule::{Condition, Match, Ports, Rule, Tracking, Verdict};
use crate::Family;
use crate::message::{Message, byte, octets};

/// Offset and length in the header of UDP, in bytes.
pub(super) const PORT: (u32, u32) = (2, 2);

/// Likewise; the header of VXLAN is behind that of UDP.
pub(super) const VNI: (u32, u32) = (12, 3);

/// `NFT_FIB_RESULT_OIF` of `linux/netfilter/nf_tables.h`.
pub(super) const ROUTE_DEVICE: u32 = 1;

/// The route to the source by the device that the packet came by: whether there is one.
/// `NFTA_FIB_F_SADDR`, `NFTA_FIB_F_IIF` and `NFTA_FIB_F_PRESENT`.
pub(super) const BACK_BY_INPUT: u32 = 1 | 1 << 3 | 1 << 5;

/// `NFT_FIB_RESULT_ADDRTYPE` of it, and `NFTA_FIB_F_SADDR`: the kind of the source.
pub(super) const KIND_OF_SOURCE: (u32, u32) = (3, 1);

/// `RTN_LOCAL` of `linux/rtnetlink.h`, as the kernel loads it.
pub(super) const LOCAL: [u8; 4] = 2_u32.to_ne_bytes();

/// What the kernel makes of `BACK_BY_INPUT` if there is, and if there is not. The form with one byte, as
/// newer versions of nft(8) write it, cannot be loaded from a listing of nft 1.0.6.
pub(super) const PRESENT: &[u8] = &1_u32.to_ne_bytes();
pub(super) const MISSING: &[u8] = &0_u32.to_ne_bytes();

/// As the kernel has the protocol in a packet.
#[expect(clippy::cast_possible_truncation, reason = "protocols have one byte")]
pub(super) const UDP: [u8; 1] = [IPPROTO_UDP as u8];

/// `NF_NAT_RANGE_MAP_IPS` of `linux/netfilter/nf_nat.h`: newer kernels add it to what they report.
pub(super) const MAP_ADDRESSES: u32 = 1;

/// `NF_NAT_RANGE_PROTO_SPECIFIED` of it: likewise.
pub(super) const MAP_PORTS: u32 = 1 << 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` of `linux/netfilter/nf_nat.h`.
const FULLY_RANDOM: u32 = 1 << 4;

impl Rule {
    /// Adds its expressions to `message`, for a table of `family`.
    pub(super) fn append(&self, message: Message, family: TableFamily) -> Message {
        let conditions = self.conditions.iter();
        self.verdict.append(conditions.fold(message, |rule, one| one.append(rule, family)), family)
    }
}

impl Condition {
    fn append(&self, rule: Message, table: TableFamily) -> Message {
        match self {
            Self::Address(side, test, network) => {
                compare(load(rule, table, *side, Family::of(network.ip())), *test, *network)
            }
            Self::AddressIn(side, test, set, family) => {
                look_up(load(rule, table, *side, *family), *test, set)
            }
            Self::KeyIn(key, test, set) => look_up(load_key(rule, key), *test, set),
            Self::LocalSource(test) => {
                let (result, flags) = KIND_OF_SOURCE;
                compare_with(fib(rule, result, flags), test.operation(), &LOCAL)
            }
            Self::Connection(kind) => tracked(rule, *kind),
            Self::ProtocolIn(test, set) => look_up(meta(rule, NFT_META_L4PROTO), *test, set),
            // The kernel has marks in the order of the machine.
            Self::Marked(test, mark) => {
                let masked = with_mask(meta(rule, NFT_META_MARK), &mark.to_ne_bytes());
                compare_with(masked, test.operation(), &mark.to_ne_bytes())
            }
            Self::UdpTo(port) => udp_to(rule, *port),
            Self::Vni(test, vni) => with_vni(rule, test.operation(), *vni),
            Self::InputInterface(link) => {
                compare_with(meta(rule, NFT_META_IIFNAME), NFT_CMP_EQ, &name(link))
            }
            Self::OutputInterface(link) => {
                compare_with(meta(rule, NFT_META_OIFNAME), NFT_CMP_EQ, &name(link))
            }
            Self::ReversePath(test) => came_as_routed(rule, *test),
            Self::Counter => expression(rule, "counter", |data| data),
        }
    }
}

impl Verdict {
    fn append(&self, rule: Message, table: TableFamily) -> Message {
        match self {
            Self::Accept => end(rule, NF_ACCEPT, None),
            Self::Drop => end(rule, NF_DROP, None),
            Self::Reject => reject(rule, table),
            Self::Return => end(rule, NFT_RETURN, None),
            Self::Jump(chain) => end(rule, NFT_JUMP, Some(chain)),
            Self::Goto(chain) => end(rule, NFT_GOTO, Some(chain)),
            Self::Untrack => expression(rule, "notrack", |data| data),
            Self::Mark(mark) => change_mark(rule, !mark, *mark),
            Self::Unmark(mark) => change_mark(rule, !mark, 0),
            Self::Masquerade(ports) => masquerade(rule, *ports),
            Self::SourceNat { to, ports } => source_nat(rule, *to, *ports),
            Self::DestinationNat(key, map) => destination_nat(rule, key, map),
        }
    }
}

/// In a table for both families, an address has a meaning only in packets of its own.
fn load(rule: Message, table: TableFamily, side: Side, family: Family) -> Message {
    let rule = match table {
        TableFamily::Both => of_family(rule, family),
        TableFamily::Only(_) => rule,
    };
    load_payload(rule, NFT_PAYLOAD_NETWORK_HEADER, side.in_header(family), 0)
}

/// Each field behind the one before it.
fn load_key(rule: Message, key: &Key) -> Message {
    let mut index = 0;
    key.fields.iter().fold(rule, |rule, field| {
        let into = index;
        index += field.registers(key.family);
        match field {
            Field::Address(side) => {
                let bytes = side.in_header(key.family);
                load_payload(rule, NFT_PAYLOAD_NETWORK_HEADER, bytes, into)
            }
            Field::Protocol => load_meta(rule, NFT_META_L4PROTO, into),
            Field::DestinationPort => load_payload(rule, NFT_PAYLOAD_TRANSPORT_HEADER, PORT, into),
            Field::Random(below) => expression(rule, "numgen", |data| {
                data.be32(nfta::NUMGEN_DREG, register_at(into))
                    .be32(nfta::NUMGEN_MODULUS, *below)
                    .be32(nfta::NUMGEN_TYPE, register(NFT_NG_RANDOM))
                    .be32(nfta::NUMGEN_OFFSET, 0)
            }),
        }
    })
}

/// `bytes`: offset and length behind the beginning of the header `base`.
fn load_payload(rule: Message, base: i32, bytes: (u32, u32), into: u32) -> Message {
    expression(rule, "payload", |data| {
        data.be32(nfta::PAYLOAD_DREG, register_at(into))
            .be32(nfta::PAYLOAD_BASE, register(base))
            .be32(nfta::PAYLOAD_OFFSET, bytes.0)
            .be32(nfta::PAYLOAD_LEN, bytes.1)
    })
}

fn compare(loaded: Message, test: Match, network: IpNetwork) -> Message {
    let mask = octets(network.mask());
    // A whole address needs no mask.
    let is_whole = mask.iter().all(|byte| *byte == u8::MAX);
    let masked = if is_whole { loaded } else { with_mask(loaded, &mask) };
    compare_with(masked, test.operation(), &octets(network.network()))
}

fn look_up(loaded: Message, test: Match, set: &str) -> Message {
    let flags = (test == Match::IsNot).then_some(register(NFT_LOOKUP_F_INV));
    search(loaded, set, |data| data.with(flags, |data, flags| data.be32(nfta::LOOKUP_FLAGS, flags)))
}

fn search(loaded: Message, set: &str, fill: impl FnOnce(Message) -> Message) -> Message {
    expression(loaded, "lookup", |data| {
        fill(data.text(nfta::LOOKUP_SET, set).be32(nfta::LOOKUP_SREG, register(NFT_REG_1)))
    })
}

fn tracked(rule: Message, kind: Tracking) -> Message {
    let (key, bits) = kind.bits();
    let loaded = expression(rule, "ct", |data| {
        data.be32(nfta::CT_KEY, key).be32(nfta::CT_DREG, register(NFT_REG_1))
    });
    compare_with(with_mask(loaded, &bits.to_ne_bytes()), NFT_CMP_NEQ, &[0; 4])
}

fn of_family(rule: Message, family: Family) -> Message {
    compare_with(meta(rule, NFT_META_NFPROTO), NFT_CMP_EQ, &[family.protocol()])
}

fn meta(rule: Message, key: i32) -> Message {
    load_meta(rule, key, 0)
}

fn load_meta(rule: Message, key: i32, into: u32) -> Message {
    expression(rule, "meta", |data| {
        data.be32(nfta::META_KEY, register(key)).be32(nfta::META_DREG, register_at(into))
    })
}

fn with_mask(loaded: Message, mask: &[u8]) -> Message {
    combine(loaded, mask, &vec![0; mask.len()])
}

/// Only the bits of `mask` stay; then those of `flipped` change.
fn combine(loaded: Message, mask: &[u8], flipped: &[u8]) -> Message {
    let length = u32::try_from(mask.len()).unwrap_or_default();
    expression(loaded, "bitwise", |data| {
        data.be32(nfta::BITWISE_SREG, register(NFT_REG_1))
            .be32(nfta::BITWISE_DREG, register(NFT_REG_1))
            .be32(nfta::BITWISE_LEN, length)
            .nest(nfta::BITWISE_MASK, |data| data.bytes(nfta::DATA_VALUE, mask))
            .nest(nfta::BITWISE_XOR, |data| data.bytes(nfta::DATA_VALUE, flipped))
    })
}

fn compare_with(rule: Message, operation: i32, value: &[u8]) -> Message {
    expression(rule, "cmp", |data| {
        data.be32(nfta::CMP_SREG, register(NFT_REG_1))
            .be32(nfta::CMP_OP, register(operation))
            .nest(nfta::CMP_DATA, |data| data.bytes(nfta::DATA_VALUE, value))
    })
}

fn udp_to(rule: Message, port: u16) -> Message {
    let udp = compare_with(meta(rule, NFT_META_L4PROTO), NFT_CMP_EQ, &UDP);
    let loaded = load_payload(udp, NFT_PAYLOAD_TRANSPORT_HEADER, PORT, 0);
    compare_with(loaded, NFT_CMP_EQ, &port.to_be_bytes())
}

fn with_vni(rule: Message, operation: i32, vni: u32) -> Message {
    let [_, number @ ..] = vni.to_be_bytes();
    compare_with(load_payload(rule, NFT_PAYLOAD_TRANSPORT_HEADER, VNI, 0), operation, &number)
}

fn fib(rule: Message, result: u32, flags: u32) -> Message {
    expression(rule, "fib", |data| {
        data.be32(nfta::FIB_DREG, register(NFT_REG_1))
            .be32(nfta::FIB_RESULT, result)
            .be32(nfta::FIB_FLAGS, flags)
    })
}

fn came_as_routed(rule: Message, test: Match) -> Message {
    let asked = fib(rule, ROUTE_DEVICE, BACK_BY_INPUT);
    let found = match test {
        Match::Is => PRESENT,
        Match::IsNot => MISSING,
    };
    compare_with(asked, NFT_CMP_EQ, found)
}

/// The names of interfaces fill all the room that there is for one.
fn name(link: &str) -> Vec<u8> {
    let mut name: Vec<u8> = link.bytes().take(IFNAMSIZ - 1).collect();
    name.resize(IFNAMSIZ, 0);
    name
}

fn change_mark(rule: Message, kept: u32, flipped: u32) -> Message {
    let loaded = meta(rule, NFT_META_MARK);
    let changed = combine(loaded, &kept.to_ne_bytes(), &flipped.to_ne_bytes());
    expression(changed, "meta", |data| {
        data.be32(nfta::META_KEY, register(NFT_META_MARK))
            .be32(nfta::META_SREG, register(NFT_REG_1))
    })
}

fn masquerade(rule: Message, ports: Ports) -> Message {
    let put = |data: Message, flags| data.be32(nfta::MASQ_FLAGS, flags);
    expression(rule, "masq", |data| data.with(ports.flags(), put))
}

fn source_nat(rule: Message, to: IpAddr, ports: Ports) -> Message {
    let loaded = expression(rule, "immediate", |data| {
        data.be32(nfta::IMMEDIATE_DREG, register(NFT_REG_1))
            .nest(nfta::IMMEDIATE_DATA, |data| data.bytes(nfta::DATA_VALUE, &octets(to)))
    });
    expression(loaded, "nat", |data| {
        data.be32(nfta::NAT_TYPE, register(NFT_NAT_SNAT))
            .be32(nfta::NAT_FAMILY, Family::of(to).protocol().into())
            .be32(nfta::NAT_REG_ADDR_MIN, register(NFT_REG_1))
            .with(ports.flags(), |data, flags| data.be32(nfta::NAT_FLAGS, flags))
    })
}

fn destination_nat(rule: Message, key: &Key, map: &str) -> Message {
    let found =
        search(load_key(rule, key), map, |data| data.be32(nfta::LOOKUP_DREG, register(NFT_REG_1)));
    expression(found, "nat", |data| {
        data.be32(nfta::NAT_TYPE, register(NFT_NAT_DNAT))
            .be32(nfta::NAT_FAMILY, key.family.protocol().into())
            .be32(nfta::NAT_REG_ADDR_MIN, register(NFT_REG_1))
            .be32(nfta::NAT_REG_PROTO_MIN, port_register(key.family))
    })
}

/// Where the port is in the value that a map has for a key.
pub(super) fn port_register(family: Family) -> u32 {
    register_at(Field::Address(Side::Destination).registers(family))
}

fn reject(rule: Message, table: TableFamily) -> Message {
    let (kind, code) = port_unreachable(table);
    expression(rule, "reject", |data| {
        data.be32(nfta::REJECT_TYPE, kind).u8(nfta::REJECT_ICMP_CODE, code)
    })
}

/// The kind of answer, and its code.
pub(super) fn port_unreachable(table: TableFamily) -> (u32, u8) {
    let of_family = register(NFT_REJECT_ICMP_UNREACH);
    match table {
        TableFamily::Only(Family::V4) => (of_family, 3),
        TableFamily::Only(Family::V6) => (of_family, 4),
        TableFamily::Both => {
            (register(NFT_REJECT_ICMPX_UNREACH), byte(NFT_REJECT_ICMPX_PORT_UNREACH))
        }
    }
}

fn end(rule: Message, code: i32, chain: Option<&str>) -> Message {
    let verdict = |verdict: Message| {
        verdict
            .be32(nfta::VERDICT_CODE, code.cast_unsigned())
            .with(chain, |verdict, chain| verdict.text(nfta::VERDICT_CHAIN, chain))
    };
    expression(rule, "immediate", |data| {
        data.be32(nfta::IMMEDIATE_DREG, register(NFT_REG_VERDICT))
            .nest(nfta::IMMEDIATE_DATA, |data| data.nest(nfta::DATA_VERDICT, verdict))
    })
}

fn expression(rule: Message, name: &str, fill: impl FnOnce(Message) -> Message) -> Message {
    rule.nest(nfta::LIST_ELEM, |element| {
        element.text(nfta::EXPR_NAME, name).nest(nfta::EXPR_DATA, fill)
    })
}

impl Match {
    const fn operation(self) -> i32 {
        match self {
            Self::Is => NFT_CMP_EQ,
            Self::IsNot => NFT_CMP_NEQ,
        }
    }
}

impl Side {
    /// Offset and length in bytes.
    pub(super) const fn in_header(self, family: Family) -> (u32, u32) {
        match (family, self) {
            (Family::V4, Self::Source) => (12, 4),
            (Family::V4, Self::Destination) => (16, 4),
            (Family::V6, Self::Source) => (8, 16),
            (Family::V6, Self::Destination) => (24, 16),
        }
    }
}

impl Tracking {
    pub(super) const ALL: [Self; 2] = [Self::New, Self::Translated];

    /// The kernel's number of what is tested, and the bits of which one must be set.
    pub(super) const fn bits(self) -> (u32, u32) {
        match self {
            // `NF_CT_STATE_BIT(IP_CT_NEW)` and `IPS_DST_NAT` of the kernel's headers.
            Self::New => (NFT_CT_STATE.cast_unsigned(), 1 << 3),
            Self::Translated => (NFT_CT_STATUS.cast_unsigned(), 1 << 5),
        }
    }
}

impl Ports {
    const fn flags(self) -> Option<u32> {
        match self {
            Self::Kept => None,
            Self::FullyRandom => Some(FULLY_RANDOM),
        }
    }

    pub(super) fn of(flags: u32) -> Option<Self> {
        let mut all = [Self::Kept, Self::FullyRandom].into_iter();
        all.find(|ports| ports.flags().unwrap_or(0) == flags)
    }
}

/// How the kernel numbers the register that is `index` registers of a field behind the first.
pub(super) fn register_at(index: u32) -> u32 {
    const LONG: u32 = 16 / REGISTER;
    if index.is_multiple_of(LONG) {
        register(NFT_REG_1) + index / LONG
    } else {
        register(NFT_REG32_00) + index
    }
}

pub(super) fn register(number: i32) -> u32 {
    number.cast_unsigned()
}
