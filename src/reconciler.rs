//! The loop: one owner of all state, one path from whatever happens to what the kernel holds.

mod agenda;
mod apply;
mod desired;
mod events;
mod inputs;
mod readiness;
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
use crate::config::{Kind, NetworkConfig};
use crate::kernel::state::{KernelState, Key, LinkName};
use crate::kernel::{Kernel, Observation, Scope};
use crate::lease::{Lease, LeaseUpdate};
use crate::node::InterfaceOptions;
use crate::status::{Query, Readiness, Statistics};
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
    /// The backend of that earlier life.
    pub former: Option<Kind>,
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
    /// What the log was told last.
    logged: Option<Readiness>,
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
            inputs: Inputs {
                strict: settings.strict.clone(),
                former: settings.former,
                ..Inputs::default()
            },
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
            logged: None,
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
}

/// The socket broke: whatever it would have told is found by a dump.
#[allow(clippy::needless_pass_by_value, reason = "the shape that unwrap_or_else wants")]
fn lost_sight(error: std::io::Error) -> Observation {
    tracing::warn!(%error, "the kernel's messages were interrupted");
    Observation::Overrun
}
