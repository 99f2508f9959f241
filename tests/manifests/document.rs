//! Documents of YAML, read strictly: a field that Kubernetes does not know is an error.

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{files_below, read};

const POD_MONITOR: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];

pub fn documents(path: &str) -> Vec<Value> {
    parse(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    let documents =
        serde_saphyr::from_multiple::<Value>(text).map_err(|error| error.to_string())?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// `Kind namespace/name`.
pub fn name(document: &Value) -> String {
    let metadata = &document["metadata"];
    let namespace = metadata["namespace"].as_str().map(|namespace| format!("{namespace}/"));
    let kind = document["kind"].as_str().unwrap();
    format!("{kind} {}{}", namespace.unwrap_or_default(), metadata["name"].as_str().unwrap())
}

#[test]
fn kubernetes_knows_every_object_and_every_field() {
    let is_yaml = |path: &&std::path::PathBuf| {
        path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
    };
    let mut seen = 0;
    for path in files_below("config/kubernetes".as_ref()).iter().filter(is_yaml) {
        for document in documents(path.to_str().unwrap()) {
            check(&document).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} documents");
}

#[test]
fn a_misspelt_field_is_noticed() {
    let text = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: a}\n\
                spec: {selector: {}, template: {spec: {containers: [], hostNetwrok: true}}}\n";
    let error = check(&parse(text).unwrap()[0]).unwrap_err();
    assert_eq!(error, "DaemonSet a: unknown: .spec.template.spec.hostNetwrok");
}

fn check(document: &Value) -> Result<(), String> {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    let kind = document["kind"].as_str().unwrap_or_default();
    let checked = match (version, kind) {
        ("v1", "Namespace") => strictly::<Namespace>(document),
        ("v1", "ServiceAccount") => strictly::<ServiceAccount>(document),
        ("v1", "ConfigMap") => strictly::<ConfigMap>(document),
        // A part of a DaemonSet, which is merged.
        ("apps/v1", "DaemonSet") if document["spec"]["selector"].is_null() => Ok(()),
        ("apps/v1", "DaemonSet") => strictly::<DaemonSet>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => strictly::<ClusterRole>(document),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            strictly::<ClusterRoleBinding>(document)
        }
        ("rbac.authorization.k8s.io/v1", "Role") => strictly::<Role>(document),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => strictly::<RoleBinding>(document),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy") => {
            strictly::<ValidatingAdmissionPolicy>(document)
        }
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding") => {
            strictly::<ValidatingAdmissionPolicyBinding>(document)
        }
        ("monitoring.coreos.com/v1", "PodMonitor") => only(document, &POD_MONITOR),
        ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        | ("kustomize.config.k8s.io/v1alpha1", "Component") => return Ok(()),
        _ => Err("unknown kind of object".to_owned()),
    };
    checked.map_err(|error| format!("{}: {error}", name(document)))
}

/// Parsing as a type of Kubernetes drops the fields that the type does not have.
fn strictly<T: DeserializeOwned + Serialize>(document: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(document.clone()).map_err(|error| error.to_string())?;
    let known = serde_json::to_value(typed).map_err(|error| error.to_string())?;
    let unknown = missing(document, &known, "");
    if unknown.is_empty() { Ok(()) } else { Err(format!("unknown: {}", unknown.join(", "))) }
}

/// The paths of `document` that `known` lacks.
fn missing(document: &Value, known: &Value, path: &str) -> Vec<String> {
    match (document, known) {
        (Value::Object(fields), Value::Object(_)) => fields
            .iter()
            .flat_map(|(key, value)| missing(value, &known[key], &format!("{path}.{key}")))
            .collect(),
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            let pairs = items.iter().zip(others).enumerate();
            pairs
                .flat_map(|(at, (item, other))| missing(item, other, &format!("{path}[{at}]")))
                .collect()
        }
        _ if document == known => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

fn only(document: &Value, keys: &[&str]) -> Result<(), String> {
    let other = document.as_object().unwrap().keys().find(|key| !keys.contains(&key.as_str()));
    other.map_or(Ok(()), |key| Err(format!("unknown: .{key}")))
}
