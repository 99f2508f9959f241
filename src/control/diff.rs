//! The difference between desired and actual state, without removals that have to wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::Control;
use super::changes::Differences;
use crate::model::entry::{Entry, KernelState, Key, Link, LinkKind, Removal, Route, SettingKind};
use crate::plan::diff::{Op, diff, diff_key};

impl Control {
    /// The operations to apply now.
    pub(super) fn select_ops(&mut self) -> Vec<Op> {
        self.changes |= self.derived.retire(&self.inputs, &self.state.actual);
        // Removing a link or a table also removes other entries.
        let removes_others = |key: &Key| matches!(key, Key::Link(_) | Key::Table(_));
        let ops = match std::mem::take(&mut self.changes.differences) {
            Differences::In(keys) if !keys.iter().any(removes_others) => self.diff_keys(&keys),
            Differences::In(_) | Differences::Anywhere => self.diff_all(),
        };
        let recreated = self.recreated(&ops);
        let ops: Vec<Op> = ops.into_iter().map(|op| self.setting_up(op)).collect();
        let mut due: Vec<Op> =
            ops.into_iter().filter(|op| self.check_due(op, &recreated)).collect();
        keep_used(&mut due, &self.state.actual);
        due.into_iter().inspect(|op| tracing::debug!("{op}")).collect()
    }

    fn diff_all(&mut self) -> Vec<Op> {
        let (desired, actual, scope) =
            (self.derived.desired.state(), &self.state.actual, &self.derived.scope);
        let differs = |key: &Key| diff_key(key, desired, actual, scope).is_some();
        self.state.refused.retain(differs);
        self.state.timers.retain(differs);
        self.state.disturbed.retain(differs);
        diff(desired, actual, scope)
    }

    fn diff_keys(&mut self, keys: &BTreeSet<Key>) -> Vec<Op> {
        let (mut puts, mut removals) = (Vec::new(), Vec::new());
        let (desired, scope) = (self.derived.desired.state(), &self.derived.scope);
        for key in keys {
            match diff_key(key, desired, &self.state.actual, scope) {
                Some(op @ (Op::Create(_) | Op::Replace(_))) => puts.push(op),
                Some(op @ Op::Remove(_)) => removals.push(op),
                None => {
                    self.state.timers.forget(key);
                    self.state.refused.forget(key);
                    self.state.disturbed.remove(key);
                }
            }
        }
        puts.extend(removals.into_iter().rev());
        puts
    }

    /// Starts the delay of `op` if it has one; returns whether `op` can be applied now. An operation that
    /// the kernel refused is retried only after its own backoff, whatever triggered this diff.
    fn check_due(&mut self, op: &Op, recreated: &BTreeSet<Key>) -> bool {
        let is_due = match op {
            Op::Create(entry) | Op::Replace(entry) if self.makes_strict(entry) => {
                self.state.timers.check_delay(&entry.key()) && self.may_put(entry, recreated)
            }
            Op::Create(entry) | Op::Replace(entry) => {
                self.state.timers.forget(&entry.key());
                self.may_put(entry, recreated)
            }
            Op::Remove(entry) => self.check_removal(entry),
        };
        is_due && !self.state.refused.holds_back(op)
    }

    /// Whether `entry` makes a loose reverse-path filter strict: packets of peers that still use the
    /// other path would be dropped.
    fn makes_strict(&self, entry: &Entry) -> bool {
        let is_strict = |entry: &Entry| matches!(entry, Entry::Setting(it) if it.is_on(SettingKind::ReversePath));
        is_strict(entry) && self.state.actual.get(&entry.key()).is_some()
    }

    /// Whether `entry` may be created, or may replace the existing one. An entry that is already
    /// correct is kept if its device or table is not being recreated.
    fn may_put(&self, entry: &Entry, recreated: &BTreeSet<Key>) -> bool {
        let key = entry.key();
        let may_put = match self.state.actual.get(&key) {
            None => true,
            Some(_) if recreated.contains(&key) || is_on(entry, recreated) => true,
            Some(held) => {
                let may_replace = self.inputs.may_replace_with(entry) || only_sets_up(entry, held);
                !entry.is_met_by(held) && may_replace
            }
        };
        may_put && !self.uses_foreign_nexthop(entry)
    }

    /// A tunnel device that may not be replaced yet is set up as it is: while it is down, it drops
    /// everything.
    fn setting_up(&self, op: Op) -> Op {
        let (Op::Create(entry) | Op::Replace(entry)) = &op else { return op };
        let Entry::Link(_) = entry.as_ref() else { return op };
        match self.state.actual.get(&entry.key()) {
            Some(Entry::Link(held)) if is_down(held) && !self.inputs.may_replace_with(entry) => {
                Op::Replace(Arc::new(Entry::Link(Link { up: true, ..held.clone() })))
            }
            _ => op,
        }
    }

