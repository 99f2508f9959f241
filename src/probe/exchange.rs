//! Asks and answers: the conversation with the other daemons, over the sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tweed_netlink::rtnl::{NextHops, Resolution};

use super::answer::is_between;
use super::board::Size;
use super::pace::patience;
use super::packet::Outgoing;
use super::replay::{Sender, Stamps};
use super::waiting::{Delayed, Waiting};
use super::{
    Board, Findings, Judgement, Keyring, Kind, Local, NoWire, Packet, Question, Targets, Wire,
    answer, headers,
};
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::probe_secret::Secret;
use crate::model::status::Counts;

/// Probes paths for as long as this node's own part stays the same.
pub struct Exchange {
    local: Local,
    keyring: Keyring,
    stamps: Stamps,
    /// What came from each peer, by the first address of its subnet.
    senders: BTreeMap<IpAddr, Sender>,
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
            keyring: Keyring::new(secret),
            stamps: Stamps::new(rand::random()),
            senders: BTreeMap::new(),
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
            self.keyring.turn(self.now());
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

    /// Takes in the secret that the store has now.
    pub fn take_secret(&mut self, secret: Secret) {
        if self.keyring.take(secret, self.now()) {
            tracing::info!("read a new probe secret: it is accepted at once and used later");
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
        self.senders.retain(|peer, _| targets.peers.contains_key(peer));
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
        let packet = Packet { kind: Kind::Question, path, nonce, from, to: peer, stamp: None };
        let length = match size {
            Size::Small => 0,
            Size::Large => self.largest(peer),
        };
        self.counts.asked += 1;
        let secret = self.keyring.current().clone();
        self.send(Outgoing { packet, length, secret }, public_ip);
    }

    fn largest(&self, peer: IpAddr) -> usize {
        let mtu = usize::try_from(self.local.pod_mtu).unwrap_or_default();
        mtu.saturating_sub(headers(Family::of(peer)))
    }

    fn send(&mut self, outgoing: Outgoing, gateway: IpAddr) {
        let to = outgoing.packet.to;
        match outgoing.packet.path {
            Path::Direct => {
                let until = Instant::now() + patience(self.local.probe.interval);
                self.send_direct(Delayed::new(outgoing, gateway, until));
            }
            Path::Tunnel => {
                self.transmit(&outgoing, |wire, payload| wire.send_by_tunnel(to, payload));
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
        let (packet, gateway) = (delayed.outgoing.packet, delayed.gateway);
        match self.next_hops.resolve(gateway) {
            Ok(Resolution::Done) => self.transmit(&delayed.outgoing, |wire, payload| {
                wire.send_direct(packet.from, packet.to, gateway, payload)
            }),
            Ok(Resolution::UnderWay) => {
                if !self.waiting.keep(delayed) {
                    self.note_unsent(packet, &io::ErrorKind::HostUnreachable.into());
                }
            }
            Err(error) => self.note_unsent(packet, &error),
        }
    }

    /// Stamps, seals and sends; stamps grow in the order in which packets leave.
    fn transmit(&mut self, outgoing: &Outgoing, send: impl FnOnce(&Wire, &[u8]) -> io::Result<()>) {
        let Outgoing { packet, length, secret } = outgoing;
        let packet = Packet { stamp: Some(self.stamps.next()), ..*packet };
        let family = Family::of(packet.to);
        let Some(wire) = self.wires.iter().find(|wire| wire.family() == family) else { return };
        if let Err(error) = send(wire, &packet.encode(secret, *length)) {
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
        let Ok((packet, secret)) = Packet::open(bytes, &self.keyring) else { return false };
        let secret = secret.clone();
        match packet.kind {
            Kind::Question => {
                let answer = answer(packet, source.ip(), &self.local, &targets.borrow());
                let Ok((answer, gateway)) = answer else { return false };
                // As long as the question: large packets have to come through both ways.
                let outgoing = Outgoing { packet: answer, length: bytes.len(), secret };
                self.serve(packet, outgoing, gateway)
            }
            Kind::Answer => {
                is_between(packet, source.ip(), &self.local).is_ok() && self.take_answer(packet)
            }
        }
    }

    /// Returns whether the question is answered. It is sealed with what the peer knows, which may
    /// not have read the newest secret yet, or know no other.
    fn serve(&mut self, question: Packet, answer: Outgoing, gateway: IpAddr) -> bool {
        let (interval, now) = (self.local.probe.interval, self.now());
        let sender = self.senders.entry(question.from).or_default();
        if !(sender.take(question.stamp) && sender.may_ask(question.stamp, interval, now)) {
            return false;
        }
        self.counts.served += 1;
        self.board.hear(question.from, now);
        self.send(answer, gateway);
        true
    }

    /// Returns whether it answers a question that waits for it. Who answers too late lives, unless
    /// the packet is an old one that was recorded.
    fn take_answer(&mut self, Packet { from, path, nonce, stamp, .. }: Packet) -> bool {
        let now = self.now();
        let is_expected = self.board.answer(from, path, nonce, now);
        let is_new = self.senders.get_mut(&from).is_none_or(|sender| sender.take(stamp));
        if is_expected {
            self.senders.entry(from).or_default().prove(stamp);
        } else if is_new {
            self.board.hear(from, now);
        }
        self.counts.answered += u64::from(is_expected);
        is_expected
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
