//! `tweed-proxy run` next to an API server, in a real kernel: it follows what happens, and repairs what
//! others damage.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tweed_lab::{ApiServer, Lists, eventually};

use crate::{Host, OBJECTS};

pub(crate) const SERVICES: &str = "/api/v1/namespaces/default/services";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Where the proxy answers, in its namespace.
const HEALTH: &str = "127.0.0.1:10256";

/// For what takes a moment.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A host with an API server and a proxy; all end with the test.
pub(crate) struct Cluster {
    pub(crate) host: Host,
    pub(crate) server: ApiServer,
    proxy: Option<Child>,
    log: PathBuf,
}

impl Cluster {
    /// With a Node, Service `web` with two endpoints, and a proxy that has programmed it.
    pub(crate) fn new() -> Self {
        let mut cluster = Self::without_proxy();
        cluster.start();
        cluster.expect(&["10.96.0.1 . tcp . 80 . 0 : 10.1.0.2 . 8080", "10.1.1.2 . 8080"]);
        cluster
    }

    fn without_proxy() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("proxy-watch-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let host = Host::new(&name);
        let server = ApiServer::start_in(&host.0).unwrap();
        let log = PathBuf::from("/run").join(format!("{name}.log"));
        server.add_node("here", &["10.1.0.0/24"]);
        let addresses = json!([{ "type": "InternalIP", "address": "172.16.0.1" }]);
        server.patch_node("here", &json!({ "status": { "addresses": addresses } }));
        let cluster = Self { host, server, proxy: None, log };
        cluster.add_service("web", "10.96.0.1");
        cluster.add_slice("web", &["10.1.0.2", "10.1.1.2"]);
        cluster
    }

    pub(crate) fn start(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let url = self.server.url();
        let spawn = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tweed-proxy"));
            command.args(["run", "--hostname-override", "here", "--kube-api-url", &url]);
            command.args(["--healthz-bind-address", HEALTH]);
            command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
        };
        self.proxy = Some(self.host.0.within(spawn).unwrap());
    }

    /// As kill -9.
    pub(crate) fn kill(&mut self) {
        let mut proxy = self.proxy.take().unwrap();
        proxy.kill().unwrap();
        proxy.wait().unwrap();
    }

    pub(crate) fn add_service(&self, name: &str, cluster_ip: &str) {
        let node_port = if name == "web" { 30080 } else { 0 };
        let port = json!({ "port": 80, "nodePort": node_port });
        let spec = json!({ "clusterIPs": [cluster_ip], "ports": [port] });
        self.server.add(SERVICES, name, &json!({ "kind": "Service", "spec": spec }));
    }

    pub(crate) fn add_slice(&self, service: &str, endpoints: &[&str]) {
        let slice = json!({
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": { "labels": { "kubernetes.io/service-name": service } },
            "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
            "endpoints": list(endpoints),
        });
        self.server.add(SLICES, &format!("{service}-1"), &slice);
    }

    pub(crate) fn set_endpoints(&self, service: &str, endpoints: &[&str]) {
        let patch = json!({ "endpoints": list(endpoints) });
        self.server.patch(SLICES, &format!("{service}-1"), &patch);
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Status code and body.
    fn get(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let answer = self.host.0.get(HEALTH.parse()?, path)?;
        Ok((answer.status, answer.body))
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> anyhow::Result<String> {
        let page = self.get("/metrics")?.1;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| page.clone())?.to_owned())
    }

    fn silence(&self, kind: &str) -> anyhow::Result<Duration> {
        let name = format!("tweed_proxy_watch_silence_seconds{{kind=\"{kind}\"}}");
        Ok(Duration::from_secs_f64(self.metric(&name)?.parse()?))
    }

    /// Waits until the tables have all of these texts.
    #[track_caller]
    fn expect(&self, texts: &[&str]) {
        self.wait_for(texts, true);
    }

    /// Waits until the tables have none of these texts.
    #[track_caller]
    fn expect_gone(&self, texts: &[&str]) {
        self.wait_for(texts, false);
    }

    #[track_caller]
    fn wait_for(&self, texts: &[&str], are_there: bool) {
        let is_right = || {
            let listed = self.host.nft("list ruleset");
            for text in texts {
                let is_there = listed.contains(text);
                ensure!(is_there == are_there, "{text:?}: {is_there}, {listed}\n{}", self.log());
            }
            Ok(())
        };
        eventually(LONG, is_right).unwrap();
    }

    /// Waits until the log has a number of lines with this text.
    #[track_caller]
    fn expect_log(&self, text: &str, number: usize) {
        let has_lines = || {
            let log = self.log();
            ensure!(log.matches(text).count() == number, "{number} times {text:?}: {log}");
            Ok(())
        };
        eventually(LONG, has_lines).unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            let _ = (proxy.kill(), proxy.wait());
        }
        let _ = fs::remove_file(&self.log);
    }
}

