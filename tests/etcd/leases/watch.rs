//! The stream of updates, through every kind of interruption.

use std::process::Command;
use std::time::Duration;

use etcd_client::DeleteOptions;
use futures::StreamExt;
use tokio::time::timeout;
use tweed::model::status::StoreState;
use tweed::store::claim::Previous;
use tweed::store::{Documents, Leases};

use crate::fixture::node::{
    SUBNETS, Updates, V4, config, manager, manager_of, next, options, value, vxlan,
};
use crate::fixture::server::{EtcdServer, TIMEOUT};

fn key(id: &str) -> String {
    format!("{SUBNETS}{id}")
}

/// A watch that has seen one lease.
async fn watching(server: &EtcdServer) -> Updates {
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    let mut updates = manager(server).watch();
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]");
    updates
}

#[tokio::test]
async fn changes_follow_the_snapshot() {
    let server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    server.put("/coreos.com/networks/subnets/10.5.9.0-24", &value("10.0.0.9")).await;
    server.put("/coreos.com/network/config", V4).await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.5")).await;
    server.delete(&key("10.5.4.0-24")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    assert_eq!(next(&mut updates).await, "put 10.5.3.0-24@10.0.0.5");
    assert_eq!(next(&mut updates).await, "remove 10.5.4.0-24");
}

#[tokio::test]
async fn an_invalid_record_is_rejected_alone() {
    let server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    server.put(&key("junk"), "{}").await;
    server.put(&key("10.5.4.0-24"), "[]").await;
    server.client().await.put(key("10.5.5.0-24"), vec![0xff; 70_000], None).await.unwrap();
    let reason = "malformed: its key names no subnet like 10.5.52.0-24";
    assert_eq!(next(&mut updates).await, format!("put junk@{reason}"));
    assert!(
        next(&mut updates).await.starts_with("put 10.5.4.0-24@malformed: its value is no JSON")
    );
    assert!(
        next(&mut updates)
            .await
            .starts_with("put 10.5.5.0-24@malformed: its value has 70000 bytes")
    );
    let mut fresh = manager(&server).watch();
    let snapshot = next(&mut fresh).await;
    assert!(
        snapshot.starts_with("snapshot [10.5.3.0-24@10.0.0.3 10.5.4.0-24@malformed"),
        "{snapshot}"
    );
}

#[tokio::test]
async fn after_a_power_cut_the_watch_continues_at_its_revision() {
    let mut server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    // Polled while the server is unreachable, so that the failure is noticed.
    server.kill();
    assert!(timeout(Duration::from_secs(1), next(&mut updates)).await.is_err());
    let known = server.hide().await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    server.delete(&key("10.5.3.0-24")).await;
    server.show(known).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    assert_eq!(next(&mut updates).await, "remove 10.5.3.0-24");
}

#[tokio::test]
async fn a_compaction_during_a_disconnection_causes_a_snapshot() {
    let mut server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    let known = server.hide().await;
    server.delete(&key("10.5.3.0-24")).await;
    server.put(&key("10.5.5.0-24"), &value("10.0.0.5")).await;
    server.compact().await;
    server.show(known).await;
    let snapshot = "snapshot [10.5.4.0-24@10.0.0.4 10.5.5.0-24@10.0.0.5]";
    assert_eq!(next(&mut updates).await, snapshot);
    server.put(&key("10.5.6.0-24"), &value("10.0.0.6")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.6.0-24@10.0.0.6");
}

#[tokio::test]
async fn a_compaction_between_reading_and_watching_causes_a_snapshot() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    server.compact().await;
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(
        next(&mut updates).await,
        "snapshot [10.5.115.0-24@192.168.0.9 10.5.4.0-24@10.0.0.4]"
    );
}

/// The flag for the interval of progress notifications; etcd 3.7 has no experimental flags.
fn progress_flag() -> &'static str {
    let help = Command::new("etcd").arg("--help").output().unwrap();
    let help = String::from_utf8([help.stdout, help.stderr].concat()).unwrap();
    let former = "--experimental-watch-progress-notify-interval";
    if help.contains(former) { former } else { "--watch-progress-notify-interval" }
}

#[tokio::test]
async fn idle_watches_follow_the_revision_of_a_store_that_others_use() {
    let mut server = EtcdServer::start_with(&[progress_flag(), "200ms"]).await;
    let mut updates = watching(&server).await;
    for index in 0..20 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    // In this time, the server sends many progress notifications, even on a busy machine.
    assert!(timeout(Duration::from_secs(4), next(&mut updates)).await.is_err());
    server.compact().await;
    let known = server.hide().await;
    server.show(known).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
}

