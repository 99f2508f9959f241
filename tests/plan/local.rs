//! The entries of a node itself, and what it publishes.

use tweed::model::lease::Vtep;

use super::*;

#[test]
fn a_vxlan_node_has_a_device_per_family_with_its_address() {
    check_local(
        &node(VXLAN, ""),
        expect![[r"
        link flannel-v6.1 up mtu 1430 address 02:06:00:00:00:05 type vxlan id 1 local fd00:16::5 dev eth0 dstport 8472 nolearning
        link flannel.1 up mtu 1450 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
        accept_ra 0 dev flannel-v6.1
        accept_ra 0 dev flannel.1
        addr fd00:244:0:1::/128 dev flannel-v6.1
        addr 10.244.1.0/32 dev flannel.1
        pods' mtu 1430
    "]],
    );
}

#[test]
fn a_host_gw_node_has_none_and_keeps_the_address_for_probes_on_the_loopback() {
    check_local(
        &node(HOST_GW, ""),
        expect![[r"
            addr 10.244.1.0/32 dev lo
            addr fd00:244:0:1::/128 dev lo
            pods' mtu 1500
        "]],
    );
    check_local(
        &node(HOST_GW, r#","Probe":{"Enabled":false}"#),
        expect![[r"
            pods' mtu 1500
        "]],
    );
}

#[test]
fn mixed_keeps_the_device_on_every_node_and_loosens_the_filters() {
    check_local(
        &node(HOST_GW, MIXED),
        expect![[r#"
            link flannel-v6.1 up mtu 1430 address 02:06:00:00:00:05 type vxlan id 1 local fd00:16::5 dev eth0 dstport 8472 nolearning
            link flannel.1 up mtu 1450 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
            rp_filter loose dev eth0
            rp_filter loose dev flannel.1
            accept_ra 0 dev flannel-v6.1
            accept_ra 0 dev flannel.1
            addr fd00:244:0:1::/128 dev flannel-v6.1
            addr 10.244.1.0/32 dev flannel.1
            addr 10.244.1.0/32 dev lo
            addr fd00:244:0:1::/128 dev lo
            table ip tweed.1 { chain fixed-source { type nat hook postrouting priority srcnat - 1; policy accept; ip daddr != 10.244.0.0/16 return; ip daddr 10.244.1.0/24 return; meta mark & 0x00004000 != 0x00004000 return; meta mark set meta mark & 0xffffbfff; snat to 10.244.1.1 fully-random; }; }
            table ip6 tweed.1 { chain fixed-source { type nat hook postrouting priority srcnat - 1; policy accept; ip6 daddr != fd00:244::/48 return; ip6 daddr fd00:244:0:1::/64 return; meta mark & 0x00004000 != 0x00004000 return; meta mark set meta mark & 0xffffbfff; snat to fd00:244:0:1::1 fully-random; }; }
            pods' mtu 1430
        "#]],
    );
    let same = |backend| {
        let local = node(backend, MIXED);
        backend::plan_local(&local)
    };
    assert_eq!(same(HOST_GW), same(VXLAN));
}

#[test]
fn mixed_turned_off_restores_the_filters() {
    let mut host_gw = node(HOST_GW, "");
    host_gw.strict = ["eth0", "flannel.1"].map(tweed::model::entry::LinkName::new).into();
    check_local(
        &host_gw,
        expect![[r#"
            rp_filter strict dev eth0
            addr 10.244.1.0/32 dev lo
            addr fd00:244:0:1::/128 dev lo
            pods' mtu 1500
        "#]],
    );
}

#[test]
fn without_a_lease_the_device_has_no_address_yet() {
    let config = r#"{"Network":"10.244.0.0/16"}"#;
    check_local(
        &local(config, ETH0, ""),
        expect![[r"
        link flannel.1 up mtu 1450 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
        accept_ra 0 dev flannel.1
        pods' mtu 1450
    "]],
    );
}

#[test]
fn every_option_of_the_tunnel_reaches_the_device() {
    let backend = r#"{"Type":"vxlan","VNI":7,"Port":4789,"GBP":true,"Learning":true,"MTU":1400}"#;
    check_local(
        &node(backend, ""),
        expect![[r"
        link flannel-v6.7 up mtu 1330 address 02:06:00:00:00:05 type vxlan id 7 local fd00:16::5 dev eth0 dstport 4789 learning gbp
        link flannel.7 up mtu 1350 address 02:00:ac:10:00:05 type vxlan id 7 local 172.16.0.5 dev eth0 dstport 4789 learning gbp
        accept_ra 0 dev flannel-v6.7
        accept_ra 0 dev flannel.7
        addr fd00:244:0:1::/128 dev flannel-v6.7
        addr 10.244.1.0/32 dev flannel.7
        pods' mtu 1330
    "]],
    );
}

#[test]
fn the_tunnel_adds_fifty_bytes_to_a_packet_and_seventy_over_ipv6() {
    let v4 = r#"{"Network":"10.244.0.0/16"}"#;
    check_local(
        &local(v4, "eth0 172.16.0.5/24 mtu=9000", ""),
        expect![[r"
        link flannel.1 up mtu 8950 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
        accept_ra 0 dev flannel.1
        pods' mtu 8950
    "]],
    );
    let v6 = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48"}"#;
    check_local(
        &local(v6, "eth0 fd00:16::5/64 mtu=9000", ""),
        expect![[r"
        link flannel-v6.1 up mtu 8930 address 02:06:00:00:00:05 type vxlan id 1 local fd00:16::5 dev eth0 dstport 8472 nolearning
        accept_ra 0 dev flannel-v6.1
        pods' mtu 8930
    "]],
    );
}

#[test]
fn mixed_gives_pods_the_smaller_mtu_of_both_paths() {
    let mtu = |backend: &str| {
        let config = format!(r#"{{"Network":"10.244.0.0/16","Mixed":true,"Backend":{backend}}}"#);
        backend::pod_mtu(&backend::backends(&local(&config, ETH0, "")))
    };
    assert_eq!(mtu(HOST_GW), Some(1450));
    assert_eq!(mtu(VXLAN), Some(1450));
    assert_eq!(mtu(r#"{"Type":"host-gw","MTU":1400}"#), Some(1350));
    // Its tunnel carries no more than its interface.
    assert_eq!(mtu(r#"{"Type":"host-gw","MTU":9000}"#), Some(1450));
}

#[test]
fn behind_nat_the_tunnel_has_the_address_of_the_interface() {
    let mut nat = local(r#"{"Network":"10.244.0.0/16"}"#, ETH0, "10.244.1.0/24");
    for uplink in &mut nat.node.uplinks {
        uplink.public_ip = "203.0.113.9".parse().unwrap();
    }
    check_local(
        &nat,
        expect![[r"
        link flannel.1 up mtu 1450 address 02:00:ac:10:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning
        accept_ra 0 dev flannel.1
        addr 10.244.1.0/32 dev flannel.1
        pods' mtu 1450
    "]],
    );
    check_attributes(
        &nat,
        expect![[r"
        vxlan
        203.0.113.9 vni Some(1) mac 02:00:ac:10:00:05
    "]],
    );
}

#[test]
fn a_vxlan_node_publishes_its_vtep() {
    check_attributes(
        &node(VXLAN, ""),
        expect![[r"
        vxlan
        172.16.0.5 vni Some(1) mac 02:00:ac:10:00:05
        fd00:16::5 vni Some(1) mac 02:06:00:00:00:05
    "]],
    );
    check_attributes(
        &node(VXLAN, MIXED),
        expect![[r"
        vxlan
        172.16.0.5 vni Some(1) mac 02:00:ac:10:00:05
        fd00:16::5 vni Some(1) mac 02:06:00:00:00:05
    "]],
    );
}

#[test]
fn a_host_gw_node_publishes_a_vtep_only_with_mixed() {
    check_attributes(
        &node(HOST_GW, ""),
        expect![[r"
        host-gw
        172.16.0.5
        fd00:16::5
    "]],
    );
    check_attributes(
        &node(HOST_GW, MIXED),
        expect![[r"
        host-gw
        172.16.0.5 vni Some(1) mac 02:00:ac:10:00:05
        fd00:16::5 vni Some(1) mac 02:06:00:00:00:05
    "]],
    );
}

#[test]
fn a_vxlan_node_that_was_on_host_gw_publishes_mixed() {
    let local = |keys, was_on_host_gw| NodeInputs { was_on_host_gw, ..node(VXLAN, keys) };
    check_attributes(
        &local(MIXED, true),
        expect![[r#"
            vxlan
            172.16.0.5 vni Some(1) mac 02:00:ac:10:00:05 mixed
            fd00:16::5 vni Some(1) mac 02:06:00:00:00:05 mixed
        "#]],
    );
    for local in [local("", true), local(MIXED, false)] {
        check_attributes(
            &local,
            expect![[r#"
                vxlan
                172.16.0.5 vni Some(1) mac 02:00:ac:10:00:05
                fd00:16::5 vni Some(1) mac 02:06:00:00:00:05
            "#]],
        );
    }
}

#[test]
fn a_device_address_is_the_same_after_every_reboot() {
    let local = node(VXLAN, "");
    let macs = local.node.uplinks.iter().map(|it| Vtep::derived_mac(it.public_ip, 1).to_string());
    expect!["3e:74:61:d7:1d:07 1e:af:3f:ac:a0:b6"].assert_eq(&macs.collect::<Vec<_>>().join(" "));
}
