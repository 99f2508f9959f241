//! Builds requests to the API server. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::core::Request as Resource;
use kube::core::params::{GetParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tweed_client::api::{ApiRequest, Collection, built};

use crate::model::event::EventDigest;

/// All nodes.
pub(super) const NODES: Collection = Collection::all("/api/v1/nodes");

const SECRET: &str = "tweed-probes";
/// The format of a time in Kubernetes.
pub(super) const SECONDS: &str = "%Y-%m-%dT%H:%M:%SZ";
/// The namespace of events about Nodes.
const EVENTS: &str = "default";
/// The field manager of server-side apply, and the author of events.
const MANAGER: &str = "tweedd";
/// The labels of all reports.
const REPORTS: &str = "app.kubernetes.io/name=tweed,app.kubernetes.io/component=node-report";
/// The key of a report in its `ConfigMap`.
pub(super) const REPORT: &str = "report";
/// The key of the time at which the report was last refreshed.
pub(super) const REFRESHED: &str = "refreshed";
/// The key of the network config in its `ConfigMap`.
pub(super) const NET_CONF: &str = "net-conf.json";

pub(super) fn node(name: &str) -> ApiRequest {
    built(nodes().get(name, &GetParams::default()))
}

pub(super) fn pod(namespace: &str, name: &str) -> ApiRequest {
    built(namespaced(namespace, "pods").get(name, &GetParams::default()))
}

/// Writes only `annotations` to node `name`, with the permission on its status, as flannel does, so
/// that none on the rest of the node is needed.
pub(super) fn annotate(name: &str, annotations: &BTreeMap<String, String>) -> ApiRequest {
    patch_status(name, json!({ "metadata": { "annotations": annotations } }))
}

/// Clears the condition that keeps pods off node `name`; `now` is like `2026-11-21T23:18:21Z`.
pub(super) fn clear_condition(name: &str, now: &str) -> ApiRequest {
    let condition = json!({
        "type": "NetworkUnavailable",
        "status": "False",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": "FlannelIsUp",
        "message": "Flannel is running on this node",
    });
    patch_status(name, json!({ "status": { "conditions": [condition] } }))
}

pub(super) fn probe_secret(namespace: &str) -> ApiRequest {
    built(namespaced(namespace, "secrets").get(SECRET, &GetParams::default()))
}

pub(super) fn create_probe_secret(namespace: &str, text: &str) -> ApiRequest {
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": SECRET },
        "stringData": { "secret": text },
    });
    let body = secret.to_string().into_bytes();
    built(namespaced(namespace, "secrets").create(&PostParams::default(), body))
}

/// Writes `text`, which is true at this time, as the report of `node`. It is removed with its owner:
/// kind, name and uid.
pub(super) fn publish_report(
    namespace: &str,
    node: &str,
    (kind, owner, uid): (&str, &str, String),
    (text, now): (&str, Timestamp),
) -> ApiRequest {
    let name = format!("tweed-node-{node}");
    let labels: Value = REPORTS.split(',').filter_map(|pair| pair.split_once('=')).collect();
    let owner = json!({ "apiVersion": "v1", "kind": kind, "name": owner, "uid": uid });
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name, "labels": labels, "ownerReferences": [owner] },
        "data": { REPORT: text, REFRESHED: now.strftime(SECONDS).to_string() },
    });
    let params = PatchParams::apply(MANAGER).force();
    built(namespaced(namespace, "configmaps").patch(&name, &params, &Patch::Apply(object)))
}

/// Creates an event about `node`: its name and uid. `kubectl describe node` reads those in the
/// namespace `default`.
pub(super) fn create_event(
    (node, uid): (&str, &str),
    event: &EventDigest,
    suffix: u64,
) -> ApiRequest {
    let object = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{MANAGER}.{suffix:016x}"), "namespace": EVENTS },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid },
        "type": if event.kind.is_warning() { "Warning" } else { "Normal" },
        "reason": event.reason,
        "message": event.message(),
        "source": { "component": MANAGER, "host": node },
        "reportingComponent": MANAGER,
        "reportingInstance": node,
        "firstTimestamp": event.first.strftime(SECONDS).to_string(),
        "lastTimestamp": event.last.strftime(SECONDS).to_string(),
        "count": i32::try_from(event.number).unwrap_or(i32::MAX),
    });
    let body = object.to_string().into_bytes();
    built(namespaced(EVENTS, "events").create(&PostParams::default(), body))
}

