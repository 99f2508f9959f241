//! Tests of applying ops: replacement, refusal, and removal of missing entries.

use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Entry, KernelState, Key, PROTOCOL_BOOT, Route};
use tweed::plan::diff::Op;

use crate::host::{
    address, apply, device, direct, dump, establish, everything, ip, missing, name, notifications,
    on_a_host, prefix, scope, tunnel, tunnelled,
};

fn peer(number: u8) -> Entry {
    direct(&format!("10.244.{number}.0/24"), "172.16.0.9")
}

/// A route whose gateway is on no link of this host.
fn off_link(destination: &str) -> Op {
    let gateway = if destination.contains(':') { "2001:db8::1" } else { "198.51.100.1" };
    Op::Create(Entry::Route(Route::via(prefix(destination), address(gateway), name("eth0"))).into())
}

#[test]
fn a_refusal_names_its_op_and_does_not_stop_others() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let good = (0..=255).map(peer);
        let good_too = (0..=255).map(|n| direct(&format!("fd00:10:244:{n:x}::/64"), "fd00:16::9"));
        let mut ops: Vec<Op> = good.chain(good_too).map(|entry| Op::Create(entry.into())).collect();
        let bad = [0, 127, 128, 300, 511];
        for position in bad {
            ops[position] = off_link(&match position {
                0..256 => format!("10.244.{position}.0/24"),
                _ => format!("fd00:10:244:{:x}::/64", position - 256),
            });
        }
        let refused = kernel.apply(&ops).await.unwrap();
        let refused_ops: Vec<&Op> = refused.iter().map(|refused| &refused.op).collect();
        assert_eq!(refused_ops, bad.map(|position| &ops[position]));
        assert_eq!(refused[0].reason, "Nexthop has invalid gateway (network is unreachable)");
        assert_eq!(refused[4].reason, "no route to host");
        let held = dump(&mut kernel).await;
        assert_eq!(ops.iter().filter(|op| held.get(&op.entry().key()).is_some()).count(), 507);
    });
}

#[test]
fn all_refusals_are_reported_even_beyond_the_receive_buffer() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let ops: Vec<Op> =
            (0..5000).map(|n| off_link(&format!("10.244.{}.0/24", n % 256))).collect();
        assert_eq!(kernel.apply(&ops).await.unwrap().len(), 5000);
    });
}

#[test]
fn the_removal_of_a_missing_entry_succeeds() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        // First without the devices, then without the entries on them.
        let all = everything();
        let removals: Vec<Op> = all
            .into_iter()
            .filter(|e| !matches!(**e, Entry::Setting(_)))
            .map(Op::Remove)
            .rev()
            .collect();
        apply(&mut kernel, removals.clone()).await;
        establish(&mut kernel, &everything()).await;
        let (on_devices, devices): (Vec<Op>, Vec<Op>) =
            removals.into_iter().partition(|op| !matches!(op.entry(), Entry::Link(_)));
        apply(&mut kernel, on_devices.clone()).await;
        apply(&mut kernel, on_devices).await;
        apply(&mut kernel, devices).await;
    });
}

#[test]
fn a_setting_is_not_removed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let ops = device(tunnel(), "10.244.1.0/32")
            .into_iter()
            .skip(1)
            .take(2)
            .map(|entry| Op::Remove(entry.into()));
        let refused = kernel.apply(&ops.collect::<Vec<_>>()).await.unwrap();
        assert_eq!(refused.len(), 2);
        assert_eq!(refused[0].reason, "a setting of a link can be changed, not removed");
    });
}

#[test]
fn an_entry_on_a_missing_link_is_refused_with_the_links_name() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let entries = tunnelled("flannel.9", "10.244.2.0/24", "172.16.0.9", "0e:00:00:00:00:02");
        let refused = kernel
            .apply(&entries.into_iter().map(|entry| Op::Create(entry.into())).collect::<Vec<_>>())
            .await
            .unwrap();
        assert_eq!(refused.len(), 3);
        assert!(refused.iter().all(|refused| refused.reason == "there is no link flannel.9"));
    });
}

