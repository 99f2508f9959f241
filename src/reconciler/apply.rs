//! From stale inputs to a kernel that is right: read, plan, compare, apply.

use std::collections::BTreeSet;

use super::{Differences, Reconciler, Standing};
use crate::backend;
use crate::kernel::state::{Entry, Key};
use crate::kernel::{Kernel, Op, Refused, diff, diff_key};
use crate::lease::LeaseId;
use crate::node::Node;

/// More passes than this change nothing that the next event would not.
const PASSES: usize = 4;

impl<K: Kernel> Reconciler<K> {
    /// Brings the kernel to what the inputs ask for, as far as they are known.
    pub(super) async fn settle(&mut self) {
        if std::mem::take(&mut self.stale.facts) {
            self.read_facts().await;
        }
        // A new link, or a refusal that the plan depends on, asks for another look at once.
        for _ in 0..PASSES {
            self.pass().await;
            let is_done = !self.stale.plan && !self.stale.dump;
            if is_done || self.trouble.is_some() {
                break;
            }
        }
        if self.is_well() {
            self.agenda.all_is_well();
        } else {
            self.agenda.retry_later();
        }
    }

    fn is_well(&self) -> bool {
        let has_node = self.inputs.no_node.is_none();
        has_node && self.trouble.is_none() && self.refused.is_empty() && !self.stale.dump
    }

    async fn pass(&mut self) {
        if self.inputs.local().is_none() {
            return;
        }
        if std::mem::take(&mut self.stale.plan) {
            self.plan();
        }
        if std::mem::take(&mut self.stale.dump) && !self.read_kernel().await {
            return;
        }
        let ops = self.due_ops();
        if !ops.is_empty() {
            self.apply(ops).await;
        }
    }

    /// Looks at the host again. A node that was chosen once stays when its address is away for a moment.
    async fn read_facts(&mut self) {
        let Some(config) = &self.inputs.config else { return };
        let families: Vec<_> = config.pools.iter().map(|pool| pool.network.family()).collect();
        let facts = match self.kernel.facts(self.settings.interface.can_reach).await {
            Ok(facts) => facts,
            Err(error) => return self.kernel_failed("reading the host's interfaces", &error),
        };
        match Node::select(&facts, &self.settings.interface, &families) {
            Ok(node) => self.take_node(node),
            Err(error) => {
                let reason = error.to_string();
                if self.inputs.no_node.as_ref() != Some(&reason) {
                    tracing::warn!(%reason, "no interface can be used");
                    self.inputs.no_node = Some(reason);
                }
            }
        }
    }

    fn take_node(&mut self, node: Node) {
        self.inputs.no_node = None;
        if self.inputs.node.as_ref() != Some(&node) {
            let addresses: Vec<_> = node.uplinks.iter().map(|uplink| uplink.public_ip).collect();
            tracing::info!(interface = %node.interface, mtu = node.mtu, ?addresses, "using this interface");
            self.inputs.node = Some(node);
            self.stale.plan = true;
        }
    }

    /// Plans for this node and every peer anew.
    fn plan(&mut self) {
        let Some(local) = self.inputs.local() else { return };
        let gateways = self.inputs.peers.leases().flat_map(|lease| &lease.endpoints);
        let scope = local.scope(gateways.map(|endpoint| endpoint.public_ip).collect());
        self.outputs.checkpoint_changed();
        // What was read for another scope says nothing about this one.
        self.stale.dump |= !scope.sees_the_same(&self.scope) || self.inputs.macs.is_none();
        self.scope = scope;
        self.networks = backend::networks(&local);
        self.desired.set_local(backend::plan_local(&local, &self.networks));
        let all: BTreeSet<LeaseId> = self.inputs.peers.ids().cloned().collect();
        self.revise(all);
        self.stale.differences = Differences::Anywhere;
    }

    /// Plans anew for these peers alone.
    pub(super) fn revise(&mut self, ids: BTreeSet<LeaseId>) {
        let rules = self.inputs.rules();
        let standing = |id: LeaseId| {
            let standing = self.inputs.standing(&id, &rules, &self.networks);
            (id, standing)
        };
        let changes: Vec<_> = ids.into_iter().map(standing).collect();
        let gateways = changes.iter().filter_map(|(id, _)| self.inputs.peers.lease(id));
        let gateways = gateways.flat_map(|lease| &lease.endpoints).map(|e| e.public_ip);
        self.scope.gateways.extend(gateways);
        for (id, standing) in &changes {
            let is_news = self.desired.peers().get(id) != standing.as_ref();
            if let Some(Standing::SetAside(reason)) = standing.as_ref().filter(|_| is_news) {
                tracing::warn!(lease = %id, %reason, "set a lease aside");
            }
        }
        let touched = self.desired.revise(changes);
        self.stale.differences.extend(touched);
    }

