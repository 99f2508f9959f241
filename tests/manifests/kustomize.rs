//! The base, the components and the overlays fit together.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tweed::daemon::options::{Options, StoreOptions};
use tweed::model::config::NetworkConfig;

use crate::document::{documents, parse};
use crate::{files, files_below, read, root};

const OVERLAYS: [&str; 4] = ["vxlan", "host-gw", "mixed", "dual-stack"];

#[test]
fn every_path_that_a_kustomization_names_exists() {
    for file in kustomizations() {
        for path in named(&file) {
            assert!(root().join(&path).exists(), "{}: {}", file.display(), path.display());
        }
    }
}

#[test]
fn every_file_is_named_by_its_kustomization() {
    for file in kustomizations() {
        let folder = file.parent().unwrap();
        let named = named(&file);
        for other in files(folder.to_str().unwrap()) {
            let other = other.strip_prefix(root()).unwrap().to_owned();
            assert!(other == file || named.contains(&other), "{}", other.display());
        }
    }
}

#[test]
fn the_networks_of_the_overlays_equal_the_samples() {
    for overlay in OVERLAYS {
        let text = read(&format!("config/kubernetes/overlays/{overlay}/net-conf.json"));
        assert!(NetworkConfig::parse(text.as_bytes()).is_ok(), "{overlay}");
        assert_eq!(text, read(&format!("config/networks/{overlay}.json")));
    }
}

#[test]
fn runtimes_get_the_same_config_as_on_hosts_without_kubernetes() {
    let text = read("config/kubernetes/base/cni-conf.json");
    assert_eq!(text, read("config/cni/10-flannel.conflist"));
}

#[test]
fn the_image_is_of_this_version() {
    let base = &documents("config/kubernetes/base/kustomization.yaml")[0];
    assert_eq!(base["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_prometheus_operator_scrapes_the_port_of_metrics() {
    let folder = "config/kubernetes/components/pod-monitor";
    let component = &documents(&format!("{folder}/kustomization.yaml"))[0];
    let patch = component["patches"][0]["patch"].as_str().unwrap();
    let added = &parse(patch).unwrap()[0];
    let flag = added[0]["value"].as_str().unwrap();
    let metrics = Options::parse([flag], |_| None).unwrap().metrics.unwrap();
    assert_eq!(added[1]["value"]["containerPort"], metrics.port());
    let monitor = &documents(&format!("{folder}/pod-monitor.yaml"))[0];
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["port"], added[1]["value"]["name"]);
}

#[test]
fn without_probes_the_daemon_has_no_raw_sockets() {
    let folder = "config/kubernetes/components/without-probes";
    let component = &documents(&format!("{folder}/kustomization.yaml"))[0];
    let patch = &parse(component["patches"][0]["patch"].as_str().unwrap()).unwrap()[0][0];
    assert_eq!(patch["value"].to_string(), r#"["NET_ADMIN"]"#);
    let place = patch["path"].as_str().unwrap();
    let daemon = &documents("config/kubernetes/base/daemon-set.yaml")[0];
    assert_eq!(daemon.pointer(place).unwrap().to_string(), r#"["NET_ADMIN","NET_RAW"]"#);
    let chart = read("config/helm/tweed/templates/daemon-set.yaml");
    let (_, without) = chart.split_once("{{- if .Values.pathProbes.enabled }}").unwrap();
    let (_, without) = without.split_once("{{- else }}").unwrap();
    assert_eq!(without.split_once("{{- end }}").unwrap().0.trim(), "add: [NET_ADMIN]");
}

#[test]
fn the_variables_of_etcd_are_those_of_the_daemon() {
    let text = read("config/kubernetes/overlays/etcd/etcd.env");
    let variable = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let daemon = &documents("config/kubernetes/base/daemon-set.yaml")[0];
    let words = &daemon["spec"]["template"]["spec"]["containers"][0]["args"];
    let words = words.as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let StoreOptions::Etcd(etcd) = Options::parse(words, variable).unwrap().store else {
        panic!("not etcd")
    };
    assert_eq!(etcd.endpoints.len(), 3);
    assert_eq!(etcd.ca_file, Some(PathBuf::from("/etc/tweed/etcd/ca.crt")));
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(lines, 5, "each of them is read");
}

fn kustomizations() -> Vec<PathBuf> {
    let mut files = files_below(Path::new("config/kubernetes"));
    files.retain(|path| path.ends_with("kustomization.yaml"));
    assert_eq!(files.len(), 14);
    files
}

/// Relative to the project.
fn named(kustomization: &Path) -> Vec<PathBuf> {
    let folder = kustomization.parent().unwrap();
    let text = &documents(kustomization.to_str().unwrap())[0];
    let strings = |list: &Value| -> Vec<String> {
        let items = list.as_array().into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let lists = ["resources", "components"].into_iter().flat_map(|key| strings(&text[key]));
    let generated = text["configMapGenerator"].as_array().into_iter().flatten();
    let generated =
        generated.flat_map(|map| [strings(&map["files"]), strings(&map["envs"])].concat());
    let patches = text["patches"].as_array().into_iter().flatten();
    let patches = patches.filter_map(|patch| patch["path"].as_str().map(str::to_owned));
    lists.chain(generated).chain(patches).map(|path| joined(folder, &path)).collect()
}

fn joined(folder: &Path, path: &str) -> PathBuf {
    let mut joined = folder.to_owned();
    for part in path.split('/') {
        if part == ".." {
            joined.pop();
        } else {
            joined.push(part);
        }
    }
    joined
}
