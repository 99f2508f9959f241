//! Tests of the tunnel device: as flannel creates it, corrected in place, recreated where required.

use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::entry::{Entry, KernelState, Key, Link, LinkKind, Vxlan};
use tweed::plan::diff::{Op, diff};

use crate::host::{
    address, apply, device, dump, establish, everything, ip, missing, name, on_a_host, run, scope,
    tunnel, tunnel_v6, tunnelled,
};

fn details(link: &str) -> String {
    ip(&format!("-d link show {link}"))
}

fn index(link: &str) -> String {
    let shown = ip(&format!("link show {link}"));
    shown.split(':').next().unwrap().to_owned()
}

fn vxlan(link: &Link) -> Vxlan {
    let LinkKind::Vxlan(vxlan) = &link.kind else { panic!("{link} is no vxlan device") };
    Vxlan::clone(vxlan)
}

fn held(state: &KernelState) -> Link {
    let Some(Entry::Link(link)) = state.get(&Key::Link(name("flannel.1"))) else {
        panic!("no flannel.1 in {state:?}")
    };
    link.clone()
}

/// The peers that are reached through the tunnel device `link`.
fn peers_through(link: Link) -> KernelState {
    let mut state: KernelState = device(link, "10.244.1.0/32").into_iter().collect();
    state.extend(tunnelled("flannel.1", "10.244.2.0/24", "172.16.5.2", "0e:00:00:00:00:02"));
    state.extend(tunnelled("flannel.1", "10.244.3.0/24", "172.16.5.3", "0e:00:00:00:00:03"));
    state
}

#[test]
fn the_device_equals_flannels() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        let v4 = details("flannel.1");
        assert!(v4.contains("<BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1450"), "{v4}");
        assert!(v4.contains("link/ether 0e:00:00:00:00:01"), "{v4}");
        assert!(!v4.contains("qlen"), "a queue in front of a tunnel: {v4}");
        let expected = "vxlan id 1 local 172.16.0.1 dev eth0 srcport 0 0 dstport 8472 nolearning \
                        ttl auto ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx addrgenmode";
        assert!(v4.contains(expected), "{v4}");
        let v6 = details("flannel-v6.1");
        assert!(v6.contains(&expected.replace("172.16.0.1", "fd00:16::1")), "{v6}");
        let addresses = ip("-4 addr show flannel.1");
        assert!(addresses.contains("inet 10.244.1.0/32 scope global flannel.1"), "{addresses}");
    });
}

#[test]
fn routes_and_entries_equal_flannels_except_for_the_protocol() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        let route = ip("-N route show 10.244.2.0/24");
        assert_eq!(route.trim_end(), "10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 241 onlink");
        let neighbour = ip("neigh show 10.244.2.0 dev flannel.1");
        assert_eq!(neighbour.trim_end(), "10.244.2.0 lladdr 0e:00:00:00:00:02 PERMANENT");
        let fdb = run("bridge fdb show dev flannel.1");
        assert_eq!(fdb.trim_end(), "0e:00:00:00:00:02 dst 172.16.5.2 self permanent");
    });
}

#[test]
fn gbp_and_learning_are_set_where_wanted() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let wanted = Vxlan { gbp: true, learning: true, port: 4789, ..vxlan(&tunnel()) };
        let wanted = Link { kind: LinkKind::Vxlan(Box::new(wanted)), ..tunnel() };
        assert_eq!(establish(&mut kernel, &peers_through(wanted)).await, [""; 0]);
        let shown = details("flannel.1");
        assert!(shown.contains("gbp") && shown.contains("dstport 4789"), "{shown}");
        assert!(!shown.contains("nolearning"), "{shown}");
    });
}

#[test]
fn mtu_learning_and_state_are_corrected_in_place() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &peers_through(tunnel())).await;
        let born_as = index("flannel.1");
        ip("link set flannel.1 mtu 1400");
        ip("link set flannel.1 type vxlan id 1 learning");
        assert_eq!(missing(&mut kernel, &peers_through(tunnel())).await.len(), 1);
        assert_eq!(establish(&mut kernel, &peers_through(tunnel())).await, [""; 0]);
        ip("link set flannel.1 down");
        assert_eq!(establish(&mut kernel, &peers_through(tunnel())).await, [""; 0]);
        assert_eq!(index("flannel.1"), born_as);
    });
}

