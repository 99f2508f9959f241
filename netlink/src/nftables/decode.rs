//! The expressions of a rule, as the kernel lists them.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    NF_ACCEPT, NF_DROP, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_GOTO, NFT_JUMP, NFT_LOOKUP_F_INV,
    NFT_META_IIFNAME, NFT_META_L4PROTO, NFT_META_MARK, NFT_NAT_SNAT, NFT_PAYLOAD_NETWORK_HEADER,
    NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1, NFT_RETURN,
};

use super::expression::{
    BACK_BY_INPUT, Expression, MAP_ADDRESSES, MISSING, Match, PORT, PRESENT, Place, Ports,
    ROUTE_DEVICE, UDP, VNI, register,
};
use super::nfta;
use crate::Family;
use crate::attributes::{Attributes, ip};
use crate::message::octets;

/// What becomes of a packet at the end of a rule, or of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    Accept,
    /// With or without an error to the sender.
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// One thing that the kernel does with a packet; several are one [`Expression`].
enum Step<'a> {
    LoadMark,
    StoreMark,
    LoadProtocol,
    LoadPort,
    LoadVni,
    LoadLink,
    /// Whether the source is routed by the interface that the packet came by.
    LoadRouted,
    /// The first bytes of the address: this many.
    LoadAddress(Place, usize),
    LoadValue(IpAddr),
    Mask(&'a [u8]),
    Compare(Match, &'a [u8]),
    /// In the set of this name.
    LookUp(Match, &'a str),
    /// The source becomes the value that was loaded.
    SourceNat(Ports),
    End(Expression),
}

impl From<RuleVerdict> for Expression {
    fn from(outcome: RuleVerdict) -> Self {
        match outcome {
            RuleVerdict::Accept => Self::Accept,
            RuleVerdict::Drop => Self::Drop,
            RuleVerdict::Return => Self::Return,
            RuleVerdict::Jump(chain) => Self::Jump(chain),
            RuleVerdict::Goto(chain) => Self::Goto(chain),
        }
    }
}

/// Of a rule in a table for `family`; none if it has one that [`Expression`] does not know.
pub(super) fn expressions<'a>(
    elements: impl IntoIterator<Item = (u16, &'a [u8])>,
    family: Family,
) -> Option<Vec<Expression>> {
    let steps = elements
        .into_iter()
        .map(|(kind, element)| (kind == nfta::LIST_ELEM).then(|| step(element, family)).flatten())
        .collect::<Option<Vec<_>>>()?;
    let (mut expressions, mut rest) = (Vec::new(), steps.as_slice());
    while !rest.is_empty() {
        let (expression, behind) = first(rest, family)?;
        expressions.push(expression);
        rest = behind;
    }
    Some(expressions)
}

/// None for an element that decides nothing, or is not known here.
pub(super) fn outcome(element: &[u8]) -> Option<RuleVerdict> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA);
    match element.text(nfta::EXPR_NAME)? {
        "reject" => Some(RuleVerdict::Drop),
        // iptables-nft has REJECT as one of its own.
        "target" if data?.text(nfta::MATCH_NAME)? == "REJECT" => Some(RuleVerdict::Drop),
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

fn first<'a, 'b>(steps: &'b [Step<'a>], family: Family) -> Option<(Expression, &'b [Step<'a>])> {
    match steps {
        [Step::LoadMark, Step::Mask(mask), Step::Compare(rule_for, value), rest @ ..] => {
            let bits = u32::from_ne_bytes((*value).try_into().ok()?);
            (mask == value).then_some((Expression::Marked(*rule_for, bits), rest))
        }
        [Step::LoadMark, Step::Mask(mask), Step::StoreMark, rest @ ..] => {
            let kept = u32::from_ne_bytes((*mask).try_into().ok()?);
            Some((Expression::Unmark(!kept), rest))
        }
        [Step::LoadValue(to), Step::SourceNat(ports), rest @ ..] => {
            Some((Expression::SourceNat(*to, *ports), rest))
        }
        [
            Step::LoadAddress(place, _),
            Step::Mask(mask),
            Step::Compare(rule_for, base),
            rest @ ..,
        ] => {
            let network = IpNetwork::with_netmask(ip(base)?, ip(mask)?).ok()?;
            Some((compared(*place, *rule_for, network), rest))
        }
        // nft(8) loads no more than the bytes that count.
        [Step::LoadAddress(place, length), Step::Compare(rule_for, base), rest @ ..] => {
            let prefix_len = u8::try_from(length * 8).ok().filter(|_| base.len() == *length)?;
            let network = IpNetwork::new(padded(base, family)?, prefix_len).ok()?;
            Some((compared(*place, *rule_for, network), rest))
        }
        [Step::LoadAddress(place, length), Step::LookUp(rule_for, set), rest @ ..] => {
            let is_whole = u32::try_from(*length).ok()? == place.in_header(family).1;
            let (rule_for, set) = (*rule_for, (*set).to_owned());
            let looked_up = match place {
                Place::Source => Expression::SourceIn(rule_for, set, family),
                Place::Destination => Expression::DestinationIn(rule_for, set, family),
            };
            is_whole.then_some((looked_up, rest))
        }
        [Step::End(expression), rest @ ..] => Some((expression.clone(), rest)),
        steps => of_tunnel(steps),
    }
}

