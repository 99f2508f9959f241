//! The state that the loop reports, and the channels for it.

use tokio::sync::watch;
use tokio::time::Instant;

use super::Control;
use crate::model::config::NetworkConfig;
use crate::model::entry::Entry;
use crate::model::lease::LeaseAttributes;
use crate::model::prefix::Prefix;
use crate::model::status::Readiness;
use crate::plan::backend;
use crate::store::Identity;

/// The progress of the daemon. Other tasks wait for it: the lease, subnet.env, systemd and health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The applied config, once there is one.
    pub config: Option<NetworkConfig>,
    /// Prefixes of this host's own addresses.
    pub occupied: Vec<Prefix>,
    /// The store identity of this node for which the fields below are valid.
    pub identity: Identity,
    /// The attributes to publish, once the device can receive the traffic of peers.
    pub attributes: Option<LeaseAttributes>,
    /// The pod networking settings, once device and address are in place.
    pub usable: Option<Usable>,
    /// Whether the store shows that this node has no subnet.
    pub has_no_subnet: bool,
    pub readiness: Readiness,
}

/// The settings for pods on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// The pod networks of the cluster, one per family, IPv4 first.
    pub networks: Vec<Prefix>,
    /// The pod subnets of this node, IPv4 first.
    pub subnets: Vec<Prefix>,
    /// The MTU for pods, in bytes.
    pub mtu: u32,
}

/// The channels out of the loop.
#[derive(Debug)]
pub struct Outputs {
    pub progress: watch::Sender<Progress>,
    /// The time of the last pass of the loop.
    pub heartbeat: watch::Sender<Instant>,
    /// Incremented to request a new read of the leases.
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
    pub(super) fn report(&mut self) {
        self.beat();
        self.record_config();
        self.record_reachability();
        self.record_store();
        self.recorder.flush();
        let own_reasons = self.own_reasons();
        self.log_readiness(&own_reasons);
        let progress = Progress {
            config: self.inputs.config.clone().filter(|_| self.inputs.may_use_config()),
            occupied: self.inputs.occupied.clone(),
            identity: self.inputs.identity.clone(),
            attributes: self.publishable(),
            usable: self.usable(),
            has_no_subnet: self.inputs.has_no_subnet(),
            readiness: self.readiness_of(&own_reasons),
        };
        let replace = |last: &mut Progress| std::mem::replace(last, progress) != *last;
        self.changes.report |= self.outputs.progress.send_if_modified(replace);
        if !self.inputs.are_known() {
            return;
        }
        // Until all leases are known, a new checkpoint would drop leases of the last one.
        let knows_all = self.inputs.peers.is_complete() || self.inputs.remembered.is_some();
        if knows_all && std::mem::take(&mut self.changes.save) {
            self.outputs.changed.send_replace(());
        }
        if self.inputs.acquired && std::mem::take(&mut self.changes.report) {
            self.outputs.reported.send_replace(());
        }
    }

    pub(super) fn beat(&self) {
        self.outputs.heartbeat.send_replace(Instant::now());
    }

    /// Peers send to this node as soon as they read its lease, so the device must exist first. A lease
    /// without the public IP of one of its subnets could be read by no peer.
    fn publishable(&self) -> Option<LeaseAttributes> {
        let links_are_up = || self.is_met(|entry| matches!(entry, Entry::Link(_)));
        let is_ready = self.inputs.may_use_config() && !self.inputs.lack_macs() && links_are_up();
        let local = self.inputs.local().filter(|_| is_ready)?;
        let has_public_ip = |network: Prefix| local.node.uplink(network.family()).is_some();
        local.config.networks().all(has_public_ip).then(|| local.attributes())
    }

    fn usable(&self) -> Option<Usable> {
        let own = self.inputs.relied_on().filter(|_| self.local_is_met())?;
        let config = self.inputs.config.as_ref()?;
        // The store may not have a subnet of each family yet.
        let is_ours = |network: &Prefix| own.endpoint(network.family()).is_some();
        Some(Usable {
            networks: config.networks().filter(is_ours).collect(),
            subnets: own.subnets().collect(),
            mtu: backend::pod_mtu(&self.derived.backends)?,
        })
    }

    /// Whether everything that pods rely on is in place. Readers of subnet.env expect that the
    /// daemon masquerades.
    fn local_is_met(&self) -> bool {
        let concerns = |entry: &Entry| match entry {
            Entry::Link(_) => true,
            Entry::Address(address) => !address.link.is_loopback(),
            entry => entry.is_rules() && self.is_relied_on(entry),
        };
        self.is_met(concerns)
    }

    /// Whether the kernel holds the desired entries of this kind. A plan that is not derived yet,
    /// because an access to the kernel failed, may desire others.
    pub(super) fn is_met(&self, concerns: impl Fn(&Entry) -> bool) -> bool {
        let mut wanted = self.local_entries().filter(|entry| concerns(entry));
        !self.changes.plan && wanted.all(|entry| self.holds(entry))
    }

    pub(super) fn holds(&self, entry: &Entry) -> bool {
        self.state.actual.get(&entry.key()).is_some_and(|have| entry.is_met_by(have))
    }

    /// The entries on tweed's devices, and tweed's rules.
    pub(super) fn local_entries(&self) -> impl Iterator<Item = &Entry> {
        self.derived.desired.state().local().map(AsRef::as_ref)
    }
}
