//! Several servers, of which some are dead, hang or are slow.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use tweed::model::status::StoreState;
use tweed::store::kube::KubeSubnetManager;
use tweed::store::{Documents, Leases};

use crate::node::{TIMEOUT, acquire, add_peer, eventually, manager, next, options, server, waits};

#[tokio::test]
async fn a_dead_server_among_several_is_skipped() {
    let server = server();
    let dead = ["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()];
    let urls = [dead.as_slice(), &[server.url()]].concat();
    // With either server first.
    for _ in 0..8 {
        let manager = KubeSubnetManager::new(options(&urls));
        acquire(&manager).await;
        assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    }
}

#[tokio::test]
async fn servers_are_tried_in_different_orders() {
    let servers = [server(), server()];
    let urls = servers.each_ref().map(tweed_lab::ApiServer::url);
    for _ in 0..40 {
        acquire(&KubeSubnetManager::new(options(&urls))).await;
    }
    for server in &servers {
        assert!(!server.take_asked().is_empty());
    }
}

#[tokio::test]
async fn a_watch_moves_to_another_server() {
    let (mut one, mut other) = (server(), server());
    let manager = KubeSubnetManager::new(options(&[one.url(), other.url()]));
    acquire(&manager).await;
    let mut updates = manager.watch();
    next(&mut updates).await;
    let is_first = !one.take_asked().is_empty();
    let (used, spare) = if is_first { (&mut one, &mut other) } else { (&mut other, &mut one) };
    used.stop().unwrap();
    for _ in 0..5 {
        spare.change_something_else();
    }
    add_peer(spare, 3);
    let update = next(&mut updates).await;
    assert!(update.contains("n3@172.18.0.3"), "{update}");
}

#[tokio::test]
async fn an_unreachable_server_is_reported_and_waited_for() {
    let mut server = server();
    server.stop().unwrap();
    let manager = manager(&server);
    let back = async {
        let why = waits(&manager, "refused").await;
        assert!(why.starts_with(&server.url()), "{why}");
        server.start_again().unwrap();
    };
    tokio::join!(acquire(&manager), back);
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let server = server();
    server.fail(|faults| faults.delay = Duration::from_secs(2));
    let manager = manager(&server);
    acquire(&manager).await;
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
}

#[tokio::test]
async fn a_server_that_hangs_is_replaced() {
    let (hanging, server) = (server(), server());
    hanging.fail(|faults| faults.hangs = true);
    // Until the server that hangs is tried first.
    while hanging.take_asked().is_empty() {
        let manager = KubeSubnetManager::new(options(&[hanging.url(), server.url()]));
        timeout(TIMEOUT, acquire(&manager)).await.unwrap();
    }
    eventually("the other is asked", || !server.take_asked().is_empty()).await;
}

/// The program waits, for at most ten seconds, for what another task does meanwhile.
#[tokio::test]
async fn a_program_that_fetches_credentials_stops_no_other_task() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name);
    let (program, waiting, kubeconfig) = (path("program"), path("waiting"), path("kubeconfig"));
    let script = format!(
        r#"#!/bin/sh
        echo > {waiting}
        for i in $(seq 100); do
            if [ -e {waiting}.over ]; then
                echo '{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{{"token":"t"}}}}'
                exit
            fi
            sleep 0.1
        done
        echo > {waiting}.in-vain
        exit 1"#,
        waiting = waiting.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": program,
        "interactiveMode": "Never",
    });
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server.url()}}],
        "users": [{"name": "u", "user": {"exec": exec}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    let mut options = options(&[]);
    options.api.kubeconfig = Some(kubeconfig);
    let manager = KubeSubnetManager::new(options);
    let other = async {
        eventually("the program waits", || waiting.exists()).await;
        std::fs::write(path("waiting.over"), "").unwrap();
    };
    tokio::join!(acquire(&manager), other);
    assert!(!path("waiting.in-vain").exists(), "the other task waited, too");
}

#[tokio::test]
async fn without_a_cluster_the_reason_names_the_missing_flag() {
    let manager = KubeSubnetManager::new(options(&[]));
    let reason = tokio::select! {
        _ = acquire(&manager) => panic!("there is no cluster"),
        reason = waits(&manager, "kube-api-url") => reason,
    };
    assert!(reason.ends_with("outside of a pod, set --kubeconfig-file or --kube-api-url"));
}
