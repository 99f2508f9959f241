//! One thread that sends for all pairs, in rounds.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::packet::{Number, Packet};
use super::{Pair, Shared, is_set};
use crate::network::address::Family;

/// A sender that is further behind skips rounds instead of flooding the kernel's queues.
const MOST_BEHIND: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Sender {
    streams: Vec<Stream>,
    payload: usize,
}

#[derive(Debug)]
struct Stream {
    socket: Arc<UdpSocket>,
    target: SocketAddr,
}

/// The send time of each round, from the start of the probe, and the end of the last one.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) rounds: Vec<Duration>,
    pub(super) end: Duration,
}

impl Sender {
    /// `targets` are the addresses of each pair's receiver.
    pub(super) fn bind(pairs: &[Pair], targets: &[SocketAddr], payload: usize) -> Result<Self> {
        let mut sockets = HashMap::new();
        let mut streams = Vec::new();
        for (pair, target) in pairs.iter().zip(targets) {
            let key = (pair.from.namespace().clone(), pair.family);
            let socket = match sockets.get(&key) {
                Some(socket) => Arc::clone(socket),
                None => Arc::new(open(pair)?),
            };
            sockets.insert(key, Arc::clone(&socket));
            streams.push(Stream { socket, target: *target });
        }
        Ok(Self { streams, payload })
    }

    /// Sends one packet per pair that is not counted.
    pub(super) fn warm_up(&self) {
        self.round(Number::WarmUp, &mut vec![0; self.payload]);
    }

    pub(super) fn run(&self, rate: u32, shared: &Shared) -> Timeline {
        let interval = Duration::from_secs(1) / rate;
        let (mut rounds, mut bytes) = (Vec::new(), vec![0; self.payload]);
        let mut due = Instant::now();
        while is_set(&shared.sending) {
            let now = Instant::now();
            if now < due {
                std::thread::sleep(due - now);
            } else if now - due > MOST_BEHIND {
                due = now;
            }
            shared.begun.store(rounds.len() + 1, Ordering::SeqCst);
            rounds.push(shared.epoch.elapsed());
            self.round(Number::Counted(rounds.len() - 1), &mut bytes);
            shared.sent.store(rounds.len(), Ordering::SeqCst);
            due += interval;
        }
        Timeline { rounds, end: shared.epoch.elapsed() }
    }

    fn round(&self, number: Number, bytes: &mut [u8]) {
        for (pair, stream) in self.streams.iter().enumerate() {
            Packet { pair, number }.encode(bytes);
            // A packet that the kernel refuses counts as sent, and so as lost.
            let _ = stream.socket.send_to(bytes, stream.target);
        }
    }
}

fn open(pair: &Pair) -> Result<UdpSocket> {
    let any: SocketAddr = match pair.family {
        Family::V4 => (Ipv4Addr::UNSPECIFIED, 0).into(),
        Family::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Sends block while the buffer is full: on a slow machine, this must not count as loss.
    Ok(pair.from.namespace().within(|| UdpSocket::bind(any))??)
}
