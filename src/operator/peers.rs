//! `tweedctl peers`: every peer with its path and whether it answers by it, or the reason why it has
//! no path.

use std::fmt;

use serde::Serialize;

use super::layout::{Table, age, or_dash};
use super::{Answer, ExitStatus};
use crate::model::path::{DegradedCause, Path, PeerReachability, UnknownCause};
use crate::model::status::{PeerStatus, ProbeResults};

#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct PeerList(pub(super) Vec<PeerStatus>);

impl Answer for PeerList {
    /// A peer that is planned without a path is no error; one whose path is not programmed is.
    fn exit_status(&self) -> ExitStatus {
        let all_programmed = self.0.iter().all(|peer| peer.path.is_none() || peer.programmed);
        let is_failing = |it: PeerReachability| it.state().is_failing();
        let fails = self.0.iter().any(|peer| peer.reachability.is_some_and(is_failing));
        match (all_programmed, fails) {
            (false, _) => ExitStatus::Problems,
            (true, false) => ExitStatus::Done,
            (true, true) => ExitStatus::Failing,
        }
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return writeln!(f, "there are no peers");
        }
        let mut table =
            Table::new(&["SUBNET", "PUBLIC IP", "BACKEND", "PATH", "LOSS", "RTT", "SEEN", "STATE"]);
        for peer in &self.0 {
            let subnet = peer.subnet.map_or_else(|| peer.lease.to_string(), |s| s.to_string());
            let backend = Some(&peer.backend).filter(|backend| !backend.is_empty());
            let (public_ip, backend) = (or_dash(peer.public_ip), or_dash(backend));
            let path = or_dash(peer.path.map(Path::as_str));
            let results = used_path(peer);
            let (loss, rtt) = (or_dash(results.and_then(loss)), or_dash(results.and_then(rtt)));
            let seen = or_dash(results.and_then(|it| it.answered_ms_ago).map(age));
            let cells: [&dyn fmt::Display; 8] =
                [&subnet, &public_ip, &backend, &path, &loss, &rtt, &seen, &state(peer)];
            table.row(&cells, note(peer));
        }
        table.fmt(f)
    }
}

/// Whether its path is programmed and, if so, whether it answers by it.
const fn state(peer: &PeerStatus) -> &'static str {
    match (peer.path, peer.programmed, peer.reachability) {
        (None, ..) => "no path",
        (Some(_), false, _) => "incomplete",
        (Some(_), true, Some(PeerReachability::Unknown { cause: UnknownCause::DaemonSilent })) => {
            "unknown"
        }
        (Some(_), true, None | Some(PeerReachability::Unknown { .. })) => "programmed",
        (Some(_), true, Some(reachability)) => reachability.state().as_str(),
    }
}

