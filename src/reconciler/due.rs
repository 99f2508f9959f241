//! What is to be done now: the difference, less what must wait.

use std::collections::BTreeSet;

use super::{Differences, Reconciler};
use crate::kernel::state::{Entry, KernelState, Key, NexthopId};
use crate::kernel::{Kernel, Op, diff, diff_key};

impl<K: Kernel> Reconciler<K> {
    /// What is to be done now: the difference, less the removals that must wait.
    pub(super) fn due_ops(&mut self) -> Vec<Op> {
        self.retire();
        let ops = match std::mem::take(&mut self.stale.differences) {
            Differences::In(keys) if !keys.iter().any(takes_others_along) => self.diff_keys(&keys),
            Differences::In(_) | Differences::Anywhere => self.diff_all(),
        };
        let mut due: Vec<Op> = ops.into_iter().filter(|op| self.is_due(op)).collect();
        spare_used_nexthops(&mut due, &self.actual);
        due.into_iter().inspect(|op| tracing::debug!("{op}")).collect()
    }

    fn diff_all(&mut self) -> Vec<Op> {
        let (desired, actual, scope) = (self.desired.state(), &self.actual, &self.scope);
        let differs = |key: &Key| diff_key(key, desired, actual, scope).is_some();
        self.refused.retain(differs);
        self.agenda.retain(differs);
        diff(desired, actual, scope)
    }

    fn diff_keys(&mut self, keys: &BTreeSet<Key>) -> Vec<Op> {
        let (mut puts, mut removals) = (Vec::new(), Vec::new());
        for key in keys {
            match diff_key(key, self.desired.state(), &self.actual, &self.scope) {
                Some(op @ (Op::Create(_) | Op::Replace(_))) => puts.push(op),
                Some(op @ Op::Remove(_)) => removals.push(op),
                None => {
                    self.agenda.forget(key);
                    self.refused.forget(key);
                }
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
            Op::Remove(entry) => self.may_go(entry),
        }
    }

    fn may_go(&mut self, entry: &Entry) -> bool {
        let key = entry.key();
        match entry {
            // It stands in its successor's way.
            Entry::Link(_) if self.desired.state().get(&key).is_some() => true,
            Entry::Link(_)
            | Entry::Renewal(_)
            | Entry::Element(_)
            | Entry::Fdb(_)
            | Entry::Neighbour(_)
            | Entry::Nexthop(_) => self.inputs.may_remove() && self.agenda.has_lingered(&key),
            Entry::Table(_) | Entry::Chain(_) => {
                self.inputs.may_remove() && self.rules_are_met() && self.agenda.has_lingered(&key)
            }
            Entry::ReversePath(_)
            | Entry::AcceptRa(_)
            | Entry::TxChecksum(_)
            | Entry::Address(_)
            | Entry::Route(_) => self.inputs.may_remove(),
        }
    }
}

/// Whether other entries go with the one of this key.
const fn takes_others_along(key: &Key) -> bool {
    matches!(key, Key::Link(_) | Key::Table(_))
}

/// Takes out of `ops` the nexthop objects to which a route refers: the kernel would remove it too.
/// All are looked for at once, for thousands may go together.
fn spare_used_nexthops(ops: &mut Vec<Op>, actual: &KernelState) {
    let leaving: BTreeSet<NexthopId> = ops.iter().filter_map(removed_nexthop).collect();
    if leaving.is_empty() {
        return;
    }
    let routes = actual.entries().rev().map_while(|entry| match entry {
        Entry::Route(route) => Some(route),
        _ => None,
    });
    let used = routes.filter_map(|route| route.nexthop).filter(|id| leaving.contains(id));
    let used: BTreeSet<NexthopId> = used.collect();
    ops.retain(|op| removed_nexthop(op).is_none_or(|id| !used.contains(&id)));
}

fn removed_nexthop(op: &Op) -> Option<NexthopId> {
    match op {
        Op::Remove(entry) => match entry.as_ref() {
            Entry::Nexthop(nexthop) => Some(nexthop.id),
            _ => None,
        },
        Op::Create(_) | Op::Replace(_) => None,
    }
}
