//! State derived from the inputs: backends, scope, desired state and retired devices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::Control;
use super::changes::{Changes, Differences};
use super::inputs::Inputs;
use crate::model::entry::{KernelState, Key, PROTOCOL_BOOT};
use crate::model::lease::{LeaseId, Rejected};
use crate::model::node_inputs::NodeInputs;
use crate::plan::backend::{self, Backend};
use crate::plan::desired::{Desired, LeasePlan, LeasePlans, plan_leases};
use crate::plan::masquerade::{self, Choice};
use crate::plan::scope::Scope;

#[derive(Default)]
pub(super) struct Derived {
    pub(super) backends: Vec<Backend>,
    pub(super) scope: Scope,
    /// Addresses of peers that may be gone: flannel's routes through them may still exist.
    former_gateways: BTreeSet<IpAddr>,
    pub(super) desired: Desired,
}

impl Derived {
    /// Derives the backends and the scope of this node. Returns whether the kernel must be read
    /// again because the last dump covered another scope.
    fn follow_node(&mut self, local: &NodeInputs, inputs: &Inputs) -> bool {
        let gateways = std::mem::take(&mut self.scope.gateways);
        self.former_gateways.extend(&gateways);
        let mut scope = local.scope(gateways);
        scope.networks.extend(inputs.former_networks());
        // Their rules would drop the probes through the device of another VNI.
        scope.tables.extend(inputs.former_vni().into_iter().flat_map(backend::table_names));
        let is_unread = !scope.sees_the_same(&self.scope) || inputs.lack_macs();
        self.scope = scope;
        self.backends = backend::backends(local);
        is_unread
    }

    /// Records addresses of accepted peers, and addresses that accepted peers may no longer have.
    fn follow_gateways(&mut self, lease_plans: &LeasePlans) {
        for (id, lease_plan) in lease_plans {
            let new = addresses(lease_plan.as_ref());
            let old = addresses(self.desired.peers().get(id));
            self.former_gateways.extend(old.filter(|old| !new.clone().any(|new| new == *old)));
            self.scope.gateways.extend(new);
        }
    }

    /// Forgets an address of a former peer when no route of protocol `boot`, as flannel writes them,
    /// uses it as gateway. Such a route that is added later is foreign.
    pub(super) fn forget_gateways(&mut self, actual: &KernelState) {
        let former = std::mem::take(&mut self.former_gateways);
        if former.is_empty() {
            return;
        }
        let used = self.desired.peers().values().flat_map(|lease_plan| addresses(Some(lease_plan)));
        let used: BTreeSet<IpAddr> = used.filter(|address| former.contains(address)).collect();
        let unmarked = actual.routes().filter(|route| route.protocol == PROTOCOL_BOOT);
        let leading: BTreeSet<IpAddr> = unmarked.filter_map(|route| route.gateway).collect();
        for address in former.into_iter().filter(|address| !used.contains(address)) {
            if leading.contains(&address) {
                self.former_gateways.insert(address);
            } else {
                self.scope.gateways.remove(&address);
            }
        }
    }

    /// Records which devices may be removed, given the known peers.
    pub(super) fn retire(&mut self, inputs: &Inputs, actual: &KernelState) -> Changes {
        // Without a tunnel device there is nothing to retire.
        let has_tunnel =
            self.scope.tunnels.iter().any(|name| actual.get(&Key::Link(name.clone())).is_some());
        let local = inputs.local().filter(|local| has_tunnel && !local.config.has_tunnel());
        let accepted = self.desired.peers().values().flatten().map(|(lease, _)| lease.as_ref());
        let retired = local.map(|local| backend::retired(&local, accepted));
        let retired = retired.unwrap_or_default();
        if retired == self.scope.retired {
            return Changes::default();
        }
        self.scope.retired = retired;
        Changes { differences: Differences::Anywhere, ..Changes::default() }
    }
}

/// The public IPs of a peer, if its lease is accepted.
fn addresses(lease_plan: Option<&LeasePlan>) -> impl Iterator<Item = IpAddr> + Clone {
    let accepted = lease_plan.into_iter().flatten();
    accepted.flat_map(|(lease, _)| &lease.endpoints).map(|endpoint| endpoint.public_ip)
}

impl Control {
    /// Derives the whole plan again if one of its shared inputs has changed.
    pub(super) fn derive(&mut self) -> Changes {
        self.follow_config();
        let is_news = self.inputs.note_leaving(&self.state.actual);
        if std::mem::take(&mut self.changes.plan) | is_news {
            self.replan()
        } else {
            Changes::default()
        }
    }