/// Why it has no path, or not the direct one, and why it does not answer.
fn note(peer: &PeerStatus) -> Option<String> {
    let silence = peer.reachability.and_then(|reachability| match reachability {
        PeerReachability::Unreachable { cause, since_ms } => {
            let time = since_ms.map(|ms| format!(" for {}", age(ms))).unwrap_or_default();
            Some(format!("unreachable{time}: {cause}"))
        }
        PeerReachability::Unknown { cause: cause @ UnknownCause::DaemonSilent } => {
            Some(cause.to_string())
        }
        // The reason of its path names a direct path that fails.
        PeerReachability::Degraded { cause: DegradedCause::DirectFails }
        | PeerReachability::Reachable
        | PeerReachability::Unknown { .. } => None,
        PeerReachability::Degraded { cause } => Some(format!("degraded: {cause}")),
    });
    let notes: Vec<String> = peer.reason.clone().into_iter().chain(silence).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The probe results of its path.
fn used_path(peer: &PeerStatus) -> Option<&ProbeResults> {
    let probes = peer.probes.as_ref()?;
    match peer.path? {
        Path::Direct => probes.direct.as_ref(),
        Path::Tunnel => probes.tunnel.as_ref(),
    }
}

fn loss(results: &ProbeResults) -> Option<String> {
    let percent = (results.lost * 100).checked_div(results.asked)?;
    Some(format!("{percent} %"))
}

fn rtt(results: &ProbeResults) -> Option<String> {
    results.round_trip_us.map(|us| match us {
        ..1000 => format!("{us} us"),
        1000..10_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => format!("{} ms", us / 1000),
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::lease::LeaseId;
    use crate::model::path::{ProbeVerdict, UnreachableCause};
    use crate::model::prefix::Prefix;
    use crate::model::status::PathStatus;

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
            reachability: None,
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
            SUBNET              PUBLIC IP    BACKEND  PATH    LOSS  RTT  SEEN  STATE
            10.244.3.0/24       172.16.0.9   vxlan    tunnel  -     -    -     programmed
            fd00:10:244:3::/64  fd00:172::9  vxlan    tunnel  -     -    -     programmed
            10.244.4.0/24       172.16.0.10  host-gw  direct  -     -    -     programmed
            10.244.5.0/24       172.16.0.11  host-gw  -       -     -    -     no path
                skipped: its backend is host-gw, ours is vxlan, and Mixed is off
            10.244.6.0-24       -            -        -       -     -    -     no path
                rejected: its record cannot be read: its value is no JSON object: expected
                  value at line 1 column 1
            10.244.7.0/24       172.16.0.13  vxlan    tunnel  -     -    -     incomplete
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn unreachable_and_degraded_peers_show_the_cause() {
        let probed = |asked, lost, age, reachability| {
            let results =
                ProbeResults { asked, lost, round_trip_us: Some(412), answered_ms_ago: Some(age) };
            PeerStatus {
                probes: Some(PathStatus {
                    verdict: ProbeVerdict::Pending,
                    direct: None,
                    tunnel: Some(results),
                }),
                reachability: Some(reachability),
                ..peer("10.244.3.0/24", "172.16.0.9", "vxlan")
            }
        };
        let reachable = probed(100, 1, 700, PeerReachability::Reachable);
        let cause = DegradedCause::Loss;
        let degraded = probed(100, 7, 1200, PeerReachability::Degraded { cause });
        let (cause, since_ms) = (UnreachableCause::PeerSilent, Some(48_870));
        let unreachable =
            probed(100, 54, 49_870, PeerReachability::Unreachable { cause, since_ms });
        let cause = UnknownCause::NeverAnswered;
        let unknown = PeerStatus {
            reachability: Some(PeerReachability::Unknown { cause }),
            ..peer("10.244.3.0/24", "172.16.0.9", "vxlan")
        };
        let exit_status = |peer: &PeerStatus| PeerList(vec![peer.clone()]).exit_status();
        assert_eq!(exit_status(&reachable), ExitStatus::Done);
        assert_eq!(exit_status(&unknown), ExitStatus::Done);
        assert_eq!(exit_status(&degraded), ExitStatus::Failing);
        assert_eq!(exit_status(&unreachable), ExitStatus::Failing);
        let incomplete = PeerStatus { programmed: false, ..unreachable.clone() };
        assert_eq!(exit_status(&incomplete), ExitStatus::Problems);
        let cause = UnknownCause::DaemonSilent;
        let silent = probed(100, 54, 49_870, PeerReachability::Unknown { cause });
        assert_eq!(exit_status(&silent), ExitStatus::Done);
        let peers = [reachable, degraded, unreachable, incomplete, unknown, silent];
        let text = PeerList(peers.into()).to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET         PUBLIC IP   BACKEND  PATH    LOSS  RTT     SEEN  STATE
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  1 %   412 us  0 s   reachable
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  7 %   412 us  1 s   degraded
                degraded: 5 % or more of the last 100 probes were lost
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  54 %  412 us  49 s  unreachable
                unreachable for 48 s: no probe and no ping is answered: its host is down, or
                  a firewall drops the packets
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  54 %  412 us  49 s  incomplete
                unreachable for 48 s: no probe and no ping is answered: its host is down, or
                  a firewall drops the packets
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  -     -       -     programmed
            10.244.3.0/24  172.16.0.9  vxlan    tunnel  54 %  412 us  49 s  unknown
                its host answers pings by the same path, and no probe is answered: its
                  daemon is down, or a firewall drops the probes
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
            SUBNET            PUBLIC IP         BACKEND  PATH    LOSS  RTT  SEEN  STATE
            2001:db8:1234:5678:9abc:def0::/96
                              2001:db8:1234:5678:9abc:def0:1234:5678
                                                vxlan    tunnel  -     -    -     programmed
            10.244.3.0/24     172.16.0.9        vxlan    tunnel  -     -    -     programmed
        "]]
        .assert_eq(&text);
    }

    #[test]
    fn without_peers_there_is_a_sentence() {
        assert_eq!(PeerList(vec![]).to_string(), "there are no peers\n");
    }
}
