//! Annotations, byte for byte as flannel writes them.

use super::*;
use crate::model::lease::EndpointAttributes;

const VTEP: &str = "12:c6:65:89:b4:e3";

fn vtep() -> Vtep {
    Vtep { vni: Some(1), mac: VTEP.parse().unwrap(), source: None }
}

fn attributes(backend: &str, endpoints: &[(&str, Option<Vtep>)]) -> LeaseAttributes {
    let endpoint = |(ip, vtep): &(&str, Option<Vtep>)| EndpointAttributes {
        public_ip: ip.parse().unwrap(),
        vtep: *vtep,
    };
    let endpoints = endpoints.iter().map(endpoint).collect();
    LeaseAttributes { backend: BackendType::from(backend), endpoints }
}

fn annotations(pairs: &[(&str, &str)]) -> Annotations {
    let key = |name: &str| format!("flannel.alpha.coreos.com/{name}");
    pairs.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect()
}

/// One annotation a line, without the prefix.
fn wanted(attributes: &LeaseAttributes, present: &[(&str, &str)]) -> Vec<String> {
    let wanted = AnnotationPrefix::default().wanted(attributes, &annotations(present));
    let name = |key: &str| key.strip_prefix("flannel.alpha.coreos.com/").unwrap().to_owned();
    wanted.iter().map(|(key, value)| format!("{} {value}", name(key))).collect()
}

fn endpoint(pairs: &[(&str, &str)], subnet: &str) -> Result<Option<Endpoint>, String> {
    let subnet = subnet.parse().unwrap();
    let endpoint = AnnotationPrefix::default().endpoint(&annotations(pairs), subnet);
    endpoint.map_err(|error| error.to_string())
}

#[test]
fn a_vxlan_node_is_published_as_flannel_does_it() {
    assert_eq!(
        wanted(&attributes("vxlan", &[("172.18.0.2", Some(vtep()))]), &[]),
        [
            r#"backend-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#,
            "backend-type vxlan",
            "kube-subnet-manager true",
            "public-ip 172.18.0.2",
        ]
    );
}

#[test]
fn both_families_are_published_beside_each_other() {
    let dual = [("172.18.0.2", Some(vtep())), ("fd00::2", Some(vtep()))];
    assert_eq!(
        wanted(&attributes("vxlan", &dual), &[]),
        [
            r#"backend-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#,
            "backend-type vxlan",
            r#"backend-v6-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#,
            "kube-subnet-manager true",
            "public-ip 172.18.0.2",
            "public-ipv6 fd00::2",
        ]
    );
    let v6_only = wanted(&attributes("vxlan", &dual[1..]), &[]);
    assert!(!v6_only.iter().any(|line| line.starts_with("public-ip ")), "{v6_only:?}");
}

#[test]
fn a_host_gw_node_without_a_tunnel_says_null() {
    assert_eq!(
        wanted(&attributes("host-gw", &[("172.18.0.2", None)]), &[]),
        [
            "backend-data null",
            "backend-type host-gw",
            "kube-subnet-manager true",
            "public-ip 172.18.0.2",
        ]
    );
    assert_eq!(
        wanted(&attributes("host-gw", &[("fd00::2", None)]), &[]),
        [
            "backend-data null",
            "backend-type host-gw",
            "backend-v6-data null",
            "kube-subnet-manager true",
            "public-ip 0.0.0.0",
            "public-ipv6 fd00::2",
        ]
    );
}