fn list(endpoints: &[&str]) -> Value {
    let endpoint = |address: &&str| {
        let node = if address.starts_with("10.1.0.") { "here" } else { "there" };
        json!({ "addresses": [address], "nodeName": node })
    };
    endpoints.iter().map(endpoint).collect()
}

const SECOND: Duration = Duration::from_secs(1);

/// Counts how often the proxy has written what differs.
const ATTEMPTS: &str = "kubeproxy_sync_proxy_rules_duration_seconds_count";

const READY: &str = "all services are programmed";

#[test]
fn changes_of_services_endpoints_and_the_node_are_followed() {
    let cluster = Cluster::new();
    cluster.expect(&["set count-2", "172.16.0.1 . tcp . 30080 . 1 : 10.1.1.2 . 8080"]);
    cluster.set_endpoints("web", &["10.1.0.2", "10.1.1.2", "10.1.2.2"]);
    cluster.expect(&["set count-3", "10.96.0.1 . tcp . 80 . 2 : 10.1.2.2 . 8080"]);
    // By its cluster IP and by a node port, but each rule costs all new connections a look-up.
    let rules = cluster.host.nft("list chain ip tweed-proxy frontend");
    assert_eq!(rules.matches("goto with-3").count(), 1, "{rules}");
    cluster.set_endpoints("web", &["10.1.2.2"]);
    cluster.expect_gone(&["10.1.0.2", "10.1.1.2"]);
    cluster.expect(&["10.96.0.1 . tcp . 80 . 0 : 10.1.2.2 . 8080"]);
    cluster.add_service("other", "10.96.0.2");
    cluster.add_slice("other", &["10.1.3.2"]);
    cluster.expect(&["10.96.0.2 . tcp . 80 . 0 : 10.1.3.2 . 8080"]);
    // The slice belongs to another service from now on.
    let labels = json!({ "kubernetes.io/service-name": "web" });
    cluster.server.patch(SLICES, "other-1", &json!({ "metadata": { "labels": labels } }));
    cluster.expect(&["10.96.0.1 . tcp . 80 . 1 : 10.1.3.2 . 8080"]);
    cluster.expect_gone(&["10.96.0.2 . tcp . 80 . 0"]);
    let addresses = json!([{ "type": "InternalIP", "address": "172.16.0.9" }]);
    cluster.server.patch_node("here", &json!({ "status": { "addresses": addresses } }));
    cluster.expect(&["172.16.0.9 . tcp . 30080 . 0"]);
    cluster.expect_gone(&["172.16.0.1 "]);
    // Another proxy serves it from now on.
    let labels = json!({ "service.kubernetes.io/service-proxy-name": "other" });
    cluster.server.patch(SERVICES, "web", &json!({ "metadata": { "labels": labels } }));
    cluster.expect_gone(&["10.96.0.1"]);
    cluster.server.delete(SERVICES, "other");
    cluster.expect_gone(&["10.96.0.2"]);
    assert_eq!(cluster.log().matches("another program").count(), 0, "{}", cluster.log());
}

#[test]
fn damage_is_repaired_at_once_and_other_tables_are_not_looked_at() {
    let cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    let listed = cluster.host.listed();
    for damage in [
        "delete table ip tweed-proxy",
        "delete table ip6 tweed-proxy",
        "flush set ip tweed-proxy frontends",
        "flush map ip tweed-proxy endpoints",
        "flush chain ip tweed-proxy prerouting",
        "insert rule ip tweed-proxy untranslated accept",
        "add element ip tweed-proxy refused { 10.96.0.1 . tcp . 80 }",
        "add element ip tweed-proxy endpoints { 10.96.0.1 . tcp . 80 . 7 : 10.9.9.9 . 9 }",
    ] {
        cluster.host.nft(damage);
        let is_repaired = || {
            let found = cluster.host.listed();
            ensure!(found == listed, "{damage}: {found:#?}\n{}", cluster.log());
            Ok(())
        };
        eventually(LONG, is_repaired).unwrap();
    }
    let noticed = cluster.log().matches("another program changed the table").count();
    assert!(noticed > 0, "{}", cluster.log());
    cluster.host.nft("add table ip theirs; add chain ip theirs input");
    cluster.add_service("other", "10.96.0.2");
    cluster.expect(&["10.96.0.2 . tcp . 80", "table ip theirs"]);
    cluster.expect_log("another program changed the table", noticed);
}

