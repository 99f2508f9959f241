//! The difference between what the kernel should hold and what it holds, in the order to carry it out.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::scope::Scope;
use crate::model::entry::{
    Address, Entry, KernelState, Key, Link, LinkKind, LinkName, PROTOCOL, PROTOCOL_BOOT, Route,
    TableName, Vxlan,
};

/// One change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The kernel has no entry of this key.
    Create(Arc<Entry>),
    /// The kernel has another entry of this key; it is replaced in one request, or corrected in place.
    Replace(Arc<Entry>),
    /// Removes exactly this entry. That it is gone already counts as success.
    Remove(Arc<Entry>),
}

impl Op {
    pub fn entry(&self) -> &Entry {
        match self {
            Self::Create(entry) | Self::Replace(entry) | Self::Remove(entry) => entry,
        }
    }

    /// What it does, in a word.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Replace(_) => "replace",
            Self::Remove(_) => "remove",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create(_) => "+ ",
            Self::Replace(_) => "~ ",
            Self::Remove(_) => "- ",
        })?;
        self.entry().fmt(f)
    }
}

/// What makes `actual` into `desired`: devices that must be made anew go first, then whatever is
/// missing or wrong in the order of programming, then what is ours and unwanted, backwards.
pub fn diff(desired: &KernelState, actual: &KernelState, scope: &Scope) -> Vec<Op> {
    // Links come first in the order of keys.
    let links = desired.entries().take_while(|want| matches!(want, Entry::Link(_)));
    let doomed: Vec<&Arc<Entry>> =
        links.filter_map(|want| doomed(want, actual.shared(&want.key())?)).collect();
    let gone: BTreeSet<&LinkName> = doomed.iter().filter_map(|entry| entry.link()).collect();
    let emptied = emptied(desired, actual, scope);
    let stays = |entry: &&Arc<Entry>| {
        !entry.link().is_some_and(|link| gone.contains(link))
            && !entry.table().is_some_and(|table| emptied.contains(table.as_ref()))
    };
    let mut ops: Vec<Op> = doomed.iter().copied().cloned().map(Op::Remove).collect();
    let mut removals = Vec::new();
    for (want, have) in desired.beside(actual) {
        match (want, have.filter(stays)) {
            (Some(want), have) => ops.extend(put(want, have)),
            (None, Some(have)) => removals.extend(removal(have, scope)),
            (None, None) => {}
        }
    }
    ops.extend(removals.into_iter().rev());
    ops
}

/// The difference in one key; for any key but that of a link or a table, and what goes with such a
/// one, the same as [`diff`] would say of it.
pub fn diff_key(
    key: &Key,
    desired: &KernelState,
    actual: &KernelState,
    scope: &Scope,
) -> Option<Op> {
    match (desired.shared(key), actual.shared(key)) {
        (Some(want), have) => put(want, have),
        (None, Some(have)) => removal(have, scope),
        (None, None) => None,
    }
}

/// What removes all that is ours from `actual`, the devices last, and corrects what is `remaining`.
/// A device that is no tunnel was not made by us, whatever its name.
pub fn cleanup_ops(remaining: &KernelState, actual: &KernelState, scope: &Scope) -> Vec<Op> {
    let is_tunnel = |entry: &&Arc<Entry>| {
        matches!(entry.as_ref(), Entry::Link(Link { name, kind: LinkKind::Vxlan(_), .. })
            if scope.tunnels.contains(name))
    };
    let tunnels: Vec<&Arc<Entry>> = actual.iter().filter(is_tunnel).collect();
    let goes = |entry: &Entry| tunnels.iter().any(|tunnel| tunnel.link() == entry.link());
    let mut remaining = remaining.clone();
    remaining.retain(|entry| actual.get(&entry.key()).is_some() && !goes(entry));
    let removals = tunnels.iter().copied().cloned().map(Op::Remove);
    diff(&remaining, actual, scope).into_iter().chain(removals).collect()
}

