//! The latest config of the store: which part is applied on this node, and which part waits.

use super::Inputs;
use crate::control::changes::Changes;
use crate::model::config::{BackendType, ConfigUpdate, NetworkConfig};
use crate::model::lease::Endpoint;
use crate::model::measurements::RolloutPhase;
use crate::model::node::Node;
use crate::model::node_inputs::NodeInputs;
use crate::model::status::ConfigStatus;
use crate::plan::backend;
use crate::plan::config_change::{
    Change, NeedingMixed, PendingReason, Reload, Situation, change, stranded_peers, stranded_pods,
};

#[derive(Clone, Debug, Default)]
pub struct Edit {
    pub update: Option<ConfigUpdate>,
    /// The reason why the config, or a part of it, is not applied yet.
    pub pending: Option<PendingReason>,
}

impl Edit {
    pub fn wanted(&self) -> Option<&NetworkConfig> {
        self.update.as_ref()?.config.as_ref().ok()
    }

    /// The reason why the latest config cannot be used.
    pub fn unusable(&self) -> Option<String> {
        self.update.as_ref()?.config.as_ref().err().map(ToString::to_string)
    }

    /// The message for a missing first config, with the reason if known.
    pub fn no_config(&self) -> String {
        let why = self.unusable().map(|reason| format!(": {reason}"));
        format!("no network config yet{}", why.unwrap_or_default())
    }

    pub fn revision(&self) -> u64 {
        self.update.as_ref().map_or(0, |update| update.revision)
    }
}

impl Inputs {
    /// Applies the latest config of the store, or the part of it that need not wait. If the first
    /// config is invalid, the remembered one stays applied, as on a running node, so that the lease
    /// is renewed and peer leases are read.
    pub(super) fn apply_edit(&mut self, update: ConfigUpdate, reload: Reload) -> Changes {
        let is_running = self.follows_config();
        self.edit = Edit { update: Some(update), pending: None };
        let Some(wanted) = self.edit.wanted().cloned() else { return Changes::default() };
        match self.config.clone() {
            Some(current) if is_running => self.change(&current, &wanted, reload),
            remembered => self.apply_first(remembered.as_ref(), wanted),
        }
    }

    /// Applies the first usable config of the store, which replaces the remembered one, but for edits
    /// that a restart of the daemon must not let through: one of the network while pods run or peers
    /// have subnets outside of the new one, and the removal of `Mixed` while peers need it.
    fn apply_first(
        &mut self,
        remembered: Option<&NetworkConfig>,
        wanted: NetworkConfig,
    ) -> Changes {
        self.edit.pending = remembered.and_then(|remembered| {
            let own = self.own.as_ref()?;
            if let Some(reason) = stranded_pods(remembered, &wanted, own.subnets()) {
                // Without pods, this node begins another network, and its peers follow.
                return self.former_pods.keep(&wanted, own.subnets()).then_some(reason);
            }
            let peers = self.peers.leases().flat_map(|peer| peer.subnets());
            stranded_peers(remembered, &wanted, peers)
        });
        if self.edit.pending.is_some() {
            return Changes::default();
        }
        self.confirmed = true;
        if wanted.mixed || !remembered.is_some_and(|remembered| remembered.mixed) {
            return self.apply_config(wanted);
        }
        self.edit.pending = Some(PendingReason::ForLeases);
        Changes { edit: true, ..self.apply_config(NetworkConfig { mixed: true, ..wanted }) }
    }

    /// Checks again whether a config edit that waits for peers can be applied. That of a start
    /// waits for them whatever `Reload` is.
    pub(in crate::control) fn reconsider(&mut self) -> Changes {
        let may_end = self.edit.pending.as_ref().is_some_and(PendingReason::may_end_by_itself);
        match (self.config.clone(), self.edit.wanted().cloned()) {
            (Some(current), Some(wanted)) if may_end => {
                self.change(&current, &wanted, Reload::Live)
            }
            _ => Changes::default(),
        }
    }

    fn change(
        &mut self,
        current: &NetworkConfig,
        wanted: &NetworkConfig,
        reload: Reload,
    ) -> Changes {
        let needing_mixed = if current.mixed && !wanted.mixed {
            self.needing_mixed(wanted)
        } else {
            Some(NeedingMixed::default())
        };
        let situation = Situation {
            reload,
            names: self.names(),
            kept: self.kept_backend(),
            is_filtered: !self.strict_now.is_empty(),
            needing_mixed,
        };
        let Change { applied, pending } = change(current, wanted, &situation);
        self.confirmed |= pending.is_none();
        self.edit.pending = pending;
        self.apply_config(applied)
    }

