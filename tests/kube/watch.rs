//! The updates that a watch sends, also after failures of the server.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use tokio::time::{sleep, timeout};
use tweed::model::lease::LeaseUpdate;
use tweed::model::status::StoreState;
use tweed::store::{Documents, Leases};
use tweed_lab::{ApiServer, Asked, Gone, Lists};

use crate::node::{
    TIMEOUT, Updates, V4, acquire, add_peer, config, manager, next, nothing, server, subnets,
};

/// The watch of node n1, after its first snapshot.
async fn watch(server: &ApiServer) -> Updates {
    let manager = manager(server);
    acquire(&manager).await;
    let mut updates = manager.watch();
    next(&mut updates).await;
    updates
}

fn watches(server: &ApiServer) -> Vec<String> {
    let asked = server.take_asked().into_iter();
    let watches = asked.filter(|asked| asked.query.contains("watch=true"));
    watches.map(|asked| asked.query).collect()
}

fn lists(server: &ApiServer) -> usize {
    let asked = server.take_asked();
    let is_list = |query: &str| query.contains("limit=") || query.contains("sendInitialEvents");
    asked.iter().filter(|asked| is_list(&asked.query)).count()
}

async fn first(server: &ApiServer) -> String {
    let manager = manager(server);
    acquire(&manager).await;
    next(&mut manager.watch()).await
}

#[tokio::test]
async fn a_watch_starts_with_all_nodes_that_have_a_lease() {
    let server = server();
    add_peer(&server, 3);
    server.add_node("unmanaged", &["10.244.8.0/24"]);
    assert_eq!(first(&server).await, "snapshot [n1@172.18.0.1 n3@172.18.0.3]");
    let asked = server.take_asked();
    assert!(!asked.iter().any(|asked| asked.query.contains("limit=")), "the list is streamed");
}

#[tokio::test]
async fn peers_are_read_before_the_node_has_a_subnet() {
    let server = ApiServer::start().unwrap();
    server.add_node("n1", &[]);
    add_peer(&server, 3);
    // The network has no IPv6.
    server.annotate("n3", "public-ipv6", Some("fd18::3"));
    let pod_cidrs = ["10.244.3.0/24", "fd00:0:0:3::/64"];
    server.patch_node("n3", &json!({ "spec": { "podCIDRs": pod_cidrs } }));
    let manager = manager(&server);
    assert!(manager.prepare_watch(&config(V4)));
    let snapshot = timeout(TIMEOUT, manager.watch().next()).await.unwrap().unwrap();
    let LeaseUpdate::Snapshot(records) = snapshot else { panic!("{snapshot:?}") };
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(subnets(record.lease.as_ref().unwrap()), ["10.244.3.0/24"]);
}

#[tokio::test]
async fn servers_that_stream_no_lists_are_read_page_by_page() {
    for lists in [Lists::Paged, Lists::Endless, Lists::Stalled] {
        let server = server();
        for number in 3..=250 {
            add_peer(&server, number);
        }
        server.fail(|faults| faults.lists = lists);
        let snapshot = first(&server).await;
        assert_eq!(snapshot.split(' ').count(), 1 + 249, "{lists:?}");
        let pages = server.take_asked().into_iter().filter(|asked| asked.query.contains("limit="));
        assert_eq!(pages.count(), 2, "{lists:?}");
    }
}

/// The server may have been busy, and to read page by page costs it more.
#[tokio::test]
async fn lists_are_streamed_again_after_one_that_stalled() {
    let mut server = server();
    server.fail(|faults| faults.lists = Lists::Stalled);
    let mut updates = watch(&server).await;
    server.fail(|faults| faults.lists = Lists::Streamed);
    server.take_asked();
    server.stop().unwrap();
    add_peer(&server, 3);
    server.compact();
    server.start_again().unwrap();
    assert_eq!(next(&mut updates).await, "snapshot [n1@172.18.0.1 n3@172.18.0.3]");
    let asked = server.take_asked();
    assert!(asked.iter().any(|asked| asked.query.contains("sendInitialEvents")), "{asked:?}");
    assert!(!asked.iter().any(|asked| asked.query.contains("limit=")), "{asked:?}");
}

#[tokio::test]
async fn nodes_of_a_megabyte_hide_no_other() {
    let server = server();
    for number in 3..=22 {
        add_peer(&server, number);
        let image = json!({ "names": ["x".repeat(1_000_000)] });
        server.patch_node(&format!("n{number}"), &json!({ "status": { "images": [image] } }));
    }
    server.fail(|faults| faults.lists = Lists::Paged);
    assert_eq!(first(&server).await.split(' ').count(), 1 + 21);
}

