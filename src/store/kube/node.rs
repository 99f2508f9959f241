//! Reads the fields of a Node object that a lease needs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash, Hasher};

use serde::{Deserialize, Deserializer};

use super::annotations::{AnnotationPrefix, Annotations};
use crate::excerpt;
use crate::model::lease::{Lease, LeaseId, Malformed, Record};
use crate::model::prefix::{Family, Prefix};

/// A Node in an answer of the API server, without its status. A field may be `null`, as the time of
/// creation in a bookmark.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObject<'a> {
    #[serde(borrow, deserialize_with = "or_default")]
    pub(super) metadata: Metadata<'a>,
    #[serde(borrow, deserialize_with = "or_default")]
    spec: Spec<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata<'a> {
    #[serde(borrow, deserialize_with = "text")]
    pub(super) name: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) uid: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    pub(super) resource_version: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "text")]
    creation_timestamp: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "or_default")]
    annotations: BTreeMap<Text<'a>, Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec<'a> {
    #[serde(borrow, rename = "podCIDR", deserialize_with = "text")]
    pod_cidr: Cow<'a, str>,
    #[serde(borrow, rename = "podCIDRs", deserialize_with = "or_default")]
    pod_cidrs: Vec<Text<'a>>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// How Nodes are read.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) prefix: AnnotationPrefix,
    /// The address families of the network, to which a lease is limited.
    pub(super) families: Vec<Family>,
}

impl NodeObject<'_> {
    /// The podCIDRs, as `kubectl` shows them; none as long as the node waits for its subnets.
    pub(super) fn pod_cidrs(&self) -> Result<Vec<Prefix>, Malformed> {
        let parse = |text: &str| {
            let shown = || excerpt::quoted(text);
            let wrong = |_| Malformed(format!("its podCIDR is {}, which is not a prefix", shown()));
            text.parse().map_err(wrong)
        };
        self.pod_cidr_texts().map(parse).collect()
    }

    /// A number that grows with the time of creation.
    pub(super) fn created(&self) -> u64 {
        // Of `2026-11-21T23:18:21Z`, the digits.
        let digits = self.metadata.creation_timestamp.bytes().filter(u8::is_ascii_digit).take(14);
        digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
    }

    fn pod_cidr_texts(&self) -> impl Iterator<Item = &str> {
        let single = Some(self.spec.pod_cidr.as_ref())
            .filter(|cidr| self.spec.pod_cidrs.is_empty() && !cidr.is_empty());
        self.spec.pod_cidrs.iter().map(|Text(cidr)| cidr.as_ref()).chain(single)
    }
}

/// The longest annotation, in bytes; those of flannel and tweed are shorter.
const LONGEST: usize = 4096;

/// A node's lease exists as long as the node: it is no reservation.
pub(super) const NODE_GRANT: Option<i64> = Some(0);

impl Reader {
    /// Reads all families if `families` is none.
    pub(super) fn new(prefix: AnnotationPrefix, families: Option<Vec<Family>>) -> Self {
        Self { prefix, families: families.unwrap_or_else(|| Family::ALL.to_vec()) }
    }

    /// The annotations of this network; long values are truncated.
    pub(super) fn annotations(&self, node: &NodeObject<'_>) -> Annotations {
        let held = |value: &str| {
            if value.len() > LONGEST { excerpt::value(value) } else { value.to_owned() }
        };
        let values = self.ours(node).map(|(key, value)| (key.to_owned(), held(value))).collect();
        Annotations { prefix: self.prefix.clone(), values }
    }

    /// Changes with any input of the node's record, and with nothing else.
    pub(super) fn fingerprint(&self, node: &NodeObject<'_>, hasher: &impl BuildHasher) -> u64 {
        let mut state = hasher.build_hasher();
        self.ours(node).collect::<Vec<_>>().hash(&mut state);
        node.metadata.creation_timestamp.hash(&mut state);
        node.pod_cidr_texts().for_each(|cidr| cidr.hash(&mut state));
        state.finish()
    }

