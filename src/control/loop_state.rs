//! The loop's record of the kernel: its entries, the refused operations, and the next time to
//! check.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tokio::time::Instant;

use super::changes::Changes;
use super::derived::Derived;
use super::diff::uses;
use super::inputs::Inputs;
use super::timers::{Timers, backoff};
use crate::kernel::{Observation, Refused};
use crate::model::config::BackendType;
use crate::model::entry::{Entry, KernelState, Key, LinkName};
use crate::model::measurements::Measurements;
use crate::model::status::{Readiness, Statistics};
use crate::plan::diff::Op;
use crate::plan::masquerade::Choice;
use crate::plan::scope::Scope;

/// State of the loop that is neither input nor derived.
#[derive(Debug, Default)]
pub(super) struct LoopState {
    /// What the kernel holds.
    pub(super) actual: KernelState,
    pub(super) refused: RefusedOps,
    /// The error that interrupted the last kernel access.
    pub(super) failure: Option<String>,
    pub(super) timers: Timers,
    pub(super) statistics: Statistics,
    pub(super) measured: Measurements,
    /// Desired entries that were lost or changed since the kernel held them.
    pub(super) disturbed: BTreeSet<Key>,
    pub(super) logged: Logged,
    /// When the address of this node vanished from its interface, while another one could be used.
    pub(super) missing_since: Option<Instant>,
    /// The addresses of the host when it last had those of this node, and since when.
    pub(super) addresses: BTreeMap<IpAddr, Instant>,
}

/// The values logged last, to avoid repeating them.
#[derive(Debug, Default)]
pub(super) struct Logged {
    /// The backend, and whether with `Mixed`.
    pub(super) config: Option<(BackendType, bool)>,
    /// Whether an edit of the config was applied since.
    pub(super) edit: bool,
    pub(super) firewall: Option<Choice>,
    pub(super) readiness: Option<Readiness>,
}

impl LoopState {
    /// Nothing failed since the loop began to read the kernel.
    pub(super) fn end_failures(&mut self) {
        self.failure = None;
        self.timers.end_failures();
    }

    /// Whether the kernel may not be accessed yet, because the last access failed.
    pub(super) fn waits_after_failure(&self) -> bool {
        self.failure.is_some() && self.timers.has_retry()
    }

    pub(super) fn observe(
        &mut self,
        observation: Observation,
        Derived { scope, desired, .. }: &Derived,
        inputs: &Inputs,
    ) -> Changes {
        match observation {
            Observation::Holds(entry) => return self.entry_put(entry, scope, desired.state()),
            Observation::Lost(key) => return self.entry_lost(key, desired.state()),
            Observation::LinkChanged(link) => return self.link_changed(&link, scope, inputs),
            Observation::AddressChanged(link, prefix) => {
                let changes = self.link_changed(&link, scope, inputs);
                let joins = inputs.node.as_ref().is_some_and(|node| node.shares_segment(prefix));
                return Changes { facts: changes.facts || joins, ..changes };
            }
            Observation::TableChanged(table) if scope.tables.contains(&table) => {
                self.timers.dump_soon();
            }
            Observation::ChainChanged(name) if scope.chains.contains(&name) => {
                self.timers.check_chains_soon();
            }
            Observation::TableChanged(_) | Observation::ChainChanged(_) => {}
            lost @ (Observation::Overrun | Observation::Paused) => {
                self.statistics.overruns += u64::from(lost == Observation::Overrun);
                self.timers.check_chains_soon();
                self.timers.dump_soon();
            }
        }
        Changes::default()
    }

    /// Applies a complete read of the kernel.
    pub(super) fn apply_dump(&mut self, read: KernelState, desired: &KernelState) {
        let pairs = self.actual.merge_join(&read);
        let changed = pairs.filter_map(|(had, has)| had.filter(|_| had != has).cloned());
        let changed: Vec<_> = changed.collect();
        self.actual.update(read);
        for had in &changed {
            self.note_disturbed(had, desired);
        }
    }

    /// Records that the kernel held `had` as desired, and does not any more.
    pub(super) fn note_disturbed(&mut self, had: &Entry, desired: &KernelState) {
        let key = had.key();
        let is_met = |have: &Entry| desired.get(&key).is_some_and(|want| want.is_met_by(have));
        let is_lost = is_met(had) && !self.actual.get(&key).is_some_and(is_met);
        // A renewal expires by itself.
        if is_lost && !matches!(had, Entry::Renewal(_)) {
            self.disturbed.insert(key);
        }
        self.check_used_by(had);
    }