    /// Reads what the kernel holds. The first time, it also decides the MAC addresses.
    async fn read_kernel(&mut self) -> bool {
        match self.kernel.dump(&self.scope).await {
            Ok(actual) => {
                self.statistics.dumps += 1;
                self.trouble = None;
                self.actual = actual;
                self.stale.differences = Differences::Anywhere;
                self.inputs.note_strict(&self.actual);
                if self.inputs.macs.is_none() {
                    self.inputs.settle_macs(&self.actual);
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

    /// What is to be done now: the difference, less the removals that must wait.
    fn due_ops(&mut self) -> Vec<Op> {
        let ops = match std::mem::take(&mut self.stale.differences) {
            Differences::In(keys) if !keys.iter().any(|key| matches!(key, Key::Link(_))) => {
                self.diff_keys(&keys)
            }
            Differences::In(_) | Differences::Anywhere => {
                self.refused.clear();
                diff(self.desired.state(), &self.actual, &self.scope)
            }
        };
        ops.into_iter().filter(|op| self.is_due(op)).collect()
    }

    fn diff_keys(&mut self, keys: &BTreeSet<Key>) -> Vec<Op> {
        let (mut puts, mut removals) = (Vec::new(), Vec::new());
        for key in keys {
            self.refused.remove(key);
            match diff_key(key, self.desired.state(), &self.actual, &self.scope) {
                Some(op @ (Op::Create(_) | Op::Replace(_))) => puts.push(op),
                Some(op @ Op::Remove(_)) => removals.push(op),
                None => self.agenda.forget(key),
            }
        }
        puts.extend(removals.into_iter().rev());
        puts
    }

    fn is_due(&mut self, op: &Op) -> bool {
        match op {
            Op::Create(entry) | Op::Replace(entry) => {
                self.agenda.forget(&entry.key());
                true
            }
            // Only a device that stands in its successor's way is ever removed.
            Op::Remove(Entry::Link(_)) => true,
            Op::Remove(entry @ (Entry::Fdb(_) | Entry::Neighbour(_))) => {
                self.inputs.may_remove() && self.agenda.has_lingered(&entry.key())
            }
            Op::Remove(_) => self.inputs.may_remove(),
        }
    }

    async fn apply(&mut self, ops: Vec<Op>) {
        for op in &ops {
            tracing::debug!("{op}");
        }
        match self.kernel.apply(ops.clone()).await {
            Ok(refused) => self.note_applied(ops, refused),
            Err(error) => self.kernel_failed("programming the kernel", &error),
        }
    }

    fn note_applied(&mut self, ops: Vec<Op>, refused: Vec<Refused>) {
        let failed: BTreeSet<Key> =
            refused.iter().map(|refusal| refusal.op.entry().key()).collect();
        for op in ops {
            // What a link does to the entries on it, only a dump tells.
            self.stale.dump |= matches!(op.entry(), Entry::Link(_));
            if failed.contains(&op.entry().key()) {
                continue;
            }
            self.statistics.count(&op);
            match op {
                Op::Create(entry) | Op::Replace(entry) => drop(self.actual.insert(entry)),
                Op::Remove(entry) => drop(self.actual.remove(&entry.key())),
            }
        }
        for Refused { op, reason } in refused {
            tracing::debug!(%op, %reason, "the kernel refused");
            self.refused.insert(op.entry().key(), format!("{op}: {reason}"));
        }
        self.note_filters();
    }

    /// A filter that stays strict holds a change of backend back, and lets it go once it is loose.
    fn note_filters(&mut self) {
        let kept = self.inputs.kind_kept();
        self.inputs.filtered = self.refused.keys().any(|key| matches!(key, Key::ReversePath(_)));
        if self.inputs.kind_kept() != kept {
            self.stale.plan = true;
            self.agenda.retry_later();
        }
    }

    /// Whatever was under way, the kernel must be read again.
    fn kernel_failed(&mut self, doing: &'static str, error: &std::io::Error) {
        tracing::warn!(%error, "{doing} was interrupted");
        self.trouble = Some(format!("{doing} was interrupted: {error}"));
        self.stale.dump = true;
        self.agenda.retry_later();
    }
}
