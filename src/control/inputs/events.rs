//! How each event changes the inputs, and the resulting `Changes`.

use super::Inputs;
use crate::control::changes::{Changes, Differences, MissingLeases};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::ConfigUpdate;
use crate::model::lease::{Lease, LeaseUpdate};
use crate::model::status::StoreState;
use crate::plan::config_change::{FormerPods, Reload};
use crate::store::Identity;

impl Inputs {
    pub fn config_changed(&mut self, update: ConfigUpdate, reload: Reload) -> Changes {
        if self.edit.update.as_ref() == Some(&update) {
            return Changes::default();
        }
        self.edits += 1;
        let was_confirmed = self.confirmed;
        let mut changes = self.apply_edit(update, reload);
        changes.report = true;
        // Values that were only remembered may replace kernel state once the store confirms them.
        if was_confirmed != self.confirmed {
            changes.differences = Differences::Anywhere;
        }
        changes
    }

    /// Another public IP may be on another interface, so the host is read again.
    pub fn identity_changed(&mut self, identity: Identity) -> Changes {
        if self.identity == identity {
            return Changes::default();
        }
        self.identity = identity;
        Changes { facts: true, plan: true, report: true, ..Changes::default() }
    }

    pub fn lease_acquired(&mut self, lease: Lease) -> Changes {
        let was_running = self.follows_config();
        let is_first = !std::mem::replace(&mut self.acquired, true);
        let mut changes = Changes::default();
        if self.follows_config() != was_running {
            // What waited until the config counts.
            changes.differences = Differences::Anywhere;
        }
        if self.own.as_ref() != Some(&lease) {
            self.own = Some(lease);
            // Pods may still use a bridge of the former subnet.
            changes = Changes { facts: true, plan: true, save: true, ..changes };
        }
        if is_first && self.peers.is_complete() {
            // Removals have waited for the lease.
            self.check_checkpoint();
            changes.differences = Differences::Anywhere;
            changes.losses = self.losses();
        }
        changes
    }

    pub fn lease_changed(&mut self, update: LeaseUpdate) -> Changes {
        let (was_complete, before) = (self.peers.is_complete(), self.peers.missing().len());
        self.peers.update(update);
        let mut changes = Changes::default();
        // The first complete snapshot makes delayed removals due, and defines which peers may send
        // into the tunnel.
        if was_complete != self.peers.is_complete() {
            self.check_checkpoint();
            changes.differences = Differences::Anywhere;
            changes.edit = true;
            changes.plan = true;
        }
        let (after, may_grow) = (self.peers.missing().len(), !self.peers.is_single_removal());
        changes.losses = Some(MissingLeases { before, after, may_grow });
        if after == 0 {
            self.held_back = None;
        }
        if self.acquired {
            self.note_missing();
        }
        changes
    }

    /// Removals and evaluations wait while the store is unreachable. A subnet that this node has lost
    /// stays lost when the store is unreachable later, also for the next daemon.
    pub fn store_changed(&mut self, state: StoreState) -> Changes {
        self.store = state;
        let mut changes = Changes::default();
        if self.has_no_subnet() {
            (self.acquired, self.overdue) = (false, false);
            changes.save = self.own.as_mut().is_some_and(|own| own.grant.take().is_some());
        }
        if self.store.is_reachable() {
            (changes.differences, changes.losses) = (Differences::Anywhere, self.losses());
        }
        changes
    }

    pub fn store_overdue(&mut self) -> Changes {
        self.overdue = self.has_proof() && !self.has_no_subnet();
        Changes::default()
    }

    /// The missing leases that may be withdrawn from now on, if there are any.
    fn losses(&self) -> Option<MissingLeases> {
        let after = self.peers.missing().len();
        (after > 0).then_some(MissingLeases { before: 0, after, may_grow: true })
    }

    /// Ignores the checkpoint if the store has already reported, because that is newer.
    pub fn checkpoint_read(&mut self, checkpoint: Checkpoint, pods: FormerPods) -> Changes {
        if self.config.is_some() || self.peers.is_complete() {
            return Changes::default();
        }
        tracing::info!(peers = checkpoint.leases.len(), "starting from the checkpoint");
        self.remember(checkpoint, pods);
        Changes { facts: true, plan: true, ..Changes::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lease::LeaseId;

    #[test]
    fn the_first_snapshot_makes_waiting_removals_due() {
        let mut inputs = Inputs::default();
        let losses = Some(MissingLeases { before: 0, after: 0, may_grow: true });
        let nothing_is_missing = Changes { losses, ..Changes::default() };
        let (edit, plan, differences) = (true, true, Differences::Anywhere);
        let expected = Changes { edit, plan, differences, ..nothing_is_missing.clone() };
        assert_eq!(inputs.lease_changed(LeaseUpdate::Snapshot(Vec::new())), expected);
        let again = inputs.lease_changed(LeaseUpdate::Remove(LeaseId::new("unknown")));
        assert_eq!(again, nothing_is_missing);
    }

    #[test]
    fn the_same_identity_changes_nothing() {
        let mut inputs = Inputs::default();
        let identity = Identity { name: Some("n1".to_owned()), ..Identity::default() };
        let changes = inputs.identity_changed(identity.clone());
        assert!(changes.facts && changes.plan && changes.report && !changes.save);
        assert_eq!(inputs.identity_changed(identity), Changes::default());
    }

    #[test]
    fn a_reachable_store_makes_all_differences_due() {
        let mut inputs = Inputs::default();
        let changes = inputs.store_changed(StoreState::Unreachable("timeout".to_owned()));
        assert_eq!(changes, Changes::default());
        let changes = inputs.store_changed(StoreState::Reachable);
        assert_eq!((changes.differences, changes.losses), (Differences::Anywhere, None));
    }
}
