//! Tests of the tunnel guard: creation, reading, notifications, and updates of single set elements.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tweed::kernel::{Kernel, NetlinkKernel, Observation};
use tweed::model::config::NetworkConfig;
use tweed::model::entry::{Element, Entry, KernelState, Key, Renewal, Table, TableName};
use tweed::model::policy::Guard;
use tweed::model::prefix::{Family, Prefix};
use tweed::plan::allow_list::{self, Guarded};
use tweed::plan::diff::{Op, diff};

use crate::firewall::tables::heard;
use crate::host::{
    address, apply, dump, establish, eventually, missing, name, on_a_host, prefix, run, scope,
};

/// The tables of both families.
pub(crate) fn tables() -> [Table; 2] {
    tables_for(false)
}

fn tables_for(looks_back_early: bool) -> [Table; 2] {
    let networks = ["10.244.0.0/16", "fd00:10:244::/56"].map(prefix);
    let config = NetworkConfig::parse(br#"{"Network":"10.244.0.0/16"}"#).unwrap();
    let (tunnel, underlays) = (config.backend.tunnel, [name("eth0")]);
    let table = |network: Prefix| {
        // The maximum number of endpoints.
        let ends = match network.family() {
            Family::V4 => ["172.16.0.1", "172.16.0.2", "192.0.2.1"].map(address),
            Family::V6 => ["fd00:16::1", "fd00:16::2", "2001:db8::1"].map(address),
        };
        let device = &name(match network.family() {
            Family::V4 => "flannel.1",
            Family::V6 => "flannel-v6.1",
        });
        let (tunnel, underlays, ends, probe_port) = (&tunnel, &underlays, &ends, Some(8475));
        let guarded =
            Guarded { tunnel, device, underlays, probe_port, ends, network, looks_back_early };
        allow_list::table(Guard::default(), guarded)
    };
    networks.map(table)
}

pub(crate) fn element(address: IpAddr) -> Entry {
    let family = Family::of(address);
    let table = TableName { family, name: "tweed-tunnel.1".to_owned() };
    Entry::Element(Element { table: Arc::new(table), address })
}

/// The entries of a guard with `peers` peers per family.
pub(crate) fn guarding(peers: u32) -> KernelState {
    let addresses = (1..=peers).flat_map(|number| {
        let v4 = Ipv4Addr::from_bits(0xac14_0000 + number);
        let v6 = Ipv6Addr::from_bits((0xfd00_0016 << 96) + (7 << 64) + u128::from(number));
        [IpAddr::from(v4), IpAddr::from(v6)]
    });
    let tables = tables();
    let renewals = tables.iter().filter_map(allow_list::renewal).map(Entry::Renewal);
    let renewals: Vec<Entry> = renewals.collect();
    let tables = tables.into_iter().map(Entry::Table);
    tables.chain(renewals).chain(addresses.map(element)).collect()
}

fn held_elements(state: &KernelState) -> usize {
    state.entries().filter(|entry| matches!(entry, Entry::Element(_))).count()
}

#[test]
fn a_guard_is_created_and_read_as_planned() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for desired in [guarding(3), guarding(1), guarding(0)] {
            assert_eq!(establish(&mut kernel, &desired).await, [""; 0]);
        }
        let gone = diff(&KernelState::default(), &dump(&mut kernel).await, &scope());
        apply(&mut kernel, gone).await;
        assert_eq!(run("nft list tables"), "");
    });
}

#[test]
fn the_guard_of_an_old_kernel_is_read_as_planned_too() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let desired: KernelState = tables_for(true).map(Entry::Table).into_iter().collect();
        assert_eq!(establish(&mut kernel, &desired).await, [""; 0]);
    });
}

#[test]
fn nft_creates_the_same_guard_from_its_text() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let desired = guarding(2);
        for entry in desired.entries() {
            let text = entry.to_string();
            let script = match entry {
                Entry::Renewal(_) | Entry::Element(_) => format!("add {text}"),
                _ => text,
            };
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), script).unwrap();
            run(&format!("nft -f {}", file.path().display()));
        }
        assert_eq!(missing(&mut kernel, &desired).await, [""; 0]);
    });
}

