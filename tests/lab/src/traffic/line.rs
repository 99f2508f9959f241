//! One long-lived connection, its exchanges and its counts.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Shared;
use super::progress::Progress;
use crate::wait::is_silence;

const BETWEEN: Duration = Duration::from_millis(100);
/// A connection is broken if an exchange, or opening it, takes longer.
const LIMIT: Duration = Duration::from_secs(10);
const REQUEST: &[u8; 16] = b"0123456789abcdef";

/// The two ends of a connection, and the translation between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Through a port of a node to a pod on another node.
    OutsideToPod,
    /// To a pod on another node.
    HostToPod,
    /// Through a service's address to a pod on another node.
    HostToService,
    /// To another node.
    PodToHost,
    PodToOutside,
}

/// The connections of one kind that start at one node, or that it forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Connections that were open, or should have been.
    pub open: usize,
    /// The reason why each broken one ended: reset, closed, or an exchange longer than ten
    /// seconds.
    pub broken: Vec<String>,
    /// The longest time from a request to its response.
    pub worst: Duration,
}

/// Only its own thread writes to it; others read.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) kind: Kind,
    /// The node at which it starts, or that forwards it.
    pub(super) node: String,
    target: SocketAddr,
    pub(super) progress: Progress,
    worst_us: AtomicU64,
    broken: OnceLock<String>,
    /// Whether an outcome includes it.
    is_reported: AtomicBool,
}

impl Kind {
    pub const ALL: [Self; 5] = [
        Self::OutsideToPod,
        Self::HostToPod,
        Self::HostToService,
        Self::PodToHost,
        Self::PodToOutside,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::OutsideToPod => "outside → node → pod",
            Self::HostToPod => "host → pod",
            Self::HostToService => "host → service → pod",
            Self::PodToHost => "pod → host",
            Self::PodToOutside => "pod → outside",
        }
    }
}

impl Line {
    pub(super) fn new(kind: Kind, node: &str, target: SocketAddr) -> Self {
        let (progress, worst_us, broken, is_reported) = Default::default();
        Self { kind, node: node.to_owned(), target, progress, worst_us, broken, is_reported }
    }

    /// Opens the connection, and exchanges messages until it breaks or the test ends.
    pub(super) fn run(&self, shared: &Shared) {
        let started = Instant::now();
        let Err(error) = self.exchange(shared) else { return };
        if shared.is_running() {
            let Self { kind, node, target, .. } = self;
            let (kind, age) = (kind.as_str(), started.elapsed());
            let text = format!("{kind}, {node}, {target}, open for {age:.1?}: {error}");
            self.broken.get_or_init(|| text);
            self.progress.end();
        }
    }

    /// Adds the counts since the last call.
    pub(super) fn take(&self, outcome: &mut Outcome) {
        let worst = Duration::from_micros(self.worst_us.swap(0, Ordering::SeqCst));
        outcome.worst = outcome.worst.max(worst);
        let broken = self.broken.get().cloned();
        if broken.is_some() && self.is_reported.swap(true, Ordering::SeqCst) {
            return;
        }
        outcome.open += 1;
        outcome.broken.extend(broken);
    }

    fn exchange(&self, shared: &Shared) -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&self.target, LIMIT)?;
        stream.set_nodelay(true)?;
        while shared.is_running() {
            let (turn, started) = (shared.turn(), Instant::now());
            self.progress.begin();
            exchange(&mut stream)?;
            let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.worst_us.fetch_max(took, Ordering::SeqCst);
            self.progress.complete();
            shared.pause(turn, BETWEEN.saturating_sub(started.elapsed()));
        }
        Ok(())
    }
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut answer, mut length, started) = ([0; REQUEST.len()], 0, Instant::now());
    stream.write_all(REQUEST)?;
    while let Some(rest @ [_, ..]) = answer.get_mut(length..) {
        let left = LIMIT.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left))?;
        match stream.read(rest) {
            Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "closed")),
            Ok(count) => length += count,
            // A signal, or a suspended machine.
            Err(error) if is_silence(&error) && started.elapsed() < LIMIT => {}
            Err(error) if is_silence(&error) => {
                return Err(Error::new(ErrorKind::TimedOut, format!("no answer for {LIMIT:?}")));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
