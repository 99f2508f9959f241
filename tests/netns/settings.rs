//! Tests of link settings, which are files instead of messages.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::entry::{Entry, KernelState, Key, Setting, SettingKind};
use tweed::plan::diff::Op;

use crate::host::{apply, dump, establish, everything, name, on_a_host, run};

fn rp_filter(link: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{link}/rp_filter")
}

fn filter(link: &str, strict: bool) -> Entry {
    Entry::Setting(Setting { link: name(link), kind: SettingKind::ReversePath, on: strict })
}

fn is_strict(state: &KernelState) -> bool {
    match state.get(&Key::Setting(SettingKind::ReversePath, name("eth0"))) {
        Some(Entry::Setting(filter)) => filter.on,
        _ => panic!("eth0 has no filter"),
    }
}

#[test]
fn the_larger_of_two_filters_applies() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for (all, own, strict) in
            [(0, 0, false), (0, 1, true), (1, 0, true), (1, 2, false), (2, 1, false), (2, 0, false)]
        {
            fs::write(rp_filter("all"), all.to_string()).unwrap();
            fs::write(rp_filter("eth0"), own.to_string()).unwrap();
            assert_eq!(is_strict(&dump(&mut kernel).await), strict, "all {all}, own {own}");
        }
    });
}

#[test]
fn a_filter_is_loosened_for_any_value_of_all_and_restored() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        fs::write(rp_filter("all"), "1").unwrap();
        assert!(is_strict(&dump(&mut kernel).await));
        apply(&mut kernel, vec![Op::Replace(filter("eth0", false).into())]).await;
        assert_eq!(fs::read_to_string(rp_filter("eth0")).unwrap(), "2\n");
        assert!(!is_strict(&dump(&mut kernel).await));
        apply(&mut kernel, vec![Op::Replace(filter("eth0", true).into())]).await;
        assert!(is_strict(&dump(&mut kernel).await));
    });
}

#[test]
fn a_tunnel_computes_checksums_when_set_until_it_is_recreated() {
    let checksum = |on| {
        let link = name("flannel.1");
        Entry::Setting(Setting { link, kind: SettingKind::TxChecksum, on })
    };
    on_a_host(async move || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        let key = checksum(true).key();
        for offloaded in [true, false, true, false] {
            let wanted = checksum(offloaded);
            apply(&mut kernel, vec![Op::Replace(wanted.clone().into())]).await;
            assert_eq!(dump(&mut kernel).await.get(&key), Some(&wanted));
        }
        run("ip link del flannel.1");
        assert_eq!(dump(&mut kernel).await.get(&key), None);
        let refused = kernel.apply(&[Op::Create(checksum(false).into())]).await;
        let words = refused.unwrap()[0].reason.clone();
        assert!(words.contains("ethtool -K flannel.1 tx-checksum-ip-generic off"), "{words}");
        establish(&mut kernel, &everything()).await;
        let recreated = checksum(true);
        assert_eq!(dump(&mut kernel).await.get(&key), Some(&recreated));
    });
}

#[test]
fn a_filter_of_a_missing_link_is_refused_and_its_advertisements_are_not() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        let accept = Entry::Setting(SettingKind::AcceptRa.off(&name("gone0")));
        let ops = vec![Op::Create(filter("gone0", false).into()), Op::Create(accept.into())];
        let refused = kernel.apply(&ops).await.unwrap();
        let refused: Vec<&Op> = refused.iter().map(|refused| &refused.op).collect();
        assert_eq!(refused, [&ops[0]]);
    });
}

/// As with `ipv6.disable=1`: below 1,280 bytes, a link has no IPv6. Otherwise each dump would find the
/// setting missing.
#[test]
fn on_a_link_without_ipv6_advertisements_are_off() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        run("ip link set flannel.1 mtu 1000");
        assert!(fs::metadata("/proc/sys/net/ipv6/conf/flannel.1").is_err());
        let off = Entry::Setting(SettingKind::AcceptRa.off(&name("flannel.1")));
        assert_eq!(dump(&mut kernel).await.get(&off.key()), Some(&off));
        apply(&mut kernel, vec![Op::Create(off.into())]).await;
    });
}

#[test]
fn settings_that_cannot_be_written_are_named() {
    on_a_host(async || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        run("mount --bind /proc/sys /proc/sys");
        run("mount -o remount,ro,bind /proc/sys");
        let mut kernel = NetlinkKernel::open().unwrap();
        let refused = kernel.apply(&[Op::Replace(filter("eth0", false).into())]).await.unwrap();
        assert_eq!(
            refused[0].reason,
            "net/ipv4/conf/eth0/rp_filter cannot be written (read-only filesystem or storage medium): \
             set it to 2 on this host"
        );
    });
}

#[test]
fn router_advertisements_are_refused_on_tweeds_devices() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        establish(&mut kernel, &everything()).await;
        for link in ["flannel.1", "flannel-v6.1"] {
            let file = format!("/proc/sys/net/ipv6/conf/{link}/accept_ra");
            assert_eq!(fs::read_to_string(&file).unwrap(), "0\n");
            fs::write(&file, "2").unwrap();
            let held = dump(&mut kernel).await;
            let accept = Entry::Setting(SettingKind::AcceptRa.on(&name(link)));
            assert_eq!(held.get(&accept.key()), Some(&accept));
        }
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
    });
}
