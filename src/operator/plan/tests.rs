//! The plans that `tweedctl plan` prints.

#![allow(clippy::unwrap_used)]

use clap::Parser;
use expect_test::{Expect, expect};

use super::super::{Arguments, Command};
use super::*;

const PEERS: &str = r#"
10.244.1.0-24
{"PublicIP":"172.16.0.5","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:05"}}
10.244.3.0-24
{"PublicIP":"172.16.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:09"}}
10.244.4.0-24
{"PublicIP":"172.16.0.10","PublicIPv6":null,"BackendType":"host-gw"}
10.244.5.0-24
{"PublicIP":"172.17.0.11","PublicIPv6":null,"BackendType":"host-gw"}
10.245.6.0-24
{"PublicIP":"172.16.0.12","PublicIPv6":null,"BackendType":"vxlan"}
10.244.7.0-24
no JSON
"#;

/// The plan of `config`, a network config without its outer braces, for a node with these options.
fn planned(config: &str, leases: &str, options: &str) -> Result<NodePlan, Error> {
    let line = format!("tweedctl plan --config - --leases - {options}");
    let arguments = Arguments::try_parse_from(line.split_whitespace()).unwrap();
    let Command::Plan(options) = arguments.command else { unreachable!() };
    let config = NetworkConfig::parse(format!("{{{config}}}").as_bytes()).unwrap();
    let records = records::read_leases(leases.trim_start()).unwrap();
    plan(config, records, &options)
}

#[track_caller]
fn check(config: &str, leases: &str, options: &str, expected: &Expect) {
    let text = planned(config, leases, options).unwrap().to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    expected.assert_eq(&text);
}

const VXLAN: &str = r#""Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}"#;
const MIXED: &str = r#""Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"}"#;
const DUAL: &str =
    r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:244::/48""#;

