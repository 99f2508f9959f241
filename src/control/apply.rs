//! From stale inputs to a kernel that is right: read, plan, apply.

use std::collections::BTreeSet;

use super::guarding::is_due;
use super::iptables::is_chain;
use super::{Differences, Reconciler};
use crate::kernel::{Kernel, Refused};
use crate::model::entry::{Entry, Key};
use crate::model::lease::{Lease, LeaseId, Peer};
use crate::model::node::{Node, former_bridges};
use crate::model::status::Statistics;
use crate::plan::backend;
use crate::plan::desired::{Desired, Standing};
use crate::plan::diff::Op;

/// What one pass does may change the plan, once: a filter is loose now, or restored.
const PASSES: usize = 3;

impl<K: Kernel> Reconciler<K> {
    /// Brings the kernel to what the inputs ask for, as far as they are known.
    pub(super) async fn settle(&mut self) {
        if std::mem::take(&mut self.stale.facts) {
            self.read_facts().await;
        }
        if !self.inputs.are_known() {
            return;
        }
        self.reconsider();
        for _ in 0..PASSES {
            self.pass().await;
            if !self.stale.plan {
                break;
            }
        }
        if self.stale.facts || self.stale.dump || self.inputs.no_node.is_some() {
            self.timers.retry_later();
        } else {
            self.timers.all_is_read();
        }
    }

    async fn pass(&mut self) {
        self.stale.plan |= self.inputs.note_leaving(&self.actual);
        if std::mem::take(&mut self.stale.plan) {
            self.plan();
        }
        if std::mem::take(&mut self.stale.dump) && !self.read_kernel().await {
            return;
        }
        let (chains, ops): (Vec<_>, Vec<_>) =
            self.due_ops().into_iter().partition(|op| is_chain(op.entry()));
        if !ops.is_empty() {
            self.apply(ops).await;
        }
        self.forget_gateways();
        self.start_iptables(chains);
        let is_restored = self.inputs.forget_restored(&self.actual);
        self.unsaved |= is_restored;
        self.stale.plan |= is_restored | self.inputs.note_filters(&self.actual);
    }

    /// Looks at the host again. A node that was chosen once stays when its address is away for a moment.
    async fn read_facts(&mut self) {
        let Some(config) = &self.inputs.config else { return };
        let families: Vec<_> = config.pools.iter().map(|pool| pool.network.family()).collect();
        let networks: Vec<_> = config.networks().collect();
        let options = &self.settings.interface.ordered(&self.inputs.identity.public_ips);
        let facts = match self.kernel.facts(options.can_reach).await {
            Ok(facts) => facts,
            Err(error) => {
                self.stale.facts = true;
                return self.kernel_failed("reading the host's interfaces", &error);
            }
        };
        self.inputs.occupied = facts.occupied();
        self.inputs.service = facts.service;
        let subnets: Vec<_> = self.inputs.own.iter().flat_map(Lease::subnets).collect();
        self.inputs.bridges = former_bridges(&facts.interfaces, &networks, &subnets);
        let selected = match &self.inputs.node {
            Some(node) => node.select_again(&facts, options, &families),
            None => Node::select(&facts, options, &families),
        };
        match selected {
            Ok(node) => {
                self.inputs.makes_strict = facts.makes_strict;
                self.take_node(node);
            }
            Err(error) => {
                let reason = error.to_string();
                if self.inputs.no_node.as_ref() != Some(&reason) {
                    tracing::warn!(%reason, "no interface can be used");
                    self.inputs.no_node = Some(reason);
                }
                self.timers.retry_later();
            }
        }
    }

    fn take_node(&mut self, node: Node) {
        self.inputs.no_node = None;
        if self.inputs.node.as_ref() != Some(&node) {
            let addresses: Vec<_> = node.uplinks.iter().map(|uplink| uplink.public_ip).collect();
            tracing::info!(interface = %node.interface, mtu = node.mtu, ?addresses, "using this interface");
            if self.inputs.move_to(node) {
                tracing::info!(macs = ?self.inputs.macs, "the public IP changed, and the VTEP MAC with it");
                self.statistics.mac_changes += 1;
            }
            self.stale.plan = true;
            self.inputs.edit.stale = true;
            self.unsaved = true;
        }
    }

    /// Plans for this node and every peer anew.
    fn plan(&mut self) {
        // A config that has just become mixed finds the filters as they were read before.
        self.unsaved |= self.inputs.note_strict(&self.actual);
        let Some(local) = self.inputs.local() else { return };
        self.log_config(&local.config);
        let gateways = std::mem::take(&mut self.scope.gateways);
        self.former_gateways.extend(&gateways);
        let mut scope = local.scope(gateways);
        scope.networks.extend(self.inputs.former_networks());
        // What was read for another scope says nothing about this one.
        self.stale.dump |= !scope.sees_the_same(&self.scope) || self.inputs.lack_macs();
        self.scope = scope;
        self.inputs.peers.judge_by(local.rules());
        // All are planned for.
        self.inputs.peers.affected();
        self.networks = backend::networks(&local);
        let detours = self.detours(self.inputs.peers.all().map(|(_, peer)| peer));
        self.take_detours(detours);
        let standings = self.standings(self.inputs.peers.all());
        self.note(&standings);
        self.desired = Desired::new(backend::plan_local(&local, &self.networks), standings);
        self.stale.differences = Differences::Anywhere;
        self.log_firewall();
        self.look_at_chains_again();
    }

