//! The MAC of a bridge, the addresses that its gateways replace, and the moment when a new one is
//! in use.

use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;

use tweed_netlink::Protocol;

use super::*;

#[test]
fn a_generated_mac_is_unicast_and_local() {
    for _ in 0..64 {
        assert_eq!(made_up_mac().unwrap().octets()[0] & 0b11, 0b10);
    }
}

fn present(addresses: &[&str]) -> Vec<Address> {
    let address = |text: &&str| Address {
        link: 1,
        network: text.parse().unwrap(),
        is_global: true,
        detection: Detection::Done,
    };
    addresses.iter().map(address).collect()
}

fn of(there: &[&str], gateways: &[&str]) -> Vec<String> {
    let gateways: Vec<_> = gateways.iter().map(|text| text.parse().unwrap()).collect();
    rivals(&present(there), &gateways).iter().map(ToString::to_string).collect()
}

#[test]
fn other_ipv4_addresses_and_overlapping_ipv6_addresses_conflict() {
    assert_eq!(of(&["10.244.7.1/24"], &["10.244.7.1/24"]), [""; 0]);
    assert_eq!(of(&["10.244.7.1/24"], &["10.244.9.1/24"]), ["10.244.7.1/24"]);
    assert_eq!(of(&["10.244.7.1/16"], &["10.244.7.1/24"]), ["10.244.7.1/16"]);
    assert_eq!(of(&["fd00:1::1/64"], &["fd00:2::1/64"]), [""; 0]);
    assert_eq!(of(&["fd00:1::2/64"], &["fd00:1::1/64"]), ["fd00:1::2/64"]);
    assert_eq!(of(&["fd00:1::1/64"], &["10.244.9.1/24"]), [""; 0]);
}

#[test]
fn gateways_of_requested_ranges_are_added_to_that_of_the_network() {
    let (home, ranges) = ("10.244.7.1/24", ["10.7.0.1/24", "10.8.0.1/24"]);
    assert_eq!(of(&[ranges[0], home], &[ranges[0], home]), [""; 0]);
    assert_eq!(of(&[ranges[0], home], &[ranges[1], home]), [""; 0]);
    assert_eq!(of(&[ranges[0], home], &[home]), [""; 0]);
    assert_eq!(of(&["10.8.0.9/16", home], &[ranges[1], home]), ["10.8.0.9/16"]);
    // The node has another subnet now.
    let moved = of(&[ranges[0], home], &[ranges[0], "10.244.9.1/24"]);
    assert_eq!(moved, [home]);
    assert_eq!(of(&[ranges[0], home], &["10.244.9.1/24"]), [ranges[0], home]);
}

/// Whether packets to `address` reach this host: then the kernel has a route to the address itself.
fn is_in_use(address: Ipv6Addr) -> bool {
    let destination = format!("{:032x} 80 ", address.to_bits());
    let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
    routes.lines().any(|line| line.starts_with(&destination))
}

#[test]
fn an_address_is_in_use_after_the_wait() {
    let ip = |line: &str| {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
    };
    ip("link add ready0 type bridge");
    ip("link set ready0 up");
    let mut host = Socket::open(Protocol::Route).unwrap();
    let link = link::find(&mut host, "ready0").unwrap().unwrap().index;
    for number in 1..=50 {
        let address = Ipv6Addr::from_bits(0xfd77_u128 << 112 | number);
        let network = IpNetwork::new(address.into(), 64).unwrap();
        let mut listener = Socket::listen_for_ipv6().unwrap();
        assert_eq!(host.execute(vec![address::add(link, network)]).unwrap(), []);
        wait_for_addresses(&mut listener, link, [network].into_iter()).unwrap();
        assert!(is_in_use(address), "{address}");
    }
    ip("link delete ready0");
}