    fn apply_config(&mut self, config: NetworkConfig) -> Changes {
        if self.config.as_ref() == Some(&config) {
            return Changes::default();
        }
        let is_on_host_gw = |inputs: &Self| inputs.backend() == Some(BackendType::HostGw);
        let was_on_host_gw = self.was_on_host_gw || is_on_host_gw(self);
        self.config = Some(config);
        self.was_on_host_gw = self.is_mixed() && (was_on_host_gw || is_on_host_gw(self));
        Changes { config: true, facts: true, plan: true, save: true, ..Changes::default() }
    }

    /// Whether this node goes on with its config because that of the store is missing, invalid, or
    /// cannot be applied yet.
    fn goes_on(&self) -> bool {
        let waits = self.edit.unusable().is_some() || self.edit.pending.is_some();
        self.config.is_some() && waits
    }

    /// Whether the config is that of a running node: it comes from the store, or the store gave us our
    /// lease with it.
    pub(super) fn follows_config(&self) -> bool {
        self.confirmed || (self.goes_on() && self.acquired)
    }

    /// Whether the lease may be acquired and published with the config.
    pub fn may_use_config(&self) -> bool {
        self.confirmed || self.goes_on()
    }

    /// The peers that would lose their path under `wanted`; none until all peers are known.
    fn needing_mixed(&mut self, wanted: &NetworkConfig) -> Option<NeedingMixed> {
        let local = self.local().filter(|_| self.peers.is_complete())?;
        let then = NodeInputs { config: wanted.clone().on_node(self.names()), ..local.clone() };
        let (now, then) = (backend::backends(&local), backend::backends(&then));
        self.peers.validate_by(local.rules());
        let mut needing = NeedingMixed::default();
        for peer in self.peers.all().filter_map(|(_, peer)| peer?.ok()) {
            let plan = |backends, peer| backend::plan_peer(backends, peer, &self.fallbacks);
            // `Mixed` ends at the peers, too.
            let (now, then) = (plan(&now, peer), plan(&then, &peer.unmixed()));
            let Some(Endpoint { public_ip, .. }) = peer.endpoints.first() else { continue };
            if then.without_path().count() > now.without_path().count() {
                needing.unreachable.push(*public_ip);
            } else if then.takes_unanswered_path(&now) {
                needing.unanswered.push(*public_ip);
            }
        }
        Some(needing)
    }

    /// The names by which a rollout can select this node.
    pub fn names(&self) -> Vec<String> {
        let addresses = self.node.iter().flat_map(Node::names);
        addresses.chain(self.identity.name.clone()).collect()
    }

    /// Whether the latest config selects its new backend for this node, instead of `Rollout.From`.
    pub fn follows(&self) -> bool {
        let rollout = self.edit.wanted().or(self.config.as_ref()).and_then(|c| c.rollout.as_ref());
        rollout.is_none_or(|rollout| rollout.follows(self.names()))
    }

    pub fn config_status(&self) -> ConfigStatus {
        ConfigStatus {
            revision: self.edit.revision(),
            rollout: self.rollout(),
            pending: self.pending(),
            invalid: self.edit.unusable(),
        }
    }

    pub fn rollout_phase(&self) -> RolloutPhase {
        let wanted = self.edit.wanted().or(self.config.as_ref());
        match wanted.and_then(|config| config.rollout.as_ref()) {
            None => RolloutPhase::None,
            Some(_) if !self.follows() => RolloutPhase::Waiting,
            Some(_) if self.pending().is_some() => RolloutPhase::Pending,
            Some(_) => RolloutPhase::Applied,
        }
    }

    fn rollout(&self) -> Option<String> {
        let wanted = self.edit.wanted().or(self.config.as_ref())?;
        let percent = wanted.rollout.as_ref()?.percent;
        let kind = wanted.kind_of(self.names()).as_str();
        let stands = if self.follows() { "selected for" } else { "stays on" };
        Some(format!("{stands} {kind}: the rollout is at {percent} %"))
    }
}
