//! A config that is missing, wrong, mended.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tweed::subnet::claim::Previous;
use tweed::subnet::{StoreState, SubnetManager};

use crate::log::Log;
use crate::node::{CONFIG, V4, config, manager, manager_of, options};
use crate::server::{EtcdServer, port};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_config_that_is_there_is_returned() {
    let server = EtcdServer::start().await;
    server.put(CONFIG, V4).await;
    let manager = manager(&server);
    assert_eq!(timeout(SOON, manager.network_config()).await.unwrap(), config(V4));
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_missing_config_is_waited_for() {
    let server = EtcdServer::start().await;
    let manager = manager(&server);
    let missing = "key /coreos.com/network/config is missing: write the network config there";
    let write = async {
        let mut state = manager.state();
        state.wait_for(|state| *state == StoreState::Waiting(missing.into())).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        server.put(CONFIG, V4).await;
    };
    let (found, ()) =
        timeout(SOON, async { tokio::join!(manager.network_config(), write) }).await.unwrap();
    assert_eq!(found, config(V4));
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_wrong_config_is_named_until_it_is_mended() {
    let server = EtcdServer::start().await;
    let log = Log::catch();
    server.put(CONFIG, r#"{"Network":"10.5.0.0/16","SubnetLen":31}"#).await;
    let manager = manager(&server);
    let mend = async {
        let mut state = manager.state();
        let wrong = "key /coreos.com/network/config: SubnetLen is 31, but must be from 18 to 30, for 10.5.0.0/16";
        state.wait_for(|state| *state == StoreState::Waiting(wrong.into())).await.unwrap();
        server.put(CONFIG, "{").await;
        let broken = |state: &StoreState| matches!(state, StoreState::Waiting(reason) if reason.contains("no JSON object"));
        state.wait_for(broken).await.unwrap();
        server.put(CONFIG, V4).await;
    };
    let (found, ()) =
        timeout(SOON, async { tokio::join!(manager.network_config(), mend) }).await.unwrap();
    assert_eq!(found, config(V4));
    assert_eq!(log.lines().len(), 2, "{:#?}", log.lines());
}

#[tokio::test]
async fn a_server_that_is_not_up_yet_is_waited_for() {
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
        state.wait_for(|state| matches!(state, StoreState::Waiting(_))).await.unwrap();
        server.show(known).await;
    };
    let (found, ()) =
        timeout(SOON * 4, async { tokio::join!(manager.network_config(), start) }).await.unwrap();
    assert_eq!(found, config(V4));
}
