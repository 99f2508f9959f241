//! The chart: flannel's values, and the same objects as the manifests.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tweed::model::config::NetworkConfig;

use crate::document::{documents, parse};
use crate::{files, read};

const CHART: &str = "config/helm/tweed";

/// Values that users of flannel's chart may have set.
const FLANNELS: &[&str] = &[
    "global.imagePullSecrets",
    "global.commonLabels",
    "global.commonAnnotations",
    "podCidr",
    "podCidrv6",
    "flannel.image.repository",
    "flannel.image.tag",
    "flannel.flannel_cni.image.repository",
    "flannel.flannel_cni.image.tag",
    "flannel.cniBinDir",
    "flannel.cniConfDir",
    "flannel.skipCNIConfigInstallation",
    "flannel.enableNFTables",
    "flannel.args",
    "flannel.backend",
    "flannel.backendPort",
    "flannel.mtu",
    "flannel.vni",
    "flannel.GBP",
    "flannel.directRouting",
    "flannel.cniConf",
    "flannel.resources",
    "flannel.healthz.port",
    "flannel.healthz.livenessProbe.initialDelaySeconds",
    "flannel.healthz.livenessProbe.periodSeconds",
    "flannel.healthz.readinessProbe.initialDelaySeconds",
    "flannel.healthz.readinessProbe.periodSeconds",
    "flannel.tolerations",
    "flannel.nodeSelector",
    "flannel.podLabels",
    "flannel.podAnnotations",
    "flannel.daemonSet.labels",
    "flannel.daemonSet.annotations",
    "flannel.configMap.labels",
    "flannel.configMap.annotations",
    "flannel.serviceAccount.labels",
    "flannel.serviceAccount.annotations",
    "flannel.rbac.labels",
    "flannel.rbac.clusterRole.labels",
    "flannel.rbac.clusterRoleBinding.annotations",
    "netpol.enabled",
    "netpol.args",
    "netpol.image.repository",
    "netpol.image.tag",
];

#[test]
fn values_of_flannels_chart_are_known() {
    let values = values();
    for path in FLANNELS {
        assert!(at(&values, path).is_some(), "{path}");
    }
}

#[test]
fn every_value_that_a_template_reads_has_a_default() {
    let values = values();
    let paths = read_values();
    assert!(paths.len() > 25, "{paths:?}");
    for path in paths {
        assert!(at(&values, &path).is_some(), "{path}");
    }
}

