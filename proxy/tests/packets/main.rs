//! Scenarios of Services and `EndpointSlices`, with the fate of packets that kube-proxy's own tests
//! expect. Each packet is sent for real, and the kernel's connection tracking shows what became of it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::disallowed_methods, reason = "real packets take real time")]

mod host;
#[cfg(feature = "judge")]
mod judge;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;
use tweed_netlink::{Family, Message, conntrack};

use host::{ANSWER, Host, PATIENCE, Packet};

/// One line of the recording.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scenario {
    test: String,
    #[serde(rename = "nodeIPs")]
    node_ips: Vec<IpAddr>,
    /// Those that have node ports.
    node_port_addresses: Vec<IpAddr>,
    /// The networks of pods; empty if packets from pods are as all others.
    cluster_cidr: String,
    masquerade_all: bool,
    #[serde(rename = "serviceCIDRs")]
    service_cidrs: String,
    objects: Vec<Value>,
    packets: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
struct Expected {
    name: String,
    source: IpAddr,
    protocol: String,
    destination: IpAddr,
    port: u16,
    /// `REJECT`, `DROP`, nothing if the packet goes where it was sent to, or the endpoints that it may
    /// be sent to.
    output: String,
    masquerade: bool,
}

/// How often a packet is sent until each endpoint was chosen once.
const ATTEMPTS: usize = 100;

/// How many packets the recording has, without those of SCTP.
const RECORDED: usize = 206;

/// The name of the node.
const NODE: &str = "test-node";

#[test]
fn packets_go_where_kube_proxy_sends_them() {
    check_recording(include_str!("recording.jsonl"));
}

fn check_recording(recording: &str) {
    let mut failed = Vec::new();
    let mut sent = 0;
    for line in recording.lines() {
        let scenario: Scenario = serde_json::from_str(line).unwrap();
        // A load balancer may give the node its address: then connections come from it, too.
        let is_balanced = |one: &&Expected| {
            one.source == one.destination && !scenario.node_ips.contains(&one.source)
        };
        let (balanced, others): (Vec<_>, Vec<_>) = scenario.packets.iter().partition(is_balanced);
        for packets in [others, balanced] {
            let added = packets.iter().copied().filter(is_balanced).map(|one| one.source);
            let own: BTreeSet<IpAddr> = added.chain(scenario.node_ips.iter().copied()).collect();
            let host = Host::new(&own, packets.iter().map(|one| one.source));
            apply(&host, &scenario);
            // This kernel has no SCTP.
            for packet in packets.into_iter().filter(|one| one.protocol != "SCTP") {
                sent += 1;
                let to = SocketAddr::from((packet.destination, packet.port));
                let listens = packet.output.is_empty() && own.contains(&packet.destination);
                let _listener = listens.then(|| host.listen(to));
                if let Err(fate) = check(&host, packet) {
                    failed.push(format!("{}: {}: {fate}", scenario.test, packet.name));
                }
            }
        }
    }
    assert!(sent >= RECORDED, "{sent} packets");
    assert!(failed.is_empty(), "{} of {sent}:\n{}", failed.len(), failed.join("\n"));
}

fn apply(host: &Host, scenario: &Scenario) {
    let node_ips = scenario.node_ips.iter();
    let internal: Vec<Value> = node_ips
        .map(|address| serde_json::json!({"type": "InternalIP", "address": address}))
        .collect();
    let node = serde_json::json!({
        "kind": "Node", "metadata": {"name": NODE}, "status": {"addresses": internal}
    });
    let objects: Vec<String> =
        scenario.objects.iter().chain([&node]).map(ToString::to_string).collect();
    let of_host =
        |address: &IpAddr| format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let addresses: Vec<String> = scenario.node_port_addresses.iter().map(of_host).collect();
    let Scenario { cluster_cidr, service_cidrs, masquerade_all, .. } = scenario;
    let addresses = addresses.join(",");
    let words = words(&addresses, cluster_cidr, service_cidrs, *masquerade_all);
    host.run(env!("CARGO_BIN_EXE_tweed-proxy"), &words, &objects.join("\n"));
}

/// The command line of a program that reads objects.
fn words<'a>(
    node_ports: &'a str,
    pods: &'a str,
    services: &'a str,
    masquerades_all: bool,
) -> Vec<&'a str> {
    let mut words = vec!["apply", "--objects", "-", "--hostname-override", NODE];
    words.extend(["--nodeport-addresses", node_ports]);
    if !pods.is_empty() {
        words.extend(["--cluster-cidr", pods]);
    }
    if !services.is_empty() {
        words.extend(["--service-cidr", services]);
    }
    if masquerades_all {
        words.push("--masquerade-all");
    }
    words
}

