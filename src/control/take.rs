//! What each event changes of what is known, and what must be looked at because of it.

use super::timers::Task;
use super::{Differences, Reconciler};
use crate::kernel::{Kernel, Observation};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::{ConfigUpdate, NetworkConfig};
use crate::model::entry::Key;
use crate::model::lease::{Lease, LeaseUpdate, Withdrawal};
use crate::model::status::StoreState;
use crate::store::Identity;

impl<K: Kernel> Reconciler<K> {
    pub(super) fn take_config(&mut self, update: ConfigUpdate) {
        if self.inputs.edit.update.as_ref() == Some(&update) {
            return;
        }
        self.unreported = true;
        self.statistics.edits += 1;
        let was_confirmed = self.inputs.confirmed;
        if self.inputs.take_edit(update, self.settings.reload) {
            self.follow_config();
        }
        // What was only remembered may now replace what the kernel holds.
        if was_confirmed != self.inputs.confirmed {
            self.stale.differences = Differences::Anywhere;
        }
    }

    /// The host is looked at anew: another public IP may lie on another interface.
    pub(super) fn take_identity(&mut self, identity: Identity) {
        if self.inputs.identity != identity {
            self.inputs.identity = identity;
            self.stale.facts = true;
            self.stale.plan = true;
            self.unreported = true;
        }
    }

    /// Looks again at an edit that waits for peers.
    pub(super) fn reconsider(&mut self) {
        if self.inputs.reconsider(self.settings.reload) {
            self.follow_config();
        }
    }

    /// Another config is in force.
    fn follow_config(&mut self) {
        self.doubt_silence(&self.inputs.peers.ids().cloned().collect());
        self.stale.facts = true;
        self.stale.plan = true;
        self.unsaved = true;
        self.applied = None;
    }

    /// Reports the backend that this node has by the config, or is kept on.
    pub(super) fn log_config(&mut self, config: &NetworkConfig) {
        let applied = Some((config.backend.kind, config.mixed));
        if self.applied != applied {
            let (backend, mixed) = (config.backend.kind.as_str(), config.mixed);
            let revision = self.inputs.edit.revision();
            tracing::info!(backend, mixed, revision, "applied network config");
            self.applied = applied;
        }
    }

    pub(super) fn take_own(&mut self, lease: Lease) {
        self.inputs.held = true;
        if self.inputs.own.as_ref() != Some(&lease) {
            self.inputs.own = Some(lease);
            // Pods may sit on a bridge of the subnet before.
            self.stale.facts = true;
            self.stale.plan = true;
            self.unsaved = true;
        }
    }

    pub(super) fn take_lease(&mut self, update: LeaseUpdate) {
        let peers = &mut self.inputs.peers;
        let (was_complete, were_missing) = (peers.is_complete(), peers.missing().len());
        peers.take_in(update);
        let missing = peers.missing().len();
        // With the first complete picture, removals that had to wait become due.
        if was_complete != peers.is_complete() {
            self.inputs.check_memory();
            self.stale.differences = Differences::Anywhere;
            self.inputs.edit.stale = true;
            // Only now it is known who may be let into the tunnel.
            self.stale.plan = true;
        }
        if missing == 0 {
            self.inputs.held_back = None;
            self.timers.withdraw_nothing();
        } else if missing > were_missing || !self.timers.will_withdraw() {
            if self.inputs.peers.is_single_removal() {
                self.timers.withdraw_now();
            } else {
                self.timers.withdraw_soon();
            }
        }
        self.inputs.note_loss();
        self.watch_brake();
    }

    /// Plans again for the leases that the store's news are about, once for all news of a burst.
    pub(super) fn catch_up(&mut self) {
        let affected = self.inputs.peers.affected();
        self.doubt_silence(&affected);
        self.revise(&affected);
    }

    pub(super) fn take_store(&mut self, state: StoreState) {
        // Removals and judgements wait while the store is away.
        if state.is_reachable() {
            self.stale.differences = Differences::Anywhere;
            if !self.inputs.peers.missing().is_empty() {
                self.timers.withdraw_soon();
            }
        }
        self.inputs.store = state;
        self.watch_brake();
    }

