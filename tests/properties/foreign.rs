//! Damaged records of others; `tests/fuzz` tries far more of them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tweed::kernel::read_datagram;
use tweed::store::kube::read_node;

use crate::{cases, records};

const LEASES: &[u8] = include_bytes!("../fuzz/seeds/lease/two");
const NODE: &[u8] = include_bytes!("../fuzz/seeds/node/one");

/// One change of a text.
#[derive(Clone, Debug)]
enum Damage {
    Replaced(u8),
    Removed(usize),
    Repeated(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        any::<u8>().prop_map(Damage::Replaced),
        (1..20_usize).prop_map(Damage::Removed),
        (1..400_usize).prop_map(Damage::Repeated),
    ]
}

fn damaged(text: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    vec((any::<Index>(), damage()), 0..6).prop_map(|changes| {
        let mut text = text.to_vec();
        for (at, change) in changes {
            let at = at.index(text.len());
            match change {
                Damage::Replaced(byte) => text[at] = byte,
                Damage::Removed(count) => {
                    drop(text.drain(at..(at + count).min(text.len() - 1).max(at)));
                }
                Damage::Repeated(count) => {
                    let part = text[at..].iter().copied().cycle().take(count).collect::<Vec<_>>();
                    text.splice(at..at, part);
                }
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn damaged_leases_of_etcd_displace_no_other_lease(text in damaged(LEASES)) {
        records::check(records::leases(&text));
    }

    #[test]
    fn damaged_nodes_displace_no_other_lease(text in damaged(NODE)) {
        records::check(text.split(|byte| *byte == b'\n').filter_map(read_node).collect());
    }

    #[test]
    fn no_datagram_of_netlink_makes_the_readers_panic(
        messages in vec((16..120_u16, vec(any::<u8>(), 0..120)), 1..4),
    ) {
        let frame = |(kind, payload): &(u16, Vec<u8>)| {
            let length = u32::try_from(16 + payload.len()).unwrap();
            let mut frame = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], payload].concat();
            frame.resize(frame.len().next_multiple_of(4), 0);
            frame
        };
        drop(read_datagram(&messages.iter().flat_map(frame).collect::<Vec<_>>()));
    }
}
