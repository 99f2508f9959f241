//! Sends the requests of the loop over the sockets, answers those of peers, and reports the
//! results.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::select_all;
use tokio::time::{Instant, sleep_until};
use tweed_netlink::rtnl::{NextHops, Resolution};

use super::answer::is_between;
use super::content::{decode_question, decode_trace, encode_question};
use super::packet::Outgoing;
use super::replay::{Sender, Stamp, TraceLimit};
use super::traces::{AskedTrace, OpenTraces, TraceRequest};
use super::waiting::{Delayed, WaitingPackets};
use super::{Keyring, NoWire, Orders, Packet, PacketKind, ProbeEvent, Wire, answer, headers};
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::model::probe_secret::Secret;
use crate::model::status::ProbeCounts;
use crate::plan::paths::{LocalProber, ProbeKind, ProbeRequest, Targets, answer_timeout};
use crate::random::random;

/// Probes paths as long as this node's own settings do not change.
pub struct Exchange {
    local: LocalProber,
    keyring: Keyring,
    /// Of the last packet that was sent.
    stamp: Stamp,
    /// The packets received from each peer, by the first address of its subnet.
    senders: BTreeMap<IpAddr, Sender>,
    wires: BTreeMap<Family, Wire>,
    next_hops: NextHops,
    waiting: WaitingPackets,
    /// By nonce, the requests that may still be answered in time. An answer proves that its sender
    /// is alive.
    awaited: BTreeMap<u64, Awaited>,
    /// The deadlines for their answers, the earliest first.
    expiry: BTreeSet<(Instant, u64)>,
    /// How many of them are echo requests.
    echoes: usize,
    traces: OpenTraces,
    trace_limit: TraceLimit,
    counts: ProbeCounts,
    epoch: Instant,
    /// When to report [`ProbeEvent::Due`] to the loop; none after the report.
    due: Option<Instant>,
    /// When to read the loop's targets again: shortly after a change, since more may come.
    targets_at: Option<Instant>,
    reports: Vec<ProbeEvent>,
}

#[derive(Clone, Copy, Debug)]
struct Awaited {
    request: ProbeRequest,
    sent: Instant,
}

/// Why probing pauses.
#[derive(Debug)]
pub enum Pause {
    Reports(Vec<ProbeEvent>),
    /// This node's own settings have changed.
    Changed,
}

const SETTLE: Duration = Duration::from_millis(50);
/// The number of packets that are read before other work is done.
const AT_ONCE: usize = 64;
/// The number of ICMP messages that are read at once; replies after them count as lost.
const ECHOES: usize = 1024;
/// The largest possible packet, in bytes.
const BUFFER: usize = 65_536;

impl Exchange {
    pub fn open(local: LocalProber, secret: Secret) -> Result<Self, NoWire> {
        let open =
            |family: &Family| Wire::open(*family, local.probe.port).map(|wire| (*family, wire));
        let wires = local.addresses.keys().map(open).collect::<Result<_, _>>()?;
        let next_hops = NextHops::open().map_err(NoWire::NoNetlink)?;
        Ok(Self {
            local,
            keyring: Keyring::new(secret),
            stamp: Stamp { session: random(), count: 0 },
            senders: BTreeMap::new(),
            wires,
            next_hops,
            waiting: WaitingPackets::default(),
            awaited: BTreeMap::new(),
            expiry: BTreeSet::new(),
            echoes: 0,
            traces: OpenTraces::default(),
            trace_limit: TraceLimit::default(),
            counts: ProbeCounts::default(),
            epoch: Instant::now(),
            due: None,
            targets_at: Some(Instant::now()),
            reports: Vec::new(),
        })
    }

