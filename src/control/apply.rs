//! Reads the host and the kernel, and applies the differences to the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::changes::{Changes, Differences};
use super::inputs::NoNode;
use super::iptables::is_chain;
use super::{AccessFailure, Control, Reconciler};
use crate::kernel::{Kernel, Refused};
use crate::model::entry::{Entry, KernelState, Key};
use crate::model::lease::Lease;
use crate::model::node::{Facts, InterfaceOptions, Node, Uplink, former_bridges};
use crate::plan::diff::Op;

/// How long an address may be missing before the node uses another one.
const ADDRESS_GRACE: Duration = Duration::from_secs(3);

impl<K: Kernel> Reconciler<K> {
    /// Reads the host facts again if they may have changed. Returns the kernel state if that may
    /// have changed too.
    pub(super) async fn read_facts(&mut self) -> Result<Option<KernelState>, AccessFailure> {
        let Control { inputs, settings, changes, derived, state, .. } = &mut self.control;
        if !std::mem::take(&mut changes.facts) || inputs.config.is_none() {
            return Ok(None);
        }
        let (kernel, reach) = (&mut self.kernel, settings.interface.can_reach);
        let begun = Instant::now();
        let read = if inputs.are_known() && std::mem::take(&mut changes.dump) {
            let read = kernel.read(reach, &derived.scope.without_chains(), &state.actual).await;
            state.measured.dumps.extend(read.is_ok().then(|| begun.elapsed().as_secs_f64()));
            read.map(|(facts, actual)| (facts, Some(actual)))
        } else {
            kernel.facts(reach).await.map(|facts| (facts, None))
        };
        changes.facts = read.is_err();
        let (facts, actual) = read.map_err(|error| ("reading the host's interfaces", error))?;
        self.control.take(|control| control.apply_facts(&facts));
        Ok(actual)
    }

    /// Applies the kernel state if it may have changed: the state `read` with the facts or, if the
    /// plan now needs more, a new dump.
    pub(super) async fn read_kernel(
        &mut self,
        mut read: Option<KernelState>,
    ) -> Result<(), AccessFailure> {
        let Control { derived, state, changes, .. } = &mut self.control;
        if std::mem::take(&mut changes.dump) {
            let begun = Instant::now();
            let dump = self.kernel.dump(&derived.scope.without_chains(), &state.actual).await;
            state.measured.dumps.extend(dump.is_ok().then(|| begun.elapsed().as_secs_f64()));
            read = Some(dump.map_err(|error| ("reading the kernel state", error))?);
        }
        if let Some(actual) = read {
            self.control.take(|control| control.apply_dump(actual));
        }
        Ok(())
    }

    /// Applies `ops`. The loop does not wait for ops on iptables chains: external programs apply
    /// them.
    pub(super) async fn program(&mut self, ops: Vec<Op>) -> Result<(), AccessFailure> {
        let (chains, ops): (Vec<_>, Vec<_>) = ops.into_iter().partition(|op| is_chain(op.entry()));
        let applied = if ops.is_empty() {
            Ok(())
        } else {
            let refused = self.kernel.apply(&ops).await;
            refused.map(|refused| self.control.take(|control| control.note_applied(ops, refused)))
        };
        self.control.start_iptables(&self.kernel.chains(), chains);
        self.control.take(Control::note_filters);
        applied.map_err(|error| ("programming the kernel", error))
    }
}

impl Control {
    /// A node that was selected once is kept while its address is missing temporarily, over a restart
    /// too.
    fn apply_facts(&mut self, facts: &Facts) -> Changes {
        let inputs = &mut self.inputs;
        let Some(config) = &inputs.config else { return Changes::default() };
        let families: Vec<_> = config.pools.iter().map(|pool| pool.network.family()).collect();
        let networks: Vec<_> = config.networks().collect();
        let options = &self.settings.interface.with_public_ips(&inputs.identity.public_ips);
        inputs.occupied = facts.occupied();
        inputs.service = facts.service;
        let subnets: Vec<_> = inputs.own.iter().flat_map(Lease::subnets).collect();
        inputs.bridges = former_bridges(&facts.interfaces, &networks, &subnets);
        let selected = match (&inputs.node, &inputs.remembered) {
            (Some(node), _) => node.select_again(facts, options, &families),
            (None, Some(local)) => local.node.select_after_restart(facts, options, &families),
            (None, None) => Node::select(facts, options, &families),
        };
        let followed = match selected {
            Ok(node) => self.settled(facts, node).map(|node| (node, None)),
            Err(error) => self.in_part(facts, options, error.to_string()),
        };
        match followed {
            Ok((node, lack)) => {
                self.inputs.makes_strict = facts.makes_strict;
                self.apply_node(node, lack)
            }
            Err(reason) => self.keep_node(facts, reason),
        }
    }

