//! Asks and answers: the conversation with the other daemons, over the sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tweed_cni::netlink::{NextHops, Resolution};

use super::answer::is_between;
use super::board::Size;
use super::pace::patience;
use super::waiting::{Delayed, Waiting};
use super::{
    Board, Counts, Findings, Judgement, Kind, Local, NoWire, Packet, Question, Secret, Targets,
    Wire, answer, headers,
};
use crate::backend::Path;
use crate::prefix::Family;

/// Probes paths for as long as this node's own part stays the same.
pub struct Exchange {
    local: Local,
    secret: Secret,
    wires: Vec<Wire>,
    next_hops: NextHops,
    waiting: Waiting,
    board: Board,
    counts: Counts,
    epoch: Instant,
    /// When the loop's wishes are looked at; they may come in swarms.
    follow: Option<Instant>,
    /// When the findings are told.
    tell: Instant,
}

/// Why probing pauses.
#[derive(Debug)]
pub enum Pause {
    Judged(Vec<Judgement>),
    /// This node's own part has changed.
    Changed,
    /// The loop has ended.
    Closed,
}

const FOLLOW: Duration = Duration::from_millis(50);
const TELL: Duration = Duration::from_secs(1);
/// So many packets are read before anything else happens.
const AT_ONCE: usize = 64;
/// The largest packet there can be.
const BUFFER: usize = 65_536;

enum Woken {
    /// By a packet on the wire of this number.
    Heard(usize),
    Due,
    Wished,
    Closed,
}

impl Exchange {
    pub fn open(local: Local, secret: Secret, epoch: Instant) -> Result<Self, NoWire> {
        let open = |family: &Family| Wire::open(*family, local.probe.port);
        let wires = local.addresses.keys().map(open).collect::<Result<_, _>>()?;
        let next_hops = NextHops::open().map_err(NoWire::NoNetlink)?;
        Ok(Self {
            board: Board::new(&local.probe),
            local,
            secret,
            wires,
            next_hops,
            waiting: Waiting::default(),
            counts: Counts::default(),
            epoch,
            follow: Some(Instant::now()),
            tell: Instant::now() + TELL,
        })
    }

    /// Goes on until there is something to tell the loop.
    pub async fn run(
        &mut self,
        targets: &mut watch::Receiver<Targets>,
        findings: &watch::Sender<Findings>,
    ) -> Pause {
        let mut buffer = vec![0; BUFFER];
        loop {
            let woken = tokio::select! {
                // Who was kept from the processor first reads what came in time, and then counts
                // what is lost.
                biased;
                wire = heard(&self.wires) => Woken::Heard(wire),
                () = sleep_until(self.next()) => Woken::Due,
                changed = targets.changed() => changed.map_or(Woken::Closed, |()| Woken::Wished),
            };
            match woken {
                Woken::Heard(wire) => self.hear(wire, &mut buffer, targets),
                Woken::Due => {}
                Woken::Wished => drop(self.follow.get_or_insert(Instant::now() + FOLLOW)),
                Woken::Closed => return Pause::Closed,
            }
            if !self.follow_due(targets) {
                return Pause::Changed;
            }
            self.send_delayed();
            self.ask();
            self.tell_due(findings);
            let judged = self.board.take_judgements();
            if !judged.is_empty() {
                return Pause::Judged(judged);
            }
        }
    }

