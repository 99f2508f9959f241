//! Whether the daemon does its work, and if not, why.

use super::Control;
use super::inputs::Inputs;
use crate::model::config::NetworkConfig;
use crate::model::entry::{Entry, Key, SettingKind};
use crate::model::lease::{LeaseId, Rejected};
use crate::model::node::Uplink;
use crate::model::policy::{Guard, Strangers};
use crate::model::status::{Readiness, StoreState};
use crate::plan::desired::Standing;
use crate::store::Rival;

/// Many refusals and rejections are as a rule of one kind: this many are shown.
const SHOWN: usize = 3;

/// The leases that were rejected since the log was last told.
#[derive(Debug, Default)]
pub(super) struct Rejections {
    total: usize,
    first: Vec<String>,
}

impl Rejections {
    pub(super) fn note(&mut self, id: &LeaseId, reason: &Rejected) {
        self.total += 1;
        if self.first.len() < SHOWN {
            self.first.push(format!("{id}: {reason}"));
        }
    }
}

impl Control {
    /// One line for all leases that were rejected at once, however many they are.
    pub(super) fn log_rejected(&mut self) {
        let Rejections { total, first } = std::mem::take(&mut self.held.logged.rejected);
        if total > 0 {
            tracing::warn!(leases = total, ?first, "rejected leases");
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        self.readiness_with(self.store_remark())
    }

    fn readiness_with(&self, of_store: Option<String>) -> Readiness {
        let blocking = self.blocking();
        let ready = blocking.is_empty();
        let reasons = blocking.into_iter().chain(of_store).chain(self.remarks());
        Readiness { ready, reasons: reasons.collect() }
    }

    /// Without the state of the store, which logs itself: servers that fail in turns have a new
    /// reason each time.
    pub(super) fn log_readiness(&mut self) {
        let readiness = self.readiness_with(None);
        let ready = readiness.ready;
        if self.held.logged.readiness.as_ref() == Some(&readiness) {
            return;
        }
        if ready && readiness.reasons.is_empty() {
            tracing::info!("ready");
        } else if ready {
            tracing::warn!(remarks = ?readiness.reasons, "ready");
        } else {
            tracing::warn!(reasons = ?readiness.reasons, "not ready");
        }
        self.held.logged.readiness = Some(readiness);
    }

    /// What keeps us from being ready, in sentences.
    fn blocking(&self) -> Vec<String> {
        let inputs = &self.inputs;
        let missing = [
            inputs.config.is_none().then(|| inputs.edit.no_config()),
            self.lacks_node(),
            (inputs.edit.update.is_none() && !inputs.are_alone())
                .then(|| "the store has not answered yet".to_owned()),
            inputs.relied_on().is_none().then(|| "no subnet is leased yet".to_owned()),
            (!inputs.peers.is_complete() && !inputs.rest_on_memory())
                .then(|| "the leases of the peers are not read yet".to_owned()),
            self.awaited_chains().map(str::to_owned),
            self.held.trouble.clone(),
        ];
        let refused = self.held.refused.iter().filter(|(key, _)| self.is_essential(key));
        let refused: Vec<String> = refused.map(|(_, why)| why.to_owned()).collect();
        missing.into_iter().flatten().chain(abridged(refused)).collect()
    }

    /// Why this node has no addresses that peers could send to.
    fn lacks_node(&self) -> Option<String> {
        let Inputs { config, node, no_node, .. } = &self.inputs;
        match (node, no_node) {
            (Some(_), reason) => {
                let reason = reason.as_ref()?;
                Some(format!("the last choice of interface is kept: {reason}"))
            }
            (None, Some(reason)) => Some(reason.clone()),
            (None, None) => config.as_ref().map(|_| "no interface is chosen yet".to_owned()),
        }
    }

    /// Old rules that cannot be removed are as good as ours.
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

    /// Whether pods rely on `entry`. Without masquerading, the table that keeps what others masquerade
    /// is worth less than routes.
    pub(super) fn is_relied_on(&self, entry: &Entry) -> bool {
        let is_table_of_nat = matches!(entry, Entry::Table(_)) && entry.is_rules();
        !is_table_of_nat || self.settings.policy.masquerade.is_some()
    }

    /// The connections that may break because the entry of this key was refused.
    fn unkept(&self, key: &Key, why: &str) -> Option<String> {
        match key {
            Key::Address(link, ..) if link.is_loopback() => Some(format!(
                "connections of this host may break when the tunnel device is removed: {why}"
            )),
            Key::Table(_) if self.is_wanted(key) && !self.is_essential(key) => {
                Some(format!("masqueraded connections may break when a path changes: {why}"))
            }
            _ => None,
        }
    }

    /// Why the host refused settings of this kind.
    fn refused_settings(&self, kind: SettingKind) -> impl Iterator<Item = &str> {
        let refused = self.held.refused.iter();
        let refused =
            refused.filter(move |(key, _)| matches!(key, Key::Setting(of, _) if *of == kind));
        refused.map(|(_, why)| why)
    }

    fn is_wanted(&self, key: &Key) -> bool {
        self.derived.desired.state().get(key).is_some()
    }

    fn store_remark(&self) -> Option<String> {
        match &self.inputs.store {
            StoreState::Waiting(reason) => Some(format!("the store is away: {reason}")),
            StoreState::Lacks(reason) => Some(format!("no subnet for this node yet: {reason}")),
            StoreState::Refuses(what) => Some(format!("the store refuses {what}")),
            StoreState::Holds(what) => Some(what.clone()),
            StoreState::Unknown | StoreState::Reachable => None,
        }
    }

    /// What else an operator should know although it blocks nothing.
    fn remarks(&self) -> impl Iterator<Item = String> {
        let inputs = &self.inputs;
        let remembered = inputs.rest_on_memory().then(|| {
            "forwarding by what was last known: the store has not confirmed it".to_owned()
        });
        let held = inputs.held_back.map(|(missing, of)| {
            format!("{missing} of {of} leases vanished at once: their routes are kept")
        });
        // Without a config before, this node waits for one.
        let unusable = inputs.edit.unusable().filter(|_| inputs.confirmed);
        let unusable = unusable.map(|reason| format!("the config before stays in force: {reason}"));
        let filters = self.refused_settings(SettingKind::ReversePath);
        // Whether it was to be made or changed is no news.
        let unsigned = |why: &str| why.trim_start_matches(['+', '~', ' ']).to_owned();
        let filters = filters.map(move |why| {
            format!("packets may be lost while backends change: {}", unsigned(why))
        });
        let left = self.held.refused.iter().filter(|(key, _)| {
            matches!(key, Key::Table(_) | Key::Chain(_)) && !self.is_wanted(key)
        });
        let left = left.map(|(_, why)| format!("old rules are left: {why}"));
        let spoilt = self.refused_settings(SettingKind::TxChecksum);
        let spoilt = spoilt.map(|why| format!("packets in the tunnel may be spoilt: {why}"));
        let unkept = self.held.refused.iter().filter_map(|(key, why)| self.unkept(key, why));
        let (pending, guard) = (inputs.pending(), self.guard_remark());
        let bridges = inputs.bridges.iter().map(|bridge| {
            format!(
                "{bridge}: its pods are unreachable, and new ones fail; drain the node, then \
                 ip link delete {}",
                bridge.link
            )
        });
        let remarks = [remembered, held, pending, unusable, self.probes_remark(), guard];
        let remarks = remarks.into_iter().flatten().chain(filters).chain(left).chain(spoilt);
        let remarks = remarks.chain(unkept).chain(self.kept_chains()).chain(self.doubtful_chains());
        let overlaps = inputs.overlaps().into_iter().map(|overlap| {
            format!("{overlap}: pods and hosts with the same addresses do not reach each other")
        });
        let remarks = remarks.chain(self.gateways_remark()).chain(bridges);
        remarks.chain(self.conflicts_remark()).chain(overlaps)
    }
}

impl Control {
    /// Why the guard does less than it should, as far as it is known.
    fn guard_remark(&self) -> Option<String> {
        let inputs = &self.inputs;
        let drops = |guard: Guard| guard.strangers == Strangers::Drop;
        let is_asked = inputs.policy.guard.is_some_and(drops)
            && inputs.config.as_ref().is_some_and(NetworkConfig::has_tunnel);
        let by_memory = is_asked && inputs.rest_on_memory() && !inputs.peers.is_complete();
        let blind = is_asked && inputs.are_alone() && !inputs.know_peers();
        let refused = inputs.guarding.refused.as_ref().map(|reason| {
            format!("the tunnel is not guarded, everybody may send into it: {reason}")
        });
        let by_memory =
            by_memory.then_some("the tunnel lets in only the peers that were last known");
        let blind =
            blind.then_some("the tunnel is not guarded until the leases of the peers are read");
        refused.or_else(|| by_memory.or(blind).map(str::to_owned))
    }

