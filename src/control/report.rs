//! What the loop tells the outside of its own accord.

use tokio::time::Instant;

use super::{Progress, Reconciler, Usable};
use crate::kernel::Kernel;
use crate::model::entry::Entry;
use crate::model::lease::LeaseAttributes;
use crate::plan::backend;

impl<K: Kernel> Reconciler<K> {
    /// Tells the outside how far we have come.
    pub(super) fn report(&mut self) {
        self.outputs.heartbeat.send_replace(Instant::now());
        self.log_rejected();
        self.log_readiness();
        let progress = Progress {
            config: self.inputs.config.clone().filter(|_| self.inputs.confirmed),
            occupied: self.inputs.occupied.clone(),
            identity: self.inputs.identity.clone(),
            attributes: self.publishable(),
            usable: self.usable(),
            readiness: self.readiness(),
        };
        self.outputs.progress.send_if_modified(|last| {
            let changed = *last != progress;
            *last = progress;
            self.unreported |= changed;
            changed
        });
        self.report_change();
        self.announce_report();
    }

    /// Before all leases are known, a checkpoint would forget those of the last one.
    fn report_change(&mut self) {
        let knows_all = self.inputs.peers.is_complete() || self.inputs.remembered.is_some();
        if self.unsaved && knows_all && self.inputs.are_known() {
            self.unsaved = false;
            self.outputs.changed.send_modify(|count| *count += 1);
        }
    }
    /// Peers send to us as soon as they read our lease: not before the device is there to receive.
    fn publishable(&self) -> Option<LeaseAttributes> {
        let is_ready = self.inputs.confirmed && !self.inputs.lack_macs() && self.links_are_up();
        Some(self.inputs.local().filter(|_| is_ready)?.attributes())
    }

    fn usable(&self) -> Option<Usable> {
        let own = self.inputs.relied_on().filter(|_| self.local_is_met())?;
        let config = self.inputs.config.as_ref()?;
        Some(Usable {
            networks: config.networks().collect(),
            subnets: own.subnets().collect(),
            mtu: backend::pod_mtu(&self.networks)?,
        })
    }

    fn links_are_up(&self) -> bool {
        self.is_met(|entry| matches!(entry, Entry::Link(_)))
    }

    /// Whoever reads subnet.env takes it at its word that the daemon masquerades.
    fn local_is_met(&self) -> bool {
        let concerns = |entry: &Entry| match entry {
            Entry::Link(_) => true,
            Entry::Address(address) => !address.link.is_loopback(),
            entry => entry.is_rules() && self.is_relied_on(entry),
        };
        self.is_met(concerns)
    }

    pub(super) fn is_met(&self, concerns: impl Fn(&Entry) -> bool) -> bool {
        let mut wanted = self.local_entries().filter(|entry| concerns(entry));
        wanted.all(|entry| self.holds(entry))
    }

    pub(super) fn holds(&self, entry: &Entry) -> bool {
        self.actual.get(&entry.key()).is_some_and(|have| entry.is_met_by(have))
    }

    /// The entries on our devices, and our rules.
    pub(super) fn local_entries(&self) -> impl Iterator<Item = &Entry> {
        self.desired.state().local().map(AsRef::as_ref)
    }
}
