//! The probes of a daemon in the simulated network: what the task with the sockets is in a real one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tweed::control::Event;
use tweed::model::path::Path;
use tweed::model::prefix::Family;
use tweed::plan::paths::{LocalProber, ProbeKind, ProbeRequest, Targets, answer_timeout};
use tweed::probe::{self, Orders, ProbeEvent};
use tweed::store::Documents;

use crate::packets::walk::Segment;

/// The segment, and the daemons that answer on it.
#[derive(Debug, Default)]
pub struct Network {
    pub segment: RefCell<Segment>,
    /// By the index of the host.
    pub daemons: RefCell<BTreeMap<usize, Answerer>>,
}

/// A running daemon, as others see it.
#[derive(Clone, Debug)]
pub struct Answerer {
    targets: watch::Receiver<Targets>,
    events: mpsc::Sender<Event>,
    /// The process is stopped by a signal.
    pub is_stopped: bool,
}

/// From a host to another and back.
const ROUND_TRIP: Duration = Duration::from_millis(1);
/// The pause after the secret could not be read.
const RETRY: Duration = Duration::from_secs(30);

/// A request that waits for its result.
struct Open {
    request: ProbeRequest,
    sent: Instant,
    /// Whether it is lost already, and this is not known yet.
    is_lost: bool,
}

/// Probes for the daemon of host `index`, as long as the loop asks.
pub async fn probe_paths<S: Documents>(
    network: Rc<Network>,
    index: usize,
    manager: Arc<S>,
    events: mpsc::Sender<Event>,
) -> Option<()> {
    let (channels, mut orders) = probe::channels();
    report(&events, ProbeEvent::Channels(channels)).await?;
    loop {
        let wanted = orders.targets.wait_for(|targets| targets.local.is_some()).await;
        let local = wanted.ok()?.local.clone()?;
        if let Err(reason) = manager.probe_secret().await {
            report(&events, ProbeEvent::Off(reason)).await?;
            tokio::time::sleep(RETRY).await;
            continue;
        }
        let targets = orders.targets.clone();
        let answerer = Answerer { targets, events: events.clone(), is_stopped: false };
        network.daemons.borrow_mut().insert(index, answerer);
        report(&events, ProbeEvent::On).await?;
        Exchange { network: &network, index, local, open: BTreeMap::new(), number: 0 }
            .run(&mut orders, &events)
            .await?;
    }
}

async fn report(events: &mpsc::Sender<Event>, event: ProbeEvent) -> Option<()> {
    events.send(Event::Probe(event)).await.ok()
}

struct Exchange<'a> {
    network: &'a Network,
    index: usize,
    local: LocalProber,
    open: BTreeMap<(Instant, u64), Open>,
    number: u64,
}

impl Exchange<'_> {
    /// Runs until the settings of this node change.
    async fn run(mut self, orders: &mut Orders, events: &mpsc::Sender<Event>) -> Option<()> {
        let mut due = *orders.due.borrow_and_update();
        orders.targets.mark_changed();
        loop {
            let next = self.open.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                biased;
                () = until(next) => {
                    if let Some(event) = self.open.pop_first().and_then(|(_, it)| self.result(it)) {
                        report(events, event).await?;
                    }
                }
                () = until(due) => {
                    due = None;
                    report(events, ProbeEvent::Due { at: Instant::now() }).await?;
                }
                request = orders.requests.recv() => self.ask(request?),
                changed = orders.due.changed() => {
                    changed.ok()?;
                    due = *orders.due.borrow_and_update();
                }
                changed = orders.targets.changed() => {
                    changed.ok()?;
                    if orders.targets.borrow_and_update().local.as_ref() != Some(&self.local) {
                        return Some(());
                    }
                }
            }
        }
    }

    fn ask(&mut self, request: ProbeRequest) {
        let sent = Instant::now();
        self.wait(sent + ROUND_TRIP, Open { request, sent, is_lost: false });
    }

    fn wait(&mut self, at: Instant, open: Open) {
        self.number += 1;
        self.open.insert((at, self.number), open);
    }

    /// What became of a request; none if that is not known yet.
    fn result(&mut self, open: Open) -> Option<ProbeEvent> {
        let (Open { request, sent, is_lost }, at) = (open, Instant::now());
        if is_lost {
            return Some(ProbeEvent::Lost { request, sent, at });
        }
        if let Some(event) = self.answered(request, sent, at) {
            return Some(event);
        }
        let timeout = answer_timeout(self.local.probe.interval);
        self.wait(sent + timeout, Open { request, sent, is_lost: true });
        None
    }

    fn answered(&self, request: ProbeRequest, sent: Instant, at: Instant) -> Option<ProbeEvent> {
        let ProbeRequest { peer, public_ip, path, kind, .. } = request;
        let segment = self.network.segment.borrow();
        let own = *self.local.addresses.values().find(|own| own.is_ipv4() == peer.is_ipv4())?;
        let there = segment.probe(self.index, (own, peer), path, public_ip).ok()?;
        let back = |gateway: IpAddr| {
            let arrived = segment.probe(there, (peer, own), path, gateway);
            arrived.is_ok_and(|it| it == self.index)
        };
        if kind == ProbeKind::Echo {
            // The kernel answers by its route.
            let source = segment.hosts.get(self.index)?.address(Family::of(peer));
            return back(source).then_some(ProbeEvent::Echoed { request, sent, at });
        }
        let daemon = self.network.daemons.borrow().get(&there).cloned()?;
        let target = *daemon.targets.borrow().peers.get(&own)?;
        let is_usual = path == Path::Tunnel || target.direct;
        if daemon.is_stopped || !is_usual {
            return None;
        }
        // A full queue delays it like a busy process.
        let _ = daemon.events.try_send(Event::Probe(ProbeEvent::Alive { peer: own, at }));
        let takes_direct = target.direct;
        let answered = ProbeEvent::Answered { request, sent, at, takes_direct };
        back(target.public_ip).then_some(answered)
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
