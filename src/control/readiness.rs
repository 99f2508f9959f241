//! Whether the daemon is ready, and if not, why.

use super::Control;
use super::inputs::Inputs;
use crate::model::config::NetworkConfig;
use crate::model::entry::{Entry, Key};
use crate::model::lease::{LeaseId, Rejected};
use crate::model::measurements::SubnetUsage;
use crate::model::node::Uplink;
use crate::model::policy::{Guard, UnknownSources};
use crate::model::status::{Readiness, StoreState};
use crate::store::AddressConflict;

/// Refusals and rejections usually share a cause, so only this many are shown.
pub(super) const SHOWN: usize = 3;

/// What affects readiness, except the states of the store and of peers. Those have their own log
/// lines: the reason of the store changes with each server that fails.
pub(super) struct OwnReasons {
    blocking: Vec<String>,
    warnings: Vec<String>,
}

impl OwnReasons {
    fn with(&self, others: impl IntoIterator<Item = String>) -> Readiness {
        let Self { blocking, warnings } = self;
        let reasons = blocking.iter().cloned().chain(others).chain(warnings.iter().cloned());
        Readiness { ready: blocking.is_empty(), reasons: reasons.collect() }
    }
}

impl Readiness {
    /// Not ready if the subnet file does not have the subnets of this node, for the reason `lacks`.
    #[must_use]
    pub fn with_subnet_file(self, lacks: Option<String>) -> Self {
        let Some(reason) = lacks else { return self };
        Self { ready: false, reasons: [vec![reason], self.reasons].concat() }
    }
}

impl Control {
    pub(super) fn readiness_of(&self, own: &OwnReasons) -> Readiness {
        own.with(self.store_warning().into_iter().chain(self.reachability_warnings()))
    }

    pub(super) fn own_reasons(&self) -> OwnReasons {
        OwnReasons { blocking: self.blocking(), warnings: self.warnings() }
    }

    pub(super) fn log_readiness(&mut self, own: &OwnReasons) {
        let readiness = own.with(None);
        let ready = readiness.ready;
        if self.state.logged.readiness.as_ref() == Some(&readiness) {
            return;
        }
        if ready && readiness.reasons.is_empty() {
            tracing::info!("ready");
        } else if ready {
            tracing::warn!(warnings = ?readiness.reasons, "ready");
        } else {
            tracing::warn!(reasons = ?readiness.reasons, "not ready");
        }
        self.state.logged.readiness = Some(readiness);
    }

    /// The reasons why this node is not ready, as sentences.
    fn blocking(&self) -> Vec<String> {
        let inputs = &self.inputs;
        let missing = [
            inputs.config.is_none().then(|| inputs.edit.no_config()),
            self.lacks_node(),
            (inputs.edit.update.is_none() && !inputs.lacks_store())
                .then(|| "the store has not answered yet".to_owned()),
            inputs.relied_on().is_none().then(|| "no subnet is leased yet".to_owned()),
            (!inputs.peers.is_complete() && !inputs.uses_checkpoint())
                .then(|| "the leases of the peers are not read yet".to_owned()),
            self.awaited_chains().map(str::to_owned),
            self.state.failure.clone(),
        ];
        let refused = self.state.refused.iter().filter(|(key, _)| self.is_essential(key));
        let refused: Vec<String> = refused.map(|(_, why)| why.to_owned()).collect();
        missing.into_iter().flatten().chain(abridged(refused)).collect()
    }

    /// The reason why this node has no public IP.
    fn lacks_node(&self) -> Option<String> {
        let Inputs { config, node, no_node, .. } = &self.inputs;
        match (node, no_node) {
            (Some(_), no_node) => {
                let reason = &no_node.as_ref()?.reason;
                Some(format!("the previous interface is kept: {reason}"))
            }
            (None, Some(no_node)) => Some(no_node.reason.clone()),
            (None, None) => config.as_ref().map(|_| "no interface is chosen yet".to_owned()),
        }
    }

