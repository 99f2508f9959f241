//! Direct packets that wait until the kernel has resolved their next hop.

use std::time::Duration;

use tokio::time::Instant;

use super::PacketKind;
use super::packet::Outgoing;

const MOST: usize = 256;
/// The maximum number of waiting answers, so that answers never displace our own requests.
const MOST_ANSWERS: usize = MOST / 2;
/// The pause before a next hop is checked again; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(super) struct WaitingPackets(Vec<Delayed>);

/// A packet, and when to retry.
#[derive(Clone, Debug)]
pub(super) struct Delayed {
    pub(super) outgoing: Outgoing,
    next: Instant,
    pause: Duration,
    until: Instant,
}

impl Delayed {
    /// `until` is the deadline for sending.
    pub(super) fn new(outgoing: Outgoing, until: Instant) -> Self {
        Self { outgoing, next: Instant::now(), pause: PAUSE, until }
    }
}

impl WaitingPackets {
    /// Keeps `delayed` for a retry; returns false if it is dropped instead.
    pub(super) fn keep(&mut self, delayed: Delayed) -> bool {
        let next = delayed.next + delayed.pause;
        let most = match delayed.outgoing.packet.kind {
            PacketKind::Request | PacketKind::TraceRequest => MOST,
            PacketKind::Answer | PacketKind::TraceAnswer => MOST_ANSWERS,
        };
        let is_kept = next < delayed.until && self.0.len() < most;
        if is_kept {
            self.0.push(Delayed { next, pause: delayed.pause * 2, ..delayed });
        }
        is_kept
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|delayed| delayed.next).min()
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Delayed> {
        self.0.extract_if(.., |delayed| delayed.next <= now).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::path::Path;
    use crate::model::probe_secret::Secret;
    use crate::probe::Packet;

    fn delayed(kind: PacketKind, until: Instant) -> Delayed {
        let ip = |text: &str| text.parse().unwrap();
        let (gateway, content) = (ip("172.16.0.2"), Vec::new());
        let packet = Packet::new(kind, Path::Direct, 7, ip("10.244.1.0"), ip("10.244.2.0"));
        let secret = Secret::new(&[7; Secret::LENGTH]);
        Delayed::new(Outgoing { packet, gateway, content, length: 0, secret }, until)
    }

    #[tokio::test(start_paused = true)]
    async fn retries_have_growing_pauses_and_end() {
        let (begun, mut waiting) = (Instant::now(), WaitingPackets::default());
        let mut attempts = Vec::new();
        assert!(waiting.keep(delayed(PacketKind::Request, begun + Duration::from_millis(50))));
        while let Some(next) = waiting.next() {
            tokio::time::advance(next - Instant::now()).await;
            attempts.push(begun.elapsed().as_millis());
            for delayed in waiting.take_due(Instant::now()) {
                waiting.keep(delayed);
            }
        }
        assert_eq!(attempts, [2, 6, 14, 30]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_waiting_packets_is_limited() {
        let mut waiting = WaitingPackets::default();
        let until = Instant::now() + Duration::from_secs(1);
        let mut kept = |kind| (0..300).filter(|_| waiting.keep(delayed(kind, until))).count();
        assert_eq!(kept(PacketKind::Answer), MOST_ANSWERS);
        assert_eq!(kept(PacketKind::Request), MOST - MOST_ANSWERS);
    }
}
