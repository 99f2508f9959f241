//! The expressions of a rule, as the kernel lists them.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    NF_ACCEPT, NF_DROP, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_GOTO, NFT_JUMP, NFT_LOOKUP_F_INV,
    NFT_META_IIFNAME, NFT_META_L4PROTO, NFT_META_MARK, NFT_META_OIFNAME, NFT_NAT_DNAT,
    NFT_NAT_SNAT, NFT_NG_RANDOM, NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER,
    NFT_REG_1, NFT_RETURN,
};

use super::expression::{
    BACK_BY_INPUT, KIND_OF_SOURCE, LOCAL, MAP_ADDRESSES, MAP_PORTS, MISSING, PORT, PRESENT,
    ROUTE_DEVICE, UDP, VNI, port_register, port_unreachable, register, register_at,
};
use super::family::TableFamily;
use super::key::{Field, Key, Side};
use super::nfta;
use super::rule::{Condition, Match, Ports, Rule, Tracking, Verdict};
use crate::Family;
use crate::attributes::{Attributes, ip};
use crate::message::octets;

/// One thing that the kernel does with a packet; several are one condition or verdict.
enum Step<'a> {
    LoadMark,
    StoreMark,
    LoadProtocol,
    LoadPort,
    LoadVni,
    /// The name of the link that the packet came by.
    LoadInput,
    /// The name of the link that the packet leaves by.
    LoadOutput,
    /// Whether the source is routed by the interface that the packet came by.
    LoadRouted,
    /// The first bytes of the address: this many.
    LoadAddress(Side, usize),
    LoadValue(IpAddr),
    /// A field of a key, and the register behind the first one that it is loaded into.
    LoadField(Field, u32),
    LoadTracking(u32),
    LoadKindOfSource,
    Mask(&'a [u8]),
    /// Only the bits of the first stay; then those of the second change.
    Combine(&'a [u8], &'a [u8]),
    Compare(Match, &'a [u8]),
    /// In the set of this name.
    LookUp(Match, &'a str),
    /// Loads what the map of this name has for the key.
    Map(&'a str),
    /// The destination becomes what a map has.
    DestinationNat,
    /// The source becomes the value that was loaded.
    SourceNat(Ports),
    End(Verdict),
}

/// Of a rule in a table for `family`; none if it has anything that [`Rule`] does not know, such as
/// the test of the family in front of addresses in a table for both.
pub(super) fn rule<'a>(
    elements: impl IntoIterator<Item = (u16, &'a [u8])>,
    family: TableFamily,
) -> Option<Rule> {
    let family = match family {
        TableFamily::Only(family) => family,
        TableFamily::Both => Family::V4,
    };
    let steps = steps(elements, family)?;
    let (conditions, rest) = leading_conditions(&steps, family);
    let verdict = match rest {
        [Step::LoadMark, Step::Mask(kept), Step::StoreMark] => Verdict::Unmark(!mark(kept)?),
        [Step::LoadMark, Step::Combine(kept, set), Step::StoreMark] => {
            Verdict::Mark(mark(set).filter(|set| mark(kept) == Some(!set))?)
        }
        [Step::LoadAddress(..), ..] => match key(rest, family)? {
            (key, [Step::Map(map), Step::DestinationNat]) => {
                Verdict::DestinationNat(key, (*map).to_owned())
            }
            _ => return None,
        },
        [Step::LoadValue(to), Step::SourceNat(ports)] => {
            Verdict::SourceNat { to: *to, ports: *ports }
        }
        [Step::End(verdict)] => verdict.clone(),
        _ => return None,
    };
    Some(Rule { conditions, verdict })
}

/// Likewise, of elements that only test packets of `family`.
pub(super) fn conditions<'a>(
    elements: impl IntoIterator<Item = (u16, &'a [u8])>,
    family: Family,
) -> Option<Vec<Condition>> {
    let steps = steps(elements, family)?;
    let (conditions, rest) = leading_conditions(&steps, family);
    rest.is_empty().then_some(conditions)
}

fn steps<'a>(
    elements: impl IntoIterator<Item = (u16, &'a [u8])>,
    family: Family,
) -> Option<Vec<Step<'a>>> {
    let elements = elements.into_iter();
    elements.map(|(kind, one)| step((kind == nfta::LIST_ELEM).then_some(one)?, family)).collect()
}

/// The conditions, and the steps behind them.
fn leading_conditions<'a, 'b>(
    mut steps: &'b [Step<'a>],
    family: Family,
) -> (Vec<Condition>, &'b [Step<'a>]) {
    let mut conditions = Vec::new();
    while let Some((condition, rest)) = condition(steps, family) {
        conditions.push(condition);
        steps = rest;
    }
    (conditions, steps)
}

