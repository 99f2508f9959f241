//! The loop: one owner of all state, one path from whatever happens to what the kernel holds.

mod agenda;
mod apply;
mod desired;
mod inputs;
mod report;

pub use agenda::HEARTBEAT;
pub use desired::{Desired, Standing};
pub use inputs::Inputs;
pub use report::{Outputs, Progress, Usable};

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time;

use crate::backend::Network;
use crate::checkpoint::Checkpoint;
use crate::config::NetworkConfig;
use crate::kernel::state::{KernelState, Key, LinkName};
use crate::kernel::{Kernel, Observation, Scope};
use crate::lease::{Lease, LeaseUpdate, Withdrawal};
use crate::node::InterfaceOptions;
use crate::status::{Query, Statistics};
use crate::subnet::StoreState;
use agenda::Agenda;

/// Whatever wakes the loop; nothing else does.
#[derive(Debug)]
pub enum Event {
    /// The network config, as the store has it.
    Config(NetworkConfig),
    /// We hold this lease.
    Held(Lease),
    /// The store tells of somebody's lease.
    Lease(LeaseUpdate),
    /// The store went away or came back.
    Store(StoreState),
    /// What was last known, because the store does not answer.
    Remembered(Box<Checkpoint>),
    /// Somebody asks; the answer is JSON.
    Query(Query, oneshot::Sender<serde_json::Value>),
    /// The kernel tells.
    Kernel(Observation),
    /// A deadline has passed.
    Due,
}

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub interface: InterfaceOptions,
    /// The largest share of peers that may vanish at once, in percent.
    pub max_withdraw: u8,
    /// The links whose reverse-path filter an earlier life of the daemon loosened.
    pub strict: BTreeSet<LinkName>,
    /// From 0 to 1: spreads what many nodes would do at once.
    pub jitter: fn() -> f64,
}

/// Keeps the kernel as config, node and leases want it.
pub struct Reconciler<K> {
    kernel: K,
    settings: Settings,
    events: mpsc::Receiver<Event>,
    inputs: Inputs,
    networks: Vec<Box<dyn Network>>,
    scope: Scope,
    desired: Desired,
    actual: KernelState,
    stale: Stale,
    /// What interrupted the last conversation with the kernel.
    trouble: Option<String>,
    /// The keys whose entry the kernel refused, and why.
    refused: BTreeMap<Key, String>,
    agenda: Agenda,
    statistics: Statistics,
    outputs: Outputs,
}

/// What must be looked at before the kernel can be called right.
#[derive(Debug, Default)]
struct Stale {
    /// The facts of the host.
    facts: bool,
    /// What the kernel holds.
    dump: bool,
    /// The whole plan.
    plan: bool,
    /// The differences.
    differences: Differences,
}

/// Where desired and actual state may differ.
#[derive(Debug)]
enum Differences {
    In(BTreeSet<Key>),
    Anywhere,
}

impl Default for Differences {
    fn default() -> Self {
        Self::In(BTreeSet::new())
    }
}

impl Extend<Key> for Differences {
    fn extend<I: IntoIterator<Item = Key>>(&mut self, keys: I) {
        if let Self::In(known) = self {
            known.extend(keys);
        }
    }
}

/// So many events are taken in before the kernel is programmed, at most.
const BURST: usize = 4096;

impl<K: Kernel> Reconciler<K> {
    pub fn new(
        kernel: K,
        settings: Settings,
        events: mpsc::Receiver<Event>,
        outputs: Outputs,
    ) -> Self {
        Self {
            kernel,
            agenda: Agenda::new(settings.jitter),
            inputs: Inputs { strict: settings.strict.clone(), ..Inputs::default() },
            settings,
            events,
            networks: Vec::new(),
            scope: Scope::default(),
            desired: Desired::default(),
            actual: KernelState::default(),
            stale: Stale::default(),
            trouble: None,
            refused: BTreeMap::new(),
            statistics: Statistics::default(),
            outputs,
        }
    }

    /// Runs until nobody can send events any more.
    pub async fn run(mut self) {
        while let Some(event) = self.next_event().await {
            self.take(event);
            for _ in 1..BURST {
                let Some(event) = self.ready_event() else { break };
                self.take(event);
            }
            self.settle().await;
            self.report();
        }
    }

