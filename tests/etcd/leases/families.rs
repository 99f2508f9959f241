//! IPv6 alone, both families, and changes from one to both and back.

use std::collections::BTreeSet;

use futures::future::join_all;
use tweed::store::Leases;
use tweed::store::claim::Previous;

use crate::fixture::node::{
    SUBNETS, V4, config, manager, manager_of, next, options, previous, subnets, value, vxlan,
};
use crate::fixture::server::EtcdServer;

const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;
const V6: &str = r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

#[tokio::test]
async fn a_node_with_only_ipv6_is_identified_by_its_ipv6_address() {
    let server = EtcdServer::start().await;
    let lease = manager(&server).acquire(&config(V6), &vxlan(&["fd01::9"])).await.unwrap();
    let [subnet] = &subnets(&lease)[..] else { panic!("{lease:?}") };
    let key = format!("{SUBNETS}0.0.0.0-0&{}", subnet.replace('/', "-"));
    assert_eq!(
        server.get(&key).await.unwrap().0,
        r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd01::9","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
    );
    let again = manager(&server);
    assert_eq!(again.acquire(&config(V6), &vxlan(&["fd01::9"])).await.unwrap().id, lease.id);
    assert_eq!(next(&mut again.watch()).await, format!("snapshot [{}@fd01::9]", lease.id));
    let other = manager(&server).acquire(&config(V6), &vxlan(&["fd01::a"])).await.unwrap();
    assert_ne!(other.id, lease.id);
    assert_eq!(server.keys(SUBNETS).await.len(), 2);
}

#[tokio::test]
async fn both_families_share_a_key() {
    let server = EtcdServer::start().await;
    let node = vxlan(&["192.168.0.9", "fd01::9"]);
    let lease = manager(&server).acquire(&config(DUAL), &node).await.unwrap();
    assert_eq!(subnets(&lease), ["10.5.115.0/24", "fd00:0:0:73::/64"]);
    assert_eq!(
        server.get(&format!("{SUBNETS}10.5.115.0-24&fd00:0:0:73::-64")).await.unwrap().0,
        r#"{"PublicIP":"192.168.0.9","PublicIPv6":"fd01::9","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
    );
    let renumbered = vxlan(&["192.168.0.77", "fd01::9"]);
    let again = manager(&server).acquire(&config(DUAL), &renumbered).await.unwrap();
    assert_eq!(again.id, lease.id);
}

#[tokio::test]
async fn a_second_family_is_added_without_renumbering() {
    let server = EtcdServer::start().await;
    let single = manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let manager =
        manager_of(options(&[server.endpoint()]), previous(&["10.5.115.0/24"], single.grant));
    let node = vxlan(&["192.168.0.9", "fd01::9"]);
    let both = manager.acquire(&config(DUAL), &node).await.unwrap();
    assert_eq!(subnets(&both), ["10.5.115.0/24", "fd00:0:0:73::/64"]);
    assert_eq!(server.keys(SUBNETS).await, [format!("{SUBNETS}{}", both.id)]);
    // And back.
    let manager = self::manager(&server);
    let single = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(server.keys(SUBNETS).await, [format!("{SUBNETS}{}", single.id)]);
    assert_eq!(subnets(&single), ["10.5.115.0/24"]);
}

#[tokio::test]
async fn one_ipv4_subnet_is_not_allocated_twice_under_different_keys() {
    let server = EtcdServer::start().await;
    server.put(&format!("{SUBNETS}10.5.115.0-24&fd00::-64"), &value("192.168.0.8")).await;
    let lease = manager(&server).acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_ne!(subnets(&lease), ["10.5.115.0/24"]);
}

/// Each of `nodes` leases has a subnet of its own in both families.
fn assert_distinct(leases: &[Vec<String>], nodes: usize) {
    for family in 0..2 {
        let of_family: BTreeSet<_> = leases.iter().map(|lease| &lease[family]).collect();
        assert_eq!(of_family.len(), nodes, "{leases:#?}");
    }
}

#[tokio::test]
async fn nodes_of_both_families_start_together_without_a_conflict() {
    let server = EtcdServer::start().await;
    let tight = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.20.0",
        "EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;
    let managers: Vec<_> = (0..20).map(|_| manager(&server)).collect();
    let nodes = managers.iter().enumerate().map(|(index, manager)| async move {
        let node = vxlan(&[&format!("192.168.0.{}", index * 5), &format!("fd01::{index:x}")]);
        subnets(&manager.acquire(&config(tight), &node).await.unwrap())
    });
    assert_distinct(&join_all(nodes).await, 20);
}

#[tokio::test]
async fn nodes_of_both_families_start_together_although_their_slots_are_taken() {
    let server = EtcdServer::start().await;
    // The first thirty of forty IPv6 slots are taken: a node whose slot is among them needs
    // another.
    for slot in 1..31 {
        server.put(&format!("{SUBNETS}10.9.{slot}.0-24&fd00:0:0:{slot:x}::-64"), "{}").await;
    }
    let tight = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.20.0",
        "EnableIPv6":true,"IPv6Network":"fd00::/48","IPv6SubnetMax":"fd00:0:0:28::"}"#;
    let managers: Vec<_> = (0..10).map(|_| manager(&server)).collect();
    let nodes = managers.iter().enumerate().map(|(index, manager)| async move {
        let node = vxlan(&[&format!("192.168.0.{}", index * 20), &format!("fd01::{index:x}")]);
        subnets(&manager.acquire(&config(tight), &node).await.unwrap())
    });
    assert_distinct(&join_all(nodes).await, 10);
    assert_eq!(server.keys(SUBNETS).await.len(), 40);
}

#[tokio::test]
async fn a_subnet_outside_of_the_changed_pool_is_replaced() {
    let server = EtcdServer::start().await;
    let old = format!("{SUBNETS}10.6.7.0-24");
    server.put_with_grant(&old, &value("192.168.0.9")).await;
    let known = previous(&["10.6.7.0/24"], None);
    let manager = manager_of(options(&[server.endpoint()]), known);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(server.keys(SUBNETS).await, [format!("{SUBNETS}{}", lease.id)]);
}

#[tokio::test]
async fn a_full_pool_keeps_existing_leases() {
    let server = EtcdServer::start().await;
    let old = format!("{SUBNETS}10.6.7.0-24");
    server.put(&old, &value("192.168.0.9")).await;
    server.put(&format!("{SUBNETS}10.5.0.0-16"), &value("192.168.0.8")).await;
    let manager = manager_of(options(&[server.endpoint()]), Previous::default());
    let error = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap_err();
    assert!(
        error.to_string().starts_with("no subnet is free in 10.5.0.0/16: all 255 are leased"),
        "{error}"
    );
    assert_eq!(server.get(&old).await.unwrap().0, value("192.168.0.9"));
}
