//! Pings from a throw-away pod of this node to the host of each peer, small and full-size.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures::future::select_all;
use nix::unistd::geteuid;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::pod::{PodInterface, ThrowAwayPod};
use crate::kernel::host::Places;
use crate::model::lease::LeaseId;
use crate::model::prefix::{Family, Prefix};
use crate::model::status::PeerStatus;
use crate::operator::Error;
use crate::probe::EchoWire;
use crate::random::random;

/// The results of all peers that have a path, and of the pod itself.
#[derive(Debug)]
pub(super) struct PodPings {
    pub(super) addresses: Vec<IpAddr>,
    /// In bytes, with the IP header: small and full-size.
    pub(super) sizes: [u16; 2],
    pub(super) peers: Vec<PingedPeer>,
    /// What could not be removed.
    pub(super) left: Vec<String>,
}

#[derive(Debug)]
pub(super) struct PingedPeer {
    pub(super) lease: LeaseId,
    pub(super) subnet: Prefix,
    /// None if the pod has no address of the family.
    pub(super) from: Option<IpAddr>,
    /// Whether a ping was answered, by size.
    pub(super) answered: [bool; 2],
}

/// An unanswered ping: the number of the peer, the number of the size, and the destination.
type PendingPing = (usize, usize, IpAddr);

/// In bytes, with the IP header.
const SMALL: u16 = 84;
/// How often a ping is sent until it is answered.
const ATTEMPTS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(1);
/// The number of pings that are sent without a pause: neither a queue of the kernel nor a link
/// must drop them.
const AT_ONCE: usize = 32;
const PAUSE: Duration = Duration::from_millis(5);
/// The number of replies that are read at once.
const REPLIES: usize = 1024;

/// Creates a pod, pings `peers` from it, and removes it, also after a signal or an error.
pub(super) async fn ping_from_pod(
    places: &Places,
    peers: &[PeerStatus],
) -> Result<PodPings, Error> {
    if !geteuid().is_root() {
        let why = "--pods must be run as root: it creates a network namespace and runs CNI plugins";
        return Err(Error::Unavailable(why.to_owned()));
    }
    // A signal that arrives while a plugin runs must not end this process.
    let mut signals = ending_signals()?;
    let pod = ThrowAwayPod::join(places)?;
    let pinged = match pod.interface() {
        Ok(interface) => tokio::select! {
            pinged = ping(&interface, peers) => Ok(pinged),
            () = any_of(&mut signals) => Err(Error::Refused("ended by a signal".to_owned())),
        },
        Err(error) => Err(error),
    };
    let left = pod.leave();
    match pinged {
        Ok(pinged) => Ok(PodPings { left, ..pinged }),
        Err(error) if left.is_empty() => Err(error),
        Err(error) => Err(Error::Refused(format!("{error}; {}", left.join("; ")))),
    }
}

/// Listens to the signals that end a program.
fn ending_signals() -> io::Result<Vec<Signal>> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    kinds.into_iter().map(signal).collect()
}

/// Waits for a signal, or returns at once if one has arrived before.
async fn any_of(signals: &mut [Signal]) {
    select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
}

async fn ping(interface: &PodInterface, peers: &[PeerStatus]) -> PodPings {
    let PodInterface { mtu, addresses, wires } = interface;
    let mut pings = PodPings {
        addresses: addresses.clone(),
        sizes: [SMALL, u16::try_from(*mtu).unwrap_or(u16::MAX)],
        peers: peers.iter().filter_map(|peer| PingedPeer::of(peer, addresses)).collect(),
        left: Vec::new(),
    };
    let mut awaited = BTreeMap::new();
    for attempt in 0..ATTEMPTS {
        for batch in pings.unanswered(attempt).chunks(AT_ONCE) {
            for ping in batch {
                let nonce = random();
                awaited.insert(nonce, *ping);
                pings.send(wires, *ping, nonce);
            }
            sleep(PAUSE).await;
            pings.receive(wires, &awaited);
        }
        let until = Instant::now() + TIMEOUT;
        while !pings.unanswered(attempt).is_empty() && Instant::now() < until {
            sleep(PAUSE).await;
            pings.receive(wires, &awaited);
        }
    }
    pings
}

impl PingedPeer {
    /// None if this node has no path to it.
    fn of(peer: &PeerStatus, addresses: &[IpAddr]) -> Option<Self> {
        let subnet = peer.subnet.filter(|_| peer.path.is_some())?;
        let from = addresses.iter().find(|it| Family::of(**it) == subnet.family());
        Some(Self { lease: peer.lease.clone(), subnet, from: from.copied(), answered: [false; 2] })
    }

    /// Its addresses in the network of the pods: the first one of its subnet, which its daemon
    /// adds, and from the second attempt on that of its bridge, which flannel with host-gw has
    /// instead.
    fn destinations(&self, attempt: usize) -> impl Iterator<Item = IpAddr> {
        let bridge = (attempt > 0).then(|| self.subnet.gateway());
        [self.subnet.base()].into_iter().chain(bridge)
    }
}

impl PodPings {
    fn unanswered(&self, attempt: usize) -> Vec<PendingPing> {
        let mut unanswered = Vec::new();
        for (number, peer) in self.peers.iter().enumerate().filter(|(_, it)| it.from.is_some()) {
            for (size, _) in peer.answered.iter().enumerate().filter(|(_, answered)| !**answered) {
                unanswered.extend(peer.destinations(attempt).map(|to| (number, size, to)));
            }
        }
        unanswered
    }

    /// A ping that cannot be sent is not answered.
    fn send(&self, wires: &[EchoWire], (number, size, to): PendingPing, nonce: u64) {
        let wire = wires.iter().find(|wire| wire.family() == Family::of(to));
        let from = self.peers.get(number).and_then(|peer| peer.from);
        if let (Some(wire), Some(from), Some(size)) = (wire, from, self.sizes.get(size)) {
            let _ = wire.send(from, to, nonce, *size);
        }
    }

    fn receive(&mut self, wires: &[EchoWire], awaited: &BTreeMap<u64, PendingPing>) {
        for (source, nonce) in wires.iter().flat_map(|wire| wire.echoed(REPLIES)) {
            let Some((number, size, _)) = awaited.get(&nonce).filter(|it| it.2 == source) else {
                continue;
            };
            let answered = self.peers.get_mut(*number).and_then(|it| it.answered.get_mut(*size));
            if let Some(answered) = answered {
                *answered = true;
            }
        }
    }
}
