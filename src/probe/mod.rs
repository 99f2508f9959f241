//! Path probes between daemons: sends sealed questions and answers, and reports the results. The
//! loop decides which questions are sent, and evaluates the results: see [`crate::plan::paths`].

mod answer;
mod datagram;
mod exchange;
mod keyring;
mod packet;
mod replay;
mod waiting;
mod wire;

pub use answer::{Rejected, answer};
pub use datagram::{datagram, headers};
pub use exchange::{Exchange, Pause};
pub use keyring::Keyring;
pub use packet::{Kind, Packet, SHORTEST};
pub use replay::Stamp;
pub use wire::{NoWire, Wire};

use std::net::IpAddr;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::model::status::Counts;
use crate::plan::paths::{Question, Targets};

/// What the probe task reports to the loop.
#[derive(Debug)]
pub enum ProbeEvent {
    /// The task runs, with these channels.
    Channels(ProbeChannels),
    /// Paths are probed from now on; no question is open.
    On,
    /// Why paths are not probed. Peers without earlier results are reached directly.
    Off(String),
    /// The peer answered, by the path of the question.
    Answered { question: Question, sent: Instant, at: Instant },
    /// The question was not answered in time. Earlier packets are reported first, so that no answer
    /// is late because this process was busy.
    Lost { question: Question, sent: Instant, at: Instant },
    /// A peer asked a question, or answered one too late.
    Heard { peer: IpAddr, at: Instant },
    /// The loop's deadline has passed.
    Due { at: Instant },
}

/// The loop's ends of the channels.
#[derive(Debug)]
pub struct ProbeChannels {
    pub targets: watch::Sender<Targets>,
    pub questions: mpsc::Sender<Question>,
    /// When to report [`ProbeEvent::Due`]; none while no peer is probed.
    pub due: watch::Sender<Option<Instant>>,
    pub counts: watch::Receiver<Counts>,
}

/// The task's ends of the channels.
#[derive(Debug)]
pub struct Orders {
    pub targets: watch::Receiver<Targets>,
    pub questions: mpsc::Receiver<Question>,
    pub due: watch::Receiver<Option<Instant>>,
    pub counts: watch::Sender<Counts>,
}

/// The maximum number of questions that wait to be sent.
const QUESTIONS: usize = 1024;

/// The channels between the loop and the task that probes.
pub fn channels() -> (ProbeChannels, Orders) {
    let (targets, wanted_targets) = watch::channel(Targets::default());
    let (questions, wanted_questions) = mpsc::channel(QUESTIONS);
    let (due, wanted_due) = watch::channel(None);
    let (count, counts) = watch::channel(Counts::default());
    let orders = Orders {
        targets: wanted_targets,
        questions: wanted_questions,
        due: wanted_due,
        counts: count,
    };
    (ProbeChannels { targets, questions, due, counts }, orders)
}