#[test]
fn a_single_element_is_notified_once() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &guarding(2)).await;
        heard(&mut kernel).await;
        for peer in ["172.20.0.9", "fd00:16::9"].map(address) {
            let element = element(peer);
            apply(&mut kernel, vec![Op::Create(element.clone().into())]).await;
            assert_eq!(heard(&mut kernel).await, [Observation::Holds(element.clone())]);
            // Adding an existing element is neither refused nor notified.
            apply(&mut kernel, vec![Op::Create(element.clone().into())]).await;
            assert_eq!(heard(&mut kernel).await, []);
            apply(&mut kernel, vec![Op::Remove(element.clone().into())]).await;
            assert_eq!(heard(&mut kernel).await, [Observation::Lost(element.key())]);
            apply(&mut kernel, vec![Op::Remove(element.into())]).await;
            assert_eq!(heard(&mut kernel).await, []);
        }
    });
}

#[test]
fn every_change_in_a_guard_is_notified_found_and_fixed() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let desired = guarding(3);
        establish(&mut kernel, &desired).await;
        heard(&mut kernel).await;
        for change in [
            "flush ruleset",
            "delete table ip tweed-tunnel.1",
            "flush chain ip tweed-tunnel.1 input",
            "flush set ip tweed-tunnel.1 peers",
            "delete element ip tweed-tunnel.1 peers { 172.20.0.2 }",
            "add element ip tweed-tunnel.1 peers { 172.20.0.66 }",
            "insert rule ip tweed-tunnel.1 input accept",
            "delete element ip tweed-tunnel.1 renewed { udp }",
            "delete element ip tweed-tunnel.1 renewed { udp }; add element ip tweed-tunnel.1 renewed { udp timeout 99d }",
            "delete element ip tweed-tunnel.1 renewed { udp }; add element ip tweed-tunnel.1 renewed { udp }",
            "add set ip tweed-tunnel.1 more { type ipv4_addr; }",
        ] {
            nft(change);
            let concerns = |observation: &Observation| match observation {
                Observation::TableChanged(table) => table.name == "tweed-tunnel.1",
                Observation::Holds(Entry::Element(_) | Entry::Renewal(_))
                | Observation::Lost(Key::Element(..) | Key::Renewal(_)) => true,
                _ => false,
            };
            assert!(heard(&mut kernel).await.iter().any(concerns), "{change}");
            assert_ne!(missing(&mut kernel, &desired).await, [""; 0], "{change}");
            assert_eq!(establish(&mut kernel, &desired).await, [""; 0], "{change}");
            heard(&mut kernel).await;
        }
    });
}

/// Runs a script of `nft(8)`.
fn nft(script: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), script).unwrap();
    run(&format!("nft -f {}", file.path().display()));
}

/// The element that keeps the IPv4 table dropping packets, as the kernel holds it.
fn renewal(state: &KernelState) -> Option<&Renewal> {
    let key = Key::Renewal(tables()[0].name.clone());
    state.get(&key).and_then(|entry| match entry {
        Entry::Renewal(renewal) => Some(renewal),
        _ => None,
    })
}

#[test]
fn a_guard_expires_without_renewal_and_works_again_after_one() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let desired = guarding(1);
        establish(&mut kernel, &desired).await;
        let short =
            Renewal { timeout: Duration::from_secs(1), ..Renewal::of(tables()[0].name.clone()) };
        let socket = std::net::UdpSocket::bind("127.0.0.1:8472").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut sent = 0_u8;
        let mut arrives = || {
            sent = sent.wrapping_add(1);
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            sender.send_to(&[8, 0, 0, 0, 0, 0, 1, 0, sent], "127.0.0.1:8472").unwrap();
            let mut packet = [0; 9];
            // An earlier packet may arrive late.
            while socket.recv(&mut packet).is_ok() {
                if packet[8] == sent {
                    return true;
                }
            }
            false
        };
        // The renewal is repeated in case the test itself took longer than its second.
        let is_closed = async || {
            let short = Op::Replace(Entry::Renewal(short.clone()).into());
            apply(&mut kernel, vec![short]).await;
            !arrives()
        };
        eventually(is_closed, || "open".to_owned()).await;
        while !arrives() {}
        assert_eq!(renewal(&dump(&mut kernel).await), None);
        assert_eq!(missing(&mut kernel, &desired).await.len(), 1);
        assert_eq!(establish(&mut kernel, &desired).await, [""; 0]);
        assert!(!arrives());
    });
}

