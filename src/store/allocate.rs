//! Which subnets of a pool are free, and which of them to take.

use std::net::IpAddr;

use super::Error;
use crate::model::config::Pool;
use crate::model::prefix::{Family, Prefix, number};

/// What a node wants of the pools.
#[derive(Clone, Debug)]
pub struct Wish<'a> {
    pub pools: &'a [Pool],
    /// Of each pool, the subnet that the node has already, if any.
    pub kept: Vec<Option<Prefix>>,
    /// Subnets of any length that other leases hold.
    pub taken: Vec<Prefix>,
    /// Where hosts have addresses: no subnet is newly taken there.
    pub avoided: Vec<Prefix>,
}

/// How to choose among the free subnets.
#[derive(Clone, Copy, Debug)]
pub enum Draw {
    /// The slot that belongs to this public IP, so that nodes that start together do not collide;
    /// if it is taken, as in `Any`.
    SlotOf(IpAddr, u128),
    /// Every free one with the same chance, for a random number.
    Any(u128),
}

impl Wish<'_> {
    /// A subnet of each pool, in their order. What is kept is taken for free.
    pub fn fulfil(&self, draw: Draw) -> Result<Vec<Prefix>, Error> {
        let mut leader = None;
        let mut subnets = Vec::new();
        for (pool, kept) in self.pools.iter().zip(&self.kept) {
            let subnet = match (kept, leader) {
                (Some(kept), _) => *kept,
                (None, None) => self.first(pool, draw)?,
                (None, Some(index)) => self.following(pool, index)?,
            };
            leader = leader.or_else(|| pool.index(subnet));
            subnets.push(subnet);
        }
        Ok(subnets)
    }

    fn first(&self, pool: &Pool, draw: Draw) -> Result<Prefix, Error> {
        let free = self.free(pool);
        let (slot, random) = match draw {
            Draw::SlotOf(public_ip, random) => (Some(number(public_ip) % pool.count()), random),
            Draw::Any(random) => (None, random),
        };
        let slot = slot.filter(|slot| free.holds(*slot));
        let any = || free.nth(random.checked_rem(free.count)?);
        slot.or_else(any).map(|index| pool.subnet(index)).ok_or_else(|| exhausted(pool))
    }

    /// The same slot as in the pool before, so that one family's uniqueness serves both; where
    /// that is taken, one that differs from node to node all the same.
    fn following(&self, pool: &Pool, leader: u128) -> Result<Prefix, Error> {
        let free = self.free(pool);
        let same = Some(leader % pool.count()).filter(|slot| free.holds(*slot));
        let other = || free.nth(leader.checked_rem(free.count)?);
        same.or_else(other).map(|index| pool.subnet(index)).ok_or_else(|| exhausted(pool))
    }

    /// A link that is wider than the pool would leave none: then only single addresses count.
    fn free(&self, pool: &Pool) -> Free {
        let leaves_some = |prefix: &&Prefix| {
            slots(pool, **prefix).is_some_and(|(first, last)| last - first + 1 < pool.count())
        };
        Free::of(pool, self.taken.iter().chain(self.avoided.iter().filter(leaves_some)))
    }

    /// Whether hosts have addresses in a subnet of `subnets` that is not one of before.
    pub fn avoids(&self, subnets: &[Prefix]) -> bool {
        let mut all = self.pools.iter().zip(&self.kept).zip(subnets);
        all.any(|((pool, kept), subnet)| {
            let index = pool.index(*subnet);
            kept.is_none() && index.is_some_and(|index| !self.free(pool).holds(index))
        })
    }

    /// Whether `subnets` are the same slot of all pools.
    pub fn in_step(&self, subnets: &[Prefix]) -> bool {
        let mut slots = self.pools.iter().zip(subnets).map(|(pool, subnet)| pool.index(*subnet));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }
}

/// The free slots of a pool: never listed one by one, since IPv6 pools are huge.
#[derive(Debug)]
struct Free {
    /// Runs of taken slots, first and last, in order and apart from each other.
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

    /// The free slot with `index` free ones before it.
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

/// The first and the last slot of `pool` that `prefix` touches.
fn slots(pool: &Pool, prefix: Prefix) -> Option<(u128, u128)> {
    let span = (number(pool.min.base()), number(pool.max.last()));
    let (first, last) = (number(prefix.base()), number(prefix.last()));
    let same_family = prefix.family() == Family::of(pool.min.base());
    let touches = same_family && first <= span.1 && last >= span.0;
    let slot = |address: u128| (address.clamp(span.0, span.1) - span.0) / pool.min.size();
    touches.then(|| (slot(first), slot(last)))
}

fn exhausted(pool: &Pool) -> Error {
    Error::Exhausted { pool: pool.network, count: pool.count() }
}

#[cfg(test)]
mod tests;
