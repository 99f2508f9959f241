//! Whether peers answer, as the daemon reports it: which do not, the cause, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Port;
use super::{Finding, Level};
use crate::model::lease::LeaseId;
use crate::model::path::{
    DegradedCause, PeerReachability, ReachabilityState, UnknownCause, UnreachableCause,
};
use crate::model::status::{PeerStatus, ProbeStatus};

/// The number of peers that a finding names.
const NAMED: usize = 3;

/// The names of the nodes of some peers: a node with two address families counts once.
type Names<'a> = BTreeMap<&'a LeaseId, String>;

/// `probes` is none while probes are turned off.
pub fn findings(
    peers: &[PeerStatus],
    probes: Option<&ProbeStatus>,
    ports: &[Port],
) -> Vec<Finding> {
    let known = || peers.iter().filter_map(|peer| Some((peer.reachability?, peer)));
    let nodes: BTreeSet<_> = known().map(|(_, peer)| &peer.lease).collect();
    let finding = |(group, peers): (PeerReachability, Vec<&PeerStatus>)| {
        let mut names = Names::new();
        for peer in peers {
            names.entry(&peer.lease).or_insert_with(|| name(peer));
        }
        finding(&group, what(group.state(), &names, nodes.len()), probes, ports)
    };
    let groups = PeerReachability::groups(known()).into_iter().filter_map(finding);
    without_path(peers).into_iter().chain(groups).collect()
}

/// The peers that are skipped or rejected.
fn without_path(peers: &[PeerStatus]) -> Option<Finding> {
    let mut found = peers.iter().filter(|peer| peer.path.is_none()).peekable();
    let why = found.peek()?.reason.clone().unwrap_or_default();
    let names: Names<'_> = found.map(|peer| (&peer.lease, name(peer))).collect();
    let all: BTreeSet<_> = peers.iter().map(|peer| &peer.lease).collect();
    let what = cut(&names, &format!("of {} peers have no path", all.len()));
    let fix =
        "run tweedctl peers: each has its reason, which docs/guides/troubleshooting.md explains";
    let (id, level, place) = ("peer-without-path", Level::Warning, "routes".to_owned());
    Some(Finding { id, level, what, place, why, fix: fix.to_owned(), drop_in: None })
}

/// As in `10.244.7.0/24 (172.16.0.7)`, or the name of its Node instead of its subnet.
fn name(peer: &PeerStatus) -> String {
    let lease = peer.lease.to_string();
    let subnet = peer.subnet.map(|subnet| subnet.to_string());
    // In etcd, the name of a lease is made of its subnets.
    let is_key = |subnet: &String| lease.contains(&subnet.replace('/', "-"));
    let name = subnet.filter(is_key).unwrap_or(lease);
    peer.public_ip.map_or_else(|| name.clone(), |ip| format!("{name} ({ip})"))
}

/// As in `2 of 48 peers are unreachable: a, b`.
fn what(state: ReachabilityState, names: &Names<'_>, nodes: usize) -> String {
    let are = if names.len() == 1 { "is" } else { "are" };
    let state = match state {
        ReachabilityState::Unknown => "not known to answer",
        known => known.as_str(),
    };
    cut(names, &format!("of {nodes} peers {are} {state}"))
}

/// The number of these, and the first of their names.
fn cut(names: &Names<'_>, are: &str) -> String {
    let more = names.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    let shown: Vec<String> = names.values().take(NAMED).cloned().chain(more).collect();
    format!("{} {are}: {}", names.len(), shown.join(", "))
}