    /// The present node with what can be followed of it, and why that is not all.
    fn in_part(
        &mut self,
        facts: &Facts,
        options: &InterfaceOptions,
        reason: String,
    ) -> Result<(Node, Option<String>), String> {
        let Some(before) = self.inputs.node.clone() else { return Err(reason) };
        let Some(node) = before.select_in_part(facts, options) else { return Err(reason) };
        if node.uplinks != before.uplinks {
            return self.settled(facts, node).map(|node| (node, Some(reason)));
        }
        self.note_addresses(facts);
        Ok((node, Some(reason)))
    }

    /// `node`, unless it has another address, which the host has had for long, only because that of
    /// this node is missing for a moment: programs that configure interfaces remove addresses and add
    /// them again.
    fn settled(&mut self, facts: &Facts, node: Node) -> Result<Node, String> {
        let state = &mut self.state;
        let before = self.inputs.node.as_ref();
        if let Some(missing) = before.and_then(|before| before.missing_address(facts)) {
            let is_old = |address: IpAddr| {
                let known = state.addresses.get(&address);
                known.is_some_and(|since| since.elapsed() >= ADDRESS_GRACE)
            };
            let known = |uplink: &&Uplink| before.is_some_and(|it| it.uplinks.contains(*uplink));
            let mut changed = node.uplinks.iter().filter(|uplink| !known(uplink)).peekable();
            // The same addresses on another interface, such as a new bridge, are no substitute.
            let is_substitute =
                changed.peek().is_some() && changed.all(|uplink| is_old(uplink.address));
            let since = *state.missing_since.get_or_insert_with(Instant::now);
            if is_substitute && since.elapsed() < ADDRESS_GRACE {
                return Err(format!("{missing} is missing"));
            }
        }
        state.missing_since = None;
        self.note_addresses(facts);
        Ok(node)
    }

    /// Records since when the host has each of its addresses.
    fn note_addresses(&mut self, facts: &Facts) {
        let known = &self.state.addresses;
        let all = facts.interfaces.iter().flat_map(|interface| &interface.addresses);
        let since = |address| known.get(&address).copied().unwrap_or_else(Instant::now);
        self.state.addresses = all.map(|own| (own.address, since(own.address))).collect();
    }

    fn keep_node(&mut self, facts: &Facts, reason: String) -> Changes {
        self.state.timers.retry_later();
        self.note_no_node(Some(NoNode { reason, in_part: false }));
        let inputs = &mut self.inputs;
        let remembered = inputs.remembered.as_ref().filter(|_| inputs.node.is_none());
        let remembered = remembered.map(|local| &local.node).filter(|node| node.has_address(facts));
        let Some(node) = remembered.cloned() else { return Changes::default() };
        inputs.node = Some(node);
        Changes { plan: true, edit: true, ..Changes::default() }
    }

    fn note_no_node(&mut self, no_node: Option<NoNode>) {
        if let Some(NoNode { reason, .. }) = &no_node
            && self.inputs.no_node != no_node
        {
            tracing::warn!(%reason, "no interface can be used");
        }
        self.inputs.no_node = no_node;
    }

    /// `lack`: why it is followed only in part.
    fn apply_node(&mut self, node: Node, lack: Option<String>) -> Changes {
        if lack.is_some() {
            self.state.timers.retry_later();
        }
        self.note_no_node(lack.map(|reason| NoNode { reason, in_part: true }));
        if self.inputs.node.as_ref() == Some(&node) {
            return Changes::default();
        }
        let addresses: Vec<_> = node.uplinks.iter().map(|uplink| uplink.public_ip).collect();
        tracing::info!(interface = %node.interface, mtu = node.mtu, ?addresses, "using this interface");
        if self.inputs.move_to(node) {
            tracing::info!(macs = ?self.inputs.macs, "the public IP changed, and the VTEP MAC with it");
            self.state.statistics.mac_changes += 1;
        }
        Changes { plan: true, edit: true, save: true, ..Changes::default() }
    }

    /// The first dump also decides the MAC addresses.
    fn apply_dump(&mut self, mut actual: KernelState) -> Changes {
        let state = &mut self.state;
        state.statistics.dumps += 1;
        state.timers.dumped();
        // A renewal is due long enough before it expires that a short stop of the daemon seldom
        // leaves the tunnel without a guard.
        actual.retain(|entry| !matches!(entry, Entry::Renewal(renewal) if renewal.is_due()));
        actual.extend(state.actual.local().filter(|entry| is_chain(entry)).cloned());
        state.apply_dump(actual, self.derived.desired.state());
        let (facts, differences) = (self.has_foreign_nexthop(), Differences::Anywhere);
        let mut changes = Changes { facts, differences, ..Changes::default() };
        changes.save |= self.inputs.note_strict(&self.state.actual);
        let filters = self.inputs.note_filters(&self.state.actual);
        changes.edit |= filters.edit;
        let is_news =
            filters.plan | self.inputs.note_leaving(&self.state.actual) | self.inputs.lack_macs();
        if is_news {
            self.inputs.settle_macs(&self.state.actual);
            // The dump just applied covers everything that the new plan depends on.
            changes |= Changes { save: true, dump: false, ..self.replan() };
        }
        changes
    }