/// What became of the packet, if it is something else.
fn check(host: &Host, expected: &Expected) -> Result<(), String> {
    let endpoints: BTreeSet<&str> = expected.output.split(", ").collect();
    let packet = Packet {
        source: expected.source,
        is_udp: expected.protocol == "UDP",
        to: SocketAddr::from((expected.destination, expected.port)),
    };
    let mut seen = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        // What is not to be dropped may come late on a busy machine.
        let limit = if endpoints.contains("DROP") { ANSWER } else { PATIENCE };
        let (output, masquerade) = host.fate_within(limit, packet);
        let is_expected = endpoints.contains(output.as_str());
        let is_sent = !matches!(output.as_str(), "REJECT" | "DROP");
        if !is_expected || is_sent && masquerade != expected.masquerade {
            let Expected { output: wanted, masquerade: wants, .. } = expected;
            return Err(format!("{output:?} {masquerade}, not {wanted:?} {wants}"));
        }
        seen.insert(output);
        if seen.len() == endpoints.len() {
            return Ok(());
        }
    }
    Err(format!("only {seen:?} of {:?}", expected.output))
}

/// UDP goes on with the endpoint that the first packet of a connection went to.
#[test]
fn connections_of_udp_leave_an_endpoint_that_is_gone() {
    for (to, service, endpoints, zone) in [
        ("10.96.0.1:53", "10.96.0.1", ["10.1.1.2", "10.1.1.3"], 0),
        ("[fd96::1]:53", "fd96::1", ["fd01::2", "fd01::3"], 0),
        ("10.96.0.1:53", "10.96.0.1", ["10.1.1.2", "10.1.1.3"], 7),
    ] {
        let to: SocketAddr = to.parse().unwrap();
        let host = Host::new(&BTreeSet::new(), [client(to)]);
        // With Open vSwitch, and with other rules, connections are of a zone.
        let zones = "add table inet zoned; \
             add chain inet zoned early { type filter hook prerouting priority -300; }; \
             add rule inet zoned early ct zone set ";
        host.run("nft", &[&format!("{zones}{zone}")], "");
        let program = |objects: &[Value]| {
            let objects: Vec<String> = objects.iter().map(ToString::to_string).collect();
            let words = ["apply", "--objects", "-", "--hostname-override", "test-node"];
            host.run(env!("CARGO_BIN_EXE_tweed-proxy"), &words, &objects.join("\n"));
        };
        let service = of_udp(service);
        let with = |endpoints: &[&str]| program(&[service.clone(), slice_of_udp(endpoints)]);
        let connection = host.connect(Packet { source: client(to), is_udp: true, to });
        let answering =
            |endpoint: &str| SocketAddr::from((endpoint.parse::<IpAddr>().unwrap(), 5353));
        program(&[of_udp("10.96.0.99")]);
        assert_eq!(host.answering(&connection), to);
        with(&endpoints[..1]);
        assert_eq!(host.answering(&connection), answering(endpoints[0]));
        with(&endpoints);
        assert_eq!(host.answering(&connection), answering(endpoints[0]));
        with(&endpoints[1..]);
        assert_eq!(host.answering(&connection), answering(endpoints[1]));
    }
}

/// The other one, whose rules come after those of tweed-proxy, has session affinity.
#[test]
fn packets_to_a_service_with_session_affinity_are_left_to_another_proxy() {
    let to: SocketAddr = "10.96.0.1:53".parse().unwrap();
    let host = Host::new(&BTreeSet::new(), [client(to)]);
    let other = "add table ip other; \
         add chain ip other nat { type nat hook prerouting priority -100; }; \
         add rule ip other nat ip daddr 10.96.0.1 udp dport 53 dnat to 10.1.1.9:5353";
    host.run("nft", &[other], "");
    let mut service = of_udp("10.96.0.1");
    let mut program = |affinity: &str, flags: &[&str]| {
        service["spec"]["sessionAffinity"] = affinity.into();
        let objects = format!("{service}\n{}", slice_of_udp(&["10.1.1.2"]));
        let words = ["apply", "--objects", "-", "--hostname-override", "test-node"];
        let words = [&words[..], &["--service-cidr", "10.96.0.0/12"], flags].concat();
        host.run(env!("CARGO_BIN_EXE_tweed-proxy"), &words, &objects);
        let connection = host.connect(Packet { source: client(to), is_udp: true, to });
        host.answering(&connection).to_string()
    };
    assert_eq!(program("None", &[]), "10.1.1.2:5353");
    assert_eq!(program("ClientIP", &[]), "10.1.1.9:5353");
    assert_eq!(program("ClientIP", &["--ignore-session-affinity"]), "10.1.1.2:5353");
}

