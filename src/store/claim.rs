//! Decides which lease a node acquires: that of its pods, if it can prove that it held it.

use std::net::IpAddr;

use super::Error;
use super::allocate::SubnetRequest;
use crate::model::config::Pool;
use crate::model::lease::LeaseId;
use crate::model::prefix::Prefix;

/// What a node knows from before its restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Previous {
    /// The subnets of its pods.
    pub subnets: Vec<Prefix>,
    /// Its etcd lease.
    pub grant: Option<i64>,
    /// The store's revision that created its lease.
    pub created: Option<u64>,
    /// The public IPs that it published in that lease.
    pub public_ips: Vec<IpAddr>,
    /// The files that contain the subnets, for the error message.
    pub subnet_file: String,
}

/// A node that requests a lease.
#[derive(Clone, Debug)]
pub struct Claimant<'a> {
    pub pools: &'a [Pool],
    /// One per pool.
    pub public_ips: Vec<IpAddr>,
    pub previous: &'a Previous,
    /// Addresses of this host: no new subnet may overlap these.
    pub occupied: &'a [Prefix],
}

/// The properties of a lease that the allocation uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    pub id: LeaseId,
    pub subnets: Vec<Prefix>,
    /// None if the record is malformed.
    pub public_ips: Vec<IpAddr>,
    pub grant: Option<i64>,
    /// The store's revision that created it.
    pub created: u64,
}

/// What to do to hold a lease.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    pub allocation: Allocation<'a>,
    /// Leases of this node outside the pools.
    pub obsolete: Vec<LeaseId>,
}

#[derive(Clone, Debug)]
pub enum Allocation<'a> {
    /// Publish under an existing lease of this node.
    Existing(LeaseId),
    New(SubnetRequest<'a>),
}

