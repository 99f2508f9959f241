//! Leases that are kept, lost and claimed again.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use tokio::time::timeout;
use tweed::model::lease::Lease;
use tweed::store::Leases;
use tweed::store::kube::KubeSubnetManager;
use tweed_lab::ApiServer;

use crate::node::{
    A_WHILE, TIMEOUT, Updates, V4, acquire, config, manager, next, server, subnets, vxlan,
};

/// A node that holds a lease and follows the watch.
struct Holder {
    manager: Arc<KubeSubnetManager>,
    lease: Lease,
    updates: Updates,
}

impl Holder {
    async fn new(server: &ApiServer) -> Self {
        let manager = manager(server);
        let lease = acquire(&manager).await;
        let mut updates = manager.watch();
        next(&mut updates).await;
        Self { manager, lease, updates }
    }

    /// Why the lease is lost, if that happens within `limit`.
    async fn lost(&mut self, limit: Duration) -> Option<String> {
        let follow = async { while self.updates.next().await.is_some() {} };
        tokio::select! {
            lost = timeout(limit, self.manager.hold(&self.lease)) => lost.ok().map(|lost| lost.reason),
            () = follow => panic!("the watch ended"),
        }
    }
}

#[tokio::test]
async fn an_annotation_written_by_another_client_is_overwritten() {
    let server = server();
    let mut node = Holder::new(&server).await;
    assert_eq!(node.lost(A_WHILE).await, None);
    server.annotate("n1", "public-ip", Some("172.18.0.99"));
    assert_eq!(
        node.lost(TIMEOUT).await.unwrap(),
        "node n1: annotation flannel.alpha.coreos.com/public-ip differs from the published value"
    );
    acquire(&node.manager).await;
    assert_eq!(server.annotation("n1", "public-ip").as_deref(), Some("172.18.0.1"));
    assert_eq!(node.lost(A_WHILE).await, None);
}

#[tokio::test]
async fn an_annotation_that_overwrites_the_public_ip_is_applied_at_run_time() {
    let server = server();
    let mut node = Holder::new(&server).await;
    server.annotate("n1", "public-ip-overwrite", Some("203.0.113.7"));
    node.lost(TIMEOUT).await.unwrap();
    acquire(&node.manager).await;
    assert_eq!(server.annotation("n1", "public-ip").as_deref(), Some("203.0.113.7"));
    assert_eq!(node.lost(A_WHILE).await, None);
}

/// The watch has read nothing that the backup lacks: it was interrupted while the node wrote.
#[tokio::test]
async fn a_write_that_only_a_restored_cluster_lacks_is_lost() {
    for beats in [0, 100] {
        let mut server = server();
        let mut node = Holder::new(&server).await;
        let backup = server.back_up();
        server.stop().unwrap();
        assert_eq!(node.lost(A_WHILE).await, None);
        server.start_again().unwrap();
        let (config, attributes) = (config(V4), vxlan(&["172.18.0.9"]));
        let acquired = timeout(TIMEOUT, node.manager.acquire(&config, &attributes)).await;
        acquired.unwrap().unwrap();
        server.restore(backup);
        (0..beats).for_each(|beat| server.heartbeat("n1", beat));
        let lost = node.lost(TIMEOUT).await.unwrap();
        assert!(lost.contains("public-ip differs"), "{beats} beats: {lost}");
    }
}

#[tokio::test]
async fn another_pod_cidr_is_followed() {
    let server = server();
    let mut node = Holder::new(&server).await;
    let spec = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    server.patch_node("n1", &json!({ "spec": spec }));
    let text = "node n1: 10.244.1.0/24 is not its podCIDR any more";
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), text);
    assert_eq!(subnets(&acquire(&node.manager).await), ["10.244.9.0/24"]);
}

#[tokio::test]
async fn a_node_that_is_deleted_and_registers_again_is_published_again() {
    let server = server();
    let mut node = Holder::new(&server).await;
    server.delete_node("n1");
    assert_eq!(node.lost(TIMEOUT).await.unwrap(), "node n1 is gone");
    server.add_node("n1", &["10.244.1.0/24"]);
    let again = acquire(&node.manager).await;
    assert_ne!(again.created, node.lease.created);
    assert_eq!(server.annotation("n1", "public-ip").as_deref(), Some("172.18.0.1"));
    assert_eq!(node.lost(A_WHILE).await, None);
}

#[tokio::test]
async fn heartbeats_and_foreign_annotations_lose_no_lease() {
    let server = server();
    let mut node = Holder::new(&server).await;
    server.heartbeat("n1", 1);
    server.annotate("n1", "foreign", Some("x"));
    assert_eq!(node.lost(A_WHILE).await, None);
}
