//! The expressions of a rule, as the kernel tells them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{
    NF_ACCEPT, NFT_CMP_EQ, NFT_CMP_NEQ, NFT_GOTO, NFT_JUMP, NFT_META_MARK,
    NFT_PAYLOAD_NETWORK_HEADER, NFT_RETURN,
};

use super::expression::{Expression, FULLY_RANDOM, Match, Place, Ports, register};
use super::family::IpFamily;
use super::numbers::{
    NFTA_BITWISE_MASK, NFTA_BITWISE_XOR, NFTA_CMP_DATA, NFTA_CMP_OP, NFTA_DATA_VALUE,
    NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA, NFTA_LIST_ELEM,
    NFTA_MASQ_FLAGS, NFTA_META_KEY, NFTA_PAYLOAD_BASE, NFTA_PAYLOAD_LEN, NFTA_PAYLOAD_OFFSET,
    NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use crate::netlink::address::{ip, octets};
use crate::netlink::attributes::Attributes;

/// One thing that the kernel does with a packet; several are one [`Expression`].
enum Step<'a> {
    LoadMark,
    /// So many bytes of it, from its beginning.
    LoadAddress(Place, usize),
    Mask(&'a [u8]),
    Compare(Match, &'a [u8]),
    End(Expression),
}

/// Of a rule in a table for `family`; none if it has one that [`Expression`] does not know.
pub(super) fn expressions<'a>(
    elements: impl IntoIterator<Item = (u16, &'a [u8])>,
    family: IpFamily,
) -> Option<Vec<Expression>> {
    let steps = elements
        .into_iter()
        .map(|(kind, element)| (kind == NFTA_LIST_ELEM).then(|| step(element, family)).flatten())
        .collect::<Option<Vec<_>>>()?;
    let (mut expressions, mut rest) = (Vec::new(), steps.as_slice());
    while !rest.is_empty() {
        let (expression, behind) = first(rest, family)?;
        expressions.push(expression);
        rest = behind;
    }
    Some(expressions)
}

/// The byte that an element asks for, if that is what it does.
pub(super) fn compared_byte(element: &[u8]) -> Option<u8> {
    match step(element, IpFamily::V4)? {
        Step::Compare(Match::Is, [byte]) => Some(*byte),
        _ => None,
    }
}

fn first<'a, 'b>(steps: &'b [Step<'a>], family: IpFamily) -> Option<(Expression, &'b [Step<'a>])> {
    match steps {
        [Step::LoadMark, Step::Mask(mask), Step::Compare(Match::Is, value), rest @ ..] => {
            let marked = Expression::Marked(u32::from_ne_bytes((*value).try_into().ok()?));
            (mask == value).then_some((marked, rest))
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
        [Step::End(expression), rest @ ..] => Some((expression.clone(), rest)),
        _ => None,
    }
}

fn step(element: &[u8], family: IpFamily) -> Option<Step<'_>> {
    let element = Attributes::of(element);
    let data = element.nested(NFTA_EXPR_DATA).unwrap_or(Attributes::of(&[]));
    match element.text(NFTA_EXPR_NAME)? {
        "meta" => (data.be32(NFTA_META_KEY)? == register(NFT_META_MARK)).then_some(Step::LoadMark),
        "payload" => address(data, family),
        "bitwise" => {
            let flipped = data.nested(NFTA_BITWISE_XOR)?.get(NFTA_DATA_VALUE)?;
            let mask = data.nested(NFTA_BITWISE_MASK)?.get(NFTA_DATA_VALUE)?;
            flipped.iter().all(|byte| *byte == 0).then_some(Step::Mask(mask))
        }
        "cmp" => {
            let value = data.nested(NFTA_CMP_DATA)?.get(NFTA_DATA_VALUE)?;
            match data.be32(NFTA_CMP_OP)?.cast_signed() {
                NFT_CMP_EQ => Some(Step::Compare(Match::Is, value)),
                NFT_CMP_NEQ => Some(Step::Compare(Match::IsNot, value)),
                _ => None,
            }
        }
        "immediate" => verdict(data).map(Step::End),
        "masq" => masquerade(data).map(Step::End),
        _ => None,
    }
}

