//! More leases than fit in one of the library's messages, and answers that never come.

use std::time::Duration;

use etcd_client::{Txn, TxnOp};
use futures::StreamExt;
use futures::future::join_all;
use tokio::time::sleep;
use tweed::lease::LeaseUpdate;
use tweed::subnet::SubnetManager;

use crate::node::{SUBNETS, V4, config, manager, next, value, vxlan};
use crate::server::EtcdServer;

#[tokio::test]
async fn thirty_thousand_leases_are_one_snapshot() {
    let server = EtcdServer::start().await;
    let mut client = server.client().await;
    let keys: Vec<String> =
        (0..30_000).map(|n| format!("{SUBNETS}11.{}.{}.0-24", n / 256, n % 256)).collect();
    for batch in keys.chunks(128) {
        let puts = batch.iter().map(|key| TxnOp::put(key.as_str(), value("10.0.0.3"), None));
        client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
    }
    let manager = manager(&server);
    manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    for mut updates in [manager.watch_leases(), self::manager(&server).watch_leases()] {
        let Some(LeaseUpdate::Snapshot(records)) = updates.next().await else {
            panic!("no snapshot")
        };
        assert!(records.len() >= 30_000, "{}", records.len());
        assert!(records.iter().all(|record| record.lease.is_ok()));
    }
}

/// The server falls silent at some moment of the start and wakes after we have given it up.
async fn hang_after(delay: Duration) {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let hang = async {
        sleep(delay).await;
        server.hang();
        sleep(Duration::from_secs(7)).await;
        server.wake();
    };
    let (lease, ()) = tokio::join!(manager.acquire(&config, &node), hang);
    let lease = lease.unwrap();
    // Whatever was carried out without an answer, there is one key and one etcd lease.
    assert_eq!(server.keys(SUBNETS).await, [format!("{SUBNETS}{}", lease.id)]);
    assert_eq!(lease.id.as_str(), "10.5.115.0-24");
    let grants = server.client().await.leases().await.unwrap();
    assert_eq!(
        grants.leases().iter().map(etcd_client::LeaseStatus::id).collect::<Vec<_>>(),
        [lease.grant.unwrap()]
    );
    let mut updates = manager.watch_leases();
    next(&mut updates).await;
}

#[tokio::test]
async fn a_request_without_an_answer_is_repeated_and_counts_once() {
    join_all((0..8).map(|n| hang_after(Duration::from_micros(n * 700)))).await;
}
