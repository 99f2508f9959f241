//! The operations that change the actual kernel state into the desired one, in order.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The kernel has no entry of this key.
    Create(Arc<Entry>),
    /// The kernel has a different entry of this key. It is replaced in one request, or corrected in
    /// place.
    Replace(Arc<Entry>),
    /// Removes exactly this entry. An entry that is already missing counts as success.
    Remove(Arc<Entry>),
}

impl Op {
    pub fn entry(&self) -> &Entry {
        match self {
            Self::Create(entry) | Self::Replace(entry) | Self::Remove(entry) => entry,
        }
    }

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

/// The operations that change `actual` into `desired`. Devices that must be recreated are removed
/// first. Missing and wrong entries follow in order of dependency. Owned entries that are not
/// desired are removed last, in reverse order.
pub fn diff(desired: &KernelState, actual: &KernelState, scope: &Scope) -> Vec<Op> {
    let links = desired.local().filter(|want| matches!(want.as_ref(), Entry::Link(_)));
    let recreated: Vec<&Arc<Entry>> =
        links.filter_map(|want| recreated(want, actual.shared(&want.key())?)).collect();
    let gone: BTreeSet<&LinkName> = recreated.iter().filter_map(|entry| entry.link()).collect();
    let replaced_tables = replaced_tables(desired, actual, scope);
    let stays = |entry: &&Arc<Entry>| {
        !entry.link().is_some_and(|link| gone.contains(link))
            && !entry.table().is_some_and(|table| replaced_tables.contains(table.as_ref()))
    };
    let mut ops: Vec<Op> = recreated.iter().copied().cloned().map(Op::Remove).collect();
    let mut removals = Vec::new();
    for (want, have) in desired.merge_join(actual) {
        match (want, have.filter(stays)) {
            (Some(want), have) => ops.extend(put(want, have)),
            (None, Some(have)) => removals.extend(removal(have, scope)),
            (None, None) => {}
        }
    }
    ops.extend(removals.into_iter().rev());
    ops
}

/// The operation for one key. It equals that of [`diff`], except for links, tables and the entries
/// that the kernel removes together with one of them.
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

/// The operations that remove everything tweed owns from `actual`, devices last, and that correct
/// the entries in `remaining`. A device that is not a VXLAN device is kept: tweed did not create
/// it.
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

/// The operations that remove the bridges among `actual`, and with each its addresses and routes.
pub fn bridge_removals(actual: &KernelState) -> Vec<Op> {
    let is_bridge = |entry: &&Arc<Entry>| {
        matches!(entry.as_ref(), Entry::Link(Link { kind: LinkKind::Other(kind), .. })
            if kind == "bridge")
    };
    actual.iter().filter(is_bridge).cloned().map(Op::Remove).collect()
}

/// The operations that change `actual` into the state that flanneld expects, without packet loss.
///
/// Routes of tweed are changed to flannel's form in place. Entries that flanneld neither needs nor
/// could remove are removed. All other entries are kept, because peers may have joined since they
/// were read. Entries in `remaining` are corrected.
pub fn handover_ops(remaining: &KernelState, actual: &KernelState, scope: &Scope) -> Vec<Op> {
    let is_there = |entry: &&Arc<Entry>| actual.get(&entry.key()).is_some();
    let kept = actual.iter().filter_map(|entry| for_flanneld(entry, actual, scope));
    let desired = kept.chain(remaining.iter().filter(is_there).cloned());
    diff(&desired.collect(), actual, scope)
}

/// The form that flanneld uses for `entry`; none if it has no such entry.
fn for_flanneld(entry: &Arc<Entry>, actual: &KernelState, scope: &Scope) -> Option<Arc<Entry>> {
    match entry.as_ref() {
        // Connections keep their source address as long as one link has it.
        Entry::Address(address) if is_on_tunnel_too(address, actual, scope) => None,
        Entry::Chain(chain) if !chain.name.base.is_flannels() => None,
        Entry::Route(route) if route.protocol == PROTOCOL => flannels_route(route, actual),
        Entry::Table(_) | Entry::Renewal(_) | Entry::Element(_) | Entry::Nexthop(_) => None,
        _ => Some(Arc::clone(entry)),
    }
}

/// Whether a tunnel device also has this address of the loopback.
fn is_on_tunnel_too(address: &Address, actual: &KernelState, scope: &Scope) -> bool {
    let on = |link: &LinkName| Entry::Address(Address { link: link.clone(), ..address.clone() });
    let mut tunnels = scope.tunnels.iter().map(|link| on(link).key());
    address.link.is_loopback() && tunnels.any(|key| actual.get(&key).is_some())
}

/// The route without tweed's protocol and with its own gateway; none if it has no gateway, since
/// such a route leads to no peer.
fn flannels_route(route: &Route, actual: &KernelState) -> Option<Arc<Entry>> {
    let nexthop = route.nexthop.and_then(|id| actual.get(&Key::Nexthop(id)));
    let (gateway, link, onlink) = match nexthop {
        Some(Entry::Nexthop(nexthop)) => (nexthop.gateway, nexthop.link.clone(), nexthop.onlink),
        _ => (route.gateway, route.link.clone(), route.onlink),
    };
    let protocol = PROTOCOL_BOOT;
    let route = Route { gateway, link, onlink, nexthop: None, protocol, ..route.clone() };
    route.gateway.is_some().then(|| Arc::new(Entry::Route(route)))
}

/// The tables that are replaced or removed: their elements are removed with them.
fn replaced_tables<'a>(
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

/// The device that has the name of `want` and cannot be corrected in place.
fn recreated<'a>(want: &Entry, have: &'a Arc<Entry>) -> Option<&'a Arc<Entry>> {
    let (Entry::Link(want), Entry::Link(old)) = (want, have.as_ref()) else { return None };
    (want != old && !is_correctable(old, want)).then_some(have)
}

fn is_correctable(have: &Link, want: &Link) -> bool {
    match (&have.kind, &want.kind) {
        (LinkKind::Vxlan(have), LinkKind::Vxlan(want)) => {
            // Only `learning` can be changed on an existing device.
            Vxlan { learning: want.learning, ..Vxlan::clone(have) } == **want
        }
        (LinkKind::Vxlan(_) | LinkKind::Other(_), _) => false,
    }
}