#[test]
fn a_vxlan_node_skips_host_gw_peers() {
    check(
        VXLAN,
        PEERS,
        "--public-ip 172.16.0.5",
        &expect![[r"
            node      172.16.0.5 on eth0, MTU 1500
            backend   vxlan; pod MTU 1450
            on link   172.16.0.0/24 (assumed; set it with --on-link)
            lease     10.244.1.0-24
            + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            + accept_ra 0 dev flannel.1
            + addr 10.244.1.0/32 dev flannel.1
            + table ip tweed-tunnel.1
            + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
            + element ip tweed-tunnel.1 peers { 172.16.0.9 }
            + element ip tweed-tunnel.1 peers { 172.16.0.10 }
            + element ip tweed-tunnel.1 peers { 172.17.0.11 }
            + fdb 0a:00:00:00:00:09 dst 172.16.0.9 dev flannel.1
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            + nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            + route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
              10.244.4.0-24 at 172.16.0.10 skipped: its backend is host-gw, ours is vxlan,
                and Mixed is off
              10.244.5.0-24 at 172.17.0.11 skipped: its backend is host-gw, ours is vxlan,
                and Mixed is off
              10.244.7.0-24 rejected: its record cannot be read: its value is no JSON
                object: expected ident at line 1 column 2
              10.245.6.0-24 at 172.16.0.12 rejected: subnet 10.245.6.0/24 is not inside the
                network
        "]],
    );
}

#[test]
fn a_mixed_node_reaches_all_that_it_can() {
    check(
        MIXED,
        PEERS,
        "--public-ip 172.16.0.5 --interface ens3 --mtu 9000",
        &expect![[r"
            node      172.16.0.5 on ens3, MTU 9000
            backend   host-gw, mixed; pod MTU 8950
            on link   172.16.0.0/24 (assumed; set it with --on-link)
            lease     10.244.1.0-24
            + link flannel.1 up mtu 8950 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev ens3 dstport 8472 nolearning
            + rp_filter loose dev ens3
            + rp_filter loose dev flannel.1
            + accept_ra 0 dev flannel.1
            + addr 10.244.1.0/32 dev flannel.1
            + addr 10.244.1.0/32 dev lo
            + table ip tweed-tunnel.1
            + table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
                srcnat - 1;
                policy accept;
                ip daddr != 10.244.0.0/16 return;
                ip daddr 10.244.1.0/24 return;
                meta mark & 0x00004000 != 0x00004000 return;
                meta mark set meta mark & 0xffffbfff;
                snat to 10.244.1.1 fully-random;
                };
                }
            + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
            + element ip tweed-tunnel.1 peers { 172.16.0.9 }
            + element ip tweed-tunnel.1 peers { 172.16.0.10 }
            + element ip tweed-tunnel.1 peers { 172.17.0.11 }
            + fdb 0a:00:00:00:00:09 dst 172.16.0.9 dev flannel.1
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            + nexthop id 4096512012 via 172.16.0.9 dev ens3
            + nexthop id 4096512016 via 172.16.0.10 dev ens3
            + route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev ens3
            + route 10.244.3.0/32 dev flannel.1
            + route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev ens3
              10.244.5.0-24 at 172.17.0.11 skipped: gateway 172.17.0.11 is not on the link
                of ens3, and it published no VTEP
              10.244.7.0-24 rejected: its record cannot be read: its value is no JSON
                object: expected ident at line 1 column 2
              10.245.6.0-24 at 172.16.0.12 rejected: subnet 10.245.6.0/24 is not inside the
                network
        "]],
    );
}

#[test]
fn prefixes_on_the_link_can_be_given() {
    check(
        MIXED,
        PEERS,
        "--public-ip 172.16.0.5 --on-link 172.16.0.0/12 --on-link 10.0.0.0/8",
        &expect![[r"
            node      172.16.0.5 on eth0, MTU 1500
            backend   host-gw, mixed; pod MTU 1450
            on link   172.16.0.0/12, 10.0.0.0/8
            lease     10.244.1.0-24
            + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            + rp_filter loose dev eth0
            + rp_filter loose dev flannel.1
            + accept_ra 0 dev flannel.1
            + addr 10.244.1.0/32 dev flannel.1
            + addr 10.244.1.0/32 dev lo
            + table ip tweed-tunnel.1
            + table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
                srcnat - 1;
                policy accept;
                ip daddr != 10.244.0.0/16 return;
                ip daddr 10.244.1.0/24 return;
                meta mark & 0x00004000 != 0x00004000 return;
                meta mark set meta mark & 0xffffbfff;
                snat to 10.244.1.1 fully-random;
                };
                }
            + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
            + element ip tweed-tunnel.1 peers { 172.16.0.9 }
            + element ip tweed-tunnel.1 peers { 172.16.0.10 }
            + element ip tweed-tunnel.1 peers { 172.17.0.11 }
            + fdb 0a:00:00:00:00:09 dst 172.16.0.9 dev flannel.1
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            + nexthop id 4096512012 via 172.16.0.9 dev eth0
            + nexthop id 4096512016 via 172.16.0.10 dev eth0
            + nexthop id 4096512020 via 172.17.0.11 dev eth0
            + route 10.244.3.0/24 nhid 4096512012 via 172.16.0.9 dev eth0
            + route 10.244.3.0/32 dev flannel.1
            + route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
            + route 10.244.5.0/24 nhid 4096512020 via 172.17.0.11 dev eth0
              10.244.7.0-24 rejected: its record cannot be read: its value is no JSON
                object: expected ident at line 1 column 2
              10.245.6.0-24 at 172.16.0.12 rejected: subnet 10.245.6.0/24 is not inside the
                network
        "]],
    );
}

#[test]
fn both_families_are_planned_from_one_lease() {
    let leases = r#"
10.244.1.0-24&fd00:10:244:1::-64
{"PublicIP":"172.16.0.5","PublicIPv6":"fd00:172::5","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:05"},"BackendV6Data":{"VNI":1,"VtepMAC":"0a:00:00:00:06:05"}}
10.244.3.0-24&fd00:10:244:3::-64
{"PublicIP":"172.16.0.9","PublicIPv6":"fd00:172::9","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:09"},"BackendV6Data":{"VNI":1,"VtepMAC":"0a:00:00:00:06:09"}}
10.244.4.0-24&fd00:10:244:4::-64
{"PublicIP":"172.16.0.10","PublicIPv6":"fd00:172::a","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:0a"},"BackendV6Data":{"VNI":2,"VtepMAC":"0a:00:00:00:06:0a"}}
"#;
    check(
        DUAL,
        leases,
        "--public-ip 172.16.0.5",
        &expect![[r"
            node      172.16.0.5, fd00:172::5 on eth0, MTU 1500
            backend   vxlan; pod MTU 1430
            on link   172.16.0.0/24, fd00:172::/64 (assumed; set it with --on-link)
            lease     10.244.1.0-24&fd00:10:244:1::-64
            + link flannel-v6.1 up mtu 1430 address 0a:00:00:00:06:05 type vxlan id 1 local
                fd00:172::5 dev eth0 dstport 8472 nolearning
            + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            + accept_ra 0 dev flannel-v6.1
            + accept_ra 0 dev flannel.1
            + addr fd00:10:244:1::/128 dev flannel-v6.1
            + addr 10.244.1.0/32 dev flannel.1
            + table ip tweed-tunnel.1
            + table ip6 tweed-tunnel.1
            + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
            + element ip6 tweed-tunnel.1 renewed { udp timeout 86400s }
            + element ip tweed-tunnel.1 peers { 172.16.0.9 }
            + element ip tweed-tunnel.1 peers { 172.16.0.10 }
            + element ip6 tweed-tunnel.1 peers { fd00:172::9 }
            + element ip6 tweed-tunnel.1 peers { fd00:172::a }
            + fdb 0a:00:00:00:06:09 dst fd00:172::9 dev flannel-v6.1
            + fdb 0a:00:00:00:00:09 dst 172.16.0.9 dev flannel.1
            + fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
            + neigh fd00:10:244:3:: lladdr 0a:00:00:00:06:09 dev flannel-v6.1
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            + neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
            + nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            + nexthop id 4029403152 via 10.244.4.0 dev flannel.1 onlink
            + nexthop id 4206362627 via fd00:10:244:3:: dev flannel-v6.1 onlink
            + route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            + route 10.244.4.0/24 nhid 4029403152 via 10.244.4.0 dev flannel.1 onlink
            + route fd00:10:244:3::/64 nhid 4206362627 via fd00:10:244:3:: dev flannel-v6.1
                onlink
              10.244.4.0-24&fd00:10:244:4::-64 at fd00:172::a skipped: its VTEP has VNI 2,
                ours has 1
        "]],
    );
}

#[test]
fn a_node_that_masquerades_has_a_table() {
    let host_gw = r#""Network":"10.244.0.0/16","Backend":{"Type":"host-gw"}"#;
    let own = "10.244.1.0-24\n{\"PublicIP\":\"172.16.0.5\",\"BackendType\":\"host-gw\"}";
    check(
        host_gw,
        own,
        "--public-ip 172.16.0.5 --ip-masq",
        &expect![[r"
            node      172.16.0.5 on eth0, MTU 1500
            backend   host-gw; pod MTU 1500
            on link   172.16.0.0/24 (assumed; set it with --on-link)
            lease     10.244.1.0-24
            + addr 10.244.1.0/32 dev lo
            + table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
                srcnat - 1;
                policy accept;
                ip daddr != 10.244.0.0/16 return;
                ip daddr 10.244.1.0/24 return;
                meta mark & 0x00004000 != 0x00004000 ip saddr 10.244.0.0/16 return;
                meta mark set meta mark & 0xffffbfff;
                snat to 10.244.1.1 fully-random;
                };
                chain postrouting { type nat hook postrouting priority srcnat;
                policy accept;
                meta mark & 0x00004000 == 0x00004000 return;
                ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return;
                ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return;
                ip saddr != 10.244.0.0/16 ip daddr 10.244.1.0/24 return;
                ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random;
                ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random;
                };
                chain forward { type filter hook forward priority filter;
                policy accept;
                ip saddr 10.244.0.0/16 accept;
                ip daddr 10.244.0.0/16 accept;
                };
                }
        "]],
    );
}

#[test]
fn a_node_without_a_lease_is_planned_without_a_subnet() {
    check(
        VXLAN,
        "{}",
        "--public-ip 172.16.0.77",
        &expect![[r"
            node      172.16.0.77 on eth0, MTU 1500
            backend   vxlan; pod MTU 1450
            on link   172.16.0.0/24 (assumed; set it with --on-link)
            lease     none has this public IP: planned without a subnet
            + link flannel.1 up mtu 1450 address f2:72:cd:c1:76:74 type vxlan id 1 local
                172.16.0.77 dev eth0 dstport 8472 nolearning
            + accept_ra 0 dev flannel.1
            + table ip tweed-tunnel.1
            + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
        "]],
    );
}

#[test]
fn addresses_and_config_must_agree_on_the_families() {
    let missing = planned(DUAL, "", "--public-ip 172.16.0.5").unwrap_err();
    assert_eq!(missing.to_string(), "the config enables IPv6: add a --public-ip of that family");
    let foreign = planned(VXLAN, "", "--public-ip 172.16.0.5 --public-ip fd00::5").unwrap_err();
    assert_eq!(foreign.to_string(), "--public-ip fd00::5: the config does not enable IPv6");
}
