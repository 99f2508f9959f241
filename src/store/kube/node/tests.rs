//! What is read of Nodes, and what is not.

use std::hash::RandomState;

use super::*;

/// As `kubectl get --raw` shows it, shortened where nothing of ours stands.
const NODE: &str = r#"{"kind":"Node","apiVersion":"v1","metadata":{
    "name":"n3","uid":"5f1c","resourceVersion":"812","creationTimestamp":"2026-11-21T23:18:21Z",
    "labels":{"kubernetes.io/os":"linux"},
    "annotations":{"node.alpha.kubernetes.io/ttl":"0",
        "flannel.alpha.coreos.com/backend-data":"{\"VNI\":1,\"VtepMAC\":\"12:c6:65:89:b4:e3\"}",
        "flannel.alpha.coreos.com/backend-type":"vxlan",
        "flannel.alpha.coreos.com/kube-subnet-manager":"true",
        "flannel.alpha.coreos.com/public-ip":"172.18.0.3"},
    "managedFields":[{"manager":"kubelet","fieldsV1":{"f:status":{}}}]},
    "spec":{"podCIDR":"10.244.3.0/24","podCIDRs":["10.244.3.0/24","fd00:3::/64"],"taints":[{"key":"a"}]},
    "status":{"conditions":[{"type":"Ready","lastHeartbeatTime":"2026-11-21T23:19:00Z"}]}}"#;

fn reader(families: &[Family]) -> Reader {
    Reader::new(AnnotationPrefix::default(), Some(families.to_vec()))
}

fn record(text: &str) -> Option<Record> {
    let node: NodeObject<'_> = serde_json::from_str(text).unwrap();
    reader(&Family::ALL).record(&node, LeaseId::new("n3"))
}

fn fault(text: &str) -> String {
    record(text).unwrap().lease.unwrap_err().to_string()
}

#[test]
fn a_nodes_pod_cidr_and_annotations_are_its_lease() {
    let lease = record(NODE).unwrap().lease.unwrap();
    assert_eq!((lease.id.as_str(), lease.created), ("n3", 20_261_121_231_821));
    assert!(lease.grant.is_some(), "it is no reservation");
    let [endpoint] = lease.endpoints.as_slice() else { panic!("{:?}", lease.endpoints) };
    assert_eq!(endpoint.subnet.to_string(), "10.244.3.0/24");
    assert_eq!(endpoint.public_ip.to_string(), "172.18.0.3");
}

#[test]
fn each_family_that_is_published_has_its_endpoint() {
    let dual = NODE.replace(
        r#""flannel.alpha.coreos.com/public-ip""#,
        r#""flannel.alpha.coreos.com/public-ipv6":"fd18::3","flannel.alpha.coreos.com/public-ip""#,
    );
    let lease = record(&dual).unwrap().lease.unwrap();
    let subnets: Vec<String> = lease.subnets().map(|subnet| subnet.to_string()).collect();
    assert_eq!(subnets, ["10.244.3.0/24", "fd00:3::/64"]);
    let node: NodeObject<'_> = serde_json::from_str(&dual).unwrap();
    let v6 = reader(&[Family::V6]).record(&node, LeaseId::new("n3")).unwrap().lease.unwrap();
    assert_eq!(v6.endpoints.len(), 1, "the network has no IPv4");
}

#[test]
fn a_single_pod_cidr_is_enough() {
    let old = NODE.replace(r#","podCIDRs":["10.244.3.0/24","fd00:3::/64"]"#, "");
    assert_eq!(record(&old), record(NODE));
}

#[test]
fn a_node_that_nobody_manages_has_no_lease() {
    assert_eq!(record(&NODE.replace(r#"manager":"true"#, r#"manager":"True"#)), None);
    assert_eq!(record(r#"{"metadata":{"name":"n3"}}"#), None);
}

#[test]
fn what_is_wrong_with_a_node_names_it() {
    let said = fault(&NODE.replace("172.18.0.3", "here"));
    assert_eq!(
        said,
        r#"node n3: annotation flannel.alpha.coreos.com/public-ip is "here", but must be an IPv4 address"#
    );
    let said = fault(&NODE.replace("fd00:3::/64", "fd00:3::"));
    assert_eq!(said, r#"node n3: its podCIDR is "fd00:3::", which is no prefix"#);
    let waiting = NODE
        .replace(r#""podCIDR":"10.244.3.0/24","podCIDRs":["10.244.3.0/24","fd00:3::/64"],"#, "");
    assert_eq!(fault(&waiting), "node n3: it has no podCIDR yet");
    assert_eq!(fault(&NODE.replace("172.18.0.3", "")), "node n3: it has no public IP");
}

#[test]
fn a_fingerprint_changes_with_what_a_lease_is_made_of_and_with_nothing_else() {
    let hasher = RandomState::new();
    let fingerprint = |text: &str| {
        let node: NodeObject<'_> = serde_json::from_str(text).unwrap();
        reader(&Family::ALL).fingerprint(&node, &hasher)
    };
    let known = fingerprint(NODE);
    for same in [
        ("\"resourceVersion\":\"812\"", "\"resourceVersion\":\"813\""),
        ("23:19:00Z", "23:19:10Z"),
        ("\"ttl\":\"0\"", "\"ttl\":\"15\""),
        ("\"linux\"", "\"other\""),
    ] {
        assert_eq!(fingerprint(&NODE.replace(same.0, same.1)), known, "{same:?}");
    }
    for other in [
        ("172.18.0.3", "172.18.0.4"),
        ("vxlan", "host-gw"),
        ("b4:e3", "b4:e4"),
        ("fd00:3::/64", "fd00:4::/64"),
        ("2026-11-21T23:18:21Z", "2026-11-21T23:18:22Z"),
    ] {
        assert_ne!(fingerprint(&NODE.replace(other.0, other.1)), known, "{other:?}");
    }
}

#[test]
fn a_long_annotation_is_not_held_whole() {
    let long = "x".repeat(240_000);
    let text = NODE.replace("172.18.0.3", &long);
    let node: NodeObject<'_> = serde_json::from_str(&text).unwrap();
    let held = reader(&Family::ALL).annotations(&node);
    assert!(held.values().all(|value| value.len() <= LONGEST), "{held:?}");
    let said = fault(&text);
    assert!(said.contains("public-ip is \"xxx") && said.len() < 300, "{said}");
}
