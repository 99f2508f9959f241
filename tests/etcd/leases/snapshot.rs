//! With a busy etcd, the listing of one node is reused by the next, if it can be trusted.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{KeyValue, Permission, Txn, TxnOp};
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tweed::model::lease::Lease;
use tweed::store::Leases;
use tweed::store::claim::Previous;
use tweed::store::etcd::{Credentials, EtcdOptions, EtcdSubnetManager};

use crate::fixture::node::{
    CONFIG, SUBNETS, Updates, V4, config, manager, manager_of, network_config, next, options,
    previous, subnets, value, vxlan,
};
use crate::fixture::proxy::delay_answers;
use crate::fixture::server::EtcdServer;

const PASSWORD: &str = "correct-horse";
const SNAPSHOT: &str = "/coreos.com/network/tweed/snapshot";
/// Long enough that etcd is regarded as busy.
const LATE: Duration = Duration::from_millis(150);
/// On a busy machine, an idle etcd also answers late: one of this number of nodes finds it idle.
const TRIES: usize = 20;
/// The public IP of a node that held a lease before etcd became busy.
const OLD: &str = "192.168.0.9";
/// A lease that vanishes after the listing: only a node that uses the snapshot sees it first.
const VANISHING: &str = "11.0.0.0-24";

/// Enough leases that nodes write a snapshot.
async fn populated() -> EtcdServer {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let keys: Vec<String> =
        (0..600).map(|n| format!("{SUBNETS}11.{}.{}.0-24", n / 256, n % 256)).collect();
    let mut client = server.client().await;
    for batch in keys.chunks(100) {
        let puts = batch.iter().map(|key| TxnOp::put(key.as_str(), value("10.0.0.3"), None));
        client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
    }
    server
}

/// The work of a node with an etcd that answers late.
async fn busily<T>(
    server: &EtcdServer,
    previous: Previous,
    start: impl AsyncFnOnce(Arc<EtcdSubnetManager>) -> T,
) -> T {
    busily_as(None, server, previous, start).await
}

async fn busily_as<T>(
    credentials: Option<Credentials>,
    server: &EtcdServer,
    previous: Previous,
    start: impl AsyncFnOnce(Arc<EtcdSubnetManager>) -> T,
) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let options = EtcdOptions { credentials, ..options(&[endpoint]) };
    let start = start(manager_of(options, previous));
    let busy = delay_answers(listener, server.port(), LATE);
    let both = async {
        tokio::select! {
            started = start => started,
            () = busy => unreachable!(),
        }
    };
    LocalSet::new().run_until(both).await
}

async fn acquire(manager: &Arc<EtcdSubnetManager>, public_ip: &str) -> Lease {
    network_config(manager).await;
    manager.acquire(&config(V4), &vxlan(&[public_ip])).await.unwrap()
}

/// The first update of a node once it has its lease, 10.5.115.0/24, and those that follow.
async fn first_seen(manager: Arc<EtcdSubnetManager>) -> (String, Updates) {
    let lease = acquire(&manager, OLD).await;
    assert_eq!(subnets(&lease), ["10.5.115.0/24"]);
    let mut updates = manager.watch();
    (next(&mut updates).await, updates)
}

/// One node has held a lease for a long time, another joined while etcd was busy, and then a lease
/// vanished. Returns what the first node remembers.
async fn shared() -> (EtcdServer, Previous) {
    let server = populated().await;
    let lease = acquire(&manager(&server), OLD).await;
    join_busily(&server, "192.168.0.8").await;
    server.delete(&format!("{SUBNETS}{VANISHING}")).await;
    (server, previous(&["10.5.115.0/24"], lease.grant))
}

async fn join_busily(server: &EtcdServer, public_ip: &str) {
    busily(server, Previous::default(), async |manager| acquire(&manager, public_ip).await).await;
}

async fn snapshot(server: &EtcdServer) -> KeyValue {
    let answer = server.client().await.get(SNAPSHOT, None).await.unwrap();
    answer.kvs().first().expect("no snapshot").clone()
}

async fn replace_snapshot(server: &EtcdServer, value: impl Into<Vec<u8>>) {
    server.client().await.put(SNAPSHOT, value, None).await.unwrap();
}

