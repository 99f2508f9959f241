//! More leases than fit in one message of the library, and lost answers.

use etcd_client::{Txn, TxnOp};
use futures::StreamExt;
use futures::future::join_all;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::timeout;
use tweed::model::lease::LeaseUpdate;
use tweed::model::status::StoreState;
use tweed::store::claim::Previous;
use tweed::store::etcd::EtcdOptions;
use tweed::store::{Documents, Leases};

use crate::fixture::node::{SUBNETS, V4, config, manager, manager_of, options, value, vxlan};
use crate::fixture::proxy::lose_answers;
use crate::fixture::server::{EtcdServer, TIMEOUT};

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
    for mut updates in [manager.watch(), self::manager(&server).watch()] {
        let Some(LeaseUpdate::Snapshot(records)) = updates.next().await else {
            panic!("no snapshot")
        };
        assert!(records.len() >= 30_000, "{}", records.len());
        assert!(records.iter().all(|record| record.lease.is_ok()));
    }
}

/// No single answer can contain them all; the last one is too large for any.
#[tokio::test]
async fn values_of_megabytes_hide_no_lease() {
    let server = EtcdServer::start_with(&["--max-request-bytes", "20000000"]).await;
    server.put(&format!("{SUBNETS}10.5.3.0-24"), &value("10.0.0.3")).await;
    let megabyte = "x".repeat(1_000_000);
    for number in 0..65 {
        server.put(&format!("{SUBNETS}10.6.{number}.0-24"), &megabyte).await;
    }
    server.put(&format!("{SUBNETS}10.6.65.0-24"), &megabyte.repeat(9)).await;
    let manager = manager(&server);
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let start = manager.acquire(&config, &node);
    timeout(TIMEOUT, start).await.expect("no lease").unwrap();
    let Some(LeaseUpdate::Snapshot(records)) = manager.watch().next().await else {
        panic!("no snapshot")
    };
    let read: Vec<&str> =
        records.iter().filter(|it| it.lease.is_ok()).map(|it| it.id.as_str()).collect();
    assert_eq!((records.len(), read), (67, vec!["10.5.3.0-24"]));
    let StoreState::OversizedValue(update) = manager.state().borrow().clone() else {
        panic!("{:?}", *manager.state().borrow())
    };
    let expected =
        format!("{SUBNETS}10.6.0.0-24, {SUBNETS}10.6.1.0-24, {SUBNETS}10.6.10.0-24 and 63 more");
    assert!(update.contains(&expected), "{update}");
}

/// A start that receives only the first `answers` pieces of the server's answers, although the
/// server executes every request.
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
async fn a_request_whose_answer_is_lost_is_repeated_and_takes_effect_once() {
    const STARTS: usize = 16;
    let server = EtcdServer::start().await;
    let starts = async {
        join_all((0..STARTS).map(|answers| start_with_lost_answers(&server, answers))).await;
    };
    LocalSet::new().run_until(starts).await;
    let grants = server.client().await.leases().await.unwrap();
    assert_eq!(grants.leases().len(), STARTS);
}
