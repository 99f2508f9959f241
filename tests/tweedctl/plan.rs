//! `tweedctl plan`, which needs neither daemon nor kernel.

use expect_test::expect;

use crate::{Output, tweedctl_reading};

const LEASES: &str = r#"/coreos.com/network/subnets/10.244.1.0-24
{"PublicIP":"172.16.0.5","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:05"}}
/coreos.com/network/subnets/10.244.3.0-24
{"PublicIP":"172.17.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:09"}}
/coreos.com/network/subnets/10.244.4.0-24
{"PublicIP":"172.16.0.10","PublicIPv6":null,"BackendType":"host-gw"}
"#;

#[test]
fn a_plan_needs_no_daemon() {
    let line = "plan --config config/networks/mixed.json --leases - --public-ip 172.16.0.5";
    let output = tweedctl_reading(LEASES, line);
    assert_eq!(output.0, 0, "{output:?}");
    expect![[r"
        node      172.16.0.5 on eth0, MTU 1500
        backend   vxlan, mixed; pod MTU 1450
        on link   172.16.0.0/24 (assumed; set it with --on-link)
        lease     10.244.1.0-24
        + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
            172.16.0.5 dev eth0 dstport 8472 nolearning
        + rp_filter loose dev eth0
        + rp_filter loose dev flannel.1
        + accept_ra 0 dev flannel.1
        + addr 10.244.1.0/32 dev flannel.1
        + addr 10.244.1.0/32 dev lo
        + table ip tweed-tunnel.1
        + table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
            srcnat - 1;
            policy accept;
            ip daddr != 10.244.0.0/16 return;
            ip daddr 10.244.1.0/24 return;
            meta mark & 0x00004000 != 0x00004000 return;
            meta mark set meta mark & 0xffffbfff;
            snat to 10.244.1.1 fully-random;
            };
            }
        + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
        + element ip tweed-tunnel.1 peers { 172.16.0.10 }
        + element ip tweed-tunnel.1 peers { 172.17.0.9 }
        + fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
        + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
        + nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
        + nexthop id 4096512016 via 172.16.0.10 dev eth0
        + route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
        + route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
    "]]
    .assert_eq(&output.1);

    let plan = tweedctl_reading(LEASES, &format!("{line} -o json")).json();
    assert_eq!(plan["own"], "10.244.1.0-24");
    assert_eq!(plan["entries"].as_array().unwrap().len(), 17);
}

#[test]
fn a_plan_from_bad_files_names_them() {
    let plan = |config: &str, leases: &str| {
        let line = format!("plan --public-ip 172.16.0.5 --config {config} --leases {leases}");
        let Output(code, out, error) = tweedctl_reading("lonely key", &line);
        assert_eq!(out, "");
        (code, error)
    };
    let (code, error) = plan("Cargo.toml", "-");
    assert!(
        code == 2
            && error.starts_with("tweedctl: Cargo.toml: the network config is not a JSON object")
    );
    let (code, error) = plan("config/networks/vxlan.json", "-");
    assert_eq!(
        (code, error.as_str()),
        (2, "tweedctl: -: key \"lonely key\" has no value on the next line\n")
    );
    let (code, error) = plan("/nowhere.json", "-");
    assert!(code == 3 && error.starts_with("tweedctl: /nowhere.json cannot be read: "), "{error}");
}

/// The last command of docs/operations.md, section "What would a node program?".
#[test]
fn the_documented_command_plans_by_two_files() {
    let text = include_str!("../../docs/operations.md");
    let documented = text.lines().find_map(|line| line.strip_prefix("tweedctl plan "));
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy("config/networks/mixed.json", folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("leases"), LEASES).unwrap();
    let here = |name: &str| folder.path().join(name).display().to_string();
    let line = documented.unwrap().replace("config.json", &here("config.json"));
    let line = line.replace("--leases leases", &format!("--leases {}", here("leases")));
    let output = tweedctl_reading("", &format!("plan {line}"));
    assert_eq!(output.0, 0, "{output:?}");
    assert!(output.1.contains("lease     10.244.1.0-24\n"), "{output:?}");
}