impl HeldLease {
    /// The holder, for the log.
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
    /// Another node holds the subnet of our pods.
    pub fn claim(&self, holdings: &[HeldLease]) -> Result<Claim<'a>, Error> {
        let (ours, mut others): (Vec<_>, Vec<_>) =
            holdings.iter().partition(|held| self.owns(held));
        let (usable, mut obsolete): (Vec<&HeldLease>, Vec<&HeldLease>) =
            ours.into_iter().partition(|held| self.can_use(held));
        let replaced = || others.iter().find(|held| self.is_replaced(held, holdings));
        let previous = usable.iter().find(|held| self.held_before(held)).or_else(replaced);
        // Pods may run on the previous subnet: it has precedence over other leases of this node.
        let has_previous = || self.previous.subnets.iter().any(|subnet| self.is_in_pool(*subnet));
        // A reservation of an operator, or the oldest one: while etcd is busy, a node takes a younger one
        // before it has read them all, and may lose its power then.
        let oldest = || usable.iter().min_by_key(|held| (held.grant.is_some(), held.created));
        let other = || oldest().filter(|_| !has_previous());
        let allocation = if let Some(held) = previous.or_else(other) {
            Allocation::Existing(held.id.clone())
        } else {
            // A reservation belongs to the operator and is kept.
            let (reserved, renewed): (Vec<_>, Vec<_>) =
                usable.into_iter().partition(|held| held.grant.is_none());
            obsolete.extend(renewed);
            others.extend(reserved);
            Allocation::New(self.request(&obsolete, &others)?)
        };
        let obsolete = obsolete.into_iter().map(|held| held.id.clone()).collect();
        Ok(Claim { allocation, obsolete })
    }

    /// Whether the lease has a public IP of this node, or the etcd lease that it held before.
    pub fn owns(&self, held: &HeldLease) -> bool {
        have_common(&held.public_ips, &self.public_ips) || self.proves_by_grant(held)
    }

    /// Whether `held` has another public IP than this node.
    pub fn is_of_other_node(&self, held: &HeldLease) -> bool {
        !held.public_ips.is_empty() && !have_common(&held.public_ips, &self.public_ips)
    }

    /// Whether our public IP is the previous one, if that is known: else this machine may be a
    /// copy.
    pub fn keeps_public_ip(&self) -> bool {
        self.previous.public_ips.is_empty()
            || have_common(&self.previous.public_ips, &self.public_ips)
    }

    /// Whether the etcd lease proves that `held` is ours. A copy of this machine knows the same
    /// etcd lease, so it proves nothing if our public IP has changed and `held` has neither of the
    /// two.
    fn proves_by_grant(&self, held: &HeldLease) -> bool {
        let same_grant = held.grant.is_some() && held.grant == self.previous.grant;
        let is_as_known =
            held.public_ips.is_empty() || have_common(&held.public_ips, &self.previous.public_ips);
        same_grant && (self.keeps_public_ip() || is_as_known)
    }

    pub fn previous_outside_pools(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.previous.subnets.iter().copied().filter(|subnet| !self.is_in_pool(*subnet))
    }

    /// The error that names the holder of `subnet`.
    pub fn taken(&self, subnet: Prefix, holder: &HeldLease) -> Error {
        let subnet_file = self.previous.subnet_file.clone();
        Error::Taken { subnet, holder: holder.holder(), subnet_file }
    }

    fn can_use(&self, held: &HeldLease) -> bool {
        let mut pairs = held.subnets.iter().zip(self.pools);
        held.subnets.len() == self.pools.len() && pairs.all(|(subnet, pool)| pool.assigns(*subnet))
    }

    /// Whether a backup restored `held`, which ended before our lease was created in its place, and
    /// the node that held it has a newer lease.
    fn is_replaced(&self, held: &HeldLease, holdings: &[HeldLease]) -> bool {
        let is_older = self.previous.created.is_some_and(|ours| held.created < ours);
        let is_younger = |other: &HeldLease| {
            other.created > held.created && have_common(&other.public_ips, &held.public_ips)
        };
        self.held_before(held)
            && self.can_use(held)
            && held.grant.is_some()
            && is_older
            && holdings.iter().any(is_younger)
    }

    fn is_in_pool(&self, subnet: Prefix) -> bool {
        self.pools.iter().any(|pool| pool.assigns(subnet))
    }

    fn held_before(&self, held: &HeldLease) -> bool {
        held.subnets.iter().any(|subnet| self.previous.subnets.contains(subnet))
    }

    fn request(
        &self,
        obsolete: &[&HeldLease],
        others: &[&HeldLease],
    ) -> Result<SubnetRequest<'a>, Error> {
        let kept = self.pools.iter().map(|pool| self.kept(pool, obsolete, others));
        let taken = others.iter().flat_map(|held| held.subnets.iter().copied());
        Ok(SubnetRequest {
            pools: self.pools,
            kept: kept.collect::<Result<_, _>>()?,
            taken: taken.collect(),
            avoided: self.avoided(others),
        })
    }

    /// Addresses of hosts: a route to pods would make these hosts unreachable.
    fn avoided(&self, others: &[&HeldLease]) -> Vec<Prefix> {
        let peers = others.iter().flat_map(|held| &held.public_ips);
        let public_ips = self.public_ips.iter().chain(peers).map(|ip| Prefix::host(*ip));
        self.occupied.iter().copied().chain(public_ips).collect()
    }

    /// Our subnet of `pool`: that of our pods, or that of a lease without the other family.
    fn kept(
        &self,
        pool: &Pool,
        obsolete: &[&HeldLease],
        others: &[&HeldLease],
    ) -> Result<Option<Prefix>, Error> {
        let rival = |subnet: Prefix| others.iter().find(|held| held.overlaps(subnet));
        let previous = self.previous.subnets.iter().find(|subnet| pool.assigns(**subnet));
        if let Some(subnet) = previous {
            return rival(*subnet).map_or(Ok(Some(*subnet)), |held| Err(self.taken(*subnet, held)));
        }
        let mut leased = obsolete.iter().flat_map(|held| held.subnets.iter().copied());
        Ok(leased.find(|subnet| pool.assigns(*subnet) && rival(*subnet).is_none()))
    }
}