#[test]
fn a_host_gw_node_with_a_tunnel_says_where_it_ends() {
    let mixed = wanted(&attributes("host-gw", &[("172.18.0.2", Some(vtep()))]), &[]);
    assert_eq!(mixed[0], r#"backend-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#);
    assert_eq!(mixed[1], "backend-type host-gw");
}

#[test]
fn operators_overwrite_what_peers_send_to() {
    let present =
        [("public-ip-overwrite", "203.0.113.7"), ("public-ipv6-overwrite", "2001:db8::7")];
    let dual = attributes("host-gw", &[("172.18.0.2", None), ("fd00::2", None)]);
    let lines = wanted(&dual, &present);
    assert!(lines.contains(&"public-ip 203.0.113.7".to_owned()), "{lines:?}");
    assert!(lines.contains(&"public-ipv6 2001:db8::7".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("overwrite")), "{lines:?}");
}

#[test]
fn where_an_overwritten_public_ip_is_not_the_source_of_packets_the_source_is_published() {
    let data = |vtep: Vtep, overwrite: &str| {
        let attributes = attributes("vxlan", &[("172.18.0.2", Some(vtep))]);
        wanted(&attributes, &[("public-ip-overwrite", overwrite)])[0].clone()
    };
    let told = |source: &str| {
        format!(r#"backend-data {{"VNI":1,"VtepMAC":"{VTEP}","Source":"{source}"}}"#)
    };
    assert_eq!(data(vtep(), "203.0.113.7"), told("172.18.0.2"));
    let behind = Vtep { source: Some("10.0.0.2".parse().unwrap()), ..vtep() };
    assert_eq!(data(behind, "203.0.113.7"), told("10.0.0.2"));
    // What peers send to anyway needs no second word.
    let plain = format!(r#"backend-data {{"VNI":1,"VtepMAC":"{VTEP}"}}"#);
    assert_eq!(data(behind, "10.0.0.2"), plain);
    assert_eq!(data(vtep(), "172.18.0.2"), plain);
}

#[test]
fn an_order_that_makes_no_sense_is_named_and_not_followed() {
    let prefix = AnnotationPrefix::default();
    let present = annotations(&[("public-ip-overwrite", "here"), ("node-public-ipv6", "1.2.3.4")]);
    let faults: Vec<String> = prefix.faults(&present).iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            r#"annotation flannel.alpha.coreos.com/public-ip-overwrite is "here", but must be an IPv4 address"#,
            r#"annotation flannel.alpha.coreos.com/node-public-ipv6 is "1.2.3.4", but must be an IPv6 address"#,
        ]
    );
    assert_eq!(prefix.public_ips(&present), Vec::<IpAddr>::new());
    let lines =
        wanted(&attributes("host-gw", &[("1.1.1.1", None)]), &[("public-ip-overwrite", "x")]);
    assert!(lines.contains(&"public-ip 1.1.1.1".to_owned()), "{lines:?}");
}

#[test]
fn operators_choose_the_public_ips_of_a_node() {
    let present = [("node-public-ip", "203.0.113.7"), ("node-public-ipv6", "2001:db8::7")];
    let ips = AnnotationPrefix::default().public_ips(&annotations(&present));
    assert_eq!(ips, ["203.0.113.7", "2001:db8::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
}

#[test]
fn what_is_published_is_what_peers_read() {
    for (backend, vtep) in [("vxlan", Some(vtep())), ("host-gw", Some(vtep())), ("host-gw", None)] {
        let attributes = attributes(backend, &[("172.18.0.2", vtep), ("fd00::2", vtep)]);
        let prefix = AnnotationPrefix::default();
        let written = prefix.wanted(&attributes, &Annotations::new());
        assert!(prefix.is_managed(&written));
        for (subnet, public_ip) in [("10.244.1.0/24", "172.18.0.2"), ("fd00:1::/64", "fd00::2")] {
            let read = prefix.endpoint(&written, subnet.parse().unwrap()).unwrap().unwrap();
            assert_eq!((read.public_ip, read.vtep), (public_ip.parse().unwrap(), vtep));
            assert_eq!(read.backend.as_str(), backend);
        }
    }
}

#[test]
fn what_flannel_leaves_out_is_no_fault() {
    let read = endpoint(&[("public-ip", "1.1.1.1")], "10.244.1.0/24").unwrap().unwrap();
    assert_eq!((read.backend, read.vtep), (BackendType::Other(String::new()), None));
    let old = [
        ("public-ip", "1.1.1.1"),
        ("backend-type", "vxlan"),
        ("backend-data", &format!(r#"{{"VtepMAC":"{VTEP}"}}"#)),
    ];
    let read = endpoint(&old, "10.244.1.0/24").unwrap().unwrap();
    assert_eq!(read.vtep, Some(Vtep { vni: None, mac: VTEP.parse().unwrap(), source: None }));
    assert_eq!(endpoint(&[("public-ip", "1.1.1.1")], "fd00:1::/64"), Ok(None));
    assert_eq!(endpoint(&[("public-ip", "0.0.0.0")], "10.244.1.0/24"), Ok(None));
}

#[test]
fn what_cannot_be_read_is_named_by_its_key() {
    let vxlan =
        |data| [("public-ip", "1.1.1.1"), ("backend-type", "vxlan"), ("backend-data", data)];
    let fault = |pairs: &[(&str, &str)]| endpoint(pairs, "10.244.1.0/24").unwrap_err();
    assert_eq!(
        fault(&[("public-ip", "fd00::1")]),
        r#"annotation flannel.alpha.coreos.com/public-ip is "fd00::1", but must be an IPv4 address"#
    );
    let said = fault(&vxlan("{"));
    assert!(
        said.starts_with(
            "annotation flannel.alpha.coreos.com/backend-data is wrong: no JSON object: "
        ),
        "{said}"
    );
    let said = fault(&vxlan(r#"{"VtepMAC":"here"}"#));
    assert!(
        said.starts_with("annotation flannel.alpha.coreos.com/backend-data is wrong: VtepMAC"),
        "{said}"
    );
}

#[test]
fn a_prefix_is_a_domain_and_perhaps_a_word() {
    let key = |text: &str| text.parse::<AnnotationPrefix>().map(|prefix| prefix.key("public-ip"));
    for (text, expected) in [
        ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/public-ip"),
        ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/public-ip"),
        ("example.org/blue", "example.org/blue-public-ip"),
        ("example.org/blue-", "example.org/blue-public-ip"),
        ("a_b.c-d.0/x_1", "a_b.c-d.0/x_1-public-ip"),
    ] {
        assert_eq!(key(text), Ok(expected.to_owned()), "{text}");
    }
    for text in
        ["", "org", "org/blue", "Example.org", "example..org", ".org", "a.b/c/d", "a.b/C", "a b.c"]
    {
        assert_eq!(key(text), Err(NoPrefix), "{text}");
    }
}

#[test]
fn no_annotation_is_repeated_whole() {
    let long = "\u{1}\u{9b}\u{202e}x".repeat(30_000);
    let json = serde_json::json!({ "VtepMAC": long }).to_string();
    for (name, value) in [("public-ip", &long), ("backend-data", &long), ("backend-data", &json)] {
        let mut pairs = vec![("public-ip", "172.18.0.2"), ("backend-type", "vxlan")];
        pairs.push((name, value.as_str()));
        let reason = endpoint(&pairs, "10.244.1.0/24").unwrap_err();
        assert!(reason.chars().count() < 400, "{reason}");
        assert!(crate::excerpt::is_printable(&reason), "{reason:?}");
    }
}
