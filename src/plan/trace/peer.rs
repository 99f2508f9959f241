//! The hops on the peer: the question to its daemon, and how its answer and the hops of this node
//! fit together.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{
    Delivery, Hop, HopKind, HopState, PacketOrigin, PacketTarget, PeerEnd, Planned, Question,
    Trace, TracedPacket,
};
use crate::model::lease::{Endpoint, LeaseId};
use crate::model::path::Path;
use crate::model::prefix::Prefix;

/// What a node asks the daemon of a peer: what happens to this packet there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerQuestion {
    /// As it is there: with a translated source, if it arrives with one.
    pub packet: TracedPacket,
    /// The path by which it arrives there; none if it is sent there.
    pub arrives_by: Option<Path>,
}

/// The hops on the peer, or why they are not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerHops {
    Seen(Trace),
    Unseen(String),
}

/// The hops on both nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WholeTrace {
    /// The hops on this node. What becomes of the packet is decided by both nodes.
    #[serde(flatten)]
    pub trace: Trace,
    /// None if the packet passes no peer, or is dropped before.
    pub peer: Option<PeerTrace>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerTrace {
    pub subnet: Prefix,
    pub public_ip: IpAddr,
    pub role: PeerRole,
    #[serde(flatten)]
    pub hops: PeerHops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerRole {
    Sender,
    Receiver,
}

impl<'a> Question<'a> {
    /// The question of the peer whose accepted lease is `asker`. None if the packet does not pass
    /// between this node and that peer: a peer learns nothing about others.
    pub fn of_peer(
        PeerQuestion { packet, arrives_by }: PeerQuestion,
        planned: Planned<'a>,
        asker: &LeaseId,
    ) -> Option<Self> {
        let own = planned.own(packet.family()).ok()?.subnet;
        let (lease, plan) = planned.desired.peers().get(asker)?.as_ref().ok()?;
        let mut peer = PeerEnd::accepted(lease.endpoint(packet.family())?, plan);
        peer.path = arrives_by.or(peer.path);
        let TracedPacket { source, destination, .. } = packet;
        let (origin, target) = match arrives_by {
            Some(_) if is_of(peer.endpoint, source) => {
                (PacketOrigin::Peer(peer), planned.here(own, destination)?.target(own))
            }
            None if peer.endpoint.subnet.contains(destination) => {
                (planned.here(own, source)?.origin(own), PacketTarget::Peer(peer))
            }
            Some(_) | None => return None,
        };
        Some(Self { packet, planned, origin, target })
    }

    /// What to ask the peer that sends the packet.
    pub const fn for_sender(&self) -> Option<PeerQuestion> {
        match self.origin {
            PacketOrigin::Peer(_) => Some(PeerQuestion { packet: self.packet, arrives_by: None }),
            PacketOrigin::Pod(_) | PacketOrigin::Host => None,
        }
    }

    /// What to ask the peer that receives the packet, as it leaves this node by `trace`.
    pub fn for_receiver(&self, trace: &Trace) -> Option<PeerQuestion> {
        let PacketTarget::Peer(_) = self.target else { return None };
        let source = trace.translated_to.unwrap_or(self.packet.source);
        let packet = TracedPacket { source, ..self.packet };
        let is_on_its_way = trace.delivery != Delivery::Dropped;
        let arrives_by = trace.leaves_by.filter(|_| is_on_its_way)?;
        Some(PeerQuestion { packet, arrives_by: Some(arrives_by) })
    }

    /// The packet as the peer sends it.
    #[must_use]
    pub fn sent_as(mut self, hops: &PeerHops) -> Self {
        if let (PacketOrigin::Peer(peer), PeerHops::Seen(trace)) = (&mut self.origin, hops) {
            peer.path = trace.leaves_by.or(peer.path);
            self.packet.source = trace.translated_to.unwrap_or(self.packet.source);
        }
        self
    }
}

/// Whether packets of this host or its pods may have the source `address`.
fn is_of(endpoint: &Endpoint, address: IpAddr) -> bool {
    let outer = endpoint.vtep.and_then(|vtep| vtep.source);
    endpoint.subnet.contains(address) || endpoint.public_ip == address || outer == Some(address)
}

impl Trace {
    /// Without the hops that are only planned on the peer.
    #[must_use]
    pub fn on_this_node(mut self) -> Self {
        self.hops.retain(|Hop { hop, state, .. }| {
            let is_of_peer = matches!(hop, HopKind::Peer | HopKind::Guard | HopKind::Pod);
            !(is_of_peer && *state == HopState::Planned)
        });
        self
    }
}

impl WholeTrace {
    /// `packet` is the packet as it is first sent.
    pub fn new(packet: TracedPacket, own: Trace, peer: Option<PeerTrace>) -> Self {
        let mut trace = Trace { packet, ..own };
        if let Some(PeerTrace { role, hops: PeerHops::Seen(seen), .. }) = &peer {
            trace = trace.on_this_node();
            trace.translated_to = trace.translated_to.or(seen.translated_to);
            if *role == PeerRole::Sender && seen.delivery == Delivery::Dropped {
                trace.hops.clear();
            }
            trace.delivery = trace.delivery.max(seen.delivery);
        }
        Self { trace, peer }
    }

    /// The hop that decides, and the peer if it is on that node.
    pub fn last(&self) -> Option<(&Hop, Option<&PeerTrace>)> {
        let (delivery, own) = (self.trace.delivery, &self.trace.hops);
        let state = match delivery {
            Delivery::Delivered => return own.last().map(|hop| (hop, None)),
            Delivery::Dropped => HopState::Dropped,
            Delivery::Unknown => HopState::Unknown,
        };
        let is_it = |hop: &&Hop| hop.state == state;
        let on_peer = || {
            let peer = self.peer.as_ref()?;
            let PeerHops::Seen(seen) = &peer.hops else { return None };
            Some((seen.hops.iter().find(is_it)?, Some(peer)))
        };
        own.iter().find(is_it).map(|hop| (hop, None)).or_else(on_peer)
    }
}
