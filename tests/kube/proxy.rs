//! A proxy in front of the API server that answers by itself.

use hyper::StatusCode;
use tweed::model::status::StoreState;
use tweed::store::{Documents, Leases};
use tweed_lab::Page;

use crate::node::{acquire, add_peer, eventually, manager, next, nothing, server, waits};

const HTML: &str = "text/html; charset=utf-8";

#[tokio::test]
async fn a_page_in_answer_to_a_watch_causes_no_busy_loop() {
    for content_type in [HTML, "application/json"] {
        let server = server();
        let manager = manager(&server);
        acquire(&manager).await;
        let mut updates = manager.watch();
        next(&mut updates).await;
        server.fail(|faults| {
            faults.page = Some(Page { query: "watch=true", content_type, status: StatusCode::OK });
        });
        server.drop_watches();
        server.take_asked();
        for _ in 0..3 {
            nothing(&mut updates).await;
        }
        let asked = server.take_asked().len();
        assert!((1..50).contains(&asked), "{content_type}: {asked} requests");
        server.fail(|faults| faults.page = None);
        add_peer(&server, 3);
        assert_eq!(next(&mut updates).await, "put n3@172.18.0.3", "{content_type}");
    }
}

#[tokio::test]
async fn a_proxy_that_answers_with_its_own_page_is_no_api_server() {
    // What has no backend at a load balancer is not found there.
    for (status, reason) in [(StatusCode::OK, "text/html"), (StatusCode::NOT_FOUND, "404")] {
        let server = server();
        let manager = manager(&server);
        let page = Page { query: "", content_type: HTML, status };
        server.fail(|faults| faults.page = Some(page));
        let works = async {
            let why = waits(&manager, reason).await;
            assert!(why.starts_with(&server.url()), "{why}");
            server.fail(|faults| faults.page = None);
        };
        tokio::join!(acquire(&manager), works);
        let is_reachable = || *manager.state().borrow() == StoreState::Reachable;
        eventually("it is reachable", is_reachable).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_no_node_takes_no_subnet_away() {
    let server = server();
    let manager = manager(&server);
    let page = Page { query: "", content_type: "application/json", status: StatusCode::OK };
    server.fail(|faults| faults.page = Some(page));
    let works = async {
        waits(&manager, "node n1 cannot be read").await;
        assert!(matches!(*manager.state().borrow(), StoreState::RequestRefused(_)));
        server.fail(|faults| faults.page = None);
    };
    tokio::join!(acquire(&manager), works);
}
