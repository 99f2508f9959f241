//! An overloaded server gets no requests for the time that it asks for.

use tokio::time::Instant;
use tweed::model::status::StoreState;
use tweed::store::Documents;
use tweed::store::kube::KubeSubnetManager;
use tweed_lab::ApiServer;

use crate::node::{acquire, manager, options, server};

#[tokio::test]
async fn a_server_that_asks_for_a_pause_gets_it() {
    let server = server();
    server.fail(|faults| (faults.throttled, faults.retry_after) = (1, Some(2)));
    let (manager, begun) = (manager(&server), Instant::now());
    acquire(&manager).await;
    assert!(begun.elapsed().as_secs() >= 2, "{:?}", begun.elapsed());
    assert_eq!(*manager.state().borrow(), StoreState::Reachable, "it was always reachable");
}

#[tokio::test]
async fn a_refused_request_without_a_reason_is_repeated() {
    let server = server();
    server.fail(|faults| faults.throttled = 3);
    acquire(&manager(&server)).await;
    assert_eq!(server.annotation("n1", "backend-type").as_deref(), Some("vxlan"));
}

#[tokio::test]
async fn while_one_server_asks_for_a_pause_another_is_used() {
    let (busy, server) = (server(), server());
    busy.fail(|faults| (faults.throttled, faults.retry_after) = (u32::MAX, Some(60)));
    // Until the busy server is tried first.
    while busy.take_asked().is_empty() {
        let manager = KubeSubnetManager::new(options(&[busy.url(), server.url()]));
        let begun = Instant::now();
        acquire(&manager).await;
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
        assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    }
}

#[tokio::test]
async fn servers_that_all_ask_for_a_pause_get_it() {
    let servers = [server(), server()];
    for server in &servers {
        server.fail(|faults| (faults.throttled, faults.retry_after) = (1, Some(3)));
    }
    let urls = servers.each_ref().map(ApiServer::url);
    let (manager, begun) = (KubeSubnetManager::new(options(&urls)), Instant::now());
    acquire(&manager).await;
    assert!(begun.elapsed().as_secs() >= 3, "{:?}", begun.elapsed());
    assert_eq!(*manager.state().borrow(), StoreState::Reachable, "they were always reachable");
}