/// What makes `actual` as flanneld would have it, without a moment in which a packet has no path:
/// routes of ours get its form in place, and what it neither needs nor could remove goes. Of all
/// other entries none is touched: peers may have come since they were read. What is `remaining` is
/// corrected.
pub fn handover_ops(remaining: &KernelState, actual: &KernelState, scope: &Scope) -> Vec<Op> {
    let is_there = |entry: &&Arc<Entry>| actual.get(&entry.key()).is_some();
    let kept = actual.iter().filter_map(|entry| for_flanneld(entry, actual, scope));
    let desired = kept.chain(remaining.iter().filter(is_there).cloned());
    diff(&desired.collect(), actual, scope)
}

/// What flanneld has in the place of `entry`, if anything.
fn for_flanneld(entry: &Arc<Entry>, actual: &KernelState, scope: &Scope) -> Option<Arc<Entry>> {
    match entry.as_ref() {
        // Connections keep their source as long as one link has it.
        Entry::Address(address) if is_on_tunnel_too(address, actual, scope) => None,
        Entry::Chain(chain) if !chain.name.base.is_flannels() => None,
        Entry::Route(route) if route.protocol == PROTOCOL => plain(route, actual),
        Entry::Table(_) | Entry::Renewal(_) | Entry::Element(_) | Entry::Nexthop(_) => None,
        _ => Some(Arc::clone(entry)),
    }
}

/// Whether a tunnel device has the address that is on the loopback.
fn is_on_tunnel_too(address: &Address, actual: &KernelState, scope: &Scope) -> bool {
    let on = |link: &LinkName| Entry::Address(Address { link: link.clone(), ..address.clone() });
    let mut tunnels = scope.tunnels.iter().map(|link| on(link).key());
    address.link.is_loopback() && tunnels.any(|key| actual.get(&key).is_some())
}

/// Without a mark, and with a gateway of its own. A route without any leads to no peer.
fn plain(route: &Route, actual: &KernelState) -> Option<Arc<Entry>> {
    let nexthop = route.nexthop.and_then(|id| actual.get(&Key::Nexthop(id)));
    let (gateway, link, onlink) = match nexthop {
        Some(Entry::Nexthop(nexthop)) => (nexthop.gateway, nexthop.link.clone(), nexthop.onlink),
        _ => (route.gateway, route.link.clone(), route.onlink),
    };
    let protocol = PROTOCOL_BOOT;
    let route = Route { gateway, link, onlink, nexthop: None, protocol, ..route.clone() };
    route.gateway.is_some().then(|| Arc::new(Entry::Route(route)))
}

/// The tables that are replaced or removed, and their elements with them.
fn emptied<'a>(
    desired: &KernelState,
    actual: &'a KernelState,
    scope: &Scope,
) -> BTreeSet<&'a TableName> {
    let goes = |have: &Entry| match desired.get(&have.key()) {
        Some(want) => !want.is_met_by(have),
        None => scope.owns(have),
    };
    let tables = actual.local().filter_map(|have| match have.as_ref() {
        Entry::Table(table) if goes(have) => Some(table.name.as_ref()),
        _ => None,
    });
    tables.collect()
}

fn put(want: &Arc<Entry>, have: Option<&Arc<Entry>>) -> Option<Op> {
    match have {
        None => Some(Op::Create(Arc::clone(want))),
        Some(have) if want.is_met_by(have) => None,
        Some(_) => Some(Op::Replace(Arc::clone(want))),
    }
}

fn removal(have: &Arc<Entry>, scope: &Scope) -> Option<Op> {
    scope.owns(have).then(|| Op::Remove(Arc::clone(have)))
}

/// The device that stands in the way of `want` and cannot be corrected in place.
fn doomed<'a>(want: &Entry, have: &'a Arc<Entry>) -> Option<&'a Arc<Entry>> {
    match (want, have.as_ref()) {
        (Entry::Link(want), Entry::Link(old)) if want != old && !is_correctable(old, want) => {
            Some(have)
        }
        _ => None,
    }
}

fn is_correctable(have: &Link, want: &Link) -> bool {
    match (&have.kind, &want.kind) {
        (LinkKind::Vxlan(have), LinkKind::Vxlan(want)) => {
            // Whether it learns can be changed on a live device; nothing else of this can.
            Vxlan { learning: want.learning, ..Vxlan::clone(have) } == **want
        }
        (LinkKind::Vxlan(_) | LinkKind::Other(_), _) => false,
    }
}
