//! IPv6 in pods: usable at once, also where settings cannot be written.

use std::fs;
use std::net::Ipv6Addr;
use std::thread;

use tweed_lab::install;

use crate::harness::kernel::Place;
use crate::harness::{Answer, DUAL, Node, Pod};

/// The number of pods that start at once. It keeps the kernel busy, so that an address takes longer to
/// become usable.
const PODS: usize = 24;

/// Whether the kernel delivers packets for `address` in `pod`, and answers requests for its MAC: it
/// has the local route, and has joined the group of neighbour solicitations.
fn is_usable(pod: &Pod, address: Ipv6Addr) -> bool {
    let list =
        |name: &'static str| move || fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let [routes, groups] =
        ["ipv6_route", "igmp6"].map(|name| pod.namespace().within(list(name)).unwrap().unwrap());
    let bits = address.to_bits();
    let local = format!("{bits:032x} 80 ");
    let group = format!("ff0200000000000000000001ff{:06x}", bits & 0xff_ffff);
    routes.lines().any(|line| line.starts_with(&local)) && groups.contains(&group)
}

#[test]
fn a_pod_can_use_its_ipv6_address_as_soon_as_its_add_has_returned() {
    let node = Node::new(DUAL);
    let config = node.config("1.1.0");
    let pods: Vec<_> = (0..PODS).map(|_| node.pod()).collect();
    let adding: Vec<_> = pods.iter().map(|pod| node.call("ADD", pod, &config).start()).collect();
    thread::scope(|scope| {
        for (pod, adding) in pods.iter().zip(adding) {
            scope.spawn(move || {
                let added = Answer::of(adding).addresses();
                let address = added[1].split('/').next().unwrap();
                assert!(is_usable(pod, address.parse().unwrap()), "{address}");
                assert!(pod.pings("fd00:10:244:7::1"), "{address}");
            });
        }
    });
}

#[test]
fn a_pod_gets_ipv6_where_settings_are_read_only() {
    let node = Node::new(DUAL);
    let config = node.config("1.1.0");
    // The first ADD enables forwarding.
    let _ = node.add(&node.pod(), &config).result();
    let program = node.home.path().join("read-only");
    let plugin = env!("CARGO_BIN_EXE_flannel");
    let mount = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys";
    let script = format!("#!/bin/sh\nexec unshare --mount sh -c '{mount} && exec {plugin}'\n");
    install(&script, &program).unwrap();
    let pod = node.pod();
    let added = node.call("ADD", &pod, &config).program(&program).run();
    assert_eq!(added.addresses().len(), 2);
    assert_eq!(pod.sysctl("ipv6/conf/eth0/keep_addr_on_down"), "0");
    assert!(pod.pings("fd00:10:244:7::1"));
}
