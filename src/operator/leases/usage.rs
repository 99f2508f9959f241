//! `tweedctl leases usage`: how many subnets are left, and when a lease ends next. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::model::config::{NetworkConfig, Pool};
use crate::model::lease::LeaseId;
use crate::model::measurements::SubnetUsage;
use crate::model::prefix::{Family, Prefix};
use crate::operator::layout::{TextTable, age, counted, listed, wrap};
use crate::operator::{Answer, ExitStatus};
use crate::store::allocate::taken;
use crate::store::claim::HeldLease;
use crate::store::operator::{StoredLease, Term};

/// The subnets of a network.
#[derive(Debug, Serialize)]
pub(super) struct Usage {
    families: Vec<FamilyUsage>,
    /// The number of leases with a term.
    expiring: usize,
    /// The time from a renewal to the end of the lease, in seconds; the longest if nodes differ.
    ttl_seconds: Option<u64>,
    next_end: Option<End>,
}

#[derive(Debug, Serialize)]
struct FamilyUsage {
    family: Family,
    network: Prefix,
    subnets: u128,
    /// By leases of nodes, also if these are reservations.
    used: u128,
    /// By reservations that no node has taken.
    reserved: u128,
    free: u128,
}

/// The lease that ends first, unless it is renewed.
#[derive(Debug, Serialize)]
struct End {
    lease: LeaseId,
    /// The public IP of its node, if it can be read.
    holder: String,
    subnets: Vec<Prefix>,
    seconds: u64,
}

impl Usage {
    pub(super) fn new(
        leases: &[StoredLease],
        terms: &BTreeMap<i64, Term>,
        config: &NetworkConfig,
    ) -> Self {
        let held = leases.iter().map(|lease| &lease.held);
        let ends: Vec<(&Term, &HeldLease)> =
            held.filter_map(|held| Some((terms.get(&held.grant?)?, held))).collect();
        let next = ends.iter().min_by_key(|(term, _)| term.left).map(|(term, held)| End {
            lease: held.id.clone(),
            holder: held.holder(),
            subnets: held.subnets.clone(),
            seconds: term.left.as_secs(),
        });
        Self {
            families: config.pools.iter().map(|pool| FamilyUsage::new(pool, leases)).collect(),
            expiring: ends.len(),
            ttl_seconds: ends.iter().map(|(term, _)| term.whole.as_secs()).max(),
            next_end: next,
        }
    }

    fn scarce(&self) -> impl Iterator<Item = &FamilyUsage> {
        self.families.iter().filter(|family| family.is_scarce())
    }
}

impl FamilyUsage {
    fn new(pool: &Pool, leases: &[StoredLease]) -> Self {
        let subnets = |of: fn(&StoredLease) -> bool| {
            let leases = leases.iter().filter(move |lease| of(lease));
            leases.flat_map(|lease| &lease.held.subnets)
        };
        let used = taken(pool, subnets(|lease| !lease.is_vacant));
        let all = taken(pool, subnets(|_| true));
        Self {
            family: pool.network.family(),
            network: pool.network,
            subnets: pool.count(),
            used,
            reserved: all - used,
            free: pool.count() - all,
        }
    }

    fn is_scarce(&self) -> bool {
        let Self { family, used, reserved, free, .. } = *self;
        SubnetUsage { family, used: used + reserved, free }.is_nearly_exhausted()
    }

    fn percent(&self) -> u128 {
        (self.subnets - self.free).saturating_mul(100) / self.subnets
    }
}

impl Answer for Usage {
    fn exit_status(&self) -> ExitStatus {
        if self.scarce().next().is_some() { ExitStatus::Problems } else { ExitStatus::Done }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            TextTable::new(&["NETWORK", "SUBNETS", "USED", "RESERVED", "FREE", "TAKEN"]);
        for family in &self.families {
            let FamilyUsage { network, subnets, used, reserved, free, .. } = family;
            let percent = format!("{} %", family.percent());
            table.row(&[network, subnets, used, reserved, free, &percent], None);
        }
        writeln!(f, "{table}")?;
        if let (Some(ttl), Some(end)) = (self.ttl_seconds, &self.next_end) {
            let End { holder, subnets, seconds, .. } = end;
            let line = format!(
                "{} with a term of {}; the next to end, unless renewed, in {}: {} of {holder}",
                counted(self.expiring, "lease"),
                age(Duration::from_secs(ttl)),
                age(Duration::from_secs(*seconds)),
                listed(subnets, ""),
            );
            writeln!(f, "{}", wrap(&line, 2))?;
        }
        for family in self.scarce() {
            let warning = format!(
                "warning: {} % of the subnets of {} are taken: release those of nodes that are \
                 gone, or plan a larger network",
                family.percent(),
                family.network
            );
            writeln!(f, "{}", wrap(&warning, 2))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::store::etcd::key;

    fn lease(id: &str, public_ip: &str, grant: Option<i64>) -> StoredLease {
        let (id, public_ips) = (LeaseId::new(id), vec![public_ip.parse().unwrap()]);
        let held = HeldLease { subnets: key::claimed(&id), id, public_ips, grant, created: 1 };
        StoredLease { held, is_vacant: grant.is_none(), value: Vec::new(), revision: 7 }
    }

    fn usage(config: &str, leases: &[StoredLease]) -> Usage {
        let grants = leases.iter().filter_map(|lease| lease.held.grant);
        let term = |grant: i64| {
            let hours = |hours: i64| Duration::from_secs(hours.unsigned_abs() * 3600);
            (grant, Term { whole: hours(24), left: hours(grant) })
        };
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        Usage::new(leases, &grants.map(term).collect(), &config)
    }

    #[test]
    fn subnets_are_counted_once_and_the_next_end_is_shown() {
        let config = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;
        let usage = usage(
            config,
            &[
                lease("10.5.3.0-24&fd00:0:0:3::-64", "192.168.0.3", Some(17)),
                lease("10.5.4.0-22", "192.168.0.4", Some(3)),
                lease("10.5.5.0-24", "192.168.0.5", Some(20)),
                lease("10.5.9.0-24", "192.168.0.9", None),
                lease("10.6.9.0-24", "192.168.0.9", None),
            ],
        );
        let text = usage.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            NETWORK      SUBNETS  USED  RESERVED  FREE   TAKEN
            10.5.0.0/16  255      5     1         249    2 %
            fd00::/48    65535    1     0         65534  0 %

            3 leases with a term of 24 h; the next to end, unless renewed, in 3 h:
              10.5.4.0/22 of the node with public IP 192.168.0.4
        "]]
        .assert_eq(&text);
        assert_eq!(usage.exit_status(), ExitStatus::Done);
    }

    #[test]
    fn a_network_that_is_nearly_full_is_a_warning() {
        let config = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.10.0","SubnetMax":"10.5.19.0"}"#;
        let mut leases: Vec<StoredLease> = (10..18)
            .map(|third| lease(&format!("10.5.{third}.0-24"), "192.168.0.9", None))
            .collect();
        assert_eq!(usage(config, &leases).exit_status(), ExitStatus::Done);
        leases.push(lease("10.5.18.0-24", "192.168.0.9", Some(5)));
        let usage = usage(config, &leases);
        assert_eq!(usage.exit_status(), ExitStatus::Problems);
        let text = usage.to_string();
        assert!(text.contains("warning: 90 % of the subnets of 10.5.0.0/16 are taken"), "{text}");
    }
}
