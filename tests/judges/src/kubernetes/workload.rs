//! Pods and services that the judge asks for, and packets between the pods.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tweed_lab::{Family, IMAGE, PATIENCE, Pair, Pod, eventually};

use super::cluster::{Cluster, items, text};

const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000000"];

/// What every pod answers at port 80.
fn pod_template(name: &str, command: &[&str]) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": command}],
            "tolerations": [{"operator": "Exists"}],
        },
    })
}

/// Creates or changes a workload of this kind, and waits until its pods run.
fn run(cluster: &Cluster, kind: &str, name: &str, spec: &Value) -> Result<()> {
    cluster.apply_object(&json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }))?;
    cluster.wait_rolled_out(&format!("{} {name}", kind.to_lowercase()))
}

/// A pod of this name on each node, which serves HTTP.
pub(super) fn on_each_node(cluster: &Cluster, name: &str) -> Result<()> {
    let serve = ["/bin/busybox", "httpd", "-f", "-p80", "-h", "/srv"];
    let labels = json!({"matchLabels": {"app": name}});
    let spec = json!({"selector": labels, "template": pod_template(name, &serve)});
    run(cluster, "DaemonSet", name, &spec)
}

/// A pod on each node that has a name of its own, by a headless service.
pub(super) fn named_on_each_node(cluster: &Cluster, name: &str) -> Result<()> {
    let labels = json!({"matchLabels": {"app": name}});
    let mut template = pod_template(name, &SLEEP);
    let apart = json!({"labelSelector": labels, "topologyKey": "kubernetes.io/hostname"});
    let apart = json!({"requiredDuringSchedulingIgnoredDuringExecution": [apart]});
    let spec = template.get_mut("spec").and_then(Value::as_object_mut).context("no spec")?;
    spec.insert("affinity".to_owned(), json!({"podAntiAffinity": apart}));
    cluster.apply_object(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 80}]},
    }))?;
    let spec = json!({
        "serviceName": name,
        "replicas": cluster.machines.len(),
        "podManagementPolicy": "Parallel",
        "selector": labels,
        "template": template,
    });
    run(cluster, "StatefulSet", name, &spec)
}

/// As many pods that sleep.
pub(super) fn scale(cluster: &Cluster, name: &str, replicas: usize) -> Result<()> {
    let labels = json!({"matchLabels": {"app": name}});
    let template = pod_template(name, &SLEEP);
    let spec = json!({"replicas": replicas, "selector": labels, "template": template});
    run(cluster, "Deployment", name, &spec)?;
    eventually(PATIENCE * 2, || {
        let pods = cluster.get(&format!("pods -l app={name}"))?;
        let count = items(&pods).count();
        ensure!(count == replicas, "{count} pods of {name}, not {replicas}");
        Ok(())
    })
    .map(drop)
}

/// A service in front of the pods of this name, with a port of each node; its addresses and that port.
pub(super) fn service(cluster: &Cluster, name: &str) -> Result<(Vec<IpAddr>, u16)> {
    cluster.apply_object(&json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "NodePort", "ipFamilyPolicy": "PreferDualStack", "selector": {"app": name}, "ports": [{"port": 80}]},
    }))?;
    let service = cluster.get(&format!("service {name}"))?;
    let addresses = service.pointer("/spec/clusterIPs").and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten().map(|address| text(address, "").parse());
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    ensure!(addresses.len() == cluster.stack.families().len(), "{addresses:?}");
    let port = service.pointer("/spec/ports/0/nodePort").and_then(Value::as_u64);
    let port = port.context("no port")?;
    Ok((addresses, u16::try_from(port)?))
}

/// Handles to the running pods of this name.
pub(super) fn pods(cluster: &Cluster, name: &str) -> Result<Vec<Pod>> {
    let list = cluster.get(&format!("pods -l app={name}"))?;
    let mut found = Vec::new();
    for machine in &cluster.machines {
        let here = items(&list).filter(|pod| text(pod, "/spec/nodeName") == machine.name());
        let addresses = here.map(|pod| text(pod, "/status/podIP")).filter(|ip| !ip.is_empty());
        let addresses = addresses.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        found.extend(machine.pods(&addresses)?);
    }
    Ok(found)
}

/// Each pair on different nodes, in each family.
pub(super) fn pairs(cluster: &Cluster, from: &[Pod], to: &[Pod]) -> Vec<Pair> {
    let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
    let apart = pairs.filter(|(from, to)| from.node() != to.node());
    let each = |(from, to): (&Pod, &Pod)| {
        let families = cluster.stack.families().iter();
        let pair = |family: &Family| Pair { from: from.clone(), to: to.clone(), family: *family };
        families.map(pair).collect::<Vec<_>>()
    };
    apart.flat_map(each).collect()
}
