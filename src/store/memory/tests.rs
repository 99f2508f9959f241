//! The store in memory keeps the promises of the real one.

#![allow(clippy::unwrap_used)]

use futures::{FutureExt, StreamExt};

use super::*;
use crate::model::lease::{BackendType, EndpointAttributes};

fn config() -> NetworkConfig {
    NetworkConfig::parse(br#"{"Network":"10.5.0.0/16"}"#).unwrap()
}

fn node(public_ip: &str) -> LeaseAttributes {
    let endpoint = EndpointAttributes { public_ip: public_ip.parse().unwrap(), vtep: None };
    LeaseAttributes { backend: BackendType::HostGw, endpoints: vec![endpoint] }
}

fn lease(id: &str, public_ip: &str) -> Lease {
    let id = LeaseId::new(id);
    let endpoints = node(public_ip).published_for(key::claimed(&id));
    Lease { id, endpoints, created: 1, grant: Some(99) }
}

fn manager(store: &MemoryStore) -> MemorySubnetManager {
    MemorySubnetManager::new(store.clone(), Previous::default())
}

async fn next(updates: &mut BoxStream<'static, LeaseUpdate>) -> String {
    match updates.next().await.unwrap() {
        LeaseUpdate::Snapshot(records) => format!("snapshot of {}", records.len()),
        LeaseUpdate::Put(record) => format!("put {}", record.id),
        LeaseUpdate::Remove(id) | LeaseUpdate::DeleteNode(id) => format!("remove {id}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_starts_with_a_snapshot_and_goes_on_with_changes() {
    let store = MemoryStore::default();
    store.put(lease("10.5.3.0-24", "10.0.0.3"));
    let mut updates = manager(&store).watch_leases();
    assert_eq!(next(&mut updates).await, "snapshot of 1");
    store.put(lease("10.5.4.0-24", "10.0.0.4"));
    store.remove(&LeaseId::new("10.5.3.0-24"));
    store.put_malformed(LeaseId::new("junk"), "no lease");
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24");
    assert_eq!(next(&mut updates).await, "remove 10.5.3.0-24");
    assert_eq!(next(&mut updates).await, "put junk");
}

#[tokio::test(start_paused = true)]
async fn what_happens_while_the_store_is_away_is_told_later() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    let mut updates = manager.watch_leases();
    assert_eq!(next(&mut updates).await, "snapshot of 0");
    store.go_away("no answer");
    store.put(lease("10.5.4.0-24", "10.0.0.4"));
    assert!(next(&mut updates).now_or_never().is_none());
    assert_eq!(*manager.state().borrow(), StoreState::Waiting("no answer".into()));
    store.come_back();
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24");
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test(start_paused = true)]
async fn a_gap_brings_a_new_snapshot() {
    let store = MemoryStore::default();
    let mut updates = manager(&store).watch_leases();
    assert_eq!(next(&mut updates).await, "snapshot of 0");
    store.put(lease("10.5.4.0-24", "10.0.0.4"));
    store.compact();
    assert_eq!(next(&mut updates).await, "snapshot of 1");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_removed_is_lost_and_can_be_taken_again() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    let lease = manager.acquire(&config(), &node("10.0.0.9")).await.unwrap();
    assert!(manager.hold(&lease).now_or_never().is_none());
    store.remove(&lease.id);
    assert_eq!(manager.hold(&lease).await.reason, format!("key {} is gone", lease.id));
    assert_eq!(manager.acquire(&config(), &node("10.0.0.9")).await.unwrap().id, lease.id);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_took_is_an_error() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    let own = manager.acquire(&config(), &node("10.0.0.9")).await.unwrap();
    store.put(lease(own.id.as_str(), "10.0.0.8"));
    assert!(manager.hold(&own).await.reason.ends_with("was overwritten"));
    let error = manager.acquire(&config(), &node("10.0.0.9")).await.unwrap_err();
    assert!(error.to_string().contains("held by the node with public IP 10.0.0.8"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn new_attributes_are_no_loss() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    let lease = manager.acquire(&config(), &node("10.0.0.9")).await.unwrap();
    let vxlan = LeaseAttributes { backend: BackendType::Vxlan, ..node("10.0.0.9") };
    let after = manager.acquire(&config(), &vxlan).await.unwrap();
    assert_eq!((&after.id, after.grant, after.created), (&lease.id, lease.grant, lease.created));
    assert!(manager.hold(&lease).now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn nodes_of_one_store_get_different_subnets() {
    let store = MemoryStore::default();
    let first = manager(&store).acquire(&config(), &node("10.0.0.9")).await.unwrap();
    let second = manager(&store).acquire(&config(), &node("10.0.0.10")).await.unwrap();
    assert_ne!(first.id, second.id);
    assert_ne!(first.grant, second.grant);
}

#[tokio::test(start_paused = true)]
async fn a_config_is_waited_for() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    assert!(manager.network_config().now_or_never().is_none());
    store.configure(config());
    assert_eq!(manager.network_config().await, config());
}

fn report(id: &LeaseId) -> NodeReport {
    let node = crate::model::node::Node {
        interface: crate::model::entry::LinkName::new("eth0"),
        mtu: 1500,
        layer2: true,
        nexthops: true,
        firewalls: crate::model::node::Firewalls::default(),
        sysctls: crate::model::node::Sysctls::default(),
        spoils_checksums: false,
        on_link: Vec::new(),
        uplinks: Vec::new(),
    };
    NodeReport {
        version: "1".to_owned(),
        lease: id.clone(),
        name: None,
        node,
        subnets: Vec::new(),
        backend: crate::model::config::Kind::Vxlan,
        mixed: false,
        config_revision: 1,
        follows: true,
        pending: None,
        invalid: None,
        strict_filters: Vec::new(),
        pod_mtu: None,
        other_mtu: crate::model::report::OtherMtu::default(),
        peers: crate::model::status::PeerCounts::default(),
        exceptions: Vec::new(),
        keeps_connections: false,
        exceptions_total: 0,
        failing: crate::model::path::Detours::new(),
        quality: None,
    }
}

#[tokio::test(start_paused = true)]
async fn every_edit_of_the_config_is_told() {
    let store = MemoryStore::default();
    let mut updates = manager(&store).watch_config();
    assert!(updates.next().now_or_never().is_none());
    store.configure(config());
    let first = ConfigUpdate { config: Ok(config()), revision: 1 };
    assert_eq!(updates.next().await, Some(first.clone()));
    store.misconfigure("it is gone");
    let gone = ConfigUpdate { config: Err(Unusable("it is gone".to_owned())), revision: 2 };
    assert_eq!(updates.next().await, Some(gone));
    // The same words are another edit.
    store.configure(config());
    assert_eq!(updates.next().await, Some(ConfigUpdate { revision: 3, ..first }));
    assert!(updates.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_report_goes_with_its_lease() {
    let store = MemoryStore::default();
    let manager = manager(&store);
    let lease = manager.acquire(&config(), &node("10.0.0.9")).await.unwrap();
    let report = report(&lease.id);
    store.go_away("no answer");
    assert!(manager.publish_report(&report).await.is_err());
    store.come_back();
    manager.publish_report(&report).await.unwrap();
    assert_eq!(store.reports(), [report]);
    store.remove(&lease.id);
    assert_eq!(store.reports(), []);
}