/// None for peers that answer.
fn finding(
    group: &PeerReachability,
    what: String,
    probes: Option<&ProbeStatus>,
    ports: &[Port],
) -> Option<Finding> {
    let reason = probes.and_then(|probes| probes.reason.as_ref());
    let (id, level) = match group {
        PeerReachability::Reachable => return None,
        PeerReachability::Degraded { .. } => ("peer-degraded", Level::Warning),
        PeerReachability::Unreachable { .. } => ("peer-unreachable", Level::Warning),
        // Probes that are turned off are no fault; probes that cannot be sent are.
        PeerReachability::Unknown { .. } if reason.is_some() => ("peer-unknown", Level::Unknown),
        PeerReachability::Unknown { .. } => ("peer-unknown", Level::Note),
    };
    let why = match (group, reason) {
        (PeerReachability::Unknown { .. }, Some(reason)) => {
            format!("paths are not probed: {reason}")
        }
        _ => group.cause().unwrap_or_default(),
    };
    let (place, fix) = (listed(ports), fix(group, ports));
    Some(Finding { id, level, what, place, why, fix, drop_in: None })
}

/// As in `UDP ports 8472 (tunnel) and 8475 (probes)`.
fn listed(ports: &[Port]) -> String {
    let port = |port: &Port| match port {
        Port::Tunnel(number) => format!("{number} (tunnel)"),
        Port::Probes(number) => format!("{number} (probes)"),
    };
    match ports {
        [] => "direct routes".to_owned(),
        [only] => format!("UDP port {}", port(only)),
        several => {
            let ports: Vec<String> = several.iter().map(port).collect();
            format!("UDP ports {}", ports.join(" and "))
        }
    }
}

