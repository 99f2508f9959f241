//! What is written is read as it was; whatever is read does no harm.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::contents::changed_table;
use super::super::family::TableFamily;
use super::super::set::changed_elements;
use super::*;
use crate::{Frame, Message};

const LIST: u16 = 4;

fn network(family: Family) -> BoxedStrategy<IpNetwork> {
    match family {
        Family::V4 => (any::<[u8; 4]>(), 0..=32_u8).prop_map(masked).boxed(),
        Family::V6 => (any::<[u8; 16]>(), 0..=128_u8).prop_map(masked).boxed(),
    }
}

fn masked<A: Into<IpAddr>>((address, length): (A, u8)) -> IpNetwork {
    let network = IpNetwork::new(address.into(), length).unwrap();
    IpNetwork::new(network.network(), length).unwrap()
}

fn expression(family: Family) -> impl Strategy<Value = Expression> {
    let rule_for = || prop_oneof![Just(Match::Is), Just(Match::IsNot)];
    let place = || prop_oneof![Just(Place::Source), Just(Place::Destination)];
    let of_address = (place(), rule_for(), network(family))
        .prop_map(|(place, rule_for, network)| compared(place, rule_for, network));
    let ports = || prop_oneof![Just(Ports::Kept), Just(Ports::FullyRandom)];
    let address = network(family).prop_map(|network| network.ip());
    let translated = (address, ports()).prop_map(|(to, ports)| Expression::SourceNat(to, ports));
    let end = prop_oneof![
        Just(Expression::Accept),
        Just(Expression::Drop),
        Just(Expression::Untrack),
        Just(Expression::Return),
        ports().prop_map(Expression::Masquerade),
        translated,
        "[a-z]{1,9}".prop_map(Expression::Jump),
        "[a-z]{1,9}".prop_map(Expression::Goto),
    ];
    let looked_up =
        (place(), rule_for(), "[a-z]{1,9}").prop_map(move |(place, rule_for, set)| match place {
            Place::Source => Expression::SourceIn(rule_for, set, family),
            Place::Destination => Expression::DestinationIn(rule_for, set, family),
        });
    let of_tunnel = prop_oneof![
        any::<u16>().prop_map(Expression::UdpTo),
        (rule_for(), "[a-z]{1,9}")
            .prop_map(|(rule_for, set)| Expression::ProtocolIn(rule_for, set)),
        (rule_for(), 0..1_u32 << 24).prop_map(|(rule_for, vni)| Expression::Vni(rule_for, vni)),
        "[a-z0-9.]{1,15}".prop_map(Expression::InputInterface),
        rule_for().prop_map(Expression::ReversePath),
    ];
    let marked = prop_oneof![
        (rule_for(), any::<u32>()).prop_map(|(rule_for, mark)| Expression::Marked(rule_for, mark)),
        any::<u32>().prop_map(Expression::Unmark),
    ];
    prop_oneof![of_address, looked_up, of_tunnel, end, marked]
}

fn rule() -> impl Strategy<Value = (Family, Vec<Expression>)> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
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
        for frame in Frame::all(&bytes) {
            let _ = (changed_table(&frame), changed_elements(&frame));
        }
    }
}
