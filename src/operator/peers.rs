//! `tweedctl peers`: every peer with its path and whether it answers by it, or the reason why it has
//! no path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::layout::{TextTable, Tone, age, lasting, or_dash};
use super::node;
use super::output::{Selection, WatchFlag, is_named, numeric};
use super::{Answer, Error, ExitStatus};
use crate::model::lease::LeaseId;
use crate::model::path::{DegradedCause, Path, PeerReachability, UnknownCause};
use crate::model::status::{PeerStatus, ProbeResults};

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct PeersOptions {
    /// Only peers that are unreachable, degraded, incomplete or without path
    #[arg(long)]
    failing: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    pub(super) watch: WatchFlag,
}

const EXIT_CODES: &str = "\
Exit codes, by the peers that are listed:
  0  each one is programmed and answers, or is planned without a path
  1  the path of a peer is not completely in the kernel
  2  the command line is invalid, or --node names no peer
  3  no daemon answers
  5  a peer is degraded or unreachable, and nothing else is wrong";

/// The peers, or some of them.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct PeerList {
    rows: Vec<PeerStatus>,
    /// The number of all rows, also of those that are not listed.
    #[serde(skip)]
    total: usize,
}

pub(super) async fn answer(
    options: &PeersOptions,
    socket: &std::path::Path,
) -> Result<PeerList, Error> {
    PeerList::new(node::ask(socket, "/peers").await?).only(options)
}

impl PeerList {
    /// In the order of subnets; the families of a peer one after the other.
    fn new(mut rows: Vec<PeerStatus>) -> Self {
        let mut first = BTreeMap::new();
        for peer in &rows {
            let subnet = first.entry(peer.lease.clone()).or_insert(peer.subnet);
            *subnet = (*subnet).min(peer.subnet);
        }
        rows.sort_by_cached_key(|peer| {
            let subnet = first.get(&peer.lease).copied().flatten();
            (subnet.is_none(), subnet, numeric(peer.lease.as_str()), peer.family)
        });
        Self { total: rows.len(), rows }
    }

    fn only(mut self, options: &PeersOptions) -> Result<Self, Error> {
        let PeersOptions { failing, selection: Selection { node, family }, .. } = options;
        if let Some(name) = node {
            let named =
                self.rows.iter().filter(|it| is_named(name, &it.lease, it.public_ip, it.subnet));
            let leases: BTreeSet<LeaseId> = named.map(|peer| peer.lease.clone()).collect();
            if leases.is_empty() {
                return Err(Error::Usage(format!("no peer is named {name}")));
            }
            self.rows.retain(|peer| leases.contains(&peer.lease));
        }
        self.rows.retain(|peer| family.is_none() || peer.family == *family);
        self.rows.retain(|peer| !failing || is_failing(peer));
        Ok(self)
    }
}

/// Whether the operator should look at it.
fn is_failing(peer: &PeerStatus) -> bool {
    peer.path.is_none() || !peer.programmed || loses_packets(peer)
}

fn loses_packets(peer: &PeerStatus) -> bool {
    peer.reachability.is_some_and(|reachability| reachability.state().is_failing())
}