    /// Derives the plan of the leases that have changed, once per burst of events.
    pub(super) fn derive_peers(&mut self) -> Changes {
        self.follow_config();
        let affected = self.inputs.peers.take_affected();
        self.probe_silent(&affected);
        self.revise(&affected)
    }

    /// Probes that failed under the previous config are not evidence for the new one.
    fn follow_config(&mut self) {
        if std::mem::take(&mut self.changes.config) {
            self.probe_silent(&self.inputs.peers.ids().cloned().collect());
            self.state.logged.edit = true;
        }
    }

    /// Plans for this node and every peer.
    pub(super) fn replan(&mut self) -> Changes {
        // If the config has just become mixed, the last dump shows the filters before `Mixed`
        // changed them.
        let save = self.inputs.note_strict(&self.state.actual);
        let mut changes = Changes { save, ..Changes::default() };
        let Some(local) = self.inputs.local() else { return changes };
        changes.dump = self.derived.follow_node(&local, &self.inputs);
        changes.differences = Differences::Anywhere;
        self.inputs.peers.validate_by(local.rules());
        // The plan covers all peers: clear the list of changed ones.
        self.inputs.peers.take_affected();
        let fallbacks = self.fallbacks(self.inputs.peers.all().map(|(_, peer)| peer));
        changes |= self.apply_fallbacks(fallbacks);
        let Inputs { peers, fallbacks, .. } = &self.inputs;
        let lease_plans = plan_leases(peers.all(), &self.derived.backends, fallbacks);
        changes |= self.follow_peers(&lease_plans);
        self.record_gone();
        let own = backend::plan_local(&local);
        self.derived.desired = Desired::new(own, lease_plans);
        self.log_firewall();
        self.schedule_chains();
        changes
    }

    /// Plans again for these peers only.
    pub(super) fn revise(&mut self, ids: &BTreeSet<LeaseId>) -> Changes {
        if ids.is_empty() {
            return Changes::default();
        }
        let mut changes = Changes { save: true, report: true, edit: true, ..Changes::default() };
        self.forget_paths(ids);
        // Before the first plan there are no rules to evaluate leases by; a full plan covers all
        // leases.
        if !self.derived.backends.is_empty() && !self.changes.plan {
            let fallbacks = self.fallbacks(ids.iter().map(|id| self.inputs.peers.peer(id)));
            changes |= self.apply_fallbacks(fallbacks);
            let Inputs { peers, fallbacks, .. } = &self.inputs;
            let peers = ids.iter().map(|id| (id, peers.peer(id)));
            let lease_plans = plan_leases(peers, &self.derived.backends, fallbacks);
            changes |= self.follow_peers(&lease_plans);
            changes.differences.extend(self.derived.desired.revise(lease_plans));
        }
        changes
    }

    /// Passes the new results of these leases to the recorder, gateways, probes and MAC addresses.
    fn follow_peers(&mut self, lease_plans: &LeasePlans) -> Changes {
        self.record_peers(lease_plans);
        self.derived.follow_gateways(lease_plans);
        self.follow_targets(lease_plans);
        self.yield_macs(lease_plans)
    }

    /// Replaces MAC addresses of this node that an accepted lease of another node uses.
    fn yield_macs(&mut self, lease_plans: &LeasePlans) -> Changes {
        let claims = lease_plans.iter().filter_map(|(lease, lease_plan)| {
            let Err(Rejected::OurMac(old)) = lease_plan.as_ref()? else { return None };
            Some((old, lease))
        });
        let mut is_news = false;
        // Thousands of leases may claim the same MAC address.
        for (old, lease) in claims.collect::<BTreeMap<_, _>>() {
            for mac in self.inputs.yield_mac(*old) {
                tracing::warn!(%lease, %old, %mac, "another lease has the VTEP MAC of this node: using a new one");
                self.state.statistics.mac_changes += 1;
                is_news = true;
            }
        }
        Changes { plan: is_news, save: is_news, ..Changes::default() }
    }

    /// The firewall that holds tweed's rules; none if there are no rules, or not enough is known.
    pub(super) fn firewall(&self) -> Option<Choice> {
        let local = self.inputs.local()?;
        masquerade::choice(&local.policy, &local.config, &local.node.firewalls)
    }

    fn log_firewall(&mut self) {
        let choice = self.firewall();
        let is_news = choice != self.state.logged.firewall;
        if let Some(Choice { firewall, reason }) = choice.filter(|_| is_news) {
            let doing = match self.settings.policy.masquerade {
                Some(_) => "masquerading",
                None if self.inputs.is_mixed() => {
                    "preserving connections that other rules masquerade"
                }
                None => "accepting forwarded packets of pods",
            };
            tracing::info!(firewall = firewall.as_str(), reason, "{doing}");
        }
        self.state.logged.firewall = choice;
    }
}
