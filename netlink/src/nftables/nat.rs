//! What a rule does to the source of a packet and to its mark: written, and read as the kernel reports it.

use std::net::IpAddr;

use nix::libc::{NFT_META_MARK, NFT_REG_1};
use serde::{Deserialize, Serialize};

use super::expression::{expression, meta, register, with_mask};
use super::family::IpFamily;
use super::numbers::{
    NFTA_DATA_VALUE, NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG, NFTA_MASQ_FLAGS, NFTA_META_KEY,
    NFTA_META_SREG, NFTA_NAT_FAMILY, NFTA_NAT_FLAGS, NFTA_NAT_REG_ADDR_MAX, NFTA_NAT_REG_ADDR_MIN,
    NFTA_NAT_TYPE,
};
use crate::attributes::Attributes;
use crate::message::Message;
use crate::rtnl::address::{ip, octets};

/// `NF_NAT_RANGE_MAP_IPS` of `linux/netfilter/nf_nat.h`: newer kernels add it to what they report.
const MAP_ADDRESSES: u32 = 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY` of `linux/netfilter/nf_nat.h`.
const FULLY_RANDOM: u32 = 1 << 4;

/// `NFT_NAT_SNAT` of `linux/netfilter/nf_tables.h`.
const SOURCE: u32 = 0;

/// What becomes of source ports under a new source address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ports {
    /// They stay as they are, unless another connection has them.
    #[default]
    Kept,
    /// Chosen at random, so that two that choose at once hardly choose the same.
    FullyRandom,
}

/// The kernel has marks in the order of the machine.
pub(super) fn unmark(rule: Message, mark: u32) -> Message {
    let cleared = with_mask(meta(rule, NFT_META_MARK), &(!mark).to_ne_bytes());
    expression(cleared, "meta", |data| {
        data.be32(NFTA_META_KEY, register(NFT_META_MARK)).be32(NFTA_META_SREG, register(NFT_REG_1))
    })
}

pub(super) fn masquerade(rule: Message, ports: Ports) -> Message {
    let put = |data: Message, flags| data.be32(NFTA_MASQ_FLAGS, flags);
    expression(rule, "masq", |data| data.with(ports.flags(), put))
}

pub(super) fn source_nat(rule: Message, to: IpAddr, ports: Ports) -> Message {
    let loaded = expression(rule, "immediate", |data| {
        data.be32(NFTA_IMMEDIATE_DREG, register(NFT_REG_1))
            .nest(NFTA_IMMEDIATE_DATA, |data| data.bytes(NFTA_DATA_VALUE, &octets(to)))
    });
    expression(loaded, "nat", |data| {
        data.be32(NFTA_NAT_TYPE, SOURCE)
            .be32(NFTA_NAT_FAMILY, IpFamily::of(to).protocol().into())
            .be32(NFTA_NAT_REG_ADDR_MIN, register(NFT_REG_1))
            .with(ports.flags(), |data, flags| data.be32(NFTA_NAT_FLAGS, flags))
    })
}

/// The ports of a masquerading expression; none for one with anything that is never written here.
pub(super) fn masqueraded(data: Attributes<'_>) -> Option<Ports> {
    let is_alone = data.into_iter().all(|(kind, _)| kind == NFTA_MASQ_FLAGS);
    Ports::of(data.be32(NFTA_MASQ_FLAGS).unwrap_or(0)).filter(|_| is_alone)
}

/// Likewise, of an expression that gives a packet the loaded address of `family` as its source.
pub(super) fn translated(data: Attributes<'_>, family: IpFamily) -> Option<Ports> {
    let loaded = register(NFT_REG_1);
    let is_known = data.into_iter().all(|(kind, _)| match kind {
        NFTA_NAT_TYPE => data.be32(kind) == Some(SOURCE),
        NFTA_NAT_FAMILY => data.be32(kind) == Some(family.protocol().into()),
        NFTA_NAT_REG_ADDR_MIN | NFTA_NAT_REG_ADDR_MAX => data.be32(kind) == Some(loaded),
        NFTA_NAT_FLAGS => true,
        _ => false,
    });
    let flags = data.be32(NFTA_NAT_FLAGS).unwrap_or(0) & !MAP_ADDRESSES;
    let has_address = data.be32(NFTA_NAT_REG_ADDR_MIN).is_some();
    Ports::of(flags).filter(|_| is_known && has_address)
}

/// The address that an `immediate` expression loads; none for a verdict.
pub(super) fn loaded(data: Attributes<'_>) -> Option<IpAddr> {
    let is_first = data.be32(NFTA_IMMEDIATE_DREG)? == register(NFT_REG_1);
    let value = data.nested(NFTA_IMMEDIATE_DATA)?.get(NFTA_DATA_VALUE)?;
    is_first.then(|| ip(value)).flatten()
}

impl Ports {
    const fn flags(self) -> Option<u32> {
        match self {
            Self::Kept => None,
            Self::FullyRandom => Some(FULLY_RANDOM),
        }
    }

    const fn of(flags: u32) -> Option<Self> {
        match flags {
            0 => Some(Self::Kept),
            FULLY_RANDOM => Some(Self::FullyRandom),
            _ => None,
        }
    }
}
