//! Which lease a node takes: the one its pods live on, wherever that can be proved.

use std::net::IpAddr;

use super::Error;
use super::allocate::Wish;
use super::etcd::key;
use crate::config::Pool;
use crate::lease::{LeaseId, Record};
use crate::prefix::Prefix;

/// What a node knows from before its restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    /// The subnets that its pods got.
    pub subnets: Vec<Prefix>,
    /// The handle of its lease's term.
    pub grant: Option<i64>,
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
}

/// Who holds what, as far as the choice of a subnet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub id: LeaseId,
    pub subnets: Vec<Prefix>,
    /// None if the record is malformed.
    pub public_ips: Vec<IpAddr>,
    pub grant: Option<i64>,
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
    /// None if the record's key holds no subnet.
    pub fn of(record: &Record) -> Option<Self> {
        let subnets = key::claimed(&record.id);
        let endpoints = record.lease.as_ref().map_or(&[][..], |lease| &lease.endpoints);
        (!subnets.is_empty()).then(|| Self {
            id: record.id.clone(),
            subnets,
            public_ips: endpoints.iter().map(|endpoint| endpoint.public_ip).collect(),
            grant: record.lease.as_ref().ok().and_then(|lease| lease.grant),
        })
    }

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
        let (ours, others): (Vec<_>, Vec<_>) = holdings.iter().partition(|held| self.owns(held));
        let (usable, obsolete): (Vec<&Holding>, Vec<&Holding>) =
            ours.into_iter().partition(|held| self.can_use(held));
        let previous = usable.iter().find(|held| self.had(held));
        let way = match previous.or(usable.first()) {
            Some(held) => Way::Take(held.id.clone()),
            None => Way::Create(self.wish(&obsolete, &others)?),
        };
        Ok(Claim { way, obsolete: obsolete.into_iter().map(|held| held.id.clone()).collect() })
    }

    /// By a public IP of ours, or by the term that we held before.
    pub fn owns(&self, held: &Holding) -> bool {
        let by_grant = held.grant.is_some() && held.grant == self.previous.grant;
        by_grant || held.public_ips.iter().any(|public_ip| self.public_ips.contains(public_ip))
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
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetworkConfig;
    use crate::subnet::allocate::Draw;

    const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

    fn holding(id: &str, public_ips: &[&str], grant: i64) -> Holding {
        let id = LeaseId::new(id);
        let public_ips = public_ips.iter().map(|ip| ip.parse().unwrap()).collect();
        Holding { subnets: key::claimed(&id), id, public_ips, grant: Some(grant) }
    }

    fn previous(subnets: &[&str], grant: Option<i64>) -> Previous {
        let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
        Previous { subnets, grant, subnet_file: "/run/flannel/subnet.env".into() }
    }

    /// What a node with public IP 192.168.0.9 (and `fd01::9`) does, in one line.
    fn claimed(config: &str, holdings: &[Holding], previous: &Previous) -> String {
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        let public_ips = ["192.168.0.9", "fd01::9"].map(|ip| ip.parse().unwrap());
        let public_ips = public_ips.into_iter().take(config.pools.len()).collect();
        let claimant = Claimant { pools: &config.pools, public_ips, previous };
        let claim = match claimant.claim(holdings) {
            Ok(claim) => claim,
            Err(error) => return error.to_string(),
        };
        let way = match claim.way {
            Way::Take(id) => format!("take {id}"),
            Way::Create(wish) => {
                let kept =
                    wish.kept.iter().map(|kept| kept.map_or("any".into(), |k| k.to_string()));
                format!("create {}", kept.collect::<Vec<_>>().join(" "))
            }
        };
        claim.obsolete.iter().fold(way, |line, id| format!("{line}, drop {id}"))
    }

    #[test]
    fn the_previous_subnet_goes_before_another_lease_of_ours() {
        let leases = [
            holding("10.5.3.0-24", &["192.168.0.9"], 1),
            holding("10.5.4.0-24", &["192.168.0.9"], 2),
        ];
        assert_eq!(claimed(V4, &leases, &previous(&["10.5.4.0/24"], None)), "take 10.5.4.0-24");
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "take 10.5.3.0-24");
    }

    #[test]
    fn our_term_proves_a_lease_ours_although_the_public_ip_changed() {
        let leases = [holding("10.5.3.0-24", &["192.168.0.8"], 7)];
        let known = previous(&["10.5.3.0/24"], Some(7));
        assert_eq!(claimed(V4, &leases, &known), "take 10.5.3.0-24");
    }

    #[test]
    fn a_subnet_of_our_pods_that_another_holds_is_an_error() {
        let leases = [holding("10.5.3.0-24", &["192.168.0.8"], 7)];
        assert_eq!(
            claimed(V4, &leases, &previous(&["10.5.3.0/24"], Some(8))),
            "subnet 10.5.3.0/24 of this node is held by the node with public IP 192.168.0.8: \
             stop one of the two nodes, or remove /run/flannel/subnet.env to take a new subnet"
        );
        let wider = [holding("10.5.0.0-22", &[], 7)];
        let error = claimed(V4, &wider, &previous(&["10.5.3.0/24"], None));
        assert!(error.contains("is held by key 10.5.0.0-22"), "{error}");
    }

    #[test]
    fn a_free_previous_subnet_is_kept_if_the_pool_hands_it_out() {
        assert_eq!(claimed(V4, &[], &previous(&["10.5.3.0/24"], None)), "create 10.5.3.0/24");
        assert_eq!(claimed(V4, &[], &previous(&["10.6.3.0/24"], None)), "create any");
        assert_eq!(claimed(V4, &[], &previous(&["10.5.3.0/25"], None)), "create any");
    }

    #[test]
    fn leases_of_ours_that_no_pool_hands_out_are_dropped() {
        let leases = [
            holding("10.5.3.0-24", &["192.168.0.8"], 1),
            holding("10.6.3.0-24", &["192.168.0.9"], 2),
        ];
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "create any, drop 10.6.3.0-24");
    }

    #[test]
    fn a_second_family_leaves_the_first_where_it_is() {
        let single = [holding("10.5.3.0-24", &["192.168.0.9"], 1)];
        let line = "create 10.5.3.0/24 any, drop 10.5.3.0-24";
        assert_eq!(claimed(DUAL, &single, &previous(&["10.5.3.0/24"], None)), line);
        assert_eq!(claimed(DUAL, &single, &previous(&[], None)), line);
    }

    #[test]
    fn either_public_ip_makes_a_lease_ours() {
        let leases = [holding("10.5.3.0-24&fd00:0:0:3::-64", &["192.168.0.8", "fd01::9"], 1)];
        assert_eq!(
            claimed(DUAL, &leases, &previous(&[], None)),
            "take 10.5.3.0-24&fd00:0:0:3::-64"
        );
    }

    #[test]
    fn a_wish_counts_what_others_hold_as_taken() {
        let config = NetworkConfig::parse(V4.as_bytes()).unwrap();
        let known = previous(&[], None);
        let public_ips = vec!["192.168.0.9".parse().unwrap()];
        let claimant = Claimant { pools: &config.pools, public_ips, previous: &known };
        let claim = claimant.claim(&[holding("10.5.0.0-17", &["192.168.0.8"], 1)]).unwrap();
        let Way::Create(wish) = claim.way else { panic!("{:?}", claim.way) };
        assert_eq!(wish.fulfil(Draw::Any(0)).unwrap(), ["10.5.128.0/24".parse().unwrap()]);
    }
}
