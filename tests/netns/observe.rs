//! Tests that foreign changes of tweed's entries are notified, and no others.

use std::sync::Arc;

use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::entry::{Entry, KernelState, Key};
use tweed::plan::diff::Op;

use crate::host::{
    address, direct, dump, establish, everything, missing, name, notifications, on_a_host, prefix,
    run,
};

/// A kernel that holds everything, after all notifications of that.
async fn settled() -> NetlinkKernel {
    let mut kernel = NetlinkKernel::open().unwrap();
    assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
    notifications(&mut kernel).await;
    kernel
}

/// The notifications after `commands`, without repeated ones: the kernel sends some again after an
/// IPv6 address was added.
async fn notifications_after(kernel: &mut NetlinkKernel, commands: &[&str]) -> Vec<Observation> {
    for command in commands {
        run(command);
    }
    let mut observed = notifications(kernel).await;
    observed.retain(|observation| match observation {
        Observation::Holds(entry) => everything().get(&entry.key()) != Some(entry),
        _ => true,
    });
    observed
}

fn route_key(destination: &str) -> Key {
    let Entry::Route(route) = direct(destination, "::") else { unreachable!() };
    Entry::Route(route).key()
}

fn neighbour_key() -> Key {
    Key::Neighbour(name("flannel.1"), address("10.244.2.0"))
}

fn fdb_key() -> Key {
    Key::Fdb(name("flannel.1"), "0e:00:00:00:00:02".parse().unwrap())
}

#[test]
fn tweeds_own_changes_are_notified_as_written() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        let mut received = KernelState::default();
        for observation in notifications(&mut kernel).await {
            if let Observation::Holds(entry) = observation {
                received.insert(entry);
            }
        }
        let is_notified = |key: &Key| !matches!(key, Key::Link(_) | Key::Setting(..));
        for key in everything().keys().filter(is_notified) {
            assert_eq!(received.get(&key), everything().get(&key), "{key:?}");
        }
    });
}

#[test]
fn a_deleted_entry_is_notified_as_lost() {
    on_a_host(async || {
        let mut kernel = settled().await;
        let v6_neighbour = Key::Neighbour(name("flannel-v6.1"), address("fd00:10:244:2::"));
        let v4_address = Key::Address(name("flannel.1"), address("10.244.1.0"), 32);
        let v6_address = Key::Address(name("flannel-v6.1"), address("fd00:10:244:1::"), 128);
        for (command, key) in [
            ("ip route del 10.244.2.0/24", route_key("10.244.2.0/24")),
            ("ip -6 route del fd00:10:244:2::/64", route_key("fd00:10:244:2::/64")),
            ("ip route del 10.244.9.0/24", route_key("10.244.9.0/24")),
            ("ip neigh del 10.244.2.0 dev flannel.1", neighbour_key()),
            ("ip neigh del fd00:10:244:2:: dev flannel-v6.1", v6_neighbour),
            ("bridge fdb del 0e:00:00:00:00:02 dev flannel.1", fdb_key()),
            ("ip addr del 10.244.1.0/32 dev flannel.1", v4_address),
            ("ip addr del fd00:10:244:1::/128 dev flannel-v6.1", v6_address),
        ] {
            let observed = notifications_after(&mut kernel, &[command]).await;
            assert!(observed.contains(&Observation::Lost(key)), "{command}: {observed:?}");
        }
    });
}

#[test]
fn a_changed_entry_is_notified_in_its_new_form() {
    on_a_host(async || {
        let mut kernel = settled().await;
        for command in [
            "ip route replace 10.244.2.0/24 via 172.16.0.9 dev eth0 proto static",
            "ip -6 route replace fd00:10:244:2::/64 via fd00:16::9 dev eth0 proto static",
            "ip neigh replace 10.244.2.0 lladdr 0e:00:00:00:00:99 dev flannel.1 nud permanent",
            "ip neigh replace 10.244.2.0 lladdr 0e:00:00:00:00:02 dev flannel.1 nud reachable",
            "bridge fdb replace 0e:00:00:00:00:02 dev flannel.1 dst 172.16.5.99 self permanent",
        ] {
            let observed = notifications_after(&mut kernel, &[command]).await;
            let held = dump(&mut kernel).await;
            let [Observation::Holds(entry)] = observed.as_slice() else {
                panic!("{command}: {observed:?}")
            };
            assert_eq!(held.get(&entry.key()), Some(entry), "{command}");
            assert_ne!(everything().get(&entry.key()), Some(entry), "{command}");
        }
    });
}

#[test]
fn an_entry_in_an_unusable_form_is_lost() {
    on_a_host(async || {
        let mut kernel = settled().await;
        for (command, key) in [
            ("ip neigh replace 10.244.2.0 dev flannel.1 nud failed", neighbour_key()),
            (
                "bridge fdb replace 0e:00:00:00:00:02 dev flannel.1 dst 172.16.5.2 port 9999 self",
                fdb_key(),
            ),
        ] {
            let observed = notifications_after(&mut kernel, &[command]).await;
            assert!(observed.contains(&Observation::Lost(key)), "{command}: {observed:?}");
            assert_eq!(missing(&mut kernel, &everything()).await.len(), 1, "{command}");
            assert_eq!(establish(&mut kernel, &everything()).await, [""; 0], "{command}");
            notifications_after(&mut kernel, &[]).await;
        }
    });
}

