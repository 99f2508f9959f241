//! Any node, lease and kernel, from so small a set of values that conflicts are frequent.

use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use tweed::model::entry::{Entry, KernelState, Key};
use tweed::model::lease::{Lease, LeaseId};
use tweed::model::node_inputs::NodeInputs;
use tweed::model::path::Fallbacks;
use tweed::plan::backend;

use crate::difference::remove_routes_without_nexthop;
use crate::notation::{entry, lease, local, policy};

const CONFIGS: [&str; 5] = [
    r#""Backend":{"Type":"vxlan"}"#,
    r#""Backend":{"Type":"vxlan","DirectRouting":true,"Port":4789}"#,
    r#""Backend":{"Type":"host-gw"}"#,
    r#""Mixed":true,"Backend":{"Type":"vxlan","MTU":1400}"#,
    r#""Mixed":true,"Backend":{"Type":"host-gw"}"#,
];

/// A node in one network of two families, with or without a lease.
pub(crate) fn node() -> impl Strategy<Value = NodeInputs> {
    let own =
        select(vec!["", "10.244.1.0/24 fd00:244:0:1::/64", "10.244.2.0/24 fd00:244:0:1::/64"]);
    let flags = select(vec![
        "",
        "--ip-masq --tunnel-drop-pods=false",
        "--ip-masq --ip-blackhole-route --tunnel-notrack=false --tunnel-drop-unknown=false",
        "--ip-masq --iptables",
    ]);
    (select(CONFIGS.to_vec()), own, flags).prop_map(|(config, own, flags)| {
        let networks =
            r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#;
        let eth0 = "eth0 172.16.0.5/24 fd00:16::5/64";
        let local = local(&format!("{{{networks},{config}}}"), eth0, own);
        NodeInputs { policy: policy(flags), ..local }
    })
}

/// A lease with one of a few names, which often conflicts with another.
pub(crate) fn peer() -> impl Strategy<Value = Lease> {
    let subnet = select(vec![
        "10.244.3.0/24",
        "10.244.3.128/25",
        "10.244.4.0/24",
        "10.244.5.0/24",
        "10.244.6.0/24",
        "10.244.0.0/16",
        "10.99.0.0/24",
    ]);
    let subnet6 = select(vec!["", "fd00:244:0:3::/64", "fd00:244:0:4::/64"]);
    let address = select(vec!["16.0.6", "16.0.7", "16.0.8", "17.0.6", "16.0.5"]);
    let backend = select(vec!["", "no-vtep", "host-gw", "host-gw vtep", "wireguard", "vni=2"]);
    let name = select(vec!["a", "b", "c", "d", "e"]);
    (subnet, subnet6, address, backend, name, 10..14_u32).prop_map(
        |(subnet, subnet6, address, backend, name, created)| {
            let v6 = if subnet6.is_empty() {
                String::new()
            } else {
                let (net, host) = (&address[..2], &address[5..]);
                format!("{subnet6}@fd00:{net}::{host}")
            };
            let words = format!("{subnet}@172.{address} {v6} {backend} created={created}");
            Lease { id: LeaseId::new(name), ..lease(&words) }
        },
    )
}

/// The plan of `local` for peers that are all accepted.
pub(crate) fn planned(local: &NodeInputs, peers: &[Lease]) -> KernelState {
    let backends = backend::backends(local);
    let mut state = backend::plan_local(local);
    for peer in peers {
        state.extend(backend::plan_peer(&backends, peer, &Fallbacks::new()).entries().cloned());
    }
    state
}

/// Peers of different subnets.
pub(crate) fn peers() -> impl Strategy<Value = Vec<Lease>> {
    let peer = (select(vec!["16.0.6", "17.0.6"]), select(vec!["", "host-gw", "host-gw vtep"]));
    (btree_set(3..9_u8, 0..6), vec(peer, 6)).prop_map(|(numbers, peers)| {
        let peer = |(number, (net, backend)): (u8, (&str, &str))| {
            let net = &net[..4];
            let v6 = format!("fd00:244:0:{number}::/64@fd00:{}::{number}", &net[..2]);
            lease(&format!("10.244.{number}.0/24@172.{net}.{number} {v6} {backend}"))
        };
        numbers.into_iter().zip(peers).map(peer).collect()
    })
}