    /// Old rules that cannot be removed do not block readiness: they serve the same purpose.
    fn is_essential(&self, key: &Key) -> bool {
        match key {
            Key::Setting(..) => false,
            Key::Address(link, ..) => !link.is_loopback(),
            Key::Table(_) | Key::Chain(_) => {
                self.derived.desired.state().get(key).is_some_and(|entry| self.is_relied_on(entry))
            }
            _ => true,
        }
    }

    /// Whether pods rely on `entry`. Without masquerading, the table that preserves the connections
    /// of other masquerading rules is not essential.
    pub(super) fn is_relied_on(&self, entry: &Entry) -> bool {
        let is_table_of_nat = matches!(entry, Entry::Table(_)) && entry.is_rules();
        !is_table_of_nat || self.settings.policy.masquerade.is_some()
    }

    /// Whether peers send their probes to an address that only the loopback has.
    fn is_probed_there(&self) -> bool {
        self.is_probing() && !self.inputs.config.as_ref().is_some_and(NetworkConfig::has_tunnel)
    }

    /// What may happen because the entry of this key was refused, although this node is ready.
    fn risk(&self, key: &Key, why: &str) -> Option<String> {
        let is_wanted = self.derived.desired.state().get(key).is_some();
        let risk = match key {
            Key::Setting(kind, _) => {
                // The operation that was refused (create or replace) is omitted.
                let why = why.trim_start_matches(['+', '~', ' ']);
                return Some(format!("{}: {why}", kind.policy().risk?));
            }
            Key::Address(link, ..) if link.is_loopback() && self.is_probed_there() => {
                "peers may get no answer to their probes"
            }
            Key::Address(link, ..) if link.is_loopback() => {
                "connections of this host may break when the tunnel device is removed"
            }
            Key::Table(_) | Key::Chain(_) if !is_wanted => "old rules are not removed",
            Key::Table(_) if !self.is_essential(key) => {
                "masqueraded connections may break when a path changes"
            }
            _ => return None,
        };
        Some(format!("{risk}: {why}"))
    }

    fn store_warning(&self) -> Option<String> {
        match &self.inputs.store {
            StoreState::Unreachable(reason) => Some(format!("the store is unreachable: {reason}")),
            StoreState::OptionalRefused(what) => Some(format!("the store refuses {what}")),
            StoreState::ListRefused(what)
            | StoreState::RequestRefused(what)
            | StoreState::NoSubnet(what)
            | StoreState::OversizedValue(what) => Some(what.clone()),
            StoreState::Unknown | StoreState::Reachable => None,
        }
    }

    /// Warnings for the operator that do not block readiness.
    fn warnings(&self) -> Vec<String> {
        let inputs = &self.inputs;
        let mut warnings: Vec<String> = Vec::new();
        if inputs.uses_checkpoint() {
            let warning = "forwarding from the checkpoint: the store has not confirmed it";
            warnings.push(warning.to_owned());
        }
        if let Some((missing, of)) = inputs.held_back {
            warnings
                .push(format!("{missing} of {of} leases vanished at once: their routes are kept"));
        }
        warnings.extend(inputs.pending());
        // Without an earlier config this node waits, which is reported elsewhere.
        if let Some(reason) = inputs.edit.unusable().filter(|_| inputs.may_use_config()) {
            warnings.push(format!("the previous config stays applied: {reason}"));
        }
        warnings.extend(self.probes_warning());
        warnings.extend(self.guard_warning());
        warnings.extend(self.state.refused.iter().filter_map(|(key, why)| self.risk(key, why)));
        warnings.extend(self.kept_chains().chain(self.doubtful_chains()));
        warnings.extend(self.gateways_warning());
        for bridge in &inputs.bridges {
            warnings.push(format!(
                "{bridge}: its pods are unreachable, and new ones fail; drain the node, then \
                 ip link delete {}",
                bridge.link
            ));
        }
        warnings.extend(self.conflicts_warning());
        warnings.extend(self.subnets_warning());
        let explained = |overlap| {
            format!("{overlap}: pods and hosts with the same addresses do not reach each other")
        };
        warnings.extend(inputs.overlaps().into_iter().map(explained));
        warnings
    }