    /// Runs until there are events for the loop, or probing cannot continue. None if the loop has
    /// ended.
    pub async fn run(&mut self, orders: &mut Orders) -> Option<Pause> {
        let mut buffer = vec![0; BUFFER];
        loop {
            tokio::select! {
                // After a pause of the process, packets that arrived in time are read before
                // requests are reported as lost.
                biased;
                family = first_readable(&self.wires) => {
                    self.receive(family, &mut buffer, &orders.targets.borrow());
                }
                () = until(self.next()) => {}
                request = orders.requests.recv() => self.send_request(request?),
                request = orders.traces.recv() => self.ask(request?),
                answered = orders.answers.recv() => self.send(answered?.outgoing()),
                changed = orders.due.changed() => {
                    changed.ok()?;
                    self.due = *orders.due.borrow_and_update();
                }
                changed = orders.targets.changed() => {
                    changed.ok()?;
                    self.targets_at.get_or_insert(Instant::now() + SETTLE);
                }
            }
            self.take_orders(orders);
            self.keyring.rotate(self.now());
            if !self.targets_due(&orders.targets.borrow()) {
                return Some(Pause::Changed);
            }
            self.send_delayed();
            self.repeat_traces();
            self.expire();
            self.report_due();
            orders.counts.send_replace(self.counts);
            if !self.reports.is_empty() {
                return Some(Pause::Reports(std::mem::take(&mut self.reports)));
            }
        }
    }

    /// Adds the present secret of the store.
    pub fn take_secret(&mut self, secret: Secret) {
        if self.keyring.add(secret, self.now()) {
            tracing::info!(
                "read a new probe secret: it is used for peers that use it, and later for all"
            );
        }
    }