    /// The devices and tables that `ops` recreate; the entries on them are lost in between.
    fn recreated(&self, ops: &[Op]) -> BTreeSet<Key> {
        let desired = self.derived.desired.state();
        let is_recreated = |op: &&Op| match (op, op.entry()) {
            (Op::Replace(_), Entry::Table(_)) => true,
            (Op::Remove(_), link @ Entry::Link(_)) => desired.get(&link.key()).is_some(),
            _ => false,
        };
        let recreated = ops.iter().filter(is_recreated).map(Op::entry);
        recreated.filter(|entry| self.inputs.may_replace_with(entry)).map(Entry::key).collect()
    }

    /// Whether `entry` is, or is a route that uses, a nexthop object that is now foreign.
    fn uses_foreign_nexthop(&self, entry: &Entry) -> bool {
        let id = match entry {
            Entry::Nexthop(nexthop) => Some(nexthop.id),
            Entry::Route(route) => route.nexthop,
            _ => None,
        };
        let held = id.and_then(|id| self.state.actual.get(&Key::Nexthop(id)));
        held.is_some_and(Entry::is_foreign_nexthop)
    }

    fn check_removal(&mut self, entry: &Entry) -> bool {
        let key = entry.key();
        if matches!(entry, Entry::Link(_)) && self.derived.desired.state().get(&key).is_some() {
            // The device must be removed before it can be recreated.
            return self.inputs.may_replace_with(entry);
        }
        self.inputs.may_remove()
            && match entry.removal() {
                Removal::AtOnce => true,
                Removal::Delayed => self.state.timers.check_delay(&key),
                Removal::AfterRules => self.rules_are_met() && self.state.timers.check_delay(&key),
            }
    }

    /// Whether all masquerading rules are in place. Until then, the rules of another firewall or of
    /// a former daemon are still needed.
    pub(super) fn rules_are_met(&self) -> bool {
        self.inputs.own.is_some() && self.is_met(Entry::is_rules)
    }

    /// New rules were applied: check whether the old rules can be removed now.
    pub(super) fn check_old_rules(&mut self) {
        let rules = self.state.actual.local().filter(|entry| entry.is_rules());
        let keys = rules.map(|entry| entry.key());
        let desired = self.derived.desired.state();
        for key in keys.filter(|key| desired.get(key).is_none()) {
            self.state.timers.check_again(key, Instant::now());
        }
    }
}

/// Whether `entry` is on one of these devices or in one of these tables.
fn is_on(entry: &Entry, recreated: &BTreeSet<Key>) -> bool {
    if recreated.is_empty() {
        return false;
    }
    let device = entry.link().map(|link| Key::Link(link.clone()));
    let table = entry.table().map(|table| Key::Table(table.clone()));
    device.into_iter().chain(table).any(|key| recreated.contains(&key))
}

fn is_down(link: &Link) -> bool {
    !link.up && matches!(link.kind, LinkKind::Vxlan(_))
}

/// Whether `entry` is the tunnel device `held`, but not down.
fn only_sets_up(entry: &Entry, held: &Entry) -> bool {
    match (entry, held) {
        (Entry::Link(wanted), Entry::Link(held)) => {
            is_down(held) && *wanted == Link { up: true, ..held.clone() }
        }
        _ => false,
    }
}

/// Drops from `ops` the removal of what a route still uses: the kernel would remove the route together
/// with its nexthop object, and one that it refuses to change still sends to its neighbour. One pass over
/// the routes, because thousands of entries may be removed together.
fn keep_used(ops: &mut Vec<Op>, actual: &KernelState) {
    let removed = ops.iter().filter(|op| matches!(op, Op::Remove(_))).map(|op| op.entry().key());
    let leaving: BTreeSet<Key> = removed.collect();
    let may_be_used =
        |key: &Key| matches!(key, Key::Nexthop(_) | Key::Neighbour(..) | Key::Fdb(..));
    if !leaving.iter().any(may_be_used) {
        return;
    }
    let mut used = BTreeSet::new();
    for route in actual.routes() {
        let leaves = leaving.contains(&Key::Route(route.destination, route.metric));
        let is_kept =
            |key: &Key| leaving.contains(key) && (!leaves || matches!(key, Key::Nexthop(_)));
        used.extend(uses(route, actual).into_iter().filter(is_kept));
    }
    ops.retain(|op| !matches!(op, Op::Remove(_)) || !used.contains(&op.entry().key()));
}

/// The nexthop object by which `route` sends, its neighbour, and the forwarding entry of that.
pub(super) fn uses(route: &Route, actual: &KernelState) -> Vec<Key> {
    let nexthop = route.nexthop.map(Key::Nexthop);
    let (link, gateway) = match nexthop.as_ref().map(|key| actual.get(key)) {
        Some(Some(Entry::Nexthop(nexthop))) => (&nexthop.link, nexthop.gateway),
        Some(_) => (&None, None),
        None => (&route.link, route.gateway),
    };
    let neighbour = link.clone().zip(gateway).map(|(link, gateway)| Key::Neighbour(link, gateway));
    let forwarding = neighbour.as_ref().and_then(|key| match actual.get(key)? {
        Entry::Neighbour(it) => Some(Key::Fdb(it.link.clone(), it.mac)),
        _ => None,
    });
    nexthop.into_iter().chain(neighbour).chain(forwarding).collect()
}
