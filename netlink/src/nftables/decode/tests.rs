//! Encoded messages are decoded without change; invalid ones cause no panic.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::contents::changed_table;
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

fn test() -> impl Strategy<Value = Match> {
    prop_oneof![Just(Match::Is), Just(Match::IsNot)]
}

fn key(family: Family) -> impl Strategy<Value = Key> {
    let side = || prop_oneof![Just(Side::Source), Just(Side::Destination)];
    let later = prop_oneof![
        side().prop_map(Field::Address),
        Just(Field::Protocol),
        Just(Field::DestinationPort),
        any::<u32>().prop_map(Field::Random),
    ];
    (side(), vec(later, 1..4)).prop_map(move |(side, later)| {
        Key::of(family, [Field::Address(side)].into_iter().chain(later))
    })
}

fn condition(family: Family) -> impl Strategy<Value = Condition> {
    let side = || prop_oneof![Just(Side::Source), Just(Side::Destination)];
    let set = || "[a-z]{1,9}";
    prop_oneof![
        (side(), test(), network(family))
            .prop_map(|(side, test, network)| Condition::Address(side, test, network)),
        (side(), test(), set())
            .prop_map(move |(side, test, set)| Condition::AddressIn(side, test, set, family)),
        (test(), set()).prop_map(|(test, set)| Condition::ProtocolIn(test, set)),
        (test(), any::<u32>()).prop_map(|(test, mark)| Condition::Marked(test, mark)),
        any::<u16>().prop_map(Condition::UdpTo),
        (test(), 0..1_u32 << 24).prop_map(|(test, vni)| Condition::Vni(test, vni)),
        "[a-z0-9.]{1,15}".prop_map(Condition::InputInterface),
        "[a-z0-9.]{1,15}".prop_map(Condition::OutputInterface),
        test().prop_map(Condition::ReversePath),
        test().prop_map(Condition::LocalSource),
        (key(family), test(), set()).prop_map(|(key, test, set)| Condition::KeyIn(key, test, set)),
        prop_oneof![Just(Tracking::New), Just(Tracking::Translated)]
            .prop_map(Condition::Connection),
    ]
}

fn verdict(family: Family) -> impl Strategy<Value = Verdict> {
    let ports = || prop_oneof![Just(Ports::Kept), Just(Ports::FullyRandom)];
    let address = network(family).prop_map(|network| network.ip());
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Reject),
        Just(Verdict::Untrack),
        Just(Verdict::Return),
        any::<u32>().prop_map(Verdict::Unmark),
        (1..=u32::MAX).prop_map(Verdict::Mark),
        (key(family), "[a-z]{1,9}").prop_map(|(key, map)| Verdict::DestinationNat(key, map)),
        ports().prop_map(Verdict::Masquerade),
        (address, ports()).prop_map(|(to, ports)| Verdict::SourceNat { to, ports }),
        "[a-z]{1,9}".prop_map(Verdict::Jump),
        "[a-z]{1,9}".prop_map(Verdict::Goto),
    ]
}

fn any_rule() -> impl Strategy<Value = (Family, Rule)> {
    prop_oneof![Just(Family::V4), Just(Family::V6)].prop_flat_map(|family| {
        let rule = (vec(condition(family), 0..5), verdict(family));
        let rule = rule.prop_map(|(conditions, verdict)| Rule { conditions, verdict });
        (Just(family), rule)
    })
}

/// `rule` as a list of expressions in a message.
fn written(rule: &Rule, family: Family) -> Vec<u8> {
    let append = |list| rule.append(list, TableFamily::Only(family));
    Message::new(0, 0, &[]).nest(LIST, append).finish(0, 0)
}

proptest! {
    #[test]
    fn an_encoded_expression_is_decoded_without_change((family, rule) in any_rule()) {
        let bytes = written(&rule, family);
        let list = Attributes::of(&bytes[16..]).nested(LIST).unwrap();
        prop_assert_eq!(super::rule(list.iter(), TableFamily::Only(family)), Some(rule));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        (family, one) in any_rule(),
        changed in vec((any::<prop::sample::Index>(), any::<u8>()), 1..9),
    ) {
        let mut bytes = written(&one, family);
        for (place, byte) in changed {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let _ = Attributes::of(&bytes[16..]).nested(LIST).map(|list| rule(list.iter(), TableFamily::Only(family)));
        for frame in Frame::all(&bytes) {
            let _ = (changed_table(&frame), changed_elements(&frame));
        }
    }
}
