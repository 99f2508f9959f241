//! Reads and writes of operators: the config by compare-and-swap, leases and reports of all nodes.

use clap::Parser;
use serde_json::{Value, json};
use tweed::kernel::NetlinkKernel;
use tweed::model::lease::LeaseId;
use tweed::model::report::NodeReport;
use tweed::operator::{self, Arguments, Error};
use tweed::store::kube::{
    AnnotationPrefix, ApiOptions, KubeClusterOptions, KubeClusterStore, KubeOptions,
    KubeSubnetManager, PodRef,
};
use tweed::store::operator::Swap;
use tweed::store::{ClusterStore, Documents};
use tweed_lab::ApiServer;

use crate::node::{V4, acquire, add_peer, manager, options, server};

const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-flannel/configmaps";

fn store(server: &ApiServer) -> KubeClusterStore {
    KubeClusterStore::new(KubeClusterOptions {
        api: ApiOptions { urls: vec![server.url()], ..ApiOptions::default() },
        annotation_prefix: AnnotationPrefix::default(),
        namespace: "kube-flannel".to_owned(),
        config_map: "kube-flannel-cfg".to_owned(),
    })
}

fn add_config(server: &ApiServer, text: &str) {
    let data = json!({ "cni-conf.json": "{}", "net-conf.json": text });
    server.add(CONFIG_MAPS, "kube-flannel-cfg", &json!({ "data": data }));
}

/// The report of node n1 once it has applied the config with this text.
fn report(text: &str) -> NodeReport {
    let node =
        json!({ "interface": "eth0", "mtu": 1500, "layer2": true, "on_link": [], "uplinks": [] });
    let report = json!({
        "version": "0.1.0", "lease": "n1", "node": node, "subnets": ["10.244.1.0/24"],
        "backend": "vxlan", "mixed": false, "config_revision": crc32fast::hash(text.as_bytes()),
        "follows": true,
    });
    serde_json::from_value(report).unwrap()
}

#[tokio::test]
async fn config_leases_and_reports_are_read_together() {
    let server = server();
    add_config(&server, V4);
    add_peer(&server, 3);
    let node = manager(&server);
    acquire(&node).await;
    node.publish_report(&report(V4)).await.unwrap();
    let holdings = store(&server).read().await.unwrap();
    let written = holdings.config.unwrap();
    assert_eq!(written.text, V4);
    let ids: Vec<LeaseId> = holdings.records.into_iter().map(|record| record.id).collect();
    assert_eq!(ids, ["n1", "n3"].map(LeaseId::new));
    let [stored] = holdings.reports.as_slice() else { panic!("{:?}", holdings.reports) };
    let update = &stored.report;
    assert_eq!(update.lease, LeaseId::new("n1"));
    assert_eq!(update.config_revision, written.revision.unsigned_abs(), "it knows this config");
}

#[tokio::test]
async fn a_node_with_another_text_has_not_seen_the_config() {
    let server = server();
    add_config(&server, V4);
    let node = manager(&server);
    acquire(&node).await;
    node.publish_report(&report("{}")).await.unwrap();
    let holdings = store(&server).read().await.unwrap();
    assert_eq!(holdings.reports[0].report.config_revision, 0);
}

#[tokio::test]
async fn each_node_is_read_with_the_time_since_its_refresh() {
    let server = server();
    add_config(&server, V4);
    add_peer(&server, 3);
    let node = manager(&server);
    acquire(&node).await;
    let refresh_seconds = Some(60);
    node.publish_report(&NodeReport { refresh_seconds, ..report(V4) }).await.unwrap();
    let read = async || {
        let contents = store(&server).read().await.unwrap();
        assert_eq!(contents.records.len(), 2);
        let [stored] = contents.reports.as_slice() else { panic!("{:?}", contents.reports) };
        assert_eq!(stored.report.lease, LeaseId::new("n1"));
        stored.clone()
    };
    let is_stale = async || {
        let stored = read().await;
        stored.report.is_stale(stored.age)
    };
    assert!(!is_stale().await);
    let long_ago = json!({ "data": { "refreshed": "2026-11-21T23:18:21Z" } });
    server.patch(CONFIG_MAPS, "tweed-node-n1", &long_ago);
    assert!(is_stale().await);
    node.refresh_report(&NodeReport { refresh_seconds, ..report(V4) }).await.unwrap();
    assert!(!is_stale().await);
    // A report of an older version has no time.
    server.patch(CONFIG_MAPS, "tweed-node-n1", &json!({ "data": { "refreshed": null } }));
    assert_eq!(read().await.age, None);
}