    fn next(&self) -> Option<Instant> {
        let expiry = self.expiry.first().map(|(until, _)| *until);
        let all = [expiry, self.due, self.targets_at, self.waiting.next(), self.traces.next()];
        all.into_iter().flatten().min()
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Handles the loop's requests, even under a constant stream of packets.
    fn take_orders(&mut self, orders: &mut Orders) {
        while let Ok(request) = orders.requests.try_recv() {
            self.send_request(request);
        }
        while let Ok(request) = orders.traces.try_recv() {
            self.ask(request);
        }
        while let Ok(answered) = orders.answers.try_recv() {
            self.send(answered.outgoing());
        }
        if orders.due.has_changed().is_ok_and(|changed| changed) {
            self.due = *orders.due.borrow_and_update();
        }
    }

    /// Reports, once, that the deadline of the loop has passed.
    fn report_due(&mut self) {
        let at = Instant::now();
        if self.due.take_if(|due| *due <= at).is_some() {
            self.reports.push(ProbeEvent::Due { at });
        }
    }

    /// Reports requests without an answer in time as lost.
    fn expire(&mut self) {
        let at = Instant::now();
        if self.echoes > 0 && self.expiry.first().is_some_and(|(until, _)| *until <= at) {
            self.take_echoes(at);
        }
        while let Some((_, nonce)) = self.expiry.first().copied().filter(|(until, _)| *until <= at)
        {
            self.expiry.pop_first();
            if let Some(Awaited { request, sent }) = self.take_awaited(nonce, |_| true) {
                self.reports.push(ProbeEvent::Lost { request, sent, at });
            }
        }
        if self.echoes == 0 {
            self.wires.values_mut().for_each(Wire::close_echoes);
        }
    }

    /// Reads echo replies only when one is due: other hosts may send many ICMP messages, and these
    /// must neither wake this process nor delay probes.
    fn take_echoes(&mut self, at: Instant) {
        let replies: Vec<_> = self.wires.values().flat_map(|it| it.echoed(ECHOES)).collect();
        for (source, nonce) in replies {
            let is_meant = |it: &ProbeRequest| it.kind == ProbeKind::Echo && it.peer == source;
            if let Some(Awaited { request, sent }) = self.take_awaited(nonce, is_meant) {
                self.reports.push(ProbeEvent::Echoed { request, sent, at });
            }
        }
    }

    /// The request with this nonce, if it `is_meant`; it is no longer awaited.
    fn take_awaited(
        &mut self,
        nonce: u64,
        is_meant: impl Fn(&ProbeRequest) -> bool,
    ) -> Option<Awaited> {
        let awaited = *self.awaited.get(&nonce).filter(|it| is_meant(&it.request))?;
        self.awaited.remove(&nonce);
        self.expiry.remove(&(awaited.sent + self.timeout(), nonce));
        self.echoes -= usize::from(awaited.request.kind == ProbeKind::Echo);
        Some(awaited)
    }

    /// Reads the targets if it is time; returns whether this node's own settings are unchanged.
    fn targets_due(&mut self, targets: &Targets) -> bool {
        if self.targets_at.take_if(|at| *at <= Instant::now()).is_none() {
            return true;
        }
        self.senders.retain(|peer, _| targets.peers.contains_key(peer));
        targets.local.as_ref() == Some(&self.local)
    }

    fn send_request(&mut self, request: ProbeRequest) {
        let ProbeRequest { peer, public_ip, path, kind, .. } = request;
        let Some(from) = self.local.addresses.get(&Family::of(peer)).copied() else { return };
        let nonce = self.expect(request);
        let packet = Packet::new(PacketKind::Request, path, nonce, from, peer);
        let length = match kind {
            ProbeKind::Small => 0,
            ProbeKind::Large => self.largest(peer),
            ProbeKind::Echo => return self.send_echo(packet, public_ip),
        };
        self.counts.asked += 1;
        let (content, secret) = (Vec::new(), self.keyring.secret_for(peer).clone());
        self.send(Outgoing { packet, gateway: public_ip, content, length, secret });
    }

    /// Asks a peer what happens to a packet.
    fn ask(&mut self, request: TraceRequest) {
        let TraceRequest { peer, target, path, question, .. } = request;
        let from = self.local.addresses.get(&Family::of(peer)).copied();
        let Some(from) = from.filter(|_| self.traces.has_room()) else { return };
        let packet = Packet::new(PacketKind::TraceRequest, path, random(), from, peer);
        let (gateway, content) = (target.public_ip, encode_question(question));
        let secret = self.keyring.secret_for(peer).clone();
        let outgoing = Outgoing { packet, gateway, content, length: 0, secret };
        self.traces.add(outgoing.clone(), request);
        self.send(outgoing);
    }

    fn repeat_traces(&mut self) {
        for outgoing in self.traces.take_due(Instant::now()) {
            // Since then, the peer may have sealed with a new secret.
            let secret = self.keyring.secret_for(outgoing.packet.to).clone();
            self.send(Outgoing { secret, ..outgoing });
        }
    }

    /// Sends an echo request by the path of `packet`.
    fn send_echo(&mut self, packet: Packet, gateway: IpAddr) {
        let Packet { from, to, nonce, .. } = packet;
        let Self { wires, next_hops, .. } = self;
        let Some(wire) = wires.get_mut(&Family::of(to)) else { return };
        let sent = wire.echo_request(from, to, nonce).and_then(|request| match packet.path {
            Path::Tunnel => wire.send_raw(to, &request).map(|()| true),
            Path::Direct => send_if_resolved(wire, next_hops, gateway, &request),
        });
        match sent {
            Ok(true) => {}
            Ok(false) => self.note_unsent(packet, &io::ErrorKind::HostUnreachable.into()),
            Err(error) => self.note_unsent(packet, &error),
        }
    }

    /// Awaits an answer from now on; returns its nonce.
    fn expect(&mut self, request: ProbeRequest) -> u64 {
        let (nonce, sent) = (random(), Instant::now());
        self.echoes += usize::from(request.kind == ProbeKind::Echo);
        self.awaited.insert(nonce, Awaited { request, sent });
        self.expiry.insert((sent + self.timeout(), nonce));
        nonce
    }

    fn timeout(&self) -> Duration {
        answer_timeout(self.local.probe.interval)
    }

    fn largest(&self, peer: IpAddr) -> usize {
        let mtu = usize::try_from(self.local.pod_mtu).unwrap_or_default();
        mtu.saturating_sub(headers(Family::of(peer)))
    }

    fn send(&mut self, outgoing: Outgoing) {
        let to = outgoing.packet.to;
        match outgoing.packet.path {
            Path::Direct => {
                let until = Instant::now() + self.timeout();
                self.send_direct(Delayed::new(outgoing, until));
            }
            Path::Tunnel => {
                let payload = self.encode(&outgoing);
                let wire = self.wires.get(&Family::of(to));
                if let Some(Err(error)) = wire.map(|wire| wire.send_by_tunnel(to, &payload)) {
                    self.note_unsent(outgoing.packet, &error);
                }
            }
        }
    }

    fn send_delayed(&mut self) {
        for delayed in self.waiting.take_due(Instant::now()) {
            self.send_direct(delayed);
        }
    }

    /// Sends only to a resolved next hop. The packet is complete before the kernel is asked, and sent
    /// right after its answer, since the kernel may forget a next hop at any time.
    fn send_direct(&mut self, delayed: Delayed) {
        let Outgoing { packet, gateway, .. } = delayed.outgoing;
        let payload = self.encode(&delayed.outgoing);
        let Self { wires, next_hops, .. } = self;
        let Some(wire) = wires.get(&Family::of(packet.to)) else { return };
        let datagram = wire.datagram(packet.from, packet.to, &payload);
        match datagram.and_then(|it| send_if_resolved(wire, next_hops, gateway, &it)) {
            Ok(true) => {}
            Ok(false) => {
                if !self.waiting.keep(delayed) {
                    self.note_unsent(packet, &io::ErrorKind::HostUnreachable.into());
                }
            }
            Err(error) => self.note_unsent(packet, &error),
        }
    }

    /// Stamps and seals a packet. Stamps increase in the order of sending.
    fn encode(&mut self, outgoing: &Outgoing) -> Vec<u8> {
        let Outgoing { packet, content, length, secret, .. } = outgoing;
        self.stamp.count += 1;
        Packet { stamp: Some(self.stamp), ..*packet }.encode(content, secret, *length)
    }

    /// Only counts and logs: a request that was not sent is later reported as lost.
    fn note_unsent(&mut self, packet: Packet, error: &io::Error) {
        tracing::debug!(%error, peer = %packet.to, path = ?packet.path, "a probe was not sent");
        self.counts.unsent += 1;
    }

    fn receive(&mut self, family: Family, buffer: &mut [u8], targets: &Targets) {
        for _ in 0..AT_ONCE {
            let received = self.wires.get(&family).and_then(|wire| wire.received(buffer));
            let Some((length, source)) = received else { break };
            let taken = buffer.get(..length).is_some_and(|it| self.take(it, source, targets));
            self.counts.rejected += u64::from(!taken);
        }
    }

    /// Returns whether the packet was accepted.
    fn take(&mut self, bytes: &[u8], source: SocketAddr, targets: &Targets) -> bool {
        let Some((packet, secret)) = Packet::open(bytes, &self.keyring) else { return false };
        let secret = secret.clone();
        let is_for_us = is_between(packet, source.ip(), &self.local);
        if is_for_us && targets.peers.contains_key(&packet.from) {
            self.keyring.note_use(packet.from, &secret);
        }
        let answer = answer(packet, source.ip(), &self.local, targets);
        match (packet.kind, answer) {
            (PacketKind::Answer, _) => is_for_us && self.take_answer(packet),
            (PacketKind::TraceAnswer, _) => {
                is_for_us && self.take_trace(packet, Packet::content(bytes))
            }
            (PacketKind::Request | PacketKind::TraceRequest, None) => false,
            (PacketKind::Request, Some((answer, gateway))) => {
                // As long as the request, so that large packets are probed in both directions.
                let (content, length) = (Vec::new(), bytes.len());
                self.serve(packet, Outgoing { packet: answer, gateway, content, length, secret })
            }
            (PacketKind::TraceRequest, Some((answer, gateway))) => {
                let (peer, question) = (packet.from, decode_question(Packet::content(bytes)));
                question.is_some_and(|question| {
                    self.pass_on(packet, AskedTrace { peer, question, answer, gateway, secret })
                })
            }
        }
    }

    /// Returns whether the request is answered. The answer is sealed with the request's secret,
    /// since the peer may know no other one.
    fn serve(&mut self, request: Packet, answer: Outgoing) -> bool {
        let (interval, now) = (self.local.probe.interval, self.now());
        let sender = self.senders.entry(request.from).or_default();
        if !(sender.take(request.stamp) && sender.spend_request(request.stamp, interval, now)) {
            return false;
        }
        self.counts.served += 1;
        self.report_alive(request.from);
        self.send(answer);
        true
    }

    /// Passes a question about a packet to the loop; returns whether it does.
    fn pass_on(&mut self, request: Packet, asked: AskedTrace) -> bool {
        let (stamp, now) = (request.stamp, self.now());
        let sender = self.senders.entry(request.from).or_default();
        let is_within = sender.take(stamp) && sender.spend_trace(stamp, &mut self.trace_limit, now);
        if is_within {
            self.reports.push(ProbeEvent::Asked(Box::new(asked)));
        }
        is_within
    }

    /// Returns whether it answers an open question about a packet.
    fn take_trace(&mut self, answer: Packet, content: &[u8]) -> bool {
        let Some(request) = self.traces.take(answer.nonce, answer.from) else { return false };
        let trace = decode_trace(request.question.packet, content);
        // The task that asked may have ended.
        trace.is_some_and(|trace| request.reply.send(trace).is_ok())
    }

    /// Returns whether it answers an open request. A peer that answers too late is still alive,
    /// unless the packet is a replayed one.
    fn take_answer(&mut self, packet: Packet) -> bool {
        let Packet { from, path, nonce, stamp, takes_direct, .. } = packet;
        let awaited = self.take_awaited(nonce, |it| {
            it.peer == from && it.path == path && it.kind != ProbeKind::Echo
        });
        let is_expected = awaited.is_some();
        let is_new = self.senders.get_mut(&from).is_none_or(|sender| sender.take(stamp));
        if let Some(Awaited { request, sent }) = awaited {
            self.senders.entry(from).or_default().prove(stamp);
            let at = Instant::now();
            self.reports.push(ProbeEvent::Answered { request, sent, at, takes_direct });
        } else if is_new {
            self.report_alive(from);
        }
        self.counts.answered += u64::from(is_expected);
        is_expected
    }

    fn report_alive(&mut self, peer: IpAddr) {
        let (interval, now) = (self.local.probe.interval, self.now());
        if self.senders.entry(peer).or_default().spend_report(interval, now) {
            self.reports.push(ProbeEvent::Alive { peer, at: Instant::now() });
        }
    }
}

/// Waits until `at`, forever if it is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Returns whether the packet was sent. The kernel would resolve an unresolved next hop with the
/// source address of this packet, which peers and networks may drop, and would meanwhile delay the
/// tunnel's packets to the same peer.
fn send_if_resolved(
    wire: &Wire,
    next_hops: &mut NextHops,
    gateway: IpAddr,
    packet: &[u8],
) -> io::Result<bool> {
    match next_hops.resolve(gateway)? {
        Resolution::Done => wire.send_raw(gateway, packet).map(|()| true),
        Resolution::UnderWay => Ok(false),
    }
}

/// The family of the first wire that may have a packet.
async fn first_readable(wires: &BTreeMap<Family, Wire>) -> Family {
    if wires.is_empty() {
        std::future::pending::<()>().await;
    }
    let all = wires.iter().map(|(family, wire)| {
        Box::pin(async move {
            // A socket that fails has that to read.
            let _ = wire.readable().await;
            *family
        })
    });
    select_all(all).await.0
}