fn of_tunnel<'a, 'b>(steps: &'b [Step<'a>]) -> Option<(Expression, &'b [Step<'a>])> {
    match steps {
        [
            Step::LoadProtocol,
            Step::Compare(Match::Is, protocol),
            Step::LoadPort,
            Step::Compare(Match::Is, port),
            rest @ ..,
        ] => {
            let port = u16::from_be_bytes((*port).try_into().ok()?);
            (**protocol == UDP).then_some((Expression::UdpTo(port), rest))
        }
        [Step::LoadProtocol, Step::LookUp(rule_for, set), rest @ ..] => {
            Some((Expression::ProtocolIn(*rule_for, (*set).to_owned()), rest))
        }
        [Step::LoadVni, Step::Compare(rule_for, number), rest @ ..] => {
            let [high, middle, low] = (*number).try_into().ok()?;
            let vni = u32::from_be_bytes([0, high, middle, low]);
            Some((Expression::Vni(*rule_for, vni), rest))
        }
        [Step::LoadLink, Step::Compare(Match::Is, name), rest @ ..] => {
            let end = name.iter().position(|byte| *byte == 0)?;
            let name = str::from_utf8(name.get(..end)?).ok()?;
            Some((Expression::InputInterface(name.to_owned()), rest))
        }
        // nft(8) compares more bytes than count.
        [Step::LoadRouted, Step::Compare(Match::Is, found), rest @ ..] => {
            let came = |value, rule_for| Some((found.strip_prefix(value)?, rule_for));
            let (padding, rule_for) =
                came(PRESENT, Match::Is).or_else(|| came(MISSING, Match::IsNot))?;
            let came = Expression::ReversePath(rule_for);
            padding.iter().all(|byte| *byte == 0).then_some((came, rest))
        }
        _ => None,
    }
}

fn step(element: &[u8], family: Family) -> Option<Step<'_>> {
    let element = Attributes::of(element);
    let data = element.nested(nfta::EXPR_DATA).unwrap_or(Attributes::of(&[]));
    match element.text(nfta::EXPR_NAME)? {
        "meta" => match data.be32(nfta::META_KEY)?.cast_signed() {
            NFT_META_MARK if data.get(nfta::META_SREG).is_some() => Some(Step::StoreMark),
            NFT_META_MARK => Some(Step::LoadMark),
            NFT_META_L4PROTO => Some(Step::LoadProtocol),
            NFT_META_IIFNAME => Some(Step::LoadLink),
            _ => None,
        },
        "payload" => address(data, family).or_else(|| field(data)),
        "fib" => {
            let asked = (data.be32(nfta::FIB_RESULT)?, data.be32(nfta::FIB_FLAGS)?);
            (asked == (ROUTE_DEVICE, BACK_BY_INPUT)).then_some(Step::LoadRouted)
        }
        "lookup" => {
            let rule_for = match data.be32(nfta::LOOKUP_FLAGS).unwrap_or(0).cast_signed() {
                0 => Match::Is,
                NFT_LOOKUP_F_INV => Match::IsNot,
                _ => return None,
            };
            Some(Step::LookUp(rule_for, data.text(nfta::LOOKUP_SET)?))
        }
        "notrack" => Some(Step::End(Expression::Untrack)),
        "bitwise" => {
            let flipped = data.nested(nfta::BITWISE_XOR)?.get(nfta::DATA_VALUE)?;
            let mask = data.nested(nfta::BITWISE_MASK)?.get(nfta::DATA_VALUE)?;
            flipped.iter().all(|byte| *byte == 0).then_some(Step::Mask(mask))
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
            verdict(data).map(Expression::from).map(Step::End).or_else(loaded)
        }
        "masq" => masqueraded(data).map(Expression::Masquerade).map(Step::End),
        "nat" => translated(data, family).map(Step::SourceNat),
        _ => None,
    }
}