#[test]
fn only_the_renewal_is_repeated_and_before_it_expires() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let desired = guarding(1);
        establish(&mut kernel, &desired).await;
        for (left, is_due) in [("82900s", false), ("82700s", true)] {
            nft(&format!(
                "delete element ip tweed-tunnel.1 renewed {{ udp }}
                 add element ip tweed-tunnel.1 renewed {{ udp timeout 86400s expires {left} }}"
            ));
            heard(&mut kernel).await;
            let held = dump(&mut kernel).await;
            assert_eq!(renewal(&held).map(Renewal::is_due), Some(is_due), "{left}");
            // The remaining time alone is not a difference.
            assert_eq!(diff(&desired, &held, &scope()), []);
        }
        let again = Op::Create(Entry::Renewal(Renewal::of(tables()[0].name.clone())).into());
        apply(&mut kernel, vec![again]).await;
        assert!(heard(&mut kernel).await.iter().all(|observation| {
            matches!(
                observation,
                Observation::Holds(Entry::Renewal(_)) | Observation::Lost(Key::Renewal(_))
            )
        }));
        assert!(renewal(&dump(&mut kernel).await).is_some_and(|renewal| !renewal.is_due()));
    });
}

#[test]
fn thousands_of_peers_are_admitted_together() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let many = guarding(20_000);
        assert_eq!(establish(&mut kernel, &many).await, [""; 0]);
        assert_eq!(held_elements(&dump(&mut kernel).await), 40_000);
        assert_eq!(establish(&mut kernel, &guarding(10)).await, [""; 0]);
        assert_eq!(held_elements(&dump(&mut kernel).await), 20);
    });
}

#[test]
fn a_refusal_does_not_stop_other_ops() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        // A name that the kernel refuses represents any refusal.
        let long = TableName { family: Family::V4, name: "t".repeat(300) };
        let bad = Table { name: long.into(), ..tables()[0].clone() };
        let gone = element(address("172.20.0.66"));
        let mut ops = vec![Op::Create(Entry::Table(bad.clone()).into())];
        ops.extend(guarding(5).into_iter().map(Op::Create));
        ops.push(Op::Remove(gone.into()));
        let refused = kernel.apply(&ops).await.unwrap();
        let refused: BTreeSet<Key> =
            refused.iter().map(|refused| refused.op.entry().key()).collect();
        assert_eq!(refused, [Key::Table(bad.name)].into());
        assert_eq!(missing(&mut kernel, &guarding(5)).await, [""; 0]);
    });
}

/// Virtual machines may run a cluster of their own, with the same VNI and port.
#[test]
fn packets_that_stay_on_a_bridge_of_the_host_are_not_dropped() {
    on_a_host(async || {
        std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1").unwrap();
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &guarding(2)).await;
        let mut machine = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let netns = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/net")).unwrap();
        let pid = machine.id().to_string();
        eventually(
            async || netns(&pid) != netns("thread-self"),
            || netns(&pid).display().to_string(),
        )
        .await;
        for line in [
            "ip link add vms up type bridge",
            "ip link add port1 up master vms type veth peer name vm1",
            "ip link add port2 up master vms type veth peer name vm2",
            "ip link set vm2 up",
            &format!("ip link set vm1 netns {pid}"),
            // Behind the chains of the guard.
            "nft add table ip after",
            "nft add chain ip after forward { type filter hook forward priority 10 ; }",
            "nft add rule ip after forward udp dport 8472 counter",
        ] {
            run(line);
        }
        // A VXLAN header with the VNI 1.
        let inside = |script: &str| {
            let words = ["-t", &pid, "-n", "bash", "-c", script];
            assert!(Command::new("nsenter").args(words).status().unwrap().success());
        };
        inside(
            "ip link set vm1 up; ip addr add 192.168.50.1/24 dev vm1; \
             ip neigh add 192.168.50.2 lladdr 02:00:00:00:00:02 dev vm1",
        );
        // A bridge notes a carrier a moment later, and drops packets until then.
        for port in ["port1", "port2"] {
            let state = || run(&format!("bridge link show dev {port}"));
            eventually(async || state().contains("state forwarding"), state).await;
        }
        inside(
            "for _ in 1 2 3; do \
             printf '\\x08\\0\\0\\0\\0\\0\\x01\\0' >/dev/udp/192.168.50.2/8472; done",
        );
        let passed = || run("nft list chain ip after forward");
        eventually(async || passed().contains("packets 3 "), passed).await;
        machine.kill().unwrap();
        machine.wait().unwrap();
    });
}
