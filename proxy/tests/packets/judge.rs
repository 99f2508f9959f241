//! kube-proxy as judge, only by `make judge-proxy`: the packets of its present tests, and random ones
//! that it gets in another network namespace, with the same random objects.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Debug;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdout};
use std::thread;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::host::{Host, Packet};
use crate::{NODE, check_recording, words};

/// How many random sets of objects there are, in both address families together.
const ROUNDS: u64 = 1000;

/// The rounds in one pair of namespaces: the list of all connections becomes longer with each packet.
const ROUNDS_PER_HOST: u64 = 25;

/// How many pairs of namespaces there are at once: a dropped packet is waited for.
const AT_ONCE: usize = 4;

/// How many packets are sent in each round.
const PACKETS: usize = 6;

/// How often a packet is sent until both endpoints of a service were chosen.
const ATTEMPTS: usize = 24;

/// The addresses of one family.
struct Addresses {
    family: &'static str,
    node: &'static str,
    pods: &'static str,
    services: &'static str,
    cluster_ip: &'static str,
    external_ip: &'static str,
    balancer_ip: &'static str,
    /// Of endpoints on this node, and on another one.
    endpoints: [&'static str; 2],
    /// Of a pod, and of two clients outside.
    clients: [&'static str; 3],
    /// With the second client, and with the pod.
    ranges: [&'static str; 2],
}

const V4: Addresses = Addresses {
    family: "IPv4",
    node: "192.168.0.2",
    pods: "10.0.0.0/8",
    services: "172.30.0.0/16",
    cluster_ip: "172.30.0.",
    external_ip: "198.51.100.",
    balancer_ip: "1.2.3.",
    endpoints: ["10.180.0.", "10.180.1."],
    clients: ["10.0.0.2", "203.0.113.2", "192.0.2.9"],
    ranges: ["203.0.113.0/24", "10.0.0.0/8"],
};

const V6: Addresses = Addresses {
    family: "IPv6",
    node: "2001:db8::1",
    pods: "fd00:10::/32",
    services: "fd00:96::/112",
    cluster_ip: "fd00:96::",
    external_ip: "2001:db8:99::",
    balancer_ip: "2001:db8:55::",
    endpoints: ["fd00:10:180::", "fd00:10:181::"],
    clients: ["fd00:10::2", "2600:5200::1", "2600:9999::1"],
    ranges: ["2600:5200::/32", "fd00:10::/32"],
};

/// The most services, and the most endpoints of each.
const SERVICES: u32 = 4;
const ENDPOINTS: u32 = 2;

#[test]
fn packets_go_where_present_tests_of_kube_proxy_want_them() {
    let recording = fs::read_to_string(env::var("RECORDING").unwrap()).unwrap();
    check_recording(&recording);
}

#[test]
fn packets_go_where_kube_proxy_sends_them_whatever_the_objects_are() {
    let first = (0..ROUNDS).step_by(ROUNDS_PER_HOST.try_into().unwrap());
    let verdicts: Vec<Verdict> = thread::scope(|scope| {
        let play = |worker: usize| {
            let first = first.clone().skip(worker).step_by(AT_ONCE);
            scope.spawn(|| first.map(rounds).collect::<Vec<_>>())
        };
        let workers: Vec<_> = (0..AT_ONCE).map(play).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let sent: usize = verdicts.iter().map(|verdict| verdict.sent).sum();
    let compared: usize = verdicts.iter().map(|verdict| verdict.compared).sum();
    let failed: Vec<String> = verdicts.into_iter().flat_map(|verdict| verdict.failed).collect();
    assert!(sent > 0 && compared > 0, "{sent} and {compared}");
    assert!(failed.is_empty(), "{} of {sent}:\n{}", failed.len(), failed.join("\n"));
}

/// What some rounds have shown.
#[derive(Default)]
struct Verdict {
    /// The packets.
    sent: usize,
    /// The addresses of SCTP.
    compared: usize,
    /// What differs.
    failed: Vec<String>,
}

/// The rounds of one pair of namespaces.
fn rounds(first: u64) -> Verdict {
    let addresses = if (first / ROUNDS_PER_HOST).is_multiple_of(2) { V4 } else { V6 };
    let (ours, theirs) = (addresses.host(), addresses.host());
    let (mut rival, mut verdict) = (Rival::start(&theirs, &addresses), Verdict::default());
    for round in first..first + ROUNDS_PER_HOST {
        let mut rng = StdRng::seed_from_u64(round);
        let objects = addresses.objects(&mut rng);
        // A packet must not belong to a connection of an earlier round.
        ours.forget_connections();
        theirs.forget_connections();
        addresses.apply(&ours, &objects);
        rival.program(&objects);
        let mut differ = |what: &str, our: &dyn Debug, their: &dyn Debug| {
            let objects = json!(objects);
            verdict
                .failed
                .push(format!("round {round}: {what}: {our:?}, not {their:?}: {objects}"));
        };
        let (our, their) = (addresses.ours_of_sctp(&ours), addresses.theirs_of_sctp(&theirs));
        if our != their {
            differ("SCTP", &our, &their);
        }
        for _ in 0..PACKETS {
            let packet = addresses.packet(&mut rng, &objects);
            let (our, their) = thread::scope(|scope| {
                let (our, their) = (scope.spawn(|| fates(&ours, packet)), fates(&theirs, packet));
                (our.join().unwrap(), their)
            });
            if our != their && !is_known(packet, &our, &their) {
                differ(&format!("{packet:?}"), &our, &their);
            }
        }
        verdict.sent += PACKETS;
        verdict.compared += our.len();
    }
    verdict
}

/// kube-proxy in the namespace of a host.
struct Rival {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Rival {
    fn start(host: &Host, addresses: &Addresses) -> Self {
        let Addresses { family, node, pods, services, .. } = addresses;
        let node_ports = format!("{node}/{}", if *family == "IPv4" { 32 } else { 128 });
        let words = [
            "-family",
            family,
            "-hostname-override",
            NODE,
            "-node-ip",
            node,
            "-cluster-cidr",
            pods,
            "-service-cidr",
            services,
            "-nodeport-addresses",
            &node_ports,
        ];
        let mut child = host.spawn(&env::var("KUBE_PROXY").unwrap(), &words);
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn program(&mut self, objects: &[Value]) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{}", json!(objects)).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(answer.trim().parse::<u64>().is_ok(), "kube-proxy has ended");
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

impl Addresses {
    fn host(&self) -> Host {
        let own = BTreeSet::from([ip(self.node)]);
        let endpoints = self.endpoints.iter().flat_map(|prefix| {
            (1..=SERVICES * 10 + ENDPOINTS).map(move |number| ip(&format!("{prefix}{number}")))
        });
        Host::new(&own, self.clients.iter().map(|client| ip(client)).chain(endpoints))
    }

    fn apply(&self, host: &Host, objects: &[Value]) {
        let node = json!({
            "kind": "Node", "metadata": { "name": NODE },
            "status": { "addresses": [{ "type": "InternalIP", "address": self.node }] },
        });
        let objects: Vec<String> = objects.iter().chain([&node]).map(ToString::to_string).collect();
        let words = words("primary", self.pods, self.services, false);
        host.run(env!("CARGO_BIN_EXE_tweed-proxy"), &words, &objects.join("\n"));
    }

    fn objects(&self, rng: &mut StdRng) -> Vec<Value> {
        let number = rng.random_range(1..=SERVICES);
        (1..=number).flat_map(|number| self.service(rng, number)).collect()
    }

    /// A service and its slices.
    fn service(&self, rng: &mut StdRng, number: u32) -> Vec<Value> {
        let mut some = |probability| rng.random_bool(probability);
        let (has_node_port, is_balanced) = (some(0.5), some(0.4));
        let is_outside = has_node_port || is_balanced;
        let policy = |is_local| if is_local { "Local" } else { "Cluster" };
        let kind = match (is_balanced, has_node_port) {
            (true, _) => "LoadBalancer",
            (false, true) => "NodePort",
            (false, false) => "ClusterIP",
        };
        let port = |name: &str, protocol: &str, port: u16| {
            let node_port = if has_node_port { 30_000 + number } else { 0 };
            json!({ "name": name, "protocol": protocol, "port": port, "nodePort": node_port })
        };
        let external: Vec<String> =
            some(0.3).then(|| format!("{}{number}", self.external_ip)).into_iter().collect();
        let mut spec = json!({
            "type": kind,
            "clusterIP": format!("{}{number}", self.cluster_ip),
            "clusterIPs": [format!("{}{number}", self.cluster_ip)],
            "externalIPs": external,
            "ports": [port("web", "TCP", 80), port("dns", "UDP", 53), port("sctp", "SCTP", 9)],
            "internalTrafficPolicy": policy(some(0.3)),
        });
        if is_outside {
            spec["externalTrafficPolicy"] = policy(some(0.4)).into();
        }
        if is_balanced && some(0.4) {
            spec["loadBalancerSourceRanges"] = json!([self.ranges[usize::from(some(0.5))]]);
        }
        let ingress = is_balanced.then(|| json!({ "ip": format!("{}{number}", self.balancer_ip) }));
        let ingress: Vec<Value> = ingress.into_iter().collect();
        let service = json!({
            "kind": "Service",
            "metadata": { "namespace": "default", "name": format!("s{number}") },
            "spec": spec,
            "status": { "loadBalancer": { "ingress": ingress } },
        });
        let slices = self.slices(rng, number);
        [service].into_iter().chain(slices).collect()
    }

    /// One slice for each endpoint.
    fn slices(&self, rng: &mut StdRng, number: u32) -> Vec<Value> {
        let endpoints = rng.random_range(0..=ENDPOINTS);
        let slice = |index: u32| {
            let is_elsewhere = rng.random_bool(0.5);
            let prefix = self.endpoints[usize::from(is_elsewhere)];
            let is_ready = rng.random_bool(0.7);
            let conditions = json!({
                "ready": is_ready,
                "serving": is_ready || rng.random_bool(0.5),
                "terminating": !is_ready && rng.random_bool(0.5),
            });
            json!({
                "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "default", "name": format!("s{number}-{index}"),
                    "labels": { "kubernetes.io/service-name": format!("s{number}") },
                },
                "addressType": self.family,
                "ports": [
                    { "name": "web", "protocol": "TCP", "port": 8080 },
                    { "name": "dns", "protocol": "UDP", "port": 5353 },
                    { "name": "sctp", "protocol": "SCTP", "port": 99 },
                ],
                "endpoints": [{
                    "addresses": [format!("{prefix}{}", number * 10 + index)],
                    "nodeName": if is_elsewhere { "other-node" } else { NODE },
                    "conditions": conditions,
                }],
            })
        };
        (1..=endpoints).map(slice).collect()
    }

    /// The fates of all addresses of SCTP by the table of tweed-proxy.
    fn ours_of_sctp(&self, host: &Host) -> Fates {
        let table = host.table(self.keyword(), "tweed-proxy");
        let mut fates = Fates::new();
        for (set, fate) in [("refused", "REJECT"), ("unanswered", "DROP")] {
            for (frontend, _) in elements(&table, set) {
                fates.entry(frontend).or_default().insert(fate.to_owned());
            }
        }
        for map in ["endpoints", "local-endpoints"] {
            for (slot, endpoint) in elements(&table, map) {
                let (frontend, _) = slot.rsplit_once(" . ").unwrap();
                fates.entry(frontend.to_owned()).or_default().insert(endpoint);
            }
        }
        fates
    }

    /// And by the table of kube-proxy.
    fn theirs_of_sctp(&self, host: &Host) -> Fates {
        let table = host.table(self.keyword(), "kube-proxy");
        let mut fates = Fates::new();
        let maps = ["service-ips", "no-endpoint-services"];
        let of_services = maps.into_iter().flat_map(|map| elements(&table, map));
        let maps = ["service-nodeports", "no-endpoint-nodeports"];
        let of_node = maps.into_iter().flat_map(|map| elements(&table, map));
        let of_node = of_node.map(|(port, verdict)| (format!("{} . {port}", self.node), verdict));
        for (frontend, verdict) in of_services.chain(of_node) {
            let found = match verdict.as_str() {
                "drop" => BTreeSet::from(["DROP".to_owned()]),
                "goto reject-chain" => BTreeSet::from(["REJECT".to_owned()]),
                _ => endpoints(&table, verdict.strip_prefix("goto ").unwrap()),
            };
            fates.entry(frontend).or_default().extend(found);
        }
        fates.retain(|_, fates| !fates.is_empty());
        fates
    }

    fn keyword(&self) -> &'static str {
        if self.family == "IPv4" { "ip" } else { "ip6" }
    }

    /// To a service, from anywhere.
    fn packet(&self, rng: &mut StdRng, objects: &[Value]) -> Packet {
        let services: Vec<&Value> = objects.iter().filter(|it| it["kind"] == "Service").collect();
        let service = services.choose(rng).unwrap();
        let is_udp = rng.random_bool(0.4);
        let port = &service["spec"]["ports"][usize::from(is_udp)];
        let number = |port: &Value| u16::try_from(port.as_u64().unwrap()).unwrap();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut ways = vec![
            (text(&service["spec"]["clusterIP"]), number(&port["port"])),
            // Of no service.
            (text(&service["spec"]["clusterIP"]), 81),
            (text(&service["spec"]["externalIPs"][0]), number(&port["port"])),
            (text(&service["status"]["loadBalancer"]["ingress"][0]["ip"]), number(&port["port"])),
        ];
        if number(&port["nodePort"]) > 0 {
            ways.push((Some(self.node.to_owned()), number(&port["nodePort"])));
        }
        ways.retain(|(address, _)| address.is_some());
        let (address, port) = ways.choose(rng).cloned().unwrap();
        // An endpoint on this node may reach itself.
        let own = objects.iter().filter_map(|it| it["endpoints"][0]["addresses"][0].as_str());
        let own = own.filter(|address| address.starts_with(self.endpoints[0]));
        let sources: Vec<&str> = self.clients.into_iter().chain([self.node]).chain(own).collect();
        Packet {
            source: ip(sources.choose(rng).unwrap()),
            is_udp,
            to: SocketAddr::new(ip(&address.unwrap()), port),
        }
    }
}

/// Endpoints, `REJECT` or `DROP`, by address, protocol and port. By the rules, because this kernel
/// sends no packets of SCTP.
type Fates = BTreeMap<String, BTreeSet<String>>;

/// The elements of a set or map that are about SCTP, with their values.
fn elements(table: &str, name: &str) -> Vec<(String, String)> {
    let words = block(table, &[&format!("set {name} {{"), &format!("map {name} {{")]);
    let Some((_, all)) = words.split_once("elements = {") else { return Vec::new() };
    let (all, _) = all.split_once('}').unwrap();
    let of_sctp = all.split(',').map(str::trim).filter(|element| element.contains("sctp . "));
    let parse = |element: &str| {
        let (key, value) = element.rsplit_once(" : ").unwrap_or((element, ""));
        let (key, _) = key.split_once(" comment ").unwrap_or((key, ""));
        (key.to_owned(), value.to_owned())
    };
    of_sctp.map(parse).collect()
}

/// The endpoints that a chain of kube-proxy, or one that it leads to, translates SCTP to.
fn endpoints(table: &str, chain: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in block(table, &[&format!("chain {chain} {{")]).lines() {
        if let Some((_, next)) = line.split_once("goto ") {
            found.extend(endpoints(table, next.split(' ').next().unwrap()));
        }
        if let Some((_, map)) = line.split_once(" map {") {
            let slots = map.trim_end_matches([' ', '}']).split(',');
            found.extend(slots.map(|slot| slot.rsplit_once(" : ").unwrap().1.trim().to_owned()));
        }
    }
    found
}

/// What stands between the first of these heads and its end.
fn block<'a>(table: &'a str, heads: &[&str]) -> &'a str {
    let begin = heads.iter().find_map(|head| table.find(&format!("\t{head}")));
    let rest = begin.map(|begin| &table[begin..]).unwrap_or_default();
    rest.split("\n\t}").next().unwrap_or_default()
}

/// Whether they differ for a reason that `docs/judges.md` has: kube-proxy refuses a connection of the
/// node to its own port of a service without endpoints when it comes in, and not when it goes out.
fn is_known(
    packet: Packet,
    our: &BTreeSet<(String, bool)>,
    their: &BTreeSet<(String, bool)>,
) -> bool {
    let only = |fate: &str| BTreeSet::from([(fate.to_owned(), false)]);
    let is_own = packet.to.ip() == packet.source && packet.to.port() >= 30_000;
    is_own && *our == only("REJECT") && *their == only("")
}

/// What becomes of many such packets.
fn fates(host: &Host, packet: Packet) -> BTreeSet<(String, bool)> {
    let mut seen = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        let fate = host.fate(packet);
        let is_translated = fate.0.contains(':');
        seen.insert(fate);
        if !is_translated || seen.len() > 1 {
            break;
        }
    }
    seen
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
