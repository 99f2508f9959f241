//! An overloaded server gets no requests for the time that it asks for.

use tokio::time::Instant;
use tweed::model::status::StoreState;
use tweed::store::Documents;

use crate::node::{acquire, manager, server};

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