/// Checks that a node that restarts while etcd is busy reads the current leases.
async fn expect_a_reading(server: &EtcdServer, previous: Previous) {
    let (seen, _) = busily(server, previous, first_seen).await;
    assert!(!seen.contains(VANISHING), "{seen}");
    assert!(seen.contains("10.5.115.0-24@192.168.0.9"), "{seen}");
    assert!(seen.contains("11.2.0.0-24"), "{seen}");
}

#[tokio::test]
async fn a_node_uses_the_snapshot_of_another_and_the_watch_adds_later_changes() {
    let (server, previous) = shared().await;
    let first_two = async |manager| {
        let (first, mut updates) = first_seen(manager).await;
        [first, next(&mut updates).await]
    };
    let [seen, then] = busily(&server, previous, first_two).await;
    assert!(seen.starts_with("snapshot ["), "{seen}");
    assert!(seen.contains("10.5.115.0-24@192.168.0.9"), "{seen}");
    assert_eq!(then, format!("remove {VANISHING}"));
}

#[tokio::test]
async fn a_snapshot_expires_within_minutes() {
    let (server, _) = shared().await;
    let grant = snapshot(&server).await.lease();
    let term = server.client().await.lease_time_to_live(grant, None).await.unwrap();
    assert!((1..=300).contains(&term.granted_ttl()), "{}", term.granted_ttl());
}

#[tokio::test]
async fn a_damaged_snapshot_is_ignored() {
    let (server, previous) = shared().await;
    let mut bytes = snapshot(&server).await.value().to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    replace_snapshot(&server, bytes).await;
    expect_a_reading(&server, previous).await;
}

#[tokio::test]
async fn a_foreign_snapshot_is_ignored() {
    let (server, previous) = shared().await;
    replace_snapshot(&server, "foreign").await;
    expect_a_reading(&server, previous).await;
}

#[tokio::test]
async fn a_snapshot_is_ignored_after_many_changes() {
    let (server, previous) = shared().await;
    for index in 0..61 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    expect_a_reading(&server, previous).await;
}

#[tokio::test]
async fn a_snapshot_from_before_our_own_write_is_replaced() {
    let (server, previous) = shared().await;
    let before = snapshot(&server).await;
    join_busily(&server, "192.168.0.7").await;
    assert_ne!(snapshot(&server).await.value(), before.value());
    expect_a_reading(&server, previous).await;
}

#[tokio::test]
async fn a_snapshot_of_a_store_that_was_wiped_is_ignored() {
    let (mut server, previous) = shared().await;
    let old = snapshot(&server).await;
    server.wipe();
    server.run();
    server.answers().await;
    server.put(CONFIG, V4).await;
    server.put(&format!("{SUBNETS}11.2.0.0-24"), &value("10.0.0.3")).await;
    replace_snapshot(&server, old.value()).await;
    expect_a_reading(&server, previous).await;
}

#[tokio::test]
async fn no_snapshot_is_read_from_an_idle_etcd() {
    let (server, previous) = shared().await;
    for _ in 0..TRIES {
        let manager = manager_of(options(&[server.endpoint()]), previous.clone());
        let (seen, _) = first_seen(manager).await;
        if !seen.contains(VANISHING) {
            return;
        }
    }
    panic!("each node begins with the snapshot");
}

#[tokio::test]
async fn no_snapshot_is_written_to_an_idle_etcd() {
    let server = populated().await;
    for _ in 0..TRIES {
        drop(first_seen(manager(&server)).await);
        if server.keys(SNAPSHOT).await.is_empty() {
            return;
        }
        server.delete(SNAPSHOT).await;
    }
    panic!("each node leaves a snapshot");
}

#[tokio::test]
async fn a_node_without_the_right_to_snapshots_reads_all_leases() {
    let server = populated().await;
    server.delete(&format!("{SUBNETS}{VANISHING}")).await;
    let mut client = server.client().await;
    for user in ["root", "flannel"] {
        client.user_add(user, PASSWORD, None).await.unwrap();
        client.role_add(user).await.unwrap();
        client.user_grant_role(user, user).await.unwrap();
    }
    let subnets = Permission::read_write(SUBNETS).with_prefix();
    client.role_grant_permission("flannel", subnets).await.unwrap();
    client.role_grant_permission("flannel", Permission::read(CONFIG)).await.unwrap();
    client.auth_enable().await.unwrap();
    let flannel = Credentials { user: "flannel".into(), password: PASSWORD.into() };
    let (seen, _) = busily_as(Some(flannel), &server, Previous::default(), first_seen).await;
    assert!(seen.contains("11.2.0.0-24"), "{seen}");
}
