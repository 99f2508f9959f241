//! The difference between the desired and the actual state of the kernel.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tweed::model::entry::{
    BasePolicy, Entry, KernelState, Key, Link, LinkKind, LinkName, PROTOCOL, PROTOCOL_BOOT, Route,
};
use tweed::model::lease::Lease;
use tweed::model::node_inputs::NodeInputs;
use tweed::model::prefix::Prefix;
use tweed::plan::diff::{Op, diff, diff_key, handover_ops};
use tweed::plan::scope::Scope;

use crate::any::{kernel, node, peers, planned};
use crate::cases;

/// A plan, and a kernel in an unrelated state.
#[derive(Debug)]
struct Case {
    desired: KernelState,
    actual: KernelState,
    scope: Scope,
}

fn case() -> impl Strategy<Value = Case> {
    (node(), peers(), kernel()).prop_map(|(local, peers, actual)| {
        let scope = scope(&local, &peers);
        let mut actual = actual;
        actual.retain(|entry| scope.covers(entry));
        Case { desired: planned(&local, &peers), actual, scope }
    })
}

fn scope(local: &NodeInputs, peers: &[Lease]) -> Scope {
    let gateways = peers.iter().flat_map(|peer| &peer.endpoints).map(|e| e.public_ip);
    local.scope(gateways.collect())
}

impl Case {
    fn ops(&self) -> Vec<Op> {
        diff(&self.desired, &self.actual, &self.scope)
    }

    /// The kernel before the first op, between any two, and after the last.
    fn states(&self) -> Vec<KernelState> {
        let mut states = vec![self.actual.clone()];
        for op in self.ops() {
            let mut state = states.last().unwrap().clone();
            carry_out(&op, &mut state);
            states.push(state);
        }
        states
    }

    fn end(&self) -> KernelState {
        self.states().pop().unwrap()
    }

    /// Whether a table is recreated or removed, with all its elements.
    fn empties_tables(&self) -> bool {
        let goes = |op: &Op| !matches!(op, Op::Create(_)) && matches!(op.entry(), Entry::Table(_));
        self.ops().iter().any(goes)
    }

    /// The devices that are recreated.
    fn doomed(&self) -> BTreeSet<LinkName> {
        let ops = self.ops();
        let removed = ops.iter().filter_map(|op| match (op, op.entry()) {
            (Op::Remove(_), Entry::Link(link)) => Some(link.name.clone()),
            _ => None,
        });
        removed.collect()
    }
}

/// Whether another program made `entry`, by the design: an independent second statement of it.
fn is_foreign(entry: &Entry, scope: &Scope) -> bool {
    match entry {
        // A device is removed once no peer needs it, which no case has.
        Entry::Link(_) | Entry::Setting(_) => true,
        Entry::Address(it) => !scope.networks.iter().any(|net| net.contains(it.address)),
        // Pods need rules that accept their packets before the host drops them.
        Entry::Chain(chain) => chain.base_policy != BasePolicy::Accept,
        Entry::Neighbour(neighbour) => !neighbour.permanent,
        // Tables of other names are not read.
        Entry::Table(_) | Entry::Renewal(_) | Entry::Element(_) | Entry::Fdb(_) => false,
        Entry::Nexthop(nexthop) => nexthop.protocol != PROTOCOL,
        Entry::Route(route) if route.protocol == PROTOCOL => false,
        Entry::Route(route) => !is_flannels(route, scope),
    }
}

/// Whether flannel makes such routes: into the tunnel, or by the public IP of a peer.
fn is_flannels(route: &Route, scope: &Scope) -> bool {
    let into_tunnel = route.link.as_ref().is_some_and(|link| link.as_str().starts_with("flannel"));
    let gateway = if into_tunnel {
        route.onlink && route.gateway == Some(route.destination.base())
    } else {
        route.gateway.is_some_and(|gateway| scope.gateways.contains(&gateway))
    };
    gateway && route.protocol == PROTOCOL_BOOT
}

/// The effect of `op` on the kernel; panics where the kernel would refuse it.
fn carry_out(op: &Op, state: &mut KernelState) {
    let held = state.get(&op.entry().key());
    match op {
        Op::Create(entry) => {
            assert_eq!(held, None, "{op}");
            assert_has_device(entry, state);
        }
        Op::Replace(entry) => {
            assert!(held.is_some(), "{op}");
            assert_has_device(entry, state);
        }
        Op::Remove(entry) => assert_eq!(held, Some(entry.as_ref()), "{op}"),
    }
    change(op, state);
}