#[test]
fn every_value_is_read_by_a_template() {
    let read = read_values();
    let unread: Vec<_> = leaves(&values(), "")
        .into_iter()
        .filter(|leaf| {
            !read.iter().any(|path| leaf == path || leaf.starts_with(&format!("{path}.")))
        })
        .collect();
    assert_eq!(unread, ["flannel.macPrefix"], "that one is for Windows");
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = &documents(&format!("{CHART}/Chart.yaml"))[0];
    let values = values();
    let image = |path: &str| at(&values, path).cloned().unwrap();
    for version in [
        chart["version"].clone(),
        chart["appVersion"].clone(),
        image("flannel.image.tag"),
        image("flannel.flannel_cni.image.tag"),
    ] {
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn runtimes_get_the_same_config_as_by_the_manifests() {
    let values = values();
    let config = at(&values, "flannel.cniConf").unwrap().as_str().unwrap();
    assert_eq!(config, read("config/cni/10-flannel.conflist"));
}

#[test]
fn policies_equal_those_of_the_manifests() {
    let chart = template("policies")
        .replace(r#"{{ include "tweed.annotations" . }}"#, "flannel.alpha.coreos.com/")
        .replace(r#"{{ include "tweed.user" . }}"#, "system:serviceaccount:kube-flannel:flannel");
    for file in ["own-node", "own-objects"] {
        let text = read(&format!("config/kubernetes/components/policies/{file}.yaml"));
        for part in text.split("\nspec:\n").skip(1) {
            let spec = part.split("\n---\n").next().unwrap().trim_end();
            assert!(chart.contains(spec), "{file}:\n{spec}");
        }
    }
}

#[test]
fn rights_equal_those_of_the_manifests() {
    let chart = template("rights").replace(&with_network_policies("rights")[0], "");
    let (always, with_policies) =
        chart.split_once("{{- if .Values.admissionPolicy.enabled }}").unwrap();
    for (component, chart) in [("kubernetes-api", always), ("policies", with_policies)] {
        let text = read(&format!("config/kubernetes/components/{component}/rights.yaml"));
        let rules = text.split("\nrules:\n").skip(1);
        let rules = rules.map(|part| part.split("\n---\n").next().unwrap());
        for rule in rules.flat_map(str::lines).filter(|line| !line.starts_with('#')) {
            assert!(chart.contains(rule), "{rule}");
        }
        let count = |text: &str| text.matches("- apiGroups").count();
        assert_eq!(count(chart), count(&text));
    }
}

/// As in flannel's chart.
#[test]
fn network_policies_have_a_container_of_their_own() {
    let [container, volume] = with_network_policies("daemon-set").try_into().unwrap();
    let values = |line: &&str| !line.trim_start().starts_with("{{") && !line.contains("image:");
    let container: String = container.lines().filter(values).flat_map(|it| [it, "\n"]).collect();
    let container = parse(&container.replace("{{ . | quote }}", "ARGUMENT")).unwrap().remove(0);
    let expected = json!([{
        "name": "kube-network-policies",
        "command": ["/bin/netpol"],
        "args": ["ARGUMENT"],
        "env": [{
            "name": "MY_NODE_NAME",
            "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        }],
        "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}},
        "securityContext": {"privileged": true, "capabilities": {"add": ["NET_ADMIN"]}},
        "volumeMounts": [
            {"name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true},
        ],
    }]);
    assert_eq!(container, expected);
    let volume = parse(&volume).unwrap().remove(0);
    assert_eq!(volume, json!([{"name": "lib-modules", "hostPath": {"path": "/lib/modules"}}]));
}

#[test]
fn only_with_network_policies_may_a_daemon_read_pods_and_policies_of_all_namespaces() {
    let [rules] = with_network_policies("rights").try_into().unwrap();
    let rules = parse(&rules).unwrap().remove(0);
    let rule = |group, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]});
    let expected = json!([
        rule("", &["pods", "namespaces"]),
        rule("networking.k8s.io", &["networkpolicies"]),
        rule("policy.networking.k8s.io", &["adminnetworkpolicies", "baselineadminnetworkpolicies"]),
    ]);
    assert_eq!(rules, expected);
}

#[test]
fn without_the_policies_the_chart_creates_the_probe_secret() {
    let secret = template("probe-secret");
    let asked = "and .Values.pathProbes.createSecret (not .Values.admissionPolicy.enabled)";
    assert!(secret.contains(asked) && secret.contains("{{- if and $isAsked "), "{secret}");
    assert!(secret.contains("randAlphaNum 64 | sha256sum | b64enc"), "64 hexadecimal digits");
    assert!(secret.contains(r#"lookup "v1" "Secret" .Release.Namespace "tweed-probes""#));
}

/// The daemon and the policies get the prefix of annotations from one value.
#[test]
fn the_policies_allow_the_prefix_that_the_daemon_gets() {
    let daemon = template("daemon-set");
    let (_, flag) = daemon.split_once("{{- with $flannel.annotationPrefix }}\n").unwrap();
    assert_eq!(flag.lines().next().unwrap().trim(), "- --kube-annotation-prefix={{ . }}");
    let policies = template("policies");
    assert!(!policies.contains("flannel.alpha.coreos.com"), "{policies}");
    let refused = r#"{{- if contains "kube-annotation-prefix" (join " " .Values.flannel.args) -}}"#;
    assert!(policies.contains(refused), "{policies}");
}

#[test]
fn without_path_probes_the_network_config_has_none() {
    let config = template("config-map");
    let line = config.lines().find(|line| line.contains("pathProbes")).unwrap();
    let off = r#"{{- if not .Values.pathProbes.enabled }}{{ $_ := set $network "Probe" (dict "Enabled" false) }}"#;
    assert!(line.starts_with(off), "{line}");
    let off =
        br#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"},"Probe":{"Enabled":false}}"#;
    assert!(NetworkConfig::parse(off).unwrap().probing().is_none());
}

/// Lines of a pod's specification that the chart computes from values.
const SET_BY_VALUES: &[&str] = &[
    "image: tweed",
    "- --ip-masq",
    "- --healthz-port",
    "path: /opt/cni/bin",
    "path: /etc/cni/net.d",
    "containerPort",
    "Seconds:",
    "failureThreshold:",
    "requests:",
    "cpu:",
    "memory:",
    "- operator: Exists",
    "effect:",
];

#[test]
fn the_daemon_is_started_as_by_the_manifests() {
    let chart = template("daemon-set");
    let text = read("config/kubernetes/base/daemon-set.yaml");
    let (_, pod) = text.split_once("    spec:\n").unwrap();
    for line in pod.lines().filter(|line| !SET_BY_VALUES.iter().any(|part| line.contains(part))) {
        assert!(chart.contains(line), "{line}");
    }
}

fn values() -> Value {
    documents(&format!("{CHART}/values.yaml")).remove(0)
}

fn template(name: &str) -> String {
    read(&format!("{CHART}/templates/{name}.yaml"))
}

/// The parts of a template that only `netpol.enabled` adds.
fn with_network_policies(name: &str) -> Vec<String> {
    let text = template(name);
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(start) = lines.find(|line| line.contains("{{- if .Values.netpol.enabled }}")) {
        // The end has the indent of the start.
        let end = start.replace("if .Values.netpol.enabled", "end");
        let part = lines.by_ref().take_while(|line| *line != end);
        parts.push(part.flat_map(|line| [line, "\n"]).collect());
    }
    parts
}

fn at<'a>(values: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(values, |value, key| value.get(key))
}

fn leaves(value: &Value, path: &str) -> Vec<String> {
    let join = |key: &String| if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => fields.iter().flat_map(|(key, value)| leaves(value, &join(key))).collect(),
        None => vec![path.to_owned()],
    }
}

/// Read by all templates: `.Values.a.b`, also under the names that they give to parts of it.
fn read_values() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for file in files(&format!("{CHART}/templates")) {
        let text = std::fs::read_to_string(file).unwrap();
        for (name, stands_for) in
            [(".Values.", ""), ("$flannel.", "flannel."), ("$rbac.", "flannel.rbac.")]
        {
            for rest in text.split(name).skip(1) {
                let path: String = rest
                    .chars()
                    .take_while(|it| it.is_alphanumeric() || "._".contains(*it))
                    .collect();
                paths.insert(format!("{stands_for}{path}"));
            }
        }
    }
    // It only gets a name, under which its parts are read.
    paths.remove("flannel");
    paths
}