/// Entries of other programs, or of an earlier run of tweed.
const STRAYS: [&str; 41] = [
    "table ip tweed-tunnel.1 { } and 1 of another form",
    "element ip tweed-tunnel.1 peers { 172.16.0.66 }",
    "element ip tweed-tunnel.1 renewed { udp timeout 5s }",
    "element ip tweed-tunnel.2 renewed { udp timeout 86400s }",
    "element ip6 tweed-tunnel.1 peers { fd00:16::66 }",
    "element ip tweed-tunnel.2 peers { 172.16.0.66 }",
    "table ip tweed.1 { } and 1 of another form",
    "table ip6 tweed.1 { }",
    "table ip tweed.2 { }",
    "table ip flannel-ipv4 { } and 2 of another form",
    "chain iptables-nft -t nat FLANNEL-POSTRTG { -j RETURN; }",
    "chain iptables-nft -t filter FLANNEL-FWD { } and 2 of another form",
    "chain iptables-nft -t filter FLANNEL-FWD { -s 10.244.0.0/16 -j ACCEPT; } before a drop",
    "chain ip6tables-legacy -t filter FLANNEL-FWD { -j ACCEPT; } before a drop",
    "route unreachable 10.244.1.0/24 metric 4294967295",
    "link flannel.1 up mtu 1500 address 02:00:00:00:00:01 type dummy",
    "link flannel.1 down mtu 1450 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning",
    "link flannel.1 up mtu 1280 address 02:00:00:00:00:01 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 learning",
    "link flannel.1 up mtu 1450 address 02:00:00:00:00:01 type vxlan id 1 remote 239.1.1.1 local 172.16.0.5 dev eth0 dstport 8472 nolearning",
    "rp_filter strict dev eth0",
    "rp_filter strict dev flannel.1",
    "accept_ra 1 dev flannel.1",
    "addr 10.244.7.0/32 dev flannel.1",
    "addr 192.168.7.1/24 dev flannel.1",
    "fdb 02:00:00:00:00:66 dst 172.16.0.66 dev flannel.1",
    "fdb 02:00:ac:10:00:06 dst 172.16.0.66 dev flannel.1",
    "neigh 10.244.3.0 lladdr 02:00:00:00:00:66 dev flannel.1",
    "neigh 10.244.4.0 lladdr 02:00:00:00:00:66 dev flannel.1 not permanent",
    "neigh 10.244.99.0 lladdr 02:00:00:00:00:66 dev flannel.1",
    "neigh 10.244.99.1 lladdr 02:00:00:00:00:66 dev flannel.1 not permanent",
    "route 10.244.3.0/24 via 172.16.0.66 dev eth0 proto 4",
    "route 10.244.4.0/24 via 10.244.4.0 dev flannel.1 proto 3 onlink",
    "route 10.244.5.0/24 via 172.16.0.6 dev eth0 proto 3",
    "route 10.244.6.0/24 via 172.16.0.66 dev eth0 metric 100",
    "route 10.244.6.0/24 via 172.16.0.66 dev eth0 metric 50 proto 4",
    "route 10.244.98.0/24 via 172.16.0.66 dev eth0",
    "route 10.244.99.0/24 via 172.16.0.66 dev eth0 proto 3",
    "route 10.244.97.0/24 proto 4",
    "route 10.244.1.0/24 dev cni0 proto 2",
    "route 10.99.0.0/24 via 172.16.0.66 dev eth0",
    "route fd00:244:0:3::/64 via fd00:16::66 dev eth0 metric 7 proto 3",
];

/// A kernel with the entries of another plan, additional ones, and missing ones.
pub(crate) fn kernel() -> impl Strategy<Value = KernelState> {
    let strays = vec(select(STRAYS.to_vec()), 0..8);
    (node(), peers(), strays, vec(any::<bool>(), 60)).prop_map(|(local, peers, strays, kept)| {
        let mut state = planned(&local, &peers);
        let mut kept = kept.into_iter().chain([true].into_iter().cycle());
        state.retain(|_| kept.next() == Some(true));
        state.extend(strays.into_iter().map(entry));
        possible(&state)
    })
}

/// Without entries on tunnel devices, in tables, or by nexthop objects, that do not exist.
fn possible(state: &KernelState) -> KernelState {
    let is_tunnel =
        |entry: &Entry| entry.link().is_some_and(|link| link.as_str().starts_with("flannel"));
    let has = |entry: &Entry| {
        let device = entry.link().cloned().unwrap();
        state.get(&Key::Link(device)).is_some()
    };
    let has_table = |entry: &Entry| {
        entry.table().is_none_or(|table| state.get(&Key::Table(table.clone())).is_some())
    };
    let is_possible = |entry: &Arc<Entry>| (!is_tunnel(entry) || has(entry)) && has_table(entry);
    let mut possible = state.clone().into_iter().filter(is_possible).collect();
    remove_routes_without_nexthop(&mut possible);
    possible
}
