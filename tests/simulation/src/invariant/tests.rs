//! Clusters that are broken without a fault: the judge rejects them.

use std::time::Duration;

use tweed::model::entry::{Entry, Fdb, LinkName, Route, RouteKind};
use tweed::model::prefix::Family;

use super::{Judge, PATHS, REPAIRED, end};
use crate::act::{Backend, Config};
use crate::cluster::{Cluster, Setup};
use crate::dice::LENGTH;
use crate::history::sabotage;
use crate::packets::stack::{Stack, UNDERLAY, address, router, tunnel};
use crate::store::StoreKind;

const SETUP: Setup =
    Setup { nodes: 3, store: StoreKind::Etcd, stack: Stack::V4, flannel: None, is_wide: false };
const CALM: Duration = Duration::from_secs(40);

type Sabotage = fn(&mut Cluster, &mut Judge);

/// The invariant that is violated after this.
fn violated(time: Duration, act: Sabotage) -> Option<&'static str> {
    sabotage(SETUP, time, act).map(|violation| violation.invariant)
}

/// A route of the first node to the pods of another one.
fn route(cluster: &Cluster) -> Route {
    let is_to_pods = |entry: &Entry| match entry {
        Entry::Route(route)
            if route.kind == RouteKind::Unicast && route.destination.prefix_len() == 24 =>
        {
            Some(route.clone())
        }
        _ => None,
    };
    cluster.nodes[0].kernel.read_state(|state| state.entries().find_map(is_to_pods)).unwrap()
}

fn lose_route(cluster: &mut Cluster, _: &mut Judge) {
    let key = Entry::Route(route(cluster)).key();
    cluster.nodes[0].kernel.lose_silently(&key);
}

/// The pods of the other node are reached, and the daemon does not know how.
fn use_another_path(cluster: &mut Cluster, _: &mut Judge) {
    let route = route(cluster);
    let pods = |index: &usize| {
        cluster.nodes[*index]
            .pods()
            .is_some_and(|pods| pods.all().any(|it| it == route.destination))
    };
    let peer = (1..3).find(pods).unwrap();
    let gateway = address(Family::V4, cluster.nodes[peer].address);
    let direct = Route::via(route.destination, gateway, LinkName::new(UNDERLAY));
    cluster.nodes[0].kernel.set_silently(Entry::Route(direct));
}

fn lose_foreign_route(cluster: &mut Cluster, _: &mut Judge) {
    let key = Entry::Route(Stack::V4.foreign_route().unwrap()).key();
    cluster.nodes[1].kernel.lose_silently(&key);
}

fn leave_entry(cluster: &mut Cluster, _: &mut Judge) {
    let (link, mac) = (tunnel(Family::V4), crate::history::UNKNOWN_MAC);
    let fdb = Fdb { link, mac, destination: router(Family::V4) };
    cluster.nodes[2].kernel.set_silently(Entry::Fdb(fdb));
}

fn lose_guard(cluster: &mut Cluster, judge: &mut Judge) {
    assert!(judge.wants_all(0, cluster));
    let before = super::own_entries(&cluster.nodes[0]);
    let is_guard = |entry: &&Entry| matches!(entry, Entry::Table(table) if table.has_peers());
    let guard = before.iter().find(is_guard).unwrap();
    cluster.nodes[0].kernel.lose_silently(&guard.key());
    judge.spoil(0, &before, cluster);
}

fn end_lease(cluster: &mut Cluster, _: &mut Judge) {
    cluster.expire_lease(1);
}

fn edit_late(cluster: &mut Cluster, _: &mut Judge) {
    cluster.configure(Config::Finished(Backend::HostGw));
}

fn end_daemon(cluster: &mut Cluster, _: &mut Judge) {
    cluster.nodes[1].ends.push("an error".to_owned());
}

fn kill_daemon(cluster: &mut Cluster, _: &mut Judge) {
    cluster.kill(1);
}

#[test]
fn what_no_fault_excuses_is_rejected() {
    let nothing: Sabotage = |_, _| {};
    assert_eq!(violated(CALM, nothing), None);
    let cases: [(Duration, Sabotage, &str); 9] = [
        (CALM, lose_route, PATHS),
        (CALM, lose_guard, REPAIRED),
        (LENGTH, use_another_path, end::TABLE),
        (LENGTH, lose_foreign_route, end::FOREIGN),
        (LENGTH, leave_entry, end::LEFTOVERS),
        (LENGTH, end_lease, end::LEASES),
        (LENGTH, edit_late, end::CONFIG),
        (LENGTH, end_daemon, end::RUNNING),
        (LENGTH, kill_daemon, end::READY),
    ];
    for (time, act, invariant) in cases {
        assert_eq!(violated(time, act), Some(invariant));
    }
}
