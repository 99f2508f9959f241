//! Which lease a node takes: the one its pods live on, wherever that can be proved.

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use super::Error;
use super::allocate::Wish;
use crate::model::config::Pool;
use crate::model::lease::LeaseId;
use crate::model::prefix::Prefix;

/// What a node knows from before its restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    /// The subnets that its pods got.
    pub subnets: Vec<Prefix>,
    /// The handle of its lease's term.
    pub grant: Option<i64>,
    /// When its lease was created, in the store's own count.
    pub created: Option<u64>,
    /// What it published in that lease.
    pub public_ips: Vec<IpAddr>,
    /// Where the subnets were written, for the error that sends people there.
    pub subnet_file: String,
}

/// A node that asks for a lease.
#[derive(Clone, Debug)]
pub struct Claimant<'a> {
    pub pools: &'a [Pool],
    /// One per pool.
    pub public_ips: Vec<IpAddr>,
    pub previous: &'a Previous,
    /// Where this host has addresses: no new subnet is allocated there.
    pub occupied: &'a [Prefix],
}

/// Who holds what, as far as the choice of a subnet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub id: LeaseId,
    pub subnets: Vec<Prefix>,
    /// None if the record is malformed.
    pub public_ips: Vec<IpAddr>,
    pub grant: Option<i64>,
    /// In the store's own count.
    pub created: u64,
}

/// What to do to hold a lease.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    pub way: Way<'a>,
    /// Leases of this node that the pools do not hand out.
    pub obsolete: Vec<LeaseId>,
}

#[derive(Clone, Debug)]
pub enum Way<'a> {
    /// Publish under a lease that is there and ours.
    Take(LeaseId),
    Create(Wish<'a>),
}

impl Holding {
    /// Who it is, for the log.
    pub fn holder(&self) -> String {
        match self.public_ips.first() {
            Some(public_ip) => format!("the node with public IP {public_ip}"),
            None => format!("key {}", self.id),
        }
    }

    pub fn overlaps(&self, subnet: Prefix) -> bool {
        self.subnets.iter().any(|held| held.overlaps(subnet))
    }
}

