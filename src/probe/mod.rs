//! Path probes between daemons: sends sealed questions and answers, and reports what comes back. The
//! loop decides what is asked, and what follows from the answers: see [`crate::plan::paths`].

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
    /// It runs, and these are its channels.
    Channels(ProbeChannels),
    /// Paths are probed from now on, and nothing is asked yet.
    On,
    /// Paths are not probed, and why: peers that were not judged before are reached directly.
    Off(String),
    /// The peer answered, by the path that it was asked by.
    Answered { question: Question, sent: Instant, at: Instant },
    /// The question was not answered in time. Every packet that came before is reported before: no
    /// answer is late because this program was busy.
    Lost { question: Question, sent: Instant, at: Instant },
    /// A peer asked a question, or answered one too late.
    Heard { peer: IpAddr, at: Instant },
    /// The time that the loop set has come.
    Due { at: Instant },
}

/// The loop's ends of its channels with the task that probes.
#[derive(Debug)]
pub struct ProbeChannels {
    pub targets: watch::Sender<Targets>,
    pub questions: mpsc::Sender<Question>,
    /// When to report [`ProbeEvent::Due`]; none while no peer is probed.
    pub due: watch::Sender<Option<Instant>>,
    pub counts: watch::Receiver<Counts>,
}

/// The ends of the task.
#[derive(Debug)]
pub struct Orders {
    pub targets: watch::Receiver<Targets>,
    pub questions: mpsc::Receiver<Question>,
    pub due: watch::Receiver<Option<Instant>>,
    pub counts: watch::Sender<Counts>,
}

/// Questions that may wait to be sent.
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
