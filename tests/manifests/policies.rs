//! The admission policies, evaluated: what a daemon may write, and the messages of refusals.

use std::sync::Arc;

use cel::{Context, Env};
use serde_json::{Value, json};

use crate::document::documents;
use crate::read;

/// A row of the table that `make tryapi` sends to a real server.
struct Row {
    verdict: String,
    /// The node of the token; empty if the token belongs to none.
    node: String,
    resource: String,
    name: String,
    body: Value,
}

#[test]
fn the_policies_allow_what_a_daemon_needs_and_refuse_the_rest() {
    let (policies, rows) = (policies(), rows());
    assert!(rows.len() > 30, "{}", rows.len());
    for row in rows {
        let answer = row.put_to(&policies).err().unwrap_or_else(|| "allowed".to_owned());
        let (node, resource, name, body) = (&row.node, &row.resource, &row.name, &row.body);
        assert!(answer.contains(&row.verdict), "{node}: {resource}/{name} {body}: {answer}");
    }
}

#[test]
fn the_policies_concern_only_daemons() {
    for policy in policies() {
        let is_about = |user: &str| {
            let request = json!({ "userInfo": { "username": user } });
            is_matched(&policy, &json!({ "request": request }))
        };
        assert!(is_about("system:serviceaccount:kube-flannel:flannel"));
        for user in ["system:node:n1", "admin", "system:serviceaccount:kube-system:flannel"] {
            assert!(!is_about(user), "{user}");
        }
    }
}

#[test]
fn a_user_without_a_token_of_a_pod_has_no_node() {
    let mut scene = Row::of("allowed | | PATCH nodes/n1/status | {}").scene();
    scene["request"]["userInfo"].as_object_mut().unwrap().remove("extra");
    let refused = judged(&policies()[0], &scene).unwrap_err();
    assert_eq!(refused, "a daemon of flannel on node \"\" may change no other node");
}

impl Row {
    fn of(line: &str) -> Self {
        let [verdict, node, request, body] =
            line.splitn(4, '|').map(str::trim).collect::<Vec<_>>().try_into().unwrap();
        let mut path = request.split([' ', '/']).skip(1);
        let mut part = || path.next().unwrap_or_default().to_owned();
        let (resource, name) = (part(), part());
        let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{line}: {error}"));
        Self { verdict: verdict.to_owned(), node: node.to_owned(), resource, name, body }
    }

    fn put_to(&self, policies: &[Value]) -> Result<(), String> {
        let mut concerned = policies.iter().filter(|policy| self.concerns(policy));
        let scene = self.scene();
        concerned.try_for_each(|policy| judged(policy, &scene))
    }

    fn concerns(&self, policy: &Value) -> bool {
        let resources = policy["spec"]["matchConstraints"]["resourceRules"][0]["resources"].clone();
        resources.as_array().unwrap().contains(&json!(self.resource))
    }

    /// The variables of every expression.
    fn scene(&self) -> Value {
        let old = if self.resource == "nodes" { node(&self.name) } else { Value::Null };
        let mut object = old.clone();
        merge(&mut object, &self.body);
        let extra = match self.node.as_str() {
            "" => json!({}),
            node => json!({ "authentication.kubernetes.io/node-name": [node] }),
        };
        let user = "system:serviceaccount:kube-flannel:flannel";
        let request = json!({
            "name": self.name,
            "resource": { "group": "", "version": "v1", "resource": self.resource },
            "userInfo": { "username": user, "extra": extra },
        });
        json!({ "request": request, "object": object, "oldObject": old })
    }
}

/// The Node as `make tryapi` creates it.
fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/os": "linux" },
            "annotations": { "node.alpha.kubernetes.io/ttl": "0" },
        },
        "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] },
        "status": {
            "capacity": { "cpu": "2" },
            "addresses": [{ "type": "InternalIP", "address": "172.30.0.11" }],
            "images": [{ "names": ["registry.example.org/pause"], "sizeBytes": 300_000 }],
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "NetworkUnavailable", "status": "True" },
            ],
        },
    })
}

fn judged(policy: &Value, scene: &Value) -> Result<(), String> {
    assert!(is_matched(policy, scene));
    let mut scene = scene.clone();
    for variable in list(policy, "variables") {
        let value = evaluated(&variable["expression"], &scene);
        scene["variables"][variable["name"].as_str().unwrap()] = value;
    }
    for validation in list(policy, "validations") {
        if evaluated(&validation["expression"], &scene) != json!(true) {
            let message = match &validation["messageExpression"] {
                Value::Null => validation["message"].clone(),
                expression => evaluated(expression, &scene),
            };
            return Err(message.as_str().unwrap().to_owned());
        }
    }
    Ok(())
}

fn is_matched(policy: &Value, scene: &Value) -> bool {
    let conditions = list(policy, "matchConditions");
    conditions.iter().all(|condition| evaluated(&condition["expression"], scene) == json!(true))
}

fn evaluated(expression: &Value, scene: &Value) -> Value {
    let expression = expression.as_str().unwrap();
    let language = Arc::new(Env::stdlib().with_optional_support(true));
    let program = language.compile(expression).unwrap_or_else(|error| panic!("{error}"));
    let mut context = Context::with_env(language);
    for (name, value) in scene.as_object().unwrap() {
        context.add_variable(name.as_str(), value.clone()).unwrap();
    }
    let value = program.execute(&context);
    let value = value.unwrap_or_else(|error| panic!("{expression}: {error}"));
    value.json().unwrap()
}

/// JSON merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn list<'a>(policy: &'a Value, key: &str) -> &'a [Value] {
    policy["spec"][key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn policies() -> Vec<Value> {
    let path = |file| format!("config/kubernetes/components/policies/{file}.yaml");
    ["own-node", "own-objects"].map(|file| documents(&path(file)).remove(0)).to_vec()
}

fn rows() -> Vec<Row> {
    let text = read("tests/apiserver/requests.txt");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(Row::of).collect()
}