impl Answer for PeerList {
    /// A peer that is planned without a path is no error; one whose path is not programmed is.
    fn exit_status(&self) -> ExitStatus {
        let all_programmed = self.rows.iter().all(|peer| peer.path.is_none() || peer.programmed);
        match (all_programmed, self.rows.iter().any(loses_packets)) {
            (false, _) => ExitStatus::Problems,
            (true, false) => ExitStatus::Done,
            (true, true) => ExitStatus::Failing,
        }
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rows.len(), self.total) {
            (0, 0) => return writeln!(f, "there are no peers"),
            (0, total) => return writeln!(f, "none of {total} peers is listed"),
            _ => {}
        }
        let mut table = TextTable::new(&[
            "SUBNET",
            "PUBLIC IP",
            "BACKEND",
            "PATH",
            "LOSS",
            "RTT",
            "SEEN",
            "STATE",
        ]);
        for peer in &self.rows {
            let subnet = peer.subnet.map_or_else(|| peer.lease.to_string(), |s| s.to_string());
            let backend = Some(&peer.backend).filter(|backend| !backend.is_empty());
            let (public_ip, backend) = (or_dash(peer.public_ip), or_dash(backend));
            let path = or_dash(peer.path.map(Path::as_str));
            let results = used_path(peer);
            let (loss, rtt) = (or_dash(results.and_then(loss)), or_dash(results.and_then(rtt)));
            let seen = results.and_then(|it| it.answered_ms_ago).map(Duration::from_millis);
            let seen = or_dash(seen.map(age));
            let cells: [&dyn fmt::Display; 8] =
                [&subnet, &public_ip, &backend, &path, &loss, &rtt, &seen, &state(peer)];
            table.toned_row(tone(peer), &cells, note(peer));
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

fn tone(peer: &PeerStatus) -> Tone {
    match (peer.path, peer.programmed) {
        (None, _) => Tone::Warning,
        (Some(_), false) => Tone::Bad,
        (Some(_), true) => peer.reachability.map(|it| it.state()).into(),
    }
}

/// Why it has no path, or not the direct one, and why it does not answer.
fn note(peer: &PeerStatus) -> Option<String> {
    let silence = peer.reachability.and_then(|reachability| match reachability {
        PeerReachability::Unreachable { cause, since_ms } => {
            let time = lasting(since_ms.map(Duration::from_millis));
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
    use clap::Parser;
    use expect_test::expect;

    use super::*;
    use crate::model::path::{ProbeVerdict, UnreachableCause};
    use crate::model::prefix::Prefix;
    use crate::model::status::PathStatus;
    use crate::operator::{Arguments, Command};

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
        assert_eq!(PeerList::new(peers.to_vec()).exit_status(), ExitStatus::Done);
        let peers = PeerList::new(peers.into_iter().chain([missing]).collect());
        assert_eq!(peers.exit_status(), ExitStatus::Problems);
        let text = peers.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET              PUBLIC IP    BACKEND  PATH    LOSS  RTT  SEEN  STATE
            10.244.3.0/24       172.16.0.9   vxlan    tunnel  -     -    -     programmed
            10.244.4.0/24       172.16.0.10  host-gw  direct  -     -    -     programmed
            10.244.5.0/24       172.16.0.11  host-gw  -       -     -    -     no path
                skipped: its backend is host-gw, ours is vxlan, and Mixed is off
            10.244.7.0/24       172.16.0.13  vxlan    tunnel  -     -    -     incomplete
            fd00:10:244:3::/64  fd00:172::9  vxlan    tunnel  -     -    -     programmed
            10.244.6.0-24       -            -        -       -     -    -     no path
                rejected: its record cannot be read: its value is no JSON object: expected
                  value at line 1 column 1
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
        let exit_status = |peer: &PeerStatus| PeerList::new(vec![peer.clone()]).exit_status();
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
        let text = PeerList::new(peers.into()).to_string();
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
        let peers = PeerList::new(vec![
            peer("2001:db8:1234:5678:9abc:def0::/96", long, "vxlan"),
            peer("10.244.3.0/24", "172.16.0.9", "vxlan"),
        ]);
        let text = peers.to_string();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r"
            SUBNET            PUBLIC IP         BACKEND  PATH    LOSS  RTT  SEEN  STATE
            10.244.3.0/24     172.16.0.9        vxlan    tunnel  -     -    -     programmed
            2001:db8:1234:5678:9abc:def0::/96
                              2001:db8:1234:5678:9abc:def0:1234:5678
                                                vxlan    tunnel  -     -    -     programmed
        "]]
        .assert_eq(&text);
    }

    /// The first columns of each row that `tweedctl peers` lists.
    fn listed(line: &str) -> Result<Vec<String>, Error> {
        let words = ["tweedctl", "peers"].into_iter().chain(line.split_whitespace());
        let Command::Peers(options) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("another command")
        };
        let named = |lease: &str, subnet, public_ip| PeerStatus {
            lease: LeaseId::new(lease),
            ..peer(subnet, public_ip, "vxlan")
        };
        let mut peers = vec![
            named("n10", "10.244.10.0/24", "172.16.0.10"),
            named("n10", "fd00:10:244:a::/64", "fd00:172::a"),
            named("n8", "10.244.8.0/24", "172.16.0.8"),
            named("n9", "10.244.9.0/24", "172.16.0.9"),
            PeerStatus { subnet: None, path: None, ..named("n7", "10.244.7.0/24", "172.16.0.7") },
        ];
        let (cause, since_ms) = (UnreachableCause::PeerSilent, None);
        peers[1].reachability = Some(PeerReachability::Unreachable { cause, since_ms });
        peers[2].programmed = false;
        let text = PeerList::new(peers).only(&options)?.to_string();
        let rows = text.lines().filter(|line| !line.starts_with([' ', 'S']));
        Ok(rows.map(|row| row.split("  ").next().unwrap().to_owned()).collect())
    }

    #[test]
    fn peers_are_sorted_by_number_and_filtered() {
        let all = ["10.244.8.0/24", "10.244.9.0/24", "10.244.10.0/24", "fd00:10:244:a::/64", "n7"];
        assert_eq!(listed("").unwrap(), all);
        assert_eq!(listed("--failing").unwrap(), [all[0], all[3], all[4]]);
        // Both families of the node are listed, whichever one names it.
        for name in ["n10", "172.16.0.10", "fd00:172::a", "10.244.10.0/24", "fd00:10:244:a::/64"] {
            assert_eq!(listed(&format!("--node {name}")).unwrap(), all[2..4], "{name}");
        }
        assert_eq!(listed("--node n10 --family v4").unwrap(), [all[2]]);
        assert_eq!(listed("--family v6").unwrap(), [all[3]]);
        let none = ["none of 5 peers is listed"];
        assert_eq!(listed("--failing --node n10 --family v4").unwrap(), none);
        assert_eq!(listed("--node n1").unwrap_err().to_string(), "no peer is named n1");
    }

    #[test]
    fn without_peers_there_is_a_sentence() {
        assert_eq!(PeerList::new(vec![]).to_string(), "there are no peers\n");
    }
}