    /// The public IPs that peers cannot use as gateways.
    fn gateways_remark(&self) -> Vec<String> {
        let local = self.inputs.local().filter(|local| !local.config.has_tunnel());
        let uplinks = local.iter().flat_map(|local| &local.node.uplinks);
        let elsewhere = uplinks.filter(|uplink| uplink.source != uplink.public_ip);
        let remark = |uplink: &Uplink| {
            format!(
                "public IP {} is no address of this host: with host-gw, peers send to it as a \
                 gateway; leave it out, use vxlan, or turn Mixed on",
                uplink.public_ip
            )
        };
        elsewhere.map(remark).collect()
    }

    /// Which leases conflict with this node, and what to do.
    fn conflicts_remark(&self) -> Vec<String> {
        let rival = self.inputs.rival.map(|rival| {
            format!("{rival} and overwrites our lease: give each node a public IP of its own")
        });
        let against_us = self.derived.desired.against_us();
        let shown = against_us.iter().take(SHOWN).filter_map(|id| self.conflict_remark(id));
        let more = against_us.len().saturating_sub(SHOWN);
        let more = (more > 0).then(|| format!("and {more} more leases conflict with this node"));
        rival.into_iter().chain(shown).chain(more).collect()
    }

    fn conflict_remark(&self, id: &LeaseId) -> Option<String> {
        let Standing::SetAside(why) = self.derived.desired.peers().get(id)? else { return None };
        let Rejected::OurAddress(ip) = why else {
            return Some(format!("lease {id} conflicts with this node: {why}"));
        };
        let mut endpoints = self.inputs.peers.lease(id)?.endpoints.iter();
        let rival = Rival::of(endpoints.find(|endpoint| endpoint.public_ip == *ip)?);
        Some(format!(
            "{rival} in lease {id}: give each node a public IP of its own, \
             or delete the lease if its node is gone"
        ))
    }
}

/// The first few of many.
fn abridged(mut reasons: Vec<String>) -> Vec<String> {
    let more = reasons.len().saturating_sub(SHOWN);
    reasons.truncate(SHOWN);
    reasons.extend((more > 0).then(|| format!("and {more} more refused alike")));
    reasons
}
