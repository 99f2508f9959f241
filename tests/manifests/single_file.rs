//! The files for `kubectl apply`: equal to their overlays, and compatible with objects of flannel.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use ring::digest::{Context, SHA256};
use serde_json::Value;
use tweed::daemon::options::{Options, StoreOptions};
use tweed::model::config::NetworkConfig;

use crate::document::{documents, name};
use crate::{files, read};

const TWEED: &str = "config/kubernetes/tweed.yml";
const KEEP_CONFIG: &str = "config/kubernetes/tweed-keep-config.yml";
const WITHOUT_POLICIES: &str = "config/kubernetes/tweed-without-policies.yml";
const KEEP_CONFIG_WITHOUT_POLICIES: &str =
    "config/kubernetes/tweed-keep-config-without-policies.yml";

#[test]
fn each_file_equals_its_overlay() {
    let files_of_overlays = [
        (TWEED, "vxlan"),
        (KEEP_CONFIG, "keep-config"),
        (WITHOUT_POLICIES, "without-policies"),
        (KEEP_CONFIG_WITHOUT_POLICIES, "keep-config-without-policies"),
    ];
    for (file, overlay) in files_of_overlays {
        let text = read(file);
        let (head, body) = text.split_at(text.match_indices('\n').nth(1).unwrap().0 + 1);
        let mut digest = Context::new(&SHA256);
        let overlay = format!("overlays/{overlay}");
        for folder in ["base", "components/kubernetes-api", "components/policies", &overlay] {
            for source in files(&format!("config/kubernetes/{folder}")) {
                digest.update(&std::fs::read(source).unwrap());
            }
        }
        digest.update(body.as_bytes());
        let mut digits = String::new();
        for byte in digest.finish().as_ref() {
            write!(digits, "{byte:02x}").unwrap();
        }
        assert!(head.contains(&digits), "{file} is out of step: make manifests");
    }
}

