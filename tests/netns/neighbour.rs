//! Tests that next hops are resolved without a packet, and that existing neighbour entries are
//! kept.

use tweed_netlink::rtnl::{NextHops, Resolution};

use std::fs;

use crate::host::{address, eventually, ip, on_a_host};

const MAC: &str = "lladdr 0e:00:00:00:00:50 dev eth0 nud";

#[test]
fn a_next_hop_with_a_known_hardware_address_is_kept() {
    on_a_host(async || {
        let mut next_hops = NextHops::open().unwrap();
        for link in ["172.16.0.", "fd00:16::"] {
            let states = ["permanent", "reachable", "stale", "noarp"];
            for (number, state) in (50..).zip(states) {
                let neighbour = format!("{link}{number}");
                let shown = || ip(&format!("neigh show {neighbour} dev eth0 nud all"));
                // The kernel may remove entries at any time if all namespaces of the machine
                // together have too many: then retry.
                let is_kept = async || {
                    ip(&format!("neigh replace {neighbour} {MAC} {state}"));
                    let resolution = next_hops.resolve(address(&neighbour)).unwrap();
                    resolution == Resolution::Done && shown().contains(&state.to_uppercase())
                };
                eventually(is_kept, || format!("{state}: {}", shown())).await;
            }
        }
    });
}

#[test]
fn the_kernel_resolves_a_next_hop_that_is_unknown() {
    on_a_host(async || {
        ip("route add 10.9.0.0/16 via 172.16.0.9");
        ip("route add fd09::/32 via fd00:16::9");
        // Many probes keep the kernel resolving for the whole test.
        for family in ["ipv4", "ipv6"] {
            fs::write(format!("/proc/sys/net/{family}/neigh/eth0/mcast_solicit"), "1000").unwrap();
        }
        let mut next_hops = NextHops::open().unwrap();
        for (target, neighbour) in [
            ("172.16.0.60", "172.16.0.60"),
            ("fd00:16::60", "fd00:16::60"),
            ("10.9.1.1", "172.16.0.9"),
            ("fd09::1", "fd00:16::9"),
        ] {
            let mut resolution = || next_hops.resolve(address(target)).unwrap();
            assert_eq!(resolution(), Resolution::UnderWay, "{target}");
            let shown = ip(&format!("neigh show {neighbour} dev eth0"));
            assert!(shown.contains("INCOMPLETE"), "{target}: {shown}");
            ip(&format!("neigh replace {neighbour} {MAC} reachable"));
            assert_eq!(resolution(), Resolution::Done, "{target}");
        }
    });
}

#[test]
fn without_a_route_nothing_is_resolved() {
    on_a_host(async || {
        ip("route add blackhole 10.9.0.0/16");
        let mut next_hops = NextHops::open().unwrap();
        for target in ["192.0.2.1", "10.9.1.1", "fd77::1"] {
            assert!(next_hops.resolve(address(target)).is_err(), "{target}");
        }
        assert_eq!(ip("-4 neigh show"), "");
    });
}
