//! What a daemon may do in a cluster: what its requests take, and nothing else.

use expect_test::expect;
use serde_json::Value;

use crate::document::documents;

#[test]
fn rights_are_what_the_requests_of_the_daemon_take() {
    let rules = documents("config/kubernetes/components/kubernetes-api/rights.yaml");
    let shown: String = rules.iter().flat_map(lines).collect();
    let rights = expect![[r"
        ClusterRole: get, list, watch nodes
        ClusterRole: patch nodes/status
        Role: get secrets tweed-probes
        Role: create secrets
        Role: create, patch configmaps
    "]];
    rights.assert_eq(&shown);
}

#[test]
fn every_binding_has_its_role_and_the_account_of_the_daemon() {
    let objects = documents("config/kubernetes/components/kubernetes-api/rights.yaml");
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
fn the_policies_are_for_the_account_of_the_daemon_and_deny() {
    for file in ["own-node", "own-objects"] {
        let path = format!("config/kubernetes/components/kubernetes-api/{file}.yaml");
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