impl<'a> Claimant<'a> {
    /// # Errors
    /// The subnet of our pods is another's.
    pub fn claim(&self, holdings: &[Holding]) -> Result<Claim<'a>, Error> {
        let (ours, mut others): (Vec<_>, Vec<_>) =
            holdings.iter().partition(|held| self.owns(held));
        let (usable, mut obsolete): (Vec<&Holding>, Vec<&Holding>) =
            ours.into_iter().partition(|held| self.can_use(held));
        let previous = usable.iter().find(|held| self.had(held));
        let previous =
            previous.or_else(|| others.iter().find(|held| self.outlives(held, holdings)));
        // Pods may run on the previous subnet: no other lease of ours goes before it.
        let other = || usable.first().filter(|_| !self.has_previous());
        let way = if let Some(held) = previous.or_else(other) {
            Way::Take(held.id.clone())
        } else {
            // An operator's reservation is not ours to give up.
            let (reserved, left) =
                usable.into_iter().partition::<Vec<_>, _>(|held| is_reservation(held));
            obsolete.extend(left);
            others.extend(reserved);
            Way::Create(self.wish(&obsolete, &others)?)
        };
        Ok(Claim { way, obsolete: obsolete.into_iter().map(|held| held.id.clone()).collect() })
    }

    /// By a public IP of ours, or by the term that we held before.
    pub fn owns(&self, held: &Holding) -> bool {
        meet(&held.public_ips, &self.public_ips) || self.proves_by_term(held)
    }

    /// Whether another public IP stands in `held`.
    pub fn is_of_another(&self, held: &Holding) -> bool {
        !held.public_ips.is_empty() && !meet(&held.public_ips, &self.public_ips)
    }

    /// Whether our public IP is the one that we knew, if we knew one: else we may be a copy.
    pub fn has_stayed(&self) -> bool {
        self.previous.public_ips.is_empty() || meet(&self.previous.public_ips, &self.public_ips)
    }

    /// A copy of this machine knows the same term. It proves nothing if this node has moved, and the
    /// lease shows neither its old public IP nor its new one.
    fn proves_by_term(&self, held: &Holding) -> bool {
        let same_term = held.grant.is_some() && held.grant == self.previous.grant;
        let is_as_known =
            held.public_ips.is_empty() || meet(&held.public_ips, &self.previous.public_ips);
        same_term && (self.has_stayed() || is_as_known)
    }

    /// Previous subnets that no pool hands out.
    pub fn forgotten(&self) -> impl Iterator<Item = Prefix> + '_ {
        let hands_out = |subnet: &Prefix| self.pools.iter().any(|pool| pool.hands_out(*subnet));
        self.previous.subnets.iter().copied().filter(move |subnet| !hands_out(subnet))
    }

    /// The error that names who holds `subnet`.
    pub fn taken(&self, subnet: Prefix, holder: &Holding) -> Error {
        let subnet_file = self.previous.subnet_file.clone();
        Error::Taken { subnet, holder: holder.holder(), subnet_file }
    }

    fn can_use(&self, held: &Holding) -> bool {
        let mut pairs = held.subnets.iter().zip(self.pools);
        held.subnets.len() == self.pools.len()
            && pairs.all(|(subnet, pool)| pool.hands_out(*subnet))
    }

    /// Whether a backup has brought `held` back, which had ended before our lease was created in its
    /// place, and the node that held it has a younger lease.
    fn outlives(&self, held: &Holding, holdings: &[Holding]) -> bool {
        let is_of_the_past = self.previous.created.is_some_and(|ours| held.created < ours);
        let is_younger = |other: &Holding| {
            other.created > held.created && meet(&other.public_ips, &held.public_ips)
        };
        self.had(held)
            && self.can_use(held)
            && held.grant.is_some()
            && is_of_the_past
            && holdings.iter().any(is_younger)
    }

    /// Whether a subnet of before can be had again.
    fn has_previous(&self) -> bool {
        let hands_out = |subnet: &Prefix| self.pools.iter().any(|pool| pool.hands_out(*subnet));
        self.previous.subnets.iter().any(hands_out)
    }

    fn had(&self, held: &Holding) -> bool {
        held.subnets.iter().any(|subnet| self.previous.subnets.contains(subnet))
    }

    fn wish(&self, obsolete: &[&Holding], others: &[&Holding]) -> Result<Wish<'a>, Error> {
        let kept = self.pools.iter().map(|pool| self.kept(pool, obsolete, others));
        let taken = others.iter().flat_map(|held| held.subnets.iter().copied());
        Ok(Wish {
            pools: self.pools,
            kept: kept.collect::<Result<_, _>>()?,
            taken: taken.collect(),
            avoided: self.avoided(others),
        })
    }

    /// Where hosts have addresses: a route to pods would cut them off.
    fn avoided(&self, others: &[&Holding]) -> Vec<Prefix> {
        let peers = others.iter().flat_map(|held| &held.public_ips);
        let public_ips = self.public_ips.iter().chain(peers).map(|ip| Prefix::host(*ip));
        self.occupied.iter().copied().chain(public_ips).collect()
    }

    /// The subnet of `pool` that we had: our pods', or that of a lease which lacks the other family.
    fn kept(
        &self,
        pool: &Pool,
        obsolete: &[&Holding],
        others: &[&Holding],
    ) -> Result<Option<Prefix>, Error> {
        let rival = |subnet: Prefix| others.iter().find(|held| held.overlaps(subnet));
        let previous = self.previous.subnets.iter().find(|subnet| pool.hands_out(**subnet));
        if let Some(subnet) = previous {
            return rival(*subnet).map_or(Ok(Some(*subnet)), |held| Err(self.taken(*subnet, held)));
        }
        let mut leased = obsolete.iter().flat_map(|held| held.subnets.iter().copied());
        Ok(leased.find(|subnet| pool.hands_out(*subnet) && rival(*subnet).is_none()))
    }
}

fn is_reservation(held: &Holding) -> bool {
    held.grant.is_none()
}

fn meet(some: &[IpAddr], others: &[IpAddr]) -> bool {
    some.iter().any(|public_ip| others.contains(public_ip))
}