    /// One event is acted on at once; what has come meanwhile is taken in with it.
    async fn next_event(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            event = self.events.recv() => event,
            observation = self.kernel.observe() => Some(Event::Kernel(observation.unwrap_or_else(lost_sight))),
            () = time::sleep_until(self.agenda.next()) => Some(Event::Due),
        }
    }

    fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok().or_else(|| {
            let observation = self.kernel.observe().now_or_never()?;
            Some(Event::Kernel(observation.unwrap_or_else(lost_sight)))
        })
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Config(config) => self.take_config(config),
            Event::Held(lease) => self.take_own(lease),
            Event::Lease(update) => self.take_lease(update),
            Event::Store(state) => self.take_store(state),
            Event::Remembered(checkpoint) => self.take_checkpoint(*checkpoint),
            Event::Query(query, reply) => {
                // Who asked may have gone; that is no concern of ours.
                drop(reply.send(self.answer(query)));
            }
            Event::Kernel(observation) => self.take_observation(observation),
            Event::Due => self.take_due(),
        }
    }

    fn take_config(&mut self, config: NetworkConfig) {
        self.inputs.confirmed = true;
        if self.inputs.config.as_ref() != Some(&config) {
            self.inputs.config = Some(config);
            self.stale.facts = true;
            self.stale.plan = true;
        }
    }

    fn take_own(&mut self, lease: Lease) {
        if self.inputs.own.as_ref() != Some(&lease) {
            self.inputs.own = Some(lease);
            self.stale.plan = true;
            self.outputs.checkpoint_changed();
        }
    }

    fn take_lease(&mut self, update: LeaseUpdate) {
        let was_complete = self.inputs.peers.is_complete();
        let affected = self.inputs.peers.apply(update);
        if self.inputs.peers.missing().is_empty() {
            self.inputs.held_back = None;
        } else if self.inputs.is_forgotten() {
            self.agenda.withdraw_later();
        } else {
            self.agenda.withdraw_soon();
        }
        // With the first complete picture, removals that had to wait become due.
        if was_complete != self.inputs.peers.is_complete() {
            self.stale.differences = Differences::Anywhere;
        }
        if !affected.is_empty() {
            self.outputs.checkpoint_changed();
        }
        self.revise(affected);
    }

    fn take_store(&mut self, state: StoreState) {
        // Removals wait while the store is away.
        if state == StoreState::Reachable {
            self.stale.differences = Differences::Anywhere;
        }
        self.inputs.store = state;
    }

    fn take_checkpoint(&mut self, checkpoint: Checkpoint) {
        if self.inputs.config.is_none() {
            tracing::warn!("the store does not answer: starting from what was last known");
            self.inputs.remember(checkpoint);
            self.stale.facts = true;
            self.stale.plan = true;
        }
    }

    fn take_observation(&mut self, observation: Observation) {
        match observation {
            Observation::Holds(entry) => {
                if self.scope.covers(&entry) && self.actual.get(&entry.key()) != Some(&entry) {
                    self.stale.differences.extend([entry.key()]);
                    self.actual.insert(entry);
                }
            }
            Observation::Lost(key) => {
                if self.actual.remove(&key).is_some() {
                    self.stale.differences.extend([key]);
                }
            }
            Observation::LinkChanged(link) => {
                let is_underlay = self.scope.underlay.as_ref().is_none_or(|ours| *ours == link);
                self.stale.facts |= is_underlay;
                self.stale.dump |= is_underlay || self.scope.tunnels.contains(&link);
            }
            Observation::Overrun => {
                self.statistics.overruns += 1;
                self.stale.facts = true;
                self.stale.dump = true;
            }
        }
    }

    fn take_due(&mut self) {
        let due = self.agenda.take_due();
        self.stale.differences.extend(due.removals);
        if due.retry {
            self.stale.facts |= self.inputs.node.is_none();
            self.stale.differences.extend(self.refused.keys().cloned());
        }
        if due.audit {
            self.stale.dump = true;
            self.stale.facts = true;
        }
        if due.withdraw {
            self.withdraw();
        }
    }

    fn withdraw(&mut self) {
        let rules = self.inputs.rules();
        match self.inputs.peers.withdraw(&rules, self.settings.max_withdraw) {
            Withdrawal::Done(affected) => {
                self.inputs.held_back = None;
                self.revise(affected);
            }
            Withdrawal::Held { missing, of } => {
                if self.inputs.held_back.replace((missing, of)) != Some((missing, of)) {
                    tracing::error!(
                        missing,
                        of,
                        "too many leases vanished at once: their routes are kept"
                    );
                }
                self.outputs.read_again();
                self.agenda.withdraw_later();
            }
        }
    }
}

/// The socket broke: whatever it would have told is found by a dump.
#[allow(clippy::needless_pass_by_value, reason = "the shape that unwrap_or_else wants")]
fn lost_sight(error: std::io::Error) -> Observation {
    tracing::warn!(%error, "the kernel's messages were interrupted");
    Observation::Overrun
}
