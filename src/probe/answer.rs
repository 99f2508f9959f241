//! Decides whether a probe is answered.

use std::net::IpAddr;

use super::{Packet, PacketKind};
use crate::model::prefix::Family;
use crate::plan::paths::{LocalProber, Targets};

/// Why a packet with a valid seal is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    #[error("it is for another node")]
    Misdirected,
    #[error("its source is not the address of its sender")]
    SourceMismatch,
    #[error("its sender is not an accepted peer")]
    UnknownSender,
    #[error("it is not a request")]
    NotARequest,
}

/// The answer to `packet`, which came from `source`, and the public IP to send it to if it takes
/// the direct path.
pub fn answer(
    packet: Packet,
    source: IpAddr,
    local: &LocalProber,
    targets: &Targets,
) -> Result<(Packet, IpAddr), Ignored> {
    if packet.kind != PacketKind::Request {
        return Err(Ignored::NotARequest);
    }
    is_between(packet, source, local)?;
    let peer = targets.peers.get(&packet.from).ok_or(Ignored::UnknownSender)?;
    Ok((packet.answered(), peer.public_ip))
}

/// Whether `packet` is for this node, and its source is its sender.
pub(super) fn is_between(
    packet: Packet,
    source: IpAddr,
    local: &LocalProber,
) -> Result<(), Ignored> {
    if local.addresses.get(&Family::of(packet.to)) != Some(&packet.to) {
        return Err(Ignored::Misdirected);
    }
    (packet.from == source).then_some(()).ok_or(Ignored::SourceMismatch)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::config::Probe;
    use crate::model::path::Path;
    use crate::plan::paths::Target;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn asked(from: &str, to: &str, source: &str) -> Result<(Packet, IpAddr), Ignored> {
        let addresses = BTreeMap::from([(Family::V4, ip("10.244.1.0"))]);
        let local = LocalProber { probe: Probe::default(), addresses, pod_mtu: 1450 };
        let public_ip = ip("172.16.0.2");
        let target = Target { public_ip, direct: true, tunnel: true };
        let peers = BTreeMap::from([(ip("10.244.2.0"), target)]);
        let targets = Targets { local: Some(local.clone()), peers };
        let (from, to) = (ip(from), ip(to));
        let (kind, path, nonce) = (PacketKind::Request, Path::Direct, 7);
        let packet = Packet { kind, path, nonce, from, to, stamp: None };
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
    fn other_sources_are_not_answered() {
        let rejected = |from, to, source| asked(from, to, source).unwrap_err();
        assert_eq!(rejected("10.244.9.0", "10.244.1.0", "10.244.9.0"), Ignored::UnknownSender);
        assert_eq!(rejected("10.244.2.0", "10.244.9.0", "10.244.2.0"), Ignored::Misdirected);
        assert_eq!(rejected("10.244.2.0", "10.244.1.0", "172.16.0.2"), Ignored::SourceMismatch);
    }
}