#[tokio::test]
async fn changes_are_sent_once_and_heartbeats_never() {
    let server = server();
    let mut updates = watch(&server).await;
    add_peer(&server, 3);
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
    for beat in 0..50 {
        server.heartbeat("n3", beat);
        server.heartbeat("n1", beat);
    }
    nothing(&mut updates).await;
    server.annotate("n3", "public-ip", Some("172.18.0.33"));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.33");
    server.delete_node("n3");
    assert_eq!(next(&mut updates).await, "delete node n3");
}

#[tokio::test]
async fn every_change_of_a_lease_is_sent() {
    let server = server();
    add_peer(&server, 3);
    let mut updates = watch(&server).await;
    for (key, value) in [
        ("backend-type", "host-gw"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e4"}"#),
        ("backend-data", "null"),
    ] {
        server.annotate("n3", key, Some(value));
        assert_eq!(next(&mut updates).await, "put n3@172.18.0.3", "{key} {value}");
    }
    server.patch_node("n3", &json!({ "spec": { "podCIDRs": ["10.244.30.0/24"] } }));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
}

#[tokio::test]
async fn a_node_that_becomes_managed_or_unmanaged_is_sent() {
    let server = server();
    add_peer(&server, 3);
    let mut updates = watch(&server).await;
    server.annotate("n3", "kube-subnet-manager", None);
    assert_eq!(next(&mut updates).await, "remove n3");
    server.annotate("n3", "kube-subnet-manager", Some("true"));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
}

#[tokio::test]
async fn an_unreadable_node_hides_no_other() {
    let server = server();
    let mut updates = watch(&server).await;
    add_peer(&server, 3);
    server.annotate("n3", "public-ip", Some("here"));
    add_peer(&server, 4);
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
    let text =
        "annotation flannel.alpha.coreos.com/public-ip is \"here\", but must be an IPv4 address";
    assert_eq!(next(&mut updates).await, format!("put n3@malformed: node n3: {text}"));
    assert_eq!(next(&mut updates).await, "put n4@172.18.0.4");
}

#[tokio::test]
async fn a_dropped_watch_continues_at_its_version() {
    let server = server();
    let mut updates = watch(&server).await;
    server.take_asked();
    server.drop_watches();
    add_peer(&server, 3);
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
    assert_eq!(lists(&server), 0, "nothing is read again");
    server.delete_node("n3");
    assert_eq!(next(&mut updates).await, "delete node n3");
}

/// As by a proxy that ends connections without data.
#[tokio::test]
async fn a_cut_watch_is_no_outage() {
    let server = server();
    let manager = manager(&server);
    acquire(&manager).await;
    let mut updates = manager.watch();
    next(&mut updates).await;
    let mut state = manager.state();
    assert_eq!(*state.borrow_and_update(), StoreState::Reachable);
    for peer in 3..6 {
        server.drop_watches();
        add_peer(&server, peer);
        next(&mut updates).await;
    }
    assert!(!state.has_changed().unwrap(), "{:?}", *state.borrow());
}

/// Compacted changes of nodes that do not matter are not a gap.
#[tokio::test]
async fn a_bookmark_bridges_compacted_versions() {
    let server = server();
    let mut updates = watch(&server).await;
    server.change_something_else();
    // A bookmark of a busy server may be late.
    for _ in 0..3 {
        nothing(&mut updates).await;
    }
    server.compact();
    server.take_asked();
    server.drop_watches();
    add_peer(&server, 3);
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
    assert_eq!(watches(&server).len(), 1);
}

#[tokio::test]
async fn a_compacted_history_is_followed_by_a_snapshot() {
    for (gone, lists) in [
        (Gone::AsEvent, Lists::Streamed),
        (Gone::AsAnswer, Lists::Streamed),
        (Gone::AsEvent, Lists::Paged),
    ] {
        let mut server = server();
        server.fail(|faults| (faults.gone, faults.lists) = (gone, lists));
        add_peer(&server, 3);
        add_peer(&server, 4);
        let mut updates = watch(&server).await;
        server.stop().unwrap();
        server.delete_node("n4");
        add_peer(&server, 5);
        server.compact();
        server.start_again().unwrap();
        let snapshot = "snapshot [n1@172.18.0.1 n3@172.18.0.3 n5@172.18.0.5]";
        assert_eq!(next(&mut updates).await, snapshot, "{gone:?}, {lists:?}");
        add_peer(&server, 6);
        assert_eq!(next(&mut updates).await, "put n6@172.18.0.6", "{gone:?}, {lists:?}");
    }
}

#[tokio::test]
async fn a_cluster_restored_from_a_backup_is_read_again() {
    let mut server = server();
    for number in 3..20 {
        add_peer(&server, number);
    }
    let mut updates = watch(&server).await;
    server.stop().unwrap();
    server.rewind(5);
    server.start_again().unwrap();
    assert!(next(&mut updates).await.starts_with("snapshot [n1@172.18.0.1 n10@"));
}

#[tokio::test]
async fn a_restored_cluster_whose_versions_have_caught_up_is_read_again() {
    let mut server = server();
    add_peer(&server, 3);
    add_peer(&server, 4);
    let mut updates = watch(&server).await;
    server.stop().unwrap();
    server.rewind(2);
    server.delete_node("n4");
    for beat in 0..100 {
        server.heartbeat("n3", beat);
    }
    server.start_again().unwrap();
    assert_eq!(next(&mut updates).await, "snapshot [n1@172.18.0.1 n3@172.18.0.3]");
}

#[tokio::test]
async fn a_restored_cluster_is_read_again_although_our_node_is_as_in_the_backup() {
    let mut server = server();
    add_peer(&server, 3);
    add_peer(&server, 4);
    let mut updates = watch(&server).await;
    let backup = server.back_up();
    server.annotate("n3", "public-ip", Some("172.18.0.33"));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.33");
    server.stop().unwrap();
    server.restore(backup);
    server.delete_node("n4");
    for beat in 0..100 {
        server.heartbeat("n3", beat);
    }
    server.start_again().unwrap();
    assert_eq!(next(&mut updates).await, "snapshot [n1@172.18.0.1 n3@172.18.0.3]");
}

/// The last event that leaves something to compare is as in the backup.
#[tokio::test]
async fn a_restored_cluster_is_read_again_after_the_deletion_of_a_node() {
    let mut server = server();
    add_peer(&server, 3);
    let mut updates = watch(&server).await;
    server.annotate("n3", "public-ip", Some("172.18.0.33"));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.33");
    let backup = server.back_up();
    server.delete_node("n3");
    assert_eq!(next(&mut updates).await, "delete node n3");
    server.stop().unwrap();
    server.restore(backup);
    server.start_again().unwrap();
    assert_eq!(next(&mut updates).await, "snapshot [n1@172.18.0.1 n3@172.18.0.33]");
}

/// The restored server has not reached the version of the last known event when the daemon asks for
/// it, and has passed it a moment later.
#[tokio::test]
async fn a_restored_cluster_that_just_reaches_the_known_version_is_read_again() {
    let mut server = server();
    add_peer(&server, 3);
    add_peer(&server, 4);
    let mut updates = watch(&server).await;
    let backup = server.back_up();
    let beat = |server: &ApiServer| (0..30).for_each(|beat| server.heartbeat("n3", beat));
    beat(&server);
    server.annotate("n3", "public-ip", Some("172.18.0.33"));
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.33");
    server.stop().unwrap();
    server.restore(backup);
    server.delete_node("n4");
    server.take_asked();
    server.fail(|faults| faults.delay = Duration::from_millis(300));
    server.start_again().unwrap();
    let catch_up = async {
        let mut asked = Vec::new();
        let is_former = |asked: &Asked| asked.query.contains("resourceVersionMatch=Exact");
        // The request after the one for the known version.
        while asked.iter().skip_while(|it| !is_former(it)).nth(1).is_none() {
            asked.extend(server.take_asked());
            sleep(Duration::from_millis(1)).await;
        }
        (0..2).for_each(|_| beat(&server));
    };
    let ((), update) = tokio::join!(catch_up, next(&mut updates));
    assert_eq!(update, "snapshot [n1@172.18.0.1 n3@172.18.0.3]");
}

#[tokio::test]
async fn changes_while_the_server_is_unreachable_are_sent_afterwards() {
    let mut server = server();
    let mut updates = watch(&server).await;
    server.stop().unwrap();
    nothing(&mut updates).await;
    add_peer(&server, 3);
    server.start_again().unwrap();
    assert_eq!(next(&mut updates).await, "put n3@172.18.0.3");
}
