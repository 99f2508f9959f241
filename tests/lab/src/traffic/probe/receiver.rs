//! One thread that receives for all pairs, and tracks the arrived packets.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::packet::{Number, Packet};
use super::{Answers, Pair, Shared, is_set};

/// Buffers packets while this thread waits for a processor.
const BUFFER: usize = 32 << 20;

/// The stream is over if no packet comes for this time, in milliseconds…
const LATEST: u16 = 300;
/// …or, as long as some are missing, for this many of it: a busy machine delivers late.
const ATTEMPTS: u32 = 10;

#[derive(Debug)]
pub(super) struct Receiver {
    sockets: Vec<UdpSocket>,
    /// For each pair, the index of its socket.
    places: Vec<usize>,
    answers: Answers,
    shared: Arc<Shared>,
}

/// The arrived packets of one pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    /// How many times each number arrived.
    pub(super) times: Vec<u8>,
    pub(super) duplicates: u64,
    /// Packets that arrived after one with a higher number.
    pub(super) reordered: u64,
    /// The longest time between two packets.
    pub(super) longest_silence: Duration,
    last: Option<Duration>,
}

impl Receiver {
    pub(super) fn bind(pairs: &[Pair], answers: Answers, shared: &Arc<Shared>) -> Result<Self> {
        let (mut known, mut sockets, mut places) = (HashMap::new(), Vec::new(), Vec::new());
        for pair in pairs {
            let key = (pair.to.namespace().clone(), pair.family);
            if !known.contains_key(&key) {
                known.insert(key.clone(), sockets.len());
                sockets.push(open(pair)?);
            }
            places.extend(known.get(&key));
        }
        Ok(Self { sockets, places, answers, shared: Arc::clone(shared) })
    }

    /// The address to send to, for each pair.
    pub(super) fn targets(&self) -> Result<Vec<SocketAddr>> {
        let target = |place: &usize| {
            let socket = self.sockets.get(*place).context("a pair without a socket")?;
            Ok(socket.local_addr()?)
        };
        self.places.iter().map(target).collect()
    }

    /// Ends after the stop signal, once no packet has arrived for a while.
    pub(super) fn run(self) -> Result<Vec<Track>> {
        let mut tracks = vec![Track::default(); self.places.len()];
        let readable = |socket| PollFd::new(AsFd::as_fd(socket), PollFlags::POLLIN);
        let mut waiting: Vec<_> = self.sockets.iter().map(readable).collect();
        let mut silent = 0;
        loop {
            let last_call = !is_set(&self.shared.receiving);
            let ready = poll(&mut waiting, PollTimeout::from(LATEST))?;
            silent = if ready == 0 && last_call { silent + 1 } else { 0 };
            if silent == ATTEMPTS || silent > 0 && self.is_complete(&tracks) {
                return Ok(tracks);
            }
            for (socket, waiting) in self.sockets.iter().zip(&waiting) {
                if waiting.any() == Some(true) {
                    self.drain(socket, &mut tracks);
                }
            }
        }
    }

    /// Whether no packet of the rounds that are sent is missing.
    fn is_complete(&self, tracks: &[Track]) -> bool {
        let sent = self.shared.sent.load(Ordering::SeqCst);
        let has_all =
            |track: &Track| track.times.len() >= sent && track.times.iter().all(|times| *times > 0);
        tracks.iter().all(has_all)
    }

    fn drain(&self, socket: &UdpSocket, tracks: &mut [Track]) {
        let mut bytes = [0; 2048];
        while let Ok((length, sender)) = socket.recv_from(&mut bytes) {
            let Some(bytes) = bytes.get(..length) else { continue };
            let Some(packet) = Packet::decode(bytes) else { continue };
            if self.answers == Answers::First && packet.number == Number::WarmUp {
                // One that gets lost is answered again: the sender repeats its packet.
                let _ = socket.send_to(bytes, sender);
            }
            self.note(packet, tracks);
        }
    }

    fn note(&self, packet: Packet, tracks: &mut [Track]) {
        match packet.number {
            Number::WarmUp => {
                if let Some(warm) = self.shared.warm.get(packet.pair) {
                    warm.store(true, Ordering::SeqCst);
                }
            }
            Number::Counted(number) => {
                if let Some(track) = tracks.get_mut(packet.pair) {
                    track.note(number, self.shared.epoch.elapsed());
                }
            }
        }
    }
}

impl Track {
    fn note(&mut self, number: usize, now: Duration) {
        if let Some(times) = self.times.get_mut(number) {
            self.duplicates += u64::from(*times > 0);
            self.reordered += u64::from(*times == 0);
            *times = times.saturating_add(1);
        } else {
            self.times.resize(number, 0);
            self.times.push(1);
        }
        let silence = self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        self.longest_silence = self.longest_silence.max(silence);
        self.last = Some(now);
    }
}

fn open(pair: &Pair) -> Result<UdpSocket> {
    let address = (pair.to.address(pair.family)?, 0);
    let socket = pair.to.namespace().within(|| UdpSocket::bind(address))??;
    socket.set_nonblocking(true)?;
    // Without root on the host, the buffer is limited by the host's maximum.
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_and_repeated_packets_are_counted_apart() {
        let mut track = Track::default();
        for (millis, number) in [(1, 0), (2, 2), (9, 1), (10, 2), (11, 5)] {
            track.note(number, Duration::from_millis(millis));
        }
        assert_eq!(track.times, [1, 1, 2, 0, 0, 1]);
        assert_eq!((track.duplicates, track.reordered), (1, 1));
        assert_eq!(track.longest_silence, Duration::from_millis(7));
    }
}