/// To fill another one takes longer, and no new connection is translated meanwhile.
#[test]
fn a_flushed_chain_is_no_reason_for_another_table() {
    let cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    // No service has two endpoints any more.
    cluster.set_endpoints("web", &["10.1.0.2"]);
    cluster.expect_gone(&["10.1.1.2"]);
    let listed = cluster.host.listed();
    for chain in ["frontend", "local-frontend", "with-1", "with-2", "prerouting", "postrouting"] {
        cluster.host.nft(&format!("flush chain ip tweed-proxy {chain}"));
        let is_repaired = || {
            let found = cluster.host.listed();
            ensure!(found == listed, "{chain}: {found:#?}\n{}", cluster.log());
            Ok(())
        };
        eventually(LONG, is_repaired).unwrap();
    }
    cluster.expect_log("replaced a damaged table", 0);
}

#[test]
fn another_program_that_writes_without_end_stops_no_changes() {
    let cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    let mut writes = 0;
    let is_there = || {
        writes += 1;
        cluster
            .host
            .nft(&format!("add element ip tweed-proxy refused {{ 10.96.0.99 . tcp . {writes} }}"));
        if writes == 3 {
            cluster.add_service("other", "10.96.0.2");
            cluster.add_slice("other", &["10.1.3.2"]);
        }
        let listed = cluster.host.nft("list ruleset");
        ensure!(listed.contains("10.96.0.2 . tcp . 80 . 0"), "{writes}: {}", cluster.log());
        anyhow::Ok(())
    };
    eventually(Duration::from_secs(20), is_there).unwrap();
}

#[test]
fn a_restart_writes_nothing_even_without_an_api_server() {
    let mut cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    // A proxy that knew nothing of the sets would give these other indexes.
    cluster.set_endpoints("web", &["10.1.1.2", "10.1.2.2"]);
    cluster.expect(&["10.96.0.1 . tcp . 80 . 0 : 10.1.2.2", "10.96.0.1 . tcp . 80 . 1 : 10.1.1.2"]);
    // What packets on their way may still look up goes a moment later.
    cluster.expect_gone(&["10.1.0.2 "]);
    let (generation, listed) = (cluster.host.generation(), cluster.host.listed());
    cluster.kill();
    cluster.start();
    cluster.expect_log(READY, 2);
    assert_eq!(cluster.host.generation(), generation);
    cluster.kill();
    cluster.server.stop().unwrap();
    cluster.start();
    cluster.expect_log("the API server cannot be used", 1);
    assert_eq!((cluster.host.generation(), cluster.host.listed()), (generation, listed));
    cluster.server.delete(SERVICES, "web");
    cluster.server.start_again().unwrap();
    cluster.expect_gone(&["10.96.0.1"]);
}

#[test]
fn what_happens_while_the_api_server_is_away_is_noticed() {
    let mut cluster = Cluster::new();
    cluster.server.stop().unwrap();
    cluster.server.delete(SERVICES, "web");
    cluster.add_service("other", "10.96.0.2");
    // Its history is gone, too.
    cluster.server.compact();
    // What is known is still repaired.
    cluster.host.nft("delete table ip tweed-proxy");
    cluster.expect(&["10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080"]);
    for kind in ["services", "endpointslices", "nodes"] {
        eventually(LONG, || anyhow::Ok(cluster.silence(kind)? > SECOND)).unwrap();
    }
    assert_eq!(cluster.get("/readyz").unwrap().0, 200);
    cluster.server.start_again().unwrap();
    for kind in ["services", "endpointslices", "nodes"] {
        eventually(LONG, || anyhow::Ok(cluster.silence(kind)?.is_zero())).unwrap();
    }
    cluster.expect(&["10.96.0.2 . tcp . 80"]);
    cluster.expect_gone(&["10.96.0.1"]);
}

