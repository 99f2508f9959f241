//! Commands that read or change a real kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::expect;
use serde_json::{Value, json};
use tweed::daemon::checkpoint;

use crate::{Output, tweedctl};

/// A network namespace with the entries that a daemon leaves, and an entry of another program.
fn leave_behind(folder: &Path) -> PathBuf {
    for line in [
        "link add eth0 type veth peer name eth0-peer",
        "link set eth0-peer up",
        "addr add 172.16.0.5/24 dev eth0",
        "link set eth0 up",
        "link add flannel.1 address 0a:00:00:00:00:05 mtu 1450 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning",
        "link set flannel.1 up",
        "addr add 10.244.1.0/32 dev flannel.1",
        "neigh add 10.244.3.0 lladdr 0a:00:00:00:00:09 nud permanent dev flannel.1",
        "route add 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink proto 241",
        "route add 10.244.4.0/24 via 172.16.0.99 dev eth0",
        "route add 10.244.77.0/24 via 172.16.0.1 dev eth0 proto static",
    ] {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
    }
    let subnet_file = folder.join("subnet.env");
    std::fs::write(&subnet_file, "FLANNEL_MTU=1450\n").unwrap();
    checkpoint::save(&folder.join("subnet.state.json"), &inputs()).unwrap();
    subnet_file
}

fn inputs() -> Value {
    let lease = |subnet: &str, public_ip: &str, backend: &str, mac: &str| {
        json!({
            "id": subnet.replace('/', "-"), "created": 1, "grant": 1,
            "endpoints": [{
                "subnet": subnet, "public_ip": public_ip, "backend": backend,
                "vtep": { "vni": 1, "mac": mac },
            }],
        })
    };
    let config = std::fs::read("config/networks/mixed.json").unwrap();
    let address = "172.16.0.5";
    json!({
        "local": {
            "config": tweed::model::config::NetworkConfig::parse(&config).unwrap(),
            "node": {
                "interface": "eth0", "mtu": 1500, "layer2": true, "on_link": ["172.16.0.0/24"],
                "uplinks": [{ "address": address, "public_ip": address, "source": address }],
            },
            "macs": { "v4": "0a:00:00:00:00:05" },
            "own": lease("10.244.1.0/24", address, "vxlan", "0a:00:00:00:00:05"),
            "strict": [],
        },
        "leases": [
            lease("10.244.3.0/24", "172.17.0.9", "vxlan", "0a:00:00:00:00:09"),
            lease("10.244.4.0/24", "172.16.0.10", "host-gw", "0a:00:00:00:00:0a"),
        ],
    })
}

#[test]
fn diff_trace_and_cleanup_work_on_a_real_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let subnet_file = leave_behind(folder.path());
    let output = |command: &str| {
        tweedctl(&format!("{command} -o json --subnet-file {}", subnet_file.display()))
    };
    let differs = output("diff");
    assert_eq!(differs.0, 1, "{differs:?}");
    let differences = differs.json()["differences"].as_array().unwrap().clone();
    let word =
        |difference: &Value, key: &str| difference[key].as_str().unwrap_or("nothing").to_owned();
    let line = |d: &Value| {
        format!("{} {}, now {}", word(d, "action"), word(d, "entry"), word(d, "present"))
    };
    let lines: Vec<String> = differences.iter().map(line).collect();
    expect![[r"
        replace accept_ra 0 dev flannel.1, now accept_ra 1 dev flannel.1
        create addr 10.244.1.0/32 dev lo, now nothing
        create table ip tweed.1 { chain fixed-source { type nat hook postrouting priority srcnat - 1; policy accept; ip daddr != 10.244.0.0/16 return; ip daddr 10.244.1.0/24 return; meta mark & 0x00004000 != 0x00004000 return; meta mark set meta mark & 0xffffbfff; snat to 10.244.1.1 fully-random; }; }, now nothing
        create fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1, now nothing
        create fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1, now nothing
        create neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1, now nothing
        replace route 10.244.4.0/24 via 172.16.0.10 dev eth0, now route 10.244.4.0/24 via 172.16.0.99 dev eth0 proto 3
        create route 10.244.4.0/32 dev flannel.1, now nothing"]].assert_eq(&without_filters(&lines));

    // No pod runs there; the forwarding entry of the first peer is missing; the route to the second
    // leads to another host.
    for (packet, code, hop) in [
        ("10.244.1.7 10.244.3.9", 5, "pod"),
        ("172.16.0.5 10.244.3.9", 5, "fdb"),
        ("172.16.0.5 10.244.4.9", 3, "neighbour"),
    ] {
        let trace = output(&format!("trace {packet}"));
        assert_eq!(trace.0, code, "{trace:?}");
        let hops = trace.json()["hops"].as_array().unwrap().clone();
        assert_eq!(hops.last().unwrap()["hop"], hop, "{trace:?}");
    }
    let Output(code, out, error) = output("trace 10.244.1.7 fd00::9");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(error, "tweedctl: 10.244.1.7 and fd00::9 are of different address families\n");

    let listed = output("cleanup");
    assert_eq!(listed.0, 0, "{listed:?}");
    let entries: Vec<String> = serde_json::from_value(listed.json()["entries"].clone()).unwrap();
    expect![[r"
        - route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink
        - neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
        - addr 10.244.1.0/32 dev flannel.1
        - link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning"]].assert_eq(&without_filters(&entries));

    let removed = output("cleanup --yes");
    assert_eq!((removed.0, &removed.json()["outcome"]), (0, &json!("removed")), "{removed:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let ip = |line: &str| Command::new("ip").args(line.split(' ')).output().unwrap();
    assert!(!ip("link show flannel.1").status.success());
    let routes = String::from_utf8(ip("route show root 10.244.0.0/16").stdout).unwrap();
    let routes: Vec<&str> = routes.lines().map(str::trim_end).collect();
    assert_eq!(
        routes,
        [
            "10.244.4.0/24 via 172.16.0.99 dev eth0",
            "10.244.77.0/24 via 172.16.0.1 dev eth0 proto static",
        ]
    );
    assert_eq!(output("cleanup --yes").0, 0);
}

/// The reverse-path filters depend on the host of the test.
fn without_filters(lines: &[String]) -> String {
    let others = lines.iter().filter(|line| !line.contains("rp_filter")).cloned();
    others.collect::<Vec<String>>().join("\n")
}
