//! Tests that foreign entries are ignored or kept, and that flannel's entries are adopted.

use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::entry::{Entry, KernelState, Key, PROTOCOL_BOOT, Route};
use tweed::plan::diff::diff;
use tweed::plan::scope::Scope;

use crate::host::{
    address, apply, batch, dump, establish, everything, ip, missing, name, on_a_host, prefix, run,
    scope, shows,
};

/// The listed routes, neighbours, addresses and FDB entries that are not owned by tweed.
fn foreign_objects() -> String {
    let neighbours = "neigh show dev eth0 nud permanent";
    let lists = ["-4 route show", "-6 route show", "addr show dev eth0", neighbours];
    lists.map(ip).join("")
}

fn route<'a>(state: &'a KernelState, destination: &str) -> Option<&'a Route> {
    state.entries().find_map(|entry| match entry {
        Entry::Route(route) if route.destination == prefix(destination) => Some(route),
        _ => None,
    })
}

#[test]
fn foreign_objects_are_neither_reported_nor_changed() {
    on_a_host(async || {
        ip("link add admin0 type bridge");
        ip("addr add 10.244.200.1/24 dev admin0");
        ip("link set admin0 up");
        ip("neigh add 172.16.0.50 lladdr 0e:00:00:00:00:50 dev eth0 nud permanent");
        ip("route add 10.250.0.0/16 via 172.16.0.9 dev eth0 proto 241");
        ip("route add 10.0.0.0/8 via 172.16.0.9 dev eth0");
        ip("route add 10.244.77.0/24 via 172.16.0.77 dev eth0 proto static");
        ip("route add 10.244.78.0/24 via 172.16.0.9 dev eth0 table 100 proto 241");
        ip("-6 route add fd00:77::/64 via fd00:16::9 dev eth0");
        let before = foreign_objects();
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
        let held = dump(&mut kernel).await;
        for foreign in ["10.250.0.0/16", "10.0.0.0/8", "10.244.78.0/24", "fd00:77::/64"] {
            assert_eq!(route(&held, foreign), None);
        }
        // Foreign routes are reported where tweed might add a route with the same key.
        assert!(route(&held, "10.244.77.0/24").is_some());
        assert!(route(&held, "10.244.200.0/24").is_some());
        assert!(
            !held.keys().any(|key| matches!(key, Key::Address(link, ..) if link == name("eth0")))
        );

        let removals = diff(&KernelState::default(), &held, &scope());
        apply(&mut kernel, removals).await;
        let after = foreign_objects();
        for line in before.lines() {
            assert!(after.contains(line), "{line} is gone");
        }
    });
}

#[test]
fn ten_thousand_foreign_routes_are_ignored() {
    on_a_host(async || {
        let lines = (0..10_000).map(|n| {
            format!("route add 10.{}.{}.0/24 via 172.16.0.9 dev eth0", 100 + n / 250, n % 250)
        });
        batch("ip", lines);
        let mut kernel = NetlinkKernel::open().unwrap();
        let outside = Scope { networks: vec![prefix("10.99.0.0/16")], ..scope() };
        assert!(
            !kernel
                .dump(&outside, &KernelState::default())
                .await
                .unwrap()
                .keys()
                .any(|k| matches!(k, Key::Route(..)))
        );
        let one = Scope { networks: vec![prefix("10.100.7.0/24")], ..scope() };
        assert!(
            route(&kernel.dump(&one, &KernelState::default()).await.unwrap(), "10.100.7.0/24")
                .is_some()
        );
    });
}

#[test]
fn routes_of_every_kind_are_read_with_their_kind() {
    on_a_host(async || {
        ip("route add blackhole 10.244.10.0/24");
        ip("-6 route add unreachable fd00:10:244:10::/64");
        ip("route add 10.244.11.0/24 nexthop via 172.16.0.8 nexthop via 172.16.0.9");
        ip("nexthop add id 5 via 172.16.0.9 dev eth0");
        ip("route add 10.244.12.0/24 nhid 5 proto static");
        ip("route add 10.244.13.0/24 via inet6 fd00:16::9 dev eth0");
        ip("route add 10.244.14.0/24 dev eth0 scope link");
        ip("route add 10.244.15.0/24 via 172.16.0.9 dev eth0 metric 7");
        ip("route add 10.244.16.0/24 tos 8 via 172.16.0.9 dev eth0");
        let mut kernel = NetlinkKernel::open().unwrap();
        let held = dump(&mut kernel).await;
        let way = |destination| {
            let route: &Route = route(&held, destination).expect(destination);
            (route.gateway, route.link.as_ref().map(ToString::to_string))
        };
        let eth0 = || Some("eth0".to_owned());
        assert_eq!(way("10.244.10.0/24"), (None, None));
        assert_eq!(way("fd00:10:244:10::/64"), (None, None));
        assert_eq!(way("10.244.11.0/24"), (None, None));
        assert_eq!(way("10.244.12.0/24"), (Some(address("172.16.0.9")), eth0()));
        assert_eq!(way("10.244.13.0/24"), (Some(address("fd00:16::9")), eth0()));
        assert_eq!(way("10.244.14.0/24"), (None, eth0()));
        assert!(held.get(&Key::Route(prefix("10.244.15.0/24"), 7)).is_some());
        assert_eq!(route(&held, "10.244.16.0/24"), None, "for one class of traffic only");
    });
}