#[test]
fn a_restored_api_server_is_noticed() {
    let cluster = Cluster::new();
    let backup = cluster.server.back_up();
    cluster.add_service("lost", "10.96.0.2");
    cluster.server.delete(SERVICES, "web");
    cluster.expect(&["10.96.0.2 . tcp . 80"]);
    cluster.expect_gone(&["10.96.0.1"]);
    cluster.server.restore(backup);
    // Versions reach those that the proxy knows.
    cluster.server.change_something_else();
    cluster.server.change_something_else();
    cluster.expect(&["10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080"]);
    cluster.expect_gone(&["10.96.0.2"]);
}

#[test]
fn a_service_that_a_backup_brings_back_is_noticed() {
    let mut cluster = Cluster::without_proxy();
    cluster.add_service("other", "10.96.0.2");
    let backup = cluster.server.back_up();
    // Nothing that the proxy lists shows that this service was ever there.
    cluster.server.delete(SERVICES, "web");
    cluster.start();
    cluster.expect(&["10.96.0.2 . tcp . 80"]);
    cluster.server.restore(backup);
    cluster.server.change_something_else();
    cluster.expect(&["10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080"]);
}

#[test]
fn an_api_server_that_does_not_stream_lists_is_read_page_by_page() {
    let mut cluster = Cluster::without_proxy();
    cluster.server.fail(|faults| faults.lists = Lists::Paged);
    for number in 0..250 {
        cluster.add_service(&format!("s{number}"), &format!("10.97.0.{number}"));
    }
    cluster.start();
    cluster.expect(&["10.97.0.249 . tcp . 80", "10.97.0.7 . tcp . 80", "10.96.0.1 . tcp . 80 . 1"]);
}

#[test]
fn a_missing_permission_is_named() {
    let mut cluster = Cluster::without_proxy();
    cluster.server.fail(|faults| faults.forbidden = vec!["GET /apis/discovery".to_owned()]);
    cluster.start();
    cluster.expect_log("forbids GET /apis/discovery.k8s.io/v1/endpointslices", 1);
    cluster.expect_log("docs/guides/services.md lists the permissions", 1);
    let waits_for = |kinds: &[&str]| {
        let (code, body) = cluster.get("/readyz")?;
        let all = ["services", "endpointslices", "nodes"];
        let named = all.into_iter().filter(|kind| body.contains(&format!("the {kind} are not")));
        ensure!(code == 503 && named.eq(kinds.iter().copied()), "{code}: {body}");
        Ok(())
    };
    eventually(LONG, || waits_for(&["endpointslices"])).unwrap();
    eventually(LONG, || anyhow::Ok(cluster.get("/healthz")?.0 == 200)).unwrap();
    let mut asked = Vec::new();
    let has_listed_others = || {
        asked.extend(cluster.server.take_asked().into_iter().map(|asked| asked.what));
        for kind in ["GET /api/v1/services", "GET /api/v1/nodes"] {
            ensure!(asked.iter().any(|what| what == kind), "{asked:?}");
        }
        Ok(())
    };
    eventually(LONG, has_listed_others).unwrap();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(cluster.host.listed(), [] as [&str; 0]);
    assert!(cluster.silence("endpointslices").unwrap() > SECOND);
    assert!(cluster.silence("services").unwrap().is_zero());
    cluster.server.fail(|faults| faults.forbidden.clear());
    cluster.expect(&["10.96.0.1 . tcp . 80 . 1 : 10.1.1.2 . 8080"]);
}

#[test]
fn only_one_process_writes_the_tables() {
    let mut cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    let listed = cluster.host.listed();
    for words in [
        &["cleanup"][..],
        &["apply", "--objects", "-", "--hostname-override", "here"],
        &["run", "--hostname-override", "here", "--kube-api-url", "http://127.0.0.1:1"],
    ] {
        let output = cluster.host.call(words, OBJECTS);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("another tweed-proxy"), "{stderr}");
    }
    // Not even the table is read: it may change until it is locked.
    let powerless = ["--bounding-set=-net_admin", env!("CARGO_BIN_EXE_tweed-proxy")];
    let words = ["apply", "--objects", "-", "--hostname-override", "here"];
    let words = [&powerless[..], &words].concat();
    let output = cluster.host.0.output_for("setpriv", &words, OBJECTS);
    let stderr = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(stderr.contains("another tweed-proxy"), "{stderr}");
    assert_eq!(cluster.host.listed(), listed);
    cluster.kill();
    assert!(cluster.host.call(&["cleanup"], "").status.success());
    assert_eq!(cluster.host.listed(), [] as [&str; 0]);
}

