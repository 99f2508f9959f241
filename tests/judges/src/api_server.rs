//! A real API server as the judge of the one in the lab: both get the same random requests, those
//! that daemons, operators, kubelets and `kubectl` send.

#![allow(clippy::indexing_slicing, reason = "an index into JSON finds null where nothing is")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tweed_lab::ApiServer;

use crate::verdict::{Counted, Verdicts};

const REQUESTS: usize = 10_000;
const NODES: &str = "/api/v1/nodes";
const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-flannel/configmaps";
const SECRETS: &str = "/api/v1/namespaces/kube-flannel/secrets";
/// The collections that are watched.
const WATCHED: [&str; 2] = [NODES, CONFIG_MAPS];
/// Created last in each collection.
const END: &str = "zz-end";
/// The fields that clients of tweed read, and of a status what it writes.
const READ: [&str; 8] = [
    "/metadata/name",
    "/metadata/annotations",
    "/metadata/labels",
    "/metadata/ownerReferences",
    "/spec/podCIDR",
    "/spec/podCIDRs",
    CONDITIONS,
    "/data",
];
const CONDITIONS: &str = "/status/conditions";
/// The length of an annotation that is too long with another one, of data, and of a body.
const LONG: [usize; 3] = [200 * 1024, 1100 * 1024, 3200 * 1024];
const TIMEOUT: Duration = Duration::from_secs(60);

/// A request that means the same to both servers.
#[derive(Clone, Debug)]
enum Ask {
    Get(&'static str, String),
    /// The first page of this many objects, and the pages after it.
    List(&'static str, usize, Option<&'static str>),
    /// A node as it was some writes ago.
    Former(String, usize),
    Create(&'static str, Value),
    Delete(&'static str, String),
    /// At this path, with this content type.
    Patch(String, &'static str, Value),
    /// At this path, if the object still has the version of this many writes ago.
    Write(String, Value, usize),
}

/// A server, with what was seen of it.
struct Server {
    url: String,
    /// The versions of each object, by its path.
    versions: BTreeMap<String, Vec<u64>>,
}

/// What clients of tweed read in an answer.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    status: u16,
    /// Of a refusal.
    reason: Value,
    objects: Vec<Value>,
}

pub(crate) fn run(url: &str, verdicts: &mut Verdicts) -> Result<()> {
    let case = format!("{REQUESTS} random requests to it and to the API server of the lab");
    verdicts.run(&case, || compare(url, rand::random(), REQUESTS))
}

fn compare(url: &str, seed: u64, requests: usize) -> Result<Counted> {
    let model = ApiServer::start()?;
    let urls = [url.to_owned(), model.url()];
    let mut servers = urls.map(|url| Server { url, versions: BTreeMap::new() });
    for server in &mut servers {
        server.clear()?;
    }
    let watches = servers.each_ref().map(|server| WATCHED.map(|it| server.watch(it)));
    let mut dice = StdRng::seed_from_u64(seed);
    for number in 0..requests {
        let ask = ask(&mut dice, number);
        let [real, modelled] = servers.each_mut().map(|server| server.answer(&ask));
        let (real, modelled) = (real?, modelled?);
        let what = || format!("seed {seed}, request {number}, {ask:?}: {real:?}\nbut {modelled:?}");
        ensure!(real == modelled, "{}", what());
    }
    for server in &mut servers {
        for collection in WATCHED {
            server.answer(&Ask::Create(collection, json!({ "metadata": { "name": END } })))?;
        }
    }
    let mut number = 0;
    let [real, modelled] = watches;
    for ((real, modelled), collection) in real.into_iter().zip(modelled).zip(WATCHED) {
        let [real, modelled] = [real, modelled].map(|watch| events(watch?));
        let (real, modelled) = (real?, modelled?);
        let mut pairs = real.iter().zip(&modelled);
        let different = pairs.find(|(real, modelled)| real != modelled);
        ensure!(different.is_none(), "seed {seed}, watch of {collection}: {different:?}");
        ensure!(real.len() == modelled.len(), "seed {seed}: {} events", real.len());
        number += real.len();
    }
    ensure!(number > requests / 10, "only {number} events");
    Ok(Counted {
        remark: format!("equal answers, and {number} equal events"),
        ..Counted::default()
    })
}

fn ask(dice: &mut StdRng, number: usize) -> Ask {
    let node = format!("n{}", dice.random_range(1..=4));
    let report = format!("tweed-node-{node}");
    let text = format!("{number}");
    match dice.random_range(0..24) {
        0..2 => Ask::Get(NODES, node),
        2 => Ask::Get(SECRETS, "tweed-probes".to_owned()),
        3 => Ask::Get(CONFIG_MAPS, "kube-flannel-cfg".to_owned()),
        4 => Ask::List(NODES, dice.random_range(1..6), None),
        5 => {
            let labels =
                "app.kubernetes.io%2Fname%3Dtweed%2Capp.kubernetes.io%2Fcomponent%3Dnode-report";
            Ask::List(CONFIG_MAPS, dice.random_range(1..6), Some(labels))
        }
        6 => Ask::Former(node, dice.random_range(0..4)),
        7..9 => Ask::Create(NODES, new_node(&node)),
        9 => Ask::Delete(NODES, node),
        10 => Ask::Create(
            SECRETS,
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "tweed-probes" },
                "stringData": { "secret": text },
            }),
        ),
        11 => Ask::Delete(SECRETS, "tweed-probes".to_owned()),
        12..17 => Ask::Patch(format!("{NODES}/{node}/status"), STRATEGIC, status(dice, &text)),
        17..20 => Ask::Patch(
            format!("{CONFIG_MAPS}/{report}?{APPLIED}"),
            APPLY,
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {
                    "name": report,
                    "labels": {
                        "app.kubernetes.io/name": "tweed",
                        "app.kubernetes.io/component": "node-report",
                    },
                    "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": "1" }],
                },
                "data": { "report": long_or(dice, text, LONG[1]), "refreshed": number.to_string() },
            }),
        ),
        20 => Ask::Delete(CONFIG_MAPS, report),
        21 => Ask::Create(
            CONFIG_MAPS,
            json!({
                "metadata": { "name": "kube-flannel-cfg" }, "data": { "net-conf.json": text },
            }),
        ),
        22 => Ask::Delete(CONFIG_MAPS, "kube-flannel-cfg".to_owned()),
        _ => {
            let config = json!({ "data": { "net-conf.json": long_or(dice, text, LONG[2]) } });
            let ago = dice.random_range(0..2);
            Ask::Write(format!("{CONFIG_MAPS}/kube-flannel-cfg"), config, ago)
        }
    }
}

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const APPLIED: &str = "fieldManager=tweedd&force=true";

