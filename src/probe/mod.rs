//! Path probes between daemons: whether packets of pods would get through to a peer, and by which way.

mod answer;
mod board;
mod datagram;
mod exchange;
mod judge;
mod keyring;
mod pace;
mod packet;
mod replay;
mod subject;
mod targets;
mod track;
mod waiting;
mod wire;

pub use answer::{Rejected, answer};
pub use board::{Board, Question};
pub use datagram::{datagram, headers};
pub use exchange::{Exchange, Pause};
pub use keyring::Keyring;
pub use packet::{Kind, Packet, SHORTEST};
pub use replay::Stamp;
pub use subject::Subject;
pub use targets::{Local, Target, Targets};
pub use track::Track;
pub use wire::{NoWire, Wire};

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::model::path::Verdict;
use crate::model::status::Counts;

/// A verdict that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The first address of the peer's subnet.
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub verdict: Verdict,
}

/// What the probe task reports to the loop.
#[derive(Debug)]
pub enum ProbeEvent {
    /// It runs, and these are its channels.
    Channels(ProbeChannels),
    /// Paths are probed from now on.
    On,
    /// Paths are not probed, and why: peers that were not judged before are reached directly.
    Off(String),
    Judged(Vec<Judgement>),
}

/// What the loop and the task that probes share.
#[derive(Debug)]
pub struct ProbeChannels {
    /// Whom to probe; written by the loop.
    pub targets: watch::Sender<Targets>,
    /// What was found; read by the loop.
    pub findings: watch::Receiver<Findings>,
}

/// What was found so far.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The moment that the times of tracks are counted from.
    pub epoch: Instant,
    /// By the first address of the peer's subnet.
    pub subjects: BTreeMap<IpAddr, Subject>,
    pub counts: Counts,
}
