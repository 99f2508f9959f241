//! User and password, expired tokens, and secrets that are never shown.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Permission, RoleRevokePermissionOptions};
use futures::StreamExt;
use tokio::time::{sleep, timeout};
use tweed::model::status::StoreState;
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdSubnetManager, LeaseTimes};
use tweed::store::{Documents, Leases};

use crate::fixture::log::Log;
use crate::fixture::node::{
    SUBNETS, V4, config, manager_of, next, options, value, vxlan, with_password,
};
use crate::fixture::server::{EtcdServer, PASSWORD, TIMEOUT};

const NETWORK: &str = "/coreos.com/network/";

/// A server on which only root and, for the keys of the network, user `flannel` have rights.
async fn server(more: &[&str]) -> EtcdServer {
    let server = EtcdServer::start_with(more).await;
    server.enable_authentication(NETWORK).await;
    server
}

/// Waits for a server that is starting.
async fn root(server: &EtcdServer) -> Client {
    loop {
        let options = ConnectOptions::new().with_user("root", PASSWORD);
        if let Ok(client) = Client::connect([server.endpoint()], Some(options)).await {
            return client;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

fn manager(server: &EtcdServer) -> Arc<EtcdSubnetManager> {
    manager_of(with_password(server, PASSWORD), Previous::default())
}

#[tokio::test]
async fn a_user_needs_rights_only_to_our_keys() {
    let server = server(&[]).await;
    let manager = manager(&server);
    let lease = manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    assert!(timeout(Duration::from_secs(1), manager.hold(&lease)).await.is_err());
}

#[tokio::test]
async fn without_authentication_the_user_is_ignored_until_it_is_enabled() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let acquire = || timeout(TIMEOUT, manager.acquire(&config, &node));
    acquire().await.expect("no lease").unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);

    server.enable_authentication(NETWORK).await;
    acquire().await.expect("no new connection").unwrap();
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_daemon_without_a_user_reports_that_etcd_requires_one() {
    let server = server(&[]).await;
    let manager = manager_of(options(&[server.endpoint()]), Previous::default());
    let (mut updates, mut state) = (manager.watch(), manager.state());
    let is_refused = |state: &StoreState| format!("{state:?}").contains("user name is empty");
    let refused = tokio::select! {
        update = next(&mut updates) => panic!("{update}"),
        state = timeout(TIMEOUT, state.wait_for(is_refused)) => state.unwrap().unwrap().clone(),
    };
    assert!(matches!(refused, StoreState::ListRefused(_)), "{refused:?}");
}

#[tokio::test]
async fn expired_tokens_are_replaced() {
    let mut server = server(&["--auth-token-ttl", "1"]).await;
    let manager = manager(&server);
    let node = vxlan(&["192.168.0.9"]);
    manager.acquire(&config(V4), &node).await.unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    sleep(Duration::from_secs(4)).await;
    let renewed = timeout(TIMEOUT, manager.acquire(&config(V4), &node)).await;
    renewed.expect("no answer").unwrap();
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    // After a power cut, the server knows no token.
    server.kill();
    server.run();
    put_by_root(&server).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
}

#[tokio::test]
async fn a_watch_opened_with_an_expired_token_recovers() {
    let server = server(&["--auth-token-ttl", "1"]).await;
    let mut updates = manager(&server).watch();
    assert_eq!(next(&mut updates).await, "snapshot []");
    // The watch is opened only now, and no other request renews the token.
    sleep(Duration::from_secs(4)).await;
    put_by_root(&server).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
}

/// A token of a second may have expired before it is used.
async fn put_by_root(server: &EtcdServer) {
    let key = format!("{SUBNETS}10.5.4.0-24");
    while root(server).await.put(key.as_str(), value("10.0.0.4"), None).await.is_err() {}
}

#[tokio::test]
async fn a_wrong_password_is_reported_but_not_shown() {
    let server = server(&[]).await;
    let log = Log::catch();
    let wrong = "not-this-horse";
    let options = with_password(&server, wrong);
    assert!(!format!("{options:?}").contains(wrong));
    let manager = manager_of(options, Previous::default());
    let mut state = manager.state();
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    let waits = state.wait_for(|state| matches!(state, StoreState::Unreachable(_)));
    let reason = tokio::select! {
        lease = manager.acquire(&config, &node) => panic!("{lease:?}"),
        waits = timeout(TIMEOUT, waits) => format!("{:?}", *waits.unwrap().unwrap()),
    };
    assert!(reason.contains("authentication failed"), "{reason}");
    let ours = log.lines();
    assert_eq!(ours.len(), 1, "{ours:#?}");
    // Not even the libraries log it at their most verbose level.
    assert!(log.text().contains("TRACE"));
    assert!(!log.text().contains(wrong));
}

#[tokio::test]
async fn a_user_without_write_rights_still_sees_removed_peers() {
    let server = server(&[]).await;
    let mut root = root(&server).await;
    let peer = format!("{SUBNETS}10.5.4.0-24");
    root.put(peer.as_str(), value("10.0.0.4"), None).await.unwrap();
    let manager = manager(&server);
    manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let mut updates = manager.watch();
    assert_eq!(next(&mut updates).await, "snapshot [10.5.4.0-24@10.0.0.4]");
    assert_eq!(next(&mut updates).await, "put 10.5.115.0-24@192.168.0.9");
    let below = RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("flannel", NETWORK, Some(below)).await.unwrap();
    let read = Permission::read(NETWORK).with_prefix();
    root.role_grant_permission("flannel", read).await.unwrap();

    let log = Log::catch();
    let mut state = manager.state();
    let (config, node) = (config(V4), vxlan(&["192.168.0.10"]));
    let publishes = manager.acquire(&config, &node);
    let sees = async {
        let is_told = |state: &StoreState| format!("{state:?}").contains("permission");
        let refused = timeout(TIMEOUT, state.wait_for(is_told)).await.unwrap().unwrap().clone();
        assert!(refused.is_reachable(), "removals wait: {refused:?}");
        let why = format!("{refused:?}");
        assert!(why.contains("user flannel") && why.contains(NETWORK), "{why}");
        root.delete(peer.as_str(), None).await.unwrap();
        assert_eq!(next(&mut updates).await, "remove 10.5.4.0-24");
        assert!(manager.state().borrow().is_reachable());
    };
    tokio::select! {
        lease = publishes => panic!("{lease:?}"),
        () = sees => {}
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

/// Also where etcd refuses to write because it is full.
#[tokio::test]
async fn a_lease_is_renewed_while_its_key_cannot_be_written() {
    let server = server(&[]).await;
    let mut root = root(&server).await;
    let ttl = Duration::from_secs(6);
    let times = LeaseTimes { ttl, renew_margin: Duration::from_secs(1) };
    let manager =
        EtcdSubnetManager::new(with_password(&server, PASSWORD), Previous::default(), times);
    manager.acquire(&config(V4), &vxlan(&["192.168.0.9"])).await.unwrap();
    let below = RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("flannel", NETWORK, Some(below)).await.unwrap();
    let read = Permission::read(NETWORK).with_prefix();
    root.role_grant_permission("flannel", read).await.unwrap();

    let (config, node) = (config(V4), vxlan(&["192.168.0.10"]));
    let mut publishes = pin!(manager.acquire(&config, &node));
    timeout(ttl * 2, &mut publishes).await.unwrap_err();
    let key = format!("{SUBNETS}10.5.115.0-24");
    let stored = async |root: &mut Client| {
        let found = root.get(key.as_str(), None).await.unwrap();
        found.kvs().first().map(|kv| kv.value_str().unwrap().to_owned())
    };
    let before = stored(&mut root).await.expect("the lease has ended");
    assert!(before.contains("192.168.0.9"), "{before}");
    let all = Permission::read_write(NETWORK).with_prefix();
    root.role_grant_permission("flannel", all).await.unwrap();
    timeout(TIMEOUT, publishes).await.expect("it is not published").unwrap();
    assert!(stored(&mut root).await.unwrap().contains("192.168.0.10"));
}

#[tokio::test]
async fn a_user_without_rights_is_named_and_etcd_is_reachable() {
    let server = server(&[]).await;
    let mut root = root(&server).await;
    let below = RoleRevokePermissionOptions::new().with_prefix();
    root.role_revoke_permission("flannel", NETWORK, Some(below)).await.unwrap();
    let log = Log::catch();
    let manager = manager(&server);
    let (mut updates, mut configs) = (manager.watch(), manager.watch_config());
    let mut state = manager.state();
    let is_refused = |state: &StoreState| format!("{state:?}").contains("permission");
    let refused = tokio::select! {
        update = next(&mut updates) => panic!("{update}"),
        update = configs.next() => panic!("{update:?}"),
        state = timeout(TIMEOUT, state.wait_for(is_refused)) => state.unwrap().unwrap().clone(),
    };
    assert!(!matches!(refused, StoreState::Unreachable(_)), "{refused:?}");
    assert!(format!("{refused:?}").contains("user flannel"), "{refused:?}");
    let all = Permission::read_write(NETWORK).with_prefix();
    root.role_grant_permission("flannel", all).await.unwrap();
    assert_eq!(next(&mut updates).await, "snapshot []");
    timeout(TIMEOUT, configs.next()).await.expect("no config").unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    assert!(!log.text().contains("cannot be used"), "{:#?}", log.lines());
}