#[tokio::test]
async fn a_watch_on_a_server_that_hung_continues_once_it_answers() {
    let server = EtcdServer::start().await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    let manager = manager(&server);
    let (mut updates, mut state) = (manager.watch(), manager.state());
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]");
    // The watch itself stays open, and there are no other requests.
    server.put(&key("10.5.3.0-24"), &value("10.0.0.5")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.3.0-24@10.0.0.5");
    server.hang();
    let away = state.wait_for(|state| matches!(state, StoreState::Unreachable(_)));
    tokio::select! {
        away = timeout(TIMEOUT, away) => drop(away.expect("nothing noticed").unwrap()),
        update = next(&mut updates) => panic!("{update}"),
    }
    server.wake();
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

/// After 30 seconds without a message, the daemon pings, which the proxy must answer. It answers no
/// request for progress.
#[tokio::test]
async fn behind_a_proxy_a_quiet_store_stays_reachable() {
    let server = EtcdServer::start().await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    server.put("/coreos.com/network/config", V4).await;
    let (_proxy, endpoint) = server.proxy().await;
    let manager = manager_of(options(&[endpoint]), Previous::default());
    let (mut updates, mut state) = (manager.watch(), manager.state());
    let mut configs = manager.watch_config();
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]");
    configs.next().await.unwrap().config.unwrap();
    let away = state.wait_for(|state| matches!(state, StoreState::Unreachable(_)));
    tokio::select! {
        away = timeout(Duration::from_secs(50), away) => assert!(away.is_err(), "{away:?}"),
        update = next(&mut updates) => panic!("{update}"),
        config = configs.next() => panic!("{config:?}"),
    }
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
}

#[tokio::test]
async fn a_store_emptied_by_hand_reports_each_removed_lease() {
    let server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    let all = DeleteOptions::new().with_prefix();
    server.client().await.delete("/coreos.com/network", Some(all)).await.unwrap();
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    assert_eq!(next(&mut updates).await, "remove 10.5.3.0-24");
    assert_eq!(next(&mut updates).await, "remove 10.5.4.0-24");
}

#[tokio::test]
async fn a_server_that_lost_its_disk_causes_a_snapshot() {
    let mut server = EtcdServer::start().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    server.wipe();
    server.run();
    assert_eq!(next(&mut updates).await, "snapshot []");
    server.put(&key("10.5.5.0-24"), &value("10.0.0.5")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.5.0-24@10.0.0.5");
}

#[tokio::test]
async fn a_restored_backup_is_noticed_after_revisions_have_caught_up() {
    let mut server = EtcdServer::start().await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    server.back_up().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    server.restore();
    let known = server.hide().await;
    // At revisions that the watch has seen already.
    server.put(&key("10.5.5.0-24"), &value("10.0.0.5")).await;
    for index in 0..20 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    server.show(known).await;
    let snapshot = "snapshot [10.5.3.0-24@10.0.0.3 10.5.5.0-24@10.0.0.5]";
    assert_eq!(next(&mut updates).await, snapshot);
}

/// The newest change that the watch has seen is written again at the same revision.
#[tokio::test]
async fn a_restored_backup_is_noticed_although_the_newest_change_is_the_same() {
    let mut server = EtcdServer::start().await;
    server.back_up().await;
    // As many elections as after the restore.
    server.hide().await;
    let mut updates = watching(&server).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.4")).await;
    server.put(&key("10.5.5.0-24"), &value("10.0.0.5")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    assert_eq!(next(&mut updates).await, "put 10.5.5.0-24@10.0.0.5");
    server.restore();
    let known = server.hide().await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    server.put(&key("10.5.4.0-24"), &value("10.0.0.44")).await;
    server.put(&key("10.5.5.0-24"), &value("10.0.0.5")).await;
    for index in 0..20 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    server.show(known).await;
    let snapshot = "snapshot [10.5.3.0-24@10.0.0.3 10.5.4.0-24@10.0.0.44 10.5.5.0-24@10.0.0.5]";
    assert_eq!(next(&mut updates).await, snapshot);
}

/// What was listed before our lease was written is of another history.
#[tokio::test]
async fn a_backup_restored_before_the_first_watch_is_noticed() {
    let mut server = EtcdServer::start().await;
    server.put(&key("10.5.3.0-24"), &value("10.0.0.3")).await;
    server.back_up().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    server.restore();
    let known = server.hide().await;
    for index in 0..20 {
        server.put(&format!("/elsewhere/{index}"), "x").await;
    }
    server.show(known).await;
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]");
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]", "listed again");
    let lost = timeout(TIMEOUT, manager.hold(&lease)).await.unwrap();
    assert_eq!(lost.reason, format!("key {} is gone", lease.id));
}

#[tokio::test]
async fn a_lost_disk_is_noticed_after_revisions_have_caught_up() {
    let mut server = EtcdServer::start().await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    server.wipe();
    let known = server.hide().await;
    for index in 0..20 {
        server.put(&key(&format!("10.5.{index}.0-24")), &value("10.0.0.4")).await;
    }
    server.show(known).await;
    assert!(next(&mut updates).await.starts_with("snapshot [10.5.0.0-24@10.0.0.4"));
    let lost = timeout(TIMEOUT, manager.hold(&lease)).await.unwrap();
    assert_eq!(lost.reason, "key 10.5.115.0-24 is gone");
    let again = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    assert_eq!(again.id, lease.id);
    assert_ne!(again.created, lease.created, "a watch that is opened again would list everything");
}
