//! Free slots against the obvious way of finding them, and who gets which.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::model::config::NetworkConfig;

fn pools(json: &str) -> Vec<Pool> {
    NetworkConfig::parse(json.as_bytes()).unwrap().pools
}

fn prefixes(texts: &[&str]) -> Vec<Prefix> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn fulfilled(json: &str, taken: &[&str], draw: Draw) -> String {
    let pools = pools(json);
    let wish = Wish {
        pools: &pools,
        kept: vec![None; pools.len()],
        taken: prefixes(taken),
        avoided: vec![],
    };
    match wish.fulfil(draw) {
        Ok(subnets) => subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        Err(error) => error.to_string(),
    }
}

const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

fn slot_of(public_ip: &str) -> Draw {
    Draw::SlotOf(public_ip.parse().unwrap(), 0)
}

#[test]
fn the_first_choice_belongs_to_the_public_ip() {
    // 255 subnets, from 10.5.1.0 on: 192.168.0.9 is 3232235529, which leaves 114.
    assert_eq!(fulfilled(V4, &[], slot_of("192.168.0.9")), "10.5.115.0/24");
    assert_eq!(fulfilled(V4, &[], slot_of("192.168.0.10")), "10.5.116.0/24");
    // Taken: the first free one, for a random number of zero.
    assert_eq!(fulfilled(V4, &["10.5.115.0/24"], slot_of("192.168.0.9")), "10.5.1.0/24");
}

#[test]
fn leases_of_any_length_take_what_they_overlap() {
    assert_eq!(fulfilled(V4, &["10.5.0.0/17"], Draw::Any(0)), "10.5.128.0/24");
    assert_eq!(fulfilled(V4, &["10.5.1.64/26"], Draw::Any(0)), "10.5.2.0/24");
    assert_eq!(fulfilled(V4, &["10.6.0.0/24", "fd00::/16"], Draw::Any(0)), "10.5.1.0/24");
}

#[test]
fn a_full_pool_says_so() {
    let message = "no subnet is free in 10.5.0.0/16: all 255 are leased; \
                   widen the network or delete the leases of nodes that are gone";
    assert_eq!(fulfilled(V4, &["10.0.0.0/8"], Draw::Any(7)), message);
}

#[test]
fn both_families_get_the_same_slot() {
    assert_eq!(fulfilled(DUAL, &[], slot_of("192.168.0.9")), "10.5.115.0/24 fd00:0:0:73::/64");
    assert_eq!(
        fulfilled(DUAL, &["fd00:0:0:72::/63"], slot_of("192.168.0.9")),
        "10.5.115.0/24 fd00:0:0:75::/64"
    );
}

#[test]
fn where_the_same_slot_is_taken_nodes_still_differ() {
    let pools = pools(DUAL);
    let wish = Wish {
        pools: &pools,
        kept: vec![None; 2],
        taken: prefixes(&["fd00::/58"]),
        avoided: vec![],
    };
    let nodes = (1..50).map(|node| Draw::SlotOf(Family::V4.address(node), 0));
    let subnets: Vec<Vec<Prefix>> = nodes.map(|draw| wish.fulfil(draw).unwrap()).collect();
    assert!(subnets.iter().all(|subnets| !wish.in_step(subnets)));
    let distinct: BTreeSet<_> = subnets.iter().map(|subnets| subnets[1]).collect();
    assert_eq!(distinct.len(), subnets.len());
}

#[test]
fn one_slot_of_both_families_is_in_step() {
    let pools = pools(DUAL);
    let wish = Wish { pools: &pools, kept: vec![None; 2], taken: Vec::new(), avoided: vec![] };
    assert!(wish.in_step(&wish.fulfil(slot_of("192.168.0.9")).unwrap()));
    assert!(!wish.in_step(&prefixes(&["10.5.115.0/24", "fd00:0:0:74::/64"])));
}

#[test]
fn a_huge_pool_is_no_list() {
    let huge =
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8","IPv6SubnetLen":126}"#;
    let subnet = fulfilled(huge, &["fd00::/64"], Draw::Any(u128::MAX >> 4));
    assert!(subnet.ends_with("/126"), "{subnet}");
}

#[test]
fn what_is_kept_leads_the_other_family() {
    let pools = pools(DUAL);
    let kept = vec![Some("10.5.7.0/24".parse().unwrap()), None];
    let wish = Wish { pools: &pools, kept, taken: prefixes(&["10.5.7.0/24"]), avoided: vec![] };
    let subnets = wish.fulfil(Draw::Any(99)).unwrap();
    assert_eq!(subnets, prefixes(&["10.5.7.0/24", "fd00:0:0:7::/64"]));
}

prop_compose! {
    fn any_taken()(slot in 0_u32..300, len in 18_u8..28) -> Prefix {
        Prefix::holding(Family::V4.address(u128::from(0x0a05_0000 + (slot << 8))), len).unwrap()
    }
}

proptest! {
    #[test]
    fn free_slots_are_those_that_nobody_overlaps(
        taken in proptest::collection::vec(any_taken(), 0..40),
    ) {
        let pool = pools(V4)[0];
        let is_free = |slot: &u128| !taken.iter().any(|prefix| prefix.overlaps(pool.subnet(*slot)));
        let expected: BTreeSet<u128> = (0..pool.count()).filter(is_free).collect();
        let free = Free::of(&pool, taken.iter());
        prop_assert_eq!(free.count, expected.len() as u128);
        let listed: BTreeSet<u128> = (0..free.count).map(|index| free.nth(index).unwrap()).collect();
        prop_assert_eq!(&listed, &expected);
        prop_assert!((0..300).all(|slot| free.holds(slot) == expected.contains(&slot)));
    }

    #[test]
    fn what_is_handed_out_is_free_and_of_the_pool(
        taken in proptest::collection::vec(any_taken(), 0..40), ip: u32, random: u128,
    ) {
        let pools = pools(V4);
        let wish = Wish { pools: &pools, kept: vec![None], taken: taken.clone(), avoided: vec![] };
        let draw = Draw::SlotOf(Family::V4.address(ip.into()), random);
        if let Ok(subnets) = wish.fulfil(draw) {
            prop_assert!(pools[0].hands_out(subnets[0]));
            prop_assert!(!taken.iter().any(|prefix| prefix.overlaps(subnets[0])));
        }
    }
}