#[test]
fn a_link_that_came_after_the_last_dump_is_found() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        dump(&mut kernel).await;
        ip("link add late0 type veth peer name late1");
        ip("link set late0 up");
        let subnet = prefix("10.244.7.0/24");
        let route = Route::via(subnet, subnet.base(), name("late0")).onlink();
        apply(&mut kernel, vec![Op::Create(Entry::Route(route).into())]).await;
    });
}

#[test]
fn a_route_of_flannel_is_replaced_and_never_missing() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip("route add 10.244.9.0/24 via 172.16.0.9 dev eth0 proto boot");
        ip("route add fd00:10:244:9::/64 via fd00:16::9 dev eth0 proto boot");
        let adopted: KernelState =
            [direct("10.244.9.0/24", "172.16.0.9"), direct("fd00:10:244:9::/64", "fd00:16::9")]
                .into_iter()
                .collect();
        let held = dump(&mut kernel).await;
        let protocols = held.entries().filter_map(|entry| match entry {
            Entry::Route(route) => Some(route.protocol),
            _ => None,
        });
        assert_eq!(protocols.collect::<Vec<u8>>(), [PROTOCOL_BOOT, PROTOCOL_BOOT]);
        assert_eq!(establish(&mut kernel, &adopted).await, [""; 0]);
        for (family, destination) in [("-4", "10.244.9.0/24"), ("-6", "fd00:10:244:9::/64")] {
            let shown = ip(&format!("-N {family} route show {destination}"));
            assert_eq!(shown.lines().count(), 1, "{shown}");
            assert!(shown.contains("proto 241"), "{shown}");
        }
    });
}

#[test]
fn a_route_moves_between_tunnel_and_link_in_one_step() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let tunnelled = everything();
        establish(&mut kernel, &tunnelled).await;
        let mut flipped = everything();
        flipped.extend([
            direct("10.244.2.0/24", "172.16.0.9"),
            direct("fd00:10:244:2::/64", "fd00:16::9"),
        ]);
        for state in [&flipped, &tunnelled, &flipped] {
            assert_eq!(establish(&mut kernel, state).await, [""; 0]);
            assert_eq!(ip("route show 10.244.2.0/24").lines().count(), 1);
            assert_eq!(ip("-6 route show fd00:10:244:2::/64").lines().count(), 1);
        }
        let observed = notifications(&mut kernel).await;
        for key in everything().keys().filter(|key| matches!(key, Key::Route(..))) {
            assert!(!observed.contains(&Observation::Lost(key.clone())), "{key:?} was missing");
        }
    });
}

#[test]
fn a_tunnel_works_below_a_wider_foreign_route() {
    on_a_host(async || {
        ip("route add 10.244.0.0/16 via 172.16.0.77 dev eth0");
        ip("-6 route add fd00:10:244::/56 via fd00:16::77 dev eth0");
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
    });
}

#[test]
fn an_inactive_route_becomes_active() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted: KernelState = [peer(9)].into_iter().collect();
        establish(&mut kernel, &wanted).await;
        ip("route prepend 10.244.9.0/24 via 172.16.0.200 dev eth0 proto static");
        assert_eq!(missing(&mut kernel, &wanted).await.len(), 1, "the first is active");
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
        assert_eq!(ip("route show 10.244.9.0/24").lines().count(), 1);
    });
}

#[test]
fn a_multipath_route_is_replaced_by_a_single_next_hop() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip(
            "route add 10.244.9.0/24 nexthop via 172.16.0.8 dev eth0 nexthop via 172.16.0.9 dev eth0",
        );
        ip(
            "route add fd00:10:244:9::/64 nexthop via fd00:16::8 dev eth0 nexthop via fd00:16::9 dev eth0",
        );
        let wanted: KernelState =
            [direct("10.244.9.0/24", "172.16.0.9"), direct("fd00:10:244:9::/64", "fd00:16::9")]
                .into_iter()
                .collect();
        let held = dump(&mut kernel).await;
        for want in wanted.iter() {
            let Some(Entry::Route(route)) = held.get(&want.key()) else {
                panic!("{want} is not seen")
            };
            assert_eq!((&route.gateway, &route.link), (&None, &None));
        }
        assert_eq!(establish(&mut kernel, &wanted).await, [""; 0]);
    });
}

