//! Reports of nodes for the operator: where they are kept, and how long.

use std::time::Duration;

use etcd_client::Client;
use tokio::time::{sleep, timeout};
use tweed::model::config::BackendType;
use tweed::model::entry::LinkName;
use tweed::model::lease::{Lease, LeaseId};
use tweed::model::node::Node;
use tweed::model::path::Fallbacks;
use tweed::model::report::{Exception, LARGEST, NodeReport, OtherMtu};
use tweed::model::status::{PeerCounts, ReachabilityCounts, StoreState};
use tweed::store::claim::Previous;
use tweed::store::{Documents, Leases};

use crate::fixture::node::{
    SUBNETS, V4, config, manager, manager_of, next, value, vxlan, with_password,
};
use crate::fixture::server::{EtcdServer, PASSWORD, TIMEOUT};

const REPORTS: &str = "/coreos.com/network/tweed/nodes/";

pub(crate) fn report(lease: &Lease) -> NodeReport {
    let interface = LinkName::new("eth0");
    let (on_link, uplinks) = (Vec::new(), Vec::new());
    NodeReport {
        version: "1".to_owned(),
        lease: lease.id.clone(),
        name: None,
        node: Node {
            interface,
            mtu: 1500,
            layer2: true,
            nexthops: true,
            firewalls: tweed::model::node::Firewalls::default(),
            sysctls: tweed::model::node::Sysctls::default(),
            kernel: tweed::model::node::Release::default(),
            on_segment: Vec::new(),
            on_link,
            uplinks,
        },
        subnets: lease.subnets().collect(),
        backend: BackendType::Vxlan,
        mixed: true,
        config_revision: 7,
        follows: true,
        pending: None,
        invalid: None,
        strict_filters: Vec::new(),
        pod_mtu: Some(1450),
        other_mtu: OtherMtu::default(),
        peers: PeerCounts::default(),
        reachability: ReachabilityCounts::default(),
        failing_peers: Vec::new(),
        groups: Vec::new(),
        refresh_seconds: Some(60),
        daemon: None,
        exceptions: Vec::new(),
        keeps_connections: false,
        exceptions_total: 0,
        failing: Fallbacks::new(),
        quality: None,
    }
}

async fn revision(server: &EtcdServer) -> i64 {
    let mut client: Client = server.client().await;
    client.get("revision", None).await.unwrap().header().unwrap().revision()
}

#[tokio::test]
async fn a_report_has_the_term_of_the_lease() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    manager.publish_report(&report(&lease)).await.unwrap();
    let key = format!("{REPORTS}{}", lease.id);
    let (json, grant) = server.get(&key).await.unwrap();
    assert_eq!(serde_json::from_str::<NodeReport>(&json).unwrap(), report(&lease));
    assert_eq!(Some(grant), lease.grant);
    server.client().await.lease_revoke(grant).await.unwrap();
    assert_eq!(server.keys(REPORTS).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_published_report_is_not_written_again() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    manager.publish_report(&report(&lease)).await.unwrap();
    let before = revision(&server).await;
    manager.publish_report(&report(&lease)).await.unwrap();
    assert_eq!(revision(&server).await, before);
    // Another client has deleted it.
    server.delete(&format!("{REPORTS}{}", lease.id)).await;
    manager.publish_report(&report(&lease)).await.unwrap();
    assert_eq!(server.keys(REPORTS).await.len(), 1);
    let other = NodeReport { mixed: false, ..report(&lease) };
    manager.publish_report(&other).await.unwrap();
    assert_eq!(revision(&server).await, before + 3);
}

/// Each write would be a revision that etcd keeps until it is compacted.
#[tokio::test]
async fn a_refresh_renews_the_etcd_lease_and_writes_nothing() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    manager.publish_report(&report(&lease)).await.unwrap();
    let before = revision(&server).await;
    let mut client = server.client().await;
    let grant = lease.grant.unwrap();
    let mut left = async || client.lease_time_to_live(grant, None).await.unwrap().ttl();
    let is_renewed = async {
        loop {
            sleep(Duration::from_secs(3)).await;
            let before = left().await;
            manager.refresh_report(&report(&lease)).await.unwrap();
            if left().await > before {
                break;
            }
        }
    };
    timeout(TIMEOUT, is_renewed).await.unwrap();
    assert_eq!(revision(&server).await, before);
    client.lease_revoke(grant).await.unwrap();
    let reason = manager.refresh_report(&report(&lease)).await.unwrap_err().to_string();
    assert_eq!(reason, "the etcd lease of this node is gone");
}