#[tokio::test]
async fn all_nodes_are_listed_by_name() {
    let server = server();
    add_config(&server, V4);
    add_peer(&server, 3);
    let node = manager(&server);
    acquire(&node).await;
    let name = Some("n1".to_owned());
    node.publish_report(&NodeReport { name, ..report(V4) }).await.unwrap();
    let line = format!("tweedctl nodes --kube-subnet-mgr -o json --kube-api-url {}", server.url());
    let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
    let mut out = Vec::new();
    let open = || Err::<NetlinkKernel, _>(Error::Refused("no kernel is needed".to_owned()));
    operator::run(arguments, open, &mut out).await.unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&out).unwrap();
    let shown: Vec<_> =
        rows.iter().map(|row| (row["name"].as_str(), row["state"].as_str())).collect();
    assert_eq!(shown, [(Some("n1"), Some("ready")), (Some("n3"), Some("no-report"))]);
}

/// More than one answer contains.
#[tokio::test]
async fn any_number_of_reports_is_read() {
    let server = server();
    add_config(&server, V4);
    let labels = json!({
        "app.kubernetes.io/name": "tweed", "app.kubernetes.io/component": "node-report",
    });
    for number in 0..1200 {
        let report = NodeReport { lease: LeaseId::new(format!("n{number}")), ..report(V4) };
        let object =
            json!({ "metadata": { "labels": labels }, "data": { "report": report.encode() } });
        server.add(CONFIG_MAPS, &format!("tweed-node-n{number}"), &object);
    }
    assert_eq!(store(&server).read().await.unwrap().reports.len(), 1200);
}

#[tokio::test]
async fn a_report_is_removed_with_its_node_and_replaced_by_the_next() {
    let server = server();
    let node = manager(&server);
    acquire(&node).await;
    for text in ["{}", V4] {
        node.publish_report(&report(text)).await.unwrap();
    }
    let object = server.get(CONFIG_MAPS, "tweed-node-n1").unwrap();
    let owner = &object["metadata"]["ownerReferences"][0];
    let uid = server.node("n1").unwrap()["metadata"]["uid"].clone();
    assert_eq!(
        (&owner["kind"], &owner["name"], &owner["uid"]),
        (&json!("Node"), &json!("n1"), &uid)
    );
    let update: NodeReport =
        serde_json::from_str(object["data"]["report"].as_str().unwrap()).unwrap();
    assert_eq!(update, report(V4));
}

#[tokio::test]
async fn a_report_is_removed_with_the_pod_that_wrote_it() {
    let server = server();
    let pod = PodRef { name: "kube-flannel-ds-x".to_owned(), uid: "5f1c".to_owned() };
    let node = KubeSubnetManager::new(KubeOptions { pod: Some(pod), ..options(&[server.url()]) });
    acquire(&node).await;
    node.publish_report(&report(V4)).await.unwrap();
    let object = server.get(CONFIG_MAPS, "tweed-node-n1").unwrap();
    let owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": "kube-flannel-ds-x", "uid": "5f1c",
    });
    assert_eq!(object["metadata"]["ownerReferences"], json!([owner]));
}

#[tokio::test]
async fn the_config_is_written_only_over_what_was_read() {
    let server = server();
    add_config(&server, V4);
    let operator = store(&server);
    let seen = operator.read().await.unwrap().config.unwrap().revision;
    let Swap::Done(revision) = operator.swap(seen, "{}").await.unwrap() else { panic!() };
    assert!(revision > seen);
    assert_eq!(operator.swap(seen, V4).await.unwrap(), Swap::Outdated);
    let written = operator.read().await.unwrap().config.unwrap();
    assert_eq!((written.text.as_str(), written.revision), ("{}", revision));
    let object = server.get(CONFIG_MAPS, "kube-flannel-cfg").unwrap();
    assert_eq!(object["data"]["cni-conf.json"], "{}", "the rest stays");
}

#[tokio::test]
async fn missing_and_forbidden_objects_are_reported() {
    let server = server();
    let operator = store(&server);
    assert_eq!(operator.read().await.unwrap().config, None);
    server.fail(|faults| faults.forbidden = vec![format!("GET {CONFIG_MAPS}")]);
    let text = operator.read().await.unwrap_err().to_string();
    assert!(
        text.starts_with("the API server forbids GET /api/v1/namespaces/kube-flannel/configmaps"),
        "{text}"
    );
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let mut server = server();
    server.stop().unwrap();
    let text = store(&server).read().await.unwrap_err().to_string();
    assert!(text.starts_with(&server.url()), "{text}");
}
