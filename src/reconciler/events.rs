//! What each event changes in the inputs, and what must be looked at because of it.

use super::{Differences, Event, Reconciler};
use crate::checkpoint::Checkpoint;
use crate::config::NetworkConfig;
use crate::kernel::state::Key;
use crate::kernel::{Kernel, Observation};
use crate::lease::{Lease, LeaseUpdate, Withdrawal};
use crate::subnet::StoreState;

impl<K: Kernel> Reconciler<K> {
    /// Takes `event` in; what follows from it is for `settle`.
    pub(super) fn take(&mut self, event: Event) {
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
                // With its last address a link loses its IPv4 routes and neighbours without a word.
                self.stale.dump |= matches!(key, Key::Address(..));
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
