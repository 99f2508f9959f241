//! What a rule consists of: it loads, compares, and decides.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    NF_ACCEPT, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_GOTO, NFT_JUMP, NFT_META_NFPROTO,
    NFT_PAYLOAD_NETWORK_HEADER, NFT_REG_1, NFT_REG_VERDICT, NFT_RETURN,
};

use super::numbers::{
    NFTA_BITWISE_DREG, NFTA_BITWISE_LEN, NFTA_BITWISE_MASK, NFTA_BITWISE_SREG, NFTA_BITWISE_XOR,
    NFTA_CMP_DATA, NFTA_CMP_OP, NFTA_CMP_SREG, NFTA_DATA_VALUE, NFTA_DATA_VERDICT, NFTA_EXPR_DATA,
    NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG, NFTA_LIST_ELEM, NFTA_LOOKUP_FLAGS,
    NFTA_LOOKUP_SET, NFTA_LOOKUP_SREG, NFTA_META_DREG, NFTA_META_KEY, NFTA_PAYLOAD_BASE,
    NFTA_PAYLOAD_DREG, NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET, NFTA_VERDICT_CHAIN,
    NFTA_VERDICT_CODE,
};
use crate::netlink::address::octets;
use crate::netlink::message::Message;

/// In the order in which a rule has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// Goes on for packets whose source is, or is not, in a network.
    Source(Match, IpNetwork),
    /// The same for the destination.
    Destination(Match, IpNetwork),
    /// Goes on for packets whose source is, or is not, in the set of this name and family.
    SourceIn(Match, String, IpFamily),
    /// The same for the destination.
    DestinationIn(Match, String, IpFamily),
    /// No rule behind this one is asked.
    Accept,
    /// Back to the chain that came here.
    Return,
    /// To another chain, and back from its end.
    Jump(String),
    /// To another chain, and from its end to where this one came from.
    Goto(String),
    Masquerade,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Is,
    IsNot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    V4,
    V6,
}

/// Which of the two addresses in an IP header.
#[derive(Clone, Copy)]
enum Place {
    Source,
    Destination,
}

impl Expression {
    pub(super) fn append(&self, rule: Message) -> Message {
        match self {
            Self::Source(rule_for, network) => compare(rule, Place::Source, *rule_for, *network),
            Self::Destination(rule_for, network) => {
                compare(rule, Place::Destination, *rule_for, *network)
            }
            Self::SourceIn(rule_for, set, family) => {
                look_up(rule, Place::Source, *rule_for, set, *family)
            }
            Self::DestinationIn(rule_for, set, family) => {
                look_up(rule, Place::Destination, *rule_for, set, *family)
            }
            Self::Accept => verdict(rule, NF_ACCEPT, None),
            Self::Jump(chain) => verdict(rule, NFT_JUMP, Some(chain)),
            Self::Return => verdict(rule, NFT_RETURN, None),
            Self::Goto(chain) => verdict(rule, NFT_GOTO, Some(chain)),
            Self::Masquerade => expression(rule, "masq", |data| data),
        }
    }
}

/// In a table for both families, an address has a meaning only in packets of its own.
fn compare(rule: Message, place: Place, rule_for: Match, network: IpNetwork) -> Message {
    let family = IpFamily::of(network.ip());
    let loaded = load_address(of_family(rule, family), place, family);
    let masked = mask(loaded, network);
    let operation = match rule_for {
        Match::Is => NFT_CMP_EQ,
        Match::IsNot => NFT_CMP_NEQ,
    };
    compare_with(masked, operation, &octets(network.network()))
}

fn look_up(rule: Message, place: Place, rule_for: Match, set: &str, family: IpFamily) -> Message {
    const INVERTED: u32 = 1;
    let loaded = load_address(of_family(rule, family), place, family);
    let flags = match rule_for {
        Match::Is => None,
        Match::IsNot => Some(INVERTED),
    };
    expression(loaded, "lookup", |data| {
        data.text(NFTA_LOOKUP_SET, set)
            .be32(NFTA_LOOKUP_SREG, register(NFT_REG_1))
            .with(flags, |data, flags| data.be32(NFTA_LOOKUP_FLAGS, flags))
    })
}

fn of_family(rule: Message, family: IpFamily) -> Message {
    let loaded = expression(rule, "meta", |data| {
        data.be32(NFTA_META_KEY, register(NFT_META_NFPROTO))
            .be32(NFTA_META_DREG, register(NFT_REG_1))
    });
    compare_with(loaded, NFT_CMP_EQ, &[family.protocol()])
}

fn load_address(rule: Message, place: Place, family: IpFamily) -> Message {
    let (offset, length) = match (family, place) {
        (IpFamily::V4, Place::Source) => (12, 4),
        (IpFamily::V4, Place::Destination) => (16, 4),
        (IpFamily::V6, Place::Source) => (8, 16),
        (IpFamily::V6, Place::Destination) => (24, 16),
    };
    expression(rule, "payload", |data| {
        data.be32(NFTA_PAYLOAD_DREG, register(NFT_REG_1))
            .be32(NFTA_PAYLOAD_BASE, register(NFT_PAYLOAD_NETWORK_HEADER))
            .be32(NFTA_PAYLOAD_OFFSET, offset)
            .be32(NFTA_PAYLOAD_LEN, length)
    })
}

/// A whole address needs no mask.
fn mask(rule: Message, network: IpNetwork) -> Message {
    let mask = octets(network.mask());
    if mask.iter().all(|byte| *byte == u8::MAX) {
        return rule;
    }
    let length = u32::try_from(mask.len()).unwrap_or_default();
    expression(rule, "bitwise", |data| {
        data.be32(NFTA_BITWISE_SREG, register(NFT_REG_1))
            .be32(NFTA_BITWISE_DREG, register(NFT_REG_1))
            .be32(NFTA_BITWISE_LEN, length)
            .nest(NFTA_BITWISE_MASK, |data| data.bytes(NFTA_DATA_VALUE, &mask))
            .nest(NFTA_BITWISE_XOR, |data| data.bytes(NFTA_DATA_VALUE, &vec![0; mask.len()]))
    })
}

fn compare_with(rule: Message, operation: i32, value: &[u8]) -> Message {
    expression(rule, "cmp", |data| {
        data.be32(NFTA_CMP_SREG, register(NFT_REG_1))
            .be32(NFTA_CMP_OP, register(operation))
            .nest(NFTA_CMP_DATA, |data| data.bytes(NFTA_DATA_VALUE, value))
    })
}

fn verdict(rule: Message, code: i32, chain: Option<&str>) -> Message {
    expression(rule, "immediate", |data| {
        data.be32(NFTA_IMMEDIATE_DREG, register(NFT_REG_VERDICT)).nest(
            NFTA_IMMEDIATE_DATA,
            |data| {
                data.nest(NFTA_DATA_VERDICT, |verdict| {
                    verdict
                        .be32(NFTA_VERDICT_CODE, code.cast_unsigned())
                        .with(chain, |verdict, chain| verdict.text(NFTA_VERDICT_CHAIN, chain))
                })
            },
        )
    })
}

fn expression(rule: Message, name: &str, fill: impl FnOnce(Message) -> Message) -> Message {
    rule.nest(NFTA_LIST_ELEM, |element| {
        element.text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA, fill)
    })
}

fn register(number: i32) -> u32 {
    number.cast_unsigned()
}

impl IpFamily {
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
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
    const fn protocol(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}
