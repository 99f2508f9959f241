//! What the loop reports, and the channels out of it.

use tokio::sync::watch;
use tokio::time::Instant;

use super::Control;
use super::changes::Changes;
use crate::model::config::NetworkConfig;
use crate::model::entry::Entry;
use crate::model::lease::LeaseAttributes;
use crate::model::prefix::Prefix;
use crate::model::status::Readiness;
use crate::plan::backend;
use crate::store::Identity;

/// How far the daemon has come. Others wait for it: the lease, subnet.env, systemd, health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The config in force, once the store has told one.
    pub config: Option<NetworkConfig>,
    /// Where this host has addresses.
    pub occupied: Vec<Prefix>,
    /// Who this node is to the store, as far as what follows accounts for it.
    pub identity: Identity,
    /// What to publish, once the device can receive what it will attract.
    pub attributes: Option<LeaseAttributes>,
    /// What pods can use, once device and address are in place.
    pub usable: Option<Usable>,
    pub readiness: Readiness,
}

/// What pods of this node can be made by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// All pods' addresses, one prefix per family, IPv4 first.
    pub networks: Vec<Prefix>,
    /// Those of this node, likewise.
    pub subnets: Vec<Prefix>,
    /// The largest packet of pods, in bytes.
    pub mtu: u32,
}

/// The channels out of the loop.
#[derive(Debug)]
pub struct Outputs {
    pub progress: watch::Sender<Progress>,
    /// When the loop last went round.
    pub heartbeat: watch::Sender<Instant>,
    /// Counted up to have the leases read again.
    pub read_again: watch::Sender<u64>,
    /// Sent when the node report may differ from the last one.
    pub reported: watch::Sender<()>,
    /// Sent when a checkpoint would differ from the last one.
    pub changed: watch::Sender<()>,
}

impl Default for Outputs {
    fn default() -> Self {
        Self {
            progress: watch::Sender::default(),
            heartbeat: watch::Sender::new(Instant::now()),
            read_again: watch::Sender::default(),
            reported: watch::Sender::default(),
            changed: watch::Sender::default(),
        }
    }
}

impl Control {
    /// Reports how far the loop has come.
    pub(super) fn report(&mut self) {
        self.beat();
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
        let is_news = self.outputs.progress.send_if_modified(|last| {
            let is_news = *last != progress;
            *last = progress;
            is_news
        });
        self.changes |= Changes { report: is_news, ..Changes::default() };
        if !self.inputs.are_known() {
            return;
        }
        // Before all leases are known, a checkpoint would forget those of the last one.
        let knows_all = self.inputs.peers.is_complete() || self.inputs.remembered.is_some();
        if knows_all && std::mem::take(&mut self.changes.save) {
            self.outputs.changed.send_replace(());
        }
        if self.inputs.held && std::mem::take(&mut self.changes.report) {
            self.outputs.reported.send_replace(());
        }
    }

    /// Reports that the loop is alive.
    pub(super) fn beat(&self) {
        self.outputs.heartbeat.send_replace(Instant::now());
    }

    /// Peers send to us as soon as they read our lease: not before the device is there to receive.
    fn publishable(&self) -> Option<LeaseAttributes> {
        let links_are_up = || self.is_met(|entry| matches!(entry, Entry::Link(_)));
        let is_ready = self.inputs.confirmed && !self.inputs.lack_macs() && links_are_up();
        Some(self.inputs.local().filter(|_| is_ready)?.attributes())
    }

    fn usable(&self) -> Option<Usable> {
        let own = self.inputs.relied_on().filter(|_| self.local_is_met())?;
        let config = self.inputs.config.as_ref()?;
        Some(Usable {
            networks: config.networks().collect(),
            subnets: own.subnets().collect(),
            mtu: backend::pod_mtu(&self.derived.networks)?,
        })
    }

    /// Readers of subnet.env rely on it that the daemon masquerades.
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
        self.held.actual.get(&entry.key()).is_some_and(|have| entry.is_met_by(have))
    }

    /// The entries on our devices, and our rules.
    pub(super) fn local_entries(&self) -> impl Iterator<Item = &Entry> {
        self.derived.desired.state().local().map(AsRef::as_ref)
    }
}
