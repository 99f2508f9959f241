//! Tests of routes that use nexthop objects.

use std::fs;
use std::sync::Arc;

use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Entry, KernelState, Key, Nexthop, NexthopId, PROTOCOL, Route};
use tweed::model::node::NexthopSupport;
use tweed::model::path::Path;
use tweed::plan::diff::Op;

use crate::host::{
    apply, direct, dump, establish, everything, ip, missing, notifications, on_a_host, prefix,
    scope,
};

/// The routes of `state`, each with its own nexthop object.
fn by_nexthops(state: KernelState) -> KernelState {
    let entries = state.into_iter().flat_map(|entry| match Arc::unwrap_or_clone(entry) {
        Entry::Route(route) => by_nexthop(route),
        other => vec![other],
    });
    entries.collect()
}

pub(crate) fn by_nexthop(route: Route) -> Vec<Entry> {
    let path = if route.onlink { Path::Tunnel } else { Path::Direct };
    let networks = scope().networks;
    let network = networks.iter().find(|network| network.covers(route.destination)).unwrap();
    let id = NexthopId::of(*network, route.destination, path).unwrap();
    let (gateway, link, onlink) = (route.gateway, route.link.clone(), route.onlink);
    vec![
        Entry::Nexthop(Nexthop { id, gateway, link, onlink, protocol: PROTOCOL }),
        Entry::Route(Route { nexthop: Some(id), ..route }),
    ]
}

fn direct_by_nexthop(subnet: &str, public: &str) -> Vec<Entry> {
    let Entry::Route(route) = direct(subnet, public) else { unreachable!() };
    by_nexthop(route)
}

/// `everything`, with the peers in the tunnels moved to the link.
fn moved() -> KernelState {
    let mut state = by_nexthops(everything());
    state.retain(|entry| !matches!(entry, Entry::Nexthop(n) if n.onlink));
    state.extend(direct_by_nexthop("10.244.2.0/24", "172.16.0.2"));
    state.extend(direct_by_nexthop("fd00:10:244:2::/64", "fd00:16::2"));
    state
}

fn id_of(state: &KernelState, subnet: &str) -> NexthopId {
    let subnet = prefix(subnet);
    let metric = Route::default_metric(subnet.family());
    let Some(Entry::Route(route)) = state.get(&Key::Route(subnet, metric)) else { unreachable!() };
    route.nexthop.unwrap()
}

#[test]
fn routes_with_nexthop_objects_are_read_like_plain_routes() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &by_nexthops(everything())).await, [""; 0]);
        let shown = ip("route show 10.244.2.0/24");
        assert!(shown.contains("via 10.244.2.0 dev flannel.1"), "{shown}");
        assert!(shown.contains("nhid") && shown.contains("onlink"), "{shown}");
        let shown = ip("route get 10.244.9.7");
        assert!(shown.contains("via 172.16.0.9 dev eth0"), "{shown}");
    });
}

#[test]
fn routes_with_nexthop_objects_move_between_tunnel_and_link() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &by_nexthops(everything())).await;
        assert_eq!(establish(&mut kernel, &moved()).await, [""; 0]);
        assert!(ip("-6 route show fd00:10:244:2::/64").contains("via fd00:16::2 dev eth0"));
        assert_eq!(establish(&mut kernel, &by_nexthops(everything())).await, [""; 0]);
        assert!(ip("-6 route show fd00:10:244:2::/64").contains("dev flannel-v6.1"));
        assert_eq!(ip("-6 route show fd00:10:244:2::/128"), "");
    });
}

#[test]
fn plain_routes_are_replaced_by_nexthop_routes_and_back() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        assert_eq!(establish(&mut kernel, &by_nexthops(everything())).await, [""; 0]);
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
        assert_eq!(ip("nexthop"), "");
    });
}

#[test]
fn flannels_requests_replace_nexthop_routes() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &by_nexthops(everything())).await;
        ip("route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink");
        let shown = ip("route show 10.244.2.0/24");
        assert!(shown.contains("via 10.244.2.0") && !shown.contains("nhid"), "{shown}");
        ip("route del 10.244.2.0/24 via 10.244.2.0 dev flannel.1");
        assert_eq!(ip("route show 10.244.2.0/24"), "");
    });
}

#[test]
fn a_removed_object_and_its_routes_are_restored() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted = by_nexthops(everything());
        establish(&mut kernel, &wanted).await;
        notifications(&mut kernel).await;
        let id = id_of(&wanted, "10.244.2.0/24");
        ip(&format!("nexthop del id {id}"));
        assert_eq!(ip("route show 10.244.2.0/24"), "");
        assert_eq!(notifications(&mut kernel).await, [Observation::Lost(Key::Nexthop(id))]);
        assert_eq!(missing(&mut kernel, &wanted).await.len(), 2);
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
    });
}

#[test]
fn a_changed_object_is_notified_and_fixed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted = by_nexthops(everything());
        establish(&mut kernel, &wanted).await;
        notifications(&mut kernel).await;
        let id = id_of(&wanted, "10.244.9.0/24");
        ip(&format!("nexthop replace id {id} via 172.16.0.77 dev eth0 proto 241"));
        let observed = notifications(&mut kernel).await;
        let changed = Key::Nexthop(id);
        assert!(
            observed.iter().any(|t| matches!(t, Observation::Holds(e) if e.key() == changed)),
            "{observed:?}"
        );
        assert_eq!(missing(&mut kernel, &wanted).await.len(), 1);
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
        assert!(ip("route get 10.244.9.7").contains("via 172.16.0.9"));
    });
}

#[test]
fn a_route_without_a_reported_gateway_is_no_difference() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        fs::write("/proc/sys/net/ipv4/nexthop_compat_mode", "0").unwrap();
        assert_eq!(establish(&mut kernel, &by_nexthops(everything())).await, [""; 0]);
        assert!(!ip("route show 10.244.9.0/24").contains("via"));
    });
}

#[test]
fn a_foreign_object_is_kept() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(kernel.facts(None).await.unwrap().nexthops, NexthopSupport::Usable);
        let wanted = by_nexthops(everything());
        let id = id_of(&wanted, "10.244.9.0/24");
        ip(&format!("nexthop add id {id} blackhole proto 3"));
        assert_eq!(kernel.facts(None).await.unwrap().nexthops, NexthopSupport::Taken(id));
        let ops = direct_by_nexthop("10.244.9.0/24", "172.16.0.9");
        let refused = kernel
            .apply(
                &ops.into_iter().take(1).map(|entry| Op::Create(entry.into())).collect::<Vec<_>>(),
            )
            .await
            .unwrap();
        assert_eq!(refused.len(), 1);
        assert!(ip(&format!("nexthop show id {id}")).contains("blackhole"));
        assert!(!scope().owns(dump(&mut kernel).await.get(&Key::Nexthop(id)).unwrap()));
    });
}

#[test]
fn objects_are_removed_and_restored_with_their_link() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted = by_nexthops(everything());
        establish(&mut kernel, &wanted).await;
        ip("link set flannel.1 down");
        assert!(!ip("nexthop").contains("flannel.1"));
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
    });
}

#[test]
fn removal_in_reverse_order_is_complete() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted = by_nexthops(everything());
        establish(&mut kernel, &wanted).await;
        let ours =
            wanted.into_iter().filter(|e| matches!(**e, Entry::Nexthop(_) | Entry::Route(_)));
        let removals: Vec<Op> = ours.map(Op::Remove).collect();
        apply(&mut kernel, removals.into_iter().rev().collect()).await;
        assert_eq!(ip("nexthop"), "");
        assert_eq!(ip("route show proto 241"), "");
    });
}