fn address(data: Attributes<'_>, family: Family) -> Option<Step<'static>> {
    let is_of_network = data.be32(nfta::PAYLOAD_BASE)? == register(NFT_PAYLOAD_NETWORK_HEADER);
    let (offset, length) = (data.be32(nfta::PAYLOAD_OFFSET)?, data.be32(nfta::PAYLOAD_LEN)?);
    let place = [Place::Source, Place::Destination].into_iter().find(|place| {
        let (begin, whole) = place.in_header(family);
        is_of_network && begin == offset && length <= whole
    })?;
    Some(Step::LoadAddress(place, usize::try_from(length).ok()?))
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

fn compared(place: Place, rule_for: Match, network: IpNetwork) -> Expression {
    match place {
        Place::Source => Expression::Source(rule_for, network),
        Place::Destination => Expression::Destination(rule_for, network),
    }
}

fn padded(bytes: &[u8], family: Family) -> Option<IpAddr> {
    let whole = octets(family.unspecified());
    ip(&[bytes, whole.get(bytes.len()..)?].concat())
}

fn verdict(data: Attributes<'_>) -> Option<RuleVerdict> {
    let verdict = data.nested(nfta::IMMEDIATE_DATA)?.nested(nfta::DATA_VERDICT)?;
    let chain = || verdict.text(nfta::VERDICT_CHAIN).map(str::to_owned);
    match verdict.be32(nfta::VERDICT_CODE)?.cast_signed() {
        NF_ACCEPT => Some(RuleVerdict::Accept),
        NF_DROP => Some(RuleVerdict::Drop),
        NFT_RETURN => Some(RuleVerdict::Return),
        NFT_JUMP => chain().map(RuleVerdict::Jump),
        NFT_GOTO => chain().map(RuleVerdict::Goto),
        _ => None,
    }
}

/// The ports of a masquerading expression; none for one with anything that is never written here.
fn masqueraded(data: Attributes<'_>) -> Option<Ports> {
    let is_alone = data.into_iter().all(|(kind, _)| kind == nfta::MASQ_FLAGS);
    Ports::of(data.be32(nfta::MASQ_FLAGS).unwrap_or(0)).filter(|_| is_alone)
}

/// Likewise, of an expression that gives a packet the loaded address of `family` as its source.
fn translated(data: Attributes<'_>, family: Family) -> Option<Ports> {
    let loaded = register(NFT_REG_1);
    let is_known = data.into_iter().all(|(kind, _)| match kind {
        nfta::NAT_TYPE => data.be32(kind) == Some(register(NFT_NAT_SNAT)),
        nfta::NAT_FAMILY => data.be32(kind) == Some(family.protocol().into()),
        nfta::NAT_REG_ADDR_MIN | nfta::NAT_REG_ADDR_MAX => data.be32(kind) == Some(loaded),
        nfta::NAT_FLAGS => true,
        _ => false,
    });
    let flags = data.be32(nfta::NAT_FLAGS).unwrap_or(0) & !MAP_ADDRESSES;
    let has_address = data.be32(nfta::NAT_REG_ADDR_MIN).is_some();
    Ports::of(flags).filter(|_| is_known && has_address)
}

/// The address that an `immediate` expression loads; none for a verdict.
fn loaded(data: Attributes<'_>) -> Option<IpAddr> {
    let is_first = data.be32(nfta::IMMEDIATE_DREG)? == register(NFT_REG_1);
    let value = data.nested(nfta::IMMEDIATE_DATA)?.ip(nfta::DATA_VALUE);
    value.filter(|_| is_first)
}
