//! Events about the own Node.

use jiff::Timestamp;
use serde_json::{Value, json};
use tweed::model::event::{EventDigest, EventKind, EventSubject, NodeChange, NodeEvent};
use tweed::model::lease::LeaseId;
use tweed::model::status::StoreState;
use tweed::store::Documents;
use tweed_lab::ApiServer;

use crate::node::{acquire, manager, server};

const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Peers n2 and n3 that are unreachable.
fn unreachable() -> EventDigest {
    let event = |peer: &str, second| {
        let subject = EventSubject { lease: Some(LeaseId::new(peer)), peer: None };
        let change = NodeChange::new(EventKind::PeerUnreachable, subject, "peer is unreachable");
        NodeEvent { sequence: 1, time: Timestamp::from_second(second).unwrap(), change }
    };
    let mut digest = EventDigest::of(&event("n2", 0)).unwrap();
    digest.add(&event("n3", 60));
    digest
}

fn created(server: &ApiServer) -> Vec<Value> {
    let asked = server.take_asked();
    let created = asked.iter().filter(|asked| asked.what == format!("POST {EVENTS}"));
    created.map(|asked| serde_json::from_str(&asked.body).unwrap()).collect()
}

#[tokio::test]
async fn an_event_names_its_node_as_kubectl_searches_for_it() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    for _ in 0..2 {
        manager.publish_event(&unreachable()).await.unwrap();
    }
    let [mut event, other] = created(&server).try_into().unwrap();
    assert_ne!(event["metadata"]["name"], other["metadata"]["name"]);
    let name = event["metadata"]["name"].take();
    let stored = server.get(EVENTS, name.as_str().unwrap()).unwrap();
    let uid = server.node("n1").unwrap()["metadata"]["uid"].clone();
    assert_eq!(stored["involvedObject"]["uid"], uid);
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": null, "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid },
        "type": "Warning",
        "reason": "PeerUnreachable",
        "message": "2 changes: n2: peer is unreachable; n3: peer is unreachable",
        "source": { "component": "tweedd", "host": "n1" },
        "reportingComponent": "tweedd",
        "reportingInstance": "n1",
        "firstTimestamp": "1970-01-01T00:00:00Z",
        "lastTimestamp": "1970-01-01T00:01:00Z",
        "count": 2,
    });
    assert_eq!(event, expected);
}

#[tokio::test]
async fn a_forbidden_event_is_reported_and_concerns_nothing_else() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    server.fail(|faults| faults.forbidden = vec![format!("POST {EVENTS}")]);
    let refused = manager.publish_event(&unreachable()).await.unwrap_err();
    assert!(refused.starts_with(&format!("the API server forbids POST {EVENTS}: ")), "{refused}");
    assert!(refused.ends_with("docs/kubernetes.md lists the permissions to grant"), "{refused}");
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn an_event_that_cannot_be_sent_makes_the_store_not_unreachable() {
    let mut server = server();
    let manager = manager(&server);
    let unknown = manager.publish_event(&unreachable()).await.unwrap_err();
    assert_eq!(unknown, "the Node of this host is not known yet");
    acquire(&manager).await;
    // A limit of events, as the admission plugin EventRateLimit sets one, pauses no other request.
    server.fail(|faults| (faults.throttled, faults.retry_after) = (1, Some(60)));
    manager.publish_event(&unreachable()).await.unwrap_err();
    assert_eq!(manager.publish_event(&unreachable()).await, Ok(()));
    server.stop().unwrap();
    manager.publish_event(&unreachable()).await.unwrap_err();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}
