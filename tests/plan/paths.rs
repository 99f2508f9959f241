//! The path to each kind of peer.

use super::*;

#[test]
fn vxlan_to_vxlan_uses_the_tunnel_on_any_link() {
    check_plan(
        &node(VXLAN, ""),
        &[NEAR, FAR],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn mixed_does_not_change_the_path_between_two_vxlan_nodes() {
    let peers = [NEAR, FAR].map(lease);
    let planned = |keys| {
        let backends = backend::backends(&node(VXLAN, keys));
        peers.each_ref().map(|peer| backend::plan_peer(&backends, peer, &Fallbacks::new()))
    };
    assert_eq!(planned(MIXED), planned(""));
}

#[test]
fn direct_routing_uses_no_tunnel_on_our_link() {
    let direct = r#"{"Type":"vxlan","DirectRouting":true}"#;
    check_plan(
        &node(direct, ""),
        &[NEAR, FAR],
        expect![[r"
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
    check_plan(
        &node(direct, MIXED),
        &[NEAR, FAR],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            route 10.244.3.0/32 dev flannel.1
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            route fd00:244:0:3::/128 dev flannel-v6.1
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn vxlan_to_host_gw_is_skipped_without_mixed() {
    let peer = format!("{NEAR} host-gw");
    check_plan(
        &node(VXLAN, ""),
        &[&peer],
        expect![[r"
        IPv4 skipped: its backend is host-gw, ours is vxlan, and Mixed is off
        IPv6 skipped: its backend is host-gw, ours is vxlan, and Mixed is off
    "]],
    );
}

#[test]
fn vxlan_keeps_the_tunnel_to_a_host_gw_node_that_has_read_mixed_before() {
    let peers = [NEAR, FAR].map(|peer| format!("{peer} host-gw vtep"));
    check_plan(
        &node(VXLAN, ""),
        &[&peers[0], &peers[1]],
        expect![[r#"
        fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
        neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
        nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
        route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
        fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
        neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
        nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
        neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
        nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
        route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
        fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
        neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
        nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
    "#]],
    );
    let direct_routing = r#"{"Type":"vxlan","DirectRouting":true}"#;
    check_plan(
        &node(direct_routing, ""),
        &[&peers[0]],
        expect![[r#"
        nexthop id 4096512012 via 172.16.0.9 dev eth0
        route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
        nexthop id 4258856963 via fd00:16::9 dev eth0
        route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
    "#]],
    );
}

#[test]
fn vxlan_to_host_gw_is_direct_on_our_link_with_mixed() {
    let peer = format!("{NEAR} host-gw vtep");
    check_plan(
        &node(VXLAN, MIXED),
        &[&peer],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            route 10.244.3.0/32 dev flannel.1
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            route fd00:244:0:3::/128 dev flannel-v6.1
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
        "]],
    );
}

#[test]
fn vxlan_to_host_gw_uses_the_tunnel_behind_a_router_with_mixed() {
    let peer = format!("{FAR} host-gw vtep");
    check_plan(
        &node(VXLAN, MIXED),
        &[&peer],
        expect![[r"
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn vxlan_to_host_gw_behind_a_router_needs_its_vtep() {
    let peer = format!("{FAR} host-gw");
    check_plan(
        &node(VXLAN, MIXED),
        &[&peer],
        expect![[r"
            IPv4 skipped: gateway 172.17.0.9 is not on the link of eth0, and it published no VTEP
            IPv6 skipped: gateway fd00:17::9 is not on the link of eth0, and it published no VTEP
        "]],
    );
}

#[test]
fn host_gw_to_host_gw_is_direct_on_our_link() {
    let peer = format!("{NEAR} host-gw");
    check_plan(
        &node(HOST_GW, ""),
        &[&peer],
        expect![[r"
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
        "]],
    );
    check_plan(
        &node(HOST_GW, MIXED),
        &[&peer],
        expect![[r"
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
        "]],
    );
}

#[test]
fn host_gw_to_host_gw_behind_a_router_is_skipped_without_mixed() {
    let peer = format!("{FAR} host-gw vtep");
    check_plan(
        &node(HOST_GW, ""),
        &[&peer],
        expect![[r"
        IPv4 skipped: gateway 172.17.0.9 is not on the link of eth0
        IPv6 skipped: gateway fd00:17::9 is not on the link of eth0
    "]],
    );
}

#[test]
fn host_gw_to_host_gw_behind_a_router_uses_the_tunnel_with_mixed() {
    let peer = format!("{FAR} host-gw vtep");
    check_plan(
        &node(HOST_GW, MIXED),
        &[&peer],
        expect![[r"
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
    let peer = format!("{FAR} host-gw");
    check_plan(
        &node(HOST_GW, MIXED),
        &[&peer],
        expect![[r"
            IPv4 skipped: gateway 172.17.0.9 is not on the link of eth0, and it published no VTEP
            IPv6 skipped: gateway fd00:17::9 is not on the link of eth0, and it published no VTEP
        "]],
    );
}

#[test]
fn host_gw_to_vxlan_is_skipped_without_mixed() {
    check_plan(
        &node(HOST_GW, ""),
        &[NEAR, FAR],
        expect![[r"
        IPv4 skipped: its backend is vxlan, ours is host-gw, and Mixed is off
        IPv6 skipped: its backend is vxlan, ours is host-gw, and Mixed is off
        IPv4 skipped: its backend is vxlan, ours is host-gw, and Mixed is off
        IPv6 skipped: its backend is vxlan, ours is host-gw, and Mixed is off
    "]],
    );
}

#[test]
fn host_gw_keeps_direct_routes_to_a_vxlan_node_that_has_read_mixed_before() {
    let peers = [NEAR, FAR].map(|peer| format!("{peer} vxlan mixed"));
    check_plan(
        &node(HOST_GW, ""),
        &[&peers[0], &peers[1]],
        expect![[r#"
        nexthop id 4096512012 via 172.16.0.9 dev eth0
        route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
        nexthop id 4258856963 via fd00:16::9 dev eth0
        route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
        IPv4 skipped: gateway 172.17.0.9 is not on the link of eth0
        IPv6 skipped: gateway fd00:17::9 is not on the link of eth0
    "#]],
    );
}

#[test]
fn host_gw_to_vxlan_is_direct_on_our_link_and_tunnelled_elsewhere_with_mixed() {
    check_plan(
        &node(HOST_GW, MIXED),
        &[NEAR, FAR],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            route 10.244.3.0/32 dev flannel.1
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            route fd00:244:0:3::/128 dev flannel-v6.1
            nexthop id 4258856963 via fd00:16::9 dev eth0
            route fd00:244:0:3::/64 nhid 4258856963 via fd00:16::9 dev eth0
            fdb 02:00:ac:11:00:09 dst 172.17.0.9 dev flannel.1
            neigh 10.244.7.0 lladdr 02:00:ac:11:00:09 dev flannel.1
            nexthop id 4029403164 via 10.244.7.0 dev flannel.1 onlink
            route 10.244.7.0/24 nhid 4029403164 via 10.244.7.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:7:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
            route fd00:244:0:7::/64 nhid 4191748103 via fd00:244:0:7:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn no_host_is_adjacent_on_a_link_of_host_addresses() {
    let cloud = "eth0 172.16.0.5/32 fd00:16::5/128";
    let config = format!(r#"{{{NETWORKS},"Mixed":true,"Backend":{HOST_GW}}}"#);
    check_plan(
        &local(&config, cloud, OWN),
        &[NEAR],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn no_host_is_adjacent_on_a_point_to_point_link() {
    let vpn = "eth0 172.16.0.5/24 fd00:16::5/64 no-layer2";
    let config = format!(r#"{{{NETWORKS},"Backend":{HOST_GW}}}"#);
    let peer = format!("{NEAR} host-gw");
    check_plan(
        &local(&config, vpn, OWN),
        &[&peer],
        expect![[r"
        IPv4 skipped: gateway 172.16.0.9 is not on the link of eth0
        IPv6 skipped: gateway fd00:16::9 is not on the link of eth0
    "]],
    );
    let config = format!(r#"{{{NETWORKS},"Backend":{{"Type":"vxlan","DirectRouting":true}}}}"#);
    check_plan(
        &local(&config, vpn, OWN),
        &[NEAR],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn a_vxlan_peer_without_vtep_is_skipped() {
    check_plan(
        &node(VXLAN, ""),
        &[&format!("{NEAR} no-vtep")],
        expect![[r"
        IPv4 skipped: it published no VTEP
        IPv6 skipped: it published no VTEP
    "]],
    );
}

#[test]
fn an_old_peer_need_not_name_its_vni() {
    check_plan(
        &node(VXLAN, ""),
        &[&format!("{NEAR} vni=none")],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn a_tunnel_of_another_vni_is_unusable() {
    check_plan(
        &node(VXLAN, ""),
        &[&format!("{NEAR} vni=2")],
        expect![[r"
        IPv4 skipped: its VTEP has VNI 2, ours has 1
        IPv6 skipped: its VTEP has VNI 2, ours has 1
    "]],
    );
    check_plan(
        &node(HOST_GW, MIXED),
        &[&format!("{FAR} vni=2")],
        expect![[r"
            IPv4 skipped: gateway 172.17.0.9 is not on the link of eth0, and its VTEP has VNI 2, ours has 1
            IPv6 skipped: gateway fd00:17::9 is not on the link of eth0, and its VTEP has VNI 2, ours has 1
        "]],
    );
}

#[test]
fn an_unknown_backend_is_skipped_by_name() {
    let peer = format!("{NEAR} wireguard");
    check_plan(
        &node(VXLAN, ""),
        &[&peer],
        expect![[r#"
            IPv4 skipped: this version does not support its backend "wireguard"
            IPv6 skipped: this version does not support its backend "wireguard"
        "#]],
    );
    check_plan(
        &node(HOST_GW, ""),
        &[&peer],
        expect![[r#"
            IPv4 skipped: this version does not support its backend "wireguard"
            IPv6 skipped: this version does not support its backend "wireguard"
        "#]],
    );
    check_plan(
        &node(VXLAN, MIXED),
        &[&peer],
        expect![[r#"
        IPv4 skipped: this version does not support its backend "wireguard"
        IPv6 skipped: this version does not support its backend "wireguard"
    "#]],
    );
}

#[test]
fn each_family_has_its_own_path() {
    let peer = "10.244.3.0/24@172.16.0.9 fd00:244:0:3::/64@fd00:17::9 vtep host-gw";
    check_plan(
        &node(HOST_GW, MIXED),
        &[peer],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            route 10.244.3.0/32 dev flannel.1
            nexthop id 4096512012 via 172.16.0.9 dev eth0
            route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            fdb 02:06:00:00:00:09 dst fd00:17::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn a_peer_of_one_family_is_reached_in_that_one() {
    check_plan(
        &node(VXLAN, ""),
        &["10.244.3.0/24@172.16.0.9"],
        expect![[r"
            fdb 02:00:ac:10:00:09 dst 172.16.0.9 dev flannel.1
            neigh 10.244.3.0 lladdr 02:00:ac:10:00:09 dev flannel.1
            nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
        "]],
    );
    check_plan(
        &node(VXLAN, ""),
        &["fd00:244:0:3::/64@fd00:16::9"],
        expect![[r"
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}

#[test]
fn a_peer_of_the_other_family_alone_is_skipped() {
    let v4 = local(r#"{"Network":"10.244.0.0/16"}"#, ETH0, "10.244.1.0/24");
    check_plan(
        &v4,
        &["fd00:244:0:3::/64@fd00:16::9"],
        expect![[r"
        IPv4 skipped: it has no address family in common with this node
    "]],
    );
}

#[test]
fn a_node_without_ipv4_reaches_its_peers() {
    let config = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48"}"#;
    let v6 = local(config, ETH0, "fd00:244:0:1::/64");
    check_plan(
        &v6,
        &[NEAR],
        expect![[r"
            fdb 02:06:00:00:00:09 dst fd00:16::9 dev flannel-v6.1
            neigh fd00:244:0:3:: lladdr 02:06:00:00:00:09 dev flannel-v6.1
            nexthop id 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
            route fd00:244:0:3::/64 nhid 4191748099 via fd00:244:0:3:: dev flannel-v6.1 onlink
        "]],
    );
}