    /// The brake ends by itself only while nothing else says that the store lost data.
    fn watch_brake(&mut self) {
        if !self.inputs.trust_the_store() {
            self.timers.do_not_brake();
        }
    }

    /// What the store has told already is the better knowledge.
    pub(super) fn take_checkpoint(&mut self, checkpoint: Checkpoint) {
        if self.inputs.config.is_none() && !self.inputs.peers.is_complete() {
            tracing::info!(peers = checkpoint.leases.len(), "starting from what was last known");
            self.inputs.remember(checkpoint);
            self.stale.facts = true;
            self.stale.plan = true;
        }
    }

    pub(super) fn take_observation(&mut self, observation: Observation) {
        match observation {
            Observation::Holds(entry) => {
                if self.scope.covers(&entry) && self.actual.get(&entry.key()) != Some(&entry) {
                    // Whether routes may refer to such objects is a fact of the host.
                    self.stale.facts |= entry.is_foreign_nexthop();
                    self.stale.differences.extend([entry.key()]);
                    self.actual.insert(entry);
                }
            }
            Observation::Lost(key) => {
                let was_there = self.actual.remove(&key).is_some();
                // With its last address a link loses its IPv4 routes and neighbours without a
                // word, and a nexthop object all routes that refer to it.
                let takes_more = match key {
                    Key::Address(..) => true,
                    Key::Nexthop(_) => was_there,
                    _ => false,
                };
                if takes_more {
                    self.timers.dump_soon();
                }
                if was_there {
                    self.stale.differences.extend([key]);
                }
            }
            Observation::LinkChanged(link) => {
                let is_underlay = self.scope.underlay.as_ref().is_none_or(|ours| *ours == link);
                let is_former = self.inputs.bridges.iter().any(|bridge| bridge.link == link);
                self.stale.facts |= is_underlay || is_former || self.inputs.no_node.is_some();
                if is_underlay {
                    self.refused.end_all_backoff();
                } else {
                    self.refused.end_backoff_on(&link);
                }
                if is_underlay || self.scope.tunnels.contains(&link) {
                    self.timers.dump_soon();
                }
            }
            Observation::TableChanged(table) => {
                if self.scope.tables.contains(&table) {
                    self.timers.dump_soon();
                }
            }
            Observation::ChainChanged(name) => {
                if self.scope.chains.contains(&name) {
                    self.timers.look_at_chains_soon();
                }
            }
            Observation::Overrun => {
                self.statistics.overruns += 1;
                self.timers.look_at_chains_soon();
                self.timers.dump_soon();
            }
            Observation::Unheard => {
                self.timers.look_at_chains_soon();
                self.timers.dump_soon();
            }
        }
    }

    pub(super) fn take_due(&mut self) {
        let due = self.timers.take_due();
        let ready = due.keys.into_iter().filter(|key| !self.refused.is_waiting(key));
        self.stale.differences.extend(ready);
        for task in due.tasks {
            if task == Task::Audit {
                self.try_guard_again();
                self.read_all_chains();
            }
            match task {
                // Whether somebody is gone is for the store to say, when it can be asked.
                Task::Withdraw if !self.inputs.may_remove() => {}
                Task::Withdraw => self.withdraw(),
                Task::Retry => self.stale.facts |= self.inputs.no_node.is_some(),
                Task::Chains => self.stale.chains = true,
                // What was lost may have been told of the host as well.
                Task::Dump | Task::Audit => {
                    self.stale.facts = true;
                    self.stale.dump = true;
                }
            }
        }
    }

    fn withdraw(&mut self) {
        let is_over = self.timers.has_braked_long_enough();
        if let Some((missing, of)) = self.inputs.held_back.filter(|_| is_over) {
            tracing::warn!(
                missing,
                of,
                "the store has not named leases for an hour: removing their routes"
            );
        }
        let max_percent = if is_over { 100 } else { self.settings.max_withdraw };
        match self.inputs.withdraw(max_percent) {
            Withdrawal::Done(affected) => {
                self.inputs.held_back = None;
                self.timers.do_not_brake();
                self.revise(&affected);
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
                self.timers.withdraw_later();
                if self.inputs.trust_the_store() {
                    self.timers.brake();
                }
                self.catch_up();
            }
        }
    }
}
