//! `tweedctl leases list`: the leases in the store, and the reason for each rejected one.

use std::fmt;
use std::path::Path;

use clap::Args;
use serde::Serialize;

use crate::model::lease::Endpoint;
use crate::model::status::LeaseStatus;
use crate::operator::layout::{TextTable, Tone, or_dash};
use crate::operator::node;
use crate::operator::output::{WatchFlag, is_named, numeric};
use crate::operator::{Answer, Error};

#[derive(Debug, Default, Args)]
pub(super) struct ListOptions {
    /// Only leases with a reason: rejected ones, and reservations that no node has taken
    #[arg(long)]
    failing: bool,
    /// Only the lease of this node, by name, public IP, subnet or lease
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    pub(super) watch: WatchFlag,
}

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct LeaseList(Vec<LeaseStatus>);

pub(super) async fn answer(options: &ListOptions, socket: &Path) -> Result<LeaseList, Error> {
    LeaseList::new(node::ask(socket, "/leases").await?).only(options)
}

impl LeaseList {
    /// In the order of subnets; leases without a subnet last.
    fn new(mut leases: Vec<LeaseStatus>) -> Self {
        leases.sort_by_cached_key(|LeaseStatus { lease, .. }| {
            let subnet = lease.subnets().min();
            (subnet.is_none(), subnet, numeric(lease.id.as_str()))
        });
        Self(leases)
    }

    fn only(mut self, ListOptions { failing, node, .. }: &ListOptions) -> Result<Self, Error> {
        if let Some(name) = node {
            self.0.retain(|LeaseStatus { lease, .. }| {
                let public_ips = lease.endpoints.iter().map(|endpoint| endpoint.public_ip);
                is_named(name, &lease.id, public_ips, lease.subnets())
            });
            if self.0.is_empty() {
                return Err(Error::Usage(format!("no lease is of a node {name}")));
            }
        }
        self.0.retain(|status| !failing || status.reason.is_some());
        Ok(self)
    }
}

impl Answer for LeaseList {}

impl fmt::Display for LeaseList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "there are no leases");
        }
        let mut table = TextTable::new(&["SUBNET", "PUBLIC IP", "BACKEND", "VTEP", "KIND"]);
        for status in &self.0 {
            let LeaseStatus { lease, reason, .. } = status;
            let kind = kind(status);
            let is_plain = reason.is_none() || status.reservation;
            let tone = if is_plain { Tone::Plain } else { Tone::Warning };
            if lease.endpoints.is_empty() {
                let kind = if status.reservation { kind } else { "-" };
                table.toned_row(tone, &[&lease.id, &"-", &"-", &"-", &kind], reason.clone());
            }
            for (rest, endpoint) in (0..lease.endpoints.len()).rev().zip(&lease.endpoints) {
                let backend = Some(endpoint.backend.as_str()).filter(|name| !name.is_empty());
                let (backend, vtep) = (or_dash(backend), or_dash(endpoint.vtep.map(|it| it.mac)));
                let note = reason.clone().filter(|_| rest == 0);
                let Endpoint { subnet, public_ip, .. } = endpoint;
                table.toned_row(tone, &[subnet, public_ip, &backend, &vtep, &kind], note);
            }
        }
        table.fmt(f)
    }
}