#[test]
fn links_are_notified_by_name_for_every_change() {
    on_a_host(async || {
        let mut kernel = settled().await;
        for (command, names) in [
            ("ip link set flannel.1 down", &["flannel.1"][..]),
            ("ip link set flannel.1 name flannel.7", &["flannel.1", "flannel.7"]),
            ("ip link del flannel.7", &["flannel.7"]),
            ("ip link set eth0 mtu 1400", &["eth0"]),
            ("ip link add new0 type bridge", &["new0"]),
        ] {
            let observed = notifications_after(&mut kernel, &[command]).await;
            for link in names {
                let change = Observation::LinkChanged(name(link));
                assert!(observed.contains(&change), "{command}: {observed:?}");
            }
        }
    });
}

#[test]
fn addresses_of_other_links_are_notified_with_their_prefix() {
    on_a_host(async || {
        let mut kernel = settled().await;
        for command in ["add 172.16.0.77/24 dev eth0", "del 172.16.0.77/24 dev eth0"] {
            let command = format!("ip addr {command}");
            let observed = notifications_after(&mut kernel, &[&command]).await;
            let change = Observation::AddressChanged(name("eth0"), prefix("172.16.0.0/24"));
            assert!(observed.contains(&change), "{command}: {observed:?}");
        }
    });
}

#[test]
fn a_removed_link_is_reported_after_a_refusal_on_it_before_its_entries() {
    on_a_host(async || {
        for command in ["ip link set flannel.1 down", "ip link del flannel.1"] {
            let mut kernel = settled().await;
            run(command);
            let everything = everything();
            let route = everything.get(&route_key("10.244.2.0/24")).unwrap();
            let op = [Op::Create(Arc::new(route.clone()))];
            assert_eq!(kernel.apply(&op).await.unwrap().len(), 1, "{command}");
            let first = kernel.observe().await.unwrap();
            assert_eq!(first, Observation::LinkChanged(name("flannel.1")), "{command}");
            // A second refusal reports nothing, because the link is already known to be gone.
            notifications(&mut kernel).await;
            assert_eq!(kernel.apply(&op).await.unwrap().len(), 1, "{command}");
            assert_eq!(notifications(&mut kernel).await, [], "{command}");
        }
    });
}

#[test]
fn foreign_changes_are_not_notified() {
    on_a_host(async || {
        let mut kernel = settled().await;
        let observed = notifications_after(
            &mut kernel,
            &[
                "ip route add 10.250.0.0/24 via 172.16.0.9 dev eth0",
                "ip route add 10.244.5.0/24 via 172.16.0.9 dev eth0 table 100",
                "ip route add local 10.244.6.0/24 dev lo table local",
                "ip neigh add 172.16.0.50 lladdr 0e:00:00:00:00:50 dev eth0 nud permanent",
                "ip route del 10.250.0.0/24",
                "ip neigh del 172.16.0.50 dev eth0",
            ],
        )
        .await;
        assert_eq!(observed, []);
    });
}

#[test]
fn an_appended_route_changes_nothing() {
    on_a_host(async || {
        let mut kernel = settled().await;
        let append = "ip route append 10.244.9.0/24 via 172.16.0.200 dev eth0";
        assert_eq!(notifications_after(&mut kernel, &[append]).await, []);
        assert_eq!(missing(&mut kernel, &everything()).await, [""; 0]);
    });
}

#[test]
fn a_recreated_device_is_notified_with_its_new_index() {
    on_a_host(async || {
        let mut kernel = settled().await;
        let observed = notifications_after(
            &mut kernel,
            &[
                "ip link del flannel.1",
                "ip link add flannel.1 type vxlan id 1 dev eth0 local 172.16.0.1 dstport 8472",
                "bridge fdb add 0e:00:00:00:00:77 dev flannel.1 dst 172.16.5.7 self permanent",
            ],
        )
        .await;
        let fdb = Key::Fdb(name("flannel.1"), "0e:00:00:00:00:77".parse().unwrap());
        let is_notified =
            observed.iter().any(|o| matches!(o, Observation::Holds(e) if e.key() == fdb));
        assert!(is_notified, "{observed:?}");
    });
}

#[test]
fn changes_between_opening_and_the_first_dump_are_notified() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        run("ip route add 10.244.2.0/24 via 172.16.0.9 dev eth0");
        dump(&mut kernel).await;
        run("ip route del 10.244.2.0/24");
        let observed = notifications(&mut kernel).await;
        assert_eq!(observed.last(), Some(&Observation::Lost(route_key("10.244.2.0/24"))));
    });
}

#[test]
fn waiting_for_notifications_can_be_cancelled_without_loss() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        run("ip route add 10.244.2.0/24 via 172.16.0.9 dev eth0");
        dump(&mut kernel).await;
        notifications(&mut kernel).await;
        for _ in 0..100 {
            tokio::select! {
                biased;
                observation = kernel.observe() => panic!("nothing has happened: {observation:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        let observed = notifications_after(&mut kernel, &["ip route del 10.244.2.0/24"]).await;
        assert_eq!(observed, [Observation::Lost(route_key("10.244.2.0/24"))]);
    });
}

#[test]
fn an_overrun_is_reported_and_the_next_dump_is_complete() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::with_backlog(16 << 10).unwrap();
        let mut wanted = everything();
        wanted.extend((10..250).map(|n| direct(&format!("10.244.{n}.0/24"), "172.16.0.9")));
        establish(&mut kernel, &wanted).await;
        assert_eq!(kernel.observe().await.unwrap(), Observation::Overrun);
        assert_eq!(missing(&mut kernel, &wanted).await, [""; 0]);
        // Notifications in the old socket are older than the dump and must be dropped.
        let observed = notifications_after(&mut kernel, &["ip route del 10.244.2.0/24"]).await;
        assert_eq!(observed, [Observation::Lost(route_key("10.244.2.0/24"))]);
    });
}
