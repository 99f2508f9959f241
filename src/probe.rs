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
mod secret;
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
pub use secret::Secret;
pub use subject::Subject;
pub use targets::{Local, Target, Targets};
pub use track::Track;
pub use wire::{NoWire, Wire};

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

/// What the probes say of the direct path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Not known yet.
    #[default]
    Pending,
    /// The peer has not answered by any way: it is flannel, or an older version. If its lease says
    /// vxlan, it is reached through the tunnel; otherwise nothing speaks against the direct path.
    Silent,
    Good,
    Bad(Cause),
}

/// What is wrong with a direct path, while the tunnel to the same peer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    NoAnswer,
    /// Small packets are answered, those as large as pods may send are not.
    LargeLost,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "probes through the tunnel are answered, direct ones are not",
            Self::LargeLost => "small probes are answered, large ones are not",
        })
    }
}

/// A verdict that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The first address of the peer's subnet.
    pub peer: IpAddr,
    pub public_ip: IpAddr,
    pub verdict: Verdict,
}

/// What the task that probes tells the loop.
#[derive(Debug)]
pub enum News {
    /// It lives, and this is how to talk to it.
    Desk(Desk),
    /// Paths are probed from now on.
    On,
    /// Paths are not probed, and why: peers that were not judged before are reached directly.
    Off(String),
    Judged(Vec<Judgement>),
}

/// What the loop and the task that probes share.
#[derive(Debug)]
pub struct Desk {
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

/// What came in and went out since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub asked: u64,
    pub answered: u64,
    /// Questions of peers that we answered.
    pub served: u64,
    /// Packets that no accepted peer can have sent, that were received before, that answer
    /// nothing, and questions beyond the limit of their peer.
    pub rejected: u64,
    /// Packets that the kernel would not send.
    pub unsent: u64,
}
