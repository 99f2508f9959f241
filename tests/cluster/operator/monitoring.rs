//! A Prometheus that scrapes real daemons answers every query of the dashboard, and evaluates every
//! rule.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tweed_lab::{Family, Namespace, eventually};

use crate::fixture::cluster::{ClusterPlan, PATIENCE, Stack};
use crate::fixture::table::VXLAN_MIXED;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/monitoring");
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

struct Prometheus {
    namespace: Namespace,
    server: Child,
    _folder: TempDir,
}

impl Prometheus {
    fn start(namespace: &Namespace, targets: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prometheus.json");
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [format!("{FOLDER}/rules.yml")],
            "scrape_configs": [{ "job_name": "tweed", "static_configs": [{ "targets": targets }] }],
        });
        fs::write(&file, config.to_string()).unwrap();
        let mut prometheus = Command::new("prometheus");
        prometheus
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={ADDRESS}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = namespace.within(|| prometheus.spawn()).unwrap().unwrap();
        Self { namespace: namespace.clone(), server, _folder: folder }
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = self.namespace.get(ADDRESS, path)?;
        ensure!(answer.status == 200, "{path}: {}", answer.body);
        Ok(serde_json::from_str(&joined(&answer.body))?)
    }

    /// Whether `query` returns series.
    fn has(&self, query: &str) -> Result<()> {
        let encoded: Vec<String> = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let encoded = encoded.concat();
        let answer = self.ask(&format!("/api/v1/query?query={encoded}"))?;
        let series = answer["data"]["result"].as_array().map_or(0, Vec::len);
        ensure!(series > 0, "no series for {query}: {answer}");
        Ok(())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

/// A long answer comes in chunks, each after its length.
fn joined(body: &str) -> String {
    let (mut text, mut rest) = (String::new(), body);
    while let Some((length, chunk)) = rest.split_once("\r\n").filter(|_| !rest.starts_with('{')) {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        text.push_str(&chunk[..length]);
        rest = chunk[length..].trim_start_matches("\r\n");
    }
    text + rest
}

/// The queries of all panels, also those that show only nodes with a problem.
fn queries() -> Vec<String> {
    let dashboard = fs::read_to_string(format!("{FOLDER}/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().unwrap());
    let queries = queries.map(|query| query.replace("$__rate_interval", "1m"));
    queries.map(|query| query.replace("$instance", ".*").replace(" > 0", "")).collect()
}

#[test]
fn a_prometheus_answers_every_query_of_the_dashboard() {
    let plan = ClusterPlan::new(2, &Stack::V4.config(&VXLAN_MIXED.config())).stack(Stack::V4);
    let cluster = plan.flags(&["--metrics-port=8082"]).start().unwrap();
    let addresses = cluster.nodes.iter().map(|node| node.address(Family::V4).unwrap());
    let targets: Vec<String> = addresses.map(|address| format!("{address}:8082")).collect();
    let prometheus = Prometheus::start(cluster.nodes[0].namespace(), &targets);
    let queries = queries();
    assert!(queries.len() > 30, "{queries:?}");
    let is_answered = || queries.iter().try_for_each(|query| prometheus.has(query));
    eventually(PATIENCE, is_answered).unwrap();
    eventually(PATIENCE, || {
        let answer = prometheus.ask("/api/v1/rules")?;
        let rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        ensure!(!rules.is_empty(), "{answer}");
        for rule in &rules {
            ensure!(rule["health"] == "ok", "{rule}");
            // One that is pending would fire minutes later.
            ensure!(rule["state"] == "inactive", "{rule}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_log_in_json_is_an_object_per_line_and_names_the_peers() {
    let plan = ClusterPlan::new(2, &Stack::V4.config(&VXLAN_MIXED.config())).stack(Stack::V4);
    let cluster = plan.flags(&["--log-format=json"]).start().unwrap();
    let is_named = || {
        let log = cluster.daemons[0].log()?;
        let events = log.lines().map(serde_json::from_str);
        let events: Vec<Value> = events.collect::<Result<_, _>>()?;
        let mut added = events.iter().filter(|event| event["kind"] == "peer-added");
        let names_it = |event: &Value| {
            let named = ["timestamp", "message", "lease", "peer"].map(|field| &event[field]);
            event["level"] == "INFO" && named.iter().all(|value| value.is_string())
        };
        ensure!(added.any(names_it), "{log}");
        Ok(())
    };
    eventually(PATIENCE, is_named).unwrap();
}
