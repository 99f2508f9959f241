//! Questions about packets: those of the loop to peers, which wait for an answer, and those of peers
//! to the loop.

use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Packet;
use super::content::encode_trace;
use super::packet::Outgoing;
use crate::model::path::Path;
use crate::model::probe_secret::Secret;
use crate::plan::paths::Target;
use crate::plan::trace::{PeerQuestion, Trace};

/// A question of this node. Without an answer in time, the sender is dropped.
#[derive(Debug)]
pub struct TraceRequest {
    /// The first address of the peer's subnet.
    pub peer: IpAddr,
    pub target: Target,
    /// The path in use, by which the question is sent first.
    pub path: Path,
    pub question: PeerQuestion,
    pub reply: oneshot::Sender<Trace>,
}

/// A question of a peer, and where the answer is sent.
#[derive(Debug)]
pub struct AskedTrace {
    /// The first address of the peer's subnet.
    pub peer: IpAddr,
    pub question: PeerQuestion,
    /// The answer, still without content.
    pub answer: Packet,
    pub gateway: IpAddr,
    pub secret: Secret,
}

/// What the loop answers.
#[derive(Debug)]
pub struct AnsweredTrace {
    pub asked: AskedTrace,
    pub trace: Trace,
}

/// The questions of this node that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct OpenTraces(Vec<OpenTrace>);

#[derive(Debug)]
struct OpenTrace {
    outgoing: Outgoing,
    request: TraceRequest,
    sent: Instant,
    is_repeated: bool,
}

/// How long an answer is waited for.
pub const TRACE_TIMEOUT: Duration = Duration::from_secs(1);
/// A question without an answer is sent a second time after this, by the other path if there is one.
const REPEAT: Duration = Duration::from_millis(400);
const MOST: usize = 16;

impl AnsweredTrace {
    pub(super) fn outgoing(self) -> Outgoing {
        let AskedTrace { answer: packet, gateway, secret, .. } = self.asked;
        Outgoing { packet, gateway, content: encode_trace(&self.trace), length: 0, secret }
    }
}

impl OpenTraces {
    /// Whether one more answer can be waited for.
    pub(super) fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Waits for the answer to `request`, which is sent now.
    pub(super) fn add(&mut self, outgoing: Outgoing, request: TraceRequest) {
        let sent = Instant::now();
        self.0.push(OpenTrace { outgoing, request, sent, is_repeated: false });
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(OpenTrace::next).min()
    }

    /// Removes the questions whose time is over; returns those to send again.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Outgoing> {
        self.0.retain(|open| open.sent + TRACE_TIMEOUT > now && !open.request.reply.is_closed());
        let due = self.0.iter_mut().filter(|open| open.next() <= now);
        let repeated = due.map(|open| {
            open.is_repeated = true;
            let packet = Packet { path: open.request.other_path(), ..open.outgoing.packet };
            Outgoing { packet, ..open.outgoing.clone() }
        });
        repeated.collect()
    }

    /// Removes and returns the question to `peer` with this nonce.
    pub(super) fn take(&mut self, nonce: u64, peer: IpAddr) -> Option<TraceRequest> {
        let is_it =
            |open: &OpenTrace| open.outgoing.packet.nonce == nonce && open.request.peer == peer;
        let place = self.0.iter().position(is_it)?;
        Some(self.0.swap_remove(place).request)
    }
}

impl OpenTrace {
    fn next(&self) -> Instant {
        self.sent + if self.is_repeated { TRACE_TIMEOUT } else { REPEAT }
    }
}

impl TraceRequest {
    /// A packet that the path in use drops may be explained by the other one.
    const fn other_path(&self) -> Path {
        match self.path {
            Path::Tunnel if self.target.direct => Path::Direct,
            Path::Direct if self.target.tunnel => Path::Tunnel,
            path => path,
        }
    }
}
