//! With a busy etcd, a node first reserves its subnet, and reads all leases later.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tweed::model::lease::Lease;
use tweed::store::Leases;
use tweed::store::claim::Previous;

use crate::fixture::node::{
    SUBNETS, V4, config, manager_of, network_config, next, options, previous, subnets, value, vxlan,
};
use crate::fixture::proxy::delay_answers;
use crate::fixture::server::EtcdServer;

/// Long enough that etcd is regarded as busy.
const LATE: Duration = Duration::from_millis(150);

/// The lease that a node with public IP 192.168.0.9, whose slot is 10.5.115.0/24, gets from a busy
/// server, and the first update that it receives.
async fn start(server: &EtcdServer, previous: Previous) -> (Lease, String) {
    start_with(server, previous, "192.168.0.9").await
}

async fn start_with(server: &EtcdServer, previous: Previous, public_ip: &str) -> (Lease, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    server.put("/coreos.com/network/config", V4).await;
    let manager = manager_of(options(&[endpoint]), previous);
    let start = async {
        network_config(&manager).await;
        let lease = manager.acquire(&config(V4), &vxlan(&[public_ip])).await.unwrap();
        let seen = next(&mut manager.watch()).await;
        (lease, seen)
    };
    let busy = delay_answers(listener, server.port(), LATE);
    let local = LocalSet::new();
    local
        .run_until(async {
            tokio::select! {
                started = start => started,
                () = busy => unreachable!(),
            }
        })
        .await
}

/// The keys in the order of their writes.
async fn written(server: &EtcdServer) -> Vec<String> {
    let history = server.history(SUBNETS).await;
    history.iter().map(|change| change.replace(SUBNETS, "")).collect()
}

#[tokio::test]
async fn a_new_node_claims_its_slot_and_keeps_it() {
    let server = EtcdServer::start().await;
    server.put(&format!("{SUBNETS}10.5.7.0-24"), &value("192.168.0.8")).await;
    let (lease, seen) = start(&server, Previous::default()).await;
    assert_eq!(subnets(&lease), ["10.5.115.0/24"]);
    assert_eq!(seen, "snapshot [10.5.115.0-24@192.168.0.9 10.5.7.0-24@192.168.0.8]");
    assert_eq!(written(&server).await, ["put 10.5.7.0-24", "put 10.5.115.0-24"]);
}

#[tokio::test]
async fn an_existing_lease_of_ours_is_found_and_the_new_one_released() {
    let server = EtcdServer::start().await;
    server.put_with_grant(&format!("{SUBNETS}10.5.7.0-24"), &value("192.168.0.9")).await;
    let (lease, seen) = start(&server, Previous::default()).await;
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    assert_eq!(seen, "snapshot [10.5.7.0-24@192.168.0.9]");
    let changes = written(&server).await;
    assert_eq!(changes[1..3], ["put 10.5.115.0-24", "delete 10.5.115.0-24"]);
}

#[tokio::test]
async fn a_wider_lease_across_the_slot_is_respected() {
    let server = EtcdServer::start().await;
    server.put(&format!("{SUBNETS}10.5.64.0-18"), &value("192.168.0.8")).await;
    let (lease, _) = start(&server, Previous::default()).await;
    assert_ne!(subnets(&lease), ["10.5.115.0/24"]);
    let keys = server.keys(SUBNETS).await;
    assert_eq!(keys.len(), 2, "{keys:?}");
}

#[tokio::test]
async fn the_previous_subnet_is_claimed_before_the_slot() {
    let server = EtcdServer::start().await;
    let (lease, _) = start(&server, previous(&["10.5.7.0/24"], None)).await;
    assert_eq!(subnets(&lease), ["10.5.7.0/24"]);
    assert_eq!(written(&server).await, ["put 10.5.7.0-24"]);
}

#[tokio::test]
async fn a_lease_of_an_earlier_start_is_not_released_when_another_overlaps_it() {
    let server = EtcdServer::start().await;
    let key = format!("{SUBNETS}10.5.115.0-24");
    let grant = server.put_with_grant(&key, &value("192.168.0.9")).await;
    server.put(&format!("{SUBNETS}10.5.64.0-18"), &value("192.168.0.8")).await;
    let (lease, _) = start(&server, previous(&["10.5.115.0/24"], Some(grant))).await;
    assert_eq!(subnets(&lease), ["10.5.115.0/24"]);
    assert_eq!(written(&server).await, ["put 10.5.115.0-24", "put 10.5.64.0-18"]);
}

/// Only the etcd lease shows the original that a copy has overwritten its key.
#[tokio::test]
async fn a_copy_of_a_machine_writes_under_the_etcd_lease_of_the_original() {
    let server = EtcdServer::start().await;
    let key = format!("{SUBNETS}10.5.115.0-24");
    let grant = server.put_with_grant(&key, &value("192.168.0.9")).await;
    let public_ips = vec!["192.168.0.9".parse().unwrap()];
    let known = Previous { public_ips, ..previous(&["10.5.115.0/24"], Some(grant)) };
    start_with(&server, known, "192.168.0.77").await;
    assert_eq!(server.get(&key).await.unwrap(), (value("192.168.0.77"), grant));
}