pub(super) fn have_common(some: &[IpAddr], others: &[IpAddr]) -> bool {
    some.iter().any(|public_ip| others.contains(public_ip))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::NetworkConfig;
    use crate::store::etcd::key;

    const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

    fn holding(id: &str, public_ips: &[&str], grant: i64) -> HeldLease {
        let id = LeaseId::new(id);
        let public_ips = public_ips.iter().map(|ip| ip.parse().unwrap()).collect();
        HeldLease { subnets: key::claimed(&id), id, public_ips, grant: Some(grant), created: 1 }
    }

    fn previous(subnets: &[&str], grant: Option<i64>) -> Previous {
        let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
        let subnet_file = "/run/flannel/subnet.env".into();
        Previous { subnets, grant, created: None, public_ips: Vec::new(), subnet_file }
    }

    /// What a node with public IP 192.168.0.9 (and `fd01::9`) does, as a line.
    fn claimed(config: &str, holdings: &[HeldLease], previous: &Previous) -> String {
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        let public_ips = ["192.168.0.9", "fd01::9"].map(|ip| ip.parse().unwrap());
        let public_ips = public_ips.into_iter().take(config.pools.len()).collect();
        let claimant = Claimant { pools: &config.pools, public_ips, previous, occupied: &[] };
        let claim = match claimant.claim(holdings) {
            Ok(claim) => claim,
            Err(error) => return error.to_string(),
        };
        let allocation = match claim.allocation {
            Allocation::Existing(id) => format!("take {id}"),
            Allocation::New(request) => {
                let kept =
                    request.kept.iter().map(|kept| kept.map_or("any".into(), |k| k.to_string()));
                format!("create {}", kept.collect::<Vec<_>>().join(" "))
            }
        };
        claim.obsolete.iter().fold(allocation, |line, id| format!("{line}, drop {id}"))
    }

    #[test]
    fn the_previous_subnet_has_precedence_over_another_lease_of_ours() {
        let leases = [
            holding("10.5.3.0-24", &["192.168.0.9"], 1),
            holding("10.5.4.0-24", &["192.168.0.9"], 2),
        ];
        assert_eq!(claimed(V4, &leases, &previous(&["10.5.4.0/24"], None)), "take 10.5.4.0-24");
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "take 10.5.3.0-24");
    }

    #[test]
    fn of_two_leases_of_ours_the_reserved_or_oldest_one_is_used() {
        let mut leases = [
            HeldLease { created: 2, ..holding("10.5.3.0-24", &["192.168.0.9"], 1) },
            holding("10.5.4.0-24", &["192.168.0.9"], 2),
        ];
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "take 10.5.4.0-24");
        leases[0].grant = None;
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "take 10.5.3.0-24");
    }

    #[test]
    fn our_etcd_lease_proves_a_lease_ours_after_a_change_of_the_public_ip() {
        let leases = [holding("10.5.3.0-24", &["192.168.0.8"], 7)];
        let known = previous(&["10.5.3.0/24"], Some(7));
        assert_eq!(claimed(V4, &leases, &known), "take 10.5.3.0-24");
    }

    /// Whether our previous public IP is that of the lease, our present one, or neither.
    #[test]
    fn a_copy_of_a_machine_proves_nothing_by_an_etcd_lease_with_another_public_ip() {
        let shows = |public_ip: &str| [holding("10.5.3.0-24", &[public_ip], 7)];
        let knew = |public_ip: &str| {
            let public_ips = vec![public_ip.parse().unwrap()];
            Previous { public_ips, ..previous(&["10.5.3.0/24"], Some(7)) }
        };
        let takes = |lease, known| claimed(V4, &shows(lease), &knew(known)) == "take 10.5.3.0-24";
        assert!(takes("192.168.0.8", "192.168.0.8"), "this machine has moved, or is a copy");
        assert!(takes("192.168.0.8", "192.168.0.9"), "the other has moved, or is a copy");
        assert!(!takes("192.168.0.8", "192.168.0.7"), "both have moved");
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

    /// A lease of another node that a backup restored, and what this node may know of its own.
    #[test]
    fn a_subnet_that_a_backup_restored_to_another_node_with_a_newer_lease_is_kept() {
        let created = |created, held| HeldLease { created, ..held };
        let old = created(40, holding("10.5.3.0-24", &["192.168.0.8"], 7));
        let moved = created(70, holding("10.5.8.0-24", &["192.168.0.8"], 7));
        let known = |created| Previous { created, ..previous(&["10.5.3.0/24"], Some(8)) };
        let both = [old.clone(), moved.clone()];
        assert_eq!(claimed(V4, &both, &known(Some(60))), "take 10.5.3.0-24");
        let is_taken =
            |holdings: &[HeldLease], known| claimed(V4, holdings, &known).contains("held by");
        assert!(is_taken(&both, known(Some(40))), "it may have been created after ours");
        assert!(is_taken(&both, known(None)));
        assert!(is_taken(std::slice::from_ref(&old), known(Some(60))), "its node has no other");
        assert!(
            is_taken(&[old.clone(), created(30, moved)], known(Some(60))),
            "its node had that before"
        );
        let reserved = HeldLease { grant: None, ..old };
        assert!(is_taken(&[reserved, both[1].clone()], known(Some(60))));
    }

    #[test]
    fn a_free_previous_subnet_of_the_pool_is_kept() {
        assert_eq!(claimed(V4, &[], &previous(&["10.5.3.0/24"], None)), "create 10.5.3.0/24");
        assert_eq!(claimed(V4, &[], &previous(&["10.6.3.0/24"], None)), "create any");
        assert_eq!(claimed(V4, &[], &previous(&["10.5.3.0/25"], None)), "create any");
    }

    #[test]
    fn leases_of_ours_outside_the_pools_are_deleted() {
        let leases = [
            holding("10.5.3.0-24", &["192.168.0.8"], 1),
            holding("10.6.3.0-24", &["192.168.0.9"], 2),
        ];
        assert_eq!(claimed(V4, &leases, &previous(&[], None)), "create any, drop 10.6.3.0-24");
    }

    #[test]
    fn a_second_family_keeps_the_subnet_of_the_first() {
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
    fn subnets_of_other_nodes_are_taken() {
        let config = NetworkConfig::parse(V4.as_bytes()).unwrap();
        let known = previous(&[], None);
        let public_ips = vec!["192.168.0.9".parse().unwrap()];
        let claimant =
            Claimant { pools: &config.pools, public_ips, previous: &known, occupied: &[] };
        let claim = claimant.claim(&[holding("10.5.0.0-17", &["192.168.0.8"], 1)]).unwrap();
        let Allocation::New(request) = claim.allocation else { panic!("{:?}", claim.allocation) };
        assert_eq!(request.allocate(None, 0).unwrap(), ["10.5.128.0/24".parse().unwrap()]);
    }

    #[test]
    fn the_previous_subnet_has_precedence_over_a_stale_lease() {
        let left_over = [holding("10.5.3.0-24", &["192.168.0.9"], 1)];
        let known = previous(&["10.5.4.0/24"], None);
        assert_eq!(claimed(V4, &left_over, &known), "create 10.5.4.0/24, drop 10.5.3.0-24");
        let reserved = left_over.map(|held| HeldLease { grant: None, ..held });
        assert_eq!(claimed(V4, &reserved, &known), "create 10.5.4.0/24");
        let [left_over] = reserved;
        let lost = [left_over, holding("10.5.4.0-24", &["192.168.0.8"], 2)];
        assert!(
            claimed(V4, &lost, &known).starts_with("subnet 10.5.4.0/24 of this node is held by")
        );
    }

    /// The first free subnet for a node with public IP 10.5.1.9, if its host has these addresses.
    fn first_free(occupied: &[&str], peers: &[HeldLease]) -> String {
        let known = Previous::default();
        let config = NetworkConfig::parse(V4.as_bytes()).unwrap();
        let occupied: Vec<Prefix> = occupied.iter().map(|text| text.parse().unwrap()).collect();
        let public_ips = vec!["10.5.1.9".parse().unwrap()];
        let claimant =
            Claimant { pools: &config.pools, public_ips, previous: &known, occupied: &occupied };
        let Allocation::New(request) = claimant.claim(peers).unwrap().allocation else {
            panic!("taken")
        };
        request.allocate(None, 0).unwrap()[0].to_string()
    }

    #[test]
    fn where_hosts_have_addresses_no_subnet_is_allocated() {
        assert_eq!(first_free(&[], &[]), "10.5.2.0/24", "its public IP lies in the first");
        assert_eq!(first_free(&["10.5.0.0/22", "10.5.1.9/32"], &[]), "10.5.4.0/24");
        let peers = [holding("10.5.200.0-24", &["10.5.2.7"], 1)];
        assert_eq!(first_free(&[], &peers), "10.5.3.0/24");
        // A link whose subnet contains the network does not reserve all of it.
        assert_eq!(first_free(&["10.0.0.0/8", "10.5.2.9/32"], &[]), "10.5.3.0/24");
    }
}