    /// The removal of what a former route or neighbour has sent by waited for that.
    pub(super) fn check_used_by(&mut self, former: &Entry) {
        let used = match former {
            Entry::Route(route) => uses(route, &self.actual),
            Entry::Neighbour(it) => vec![Key::Fdb(it.link.clone(), it.mac)],
            _ => Vec::new(),
        };
        for key in used {
            self.timers.check_unused(key);
        }
    }

    fn entry_put(&mut self, entry: Entry, scope: &Scope, desired: &KernelState) -> Changes {
        if !scope.covers(&entry) || self.actual.get(&entry.key()) == Some(&entry) {
            return Changes::default();
        }
        // The host facts include whether routes may use nexthop objects with tweed's IDs.
        let facts = entry.is_foreign_nexthop();
        let changes = Changes { facts, ..Changes::of_keys([entry.key()]) };
        if let Some(had) = self.actual.insert(entry) {
            self.note_disturbed(&had, desired);
        }
        changes
    }

    fn entry_lost(&mut self, key: Key, desired: &KernelState) -> Changes {
        let lost = self.actual.remove(&key);
        let was_there = lost.is_some();
        if let Some(had) = lost {
            self.note_disturbed(&had, desired);
        }
        // When a link loses its last address, the kernel removes its IPv4 routes and neighbours
        // without notification. When a nexthop object is removed, the kernel removes the routes
        // that use it likewise.
        let removes_more = match key {
            Key::Address(..) => true,
            Key::Nexthop(_) => was_there,
            _ => false,
        };
        if removes_more {
            self.timers.dump_soon();
        }
        Changes::of_keys(was_there.then_some(key))
    }

    fn link_changed(&mut self, link: &LinkName, scope: &Scope, inputs: &Inputs) -> Changes {
        let is_underlay = scope.underlay.as_ref().is_none_or(|underlay| underlay == link);
        let is_former = inputs.bridges.iter().any(|bridge| bridge.link == *link);
        if is_underlay {
            self.refused.end_all_backoff();
        } else {
            self.refused.end_backoff_on(link);
        }
        if is_underlay || scope.tunnels.contains(link) {
            self.timers.dump_soon();
        }
        let facts = is_underlay || is_former || inputs.no_node.is_some();
        Changes { facts, ..Changes::default() }
    }
}

/// Operations that the kernel refused. Each remains a difference and is retried with its own
/// backoff.
#[derive(Debug, Default)]
pub(super) struct RefusedOps(BTreeMap<Key, RefusedOp>);

#[derive(Debug)]
struct RefusedOp {
    op: Op,
    text: String,
    /// Consecutive refusals.
    times: u32,
    again: Instant,
}

impl RefusedOps {
    /// Records a refusal; returns when to retry.
    pub(super) fn note(&mut self, refused: &Refused) -> Instant {
        let key = refused.op.entry().key();
        let times = self.0.get(&key).map_or(0, |refusal| refusal.times);
        let again = Instant::now() + backoff(times);
        let (op, text) = (refused.op.clone(), refused.to_string());
        self.0.insert(key, RefusedOp { op, text, times: times + 1, again });
        again
    }

    /// `key` now matches the desired state, or is no longer desired.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// `link` has changed: operations refused on it may be retried at the next diff. The link
    /// itself keeps its backoff, because a refused change of it may have caused the notification.
    pub(super) fn end_backoff_on(&mut self, link: &LinkName) {
        for (key, refusal) in &mut self.0 {
            if !matches!(key, Key::Link(_)) && refusal.op.entry().link() == Some(link) {
                refusal.again = Instant::now();
            }
        }
    }

    /// Ends all backoffs after a change of the underlay, which may affect every entry. An operation
    /// that is refused again continues with its previous delay.
    pub(super) fn end_all_backoff(&mut self) {
        self.0.values_mut().for_each(|refusal| refusal.again = Instant::now());
    }

    pub(super) fn retain(&mut self, differs: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| differs(key));
    }

    /// Whether the backoff of `key` has not expired yet.
    pub(super) fn is_waiting(&self, key: &Key) -> bool {
        self.0.get(key).is_some_and(|refusal| refusal.again > Instant::now())
    }

    /// Whether the backoff of exactly this `op` has not expired; another operation on the same key
    /// may be tried.
    pub(super) fn holds_back(&self, op: &Op) -> bool {
        let refusal = self.0.get(&op.entry().key());
        refusal.is_some_and(|refusal| refusal.op == *op && refusal.again > Instant::now())
    }

    /// The refused keys with the kernel's reasons.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.0.iter().map(|(key, refusal)| (key, refusal.text.as_str()))
    }
}