    /// Why the guard is weaker than configured, as far as known.
    fn guard_warning(&self) -> Option<String> {
        let inputs = &self.inputs;
        if let Some(reason) = &inputs.guarding.refused {
            return Some(format!("the tunnel is not guarded, any host may send into it: {reason}"));
        }
        let drops = |guard: Guard| guard.unknown_sources == UnknownSources::Drop;
        let is_configured = inputs.policy.guard.is_some_and(drops)
            && inputs.config.as_ref().is_some_and(NetworkConfig::has_tunnel);
        let warning = if inputs.uses_checkpoint() && !inputs.peers.is_complete() {
            "the tunnel accepts only packets of the peers in the checkpoint"
        } else if inputs.lacks_store() && !inputs.know_peers() {
            "the tunnel is not guarded until the leases of the peers are read"
        } else {
            return None;
        };
        is_configured.then(|| warning.to_owned())
    }

    /// The public IPs that peers cannot use as gateways.
    fn gateways_warning(&self) -> Vec<String> {
        let local = self.inputs.local().filter(|local| !local.config.has_tunnel());
        let uplinks = local.iter().flat_map(|local| &local.node.uplinks);
        let elsewhere = uplinks.filter(|uplink| uplink.source != uplink.public_ip);
        let warning = |uplink: &Uplink| {
            format!(
                "public IP {} is not an address of this host: with host-gw, peers use it as \
                 gateway; remove the setting, use vxlan, or turn Mixed on",
                uplink.public_ip
            )
        };
        elsewhere.map(warning).collect()
    }

    /// The address families that soon have no subnet for another node.
    fn subnets_warning(&self) -> Vec<String> {
        if self.has_few_leases() {
            return Vec::new();
        }
        let usage = self.subnet_usage().into_iter().filter(SubnetUsage::is_nearly_exhausted);
        let warning = |SubnetUsage { family, .. }| {
            format!(
                "90 % or more of the {family} subnets are leased: remove nodes that are gone, or \
                 plan a larger network"
            )
        };
        usage.map(warning).collect()
    }

    /// The leases that conflict with this node, and the required action.
    fn conflicts_warning(&self) -> Vec<String> {
        let rival = self.inputs.rival.map(|rival| {
            format!(
                "{rival} and overwrites the lease of this node: give each node its own public IP"
            )
        });
        let conflicts = self.derived.desired.conflicts().iter();
        let conflicts: Vec<_> = conflicts.filter(|id| !self.inputs.peers.is_gone(id)).collect();
        let shown = conflicts.iter().take(SHOWN).filter_map(|id| self.conflict_warning(id));
        let more = conflicts.len().saturating_sub(SHOWN);
        let more = (more > 0).then(|| format!("and {more} more leases conflict with this node"));
        rival.into_iter().chain(shown).chain(more).collect()
    }

    fn conflict_warning(&self, id: &LeaseId) -> Option<String> {
        let why = self.derived.desired.peers().get(id)?.as_ref().err()?;
        let Rejected::OurAddress(ip) = why else {
            return Some(format!("lease {id} conflicts with this node: {why}"));
        };
        let mut endpoints = self.inputs.peers.lease(id)?.endpoints.iter();
        let rival = AddressConflict::of(endpoints.find(|endpoint| endpoint.public_ip == *ip)?);
        Some(format!(
            "{rival} in lease {id}: give each node its own public IP, \
             or delete the lease if its node is gone"
        ))
    }
}

/// The first reasons, and the number of the rest.
fn abridged(mut reasons: Vec<String>) -> Vec<String> {
    let more = reasons.len().saturating_sub(SHOWN);
    reasons.truncate(SHOWN);
    reasons.extend((more > 0).then(|| format!("and {more} more refused")));
    reasons
}