#[test]
fn what_one_service_asks_for_stops_no_other() {
    let cluster = Cluster::new();
    let service = json!({
        "kind": "Service",
        "spec": {
            "type": "LoadBalancer", "clusterIPs": ["10.96.0.9"], "ports": [{ "port": 80 }],
            "loadBalancerSourceRanges": ["0.0.0.0/0"],
        },
        "status": { "loadBalancer": { "ingress": [{ "ip": "198.51.100.9" }] } },
    });
    cluster.server.add(SERVICES, "restricted", &service);
    cluster.add_slice("restricted", &["10.1.0.9"]);
    cluster.expect(&["198.51.100.9 . tcp . 80 . 0.0.0.0/0"]);
    // Networks of clients may overlap those of before.
    for range in ["192.0.2.0/24", "192.0.0.0/16", "192.0.2.0/24"] {
        let patch = json!({ "spec": { "loadBalancerSourceRanges": [range] } });
        cluster.server.patch(SERVICES, "restricted", &patch);
        cluster.expect(&[&format!("198.51.100.9 . tcp . 80 . {range}")]);
    }
    // The API server does not check the ports of endpoints.
    let ports = json!({ "ports": [{ "name": "", "port": 70000, "protocol": "TCP" }] });
    cluster.server.patch(SLICES, "restricted-1", &ports);
    cluster.expect_gone(&["10.1.0.9"]);
    cluster.expect_log("EndpointSlice default/restricted-1: port \"\": \"TCP\" 70000 is no", 1);
    cluster.set_endpoints("web", &["10.1.0.2"]);
    cluster.expect_gone(&["10.1.1.2"]);
}

