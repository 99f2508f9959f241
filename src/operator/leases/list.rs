//! `tweedctl leases list`: the leases in the store, and the reason for each rejected one.

use std::fmt;

use serde::Serialize;

use crate::model::lease::Endpoint;
use crate::model::status::LeaseStatus;
use crate::operator::Answer;
use crate::operator::layout::{Table, or_dash};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct LeaseList(pub(super) Vec<LeaseStatus>);

impl Answer for LeaseList {}

impl fmt::Display for LeaseList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "there are no leases");
        }
        let mut table = Table::new(&["SUBNET", "PUBLIC IP", "BACKEND", "VTEP", "KIND"]);
        for status in &self.0 {
            let LeaseStatus { lease, reason, .. } = status;
            let kind = kind(status);
            if lease.endpoints.is_empty() {
                let kind = if status.reservation { kind } else { "-" };
                table.row(&[&lease.id, &"-", &"-", &"-", &kind], reason.clone());
            }
            for (rest, endpoint) in (0..lease.endpoints.len()).rev().zip(&lease.endpoints) {
                let backend = Some(endpoint.backend.as_str()).filter(|name| !name.is_empty());
                let (backend, vtep) = (or_dash(backend), or_dash(endpoint.vtep.map(|it| it.mac)));
                let note = reason.clone().filter(|_| rest == 0);
                let Endpoint { subnet, public_ip, .. } = endpoint;
                table.row(&[subnet, public_ip, &backend, &vtep, &kind], note);
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
            vtep: Some(Vtep { vni: Some(1), mac, source: None }),
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
        let text = LeaseList(vec![own, reserved, rejected, unreadable, vacant]).to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET              PUBLIC IP    BACKEND  VTEP               KIND
            10.244.1.0/24       172.16.0.5   vxlan    c6:d2:32:6f:8f:44  own
            fd00:10:244:1::/64  fd00:172::5  vxlan    c6:d2:32:6f:8f:44  own
            10.244.7.0/24       172.16.0.7   -        -                  reserved
            10.244.3.0/25       172.16.0.8   vxlan    c6:d2:32:6f:8f:44  peer
            fd00:10:244:8::/64  fd00:172::8  vxlan    c6:d2:32:6f:8f:44  peer
                rejected: its subnet conflicts with lease 10.244.3.0-24&fd00:10:244:3::-64
            hello               -            -        -                  -
                rejected: its record cannot be read: the key names no subnet
            10.244.9.0-24       -            -        -                  reserved
                reserved: no node gets this subnet
        "]]
        .assert_eq(&text);
    }
}
