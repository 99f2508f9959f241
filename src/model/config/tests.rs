//! The parsing rules of the network config, case by case.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::too_many_lines)]

use super::*;

fn pool(json: &str) -> String {
    let config = NetworkConfig::parse(json.as_bytes());
    match config {
        Ok(config) => config
            .pools
            .iter()
            .map(|p| format!("{} /{} {}..{}", p.network, p.subnet_len, p.min.base(), p.max.base()))
            .collect::<Vec<_>>()
            .join(", "),
        Err(error) => error.to_string(),
    }
}

#[test]
fn default_subnets_are_those_of_flannel() {
    let cases = [
        (r#"{"Network":"10.3.0.0/16"}"#, "10.3.0.0/16 /24 10.3.1.0..10.3.255.0"),
        (r#"{"network":"10.3.9.9/16"}"#, "10.3.0.0/16 /24 10.3.1.0..10.3.255.0"),
        (r#"{"Network":"10.3.0.0/24"}"#, "10.3.0.0/24 /26 10.3.0.64..10.3.0.192"),
        (r#"{"Network":"10.3.0.0/22"}"#, "10.3.0.0/22 /24 10.3.1.0..10.3.3.0"),
        (r#"{"Network":"10.3.0.0/23"}"#, "10.3.0.0/23 /25 10.3.0.128..10.3.1.128"),
        (r#"{"Network":"10.3.0.0/28"}"#, "10.3.0.0/28 /30 10.3.0.4..10.3.0.12"),
        (
            r#"{"Network":"10.0.0.0/8","SubnetLen":28,"SubnetMin":"10.5.0.0","SubnetMax":"10.9.0.16"}"#,
            "10.0.0.0/8 /28 10.5.0.0..10.9.0.16",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetMin":"0.0.0.0"}"#,
            "10.3.0.0/16 /24 10.3.1.0..10.3.255.0",
        ),
        (
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fc00::/48"}"#,
            "fc00::/48 /64 fc00:0:0:1::..fc00:0:0:ffff::",
        ),
        (
            r#"{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/56","IPv6SubnetLen":72}"#,
            "10.3.0.0/16 /24 10.3.1.0..10.3.255.0, fd00::/56 /72 fd00::100:0:0:0..fd00:0:0:ff:ff00::",
        ),
    ];
    for (json, expected) in cases {
        assert_eq!(pool(json), expected, "{json}");
    }
}

#[test]
fn an_error_names_key_value_and_what_is_allowed() {
    let cases = [
        ("{}", "Network is missing, but EnableIPv4 is true"),
        (
            r#"{"EnableIPv4":false}"#,
            "EnableIPv4 and EnableIPv6 are both false, but one of them must be true",
        ),
        (
            r#"{"Network":"10.3.0.0"}"#,
            "Network is 10.3.0.0, but must be an IPv4 prefix with its length",
        ),
        (
            r#"{"Network":"fd00::/48"}"#,
            "Network is fd00::/48, but must be an IPv4 prefix with its length",
        ),
        (
            r#"{"Network":"0.0.0.0/0"}"#,
            "Network is 0.0.0.0/0, but must be longer than /0: nodes and services need addresses, too",
        ),
        (
            r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"::/0"}"#,
            "IPv6Network is ::/0, but must be longer than /0: nodes and services need addresses, too",
        ),
        (
            r#"{"Network":"10.3.0.0/29"}"#,
            "Network is 10.3.0.0/29, but must be a prefix of length 28 or shorter",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetLen":31}"#,
            "SubnetLen is 31, but must be from 18 to 30, for 10.3.0.0/16",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetLen":17}"#,
            "SubnetLen is 17, but must be from 18 to 30, for 10.3.0.0/16",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetMin":"10.4.0.0"}"#,
            "SubnetMin is 10.4.0.0, but must be an address inside 10.3.0.0/16",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetMax":"10.3.1.1"}"#,
            "SubnetMax is 10.3.1.1, but must be the first address of a /24",
        ),
        (
            r#"{"Network":"10.3.0.0/16","SubnetMin":"10.3.9.0","SubnetMax":"10.3.8.0"}"#,
            "SubnetMin is 10.3.9.0, but must be at most SubnetMax 10.3.8.0",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":"yes"}"#,
            r#"Mixed is "yes", but must be true or false"#,
        ),
        (
            r#"{"Network":"10.3.0.0/16","Backend":{}}"#,
            r#"Backend.Type is missing, but must be "vxlan" or "host-gw""#,
        ),
        (
            r#"{"Network":"10.3.0.0/16","Backend":{"Type":"ipip"}}"#,
            r#"Backend.Type is "ipip", but must be "vxlan" or "host-gw""#,
        ),
        (
            r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}"#,
            "Backend.VNI is 16777216, but must be at most 16777215",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","Port":65536}}"#,
            "Backend.Port is 65536, but must be at most 65535",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Backend":{"Type":"vxlan","MTU":50}}"#,
            "Backend.MTU is 50, but must be from 576 to 65535",
        ),
        (
            r#"{"Network":"10.3.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48",
                "Backend":{"Type":"vxlan","MTU":1349}}"#,
            "Backend.MTU is 1349, but must be at least 1350 with IPv6",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Rollout":{"From":{"Type":"vxlan"}}}"#,
            "Mixed is false, but must be true while there is a Rollout",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":true,"Rollout":{}}"#,
            "Rollout.From is missing, but must be the backend of the nodes that stay",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":true,"Rollout":{"From":{"Type":"udp"}}}"#,
            r#"Rollout.From.Type is "udp", but must be "vxlan" or "host-gw""#,
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":true,"Rollout":{"From":{"Type":"vxlan","VNI":2}}}"#,
            "Rollout.From is given with VNI, but must be only a Type: tunnel parameters belong in Backend, for all nodes",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":true,"Rollout":{"From":{"Type":"vxlan"},"Percent":101}}"#,
            "Rollout.Percent is 101, but must be at most 100",
        ),
        (
            r#"{"Network":"10.3.0.0/16","Mixed":true,"Rollout":{"From":{"Type":"vxlan"},"Nodes":"a"}}"#,
            r#"Nodes is "a", but must be a list of strings"#,
        ),
    ];
    for (json, expected) in cases {
        assert_eq!(pool(json), expected, "{json}");
    }
}

#[test]
fn an_absent_backend_is_vxlan() {
    let config = NetworkConfig::parse(br#"{"Network":"10.3.0.0/16"}"#).unwrap();
    assert_eq!((config.backend.kind, config.mixed), (BackendType::Vxlan, false));
    assert_eq!((config.backend.tunnel.vni, config.backend.tunnel.port), (1, 8472));
}

#[test]
fn every_backend_option_is_read_in_any_case() {
    let json = br#"{"Network":"10.3.0.0/16","mixed":true,"enablenftables":true,"backend":
        {"type":"Host-GW","vni":7,"port":4789,"mtu":9000,"gbp":true,"learning":true,"directrouting":true}}"#;
    let config = NetworkConfig::parse(json).unwrap();
    let tunnel = Tunnel {
        vni: 7,
        port: 4789,
        mtu: Some(9000),
        gbp: true,
        learning: true,
        direct_routing: true,
    };
    assert_eq!(config.backend, BackendConfig { kind: BackendType::HostGw, tunnel });
    assert!(config.mixed && config.nftables);
}

#[test]
fn subnets_are_counted_from_the_first_one() {
    let config = NetworkConfig::parse(br#"{"Network":"10.3.0.0/16"}"#).unwrap();
    let pool = config.pools[0];
    assert_eq!(pool.count(), 255);
    assert_eq!(pool.subnet(0).to_string(), "10.3.1.0/24");
    assert_eq!(pool.subnet(254).to_string(), "10.3.255.0/24");
    assert_eq!(pool.index("10.3.2.0/24".parse().unwrap()), Some(1));
    assert_eq!(pool.index("10.3.0.0/24".parse().unwrap()), None);
    assert_eq!(pool.index("10.3.2.0/25".parse().unwrap()), None);
}

fn rollout(json: &str) -> Rollout {
    let json = format!(
        r#"{{"Network":"10.3.0.0/16","Mixed":true,"Backend":{{"Type":"host-gw"}},"Rollout":{json}}}"#
    );
    NetworkConfig::parse(json.as_bytes()).unwrap().rollout.unwrap()
}

/// Which of a thousand consecutive nodes follow.
fn followers(percent: u8) -> Vec<String> {
    let rollout = rollout(&format!(r#"{{"From":{{"Type":"vxlan"}},"Percent":{percent}}}"#));
    let nodes = (0..1000).map(|index| format!("172.17.{}.{}", index / 250, index % 250 + 1));
    nodes.filter(|node| rollout.follows([node])).collect()
}

#[test]
fn the_share_of_a_node_is_the_same_in_every_version() {
    let cases = [("172.17.8.101", 25), ("10.0.0.1", 37), ("fd00::1", 14), ("", 37)];
    for (name, expected) in cases {
        assert_eq!(share(name), expected, "{name}");
    }
}

#[test]
fn a_higher_percentage_only_adds_nodes() {
    let mut before = followers(0);
    assert_eq!(before, Vec::<String>::new());
    for percent in 1..=100 {
        let now = followers(percent);
        assert!(before.iter().all(|node| now.contains(node)), "at {percent} %");
        before = now;
    }
    assert_eq!(before.len(), 1000);
    assert!((200..300).contains(&followers(25).len()), "{}", followers(25).len());
}

#[test]
fn a_named_node_follows_at_any_percentage() {
    let json =
        r#"{"From":{"Type":"vxlan"},"Nodes":["172.17.8.101","FD00:0::1","kate"],"History":[]}"#;
    let rollout = rollout(json);
    assert!(rollout.follows(["172.17.8.101"]));
    assert!(rollout.follows(["172.17.8.102", "fd00::1"]));
    assert!(rollout.follows(["172.17.8.102", "kate"]));
    assert!(!rollout.follows(["172.17.8.102"]));
    assert!(!rollout.follows(Vec::<String>::new()));
}

#[test]
fn a_node_that_does_not_follow_keeps_the_previous_backend() {
    let json = br#"{"Network":"10.3.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},
        "Rollout":{"From":{"Type":"vxlan"},"Nodes":["10.0.0.1"]}}"#;
    let mut config = NetworkConfig::parse(json).unwrap();
    assert_eq!(config.kind_of(["10.0.0.1"]), BackendType::HostGw);
    assert_eq!(config.kind_of(["10.0.0.2"]), BackendType::Vxlan);
    config.rollout = None;
    assert_eq!(config.kind_of(["10.0.0.2"]), BackendType::HostGw);
}

#[test]
fn ranges_that_are_not_masqueraded_are_a_set_of_prefixes() {
    let parse = |ranges: &str| {
        let json = format!(r#"{{"Network":"10.3.0.0/16","nonMasqueradeCIDRs":{ranges}}}"#);
        NetworkConfig::parse(json.as_bytes()).map(|config| config.non_masquerade)
    };
    let texts = |ranges: &str| -> Vec<String> {
        parse(ranges).unwrap().iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts("null"), [""; 0]);
    let ranges = r#"["fd00::1/8","192.168.7.7/16","192.168.0.0/16"]"#;
    assert_eq!(texts(ranges), ["192.168.0.0/16", "fd00::/8"]);
    let message = |ranges: &str| parse(ranges).unwrap_err().to_string();
    let allowed = r#"but must be a list of prefixes like "10.5.0.0/16""#;
    assert_eq!(
        message(r#"["10.0.0.1"]"#),
        format!(r#"NonMasqueradeCIDRs is "10.0.0.1", {allowed}"#)
    );
    assert!(message(r#""10.0.0.0/8""#).ends_with("but must be a list of strings"));
}
