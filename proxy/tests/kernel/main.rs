//! The tables in a real kernel, as `nft(8)` shows and changes them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
#![allow(clippy::disallowed_methods, reason = "faults come at real times")]

mod random;
mod watch;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Output;

use tweed_lab::Namespace;
use tweed_netlink::nftables::generation;
use tweed_netlink::{Protocol, Socket};
use tweed_proxy::kernel::{Damage, Kernel};
use tweed_proxy::plan::ruleset::Policy;

const OBJECTS: &str = r#"
{"kind": "Node", "metadata": {"name": "here"}, "status": {"addresses": [
    {"type": "InternalIP", "address": "172.16.0.1"}, {"type": "InternalIP", "address": "fd00::1"}]}}
{"kind": "Service", "metadata": {"namespace": "default", "name": "web"}, "spec": {
    "clusterIPs": ["10.96.0.1", "fd96::1"], "ports": [{"port": 80, "nodePort": 30080}],
    "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.7/25", "192.0.2.0/24"]},
    "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}}
{"kind": "Service", "metadata": {"namespace": "default", "name": "empty"}, "spec": {
    "clusterIP": "10.96.0.2", "ports": [{"port": 53, "protocol": "UDP"}]}}
{"kind": "EndpointSlice", "addressType": "IPv4", "metadata": {"namespace": "default", "name": "web-1",
    "labels": {"kubernetes.io/service-name": "web"}}, "ports": [{"name": "", "port": 8080}],
    "endpoints": [{"addresses": ["10.1.0.2"], "nodeName": "here"}, {"addresses": ["10.1.1.2"]}]}
{"kind": "EndpointSlice", "addressType": "IPv6", "metadata": {"namespace": "default", "name": "web-2",
    "labels": {"kubernetes.io/service-name": "web"}}, "ports": [{"name": "", "port": 8080}],
    "endpoints": [{"addresses": ["fd01::2"], "nodeName": "here"}]}
"#;

/// A network namespace that ends with the test.
struct Host(Namespace);

impl Host {
    fn new(name: &str) -> Self {
        Self(Namespace::create(name).unwrap())
    }

    fn call(&self, words: &[&str], input: &str) -> Output {
        self.0.output_for(env!("CARGO_BIN_EXE_tweed-proxy"), words, input).unwrap()
    }