#[test]
fn only_the_exact_route_is_removed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip("route add 10.244.9.0/24 via 172.16.0.9 dev eth0 proto static");
        ip("route add 10.244.8.0/24 via 172.16.0.200 dev eth0 proto 241");
        ip("route add 10.244.7.0/24 via 172.16.0.9 dev eth0 proto 241 metric 50");
        apply(&mut kernel, (7..=9).map(|number| Op::Remove(peer(number).into())).collect()).await;
        // Of three similar routes, one has another protocol and one another gateway. The kernel
        // takes a metric of zero for any metric.
        assert_eq!(ip("-4 route show root 10.244.0.0/16").lines().count(), 2);
    });
}

#[test]
fn a_route_of_tweeds_protocol_and_any_kind_is_removed() {
    on_a_host(async || {
        ip("route add 10.244.7.0/24 dev eth0 proto 241");
        ip("route add blackhole 10.244.8.0/24 proto 241");
        ip("route add 10.244.9.0/24 proto 241 nexthop via 172.16.0.8 nexthop via 172.16.0.9");
        ip("-6 route add fd00:10:244:7::/64 dev eth0 proto 241");
        ip("-6 route add unreachable fd00:10:244:8::/64 proto 241");
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(missing(&mut kernel, &KernelState::default()).await.len(), 5);
        assert_eq!(establish(&mut kernel, &KernelState::default()).await, [""; 0]);
    });
}

#[test]
fn a_cancelled_request_does_not_affect_the_next() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let (everything, scope) = (everything(), scope());
        for _ in 0..20 {
            let nothing = KernelState::default();
            tokio::select! {
                biased;
                _ = kernel.dump(&scope, &nothing) => {}
                () = tokio::task::yield_now() => {}
            }
            let ops = vec![Op::Create(peer(9).into()), off_link("10.244.8.0/24")];
            let refused = kernel.apply(&ops).await.unwrap();
            assert_eq!(refused.len(), 1);
            assert_eq!(refused[0].op, ops[1]);
        }
        assert_eq!(establish(&mut kernel, &everything).await, [""; 0]);
    });
}

#[test]
fn an_unreachable_route_is_inactive_behind_the_route_of_a_bridge() {
    on_a_host(async || {
        ip("link add cni0 type bridge");
        ip("addr add 10.244.1.1/24 dev cni0");
        ip("addr add fd00:10:244:1::1/64 dev cni0 nodad");
        ip("link set cni0 up");
        let subnets = ["10.244.1.0/24", "fd00:10:244:1::/64"];
        let ends = subnets.map(|subnet| Entry::Route(Route::unreachable(prefix(subnet))));
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &ends.iter().cloned().collect()).await, [""; 0]);
        assert!(ip("route show 10.244.1.0/24").contains("dev cni0"));
        assert!(ip("route get 10.244.1.7").contains("dev cni0"));
        // A blackhole route is a difference, even with the protocol number of tweed.
        ip("route replace blackhole 10.244.1.0/24 metric 4294967295 proto 241");
        assert_eq!(
            missing(&mut kernel, &ends.iter().cloned().collect()).await,
            ["~ route unreachable 10.244.1.0/24 metric 4294967295"]
        );
        assert_eq!(establish(&mut kernel, &ends.iter().cloned().collect()).await, [""; 0]);
        assert_eq!(establish(&mut kernel, &KernelState::default()).await, [""; 0]);
        assert!(!ip("route show").contains("unreachable"));
        assert!(!ip("-6 route show").contains("unreachable"));
    });
}