fn address(data: Attributes<'_>, family: IpFamily) -> Option<Step<'static>> {
    let is_of_network = data.be32(NFTA_PAYLOAD_BASE)? == register(NFT_PAYLOAD_NETWORK_HEADER);
    let (offset, length) = (data.be32(NFTA_PAYLOAD_OFFSET)?, data.be32(NFTA_PAYLOAD_LEN)?);
    let place = [Place::Source, Place::Destination].into_iter().find(|place| {
        let (begin, whole) = place.in_header(family);
        is_of_network && begin == offset && length <= whole
    })?;
    Some(Step::LoadAddress(place, usize::try_from(length).ok()?))
}

fn compared(place: Place, rule_for: Match, network: IpNetwork) -> Expression {
    match place {
        Place::Source => Expression::Source(rule_for, network),
        Place::Destination => Expression::Destination(rule_for, network),
    }
}

fn padded(bytes: &[u8], family: IpFamily) -> Option<IpAddr> {
    let unspecified = match family {
        IpFamily::V4 => IpAddr::from([0; 4]),
        IpFamily::V6 => IpAddr::from([0; 16]),
    };
    let whole = octets(unspecified);
    ip(&[bytes, whole.get(bytes.len()..)?].concat())
}

fn verdict(data: Attributes<'_>) -> Option<Expression> {
    let verdict = data.nested(NFTA_IMMEDIATE_DATA)?.nested(NFTA_DATA_VERDICT)?;
    let chain = || verdict.text(NFTA_VERDICT_CHAIN).map(str::to_owned);
    match verdict.be32(NFTA_VERDICT_CODE)?.cast_signed() {
        NF_ACCEPT => Some(Expression::Accept),
        NFT_RETURN => Some(Expression::Return),
        NFT_JUMP => chain().map(Expression::Jump),
        NFT_GOTO => chain().map(Expression::Goto),
        _ => None,
    }
}

fn masquerade(data: Attributes<'_>) -> Option<Expression> {
    let is_alone = data.into_iter().all(|(kind, _)| kind == NFTA_MASQ_FLAGS);
    let ports = match data.be32(NFTA_MASQ_FLAGS).unwrap_or(0) {
        0 => Some(Ports::Kept),
        FULLY_RANDOM => Some(Ports::FullyRandom),
        _ => None,
    };
    ports.filter(|_| is_alone).map(Expression::Masquerade)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::contents::changed_table;
    use super::super::family::TableFamily;
    use super::*;
    use crate::netlink::message::Message;

    const LIST: u16 = 4;

    fn network(family: IpFamily) -> BoxedStrategy<IpNetwork> {
        match family {
            IpFamily::V4 => (any::<[u8; 4]>(), 0..=32_u8).prop_map(masked).boxed(),
            IpFamily::V6 => (any::<[u8; 16]>(), 0..=128_u8).prop_map(masked).boxed(),
        }
    }

    fn masked<A: Into<IpAddr>>((address, length): (A, u8)) -> IpNetwork {
        let network = IpNetwork::new(address.into(), length).unwrap();
        IpNetwork::new(network.network(), length).unwrap()
    }

    fn expression(family: IpFamily) -> impl Strategy<Value = Expression> {
        let rule_for = prop_oneof![Just(Match::Is), Just(Match::IsNot)];
        let place = prop_oneof![Just(Place::Source), Just(Place::Destination)];
        let of_address = (place, rule_for, network(family))
            .prop_map(|(place, rule_for, network)| compared(place, rule_for, network));
        let end = prop_oneof![
            Just(Expression::Accept),
            Just(Expression::Return),
            Just(Expression::Masquerade(Ports::Kept)),
            Just(Expression::Masquerade(Ports::FullyRandom)),
            "[a-z]{1,9}".prop_map(Expression::Jump),
            "[a-z]{1,9}".prop_map(Expression::Goto),
        ];
        prop_oneof![of_address, end, any::<u32>().prop_map(Expression::Marked)]
    }

    fn rule() -> impl Strategy<Value = (IpFamily, Vec<Expression>)> {
        prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
            .prop_flat_map(|family| (Just(family), vec(expression(family), 0..5)))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_it_was((family, rule) in rule()) {
            let append = |list, one: &Expression| one.append(list, TableFamily::Only(family));
            let message = Message::new(0, 0, &[]).nest(LIST, |list| rule.iter().fold(list, append));
            let bytes = message.finish(0, 0);
            let list = Attributes::of(&bytes[16..]).nested(LIST).unwrap();
            prop_assert_eq!(expressions(list, family), Some(rule));
        }

        #[test]
        fn no_bytes_make_it_fall_over(
            (family, rule) in rule(),
            changed in vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
        ) {
            let append = |list, one: &Expression| one.append(list, TableFamily::Only(family));
            let message = Message::new(0, 0, &[]).nest(LIST, |list| rule.iter().fold(list, append));
            let mut bytes = message.finish(0, 0);
            for (place, byte) in changed {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let _ = Attributes::of(&bytes[16..]).nested(LIST).map(|list| expressions(list, family));
            let _ = changed_table(&bytes);
        }
    }
}