/// Mostly `text`; rarely one that is too long.
fn long_or(dice: &mut StdRng, text: String, long: usize) -> String {
    if dice.random_bool(0.02) { "x".repeat(long) } else { text }
}

fn new_node(name: &str) -> Value {
    let number = name.trim_start_matches('n');
    let cidr = format!("10.244.{number}.0/24");
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
        "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
    })
}

/// What a daemon or a kubelet changes.
fn status(dice: &mut StdRng, text: &str) -> Value {
    let key = one(dice, ["public-ip", "backend-type", "backend-data"]);
    let key = format!("flannel.alpha.coreos.com/{key}");
    match dice.random_range(0..4) {
        // A few values, so that some patches change nothing.
        0 => {
            let text = dice.random_range(0..3).to_string();
            json!({ "metadata": { "annotations": { key: long_or(dice, text, LONG[0]) } } })
        }
        1 => json!({ "metadata": { "annotations": { key: null } } }),
        2 => {
            let kind = one(dice, ["Ready", "NetworkUnavailable"]);
            json!({ "status": { "conditions": [{
                "type": kind,
                "status": "False",
                "lastHeartbeatTime": second(text),
                "lastTransitionTime": second(text),
                "reason": "FlannelIsUp",
                "message": text,
            }] } })
        }
        // The status subresource ignores the rest.
        _ => {
            json!({ "spec": { "podCIDR": "10.99.0.0/24" }, "metadata": { "annotations": { key: "s" } } })
        }
    }
}

