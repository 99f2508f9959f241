//! Tests of the host facts that the daemon reads.

use std::fs;

use tweed::kernel::{Kernel, NetlinkKernel};
use tweed::model::entry::KernelState;
use tweed::model::node::{Facts, Interface, InterfaceAddress, Lifetime};
use tweed::model::prefix::Family;
use tweed::plan::diff::diff;

use crate::host::{
    address, addresses_are_in_use, dump, establish, everything, ip, name, on_a_host, scope, shows,
};

async fn facts() -> Facts {
    NetlinkKernel::open().unwrap().facts(None).await.unwrap()
}

fn interface<'a>(facts: &'a Facts, link: &str) -> &'a Interface {
    facts.interfaces.iter().find(|interface| interface.name == name(link)).unwrap()
}

fn own(interface: &Interface, text: &str) -> InterfaceAddress {
    interface.addresses.iter().find(|own| own.address == address(text)).unwrap().clone()
}

#[test]
fn interfaces_are_listed_in_the_kernels_order_with_their_capabilities() {
    on_a_host(async || {
        ip("link set eth0 mtu 1400");
        ip("link add down0 type bridge");
        ip("tuntap add tun0 mode tun");
        ip("link set tun0 up");
        shows("link show eth0", "state UP").await;
        let facts = facts().await;
        let names: Vec<&str> = facts.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["lo", "far0", "eth0", "down0", "tun0"]);
        let eth0 = interface(&facts, "eth0");
        assert_eq!((eth0.mtu, eth0.up, eth0.layer2), (1400, true, true));
        assert!(!interface(&facts, "lo").layer2);
        assert!(!interface(&facts, "tun0").layer2);
        let down0 = interface(&facts, "down0");
        assert_eq!((down0.up, down0.layer2), (false, true));
        assert!(interface(&facts, "lo").up, "a state that is not known is no reason to doubt");
    });
}

#[test]
fn one_listing_shows_the_host_and_what_the_kernel_holds() {
    on_a_host(async || {
        ip("addr add 172.16.0.5/24 dev eth0");
        ip("route add default via 172.16.0.9");
        let mut kernel = NetlinkKernel::open().unwrap();
        assert_eq!(establish(&mut kernel, &everything()).await, [""; 0]);
        addresses_are_in_use().await;
        let read = kernel.read(None, &scope(), &KernelState::default()).await.unwrap();
        assert_eq!(read.0.default_routes, [(Family::V4, Some(name("eth0")))]);
        assert!(diff(&everything(), &read.1, &scope()).is_empty());
        assert_eq!(read, (facts().await, dump(&mut kernel).await));
    });
}

#[test]
fn an_interface_without_carrier_is_not_up() {
    on_a_host(async || {
        shows("link show eth0", "state UP").await;
        assert!(interface(&facts().await, "eth0").up);
        ip("link set far0 down");
        shows("link show eth0", "state LOWERLAYERDOWN").await;
        assert!(!interface(&facts().await, "eth0").up);
    });
}

#[test]
fn addresses_keep_their_order_and_have_a_lifetime() {
    on_a_host(async || {
        ip("addr add 172.16.0.5/24 dev eth0");
        ip("addr add 172.17.0.1/16 dev eth0 valid_lft 3600 preferred_lft 1800");
        ip("addr add 172.18.0.1/16 dev eth0 valid_lft 3600 preferred_lft 0");
        fs::write("/proc/sys/net/ipv6/conf/eth0/accept_dad", "1").unwrap();
        // Many probes keep the address tentative for minutes.
        fs::write("/proc/sys/net/ipv6/conf/eth0/dad_transmits", "1000").unwrap();
        ip("addr add fd17::1/64 dev eth0");
        let facts = facts().await;
        let eth0 = interface(&facts, "eth0");
        let v4: Vec<String> = eth0
            .addresses
            .iter()
            .filter(|own| own.address.is_ipv4())
            .map(|own| format!("{}/{}", own.address, own.prefix_len))
            .collect();
        assert_eq!(v4, ["172.16.0.1/24", "172.17.0.1/16", "172.18.0.1/16", "172.16.0.5/24"]);
        assert_eq!(own(eth0, "172.16.0.1").lifetime, Lifetime::Permanent);
        // In IPv6 the flag for a second address of the subnet has another meaning.
        assert_eq!(own(eth0, "172.16.0.5").lifetime, Lifetime::Permanent);
        assert_eq!(own(eth0, "172.17.0.1").lifetime, Lifetime::Dynamic);
        assert!(own(eth0, "172.17.0.1").usable);
        assert!(!own(eth0, "172.18.0.1").usable, "deprecated");
        assert!(own(eth0, "fd00:16::1").usable);
        assert!(!own(eth0, "fd17::1").usable, "tentative");
    });
}

#[test]
fn default_routes_name_their_devices() {
    on_a_host(async || {
        assert_eq!(facts().await.default_routes, []);
        ip("route add default via 172.16.0.254 dev eth0 metric 100");
        ip(
            "route add default metric 50 nexthop via 172.16.0.253 dev eth0 nexthop via 172.16.0.252 dev eth0",
        );
        ip("-6 route add default via fd00:16::fe dev eth0");
        ip("route add default via 172.16.0.254 dev eth0 table 100");
        ip("route add unreachable default metric 200");
        let eth0 = || Some(name("eth0"));
        let expected = [(Family::V4, None), (Family::V4, eth0()), (Family::V6, eth0())];
        assert_eq!(facts().await.default_routes, expected);
    });
}

#[test]
fn the_route_to_an_address_is_the_kernels() {
    on_a_host(async || {
        let mut kernel = NetlinkKernel::open().unwrap();
        for (target, source) in [("172.16.0.9", "172.16.0.1"), ("fd00:16::9", "fd00:16::1")] {
            let facts = kernel.facts(Some(address(target))).await.unwrap();
            let reach = facts.reach.unwrap();
            assert_eq!((reach.link, reach.source), (name("eth0"), Some(address(source))));
        }
        let facts = kernel.facts(Some(address("198.51.100.1"))).await.unwrap();
        assert_eq!(facts.reach, None);
    });
}