    /// What `apply` prints with `options`.
    #[track_caller]
    fn apply(&self, objects: &str, options: &[&str]) -> String {
        let words = ["apply", "--objects", "-", "--hostname-override", "here"];
        let output = self.call(&[&words, options].concat(), objects);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn nft(&self, words: &str) -> String {
        self.0.run("nft", &[words]).unwrap()
    }

    fn listed(&self) -> Vec<String> {
        self.listed_by("nft")
    }

    /// The lines that a program `nft` lists, without the order of elements.
    fn listed_by(&self, nft: &str) -> Vec<String> {
        let text = self.0.run(nft, &["list ruleset"]).unwrap().replace('\t', " ");
        let mut lines: Vec<String> =
            text.lines().map(|line| line.trim_matches([' ', ',']).to_owned()).collect();
        lines.sort();
        lines.iter().map(|line| line.replace("elements = { ", "").replace(" }", "")).collect()
    }

    /// Changes with each change of any table.
    fn generation(&self) -> u32 {
        let read = || generation(&mut Socket::open(Protocol::Netfilter).unwrap()).unwrap();
        self.0.within(read).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.delete();
    }
}

#[test]
fn applying_the_same_objects_again_changes_nothing() {
    let options = ["--cluster-cidr", "10.1.0.0/16", "--service-cidr", "10.96.0.0/12"];
    // Without the policy, a chain has no rules.
    for (name, objects) in [("local", OBJECTS), ("cluster", &OBJECTS.replace("Local", "Cluster"))] {
        let host = Host::new(&format!("proxy-again-{name}"));
        host.apply(objects, &options);
        let (generation, listed) = (host.generation(), host.listed());
        assert_eq!(host.apply(objects, &[&options[..], &["--dry-run"]].concat()), "");
        host.apply(objects, &options);
        assert_eq!(host.generation(), generation);
        assert_eq!(host.listed(), listed);
    }
}

#[test]
fn what_nft_lists_can_be_loaded() {
    check_listing("proxy-listing", "nft");
}

#[cfg(feature = "judge")]
#[test]
fn what_the_newest_nft_lists_can_be_loaded() {
    check_listing("proxy-listing-newest", &std::env::var("NEWEST_NFT").unwrap());
}

fn check_listing(host: &str, nft: &str) {
    let host = Host::new(host);
    host.apply(OBJECTS, &["--cluster-cidr", "10.1.0.0/16"]);
    let listed = host.listed_by(nft);
    host.0.reload_rules(nft).unwrap();
    // nft 1.0.6 crashes at sets that nft 1.1.7 made: only the same one can list them.
    assert_eq!(host.listed_by(nft), listed);
}

#[test]
fn what_other_programs_change_is_repaired_and_theirs_stays() {
    let host = Host::new("proxy-repair");
    host.nft("add table ip theirs; add chain ip theirs input");
    host.apply(OBJECTS, &[]);
    let listed = host.listed();
    for damage in [
        "delete table ip tweed-proxy",
        "delete table ip6 tweed-proxy",
        "flush set ip tweed-proxy frontends",
        "flush map ip tweed-proxy endpoints",
        "flush set ip tweed-proxy clients",
        "flush chain ip6 tweed-proxy frontend",
        "flush chain ip tweed-proxy prerouting",
        "insert rule ip tweed-proxy untranslated accept",
        "add element ip tweed-proxy refused { 10.96.0.1 . tcp . 80 }",
        "add element ip tweed-proxy count-2 { 10.96.0.2 . udp . 53 }",
        "add element ip tweed-proxy endpoints { 10.96.0.1 . tcp . 80 . 7 : 10.9.9.9 . 9 }",
        "delete element ip tweed-proxy endpoints { 10.96.0.1 . tcp . 80 . 0 }; \
         add element ip tweed-proxy endpoints { 10.96.0.1 . tcp . 80 . 0 : 10.9.9.9 . 9 }",
        "add element ip tweed-proxy hairpins { 10.9.9.9 . 10.9.9.9 . tcp . 80 }",
        // Elements of a form that the proxy does not write.
        "add element ip tweed-proxy frontends { 10.96.0.1 . icmp . 80 }",
        "add element ip tweed-proxy endpoints { 10.96.0.1 . tcp . 80 . 100000 : 10.9.9.9 . 9 }",
        "flush set ip tweed-proxy clients; \
         add element ip tweed-proxy clients { 198.51.100.1 . tcp . 80 . 192.0.2.1-192.0.2.9 }",
        // What no change of the table repairs.
        "add table ip tweed-proxy { flags dormant; }",
        "add chain ip tweed-proxy prerouting { policy drop; }",
        "flush chain ip tweed-proxy prerouting; delete chain ip tweed-proxy prerouting; \
         add chain ip tweed-proxy prerouting { type nat hook input priority 0; }",
        "add chain ip tweed-proxy more { type filter hook output priority 0; }; \
         add rule ip tweed-proxy more drop",
        "delete table ip tweed-proxy; add table ip tweed-proxy; \
         add set ip tweed-proxy frontends { type inet_service; elements = { 80 }; }",
    ] {
        host.nft(damage);
        assert_ne!(host.listed(), listed, "{damage}");
        assert_ne!(host.apply(OBJECTS, &["--dry-run"]), "", "{damage}");
        host.apply(OBJECTS, &[]);
        assert_eq!(host.listed(), listed, "{damage}");
    }
}

/// What the kernel does not report may be a change by another program, or not.
#[test]
fn lost_reports_are_no_change_by_another_program() {
    let host = Host::new("proxy-lost");
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut kernel = Kernel::open(Policy::default()).unwrap();
            kernel.listen(1).unwrap();
            for number in 0..100 {
                host.nft(&format!("add table ip theirs-{number}"));
            }
            assert_eq!(kernel.damaged().await.unwrap(), Damage::LostReports);
            host.nft("add table ip tweed-proxy");
            assert_eq!(kernel.damaged().await.unwrap(), Damage::Foreign);
        });
    };
    host.0.within(run).unwrap();
}

