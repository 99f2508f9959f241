//! The condition that keeps pods away from a node.

use serde_json::{Value, json};
use tweed::model::status::StoreState;
use tweed::store::kube::KubeSubnetManager;
use tweed::store::{Documents, Leases};
use tweed_lab::ApiServer;

use crate::node::{A_WHILE, acquire, eventually, manager, options, server, while_running};

/// As a cloud's controller marks a new node.
fn mark(server: &ApiServer) {
    let condition =
        json!({ "type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated" });
    server.patch_node("n1", &json!({ "status": { "conditions": [condition] } }));
}

fn condition(server: &ApiServer) -> Option<Value> {
    let node = server.node("n1")?;
    let conditions = node["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == "NetworkUnavailable")
}

fn is_cleared(server: &ApiServer) -> bool {
    condition(server).is_some_and(|condition| condition["status"] == "False")
}

#[tokio::test]
async fn the_condition_is_cleared_only_by_an_announcement() {
    let server = server();
    mark(&server);
    let manager = manager(&server);
    acquire(&manager).await;
    assert!(!is_cleared(&server), "a lease alone carries no packets");
    while_running(
        manager.announce(async || {}),
        eventually("it is cleared", || is_cleared(&server)),
    )
    .await;
    let cleared = condition(&server).unwrap();
    assert_eq!(
        (&cleared["reason"], &cleared["message"]),
        (&json!("FlannelIsUp"), &json!("Flannel is running on this node"))
    );
    let now = cleared["lastTransitionTime"].as_str().unwrap();
    assert!(now.starts_with("20") && now.ends_with('Z') && now.len() == 20, "{now}");
    assert_eq!(cleared["lastHeartbeatTime"], now);
}

#[tokio::test]
async fn the_condition_of_a_recreated_node_is_cleared_again() {
    use futures::StreamExt;
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    let mut updates = manager.watch();
    let follow = async { while updates.next().await.is_some() {} };
    let work = async { tokio::join!(follow, manager.announce(async || {})) };
    let story = async {
        eventually("it is cleared", || is_cleared(&server)).await;
        server.delete_node("n1");
        server.add_node("n1", &["10.244.2.0/24"]);
        mark(&server);
        tokio::time::sleep(A_WHILE).await;
        assert!(!is_cleared(&server), "its new subnet is not in use");
        acquire(&manager).await;
        eventually("it is cleared again", || is_cleared(&server)).await;
    };
    while_running(work, story).await;
}

#[tokio::test]
async fn the_condition_stays_until_the_daemon_is_ready() {
    let server = server();
    mark(&server);
    let manager = manager(&server);
    acquire(&manager).await;
    let ready = tokio::sync::Notify::new();
    let story = async {
        tokio::time::sleep(A_WHILE).await;
        assert!(!is_cleared(&server));
        ready.notify_one();
        eventually("it is cleared", || is_cleared(&server)).await;
    };
    while_running(manager.announce(async || ready.notified().await), story).await;
}

#[tokio::test]
async fn with_the_option_untouched_no_condition_is_changed() {
    let server = server();
    mark(&server);
    let mut options = options(&[server.url()]);
    options.clears_condition = false;
    let manager = KubeSubnetManager::new(options);
    acquire(&manager).await;
    while_running(manager.announce(async || {}), tokio::time::sleep(A_WHILE)).await;
    assert!(!is_cleared(&server));
}

#[tokio::test]
async fn a_forbidden_request_is_repeated() {
    let server = server();
    mark(&server);
    let manager = manager(&server);
    acquire(&manager).await;
    server.fail(|faults| faults.forbidden = vec!["PATCH".to_owned()]);
    let story = async {
        let refused = || server.take_asked().iter().any(|asked| asked.what.starts_with("PATCH"));
        eventually("it is asked", refused).await;
        server.fail(|faults| faults.forbidden.clear());
        eventually("it is cleared", || is_cleared(&server)).await;
        // The server has cleared the condition before the manager gets its answer.
        let is_reachable = || *manager.state().borrow() == StoreState::Reachable;
        eventually("it is reachable", is_reachable).await;
    };
    while_running(manager.announce(async || {}), story).await;
}

#[tokio::test]
async fn a_request_that_a_webhook_fails_is_repeated_and_concerns_nothing_else() {
    let server = server();
    mark(&server);
    let manager = manager(&server);
    acquire(&manager).await;
    server.fail(|faults| faults.webhook_down = vec!["PATCH".to_owned()]);
    let mut state = manager.state();
    let story = async {
        let asks = || server.take_asked().iter().any(|asked| asked.what.starts_with("PATCH"));
        for _ in 0..2 {
            eventually("it is asked", asks).await;
        }
        server.fail(|faults| faults.webhook_down.clear());
        eventually("it is cleared", || is_cleared(&server)).await;
    };
    let unreachable = state.wait_for(|state| *state != StoreState::Reachable);
    tokio::select! {
        state = unreachable => panic!("{:?}", *state.unwrap()),
        () = while_running(manager.announce(async || {}), story) => {}
    }
}