    fn next(&self) -> Instant {
        let turn = self.board.next().map(|at| self.epoch + at);
        [turn, self.follow, self.waiting.next()].into_iter().flatten().fold(self.tell, Instant::min)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Returns whether we are still who we were.
    fn follow_due(&mut self, targets: &watch::Receiver<Targets>) -> bool {
        if self.follow.take_if(|at| *at <= Instant::now()).is_none() {
            return true;
        }
        let targets = targets.borrow();
        self.board.follow(&targets.peers, self.epoch.elapsed());
        targets.local.as_ref() == Some(&self.local)
    }

    fn ask(&mut self) {
        for question in self.board.questions(self.now(), rand::random) {
            self.send_question(question);
        }
    }

    fn send_question(&mut self, question: Question) {
        let Question { peer, public_ip, path, size, nonce } = question;
        let Some(from) = self.local.addresses.get(&Family::of(peer)).copied() else { return };
        let packet = Packet { kind: Kind::Question, path, nonce, from, to: peer };
        let length = match size {
            Size::Small => 0,
            Size::Large => self.largest(peer),
        };
        self.counts.asked += 1;
        self.send(packet, length, public_ip);
    }

    fn largest(&self, peer: IpAddr) -> usize {
        let mtu = usize::try_from(self.local.pod_mtu).unwrap_or_default();
        mtu.saturating_sub(headers(Family::of(peer)))
    }

    fn send(&mut self, packet: Packet, length: usize, gateway: IpAddr) {
        match packet.path {
            Path::Direct => {
                let until = Instant::now() + patience(self.local.probe.interval);
                self.send_direct(Delayed::new(packet, length, gateway, until));
            }
            Path::Tunnel => {
                self.transmit(packet, length, |wire, payload| {
                    wire.send_by_tunnel(packet.to, payload)
                });
            }
        }
    }

    fn send_delayed(&mut self) {
        for delayed in self.waiting.take_due(Instant::now()) {
            self.send_direct(delayed);
        }
    }

    /// Only to a next hop that is resolved. The kernel would resolve any other one with the source
    /// address of this packet, which peers and networks may drop, and meanwhile hold up the packets
    /// of the tunnel to the same peer.
    fn send_direct(&mut self, delayed: Delayed) {
        let Delayed { packet, length, gateway, .. } = delayed;
        match self.next_hops.resolve(gateway) {
            Ok(Resolution::Done) => self.transmit(packet, length, |wire, payload| {
                wire.send_direct(packet.from, packet.to, gateway, payload)
            }),
            Ok(Resolution::UnderWay) if self.waiting.keep(delayed) => {}
            Ok(Resolution::UnderWay) => {
                self.note_unsent(packet, &io::ErrorKind::HostUnreachable.into());
            }
            Err(error) => self.note_unsent(packet, &error),
        }
    }

    fn transmit(
        &mut self,
        packet: Packet,
        length: usize,
        send: impl FnOnce(&Wire, &[u8]) -> io::Result<()>,
    ) {
        let family = Family::of(packet.to);
        let Some(wire) = self.wires.iter().find(|wire| wire.family() == family) else { return };
        if let Err(error) = send(wire, &packet.encode(&self.secret, length)) {
            self.note_unsent(packet, &error);
        }
    }

    /// What was not sent is not answered: that is all that matters.
    fn note_unsent(&mut self, packet: Packet, error: &io::Error) {
        tracing::debug!(%error, peer = %packet.to, path = ?packet.path, "a probe was not sent");
        self.counts.unsent += 1;
    }

    fn hear(&mut self, wire: usize, buffer: &mut [u8], targets: &watch::Receiver<Targets>) {
        for _ in 0..AT_ONCE {
            let received = self.wires.get(wire).and_then(|wire| wire.received(buffer));
            let Some((length, source)) = received else { break };
            let taken = buffer.get(..length).is_some_and(|it| self.take(it, source, targets));
            self.counts.rejected += u64::from(!taken);
        }
    }

    /// Returns whether the packet was of any use.
    fn take(
        &mut self,
        bytes: &[u8],
        source: SocketAddr,
        targets: &watch::Receiver<Targets>,
    ) -> bool {
        let Ok(packet) = Packet::decode(bytes, &self.secret) else { return false };
        match packet.kind {
            Kind::Question => self.serve(packet, bytes.len(), source.ip(), &targets.borrow()),
            Kind::Answer => {
                let is_ours = is_between(packet, source.ip(), &self.local).is_ok();
                let Packet { from, path, nonce, .. } = packet;
                let is_news = is_ours && self.board.answer(from, path, nonce, self.now());
                if is_ours && !is_news {
                    self.board.hear(from, self.now());
                }
                self.counts.answered += u64::from(is_news);
                is_news
            }
        }
    }

    /// The answer is as long as the question: large packets have to come through both ways.
    fn serve(&mut self, packet: Packet, length: usize, source: IpAddr, targets: &Targets) -> bool {
        let Ok((answer, gateway)) = answer(packet, source, &self.local, targets) else {
            return false;
        };
        self.counts.served += 1;
        self.board.hear(packet.from, self.now());
        self.send(answer, length, gateway);
        true
    }

    fn tell_due(&mut self, findings: &watch::Sender<Findings>) {
        if self.tell > Instant::now() {
            return;
        }
        self.tell = Instant::now() + TELL;
        let (touched, counts) = (self.board.take_touched(), self.counts);
        findings.send_modify(|findings| {
            findings.counts = counts;
            for (peer, subject) in touched {
                match subject {
                    Some(subject) => drop(findings.subjects.insert(peer, subject)),
                    None => drop(findings.subjects.remove(&peer)),
                }
            }
        });
    }
}

/// The number of the first wire that may have a packet.
async fn heard(wires: &[Wire]) -> usize {
    if wires.is_empty() {
        std::future::pending::<()>().await;
    }
    let (_, index, _) = select_all(wires.iter().map(|wire| Box::pin(wire.readable()))).await;
    index
}