/// A node has many more of TCP than of UDP.
#[test]
fn the_kernel_lists_only_connections_of_a_protocol_that_is_asked_for() {
    let to: SocketAddr = "10.1.1.2:53".parse().unwrap();
    let host = Host::new(&BTreeSet::new(), [client(to)]);
    host.track_connections();
    for is_udp in [true, false] {
        host.fate_within(PATIENCE, Packet { source: client(to), is_udp, to });
    }
    let protocols = |question: Message| -> BTreeSet<u8> {
        host.tracked(&question).iter().map(|one| one.protocol).collect()
    };
    assert_eq!(protocols(conntrack::list_all(Family::V4)), [6, 17].into());
    assert_eq!(protocols(conntrack::list_protocol(Family::V4, 17)), [17].into());
    assert_eq!(protocols(conntrack::list(Family::V4, 17, 53)), [17].into());
    assert_eq!(protocols(conntrack::list(Family::V4, 17, 54)), [].into());
}

/// It keeps its connections while it still serves, also if the program restarts meanwhile.
#[test]
fn connections_of_udp_stay_with_an_endpoint_that_ends() {
    let to: SocketAddr = "10.96.0.1:53".parse().unwrap();
    let host = Host::new(&BTreeSet::new(), [client(to)]);
    let program = |endpoints: &[Value]| {
        let mut slice = slice_of_udp(&["10.1.1.2"]);
        slice["endpoints"] = endpoints.iter().cloned().collect();
        let objects = format!("{}\n{slice}", of_udp("10.96.0.1"));
        let words = ["apply", "--objects", "-", "--hostname-override", "test-node"];
        host.run(env!("CARGO_BIN_EXE_tweed-proxy"), &words, &objects);
    };
    let ready = |address: &str| serde_json::json!({"addresses": [address]});
    let ending = |address: &str, serving: bool| {
        let conditions =
            serde_json::json!({"ready": false, "serving": serving, "terminating": true});
        serde_json::json!({"addresses": [address], "conditions": conditions})
    };
    let answering = |endpoint: &str| format!("{endpoint}:5353").parse::<SocketAddr>().unwrap();
    program(&[ready("10.1.1.2")]);
    let connection = host.connect(Packet { source: client(to), is_udp: true, to });
    assert_eq!(host.answering(&connection), answering("10.1.1.2"));
    program(&[ending("10.1.1.2", true), ready("10.1.1.3")]);
    assert_eq!(host.answering(&connection), answering("10.1.1.2"));
    program(&[ending("10.1.1.2", false), ready("10.1.1.3")]);
    assert_eq!(host.answering(&connection), answering("10.1.1.3"));
    // Nothing shows any more which endpoints there were.
    let table = "delete table ip tweed-proxy; add table ip theirs; \
         add chain ip theirs nat { type nat hook prerouting priority 0; }";
    host.run("nft", &[table], "");
    assert_eq!(host.answering(&connection), answering("10.1.1.3"));
    program(&[ready("10.1.1.4")]);
    assert_eq!(host.answering(&connection), answering("10.1.1.4"));
}

fn client(to: SocketAddr) -> IpAddr {
    if to.is_ipv4() { IpAddr::from([10, 0, 0, 2]) } else { "fd00:10::2".parse().unwrap() }
}

fn of_udp(address: &str) -> Value {
    serde_json::json!({
        "kind": "Service",
        "metadata": {"namespace": "kube-system", "name": "dns"},
        "spec": {"clusterIP": address, "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]},
    })
}

fn slice_of_udp(endpoints: &[&str]) -> Value {
    let is_v4 = endpoints.iter().all(|endpoint| endpoint.contains('.'));
    let all: Vec<Value> =
        endpoints.iter().map(|endpoint| serde_json::json!({"addresses": [endpoint]})).collect();
    serde_json::json!({
        "kind": "EndpointSlice",
        "addressType": if is_v4 { "IPv4" } else { "IPv6" },
        "metadata": {
            "namespace": "kube-system", "name": "dns-1",
            "labels": {"kubernetes.io/service-name": "dns"}
        },
        "ports": [{"name": "dns", "port": 5353, "protocol": "UDP"}],
        "endpoints": all,
    })
}