/// None for an element that decides nothing, or is not known here.
pub(super) fn outcome(element: &[u8]) -> Option<Verdict> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA);
    match element.text(nfta::EXPR_NAME)? {
        "reject" => Some(Verdict::Drop),
        // iptables-nft has REJECT as one of its own.
        "target" if data?.text(nfta::MATCH_NAME)? == "REJECT" => Some(Verdict::Drop),
        "immediate" => verdict(data?),
        _ => None,
    }
}

/// The byte that an element asks for, if that is what it does.
pub(super) fn compared_byte(element: &[u8]) -> Option<u8> {
    match step(element, Family::V4)? {
        Step::Compare(Match::Is, [byte]) => Some(*byte),
        _ => None,
    }
}

fn condition<'a, 'b>(steps: &'b [Step<'a>], family: Family) -> Option<(Condition, &'b [Step<'a>])> {
    Some(match steps {
        [Step::LoadMark, Step::Mask(bits), Step::Compare(test, value), rest @ ..]
            if bits == value =>
        {
            (Condition::Marked(*test, mark(value)?), rest)
        }
        [Step::LoadAddress(side, _), Step::Mask(mask), Step::Compare(test, base), rest @ ..] => {
            let network = IpNetwork::with_netmask(ip(base)?, ip(mask)?).ok()?;
            (Condition::Address(*side, *test, network), rest)
        }
        // nft(8) loads no more than the bytes that count.
        [Step::LoadAddress(side, length), Step::Compare(test, base), rest @ ..] => {
            let prefix_len = u8::try_from(length * 8).ok().filter(|_| base.len() == *length)?;
            let network = IpNetwork::new(padded(base, family)?, prefix_len).ok()?;
            (Condition::Address(*side, *test, network), rest)
        }
        [Step::LoadAddress(side, length), Step::LookUp(test, set), rest @ ..] => {
            let is_whole = u32::try_from(*length).ok()? == side.in_header(family).1;
            let set = is_whole.then(|| (*set).to_owned())?;
            (Condition::AddressIn(*side, *test, set, family), rest)
        }
        [Step::LoadAddress(..), Step::LoadField(..), ..] => match key(steps, family)? {
            (key, [Step::LookUp(test, set), rest @ ..]) => {
                (Condition::KeyIn(key, *test, (*set).to_owned()), rest)
            }
            _ => return None,
        },
        [Step::LoadKindOfSource, Step::Compare(test, kind), rest @ ..] if **kind == LOCAL => {
            (Condition::LocalSource(*test), rest)
        }
        [
            Step::LoadTracking(asked),
            Step::Mask(bits),
            Step::Compare(Match::IsNot, none),
            rest @ ..,
        ] if none.iter().all(|byte| *byte == 0) => {
            let is_asked = |kind: &Tracking| Some(kind.bits().1) == mark(bits);
            let kinds = Tracking::ALL.into_iter().filter(|kind| kind.bits().0 == *asked);
            (Condition::Connection(kinds.into_iter().find(is_asked)?), rest)
        }
        [Step::LoadProtocol, Step::LookUp(test, set), rest @ ..] => {
            (Condition::ProtocolIn(*test, (*set).to_owned()), rest)
        }
        [Step::LoadInput, Step::Compare(Match::Is, name), rest @ ..] => {
            (Condition::InputInterface(link(name)?), rest)
        }
        [Step::LoadOutput, Step::Compare(Match::Is, name), rest @ ..] => {
            (Condition::OutputInterface(link(name)?), rest)
        }
        steps => return of_tunnel(steps),
    })
}