fn fix(group: &PeerReachability, ports: &[Port]) -> String {
    let (all, pods) = (listed(ports), "packets with addresses of pods");
    let tunnel: Vec<Port> =
        ports.iter().copied().filter(|it| matches!(it, Port::Tunnel(_))).collect();
    let probes: Vec<Port> =
        ports.iter().copied().filter(|it| matches!(it, Port::Probes(_))).collect();
    match group {
        PeerReachability::Reachable => String::new(),
        PeerReachability::Unreachable { cause, .. } => match cause {
            UnreachableCause::TunnelSilent => format!(
                "allow {} between this host and these peers, in both directions, in the firewalls \
                 of the hosts and of the network",
                listed(&tunnel)
            ),
            UnreachableCause::DirectSilent => format!(
                "allow {pods}, and {all}, between this host and these peers: turn off checks of \
                 source and destination in the network"
            ),
            UnreachableCause::OneDirection => format!(
                "allow {all} from this host to these peers: check the rules for sending here and \
                 for receiving there"
            ),
            UnreachableCause::PeerSilent => format!(
                "run tweedctl doctor on these peers; if they run and are ready, allow {all} \
                 between the hosts"
            ),
            UnreachableCause::AllSilent => format!(
                "check the link and the firewall of this host: {all} must be open in both \
                 directions"
            ),
        },
        PeerReachability::Degraded { cause } => match cause {
            DegradedCause::Loss => {
                "look for errors of the links between the hosts: ip -s link, ethtool -S".to_owned()
            }
            DegradedCause::LargeLost => {
                "raise the MTU of the network's links, or set that of the hosts' interfaces (with a \
                 tunnel: Backend.MTU) to what they carry"
                    .to_owned()
            }
            DegradedCause::DirectFails => {
                format!("allow {pods}, and {all}, between the hosts of the link")
            }
        },
        PeerReachability::Unknown { cause } => match cause {
            UnknownCause::ProbesOff => {
                "see docs/operations.md, section Path probes: what probes need".to_owned()
            }
            UnknownCause::TooEarly => "run tweedctl doctor again in some seconds".to_owned(),
            UnknownCause::NeverAnswered => format!(
                "if these peers run tweedd, run tweedctl doctor there, and allow {all}; flannel \
                 answers no probes"
            ),
            UnknownCause::DaemonSilent => format!(
                "look at the daemon of these peers; if it runs and is ready, allow {} between the \
                 networks of pods",
                listed(&probes)
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::model::path::Path;

    const PORTS: [Port; 2] = [Port::Tunnel(8472), Port::Probes(8475)];

    fn peer(lease: &str, subnet: &str, reachability: PeerReachability) -> PeerStatus {
        PeerStatus {
            lease: LeaseId::new(lease.to_owned()),
            subnet: Some(subnet.parse().unwrap()),
            public_ip: Some("172.16.0.7".parse().unwrap()),
            path: Some(Path::Tunnel),
            reachability: Some(reachability),
            ..PeerStatus::default()
        }
    }

    fn unreachable(cause: UnreachableCause) -> PeerReachability {
        PeerReachability::Unreachable { cause, since_ms: Some(48_000) }
    }

    fn unknown(cause: UnknownCause) -> PeerReachability {
        PeerReachability::Unknown { cause }
    }

    fn words(peers: &[PeerStatus], probes: Option<&ProbeStatus>) -> Vec<String> {
        let found = findings(peers, probes, &PORTS);
        found.iter().map(|it| format!("{} {}: {}", it.level.as_str(), it.id, it.what)).collect()
    }

    #[test]
    fn each_cause_has_a_fix_of_its_own() {
        let causes = [
            unreachable(UnreachableCause::TunnelSilent),
            unreachable(UnreachableCause::DirectSilent),
            unreachable(UnreachableCause::OneDirection),
            unreachable(UnreachableCause::PeerSilent),
            unreachable(UnreachableCause::AllSilent),
            PeerReachability::Degraded { cause: DegradedCause::Loss },
            PeerReachability::Degraded { cause: DegradedCause::LargeLost },
            PeerReachability::Degraded { cause: DegradedCause::DirectFails },
            unknown(UnknownCause::ProbesOff),
            unknown(UnknownCause::TooEarly),
            unknown(UnknownCause::NeverAnswered),
            unknown(UnknownCause::DaemonSilent),
        ];
        let found = causes.map(|cause| {
            let found = findings(&[peer("n7", "10.244.7.0/24", cause)], None, &PORTS).remove(0);
            format!("{} {}: {found}\n", found.level.as_str(), found.id)
        });
        let found = found.concat();
        expect![[r"
            warning peer-unreachable: 1 of 1 peers is unreachable: n7 (172.16.0.7): direct probes are answered, those through the tunnel are not: check whether a firewall drops the UDP port of the tunnel: allow UDP port 8472 (tunnel) between this host and these peers, in both directions, in the firewalls of the hosts and of the network
            warning peer-unreachable: 1 of 1 peers is unreachable: n7 (172.16.0.7): probes through the tunnel are answered, direct ones are not: check whether the network drops packets with addresses of pods: allow packets with addresses of pods, and UDP ports 8472 (tunnel) and 8475 (probes), between this host and these peers: turn off checks of source and destination in the network
            warning peer-unreachable: 1 of 1 peers is unreachable: n7 (172.16.0.7): its packets arrive here, and probes to it are not answered in time: packets in one direction are lost or late: allow UDP ports 8472 (tunnel) and 8475 (probes) from this host to these peers: check the rules for sending here and for receiving there
            warning peer-unreachable: 1 of 1 peers is unreachable: n7 (172.16.0.7): no probe and no ping is answered: its host is down, or a firewall drops the packets: run tweedctl doctor on these peers; if they run and are ready, allow UDP ports 8472 (tunnel) and 8475 (probes) between the hosts
            warning peer-unreachable: 1 of 1 peers is unreachable: n7 (172.16.0.7): no peer answers: check the link and the firewall of this node: check the link and the firewall of this host: UDP ports 8472 (tunnel) and 8475 (probes) must be open in both directions
            warning peer-degraded: 1 of 1 peers is degraded: n7 (172.16.0.7): 5 % or more of the last 100 probes were lost: look for errors of the links between the hosts: ip -s link, ethtool -S
            warning peer-degraded: 1 of 1 peers is degraded: n7 (172.16.0.7): small probes are answered, large ones are not: check the MTU of the underlay: raise the MTU of the network's links, or set that of the hosts' interfaces (with a tunnel: Backend.MTU) to what they carry
            warning peer-degraded: 1 of 1 peers is degraded: n7 (172.16.0.7): its direct path fails, so the tunnel is used: allow packets with addresses of pods, and UDP ports 8472 (tunnel) and 8475 (probes), between the hosts of the link
            note peer-unknown: 1 of 1 peers is not known to answer: n7 (172.16.0.7): paths are not probed: see docs/operations.md, section Path probes: what probes need
            note peer-unknown: 1 of 1 peers is not known to answer: n7 (172.16.0.7): not enough probes have been sent yet: run tweedctl doctor again in some seconds
            note peer-unknown: 1 of 1 peers is not known to answer: n7 (172.16.0.7): it has never answered a probe: it may run flannel, or be unreachable: if these peers run tweedd, run tweedctl doctor there, and allow UDP ports 8472 (tunnel) and 8475 (probes); flannel answers no probes
            note peer-unknown: 1 of 1 peers is not known to answer: n7 (172.16.0.7): its host answers pings by the same path, and no probe is answered: its daemon is down, or a firewall drops the probes: look at the daemon of these peers; if it runs and is ready, allow UDP port 8475 (probes) between the networks of pods
        "]].assert_eq(&found);
    }

    #[test]
    fn peers_that_answer_are_no_finding() {
        assert_eq!(words(&[], None), [] as [&str; 0]);
        let reachable = peer("n7", "10.244.7.0/24", PeerReachability::Reachable);
        assert_eq!(words(&[reachable], None), [] as [&str; 0]);
    }

    #[test]
    fn a_peer_without_a_path_is_named_with_its_reason() {
        let reachable = peer("n7", "10.244.7.0/24", PeerReachability::Reachable);
        let reason = Some("skipped: its backend is host-gw, and Mixed is off".into());
        let skipped = peer("n8", "10.244.8.0/24", PeerReachability::Reachable);
        let skipped = PeerStatus { path: None, reachability: None, reason, ..skipped };
        assert_eq!(
            words(&[reachable, skipped], None),
            ["warning peer-without-path: 1 of 2 peers have no path: n8 (172.16.0.7)"]
        );
    }

    #[test]
    fn a_node_is_named_and_counted_once_with_both_address_families() {
        let silent = unreachable(UnreachableCause::PeerSilent);
        let etcd = "10.244.7.0-24&fd00:10:244:7::-64";
        let peers = [
            peer(etcd, "10.244.7.0/24", silent),
            peer(etcd, "fd00:10:244:7::/64", silent),
            peer("node8", "10.244.8.0/24", silent),
            peer("node9", "10.244.9.0/24", PeerReachability::Reachable),
            peer("node9", "fd00:10:244:9::/64", PeerReachability::Reachable),
        ];
        assert_eq!(
            words(&peers, None),
            [
                "warning peer-unreachable: 2 of 3 peers are unreachable: 10.244.7.0/24 (172.16.0.7), \
              node8 (172.16.0.7)"
            ]
        );
    }

    #[test]
    fn of_many_peers_the_first_are_named() {
        let silent = unreachable(UnreachableCause::AllSilent);
        let peers: Vec<PeerStatus> =
            (0..8).map(|n| peer(&format!("n{n}"), "10.244.7.0/24", silent)).collect();
        let found = words(&peers, None);
        assert!(found[0].ends_with("n2 (172.16.0.7), and 5 more"), "{found:?}");
    }

    #[test]
    fn probes_that_cannot_be_sent_are_worse_than_probes_that_are_turned_off() {
        let peers = [peer("n7", "10.244.7.0/24", unknown(UnknownCause::ProbesOff))];
        let off = ProbeStatus { reason: Some("no NET_RAW".into()), ..ProbeStatus::default() };
        let what = "1 of 1 peers is not known to answer: n7 (172.16.0.7)";
        assert_eq!(words(&peers, None), [format!("note peer-unknown: {what}")]);
        assert_eq!(words(&peers, Some(&off)), [format!("unknown peer-unknown: {what}")]);
        let why = findings(&peers, Some(&off), &PORTS).remove(0).why;
        assert_eq!(why, "paths are not probed: no NET_RAW");
    }
}