#[test]
fn a_route_over_a_link_without_carrier_is_the_same_route() {
    on_a_host(async || {
        ip("route add 10.244.9.0/24 via 172.16.0.9 dev eth0");
        let mut kernel = NetlinkKernel::open().unwrap();
        let before = dump(&mut kernel).await;
        ip("link set far0 down");
        shows("route show 10.244.9.0/24", "linkdown").await;
        assert_eq!(
            route(&dump(&mut kernel).await, "10.244.9.0/24"),
            route(&before, "10.244.9.0/24")
        );
    });
}

#[test]
fn the_first_of_two_routes_with_the_same_key_is_used() {
    on_a_host(async || {
        ip("route add 10.244.9.0/24 via 172.16.0.9 dev eth0");
        ip("route append 10.244.9.0/24 via 172.16.0.200 dev eth0");
        let mut kernel = NetlinkKernel::open().unwrap();
        let held = dump(&mut kernel).await;
        assert_eq!(route(&held, "10.244.9.0/24").unwrap().gateway, Some(address("172.16.0.9")));
    });
}

#[test]
fn neighbours_and_entries_that_the_kernel_created_are_ignored() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        ip("neigh add 10.244.50.0 dev flannel.1 nud failed");
        ip("neigh add 10.244.51.0 lladdr 0e:00:00:00:00:51 dev flannel.1 nud noarp");
        ip("neigh add 10.244.52.0 lladdr 0e:00:00:00:00:52 dev flannel.1 nud stale");
        ip("neigh add proxy 10.244.53.0 dev flannel.1");
        run("bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 172.16.0.9 self permanent");
        run("bridge fdb append 01:00:5e:00:00:01 dev flannel.1 dst 172.16.0.9 self permanent");
        let held = dump(&mut kernel).await;
        let new: Vec<String> = held
            .into_iter()
            .filter(|entry| everything().get(&entry.key()).is_none())
            .filter(|entry| matches!(**entry, Entry::Neighbour(_) | Entry::Fdb(_)))
            .map(|entry| entry.to_string())
            .collect();
        assert_eq!(new, ["neigh 10.244.52.0 lladdr 0e:00:00:00:00:52 dev flannel.1 not permanent"]);
    });
}

#[test]
fn entries_of_flannel_are_adopted_without_interruption() {
    on_a_host(async || {
        for line in [
            "ip link add flannel.1 address 0e:00:00:00:00:01 mtu 1450 txqueuelen 0 type vxlan id 1 \
             dev eth0 local 172.16.0.1 dstport 8472 nolearning",
            "ip addr add 10.244.1.0/32 dev flannel.1",
            "ip link set flannel.1 up",
            "ip neigh replace 10.244.2.0 lladdr 0e:00:00:00:00:02 dev flannel.1 nud permanent",
            "bridge fdb replace 0e:00:00:00:00:02 dev flannel.1 dst 172.16.5.2 self permanent",
            "ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink",
            // A peer that was removed while flannel was stopped.
            "ip neigh replace 10.244.3.0 lladdr 0e:00:00:00:00:03 dev flannel.1 nud permanent",
            "bridge fdb replace 0e:00:00:00:00:03 dev flannel.1 dst 172.16.5.3 self permanent",
            "ip route replace 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
            "ip route replace 10.244.9.0/24 via 172.16.0.9 dev eth0",
        ] {
            run(line);
        }
        let mut kernel = NetlinkKernel::open().unwrap();
        let mut wanted = everything();
        wanted.retain(|entry| match entry {
            Entry::Route(route) => route.destination.base().is_ipv4(),
            other => other.link() != Some(&name("flannel-v6.1")),
        });
        let held = dump(&mut kernel).await;
        assert_eq!(route(&held, "10.244.2.0/24").unwrap().protocol, PROTOCOL_BOOT);
        let ops: Vec<String> =
            diff(&wanted, &held, &scope()).iter().map(ToString::to_string).collect();
        assert_eq!(
            ops,
            [
                "~ accept_ra 0 dev flannel.1",
                "~ route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink",
                "~ route 10.244.9.0/24 via 172.16.0.9 dev eth0",
                "- route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 3 onlink",
                "- neigh 10.244.3.0 lladdr 0e:00:00:00:00:03 dev flannel.1",
                "- fdb 0e:00:00:00:00:03 dst 172.16.5.3 dev flannel.1",
            ]
        );
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
        assert_eq!(missing(&mut kernel, &wanted).await, [""; 0]);
    });
}
