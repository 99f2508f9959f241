//! Whether the daemon does its work, and if not, why.

use super::Reconciler;
use crate::kernel::Kernel;
use crate::kernel::state::Key;
use crate::status::Readiness;
use crate::subnet::StoreState;

impl<K: Kernel> Reconciler<K> {
    pub(super) fn readiness(&self) -> Readiness {
        let blocking = self.blocking();
        let ready = blocking.is_empty();
        let reasons = blocking.into_iter().chain(self.store_remark()).chain(self.remarks());
        Readiness { ready, reasons: reasons.collect() }
    }

    /// The store tells the log about itself: servers that fail in turns have a new reason each time.
    pub(super) fn log_readiness(&mut self) {
        let blocking = self.blocking();
        let ready = blocking.is_empty();
        let reasons = blocking.into_iter().chain(self.remarks()).collect();
        let readiness = Readiness { ready, reasons };
        if self.logged.as_ref() == Some(&readiness) {
            return;
        }
        if ready {
            tracing::info!(remarks = ?readiness.reasons, "ready");
        } else {
            tracing::warn!(reasons = ?readiness.reasons, "not ready");
        }
        self.logged = Some(readiness);
    }

    /// What keeps us from being ready, in sentences.
    fn blocking(&self) -> Vec<String> {
        let inputs = &self.inputs;
        let no_node =
            || inputs.no_node.clone().unwrap_or_else(|| "no interface is chosen yet".into());
        let missing = [
            inputs.config.is_none().then(|| "no network config yet".to_owned()),
            (inputs.config.is_some() && inputs.node.is_none()).then(no_node),
            inputs.own.is_none().then(|| "no subnet is leased yet".to_owned()),
            (inputs.confirmed && !inputs.peers.is_complete())
                .then(|| "the leases of the peers are not read yet".to_owned()),
            self.trouble.clone(),
        ];
        let essential = |key: &&Key| !matches!(key, Key::ReversePath(_) | Key::AcceptRa(_));
        let refused =
            self.refused.iter().filter(|(key, _)| essential(key)).map(|(_, why)| why.clone());
        missing.into_iter().flatten().chain(refused).collect()
    }

    fn store_remark(&self) -> Option<String> {
        match &self.inputs.store {
            StoreState::Waiting(reason) => Some(format!("the store is away: {reason}")),
            StoreState::Unknown | StoreState::Reachable => None,
        }
    }

    /// What else an operator should know although it blocks nothing.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let is_remembered = self.inputs.config.is_some() && !self.inputs.confirmed;
        let remembered = is_remembered.then(|| {
            "forwarding by what was last known: the store has not confirmed it".to_owned()
        });
        let held = self.inputs.held_back.map(|(missing, of)| {
            format!("{missing} of {of} leases vanished at once: their routes are kept")
        });
        let filters = self.refused.iter().filter(|(key, _)| matches!(key, Key::ReversePath(_)));
        let filters =
            filters.map(|(_, why)| format!("packets may be lost while backends change: {why}"));
        let kept = self.inputs.kind_kept();
        let kept = kept.map(|kind| format!("staying on {} until filters are loose", kind.as_str()));
        remembered.into_iter().chain(held).chain(kept).chain(filters)
    }
}