    fn ours<'a>(&self, node: &'a NodeObject<'_>) -> impl Iterator<Item = (&'a str, &'a str)> {
        let pairs = node.metadata.annotations.iter();
        let texts = pairs.map(|(Text(key), Text(value))| (key.as_ref(), value.as_ref()));
        texts.filter(|(key, _): &(&str, _)| self.prefix.covers(key))
    }

    /// The node's record; none if neither flannel nor tweed manages its lease.
    pub(super) fn record(&self, node: &NodeObject<'_>, id: LeaseId) -> Option<Record> {
        let annotations = self.annotations(node);
        annotations.is_managed().then(|| {
            let lease = self.lease(node, &annotations, id.clone());
            let lease = lease.map_err(|error| Malformed(format!("node {id}: {error}")));
            Record { id, lease }
        })
    }

    fn lease(
        &self,
        node: &NodeObject<'_>,
        annotations: &Annotations,
        id: LeaseId,
    ) -> Result<Lease, Malformed> {
        let cidrs = node.pod_cidrs()?;
        let of_family = |family: &Family| cidrs.iter().find(|cidr| cidr.family() == *family);
        let subnets = self.families.iter().filter_map(of_family);
        let endpoints = subnets.map(|subnet| annotations.endpoint(*subnet));
        let mut endpoints =
            endpoints.filter_map(Result::transpose).collect::<Result<Vec<_>, Malformed>>()?;
        if endpoints.is_empty() {
            let lacks = if cidrs.is_empty() { "no podCIDR yet" } else { "no public IP" };
            return Err(Malformed(format!("it has {lacks}")));
        }
        // There are thousands of these, with one endpoint each, so that capacity matters.
        endpoints.shrink_to_fit();
        Ok(Lease { id, endpoints, created: node.created(), grant: NODE_GRANT })
    }
}

fn text<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'a, str>, D::Error> {
    or_default(deserializer).map(|Text(text)| text)
}

/// The default for `null`.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The record in a Node object of the API server, our own or a peer's; none if it is no Node, or
/// has no lease. For fuzzing.
#[doc(hidden)]
pub fn read_node(json: &[u8]) -> Option<Record> {
    let node: NodeObject<'_> = serde_json::from_slice(json).ok()?;
    let reader = Reader::new(AnnotationPrefix::default(), None);
    let annotations = reader.annotations(&node);
    annotations.faults();
    annotations.public_ips();
    reader.record(&node, LeaseId::new(node.metadata.name.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use super::*;

    /// As from `kubectl get --raw`, shortened.
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
    fn an_unmanaged_node_has_no_lease() {
        assert_eq!(record(&NODE.replace(r#"manager":"true"#, r#"manager":"True"#)), None);
        assert_eq!(record(r#"{"metadata":{"name":"n3"}}"#), None);
    }

    #[test]
    fn null_is_a_field_without_a_value() {
        let nulls = r#"{"metadata":{"name":null,"uid":null,"resourceVersion":null,
            "creationTimestamp":null,"annotations":null},"spec":{"podCIDR":null,"podCIDRs":null}}"#;
        for text in [nulls, r#"{"metadata":null,"spec":null}"#] {
            let node: NodeObject<'_> = serde_json::from_str(text).unwrap();
            assert_eq!(node.metadata.name, "");
            assert_eq!((node.created(), node.pod_cidrs()), (0, Ok(Vec::new())));
        }
        // As in a bookmark of Kubernetes before 1.34.
        let bookmark =
            r#"{"metadata":{"resourceVersion":"812","creationTimestamp":null},"spec":{}}"#;
        let node: NodeObject<'_> = serde_json::from_str(bookmark).unwrap();
        assert!(matches!(node.metadata.resource_version, Cow::Borrowed("812")), "copied");
    }

    #[test]
    fn errors_name_the_node() {
        let message = fault(&NODE.replace("172.18.0.3", "here"));
        assert_eq!(
            message,
            r#"node n3: annotation flannel.alpha.coreos.com/public-ip is "here", but must be an IPv4 address"#
        );
        let message = fault(&NODE.replace("fd00:3::/64", "fd00:3::"));
        assert_eq!(message, r#"node n3: its podCIDR is "fd00:3::", which is not a prefix"#);
        let waiting = NODE.replace(
            r#""podCIDR":"10.244.3.0/24","podCIDRs":["10.244.3.0/24","fd00:3::/64"],"#,
            "",
        );
        assert_eq!(fault(&waiting), "node n3: it has no podCIDR yet");
        assert_eq!(fault(&NODE.replace("172.18.0.3", "")), "node n3: it has no public IP");
    }

    #[test]
    fn a_fingerprint_changes_only_with_inputs_of_the_lease() {
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
    fn a_long_annotation_is_truncated() {
        let long = "x".repeat(240_000);
        let text = NODE.replace("172.18.0.3", &long);
        let node: NodeObject<'_> = serde_json::from_str(&text).unwrap();
        let held = reader(&Family::ALL).annotations(&node);
        assert!(held.values.values().all(|value| value.len() <= LONGEST), "{held:?}");
        let message = fault(&text);
        assert!(message.contains("public-ip is \"xxx") && message.len() < 300, "{message}");
    }
}