    /// Plans anew for these peers alone.
    pub(super) fn revise(&mut self, ids: &BTreeSet<LeaseId>) {
        self.unsaved |= !ids.is_empty();
        self.unreported |= !ids.is_empty();
        self.inputs.edit.stale |= !ids.is_empty();
        // Before the first plan there are no rules to judge by; a whole plan is for all.
        if !self.networks.is_empty() && !ids.is_empty() && !self.stale.plan {
            let detours = self.detours(ids.iter().map(|id| self.inputs.peers.peer(id)));
            self.forget_paths(ids);
            self.take_detours(detours);
            let peers = ids.iter().map(|id| (id, self.inputs.peers.peer(id)));
            let standings = self.standings(peers);
            self.note(&standings);
            let touched = self.desired.revise(standings);
            self.stale.differences.extend(touched);
        }
    }

    /// Where these leases stand by the rules and networks of now.
    fn standings<'a>(
        &self,
        peers: impl Iterator<Item = (&'a LeaseId, Option<Peer<'a>>)>,
    ) -> Vec<(LeaseId, Option<Standing>)> {
        let standing = |(id, peer): (&LeaseId, Option<Peer<'_>>)| {
            let of = |peer| Standing::of(peer, &self.networks, &self.inputs.detours);
            (id.clone(), peer.map(of))
        };
        peers.map(standing).collect()
    }

    /// Tells those who follow the peers where these stand now.
    fn note(&mut self, standings: &[(LeaseId, Option<Standing>)]) {
        for (id, standing) in standings {
            if let Some(Standing::SetAside(reason)) = standing
                && self.desired.peers().get(id) != standing.as_ref()
            {
                self.rejected.note(id, reason);
            }
        }
        self.follow_gateways(standings);
        self.tell_targets(standings);
        self.yield_macs(standings);
    }

    /// Reads what the kernel holds. Until they are known, it also decides the MAC addresses.
    async fn read_kernel(&mut self) -> bool {
        match self.kernel.dump(&self.scope.without_chains(), &self.actual).await {
            Ok(mut actual) => {
                self.statistics.dumps += 1;
                self.timers.dumped();
                self.trouble = None;
                actual.retain(|entry| !is_due(entry));
                actual.extend(self.actual.local().filter(|entry| is_chain(entry)).cloned());
                self.actual.update(actual);
                self.stale.differences = Differences::Anywhere;
                self.stale.facts |= self.meets_foreign_nexthop();
                self.unsaved |= self.inputs.note_strict(&self.actual);
                let is_news = self.inputs.note_filters(&self.actual)
                    | self.inputs.note_leaving(&self.actual)
                    | self.inputs.lack_macs();
                if is_news {
                    self.inputs.settle_macs(&self.actual);
                    self.unsaved = true;
                    self.plan();
                    self.stale.dump = false;
                }
                true
            }
            Err(error) => {
                self.kernel_failed("reading what the kernel holds", &error);
                false
            }
        }
    }

    async fn apply(&mut self, ops: Vec<Op>) {
        match self.kernel.apply(&ops).await {
            Ok(refused) => self.note_applied(ops, refused),
            Err(error) => self.kernel_failed("programming the kernel", &error),
        }
    }

    pub(super) fn note_applied(&mut self, ops: Vec<Op>, refused: Vec<Refused>) {
        self.unreported = true;
        let failed: BTreeSet<Key> =
            refused.iter().map(|refusal| refusal.op.entry().key()).collect();
        let (mut put, mut puts_rules) = (Vec::new(), false);
        for op in ops {
            let key = op.entry().key();
            if failed.contains(&key) {
                continue;
            }
            // What a link does to the entries on it, only a dump tells.
            if let Key::Link(link) = &key {
                self.refused.end_backoff_on(link);
                self.timers.dump_soon();
            }
            self.note_created(&op);
            count(&mut self.statistics, &op);
            self.note_guard_put(&op);
            self.refused.forget(&key);
            self.timers.forget(&key);
            if let Key::Table(name) = &key {
                self.actual.retain(|entry| !entry.is_element_of(name));
            }
            match op {
                Op::Create(entry) | Op::Replace(entry) => {
                    puts_rules |= entry.is_rules();
                    put.push(entry);
                }
                Op::Remove(_) => drop(self.actual.remove(&key)),
            }
        }
        self.actual.extend(put);
        if puts_rules {
            self.look_at_old_rules();
        }
        for refusal in refused {
            // Perhaps the kernel has no such things for us after all: the facts tell.
            self.stale.facts |= matches!(refusal.op.entry(), Entry::Nexthop(_) | Entry::Table(_));
            self.note_guard_refused(&refusal);
            tracing::debug!(op = %refusal.op, reason = %refusal.reason, "the kernel refused");
            let again = self.refused.note(&refusal);
            self.timers.look_again(refusal.op.entry().key(), again);
        }
    }

    /// A device is created as strict as the host has it, and loosened before it can be read.
    fn note_created(&mut self, op: &Op) {
        if let Op::Create(entry) = op
            && let Entry::Link(link) = entry.as_ref()
        {
            self.unsaved |= self.inputs.note_created(&link.name);
        }
    }

    /// Whether one of our numbers is taken, of which the node does not know yet.
    fn meets_foreign_nexthop(&self) -> bool {
        let uses_them = self.inputs.node.as_ref().is_some_and(|node| node.nexthops);
        uses_them && self.actual.entries().any(Entry::is_foreign_nexthop)
    }

    /// Whatever was under way, the kernel must be read again.
    pub(super) fn kernel_failed(&mut self, doing: &'static str, error: &std::io::Error) {
        tracing::warn!(%error, "{doing} was interrupted");
        self.trouble = Some(format!("{doing} was interrupted: {error}"));
        self.stale.dump = true;
        self.timers.retry_later();
    }
}

const fn count(statistics: &mut Statistics, op: &Op) {
    match op {
        Op::Create(_) => statistics.created += 1,
        Op::Replace(_) => statistics.replaced += 1,
        Op::Remove(_) => statistics.removed += 1,
    }
}
