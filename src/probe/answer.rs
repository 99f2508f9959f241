//! Decides whether a request of a peer is answered.

use std::net::IpAddr;

use super::{Packet, PacketKind};
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::plan::paths::{LocalProber, Targets};

/// The answer to `packet`, which came from `source`, and the public IP to send it to if it takes
/// the direct path; none if it is no request of an accepted peer to this node, or
/// if this node sends nothing by its path.
pub fn answer(
    packet: Packet,
    source: IpAddr,
    local: &LocalProber,
    targets: &Targets,
) -> Option<(Packet, IpAddr)> {
    let is_of_request = matches!(packet.kind, PacketKind::Request | PacketKind::TraceRequest);
    let is_request = is_of_request && is_between(packet, source, local);
    let peer = targets.peers.get(&packet.from).filter(|_| is_request)?;
    // Where no packets of pods are sent directly, a firewall or filter may not expect them.
    let is_usual = packet.path == Path::Tunnel || peer.direct;
    is_usual.then_some((packet.answered(peer.direct), peer.public_ip))
}

/// Whether `packet` is for this node, and its source is its sender.
pub(super) fn is_between(packet: Packet, source: IpAddr, local: &LocalProber) -> bool {
    let own = local.addresses.get(&Family::of(packet.to));
    own == Some(&packet.to) && packet.from == source
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::Probe;
    use crate::plan::paths::Target;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn asked(from: &str, to: &str, source: &str) -> Option<(Packet, IpAddr)> {
        asked_by(Path::Direct, true, [from, to, source])
    }

    fn asked_by(
        path: Path,
        direct: bool,
        [from, to, source]: [&str; 3],
    ) -> Option<(Packet, IpAddr)> {
        let addresses = BTreeMap::from([(Family::V4, ip("10.244.1.0"))]);
        let local = LocalProber { probe: Probe::default(), addresses, pod_mtu: 1450 };
        let public_ip = ip("172.16.0.2");
        let target = Target { public_ip, direct, tunnel: true };
        let peers = BTreeMap::from([(ip("10.244.2.0"), target)]);
        let targets = Targets { local: Some(local.clone()), peers };
        let packet = Packet::new(PacketKind::Request, path, 7, ip(from), ip(to));
        answer(packet, ip(source), &local, &targets)
    }

    #[test]
    fn a_peer_is_answered_by_the_path_of_the_request() {
        let (answer, gateway) = asked("10.244.2.0", "10.244.1.0", "10.244.2.0").unwrap();
        assert_eq!((answer.kind, answer.path, answer.nonce), (PacketKind::Answer, Path::Direct, 7));
        assert_eq!((answer.from, answer.to), (ip("10.244.1.0"), ip("10.244.2.0")));
        assert_eq!(gateway, ip("172.16.0.2"));
    }

    #[test]
    fn a_node_that_sends_nothing_directly_answers_only_through_the_tunnel() {
        let asked = |path| asked_by(path, false, ["10.244.2.0", "10.244.1.0", "10.244.2.0"]);
        assert_eq!(asked(Path::Direct), None);
        let (answer, _) = asked(Path::Tunnel).unwrap();
        assert_eq!((answer.path, answer.takes_direct), (Path::Tunnel, false));
    }

    #[test]
    fn other_sources_are_not_answered() {
        assert_eq!(asked("10.244.9.0", "10.244.1.0", "10.244.9.0"), None, "an unknown sender");
        assert_eq!(asked("10.244.2.0", "10.244.9.0", "10.244.2.0"), None, "for another node");
        assert_eq!(asked("10.244.2.0", "10.244.1.0", "172.16.0.2"), None, "of another source");
    }
}
