//! The loop, which owns all state. Every event takes the same path: event, inputs, changes, plan,
//! diff, apply, report.

mod apply;
mod changes;
mod derived;
mod diff;
mod inputs;
mod iptables;
mod loop_state;
mod paths;
mod reachability;
mod readiness;
mod recorder;
mod report;
mod timers;
mod views;

pub use changes::{Changes, Differences, MissingLeases};
pub use inputs::{Edit, GuardState, Inputs};
pub use iptables::IptablesResult;
pub use report::{Outputs, Progress, Usable};
pub use timers::HEARTBEAT;
pub use views::Query;

use std::io;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::task::unconstrained;
use tokio::time::{self, Instant};

use crate::kernel::{Kernel, Observation};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::ConfigUpdate;
use crate::model::lease::{Lease, LeaseUpdate, Withdrawal};
use crate::model::node::InterfaceOptions;
use crate::model::policy::Policy;
use crate::model::status::StoreState;
use crate::plan::config_change::{FormerPods, Reload};
use crate::probe::ProbeEvent;
use crate::store::{AddressConflict, Identity};
use derived::Derived;
use iptables::IptablesTask;
use loop_state::LoopState;
use paths::Paths;
use recorder::Recorder;
use timers::{Task, Timers};

/// The only events that wake the loop.
#[derive(Debug)]
pub enum Event {
    /// The network config in the store has changed.
    Config(ConfigUpdate),
    /// How the store identifies this node.
    Identity(Identity),
    /// This node holds this lease.
    LeaseAcquired(Lease),
    /// Leases in the store have changed.
    Lease(LeaseUpdate),
    /// The store became unreachable or reachable.
    Store(StoreState),
    /// The store has had its time, since the start, to grant the lease and to list all: what it has
    /// not confirmed comes from the checkpoint.
    Overdue,
    /// The checkpoint: the inputs at start-up, until the store responds.
    Remembered(Box<Checkpoint>),
    /// Another node publishes its own lease under this node's public IP, or has stopped.
    Rival(Option<AddressConflict>),
    Probe(ProbeEvent),
    Query(Query),
    /// The kernel sent a notification.
    Kernel(Observation),
    /// The task of the iptables programs has ended.
    Iptables(IptablesResult),
    /// A deadline has passed.
    Due,
}

/// Settings that are fixed while the daemon runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub interface: InterfaceOptions,
    /// The maximum share of peers that may be withdrawn at once, in percent.
    pub max_withdraw: u8,
    pub reload: Reload,
    /// Pods of this boot, if any remain, by how the store gives subnets.
    pub former_pods: FormerPods,
    /// Functions in addition to routing.
    pub policy: Policy,
    /// The interval between reads of rules that send no change notifications.
    pub resync: Duration,
    /// From 0 to 1: spreads work that many nodes would otherwise do at the same time.
    pub jitter: fn() -> f64,
}

/// Keeps the kernel in the state that config, node and leases require.
pub struct Reconciler<K> {
    kernel: K,
    events: mpsc::Receiver<Event>,
    control: Control,
}

/// The state of the loop and its pending work, without the kernel itself.
struct Control {
    settings: Settings,
    inputs: Inputs,
    paths: Paths,
    derived: Derived,
    state: LoopState,
    iptables: IptablesTask,
    recorder: Recorder,
    /// What remains to be read, planned, applied and reported.
    changes: Changes,
    outputs: Outputs,
}

