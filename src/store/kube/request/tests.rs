//! What goes over the wire, as flannel sends it or as Kubernetes documents it.

use super::*;

fn line(ask: &Ask) -> String {
    format!("{} {}", ask.method(), ask.uri())
}

#[test]
fn annotations_are_written_by_way_of_the_status() {
    let prefix = "flannel.alpha.coreos.com/";
    let pairs = [
        ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
        ("backend-type", "vxlan"),
        ("kube-subnet-manager", "true"),
        ("public-ip", "172.18.0.2"),
    ];
    let wanted = pairs.iter().map(|(name, value)| (format!("{prefix}{name}"), value.to_string()));
    let ask = annotate("n1", &wanted.collect());
    assert_eq!(line(&ask), "PATCH /api/v1/nodes/n1/status?");
    assert_eq!(ask.headers()["content-type"], "application/strategic-merge-patch+json");
    assert_eq!(
        String::from_utf8(ask.body().clone()).unwrap(),
        r#"{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"12:c6:65:89:b4:e3\"}","flannel.alpha.coreos.com/backend-type":"vxlan","flannel.alpha.coreos.com/kube-subnet-manager":"true","flannel.alpha.coreos.com/public-ip":"172.18.0.2"}}}"#
    );
}

#[test]
fn the_condition_is_cleared_as_flannel_clears_it() {
    let ask = clear_condition("n1", "2026-11-21T23:18:21Z");
    assert_eq!(line(&ask), "PATCH /api/v1/nodes/n1/status?");
    assert_eq!(ask.headers()["content-type"], "application/strategic-merge-patch+json");
    assert_eq!(
        serde_json::from_slice::<Value>(ask.body()).unwrap(),
        json!({ "status": { "conditions": [{
            "type": "NetworkUnavailable",
            "status": "False",
            "lastHeartbeatTime": "2026-11-21T23:18:21Z",
            "lastTransitionTime": "2026-11-21T23:18:21Z",
            "reason": "FlannelIsUp",
            "message": "Flannel is running on this node",
        }] } })
    );
}

#[test]
fn nodes_are_watched_with_bookmarks_from_where_they_were_left() {
    assert_eq!(
        line(&watch("812", 270)),
        "GET /api/v1/nodes?&watch=true&timeoutSeconds=270&allowWatchBookmarks=true&resourceVersion=812"
    );
    assert_eq!(
        line(&streamed_list(270)),
        "GET /api/v1/nodes?&watch=true&timeoutSeconds=270&allowWatchBookmarks=true\
         &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="
    );
}

#[test]
fn nodes_are_listed_in_pages() {
    assert_eq!(line(&page("", PAGE)), "GET /api/v1/nodes?&limit=200");
    assert_eq!(line(&page("a/b=", PAGE)), "GET /api/v1/nodes?&limit=200&continue=a%2Fb%3D");
}

#[test]
fn single_objects_are_asked_for_by_name() {
    assert_eq!(line(&node("n1")), "GET /api/v1/nodes/n1");
    assert_eq!(line(&pod("kube-flannel", "x")), "GET /api/v1/namespaces/kube-flannel/pods/x");
    let secret = "GET /api/v1/namespaces/kube-flannel/secrets/tweed-probes";
    assert_eq!(line(&probe_secret("kube-flannel")), secret);
}

#[test]
fn a_report_is_an_object_that_goes_with_its_node() {
    let owner = Owner { kind: "Node", name: "n1".to_owned(), uid: "5f1c".to_owned() };
    let ask = publish_report("kube-flannel", "n1", &owner, "{}");
    assert_eq!(
        line(&ask),
        "PATCH /api/v1/namespaces/kube-flannel/configmaps/tweed-node-n1?&force=true&fieldManager=tweedd"
    );
    assert_eq!(ask.headers()["content-type"], "application/apply-patch+yaml");
    assert_eq!(
        serde_json::from_slice::<Value>(ask.body()).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "tweed-node-n1",
                "labels": {
                    "app.kubernetes.io/name": "tweed",
                    "app.kubernetes.io/component": "node-report",
                },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "5f1c" },
                ],
            },
            "data": { "report": "{}" },
        })
    );
    assert_eq!(
        line(&reports("kube-flannel")),
        "GET /api/v1/namespaces/kube-flannel/configmaps?&labelSelector=app.kubernetes.io%2Fname%3Dtweed\
         %2Capp.kubernetes.io%2Fcomponent%3Dnode-report"
    );
}

#[test]
fn the_config_is_written_over_one_version_alone() {
    let ask = write_config("kube-flannel", "kube-flannel-cfg", 812, "{}");
    assert_eq!(line(&ask), "PATCH /api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg?");
    assert_eq!(ask.headers()["content-type"], "application/merge-patch+json");
    assert_eq!(
        String::from_utf8(ask.body().clone()).unwrap(),
        r#"{"data":{"net-conf.json":"{}"},"metadata":{"resourceVersion":"812"}}"#
    );
}
