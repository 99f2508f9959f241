//! Selects a free subnet of each pool.

use std::net::IpAddr;

use super::Error;
use crate::model::config::Pool;
use crate::model::prefix::{Family, Prefix, number};

/// A request for one subnet of each pool.
#[derive(Clone, Debug)]
pub struct SubnetRequest<'a> {
    pub pools: &'a [Pool],
    /// For each pool, the subnet that the node already has, if any.
    pub kept: Vec<Option<Prefix>>,
    /// Subnets of any length that other leases hold.
    pub taken: Vec<Prefix>,
    /// Addresses of hosts: no new subnet may overlap these.
    pub avoided: Vec<Prefix>,
}

impl SubnetRequest<'_> {
    /// A subnet of each pool, in their order. A kept subnet counts as free. The first pool's is the
    /// slot derived from `public_ip`, so that nodes that start together do not collide; if it is
    /// taken, or without `public_ip`, any free one by `random`, with equal probability.
    pub fn allocate(&self, public_ip: Option<IpAddr>, random: u128) -> Result<Vec<Prefix>, Error> {
        let (mut slot, mut random) = (public_ip.map(number), random);
        let mut subnets = Vec::new();
        for (pool, kept) in self.pools.iter().zip(&self.kept) {
            let subnet = match kept {
                Some(kept) => *kept,
                None => self.free_subnet(pool, slot, random)?,
            };
            // The same slot in all pools: one family's uniqueness then ensures the other's. If it
            // is taken, another one that still differs between nodes.
            if let (true, Some(index)) = (subnets.is_empty(), pool.index(subnet)) {
                (slot, random) = (Some(index), index);
            }
            subnets.push(subnet);
        }
        Ok(subnets)
    }

    fn free_subnet(&self, pool: &Pool, slot: Option<u128>, random: u128) -> Result<Prefix, Error> {
        let free = self.free(pool);
        let wanted = slot.map(|slot| slot % pool.count()).filter(|slot| free.holds(*slot));
        let other = || free.nth(random.checked_rem(free.count)?);
        let exhausted = || Error::Exhausted { pool: pool.network, count: pool.count() };
        wanted.or_else(other).map(|index| pool.subnet(index)).ok_or_else(exhausted)
    }

    /// The free slots. A link whose subnet covers the whole pool would leave none: it is ignored.
    fn free(&self, pool: &Pool) -> Free {
        let leaves_some = |prefix: &&Prefix| {
            slots(pool, **prefix).is_some_and(|(first, last)| last - first + 1 < pool.count())
        };
        Free::of(pool, self.taken.iter().chain(self.avoided.iter().filter(leaves_some)))
    }

    /// Whether hosts have addresses in one of `subnets` that is not kept.
    pub fn avoids(&self, subnets: &[Prefix]) -> bool {
        let mut all = self.pools.iter().zip(&self.kept).zip(subnets);
        all.any(|((pool, kept), subnet)| {
            let index = pool.index(*subnet);
            kept.is_none() && index.is_some_and(|index| !self.free(pool).holds(index))
        })
    }

    /// Whether `subnets` are the same slot of all pools.
    pub fn is_aligned(&self, subnets: &[Prefix]) -> bool {
        let mut slots = self.pools.iter().zip(subnets).map(|(pool, subnet)| pool.index(*subnet));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }
}

/// The number of subnets of `pool` that `taken` overlaps.
pub fn taken<'a>(pool: &Pool, taken: impl Iterator<Item = &'a Prefix>) -> u128 {
    pool.count() - Free::of(pool, taken).count
}

/// The free slots of a pool, as ranges, since IPv6 pools are huge.
#[derive(Debug)]
struct Free {
    /// Ranges of taken slots, first and last, sorted and without overlap.
    taken: Vec<(u128, u128)>,
    slots: u128,
    count: u128,
}