/// A failed access to the kernel, and its error.
type AccessFailure = (&'static str, io::Error);

/// The maximum number of events applied before the kernel is programmed. When a link of 5,000 peers
/// is deleted and restored, the kernel sends more than 40,000 notifications. If only some of them
/// are read, entries that exist again are taken for deleted, and written twice.
const BURST: usize = 65_536;

/// The maximum number of passes: a pass may change the plan once when it loosens or restores a filter,
/// and once when its fallbacks let a waiting edit be applied.
const PASSES: usize = 3;

impl<K: Kernel> Reconciler<K> {
    pub fn new(
        kernel: K,
        settings: Settings,
        events: mpsc::Receiver<Event>,
        outputs: Outputs,
    ) -> Self {
        Self { kernel, events, control: Control::new(settings, outputs) }
    }

    /// Runs until no task that can send events is left.
    pub async fn run(mut self) {
        while let Some(event) = self.next_event().await {
            let begun = Instant::now();
            let is_probe = matches!(event, Event::Probe(_));
            self.control.apply(event);
            // Most probe reports change no verdict, and they are frequent.
            let is_news =
                self.control.changes != Changes::default() || self.control.has_questions();
            if is_probe && !is_news && !self.control.state.timers.is_due() {
                self.control.beat();
                continue;
            }
            for _ in 1..BURST {
                let Some(event) = self.ready_event() else { break };
                self.control.apply(event);
            }
            self.control.take(Control::derive_peers);
            // Deadlines are checked even under a continuous stream of events.
            self.control.take(Control::apply_due);
            // After a failed access to the kernel, each event would repeat it: wait for the retry.
            if !self.control.state.waits_after_failure() {
                self.settle_since(begun).await;
            }
            self.answer_traces().await;
            self.control.report();
        }
    }

    /// Settles, and measures the time from `begun` until operations are applied, if there are any.
    async fn settle_since(&mut self, begun: Instant) {
        let before = self.control.state.statistics.operations();
        match self.settle().await {
            Ok(()) => self.control.state.end_failures(),
            Err(failure) => self.control.access_failed(&failure),
        }
        let state = &mut self.control.state;
        if state.statistics.operations() != before {
            state.measured.event_to_kernel.observe(begun.elapsed().as_secs_f64());
        }
    }

    /// Brings the kernel to the state that the known inputs require.
    async fn settle(&mut self) -> Result<(), AccessFailure> {
        let mut read = self.read_facts().await?;
        if !self.control.inputs.are_known() {
            return Ok(());
        }
        for _ in 0..PASSES {
            self.control.take(Control::reconsider);
            self.control.take(Control::derive);
            self.read_kernel(read.take()).await?;
            let ops = self.control.select_ops();
            self.program(ops).await?;
            if !self.control.changes.plan && !self.control.changes.edit {
                break;
            }
        }
        self.control.retry_unread();
        Ok(())
    }

    /// A single event is handled at once; events that arrive meanwhile are handled together.
    async fn next_event(&mut self) -> Option<Event> {
        let (timers, iptables) = (&self.control.state.timers, &mut self.control.iptables);
        let observed = tokio::select! {
            biased;
            event = self.events.recv() => return event,
            observed = self.kernel.observe(), if timers.may_listen() => observed,
            result = iptables.ended() => return Some(Event::Iptables(result)),
            () = time::sleep_until(timers.next()) => return Some(Event::Due),
        };
        Some(Event::Kernel(self.control.observed(observed)))
    }

    fn ready_event(&mut self) -> Option<Event> {
        self.events.try_recv().ok().or_else(|| {
            let listening = self.control.state.timers.may_listen();
            // Without a limit of the runtime: it would pretend after 128 notifications that no more
            // have arrived.
            let observe = || unconstrained(self.kernel.observe()).now_or_never();
            let observed = listening.then(observe).flatten()?;
            Some(Event::Kernel(self.control.observed(observed)))
        })
    }
}

impl Control {
    fn new(settings: Settings, outputs: Outputs) -> Self {
        Self {
            inputs: Inputs { policy: settings.policy.clone(), ..Inputs::default() },
            paths: Paths::new(),
            derived: Derived::default(),
            state: LoopState { timers: Timers::new(settings.jitter), ..LoopState::default() },
            iptables: IptablesTask::default(),
            recorder: Recorder::new(),
            // No chain is written before its contents are known.
            changes: Changes { chains: true, ..Changes::default() },
            settings,
            outputs,
        }
    }

    /// Applies `event` to the state that it concerns. The only place where an event becomes
    /// changes.
    fn apply(&mut self, event: Event) {
        let Self { inputs, state, settings, .. } = self;
        let mut changes = match event {
            Event::Config(update) => inputs.config_changed(update, settings.reload),
            Event::Identity(identity) => inputs.identity_changed(identity),
            Event::LeaseAcquired(lease) => inputs.lease_acquired(lease),
            Event::Lease(update) => inputs.lease_changed(update),
            Event::Store(state) => inputs.store_changed(state),
            Event::Overdue => inputs.store_overdue(),
            Event::Remembered(checkpoint) => {
                inputs.checkpoint_read(*checkpoint, settings.former_pods)
            }
            Event::Rival(rival) => {
                inputs.rival = rival;
                Changes::default()
            }
            Event::Kernel(observation) => state.observe(observation, &self.derived, inputs),
            Event::Iptables(result) => self.iptables_ended(result),
            Event::Probe(event) => self.probes_reported(event),
            Event::Query(query) => {
                let changes = self.derive_peers();
                self.answer(query);
                changes
            }
            // Deadlines are checked after every event.
            Event::Due => Changes::default(),
        };
        if let Some(losses) = changes.losses.take() {
            self.state.timers.schedule_withdrawal(losses);
        }
        self.changes |= changes;
        // The withdrawal limit may expire only while nothing else indicates that the store lost
        // data.
        if !self.inputs.trusts_store() {
            self.state.timers.end_limit();
        }
    }

    fn take(&mut self, step: impl FnOnce(&mut Self) -> Changes) {
        let changes = step(self);
        self.changes |= changes;
    }

    /// After a socket error, a dump replaces the notifications that were lost.
    fn observed(&mut self, observed: io::Result<Observation>) -> Observation {
        observed.unwrap_or_else(|error| {
            tracing::warn!(%error, "receiving kernel notifications failed: reading the kernel state again");
            self.state.timers.listen_later();
            Observation::Overrun
        })
    }

    fn reconsider(&mut self) -> Changes {
        if std::mem::take(&mut self.changes.edit) {
            self.inputs.reconsider()
        } else {
            Changes::default()
        }
    }

    fn apply_due(&mut self) -> Changes {
        let due = self.state.timers.take_due(self.settings.jitter);
        let ready = due.keys.into_iter().filter(|key| !self.state.refused.is_waiting(key));
        let mut changes = Changes::of_keys(ready);
        for task in due.tasks {
            changes |= self.run_task(task);
        }
        changes
    }

    fn run_task(&mut self, task: Task) -> Changes {
        // Notifications of host changes may have been missed as well.
        let all = Changes { facts: true, dump: true, ..Changes::default() };
        match task {
            // Only a reachable store shows which leases are gone.
            Task::Withdraw if !self.inputs.may_remove() => Changes::default(),
            Task::Withdraw => self.withdraw(),
            Task::Retry => Changes { facts: self.inputs.no_node.is_some(), ..Changes::default() },
            Task::Chains => Changes { chains: true, ..Changes::default() },
            Task::Dump => all,
            Task::Audit => {
                self.iptables.read_all();
                let plan = self.inputs.guarding.try_again();
                Changes { chains: true, plan, ..all }
            }
        }
    }

    fn withdraw(&mut self) -> Changes {
        let is_over = self.state.timers.limit_has_expired();
        if let Some((missing, of)) = self.inputs.held_back.filter(|_| is_over) {
            tracing::warn!(
                missing,
                of,
                "leases have been missing from the store for an hour: removing their routes"
            );
        }
        let max_percent = if is_over { 100 } else { self.settings.max_withdraw };
        match self.inputs.withdraw(max_percent) {
            Withdrawal::Done(affected) => {
                self.inputs.held_back = None;
                self.state.timers.end_limit();
                self.revise(&affected)
            }
            Withdrawal::Limited { missing, of } => {
                if self.inputs.held_back.replace((missing, of)) != Some((missing, of)) {
                    tracing::error!(
                        missing,
                        of,
                        "too many leases vanished at once: their routes are kept"
                    );
                }
                self.outputs.read_again.send_modify(|count| *count += 1);
                self.state.timers.withdraw_later();
                if self.inputs.trusts_store() {
                    self.state.timers.start_limit();
                }
                self.derive_peers()
            }
        }
    }

    fn retry_unread(&mut self) {
        let Changes { facts, dump, .. } = self.changes;
        if facts || dump || self.inputs.no_node.is_some() {
            self.state.timers.retry_later();
        } else {
            self.state.timers.all_is_read();
        }
    }
}