/// The page of reports after `token`, which is empty for the first page; at most `limit` reports.
pub(super) fn reports(namespace: &str, token: &str, limit: u32) -> ApiRequest {
    let params = ListParams::default().labels(REPORTS).limit(limit);
    let params = if token.is_empty() { params } else { params.continue_token(token) };
    built(namespaced(namespace, "configmaps").list(&params))
}

pub(super) fn config_map(namespace: &str, name: &str) -> ApiRequest {
    built(namespaced(namespace, "configmaps").get(name, &GetParams::default()))
}

/// Writes `text` as the network config, if the `ConfigMap` still has version `seen`.
pub(super) fn write_config(namespace: &str, name: &str, seen: i64, text: &str) -> ApiRequest {
    let patch = json!({
        "metadata": { "resourceVersion": seen.to_string() },
        "data": { NET_CONF: text },
    });
    let patch = Patch::Merge(patch);
    built(namespaced(namespace, "configmaps").patch(name, &PatchParams::default(), &patch))
}

fn patch_status(name: &str, patch: Value) -> ApiRequest {
    let patch = Patch::Strategic(patch);
    built(nodes().patch_subresource("status", name, &PatchParams::default(), &patch))
}

fn nodes() -> Resource {
    Resource::new(NODES.path)
}

fn namespaced(namespace: &str, kind: &str) -> Resource {
    Resource::new(format!("/api/v1/namespaces/{namespace}/{kind}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ask: &ApiRequest) -> String {
        format!("{} {}", ask.method(), ask.uri())
    }

    #[test]
    fn annotations_are_written_with_the_status() {
        let prefix = "flannel.alpha.coreos.com/";
        let pairs = [
            ("backend-data", r#"{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#),
            ("backend-type", "vxlan"),
            ("kube-subnet-manager", "true"),
            ("public-ip", "172.18.0.2"),
        ];
        let wanted =
            pairs.iter().map(|(name, value)| (format!("{prefix}{name}"), value.to_string()));
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
    fn single_objects_are_read_by_name() {
        assert_eq!(line(&node("n1")), "GET /api/v1/nodes/n1");
        assert_eq!(line(&pod("kube-flannel", "x")), "GET /api/v1/namespaces/kube-flannel/pods/x");
        let secret = "GET /api/v1/namespaces/kube-flannel/secrets/tweed-probes";
        assert_eq!(line(&probe_secret("kube-flannel")), secret);
    }

    #[test]
    fn a_report_is_removed_with_its_owner() {
        let now = "2026-11-21T23:18:21.5Z".parse().unwrap();
        let owner = ("Node", "n1", "5f1c".into());
        let ask = publish_report("kube-flannel", "n1", owner, ("{}", now));
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
                "data": { "report": "{}", "refreshed": "2026-11-21T23:18:21Z" },
            })
        );
        assert_eq!(
            line(&reports("kube-flannel", "", 500)),
            "GET /api/v1/namespaces/kube-flannel/configmaps?&labelSelector=app.kubernetes.io%2Fname%3Dtweed\
             %2Capp.kubernetes.io%2Fcomponent%3Dnode-report&limit=500"
        );
    }

    #[test]
    fn the_config_is_written_over_one_version_only() {
        let ask = write_config("kube-flannel", "kube-flannel-cfg", 812, "{}");
        assert_eq!(
            line(&ask),
            "PATCH /api/v1/namespaces/kube-flannel/configmaps/kube-flannel-cfg?"
        );
        assert_eq!(ask.headers()["content-type"], "application/merge-patch+json");
        assert_eq!(
            String::from_utf8(ask.body().clone()).unwrap(),
            r#"{"data":{"net-conf.json":"{}"},"metadata":{"resourceVersion":"812"}}"#
        );
    }
}