/// The effect of `op`, whether the kernel would refuse it or not.
fn change(op: &Op, state: &mut KernelState) {
    let key = op.entry().key();
    match op {
        Op::Create(entry) => drop(state.insert(entry.clone())),
        Op::Replace(entry) => {
            if let Key::Table(name) = &key {
                state.retain(|entry| !entry.is_element_of(name));
            }
            state.insert(entry.clone());
        }
        Op::Remove(_) => {
            match &key {
                Key::Link(link) => state.retain(|entry| entry.link() != Some(link)),
                Key::Table(name) => {
                    state.retain(|entry| !entry.is_element_of(name));
                    state.remove(&key);
                }
                _ => drop(state.remove(&key)),
            }
            remove_routes_without_nexthop(state);
        }
    }
}

/// The kernel removes the routes of a nexthop object with it, and the object with its link.
pub(crate) fn remove_routes_without_nexthop(state: &mut KernelState) {
    let nexthops: BTreeSet<Key> =
        state.keys().filter(|key| matches!(key, Key::Nexthop(_))).collect();
    state.retain(|entry| has_nexthop(entry, |nexthop| nexthops.contains(nexthop)));
}

fn has_nexthop(entry: &Entry, exists: impl FnOnce(&Key) -> bool) -> bool {
    match entry {
        Entry::Route(Route { nexthop: Some(id), .. }) => exists(&Key::Nexthop(*id)),
        _ => true,
    }
}

fn assert_has_device(entry: &Entry, state: &KernelState) {
    if let Some(table) = entry.table() {
        let table = Key::Table(table.clone());
        assert!(state.get(&table).is_some(), "{entry} before its table");
    }
    let is_there = |nexthop: &Key| state.get(nexthop).is_some();
    assert!(has_nexthop(entry, is_there), "{entry} before its nexthop object");
    let device = entry.link().filter(|link| link.as_str().starts_with("flannel"));
    let device = device.filter(|_| !matches!(entry, Entry::Link(_)));
    let is_up = |link: &LinkName| {
        matches!(state.get(&Key::Link(link.clone())), Some(Entry::Link(Link { up: true, .. })))
    };
    assert!(device.is_none_or(is_up), "{entry} before its device");
}

fn routed(state: &KernelState) -> BTreeSet<Prefix> {
    routes(state).map(|route| route.destination).collect()
}

