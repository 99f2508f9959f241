//! Packets between daemons: sends sealed probes and their answers, and reports the results. The
//! loop decides which probes are sent, and evaluates the results: see [`crate::plan::paths`]. By the
//! same packets, daemons ask each other what happens to a packet: see [`crate::plan::trace`].

mod answer;
mod content;
mod datagram;
mod exchange;
mod keyring;
mod packet;
mod replay;
mod traces;
mod waiting;
mod wire;

pub use answer::answer;
pub use content::{LONGEST, decode_question, decode_trace, encode_question, encode_trace};
pub use datagram::{datagram, headers};
pub use exchange::{Exchange, Pause};
pub use keyring::Keyring;
pub use packet::{Packet, PacketKind, SHORTEST};
pub use replay::Stamp;
pub use traces::{AnsweredTrace, AskedTrace, TRACE_TIMEOUT, TraceRequest};
pub use wire::{EchoWire, NoWire, Wire};

use std::net::IpAddr;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::model::status::ProbeCounts;
use crate::plan::paths::{ProbeRequest, Targets};

#[derive(Debug)]
pub enum ProbeEvent {
    /// The task runs, with these channels.
    Channels(ProbeChannels),
    /// Paths are probed from now on; no request is open.
    On,
    /// Why paths are not probed. Peers without earlier results are reached directly.
    Off(String),
    /// The peer answered, by the path of the request.
    Answered {
        request: ProbeRequest,
        sent: Instant,
        at: Instant,
        /// Whether the peer answers direct requests.
        takes_direct: bool,
    },
    /// The kernel of the peer answered an echo request.
    Echoed {
        request: ProbeRequest,
        sent: Instant,
        at: Instant,
    },
    /// The request was not answered in time. Earlier packets are reported first, so that no answer
    /// is late because this process was busy.
    Lost {
        request: ProbeRequest,
        sent: Instant,
        at: Instant,
    },
    /// A peer sent a request, or answered one too late.
    Alive {
        peer: IpAddr,
        at: Instant,
    },
    Due {
        at: Instant,
    },
    /// A peer asks what happens to a packet.
    Asked(Box<AskedTrace>),
}

/// The loop's ends of the channels.
#[derive(Debug)]
pub struct ProbeChannels {
    pub targets: watch::Sender<Targets>,
    pub requests: mpsc::Sender<ProbeRequest>,
    /// When to report [`ProbeEvent::Due`]; none while no peer is probed.
    pub due: watch::Sender<Option<Instant>>,
    pub counts: watch::Receiver<ProbeCounts>,
    /// Questions of this node to peers, and its answers to their questions.
    pub traces: mpsc::Sender<TraceRequest>,
    pub answers: mpsc::Sender<AnsweredTrace>,
}

/// The task's ends of the channels.
#[derive(Debug)]
pub struct Orders {
    pub targets: watch::Receiver<Targets>,
    pub requests: mpsc::Receiver<ProbeRequest>,
    pub due: watch::Receiver<Option<Instant>>,
    pub counts: watch::Sender<ProbeCounts>,
    pub traces: mpsc::Receiver<TraceRequest>,
    pub answers: mpsc::Receiver<AnsweredTrace>,
}

/// The maximum number of requests that wait to be sent.
const REQUESTS: usize = 1024;
/// The maximum number of questions about packets that wait, and of answers.
const TRACES: usize = 16;

pub fn channels() -> (ProbeChannels, Orders) {
    let (targets, requests) = (watch::channel(Targets::default()), mpsc::channel(REQUESTS));
    let (due, counts) = (watch::channel(None), watch::channel(ProbeCounts::default()));
    let (traces, answers) = (mpsc::channel(TRACES), mpsc::channel(TRACES));
    let channels = ProbeChannels {
        targets: targets.0,
        requests: requests.0,
        due: due.0,
        counts: counts.1,
        traces: traces.0,
        answers: answers.0,
    };
    let orders = Orders {
        targets: targets.1,
        requests: requests.1,
        due: due.1,
        counts: counts.0,
        traces: traces.1,
        answers: answers.1,
    };
    (channels, orders)
}

/// For tests of the bytes of a packet.
#[cfg(test)]
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