impl Free {
    fn of<'a>(pool: &Pool, taken: impl Iterator<Item = &'a Prefix>) -> Self {
        let mut runs: Vec<_> = taken.filter_map(|prefix| slots(pool, *prefix)).collect();
        runs.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::new();
        for (first, last) in runs {
            match merged.last_mut() {
                Some(run) if first <= run.1.saturating_add(1) => run.1 = run.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        let slots = pool.count();
        let used: u128 = merged.iter().map(|(first, last)| last - first + 1).sum();
        Self { taken: merged, slots, count: slots - used }
    }

    fn holds(&self, slot: u128) -> bool {
        slot < self.slots
            && !self.taken.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }

    /// The free slot after `index` other free ones.
    fn nth(&self, index: u128) -> Option<u128> {
        let mut slot = index;
        for (first, last) in &self.taken {
            if slot < *first {
                break;
            }
            slot += last - first + 1;
        }
        (slot < self.slots).then_some(slot)
    }
}

/// The first and the last slot of `pool` that `prefix` overlaps.
fn slots(pool: &Pool, prefix: Prefix) -> Option<(u128, u128)> {
    let span = (number(pool.min.base()), number(pool.max.last()));
    let (first, last) = (number(prefix.base()), number(prefix.last()));
    let same_family = prefix.family() == Family::of(pool.min.base());
    let touches = same_family && first <= span.1 && last >= span.0;
    let slot = |address: u128| (address.clamp(span.0, span.1) - span.0) / pool.min.size();
    touches.then(|| (slot(first), slot(last)))
}

#[cfg(test)]
mod tests {
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

    fn allocated(json: &str, taken: &[&str], (ip, random): (Option<IpAddr>, u128)) -> String {
        let pools = pools(json);
        let request = SubnetRequest {
            pools: &pools,
            kept: vec![None; pools.len()],
            taken: prefixes(taken),
            avoided: vec![],
        };
        match request.allocate(ip, random) {
            Ok(subnets) => subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    }

    const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

    fn slot_of(public_ip: &str) -> (Option<IpAddr>, u128) {
        (Some(public_ip.parse().unwrap()), 0)
    }

    #[test]
    fn the_first_choice_belongs_to_the_public_ip() {
        // 255 subnets, from 10.5.1.0 on: 192.168.0.9 is 3232235529, which leaves 114.
        assert_eq!(allocated(V4, &[], slot_of("192.168.0.9")), "10.5.115.0/24");
        assert_eq!(allocated(V4, &[], slot_of("192.168.0.10")), "10.5.116.0/24");
        // Taken: the first free one, since the random number is zero.
        assert_eq!(allocated(V4, &["10.5.115.0/24"], slot_of("192.168.0.9")), "10.5.1.0/24");
    }

    #[test]
    fn leases_of_any_length_take_what_they_overlap() {
        assert_eq!(allocated(V4, &["10.5.0.0/17"], (None, 0)), "10.5.128.0/24");
        assert_eq!(allocated(V4, &["10.5.1.64/26"], (None, 0)), "10.5.2.0/24");
        assert_eq!(allocated(V4, &["10.6.0.0/24", "fd00::/16"], (None, 0)), "10.5.1.0/24");
    }

    #[test]
    fn a_full_pool_is_an_error() {
        let message = "no subnet is free in 10.5.0.0/16: all 255 are leased; \
                       widen the network or delete the leases of nodes that are gone";
        assert_eq!(allocated(V4, &["10.0.0.0/8"], (None, 7)), message);
    }

    #[test]
    fn both_families_get_the_same_slot() {
        assert_eq!(allocated(DUAL, &[], slot_of("192.168.0.9")), "10.5.115.0/24 fd00:0:0:73::/64");
        assert_eq!(
            allocated(DUAL, &["fd00:0:0:72::/63"], slot_of("192.168.0.9")),
            "10.5.115.0/24 fd00:0:0:75::/64"
        );
    }

    #[test]
    fn where_the_same_slot_is_taken_nodes_still_differ() {
        let pools = pools(DUAL);
        let request = SubnetRequest {
            pools: &pools,
            kept: vec![None; 2],
            taken: prefixes(&["fd00::/58"]),
            avoided: vec![],
        };
        let nodes = (1..50).map(|node| Some(Family::V4.address(node)));
        let subnets: Vec<Vec<Prefix>> = nodes.map(|ip| request.allocate(ip, 0).unwrap()).collect();
        assert!(subnets.iter().all(|subnets| !request.is_aligned(subnets)));
        let distinct: BTreeSet<_> = subnets.iter().map(|subnets| subnets[1]).collect();
        assert_eq!(distinct.len(), subnets.len());
    }

    #[test]
    fn one_slot_of_both_families_is_in_step() {
        let pools = pools(DUAL);
        let request = SubnetRequest {
            pools: &pools,
            kept: vec![None; 2],
            taken: Vec::new(),
            avoided: vec![],
        };
        assert!(request.is_aligned(&request.allocate(slot_of("192.168.0.9").0, 0).unwrap()));
        assert!(!request.is_aligned(&prefixes(&["10.5.115.0/24", "fd00:0:0:74::/64"])));
    }

    #[test]
    fn a_huge_pool_is_not_enumerated() {
        let huge = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/8","IPv6SubnetLen":126}"#;
        let subnet = allocated(huge, &["fd00::/64"], (None, u128::MAX >> 4));
        assert!(subnet.ends_with("/126"), "{subnet}");
    }

    #[test]
    fn a_kept_subnet_determines_the_slot_of_the_other_family() {
        let pools = pools(DUAL);
        let kept = vec![Some("10.5.7.0/24".parse().unwrap()), None];
        let request = SubnetRequest {
            pools: &pools,
            kept,
            taken: prefixes(&["10.5.7.0/24"]),
            avoided: vec![],
        };
        let subnets = request.allocate(None, 99).unwrap();
        assert_eq!(subnets, prefixes(&["10.5.7.0/24", "fd00:0:0:7::/64"]));
    }

    prop_compose! {
        fn any_taken()(slot in 0_u32..300, len in 18_u8..28) -> Prefix {
            Prefix::holding(Family::V4.address(u128::from(0x0a05_0000 + (slot << 8))), len).unwrap()
        }
    }

    proptest! {
        #[test]
        fn free_slots_are_those_without_overlap(
            held in proptest::collection::vec(any_taken(), 0..40),
        ) {
            let pool = pools(V4)[0];
            let is_free = |slot: &u128| !held.iter().any(|prefix| prefix.overlaps(pool.subnet(*slot)));
            let expected: BTreeSet<u128> = (0..pool.count()).filter(is_free).collect();
            let free = Free::of(&pool, held.iter());
            prop_assert_eq!(free.count, expected.len() as u128);
            let listed: BTreeSet<u128> = (0..free.count).map(|index| free.nth(index).unwrap()).collect();
            prop_assert_eq!(&listed, &expected);
            prop_assert!((0..300).all(|slot| free.holds(slot) == expected.contains(&slot)));
        }

        #[test]
        fn an_allocated_subnet_is_free_and_of_the_pool(
            held in proptest::collection::vec(any_taken(), 0..40), ip: u32, random: u128,
        ) {
            let pools = pools(V4);
            let request = SubnetRequest { pools: &pools, kept: vec![None], taken: held.clone(), avoided: vec![] };
            let public_ip = Some(Family::V4.address(ip.into()));
            if let Ok(subnets) = request.allocate(public_ip, random) {
                prop_assert!(pools[0].assigns(subnets[0]));
                prop_assert!(!held.iter().any(|prefix| prefix.overlaps(subnets[0])));
            }
        }
    }
}
