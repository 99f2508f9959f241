//! `tweedctl peers`: every peer with its path, or the reason why it has none.

use std::fmt;

use serde::Serialize;

use super::layout::{Table, or_dash};
use super::{Answer, ExitStatus};
use crate::model::path::Path;
use crate::model::status::PeerStatus;

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct PeerList(pub(super) Vec<PeerStatus>);

impl Answer for PeerList {
    /// A peer that is planned without a path is no error; one whose path is not programmed is.
    fn exit_status(&self) -> ExitStatus {
        let all_programmed = self.0.iter().all(|peer| peer.path.is_none() || peer.programmed);
        if all_programmed { ExitStatus::Done } else { ExitStatus::Problems }
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "there are no peers");
        }
        let mut table = Table::new(&["SUBNET", "PUBLIC IP", "BACKEND", "PATH", "STATE"]);
        for peer in &self.0 {
            let subnet = peer.subnet.map_or_else(|| peer.lease.to_string(), |s| s.to_string());
            let backend = Some(&peer.backend).filter(|backend| !backend.is_empty());
            let (public_ip, backend) = (or_dash(peer.public_ip), or_dash(backend));
            let path = or_dash(peer.path.map(Path::as_str));
            let cells: [&dyn fmt::Display; 5] =
                [&subnet, &public_ip, &backend, &path, &state(peer)];
            table.row(&cells, peer.reason.clone());
        }
        table.fmt(f)
    }
}

const fn state(peer: &PeerStatus) -> &'static str {
    match (peer.path, peer.programmed) {
        (Some(Path::Direct | Path::Tunnel), true) => "programmed",
        (Some(Path::Direct | Path::Tunnel), false) => "incomplete",
        (None, _) => "no path",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::lease::LeaseId;
    use crate::model::prefix::Prefix;

    fn peer(subnet: &str, public_ip: &str, backend: &str) -> PeerStatus {
        let subnet: Prefix = subnet.parse().unwrap();
        PeerStatus {
            lease: LeaseId::new(subnet.to_string().replace('/', "-")),
            family: Some(subnet.family()),
            subnet: Some(subnet),
            public_ip: Some(public_ip.parse().unwrap()),
            backend: backend.into(),
            path: Some(Path::Tunnel),
            reason: None,
            programmed: true,
            probes: None,
        }
    }

    #[test]
    fn each_peer_shows_its_path_or_the_reason_for_none() {
        let direct = PeerStatus {
            path: Some(Path::Direct),
            ..peer("10.244.4.0/24", "172.16.0.10", "host-gw")
        };
        let skipped = PeerStatus {
            path: None,
            programmed: false,
            reason: Some("skipped: its backend is host-gw, ours is vxlan, and Mixed is off".into()),
            ..peer("10.244.5.0/24", "172.16.0.11", "host-gw")
        };
        let rejected = PeerStatus {
            family: None,
            subnet: None,
            public_ip: None,
            path: None,
            programmed: false,
            reason: Some("rejected: its record cannot be read: its value is no JSON object: expected value at line 1 column 1".into()),
            ..peer("10.244.6.0/24", "172.16.0.12", "")
        };
        let missing =
            PeerStatus { programmed: false, ..peer("10.244.7.0/24", "172.16.0.13", "vxlan") };
        let v6 = peer("fd00:10:244:3::/64", "fd00:172::9", "vxlan");
        let peers = [peer("10.244.3.0/24", "172.16.0.9", "vxlan"), v6, direct, skipped, rejected];
        assert_eq!(PeerList(peers.to_vec()).exit_status(), ExitStatus::Done);
        let peers = PeerList(peers.into_iter().chain([missing]).collect());
        assert_eq!(peers.exit_status(), ExitStatus::Problems);
        let text = peers.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET              PUBLIC IP    BACKEND  PATH    STATE
            10.244.3.0/24       172.16.0.9   vxlan    tunnel  programmed
            fd00:10:244:3::/64  fd00:172::9  vxlan    tunnel  programmed
            10.244.4.0/24       172.16.0.10  host-gw  direct  programmed
            10.244.5.0/24       172.16.0.11  host-gw  -       no path
                skipped: its backend is host-gw, ours is vxlan, and Mixed is off
            10.244.6.0-24       -            -        -       no path
                rejected: its record cannot be read: its value is no JSON object: expected
                  value at line 1 column 1
            10.244.7.0/24       172.16.0.13  vxlan    tunnel  incomplete
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn the_longest_addresses_still_fit() {
        let long = "2001:db8:1234:5678:9abc:def0:1234:5678";
        let peers = PeerList(vec![
            peer("2001:db8:1234:5678:9abc:def0::/96", long, "vxlan"),
            peer("10.244.3.0/24", "172.16.0.9", "vxlan"),
        ]);
        let text = peers.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET                     PUBLIC IP                 BACKEND  PATH    STATE
            2001:db8:1234:5678:9abc:def0::/96
                                       2001:db8:1234:5678:9abc:def0:1234:5678
                                                                 vxlan    tunnel  programmed
            10.244.3.0/24              172.16.0.9                vxlan    tunnel  programmed
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn without_peers_there_is_a_sentence() {
        assert_eq!(PeerList(vec![]).to_string(), "there are no peers\n");
    }
}