#[test]
fn a_new_cluster_gets_objects_with_flannels_names() {
    let names = expect![[r"
        Namespace kube-flannel
        ServiceAccount kube-flannel/flannel
        Role default/flannel-own-objects
        Role kube-flannel/flannel
        Role kube-flannel/flannel-own-objects
        ClusterRole flannel
        RoleBinding default/flannel-own-objects
        RoleBinding kube-flannel/flannel
        RoleBinding kube-flannel/flannel-own-objects
        ClusterRoleBinding flannel
        ConfigMap kube-flannel/kube-flannel-cfg
        ValidatingAdmissionPolicy flannel-own-node
        ValidatingAdmissionPolicy flannel-own-objects
        ValidatingAdmissionPolicyBinding flannel-own-node
        ValidatingAdmissionPolicyBinding flannel-own-objects
        DaemonSet kube-flannel/kube-flannel-ds
    "]];
    check_names(TWEED, &names);
}

#[test]
fn a_takeover_differs_only_in_the_config() {
    let is_config = |document: &Value| document["kind"] == "ConfigMap";
    let mut all = documents(TWEED);
    all.retain(|document| !is_config(document));
    assert_eq!(documents(KEEP_CONFIG), all);
}

/// An older API server refuses the policies and accepts the rest; then each node could write
/// objects that all nodes read.
#[test]
fn without_admission_policies_no_daemon_may_write_objects_of_others() {
    for (file, with) in [(WITHOUT_POLICIES, TWEED), (KEEP_CONFIG_WITHOUT_POLICIES, KEEP_CONFIG)] {
        let mut all = documents(with);
        all.retain(|document| {
            let is_policy =
                document["kind"].as_str().unwrap().starts_with("ValidatingAdmissionPolicy");
            !is_policy && document["metadata"]["name"] != "flannel-own-objects"
        });
        assert_eq!(documents(file), all, "{file}");
        let guide = read("docs/guides/kubernetes-install.md");
        assert!(guide.contains(file.rsplit('/').next().unwrap()), "the guide does not name {file}");
    }
}

#[test]
fn pods_of_flannels_daemon_set_are_adopted() {
    let daemon = daemon(TWEED);
    let labels = expect![[r#"{"app":"flannel","k8s-app":"flannel"}"#]];
    labels.assert_eq(&daemon["spec"]["selector"]["matchLabels"].to_string());
    let labels = expect![[r#"{"app":"flannel","k8s-app":"flannel","tier":"node"}"#]];
    labels.assert_eq(&daemon["spec"]["template"]["metadata"]["labels"].to_string());
}

/// Adopted pods and a new `DaemonSet` have the same template generation: without a restart, nothing
/// is replaced, and the rollout reports success.
#[test]
fn the_guide_restarts_adopted_pods_and_shows_their_images() {
    let guide = read("docs/guides/kubernetes-install.md");
    let blocks = guide.split("```").skip(1).step_by(2);
    let blocks: Vec<_> = blocks.filter(|block| block.contains("--cascade=orphan")).collect();
    for file in ["tweed-keep-config.yml", "kube-flannel.yml"] {
        let adopts = |block: &&&str| block.contains(&format!("apply -f {file}"));
        assert_eq!(blocks.iter().filter(adopts).count(), 1, "{file}");
    }
    for block in blocks {
        let is_ours = block.contains("tweed-keep-config.yml");
        let steps = [
            if is_ours { "label pods " } else { "kubectl" },
            "delete ds kube-flannel-ds --cascade=orphan",
            if is_ours { "apply -f tweed-keep-config.yml" } else { "apply -f kube-flannel.yml" },
            "rollout restart ds/kube-flannel-ds",
            "rollout status ds/kube-flannel-ds",
            "IMAGE:.spec.containers[0].image",
        ];
        let place = |step| block.find(step).unwrap_or_else(|| panic!("no {step} in {block}"));
        assert!(steps.map(place).is_sorted(), "in another order: {block}");
    }
}

#[test]
fn the_guide_deletes_objects_that_may_be_absent_and_names_those_that_stay() {
    let guide = read("docs/guides/kubernetes-install.md");
    let deletes = |line: &&str| line.contains("kubectl") && line.contains(" delete ");
    let secret = guide.lines().filter(deletes).filter(|line| line.contains("tweed-probes"));
    let secret: Vec<_> = secret.collect();
    assert!(!secret.is_empty());
    for line in secret {
        assert!(line.contains("--ignore-not-found"), "without path probes there is none: {line}");
    }
    let removal = guide.split("\n## ").find(|section| section.starts_with("Remove\n")).unwrap();
    assert!(removal.contains("`ip link delete cni0`"), "{removal}");
}

#[test]
fn all_files_in_flags_and_variables_of_the_daemon_are_mounted() {
    let daemon = daemon(TWEED);
    let container = &daemon["spec"]["template"]["spec"]["containers"][0];
    let words = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let options = Options::parse(words, |name| variable(container, name)).unwrap();
    let StoreOptions::Kube(kube) = options.store else { panic!("not Kubernetes") };
    let mounts = container["volumeMounts"].as_array().unwrap();
    for file in [&kube.net_config, &options.subnet_file, &options.state_file] {
        let is_below = |mount: &Value| file.starts_with(mount["mountPath"].as_str().unwrap());
        assert!(mounts.iter().any(is_below), "{} is not mounted", file.display());
    }
    let health = options.health.unwrap();
    assert!(health.ip().is_loopback(), "pods reach {health}");
    assert_eq!(container["ports"][0]["containerPort"], health.port());
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["host"], health.ip().to_string());
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"]);
    }
}

#[test]
fn a_node_remembers_its_peers_over_a_boot() {
    let daemon = daemon(TWEED);
    let pod = &daemon["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let words = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let options = Options::parse(words, |name| variable(container, name)).unwrap();
    let mounts = container["volumeMounts"].as_array().unwrap();
    let holds =
        |mount: &&Value| options.state_file.starts_with(mount["mountPath"].as_str().unwrap());
    let volume = &mounts.iter().find(holds).unwrap()["name"];
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|known| known["name"] == *volume).unwrap();
    let path = volume["hostPath"]["path"].as_str().unwrap();
    assert!(!path.starts_with("/run") && !path.starts_with("/tmp"), "{path}");
}

/// `tweedctl ipam check` runs in the daemon's pod.
#[test]
fn the_stores_of_the_plugin_are_mounted_where_they_are_on_the_host() {
    let daemon = daemon(TWEED);
    let pod = &daemon["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["mountPath"] == "/var/lib/cni");
    let name = &mount.expect("nothing is mounted at /var/lib/cni")["name"];
    let volume = pod["volumes"].as_array().unwrap().iter().find(|known| known["name"] == *name);
    assert_eq!(volume.unwrap()["hostPath"]["path"], "/var/lib/cni");
}

#[test]
fn a_rollout_continues_within_a_second_of_a_ready_node() {
    let daemon = daemon(TWEED);
    let probe = &daemon["spec"]["template"]["spec"]["containers"][0]["readinessProbe"];
    assert_eq!((&probe["periodSeconds"], &probe["initialDelaySeconds"]), (&1.into(), &Value::Null));
    let values = &documents("config/helm/tweed/values.yaml")[0];
    let probe = &values["flannel"]["healthz"]["readinessProbe"];
    assert_eq!((&probe["periodSeconds"], &probe["initialDelaySeconds"]), (&1.into(), &0.into()));
}

#[test]
fn the_daemon_knows_the_pod_that_owns_its_report() {
    let daemon = daemon(TWEED);
    let container = &daemon["spec"]["template"]["spec"]["containers"][0];
    let words = container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let options = Options::parse(words, |name| variable(container, name)).unwrap();
    let StoreOptions::Kube(kube) = options.store else { panic!("not Kubernetes") };
    let pod = kube.pod.unwrap();
    assert_eq!((pod.name.as_str(), pod.uid.as_str()), ("metadata.name", "metadata.uid"));
}

#[test]
fn the_config_of_a_new_cluster_can_be_used() {
    let all = documents(TWEED);
    let map = all.iter().find(|document| document["kind"] == "ConfigMap").unwrap();
    let network = map["data"]["net-conf.json"].as_str().unwrap();
    assert!(NetworkConfig::parse(network.as_bytes()).is_ok());
    assert_eq!(
        map["data"]["cni-conf.json"].as_str().unwrap(),
        read("config/cni/10-flannel.conflist")
    );
}

#[test]
fn no_container_has_more_rights_than_it_needs() {
    let daemon = daemon(TWEED);
    let pod = &daemon["spec"]["template"]["spec"];
    let containers =
        ["initContainers", "containers"].iter().flat_map(|key| pod[key].as_array().unwrap());
    let shown = containers.map(|container| {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        format!("{}: {}\n", container["name"], context["capabilities"])
    });
    let capabilities = expect![[r#"
        "install-cni-plugin": {"add":["DAC_OVERRIDE"],"drop":["ALL"]}
        "install-cni": {"add":["DAC_OVERRIDE"],"drop":["ALL"]}
        "kube-flannel": {"add":["NET_ADMIN","NET_RAW"],"drop":["ALL"]}
    "#]];
    capabilities.assert_eq(&shown.collect::<String>());
}

#[test]
fn a_node_may_have_no_daemon_but_never_two() {
    let daemon = daemon(TWEED);
    let expected =
        expect![[r#"{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}"#]];
    expected.assert_eq(&daemon["spec"]["updateStrategy"].to_string());
    let pod = &daemon["spec"]["template"]["spec"];
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["hostNetwork"], true);
}

pub fn daemon(file: &str) -> Value {
    documents(file).into_iter().find(|document| document["kind"] == "DaemonSet").unwrap()
}

/// The value as a node sets it.
fn variable(container: &Value, name: &str) -> Option<String> {
    let variables = container["env"].as_array().unwrap();
    let variable = variables.iter().find(|variable| variable["name"] == name)?;
    let path = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
    path.or(variable["value"].as_str()).map(str::to_owned)
}

fn check_names(file: &str, expected: &Expect) {
    let names: String = documents(file).iter().map(|document| name(document) + "\n").collect();
    expected.assert_eq(&names);
}