#[test]
fn a_corrected_mac_keeps_the_device_and_flushes_its_neighbours() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &peers_through(tunnel())).await;
        let born_as = index("flannel.1");
        let moved = Link { mac: "0e:00:00:00:00:77".parse().unwrap(), ..tunnel() };
        let still = establish(&mut kernel, &peers_through(moved.clone())).await;
        assert_eq!(still.len(), 2, "the kernel drops what a station with another MAC had learnt");
        assert!(still.iter().all(|op| op.starts_with("+ neigh")), "{still:?}");
        assert_eq!(establish(&mut kernel, &peers_through(moved)).await, [""; 0]);
        assert_eq!(index("flannel.1"), born_as);
    });
}

#[test]
fn a_device_with_another_port_is_recreated_with_its_entries() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &peers_through(tunnel())).await;
        let born_as = index("flannel.1");
        let other = Vxlan { port: 4789, ..vxlan(&tunnel()) };
        let other = Link { kind: LinkKind::Vxlan(Box::new(other)), ..tunnel() };
        assert_eq!(establish(&mut kernel, &peers_through(other)).await, [""; 0]);
        assert_ne!(index("flannel.1"), born_as);
    });
}

#[test]
fn a_foreign_link_with_the_devices_name_is_replaced() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip("link add flannel.1 type bridge");
        let impostor = held(&dump(&mut kernel).await);
        assert_eq!(impostor.kind, LinkKind::Other("bridge".to_owned()));
        assert_eq!(establish(&mut kernel, &peers_through(tunnel())).await, [""; 0]);
    });
}

#[test]
fn a_device_recreated_by_another_program_is_filled_again() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &peers_through(tunnel())).await;
        ip("link del flannel.1");
        ip("link add flannel.1 address 0e:00:00:00:00:01 mtu 1450 type vxlan id 1 dev eth0 \
            local 172.16.0.1 dstport 8472 nolearning");
        // There is no dump in between: the known index is that of the old device.
        let mut on_it = peers_through(tunnel());
        on_it.retain(|entry| !matches!(entry, Entry::Link(_)));
        let refused =
            kernel.apply(&on_it.into_iter().map(Op::Create).collect::<Vec<_>>()).await.unwrap();
        assert!(!refused.is_empty(), "an index of the past was taken for good");
        assert_eq!(establish(&mut kernel, &peers_through(tunnel())).await, [""; 0]);
    });
}

#[test]
fn a_device_whose_underlay_is_gone_is_read_without_it() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip("link add other0 type veth peer name other1");
        ip("link add flannel.1 type vxlan id 1 dev other0 local 172.16.0.1 dstport 8472");
        assert_eq!(vxlan(&held(&dump(&mut kernel).await)).underlay, Some(name("other0")));
        ip("link del other0");
        // Some kernel versions remove the device with its underlay, others keep it without.
        if let Some(Entry::Link(orphan)) =
            dump(&mut kernel).await.get(&Key::Link(name("flannel.1")))
        {
            assert_eq!(vxlan(orphan).underlay, None);
        }
    });
}

#[test]
fn the_default_destination_and_misses_of_a_foreign_device_are_read() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        ip("link add flannel.1 type vxlan id 1 dev eth0 remote 172.16.0.7 dstport 8472 l2miss");
        let seen = vxlan(&held(&dump(&mut kernel).await));
        assert_eq!(
            (seen.group, seen.l2miss, seen.local),
            (Some(address("172.16.0.7")), true, None)
        );
        let fdb = dump(&mut kernel).await;
        assert!(!fdb.keys().any(|key| matches!(key, Key::Fdb(..))), "the entry for all others");
    });
}

#[test]
fn removing_the_device_twice_succeeds_twice() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let both = [Entry::Link(tunnel()), Entry::Link(tunnel_v6())];
        apply(&mut kernel, both.iter().cloned().map(|entry| Op::Create(entry.into())).collect())
            .await;
        apply(&mut kernel, both.iter().cloned().map(|entry| Op::Remove(entry.into())).collect())
            .await;
        apply(&mut kernel, both.iter().cloned().map(|entry| Op::Remove(entry.into())).collect())
            .await;
        let left = dump(&mut kernel).await;
        assert!(diff(&KernelState::default(), &left, &scope()).is_empty());
        assert!(!left.keys().any(|key| matches!(key, Key::Link(_))));
    });
}