#[test]
fn cleanup_removes_both_tables_and_nothing_else() {
    let host = Host::new("proxy-cleanup");
    host.nft("add table ip theirs; add chain ip theirs input");
    let listed = host.listed();
    host.apply(OBJECTS, &[]);
    assert_ne!(host.listed(), listed);
    assert!(host.call(&["cleanup"], "").status.success());
    assert_eq!(host.listed(), listed);
    assert!(host.call(&["cleanup"], "").status.success(), "with nothing to remove");
}

/// Another user would keep the program from starting.
#[test]
fn only_root_is_able_to_lock_the_tables() {
    let host = Host::new("proxy-lock");
    host.apply(OBJECTS, &[]);
    let inode = host.0.within(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    let lock = fs::metadata(format!("/run/tweed-proxy-{inode}.lock")).unwrap();
    assert_eq!((lock.mode() & 0o777, lock.uid()), (0o600, 0));
}

#[test]
fn what_is_programmed_stays_if_objects_are_missing() {
    let host = Host::new("proxy-missing");
    host.apply(OBJECTS, &[]);
    let listed = host.listed();
    let (node, others) = OBJECTS.trim().split_once("]}}\n").unwrap();
    let nodes = format!(r#"{{"kind": "NodeList", "items": [{node}]}}}}]}}"#);
    let services = r#"{"kind": "ServiceList", "items": [{"metadata": {"name": "web"}, "spec": {
        "clusterIP": "10.96.0.1", "ports": [{"port": 80, "nodePort": 30080}]}}]}"#;
    let unused = "no Service, EndpointSlice or Node";
    for (objects, reason) in [
        ("", unused),
        (r#"{"kind": "List", "items": []}"#, unused),
        (r#"{"kind": "List", "items": null}"#, unused),
        (r#"{"kind": "Status", "status": "Failure"}"#, unused),
        (r#"{"items": []}"#, "not an object of Kubernetes"),
        (others, "there is no Node here with an internal address"),
        (services, "there is no Node here with an internal address"),
        (&OBJECTS.replace("InternalIP", "Hostname"), "there is no Node here"),
    ] {
        let words = ["apply", "--objects", "-", "--hostname-override", "here"];
        let output = host.call(&words, objects);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(reason), "{objects}: {stderr}");
        assert_eq!(host.listed(), listed, "{objects}");
    }
    // What the API server itself lists.
    host.apply(&format!("{nodes}{others}"), &[]);
    assert_eq!(host.listed(), listed);
    host.apply(&format!("{nodes}{services}"), &[]);
    assert!(host.nft("list set ip tweed-proxy refused").contains("172.16.0.1 . tcp . 30080"));
    // Without node ports at the addresses of the Node, it is not needed.
    host.apply(others, &["--nodeport-addresses", "172.16.0.0/16"]);
}

#[test]
fn a_service_without_endpoints_is_refused_and_leaves_nothing_else_behind() {
    let host = Host::new("proxy-gone");
    let slices = OBJECTS.find(r#"{"kind": "EndpointSlice""#).unwrap();
    host.apply(OBJECTS, &[]);
    host.apply(&OBJECTS[..slices], &[]);
    let elements = |set: &str| {
        let listed = host.nft(&format!("list set ip tweed-proxy {set}"));
        listed.matches(" . tcp . ").count() + listed.matches(" . udp . ").count()
    };
    // Two services by their cluster IPs, and one by two more addresses.
    assert_eq!(elements("refused"), 4);
    for set in ["frontends", "external", "local-only", "unanswered", "count-2", "hairpins"] {
        assert_eq!(elements(set), 0, "{set}");
    }
    for map in ["endpoints", "local-endpoints"] {
        let listed = host.nft(&format!("list map ip tweed-proxy {map}"));
        assert!(!listed.contains("elements"), "{listed}");
    }
}