fn one<const N: usize>(dice: &mut StdRng, items: [&'static str; N]) -> &'static str {
    items.get(dice.random_range(0..N)).copied().unwrap_or_default()
}

/// A time that differs from those before.
fn second(number: &str) -> String {
    let number: u32 = number.parse().unwrap_or_default();
    let (hours, minutes) = (number / 3600 % 24, number / 60 % 60);
    format!("2026-01-01T{hours:02}:{minutes:02}:{:02}Z", number % 60)
}

impl Server {
    fn answer(&mut self, ask: &Ask) -> Result<Answer> {
        match ask {
            Ask::Get(collection, name) => {
                self.ask("GET", &format!("{collection}/{name}"), "", &Value::Null)
            }
            Ask::List(collection, limit, labels) => self.list(collection, *limit, *labels),
            Ask::Former(name, ago) => {
                let path = format!("{NODES}/{name}");
                // A real server has forgotten its first versions.
                let Some(known) = self.versions.get(&path) else {
                    return self.ask("GET", &path, "", &Value::Null);
                };
                let version = known.iter().rev().nth(*ago).or(known.first()).unwrap_or(&1);
                let query = format!(
                    "fieldSelector=metadata.name%3D{name}&resourceVersion={version}&resourceVersionMatch=Exact"
                );
                self.ask("GET", &format!("{NODES}?{query}"), "", &Value::Null)
            }
            Ask::Create(collection, object) => {
                self.ask("POST", collection, "application/json", object)
            }
            Ask::Delete(collection, name) => self.delete(&format!("{collection}/{name}")),
            Ask::Patch(path, kind, changes) => self.ask("PATCH", path, kind, changes),
            Ask::Write(path, changes, ago) => {
                let version = self.version(path, *ago).to_string();
                let mut changes = changes.clone();
                changes["metadata"] = json!({ "resourceVersion": version });
                self.ask("PATCH", path, MERGE, &changes)
            }
        }
    }

    /// The version that an object had this many writes ago; 1 if it is not known.
    fn version(&self, path: &str, ago: usize) -> u64 {
        let versions = self.versions.get(path).into_iter().flatten();
        versions.rev().nth(ago).copied().unwrap_or(1)
    }

    /// All pages.
    fn list(&mut self, collection: &str, limit: usize, labels: Option<&str>) -> Result<Answer> {
        let mut query = format!("limit={limit}");
        if let Some(labels) = labels {
            query = format!("{query}&labelSelector={labels}");
        }
        let (mut token, mut objects) = (String::new(), Vec::new());
        loop {
            let path = format!("{collection}?{query}&continue={token}");
            let (status, body) = exchange(&self.url, "GET", &path, "", "")?;
            ensure!(status == 200, "{path}: {status} {body}");
            let items = body["items"].as_array().cloned().unwrap_or_default();
            ensure!(items.len() <= limit, "{} objects and not {limit}", items.len());
            objects.extend(items.iter().map(outline));
            body["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut token);
            if token.is_empty() {
                return Ok(Answer { status, reason: Value::Null, objects });
            }
        }
    }

    /// Deletes what the requests create.
    fn clear(&mut self) -> Result<()> {
        let mut paths: Vec<String> = (1..=4)
            .flat_map(|it| [format!("{NODES}/n{it}"), format!("{CONFIG_MAPS}/tweed-node-n{it}")])
            .collect();
        paths.extend(WATCHED.map(|collection| format!("{collection}/{END}")));
        paths.push(format!("{CONFIG_MAPS}/kube-flannel-cfg"));
        paths.push(format!("{SECRETS}/tweed-probes"));
        paths.iter().try_for_each(|path| self.delete(path).map(drop))
    }

    fn delete(&mut self, path: &str) -> Result<Answer> {
        let mut answer = self.ask("DELETE", path, "", &Value::Null)?;
        // A real server shows the object, or only that it is gone.
        answer.objects.clear();
        Ok(answer)
    }

    fn ask(&mut self, method: &str, path: &str, kind: &str, body: &Value) -> Result<Answer> {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let (status, body) = exchange(&self.url, method, path, kind, &text)?;
        let items = body["items"].as_array().cloned();
        let is_object = status < 300 && items.is_none();
        let objects =
            items.unwrap_or_else(|| if is_object { vec![body.clone()] } else { Vec::new() });
        for object in objects.iter().filter(|_| is_object && method != "DELETE") {
            self.note(path, object);
        }
        let reason = if status < 300 { Value::Null } else { body["reason"].clone() };
        Ok(Answer { status, reason, objects: objects.iter().map(outline).collect() })
    }

    fn note(&mut self, path: &str, object: &Value) {
        let path = path.split('?').next().unwrap_or_default().trim_end_matches("/status");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = if path.ends_with(name) { path.to_owned() } else { format!("{path}/{name}") };
        let version = object["metadata"]["resourceVersion"].as_str();
        let versions = self.versions.entry(path).or_default();
        let version = version.and_then(|it| it.parse().ok());
        versions.extend(version.filter(|it| versions.last() != Some(it)));
    }

    /// The events from now on, until the last object is created.
    fn watch(&self, collection: &'static str) -> Result<JoinHandle<Result<Vec<Value>>>> {
        let (_, list) = exchange(&self.url, "GET", &format!("{collection}?limit=1"), "", "")?;
        let version = list["metadata"]["resourceVersion"].as_str().context("no version")?;
        let query = format!("watch=true&resourceVersion={version}&timeoutSeconds=3600");
        let stream = send(&self.url, "GET", &format!("{collection}?{query}"), "", "")?;
        Ok(thread::spawn(move || {
            let mut events = Vec::new();
            let mut lines = BufReader::new(stream)
                .lines()
                .skip_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()));
            lines.next().context("no answer")??;
            for line in lines {
                let event: Value = serde_json::from_str(&line?)?;
                if event["type"] != "BOOKMARK" {
                    events.push(
                        json!({ "type": event["type"], "object": outline(&event["object"]) }),
                    );
                }
                if event["object"]["metadata"]["name"] == END {
                    return Ok(events);
                }
            }
            anyhow::bail!("the watch of {collection} has ended after {} events", events.len())
        }))
    }
}

fn events(watch: JoinHandle<Result<Vec<Value>>>) -> Result<Vec<Value>> {
    watch.join().map_err(|_| anyhow::anyhow!("a watch panicked"))?
}

/// The fields of an object that clients of tweed read.
fn outline(object: &Value) -> Value {
    let mut read = serde_json::Map::new();
    for pointer in READ {
        let mut value = object.pointer(pointer).filter(|it| !is_empty(it)).cloned();
        if let (CONDITIONS, Some(Value::Array(conditions))) = (pointer, &mut value) {
            // Their order means nothing: a real server puts a new one first.
            conditions.sort_by_key(|condition| condition["type"].to_string());
        }
        read.extend(value.map(|value| (pointer.to_owned(), value)));
    }
    Value::Object(read)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The status and the body of the answer.
fn exchange(url: &str, method: &str, path: &str, kind: &str, body: &str) -> Result<(u16, Value)> {
    let mut text = Vec::new();
    send(url, method, path, kind, body)?.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let what = || format!("{method} {path}: {text}");
    let (head, body) = text.split_once("\r\n\r\n").with_context(what)?;
    let status =
        head.split_whitespace().nth(1).and_then(|it| it.parse().ok()).with_context(what)?;
    Ok((status, serde_json::from_str(body).unwrap_or_else(|_| Value::from(body))))
}

/// In HTTP/1.0, bodies are not chunked.
fn send(url: &str, method: &str, path: &str, kind: &str, body: &str) -> Result<TcpStream> {
    let address = url.strip_prefix("http://").context("only http:// is supported")?;
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {url}"))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n{kind}Content-Length: {}\r\n\r\n",
        body.len(),
    );
    stream.write_all(head.as_bytes())?;
    // A server that refuses a long body may not read all of it.
    let _ = stream.write_all(body.as_bytes());
    Ok(stream)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "for tests")]

    use super::*;

    #[test]
    fn only_servers_that_answer_alike_are_accepted() {
        let server = ApiServer::start().unwrap();
        compare(&server.url(), rand::random(), 500).unwrap();
        server.fail(|faults| faults.forbidden = vec!["PATCH".to_owned()]);
        assert!(compare(&server.url(), 1, 500).is_err());
    }
}