    /// Whether a nexthop ID of tweed is in use by a foreign object and the node does not know it
    /// yet.
    fn has_foreign_nexthop(&self) -> bool {
        let uses_them = self.inputs.node.as_ref().is_some_and(|node| node.nexthops);
        uses_them && self.state.actual.entries().any(Entry::is_foreign_nexthop)
    }

    /// The plan may depend on reverse-path filters that became strict or loose.
    fn note_filters(&mut self) -> Changes {
        self.derived.forget_gateways(&self.state.actual);
        let save = self.inputs.forget_restored(&self.state.actual);
        let mut changes = Changes { plan: save, save, ..Changes::default() };
        changes |= self.inputs.note_filters(&self.state.actual);
        changes
    }

    /// Records the results of `ops`.
    pub(super) fn note_applied(&mut self, ops: Vec<Op>, refused: Vec<Refused>) -> Changes {
        let mut changes = Changes { report: true, ..Changes::default() };
        let failed: BTreeSet<Key> =
            refused.iter().map(|refusal| refusal.op.entry().key()).collect();
        let (mut put, mut puts_rules) = (Vec::new(), false);
        for op in ops {
            if failed.contains(&op.entry().key()) {
                continue;
            }
            changes.save |= self.note_done(&op);
            match op {
                Op::Create(entry) | Op::Replace(entry) => {
                    if self.state.disturbed.remove(&entry.key()) {
                        self.record_repair(&entry);
                    }
                    puts_rules |= entry.is_rules();
                    put.push(entry);
                }
                Op::Remove(entry) => drop(self.state.actual.remove(&entry.key())),
            }
        }
        self.state.actual.extend(put);
        if puts_rules {
            self.check_old_rules();
        }
        for refusal in refused {
            changes |= self.note_refused(&refusal);
        }
        changes
    }

    /// Records that `op` was applied; returns whether the checkpoint changes.
    fn note_done(&mut self, op: &Op) -> bool {
        let (state, key) = (&mut self.state, op.entry().key());
        match op {
            Op::Create(_) => state.statistics.created += 1,
            Op::Replace(_) => state.statistics.replaced += 1,
            Op::Remove(_) => state.statistics.removed += 1,
        }
        state.refused.forget(&key);
        state.timers.forget(&key);
        match &key {
            // Only a dump shows how a change of a link affected the entries on it. Those of a removed one
            // are gone: it may be wanted again before the dump.
            Key::Link(link) => {
                state.refused.end_backoff_on(link);
                state.timers.dump_soon();
                if matches!(op, Op::Remove(_)) {
                    state.actual.retain(|entry| entry.link() != Some(link));
                }
            }
            Key::Route(..) | Key::Neighbour(..) => {
                if let Some(former) = state.actual.get(&key).cloned() {
                    state.check_used_by(&former);
                }
            }
            Key::Table(name) => state.actual.retain(|entry| !entry.is_element_of(name)),
            _ => {}
        }
        if puts_guard(op) {
            self.inputs.guarding.accept();
        }
        // A device is created with the host's default filter, and `Mixed` loosens it before it can
        // be read.
        match (op, &key) {
            (Op::Create(_), Key::Link(link)) => self.inputs.note_created(link),
            _ => false,
        }
    }

    fn note_refused(&mut self, refusal: &Refused) -> Changes {
        let entry = refusal.op.entry();
        // The kernel may not support such entries: reading the facts shows whether it does.
        let facts = matches!(entry, Entry::Nexthop(_) | Entry::Table(_));
        let mut changes = Changes { facts, ..Changes::default() };
        if puts_guard(&refusal.op) {
            changes |= self.inputs.guarding.refuse(&refusal.reason);
        }
        tracing::debug!(op = %refusal.op, reason = %refusal.reason, "the kernel refused");
        let again = self.state.refused.note(refusal);
        self.state.timers.check_again(entry.key(), again);
        changes
    }

    /// After any failure the kernel must be read again.
    pub(super) fn access_failed(&mut self, (doing, error): &AccessFailure) {
        tracing::warn!(%error, "{doing} failed");
        self.state.failure = Some(format!("{doing} failed: {error}"));
        self.state.timers.retry_failure();
        self.changes.dump = true;
    }
}

fn puts_guard(op: &Op) -> bool {
    matches!(op, Op::Create(entry) | Op::Replace(entry) if is_guard(entry))
}

pub(super) fn is_guard(entry: &Entry) -> bool {
    matches!(entry, Entry::Table(table) if table.has_peers())
}
