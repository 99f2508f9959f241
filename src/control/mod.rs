//! The loop: one owner of all state, one path from whatever happens to what the kernel holds.

mod apply;
mod due;
mod edit;
mod guarding;
mod inputs;
mod iptables;
mod macs;
mod paths;
mod readiness;
mod refusals;
mod report;
mod retire;
mod rules;
mod take;
mod timers;
mod views;

pub use edit::Edit;
pub use guarding::Guarding;
pub use inputs::Inputs;
pub use iptables::IptablesResult;
pub use report::{Listeners, Outputs, Progress, Usable};
pub use timers::HEARTBEAT;
pub use views::Question;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time;

use crate::kernel::{Kernel, Observation};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{ConfigUpdate, Kind};
use crate::model::entry::{KernelState, Key};
use crate::model::lease::{Lease, LeaseUpdate};
use crate::model::node::InterfaceOptions;
use crate::model::policy::Policy;
use crate::model::status::{Readiness, Statistics, StoreState};
use crate::plan::backend::Network;
use crate::plan::config_change::Reload;
use crate::plan::desired::Desired;
use crate::plan::masquerade::Choice;
use crate::plan::scope::Scope;
use crate::probe::ProbeEvent;
use crate::store::{Identity, Rival};
use iptables::IptablesTask;
use paths::Paths;
use readiness::Rejections;
use refusals::Refusals;
use timers::Timers;

/// Whatever wakes the loop; nothing else does.
#[derive(Debug)]
pub enum Event {
    /// What the store says of the network config.
    Config(ConfigUpdate),
    /// Who this node is to the store.
    Identity(Identity),
    /// We hold this lease.
    Held(Lease),
    /// The store tells of somebody's lease.
    Lease(LeaseUpdate),
    /// The store went away or came back.
    Store(StoreState),
    /// What was last known: the start, until the store tells how it really is.
    Remembered(Box<Checkpoint>),
    /// Another node publishes its own record in the place of ours, or has stopped.
    Rival(Option<Rival>),
    Probe(ProbeEvent),
    Question(Question),
    /// The kernel tells.
    Kernel(Observation),
    /// The programs of iptables have ended.
    Iptables(IptablesResult),
    /// A deadline has passed.
    Due,
}

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub interface: InterfaceOptions,
    /// The largest share of peers that may vanish at once, in percent.
    pub max_withdraw: u8,
    pub reload: Reload,
    /// What is done beside routing.
    pub policy: Policy,
    /// Between two looks at rules of whose changes nobody tells.
    pub resync: Duration,
    /// From 0 to 1: spreads what many nodes would do at once.
    pub jitter: fn() -> f64,
}

/// Keeps the kernel as config, node and leases want it.
pub struct Reconciler<K> {
    kernel: K,
    iptables: IptablesTask,
    settings: Settings,
    events: mpsc::Receiver<Event>,
    inputs: Inputs,
    // What follows from the inputs.
    networks: Vec<Box<dyn Network>>,
    scope: Scope,
    /// Of peers that may be gone: routes through them may still be those of flannel.
    former_gateways: BTreeSet<IpAddr>,
    desired: Desired,
    actual: KernelState,
    paths: Paths,
    stale: Stale,
    /// What interrupted the last conversation with the kernel.
    trouble: Option<String>,
    refused: Refusals,
    /// Whether a checkpoint would differ from the last one.
    unsaved: bool,
    /// Whether the node's report may differ from the last one.
    unreported: bool,
    timers: Timers,
    statistics: Statistics,
    /// The backend that the log was told of last, and whether with `Mixed`.
    applied: Option<(Kind, bool)>,
    /// Which firewall the log was told of last.
    firewall: Option<Choice>,
    /// What the log was told last.
    logged: Option<Readiness>,
    /// What the log is told next.
    rejected: Rejections,
    outputs: Outputs,
}

/// What must be looked at before the kernel can be called right.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Stale {
    /// The facts of the host.
    facts: bool,
    /// What the kernel holds.
    dump: bool,
    /// What is in chains of iptables.
    chains: bool,
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
            iptables: IptablesTask::default(),
            timers: Timers::new(settings.jitter),
            inputs: Inputs { policy: settings.policy.clone(), ..Inputs::default() },
            settings,
            events,
            networks: Vec::new(),
            scope: Scope::default(),
            former_gateways: BTreeSet::new(),
            desired: Desired::default(),
            actual: KernelState::default(),
            paths: Paths::default(),
            // Nobody writes a chain before he knows what is in it.
            stale: Stale { chains: true, ..Stale::default() },
            trouble: None,
            refused: Refusals::default(),
            unsaved: false,
            unreported: false,
            statistics: Statistics::default(),
            applied: None,
            firewall: None,
            logged: None,
            rejected: Rejections::default(),
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
            self.catch_up();
            // Deadlines pass even while events never cease.
            self.take_due();
            self.settle().await;
            self.report();
        }
    }

    /// One event is acted on at once; what has come meanwhile is taken in with it.
    async fn next_event(&mut self) -> Option<Event> {
        let told = tokio::select! {
            biased;
            event = self.events.recv() => return event,
            told = self.kernel.observe(), if self.timers.may_listen() => told,
            result = self.iptables.ended() => return Some(Event::Iptables(result)),
            () = time::sleep_until(self.timers.next()) => return Some(Event::Due),
        };
        Some(self.heard(told))
    }

    fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok().or_else(|| {
            let listening = self.timers.may_listen();
            let told = listening.then(|| self.kernel.observe().now_or_never()).flatten()?;
            Some(self.heard(told))
        })
    }

    /// When the socket breaks, whatever it would have told is found by a dump.
    fn heard(&mut self, told: io::Result<Observation>) -> Event {
        Event::Kernel(told.unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel's messages were interrupted");
            self.timers.listen_later();
            Observation::Overrun
        }))
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Config(update) => self.take_config(update),
            Event::Identity(identity) => self.take_identity(identity),
            Event::Held(lease) => self.take_own(lease),
            Event::Lease(update) => self.take_lease(update),
            Event::Store(state) => self.take_store(state),
            Event::Remembered(checkpoint) => self.take_checkpoint(*checkpoint),
            Event::Rival(rival) => self.inputs.rival = rival,
            Event::Probe(event) => self.probes_reported(event),
            Event::Question(question) => {
                self.catch_up();
                self.answer(question);
            }
            Event::Kernel(observation) => self.take_observation(observation),
            Event::Iptables(result) => self.iptables_ended(result),
            // What is due is looked at after every event.
            Event::Due => {}
        }
    }
}