#[tokio::test]
async fn a_report_wakes_no_watch_of_leases() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(next(&mut updates).await, format!("put {}@192.168.0.7", lease.id));
    manager.publish_report(&report(&lease)).await.unwrap();
    server.put(&format!("{SUBNETS}10.5.77.0-24"), &value("192.168.0.77")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.77.0-24@192.168.0.77");
}

#[tokio::test]
async fn with_a_reservation_a_report_has_a_term_of_its_own() {
    let server = EtcdServer::start().await;
    server.put(&format!("{SUBNETS}10.5.7.0-24"), &value("192.168.0.7")).await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    assert_eq!((lease.id.as_str(), lease.grant), ("10.5.7.0-24", None));
    manager.publish_report(&report(&lease)).await.unwrap();
    let (_, grant) = server.get(&format!("{REPORTS}10.5.7.0-24")).await.unwrap();
    assert_ne!(grant, 0);
    // The term restarts each time, although nothing is written.
    let mut client = server.client().await;
    let mut left = async || client.lease_time_to_live(grant, None).await.unwrap().ttl();
    let renewed = async {
        loop {
            sleep(Duration::from_secs(3)).await;
            let before = left().await;
            manager.publish_report(&report(&lease)).await.unwrap();
            if left().await > before {
                break;
            }
        }
    };
    timeout(Duration::from_secs(60), renewed).await.unwrap();
}

#[tokio::test]
async fn a_refused_report_leaves_the_store_reachable() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    // Larger than etcd's limit, and larger than the limit of its messages.
    for megabytes in [2, 5] {
        let version = "9".repeat(megabytes * 1_000_000);
        let large = NodeReport { version, ..report(&lease) };
        let reason = manager.publish_report(&large).await.unwrap_err().to_string();
        assert!(reason.starts_with("etcd refuses: ") && reason.len() < 200, "{reason}");
        let state = manager.state().borrow().clone();
        assert!(
            matches!(&state, StoreState::OptionalRefused(what) if what.contains("report")),
            "{state:?}"
        );
    }
    manager.publish_report(&report(&lease)).await.unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_missing_right_to_write_the_report_is_named() {
    let server = EtcdServer::start().await;
    server.enable_authentication(SUBNETS).await;
    let manager = manager_of(with_password(&server, PASSWORD), Previous::default());
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    manager.publish_report(&report(&lease)).await.unwrap_err();
    let state = manager.state().borrow().clone();
    assert!(state.is_reachable(), "{state:?}");
    let StoreState::OptionalRefused(why) = state else { panic!("{state:?}") };
    assert!(why.starts_with("this node's report: etcd denies a request"), "{why}");
}

#[tokio::test]
async fn a_report_names_as_many_exceptions_as_the_store_accepts() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    let exception = |number: usize| Exception {
        lease: LeaseId::new(format!("{number}")),
        family: None,
        path: None,
        reason: "\u{1}".repeat(60_000),
        probing: false,
    };
    let exceptions: Vec<_> = (0..100).map(exception).collect();
    let large = NodeReport { exceptions, exceptions_total: 250, ..report(&lease) };
    manager.publish_report(&large).await.unwrap();
    let (json, _) = server.get(&format!("{REPORTS}{}", lease.id)).await.unwrap();
    let read = NodeReport::decode(json.as_bytes()).unwrap();
    assert!(json.len() <= LARGEST && read.exceptions_total == 250, "{} bytes", json.len());
}

#[tokio::test]
async fn without_a_server_a_report_times_out_soon() {
    let mut server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.7"])).await.unwrap();
    server.kill();
    let reason = timeout(Duration::from_secs(30), manager.publish_report(&report(&lease))).await;
    assert_eq!(reason.unwrap().unwrap_err().to_string(), "etcd cannot be used");
}