#[test]
fn what_the_kernel_refuses_stops_nothing_else() {
    let cluster = Cluster::new();
    cluster.expect_log(READY, 1);
    // Another program leaves room for one element.
    let key = "typeof ip daddr . meta l4proto . th dport; size 1";
    cluster.host.nft(&format!("add set ip tweed-proxy external {{ {key}; }}"));
    let service = |number: u8| {
        let (cluster_ip, external) = (format!("10.96.1.{number}"), format!("198.51.100.{number}"));
        let port = json!({ "port": 80 });
        let spec =
            json!({ "clusterIPs": [cluster_ip], "externalIPs": [external], "ports": [port] });
        json!({ "kind": "Service", "spec": spec })
    };
    let without_node_port = json!({ "spec": { "ports": [{ "port": 80 }] } });
    cluster.server.patch(SERVICES, "web", &without_node_port);
    cluster.expect_gone(&["172.16.0.1"]);
    for (name, number) in [("first", 1), ("second", 2)] {
        cluster.server.add(SERVICES, name, &service(number));
        cluster.add_slice(name, &["10.1.0.9"]);
    }
    cluster.expect(&["198.51.100.1 . tcp . 80 . 0 : 10.1.0.9 . 8080"]);
    let refused = "the kernel refused TCP 198.51.100.2:80 in table ip tweed-proxy";
    cluster.expect_log(refused, 1);
    let is_ready = |ready: bool| {
        let (code, body) = cluster.get("/readyz")?;
        ensure!(code == if ready { 200 } else { 503 } && body.contains(refused) != ready, "{body}");
        Ok(())
    };
    eventually(LONG, || is_ready(false)).unwrap();
    // What it refuses again and again is no change.
    let [changes, attempts] = ["tweed_proxy_changed_elements_total", ATTEMPTS];
    let number = |name| anyhow::Ok(cluster.metric(name)?.parse::<u64>()?);
    let before = [changes, attempts].map(|name| number(name).unwrap());
    eventually(LONG, || anyhow::Ok(number(attempts)? > before[1] + 1)).unwrap();
    assert_eq!(number(changes).unwrap(), before[0]);
    // The others do not wait for the next attempt.
    for number in 2..100 {
        cluster.set_endpoints("web", &[&format!("10.1.0.{number}")]);
        cluster.expect(&[&format!("10.96.0.1 . tcp . 80 . 0 : 10.1.0.{number} . 8080")]);
    }
    cluster.server.delete(SERVICES, "first");
    cluster.expect(&["198.51.100.2 . tcp . 80 . 0 : 10.1.0.9 . 8080"]);
    cluster.expect_log(READY, 2);
    eventually(LONG, || is_ready(true)).unwrap();
    let mut page = String::new();
    let is_read = || {
        page = cluster.get("/metrics")?.1;
        anyhow::Ok(())
    };
    eventually(LONG, is_read).unwrap();
    for line in
        ["tweed_proxy_ready 1", "tweed_proxy_frontends 3", "tweed_proxy_foreign_changes_total 1"]
    {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
}

/// As by a kernel without nftables for IPv6.
#[test]
fn a_family_that_is_refused_is_no_problem_until_a_service_needs_it() {
    let mut cluster = Cluster::without_proxy();
    // As long as this program runs, no other one changes the table.
    let own = || Command::new("nft").arg("-i").stdin(Stdio::piped()).spawn().unwrap();
    let mut owner = cluster.host.0.within(own).unwrap();
    let table = "add table ip6 tweed-proxy { flags owner; }";
    writeln!(owner.stdin.as_mut().unwrap(), "{table}").unwrap();
    cluster.expect(&["table ip6 tweed-proxy"]);
    cluster.start();
    cluster.expect_log(READY, 1);
    cluster.expect_log("no service needs them", 1);
    cluster.host.nft("flush chain ip tweed-proxy prerouting");
    cluster.expect(&["goto frontend"]);
    cluster.expect_log("no service needs them", 1);
    assert_eq!(cluster.get("/readyz").unwrap().0, 200);
    cluster.add_service("other", "fd96::2");
    cluster.expect_log("the kernel refused", 1);
    let is_ready = |ready: bool| anyhow::Ok((cluster.get("/readyz")?.0 == 200) == ready);
    eventually(LONG, || is_ready(false)).unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    cluster.expect(&["fd96::2 . tcp . 80"]);
    eventually(LONG, || is_ready(true)).unwrap();
}

#[test]
fn a_node_that_is_made_again_keeps_its_node_ports() {
    let cluster = Cluster::new();
    cluster.expect(&["172.16.0.1 . tcp . 30080 . 1"]);
    cluster.server.delete_node("here");
    cluster.expect_log("there is no Node", 1);
    cluster.server.add_node("here", &["10.1.0.0/24"]);
    cluster.add_service("other", "10.96.0.2");
    cluster.expect(&["10.96.0.2 . tcp . 80", "172.16.0.1 . tcp . 30080 . 1"]);
}

#[test]
fn a_restart_while_there_is_no_node_keeps_its_node_ports() {
    let mut cluster = Cluster::new();
    // A load balancer IP that is also an address of this host, before that of its Node.
    for address in ["10.0.0.1/32", "172.16.0.1/24"] {
        cluster.host.0.run("ip", &["address", "add", address, "dev", "lo"]).unwrap();
    }
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "10.0.0.1" }] } });
    cluster.server.patch(SERVICES, "web", &json!({ "status": status }));
    cluster.expect(&["172.16.0.1 . tcp . 30080 . 1", "10.0.0.1 . tcp . 80 . 1"]);
    cluster.server.delete_node("here");
    cluster.expect_log("there is no Node", 1);
    cluster.kill();
    cluster.start();
    cluster.add_service("other", "10.96.0.2");
    cluster.expect(&["10.96.0.2 . tcp . 80", "172.16.0.1 . tcp . 30080 . 1"]);
    cluster.expect_gone(&["10.0.0.1 . tcp . 30080"]);
    let (code, body) = cluster.get("/readyz").unwrap();
    assert!(code == 503 && body.contains("there is no Node here"), "{code}: {body}");
}

#[test]
fn a_service_with_thousands_of_endpoints_is_one_transaction() {
    let cluster = Cluster::new();
    let addresses: Vec<String> =
        (0..6000).map(|number| format!("10.2.{}.{}", number / 250, number % 250)).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    cluster.add_service("large", "10.96.0.3");
    cluster.add_slice("large", &addresses);
    cluster.expect(&["set count-6000", "10.96.0.3 . tcp . 80 . 5999 : 10.2.23.249 . 8080"]);
}
