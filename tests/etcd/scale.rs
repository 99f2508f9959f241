//! More leases than fit in one of the library's messages, and answers that never come.

use etcd_client::{Txn, TxnOp};
use futures::StreamExt;
use futures::future::join_all;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tweed::lease::LeaseUpdate;
use tweed::subnet::SubnetManager;
use tweed::subnet::claim::Previous;
use tweed::subnet::etcd::EtcdOptions;

use crate::node::{SUBNETS, V4, config, manager, manager_of, options, value, vxlan};
use crate::proxy::lose_answers;
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

/// A start of which the first `answers` pieces of what the server says come through, and then no
/// more, although the server carries out whatever it is asked.
async fn start_with_lost_answers(server: &EtcdServer, answers: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let prefix = format!("/networks/{answers}");
    let options = EtcdOptions { prefix: prefix.clone(), ..options(&[endpoint]) };
    let manager = manager_of(options, Previous::default());
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let lease = tokio::select! {
        lease = manager.acquire(&config, &node) => lease.unwrap(),
        () = lose_answers(listener, server.port(), answers) => unreachable!(),
    };
    assert_eq!(lease.id.as_str(), "10.5.115.0-24", "after {answers} answers");
    let keys = server.keys(&format!("{prefix}/")).await;
    assert_eq!(keys, [format!("{prefix}/subnets/{}", lease.id)], "after {answers} answers");
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_is_repeated_and_counts_once() {
    const STARTS: usize = 16;
    let server = EtcdServer::start().await;
    let starts = async {
        join_all((0..STARTS).map(|answers| start_with_lost_answers(&server, answers))).await;
    };
    LocalSet::new().run_until(starts).await;
    let grants = server.client().await.leases().await.unwrap();
    assert_eq!(grants.leases().len(), STARTS);
}