fn routes(state: &KernelState) -> impl Iterator<Item = &Route> {
    state.entries().filter_map(|entry| match entry {
        Entry::Route(route) => Some(route),
        _ => None,
    })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn applying_the_difference_gives_the_desired_state(case in case()) {
        let end = case.end();
        for want in case.desired.iter() {
            prop_assert_eq!(end.shared(&want.key()), Some(want));
        }
        for entry in end.iter().filter(|entry| case.desired.get(&entry.key()).is_none()) {
            prop_assert_eq!(case.actual.shared(&entry.key()), Some(entry));
            prop_assert!(!case.scope.owns(entry), "{} was left behind", entry);
        }
    }

    #[test]
    fn a_state_as_desired_needs_no_operation(case in case()) {
        let end = case.end();
        prop_assert_eq!(diff(&case.desired, &end, &case.scope), vec![]);
        prop_assert_eq!(diff(&case.desired, &case.desired, &case.scope), vec![]);
    }

    #[test]
    fn nothing_foreign_is_lost_but_what_is_in_the_way(case in case()) {
        let is_in_the_way = |entry: &Entry| {
            case.desired.get(&entry.key()).is_some_and(|desired| desired != entry)
        };
        let states = case.states();
        for (op, states) in case.ops().iter().zip(states.windows(2)) {
            let lost = states[0].entries().filter(|it| states[1].get(&it.key()) != Some(*it));
            for entry in lost.filter(|entry| is_foreign(entry, &case.scope)) {
                let is_of_device = match (op, op.entry()) {
                    (Op::Remove(_), Entry::Link(link)) => entry.link() == Some(&link.name),
                    _ => false,
                };
                let is_lost_with_it = is_of_device && is_in_the_way(op.entry());
                prop_assert!(is_lost_with_it || is_in_the_way(entry), "{} by {}", entry, op);
            }
        }
    }

    #[test]
    fn a_handover_keeps_every_path_and_leaves_no_mark(case in case()) {
        let handover = |state: &KernelState| {
            handover_ops(&KernelState::default(), state, &case.scope)
        };
        let mut end = case.actual.clone();
        for op in handover(&case.actual) {
            change(&op, &mut end);
        }
        let gateways = |state: &KernelState| -> BTreeSet<(Prefix, u32)> {
            let leading = routes(state).filter(|route| {
                let nexthop = route.nexthop.and_then(|id| state.get(&Key::Nexthop(id)));
                let by_object = matches!(nexthop, Some(Entry::Nexthop(it)) if it.gateway.is_some());
                by_object || route.gateway.is_some()
            });
            leading.map(|route| (route.destination, route.metric)).collect()
        };
        prop_assert_eq!(gateways(&case.actual), gateways(&end));
        let is_marked = |entry: &Entry| match entry {
            Entry::Table(_) | Entry::Renewal(_) | Entry::Element(_) => true,
            Entry::Nexthop(nexthop) => nexthop.protocol == PROTOCOL,
            Entry::Route(route) => route.protocol == PROTOCOL,
            _ => false,
        };
        let marked = end.entries().find(|entry| case.scope.owns(entry) && is_marked(entry));
        prop_assert_eq!(marked, None);
        prop_assert_eq!(handover(&end), vec![]);
    }

    #[test]
    fn nothing_outside_of_the_scope_is_touched(case in case()) {
        for op in case.ops() {
            prop_assert!(case.scope.covers(op.entry()), "{}", op);
        }
    }

    #[test]
    fn a_path_never_has_a_gap(case in case()) {
        let doomed = case.doomed();
        let survives = |route: &&Route| route.link.as_ref().is_none_or(|link| !doomed.contains(link));
        let before: BTreeSet<_> =
            routes(&case.actual).filter(survives).map(|route| route.destination).collect();
        let after = routed(&case.desired);
        for state in case.states() {
            let routed = routed(&state);
            for destination in before.intersection(&after) {
                prop_assert!(routed.contains(destination), "{} was cut off", destination);
            }
        }
    }

    #[test]
    fn dependencies_of_an_entry_are_created_before_it(case in case()) {
        // The kernel of this test checks that its device exists and is up.
        for state in case.states() {
            let ours = routes(&state)
                .filter(|route| route.onlink)
                .filter(|route| case.desired.entries().any(|e| *e == Entry::Route((*route).clone())))
                .filter(|route| !case.actual.entries().any(|e| *e == Entry::Route((*route).clone())));
            for route in ours {
                let (link, gateway) = (route.link.clone().unwrap(), route.gateway.unwrap());
                let neighbour = state.get(&Key::Neighbour(link.clone(), gateway));
                let Some(Entry::Neighbour(neighbour)) = neighbour else {
                    panic!("{gateway} has no neighbour entry yet");
                };
                prop_assert!(state.get(&Key::Fdb(link, neighbour.mac)).is_some());
            }
        }
    }

    #[test]
    fn dependencies_of_removed_entries_are_removed_after_them(case in case()) {
        let removals: Vec<Key> = case
            .ops()
            .into_iter()
            .filter(|op| matches!(op, Op::Remove(entry) if !matches!(**entry, Entry::Link(_))))
            .map(|op| op.entry().key())
            .collect();
        let mut backwards = removals.clone();
        backwards.sort();
        backwards.reverse();
        prop_assert_eq!(removals, backwards);
    }

    #[test]
    fn the_difference_of_one_key_equals_its_part_of_the_whole(case in case()) {
        // Entries that are removed with a device or a table have no difference of their own.
        if !case.doomed().is_empty() || case.empties_tables() {
            return Ok(());
        }
        let ops = case.ops();
        for key in case.desired.keys().chain(case.actual.keys()) {
            let whole = ops.iter().find(|op| op.entry().key() == key).cloned();
            prop_assert_eq!(diff_key(&key, &case.desired, &case.actual, &case.scope), whole);
        }
    }

    #[test]
    fn only_a_device_that_cannot_be_corrected_is_recreated(case in case()) {
        for link in case.doomed() {
            let key = Key::Link(link);
            let (Some(Entry::Link(have)), Some(Entry::Link(want))) =
                (case.actual.get(&key), case.desired.get(&key))
            else {
                panic!("{key:?} is not in the way");
            };
            let same_but = Link {
                mtu: want.mtu,
                mac: want.mac,
                up: want.up,
                ..have.clone()
            };
            prop_assert_ne!(same_but, want.clone());
            prop_assert!(!matches!(&have.kind, LinkKind::Vxlan(v) if matches!(&want.kind, LinkKind::Vxlan(w) if v == w)));
        }
    }

    #[test]
    fn every_entry_is_parsed_from_its_text(actual in kernel()) {
        for entry in actual.entries() {
            prop_assert_eq!(&crate::notation::entry(&entry.to_string()), entry);
        }
    }
}