const fn kind(status: &LeaseStatus) -> &'static str {
    match (status.own, status.reservation) {
        (true, false) => "own",
        (true, true) => "own, reserved",
        (false, true) => "reserved",
        (false, false) => "peer",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::config::BackendType;
    use crate::model::lease::{Lease, LeaseId, PublishedBackend, Vtep};

    fn endpoint(subnet: &str, public_ip: &str) -> Endpoint {
        let mac = "c6:d2:32:6f:8f:44".parse().unwrap();
        Endpoint {
            subnet: subnet.parse().unwrap(),
            public_ip: public_ip.parse().unwrap(),
            backend: BackendType::Vxlan.into(),
            vtep: Some(Vtep { vni: Some(1), mac, source: None, mixed: false }),
        }
    }

    fn lease(endpoints: Vec<Endpoint>) -> LeaseStatus {
        let id = LeaseId::new("10.244.1.0-24");
        let lease = Lease { id, endpoints, created: 7, grant: Some(1) };
        LeaseStatus { lease, own: false, reservation: false, reason: None }
    }

    #[test]
    fn each_lease_shows_its_node_and_why_it_is_rejected() {
        let own = LeaseStatus {
            own: true,
            ..lease(vec![
                endpoint("10.244.1.0/24", "172.16.0.5"),
                endpoint("fd00:10:244:1::/64", "fd00:172::5"),
            ])
        };
        let reserved = LeaseStatus {
            reservation: true,
            ..lease(vec![Endpoint {
                backend: PublishedBackend::Other(String::new()),
                vtep: None,
                ..endpoint("10.244.7.0/24", "172.16.0.7")
            }])
        };
        let rejected = LeaseStatus {
            reason: Some(
                "rejected: its subnet conflicts with lease 10.244.3.0-24&fd00:10:244:3::-64".into(),
            ),
            ..lease(vec![
                endpoint("10.244.3.0/25", "172.16.0.8"),
                endpoint("fd00:10:244:8::/64", "fd00:172::8"),
            ])
        };
        let unreadable = LeaseStatus {
            reason: Some("rejected: its record cannot be read: the key names no subnet".into()),
            lease: Lease::unreadable(LeaseId::new("hello")),
            ..lease(Vec::new())
        };
        let vacant = LeaseStatus {
            reservation: true,
            reason: Some("reserved: no node gets this subnet".into()),
            lease: Lease::unreadable(LeaseId::new("10.244.9.0-24")),
            ..lease(Vec::new())
        };
        let text = LeaseList::new(vec![own, reserved, rejected, unreadable, vacant]).to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET              PUBLIC IP    BACKEND  VTEP               KIND
            10.244.1.0/24       172.16.0.5   vxlan    c6:d2:32:6f:8f:44  own
            fd00:10:244:1::/64  fd00:172::5  vxlan    c6:d2:32:6f:8f:44  own
            10.244.3.0/25       172.16.0.8   vxlan    c6:d2:32:6f:8f:44  peer
            fd00:10:244:8::/64  fd00:172::8  vxlan    c6:d2:32:6f:8f:44  peer
                rejected: its subnet conflicts with lease 10.244.3.0-24&fd00:10:244:3::-64
            10.244.7.0/24       172.16.0.7   -        -                  reserved
            10.244.9.0-24       -            -        -                  reserved
                reserved: no node gets this subnet
            hello               -            -        -                  -
                rejected: its record cannot be read: the key names no subnet
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn leases_are_sorted_by_number_and_filtered() {
        let numbered = |number: u8| LeaseStatus {
            lease: Lease {
                id: LeaseId::new(format!("10.244.{number}.0-24")),
                ..lease(vec![endpoint(
                    &format!("10.244.{number}.0/24"),
                    &format!("172.16.0.{number}"),
                )])
                .lease
            },
            reason: (number == 9).then(|| "rejected: why".to_owned()),
            ..lease(Vec::new())
        };
        let listed = |options: &ListOptions| {
            let list = LeaseList::new([10, 100, 9].map(numbered).into()).only(options)?;
            Ok(list.0.iter().map(|it| it.lease.id.to_string()).collect::<Vec<_>>())
        };
        let by_name = |name: &str| {
            listed(&ListOptions { node: Some(name.to_owned()), ..ListOptions::default() })
        };
        let all = ["10.244.9.0-24", "10.244.10.0-24", "10.244.100.0-24"];
        assert_eq!(listed(&ListOptions::default()).unwrap(), all);
        let failing = ListOptions { failing: true, ..ListOptions::default() };
        assert_eq!(listed(&failing).unwrap(), [all[0]]);
        assert_eq!(by_name("172.16.0.10").unwrap(), [all[1]]);
        let error: Error = by_name("172.16.0.1").unwrap_err();
        assert_eq!(error.to_string(), "no lease is of a node 172.16.0.1");
    }
}
