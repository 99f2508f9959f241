//! A config that is missing, invalid, fixed or edited.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use tweed::model::config::ConfigUpdate;
use tweed::model::status::StoreState;
use tweed::store::Documents;
use tweed::store::claim::Previous;

use crate::fixture::node::{CONFIG, V4, config, manager, manager_of, network_config, options};
use crate::fixture::proxy::mute_answers;
use crate::fixture::server::{EtcdServer, TIMEOUT, port};

#[tokio::test]
async fn an_existing_config_is_returned() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let manager = manager(&server);
    assert_eq!(timeout(TIMEOUT, network_config(&manager)).await.unwrap(), config(V4));
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_missing_config_is_waited_for() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let missing = "key /coreos.com/network/config is missing: write the network config there";
    let write = async {
        assert_eq!(next(&mut manager.watch_config()).await, missing);
        assert_eq!(*manager.state().borrow(), StoreState::Reachable);
        sleep(Duration::from_secs(1)).await;
        server.put(CONFIG, V4).await;
    };
    let (found, ()) =
        timeout(TIMEOUT, async { tokio::join!(network_config(&manager), write) }).await.unwrap();
    assert_eq!(found, config(V4));
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn an_invalid_config_is_reported_until_it_is_fixed() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, r#"{"Network":"10.5.0.0/16","SubnetLen":31}"#).await;
    let manager = manager(&server);
    let fix = async {
        let mut updates = manager.watch_config();
        let wrong = "key /coreos.com/network/config: SubnetLen is 31, but must be from 18 to 30, for 10.5.0.0/16";
        assert_eq!(next(&mut updates).await, wrong);
        // A store with an invalid config is reachable.
        assert_eq!(*manager.state().borrow(), StoreState::Reachable);
        server.put(CONFIG, "{").await;
        assert!(next(&mut updates).await.contains("not a JSON object"));
        server.put(CONFIG, V4).await;
    };
    let (found, ()) =
        timeout(TIMEOUT, async { tokio::join!(network_config(&manager), fix) }).await.unwrap();
    assert_eq!(found, config(V4));
}

#[tokio::test]
async fn a_server_that_starts_later_is_waited_for() {
    let mut server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let known = server.hide().await;
    let endpoint = format!("http://127.0.0.1:{known}");
    let manager = manager_of(
        options(&[endpoint, format!("http://127.0.0.1:{}", port())]),
        Previous::default(),
    );
    let start = async {
        let mut state = manager.state();
        state.wait_for(|state| matches!(state, StoreState::Unreachable(_))).await.unwrap();
        server.show(known).await;
    };
    let (found, ()) =
        timeout(TIMEOUT, async { tokio::join!(network_config(&manager), start) }).await.unwrap();
    assert_eq!(found, config(V4));
}

/// The next update of the config: its network, or the error; fails without an update.
async fn next(updates: &mut BoxStream<'static, ConfigUpdate>) -> String {
    let update = timeout(TIMEOUT, updates.next()).await.expect("no update").unwrap();
    match update.config {
        Ok(config) => config.networks().map(|network| network.to_string()).collect(),
        Err(reason) => reason.to_string(),
    }
}

fn network(octet: u8) -> String {
    format!(r#"{{"Network":"10.{octet}.0.0/16"}}"#)
}

#[tokio::test]
async fn every_edit_is_sent_once() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let manager = manager(&server);
    let mut updates = manager.watch_config();
    assert_eq!(next(&mut updates).await, "10.5.0.0/16");
    // A change of another key is not an edit.
    server.put("/coreos.com/network/configuration", "{").await;
    server.put(CONFIG, &network(6)).await;
    assert_eq!(next(&mut updates).await, "10.6.0.0/16");
    server.put(CONFIG, "{").await;
    let broken = next(&mut updates).await;
    assert!(broken.starts_with("key /coreos.com/network/config: the network config is not a JSON"));
    server.delete(CONFIG).await;
    let missing = "key /coreos.com/network/config is missing: write the network config there";
    assert_eq!(next(&mut updates).await, missing);
    // A node that has a config keeps it: the store is not unreachable for that reason.
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    server.put(CONFIG, &network(7)).await;
    assert_eq!(next(&mut updates).await, "10.7.0.0/16");
}

#[tokio::test]
async fn the_revision_of_a_config_is_that_of_its_key() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    server.put("/other", "").await;
    let mut updates = manager(&server).watch_config();
    let first = timeout(TIMEOUT, updates.next()).await.unwrap().unwrap();
    server.put(CONFIG, V4).await;
    let second = timeout(TIMEOUT, updates.next()).await.unwrap().unwrap();
    assert_eq!(first.config, second.config);
    assert_eq!(second.revision, first.revision + 2);
}

#[tokio::test]
async fn an_edit_while_the_server_is_unreachable_is_sent_later() {
    let mut server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let manager = manager(&server);
    let mut updates = manager.watch_config();
    assert_eq!(next(&mut updates).await, "10.5.0.0/16");
    let ask = async {
        let known = server.hide().await;
        server.put(CONFIG, &network(6)).await;
        server.compact().await;
        server.show(known).await;
    };
    let (update, ()) = tokio::join!(next(&mut updates), ask);
    assert_eq!(update, "10.6.0.0/16");
    server.put(CONFIG, &network(7)).await;
    assert_eq!(next(&mut updates).await, "10.7.0.0/16");
}

#[tokio::test]
async fn a_config_lost_with_the_disk_of_the_server_is_reported() {
    let mut server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let manager = manager(&server);
    let mut updates = manager.watch_config();
    assert_eq!(next(&mut updates).await, "10.5.0.0/16");
    let wipe = async {
        server.wipe();
        server.run();
        server.answers().await;
    };
    let (update, ()) = tokio::join!(next(&mut updates), wipe);
    assert!(update.ends_with("is missing: write the network config there"), "{update}");
    server.put(CONFIG, &network(6)).await;
    assert_eq!(next(&mut updates).await, "10.6.0.0/16");
}

#[tokio::test]
async fn a_compacted_history_hides_no_edit() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let mut updates = manager(&server).watch_config();
    assert_eq!(next(&mut updates).await, "10.5.0.0/16");
    // The stream is not polled, so the watch is not open yet, and its first revision is compacted.
    server.put(CONFIG, &network(6)).await;
    server.put("/other", "").await;
    server.compact().await;
    assert_eq!(next(&mut updates).await, "10.6.0.0/16");
}

#[tokio::test]
async fn a_watch_that_a_proxy_keeps_open_without_its_server_is_noticed() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let manager = manager_of(options(&[endpoint]), Previous::default());
    let muted = Rc::new(Cell::new(false));
    let edit = async {
        let mut updates = manager.watch_config();
        assert_eq!(next(&mut updates).await, "10.5.0.0/16");
        // By then the watch is open.
        assert!(timeout(Duration::from_secs(1), updates.next()).await.is_err());
        muted.set(true);
        server.put(CONFIG, &network(6)).await;
        timeout(Duration::from_secs(70), updates.next()).await.expect("the edit is missed").unwrap()
    };
    let both = async {
        tokio::select! {
            update = edit => update,
            () = mute_answers(listener, server.port(), Rc::clone(&muted)) => unreachable!(),
        }
    };
    let update = LocalSet::new().run_until(both).await;
    assert_eq!(update.config.unwrap(), config(&network(6)));
}
