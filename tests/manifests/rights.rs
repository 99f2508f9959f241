//! The rights of a daemon in a cluster: those that its requests need, and no others.

use expect_test::expect;
use serde_json::Value;

use crate::document::documents;

const RIGHTS: &str = "config/kubernetes/components/kubernetes-api/rights.yaml";
const RIGHTS_WITH_POLICIES: &str = "config/kubernetes/components/policies/rights.yaml";

#[test]
fn rights_are_those_that_the_requests_of_the_daemon_need() {
    let rights = expect![[r"
        ClusterRole: get, list, watch nodes
        ClusterRole: patch nodes/status
        Role: get secrets tweed-probes
        Role: get pods
    "]];
    rights.assert_eq(&shown(RIGHTS));
    let with_policies = expect![[r"
        Role: create secrets
        Role: create, patch configmaps
        Role: create events
    "]];
    with_policies.assert_eq(&shown(RIGHTS_WITH_POLICIES));
}

/// Without the policies, the token of one node could write what all nodes read.
#[test]
fn no_object_but_a_node_may_be_written_without_the_policies() {
    let roles = documents(RIGHTS);
    let all = roles.iter().flat_map(|role| role["rules"].as_array().into_iter().flatten());
    for rule in all.filter(|rule| rule["resources"][0] != "nodes/status") {
        let verbs = listed(&rule["verbs"]);
        assert!(["get", "get, list, watch"].contains(&verbs.as_str()), "{rule}");
    }
    let component = &documents("config/kubernetes/components/policies/kustomization.yaml")[0];
    assert_eq!(listed(&component["resources"]), "own-node.yaml, own-objects.yaml, rights.yaml");
}

#[test]
fn every_binding_has_its_role_and_the_account_of_the_daemon() {
    let objects = [RIGHTS, RIGHTS_WITH_POLICIES].map(documents).concat();
    let bindings = objects.iter().filter(|object| object["roleRef"].is_object());
    for binding in bindings {
        let role = &binding["roleRef"];
        let is_role = |object: &&Value| {
            object["kind"] == role["kind"] && object["metadata"]["name"] == role["name"]
        };
        assert!(objects.iter().any(|object| is_role(&object)), "{binding}");
        assert_eq!(binding["subjects"][0], account());
    }
}

#[test]
fn the_policies_apply_to_the_account_of_the_daemon_and_deny() {
    for file in ["own-node", "own-objects"] {
        let path = format!("config/kubernetes/components/policies/{file}.yaml");
        let [policy, binding] = documents(&path).try_into().unwrap();
        let account = account();
        let user = format!(
            "system:serviceaccount:{}:{}",
            text(&account["namespace"]),
            text(&account["name"])
        );
        let condition = text(&policy["spec"]["matchConditions"][0]["expression"]).to_owned();
        assert_eq!(condition, format!("request.userInfo.username == {user:?}"));
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"][0], "Deny");
    }
}

fn account() -> Value {
    let account = &documents("config/kubernetes/base/service-account.yaml")[0];
    let (name, namespace) = (&account["metadata"]["name"], &account["metadata"]["namespace"]);
    serde_json::json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
}

fn shown(file: &str) -> String {
    documents(file).iter().flat_map(lines).collect()
}

fn lines(role: &Value) -> Vec<String> {
    let rules = role["rules"].as_array().into_iter().flatten();
    let line = |rule: &Value| {
        let names = rule["resourceNames"]
            .as_array()
            .map(|_| format!(" {}", listed(&rule["resourceNames"])));
        let (verbs, resources) = (listed(&rule["verbs"]), listed(&rule["resources"]));
        format!("{}: {verbs} {resources}{}\n", text(&role["kind"]), names.unwrap_or_default())
    };
    rules.map(line).collect()
}

fn listed(words: &Value) -> String {
    words.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(", ")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}