/// The key that the first steps load, and the steps behind them.
fn key<'a, 'b>(steps: &'b [Step<'a>], family: Family) -> Option<(Key, &'b [Step<'a>])> {
    let [Step::LoadAddress(side, length), rest @ ..] = steps else { return None };
    let is_whole = u32::try_from(*length).ok()? == side.in_header(family).1;
    let mut key = is_whole.then(|| Key::of(family, [Field::Address(*side)]))?;
    let mut rest = rest;
    while let [Step::LoadField(field, into), behind @ ..] = rest {
        key = (register_at(key.registers()) == *into).then_some(key)?;
        key.fields.push(*field);
        rest = behind;
    }
    Some((key, rest))
}

/// The name of a link, with the zeros behind it.
fn link(name: &[u8]) -> Option<String> {
    let end = name.iter().position(|byte| *byte == 0)?;
    str::from_utf8(name.get(..end)?).ok().map(ToOwned::to_owned)
}

fn of_tunnel<'a, 'b>(steps: &'b [Step<'a>]) -> Option<(Condition, &'b [Step<'a>])> {
    Some(match steps {
        [
            Step::LoadProtocol,
            Step::Compare(Match::Is, protocol),
            Step::LoadPort,
            Step::Compare(Match::Is, port),
            rest @ ..,
        ] if **protocol == UDP => {
            (Condition::UdpTo(u16::from_be_bytes((*port).try_into().ok()?)), rest)
        }
        [Step::LoadVni, Step::Compare(test, number), rest @ ..] => {
            let [high, middle, low] = (*number).try_into().ok()?;
            (Condition::Vni(*test, u32::from_be_bytes([0, high, middle, low])), rest)
        }
        // nft(8) compares more bytes than count.
        [Step::LoadRouted, Step::Compare(Match::Is, found), rest @ ..] => {
            let came = |value, test| Some((found.strip_prefix(value)?, test));
            let (padding, test) =
                came(PRESENT, Match::Is).or_else(|| came(MISSING, Match::IsNot))?;
            let is_known = padding.iter().all(|byte| *byte == 0);
            (is_known.then_some(Condition::ReversePath(test))?, rest)
        }
        _ => return None,
    })
}

/// The kernel has marks in the order of the machine.
fn mark(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn step(element: &[u8], family: Family) -> Option<Step<'_>> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA).unwrap_or_default();
    let name = element.text(nfta::EXPR_NAME)?;
    let first = Some(register(NFT_REG_1));
    match name {
        "numgen" => random(data),
        "meta" | "payload" if loaded_into(name, data).is_some_and(|into| Some(into) != first) => {
            later_field(name, data, family)
        }
        "meta" => match data.be32(nfta::META_KEY)?.cast_signed() {
            NFT_META_MARK if data.get(nfta::META_SREG).is_some() => Some(Step::StoreMark),
            NFT_META_MARK => Some(Step::LoadMark),
            NFT_META_L4PROTO => Some(Step::LoadProtocol),
            NFT_META_IIFNAME => Some(Step::LoadInput),
            NFT_META_OIFNAME => Some(Step::LoadOutput),
            _ => None,
        },
        "payload" => address(data, family).or_else(|| field(data)),
        "fib" => {
            let asked = (data.be32(nfta::FIB_RESULT)?, data.be32(nfta::FIB_FLAGS)?);
            match asked {
                (ROUTE_DEVICE, BACK_BY_INPUT) => Some(Step::LoadRouted),
                KIND_OF_SOURCE => Some(Step::LoadKindOfSource),
                _ => None,
            }
        }
        "lookup" => search(data),
        "notrack" => Some(Step::End(Verdict::Untrack)),
        "bitwise" => {
            let flipped = data.nested(nfta::BITWISE_XOR)?.get(nfta::DATA_VALUE)?;
            let mask = data.nested(nfta::BITWISE_MASK)?.get(nfta::DATA_VALUE)?;
            let is_mask = flipped.iter().all(|byte| *byte == 0);
            Some(if is_mask { Step::Mask(mask) } else { Step::Combine(mask, flipped) })
        }
        "cmp" => {
            let value = data.nested(nfta::CMP_DATA)?.get(nfta::DATA_VALUE)?;
            match data.be32(nfta::CMP_OP)?.cast_signed() {
                NFT_CMP_EQ => Some(Step::Compare(Match::Is, value)),
                NFT_CMP_NEQ => Some(Step::Compare(Match::IsNot, value)),
                _ => None,
            }
        }
        "immediate" => {
            let loaded = || loaded(data).map(Step::LoadValue);
            verdict(data).map(Step::End).or_else(loaded)
        }
        "masq" => masqueraded(data).map(Verdict::Masquerade).map(Step::End),
        "nat" => translated(data, family),
        "ct" => data.be32(nfta::CT_KEY).map(Step::LoadTracking),
        "reject" => is_rejected(data, family).then_some(Step::End(Verdict::Reject)),
        _ => None,
    }
}

fn search(data: Attributes<'_>) -> Option<Step<'_>> {
    let set = data.text(nfta::LOOKUP_SET)?;
    if data.get(nfta::LOOKUP_DREG).is_some() {
        return Some(Step::Map(set));
    }
    match data.be32(nfta::LOOKUP_FLAGS).unwrap_or(0).cast_signed() {
        0 => Some(Step::LookUp(Match::Is, set)),
        NFT_LOOKUP_F_INV => Some(Step::LookUp(Match::IsNot, set)),
        _ => None,
    }
}

/// Whether the sender is notified as [`Verdict::Reject`] notifies it.
fn is_rejected(data: Attributes<'_>, family: Family) -> bool {
    let answer = (data.be32(nfta::REJECT_TYPE), data.u8(nfta::REJECT_ICMP_CODE));
    let families = [TableFamily::Only(family), TableFamily::Both].into_iter();
    let answers = families.map(port_unreachable).map(|(kind, code)| (Some(kind), Some(code)));
    answers.into_iter().any(|known| known == answer)
}

fn loaded_into(name: &str, data: Attributes<'_>) -> Option<u32> {
    data.be32(if name == "meta" { nfta::META_DREG } else { nfta::PAYLOAD_DREG })
}

/// Of a key, behind the first field.
fn later_field(name: &str, data: Attributes<'_>, family: Family) -> Option<Step<'static>> {
    let into = loaded_into(name, data)?;
    let field = if name == "meta" {
        let is_protocol = data.be32(nfta::META_KEY)? == register(NFT_META_L4PROTO);
        is_protocol.then_some(Field::Protocol)?
    } else {
        match address(data, family).or_else(|| field(data))? {
            Step::LoadAddress(side, length) => {
                let is_whole = u32::try_from(length).ok()? == side.in_header(family).1;
                is_whole.then_some(Field::Address(side))?
            }
            Step::LoadPort => Field::DestinationPort,
            _ => return None,
        }
    };
    Some(Step::LoadField(field, into))
}

fn random(data: Attributes<'_>) -> Option<Step<'static>> {
    let is_random = data.be32(nfta::NUMGEN_TYPE)? == register(NFT_NG_RANDOM);
    let is_known = is_random && data.be32(nfta::NUMGEN_OFFSET).unwrap_or(0) == 0;
    let field = Field::Random(data.be32(nfta::NUMGEN_MODULUS)?);
    is_known.then_some(Step::LoadField(field, data.be32(nfta::NUMGEN_DREG)?))
}

fn address(data: Attributes<'_>, family: Family) -> Option<Step<'static>> {
    let is_of_network = data.be32(nfta::PAYLOAD_BASE)? == register(NFT_PAYLOAD_NETWORK_HEADER);
    let (offset, length) = (data.be32(nfta::PAYLOAD_OFFSET)?, data.be32(nfta::PAYLOAD_LEN)?);
    let side = [Side::Source, Side::Destination].into_iter().find(|side| {
        let (begin, whole) = side.in_header(family);
        is_of_network && begin == offset && length <= whole
    })?;
    Some(Step::LoadAddress(side, usize::try_from(length).ok()?))
}

/// Of the headers behind that of the network.
fn field(data: Attributes<'_>) -> Option<Step<'static>> {
    let is_behind = data.be32(nfta::PAYLOAD_BASE)? == register(NFT_PAYLOAD_TRANSPORT_HEADER);
    match (data.be32(nfta::PAYLOAD_OFFSET)?, data.be32(nfta::PAYLOAD_LEN)?) {
        PORT if is_behind => Some(Step::LoadPort),
        VNI if is_behind => Some(Step::LoadVni),
        _ => None,
    }
}

fn padded(bytes: &[u8], family: Family) -> Option<IpAddr> {
    let whole = octets(family.unspecified());
    ip(&[bytes, whole.get(bytes.len()..)?].concat())
}

fn verdict(data: Attributes<'_>) -> Option<Verdict> {
    let verdict = data.nested(nfta::IMMEDIATE_DATA)?.nested(nfta::DATA_VERDICT)?;
    let chain = || verdict.text(nfta::VERDICT_CHAIN).map(str::to_owned);
    match verdict.be32(nfta::VERDICT_CODE)?.cast_signed() {
        NF_ACCEPT => Some(Verdict::Accept),
        NF_DROP => Some(Verdict::Drop),
        NFT_RETURN => Some(Verdict::Return),
        NFT_JUMP => chain().map(Verdict::Jump),
        NFT_GOTO => chain().map(Verdict::Goto),
        _ => None,
    }
}

/// The ports of a masquerading expression; none for one with anything that is never written here.
fn masqueraded(data: Attributes<'_>) -> Option<Ports> {
    let is_alone = data.iter().all(|(kind, _)| kind == nfta::MASQ_FLAGS);
    Ports::of(data.be32(nfta::MASQ_FLAGS).unwrap_or(0)).filter(|_| is_alone)
}

/// Likewise, of an expression that gives a packet of `family` the loaded address as its source, or
/// the address and port that a map has as its destination.
fn translated(data: Attributes<'_>, family: Family) -> Option<Step<'static>> {
    let (address, port) = (register(NFT_REG_1), port_register(family));
    let has = |kind| data.get(kind).is_some();
    let has_port = has(nfta::NAT_REG_PROTO_MIN);
    let is_known = data.iter().all(|(kind, _)| match kind {
        nfta::NAT_TYPE | nfta::NAT_FLAGS => true,
        nfta::NAT_FAMILY => data.be32(kind) == Some(family.protocol().into()),
        nfta::NAT_REG_ADDR_MIN | nfta::NAT_REG_ADDR_MAX => data.be32(kind) == Some(address),
        nfta::NAT_REG_PROTO_MIN | nfta::NAT_REG_PROTO_MAX => {
            has_port && data.be32(kind) == Some(port)
        }
        _ => false,
    });
    let flags = data.be32(nfta::NAT_FLAGS).unwrap_or(0) & !MAP_ADDRESSES;
    match (data.be32(nfta::NAT_TYPE)?.cast_signed(), has_port) {
        _ if !is_known || !has(nfta::NAT_REG_ADDR_MIN) => None,
        (NFT_NAT_SNAT, false) => Ports::of(flags).map(Step::SourceNat),
        (NFT_NAT_DNAT, true) => (flags & !MAP_PORTS == 0).then_some(Step::DestinationNat),
        _ => None,
    }
}

/// The address that an `immediate` expression loads; none for a verdict.
fn loaded(data: Attributes<'_>) -> Option<IpAddr> {
    let is_first = data.be32(nfta::IMMEDIATE_DREG)? == register(NFT_REG_1);
    let value = data.nested(nfta::IMMEDIATE_DATA)?.ip(nfta::DATA_VALUE);
    value.filter(|_| is_first)
}
