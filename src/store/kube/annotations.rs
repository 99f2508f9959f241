//! The annotations of a node, byte for byte as flannel writes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::model::config::BackendType;
use crate::model::json::Fields;
use crate::model::lease::{
    Endpoint, EndpointAttributes, LeaseAttributes, Malformed, PublishedBackend, Vtep,
    is_node_address,
};
use crate::model::prefix::{Family, Prefix};
use crate::store::backend_data::{self, BackendData};

/// The prefix of all keys: `flannel.alpha.coreos.com/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// The annotations of one network on a node, by their whole keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Annotations {
    pub(super) prefix: AnnotationPrefix,
    pub(super) values: BTreeMap<String, String>,
}

const MANAGED: &str = "kube-subnet-manager";
const BACKEND_TYPE: &str = "backend-type";

/// A key of IPv4 and of IPv6, without prefix.
type Keys = [&'static str; 2];

const DATA: Keys = ["backend-data", "backend-v6-data"];
const PUBLIC_IP: Keys = ["public-ip", "public-ipv6"];
const OVERWRITE: Keys = ["public-ip-overwrite", "public-ipv6-overwrite"];
const NODE_PUBLIC_IP: Keys = ["node-public-ip", "node-public-ipv6"];

const fn of(family: Family, [v4, v6]: Keys) -> &'static str {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

impl AnnotationPrefix {
    /// Whether an annotation belongs to this network.
    pub(super) fn covers(&self, key: &str) -> bool {
        key.starts_with(&self.0)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

impl Annotations {
    /// Whether flannel or tweed manages the lease of the node.
    pub(super) fn is_managed(&self) -> bool {
        self.get(MANAGED) == Some("true")
    }

    /// The attributes that peers read on the node, whose annotations may overwrite its public IPs.
    pub(super) fn published(&self, attributes: &LeaseAttributes) -> LeaseAttributes {
        let endpoint = |endpoint: &EndpointAttributes| {
            let family = Family::of(endpoint.public_ip);
            let overwritten = self.ordered(OVERWRITE, family).ok().flatten();
            let public_ip = overwritten.unwrap_or(endpoint.public_ip);
            // The guards of peers allow packets from the public IP and from this source.
            let source = |vtep: Vtep| vtep.source.unwrap_or(endpoint.public_ip);
            let vtep = endpoint.vtep.map(|vtep| Vtep {
                source: Some(source(vtep)).filter(|source| *source != public_ip),
                ..vtep
            });
            EndpointAttributes { public_ip, vtep }
        };
        let endpoints = attributes.endpoints.iter().map(endpoint).collect();
        LeaseAttributes { backend: attributes.backend, endpoints }
    }

    /// The annotations that publish `attributes`, without those that the node has already.
    pub(super) fn missing(&self, attributes: &LeaseAttributes) -> BTreeMap<String, String> {
        let mut wanted = BTreeMap::new();
        let mut put = |name: &str, value: String| wanted.insert(self.prefix.key(name), value);
        put(MANAGED, "true".to_owned());
        put(BACKEND_TYPE, attributes.backend.as_str().to_owned());
        if attributes.backend != BackendType::Vxlan {
            // As flannel does for a node without IPv4.
            put(of(Family::V4, DATA), "null".to_owned());
            put(of(Family::V4, PUBLIC_IP), Ipv4Addr::UNSPECIFIED.to_string());
        }
        for endpoint in self.published(attributes).endpoints {
            let family = Family::of(endpoint.public_ip);
            // The serialisation of numbers and addresses cannot fail.
            let data = serde_json::to_string(&endpoint.vtep.map(BackendData::from));
            put(of(family, DATA), data.unwrap_or_default());
            put(of(family, PUBLIC_IP), endpoint.public_ip.to_string());
        }
        wanted.retain(|key, value| self.values.get(key) != Some(value));
        wanted
    }

    /// The public IPs that operators set for the node, which override those of its interface.
    pub(super) fn public_ips(&self) -> Vec<IpAddr> {
        let ordered = |family| self.ordered(NODE_PUBLIC_IP, family).ok().flatten();
        Family::ALL.into_iter().filter_map(ordered).collect()
    }

    /// The annotations of operators that are invalid.
    pub(super) fn faults(&self) -> Vec<Malformed> {
        let faults =
            |family| [OVERWRITE, NODE_PUBLIC_IP].map(|keys| self.ordered(keys, family).err());
        Family::ALL.into_iter().flat_map(faults).flatten().collect()
    }

    /// The endpoint that the node publishes for `subnet`; none if it has none for that family.
    pub(super) fn endpoint(&self, subnet: Prefix) -> Result<Option<Endpoint>, Malformed> {
        let family = subnet.family();
        let public_ip = self.address(PUBLIC_IP, family)?;
        let Some(public_ip) = public_ip.filter(|ip| !ip.is_unspecified()) else { return Ok(None) };
        let backend = self.get(BACKEND_TYPE).unwrap_or_default().to_lowercase();
        let backend = PublishedBackend::from(backend.as_str());
        let vtep = backend_data::vtep(&backend, family, || self.data(family));
        let vtep = vtep.map_err(|error| {
            let key = self.prefix.key(of(family, DATA));
            Malformed(format!("annotation {key} is invalid: {error}"))
        })?;
        Ok(Some(Endpoint { subnet, public_ip, backend, vtep }))
    }

    fn data(&self, family: Family) -> Result<Option<Fields>, Malformed> {
        match self.get(of(family, DATA)) {
            None | Some("" | "null") => Ok(None),
            Some(text) => Fields::parse(text.as_bytes())
                .map(Some)
                .map_err(|error| Malformed(format!("no JSON object: {error}"))),
        }
    }

    /// An address that an operator has set for this node. Peers would reject the lease with one that no
    /// node can have.
    fn ordered(&self, keys: Keys, family: Family) -> Result<Option<IpAddr>, Malformed> {
        let address = self.address(keys, family)?;
        match address.filter(|address| !is_node_address(*address)) {
            Some(bad) => {
                let key = self.prefix.key(of(family, keys));
                Err(Malformed(format!(
                    "annotation {key} is {bad}, but must be an address of a node"
                )))
            }
            None => Ok(address),
        }
    }

    fn address(&self, keys: Keys, family: Family) -> Result<Option<IpAddr>, Malformed> {
        let name = of(family, keys);
        let text = self.get(name).filter(|text| !text.is_empty());
        let name = || format!("annotation {}", self.prefix.key(name));
        text.map(|text| backend_data::address(&name(), text, family)).transpose()
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(&self.prefix.key(name)).map(String::as_str)
    }
}

impl Default for AnnotationPrefix {
    fn default() -> Self {
        Self("flannel.alpha.coreos.com/".to_owned())
    }
}

/// What [`AnnotationPrefix`] is parsed from: `k8s.example.org/blue`.
const ALLOWED: &str =
    "a domain like flannel.alpha.coreos.com, optionally followed by a slash and a name";

impl FromStr for AnnotationPrefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (domain, word) = text.split_once('/').unwrap_or((text, ""));
        let mut labels = domain.split('.');
        let is_plain = |text: &str| {
            text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
        };
        let has_dot = domain.contains('.');
        if !has_dot || !labels.all(|label| !label.is_empty() && is_plain(label)) || !is_plain(word)
        {
            return Err(ALLOWED);
        }
        let dash = if word.is_empty() || word.ends_with('-') { "" } else { "-" };
        Ok(Self(format!("{domain}/{word}{dash}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::lease::EndpointAttributes;

    const VTEP: &str = "12:c6:65:89:b4:e3";

    fn vtep() -> Vtep {
        Vtep { vni: Some(1), mac: VTEP.parse().unwrap(), source: None, mixed: false }
    }

    fn attributes(backend: &str, endpoints: &[(&str, Option<Vtep>)]) -> LeaseAttributes {
        let endpoint = |(ip, vtep): &(&str, Option<Vtep>)| EndpointAttributes {
            public_ip: ip.parse().unwrap(),
            vtep: *vtep,
        };
        let endpoints = endpoints.iter().map(endpoint).collect();
        LeaseAttributes { backend: BackendType::named(backend).unwrap(), endpoints }
    }

    fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        let prefix = AnnotationPrefix::default();
        let pair = |(name, value): &(&str, &str)| (prefix.key(name), (*value).to_owned());
        Annotations { values: pairs.iter().map(pair).collect(), prefix }
    }

    /// One annotation per line, without the prefix.
    fn wanted(attributes: &LeaseAttributes, present: &[(&str, &str)]) -> Vec<String> {
        let wanted = annotations(present).missing(attributes);
        let name = |key: &str| key.strip_prefix("flannel.alpha.coreos.com/").unwrap().to_owned();
        wanted.iter().map(|(key, value)| format!("{} {value}", name(key))).collect()
    }

    fn endpoint(pairs: &[(&str, &str)], subnet: &str) -> Result<Option<Endpoint>, String> {
        let endpoint = annotations(pairs).endpoint(subnet.parse().unwrap());
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
    fn both_families_are_published() {
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
    fn a_host_gw_node_without_a_tunnel_publishes_null() {
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
    fn a_host_gw_node_with_a_tunnel_publishes_its_vtep() {
        let mixed = wanted(&attributes("host-gw", &[("172.18.0.2", Some(vtep()))]), &[]);
        assert_eq!(mixed[0], r#"backend-data {"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}"#);
        assert_eq!(mixed[1], "backend-type host-gw");
    }

    #[test]
    fn operators_overwrite_the_public_ip_for_peers() {
        let present =
            [("public-ip-overwrite", "203.0.113.7"), ("public-ipv6-overwrite", "2001:db8::7")];
        let dual = attributes("host-gw", &[("172.18.0.2", None), ("fd00::2", None)]);
        let lines = wanted(&dual, &present);
        assert!(lines.contains(&"public-ip 203.0.113.7".to_owned()), "{lines:?}");
        assert!(lines.contains(&"public-ipv6 2001:db8::7".to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("overwrite")), "{lines:?}");
    }

    #[test]
    fn the_source_of_packets_is_published_if_the_public_ip_is_overwritten() {
        let data = |vtep: Vtep, overwrite: &str| {
            let attributes = attributes("vxlan", &[("172.18.0.2", Some(vtep))]);
            wanted(&attributes, &[("public-ip-overwrite", overwrite)])[0].clone()
        };
        let data_with_source = |source: &str| {
            format!(r#"backend-data {{"VNI":1,"VtepMAC":"{VTEP}","Source":"{source}"}}"#)
        };
        assert_eq!(data(vtep(), "203.0.113.7"), data_with_source("172.18.0.2"));
        let behind = Vtep { source: Some("10.0.0.2".parse().unwrap()), ..vtep() };
        assert_eq!(data(behind, "203.0.113.7"), data_with_source("10.0.0.2"));
        // The address is already published as the public IP.
        let plain = format!(r#"backend-data {{"VNI":1,"VtepMAC":"{VTEP}"}}"#);
        assert_eq!(data(behind, "10.0.0.2"), plain);
        assert_eq!(data(vtep(), "172.18.0.2"), plain);
    }

    #[test]
    fn an_invalid_annotation_of_an_operator_is_reported_and_ignored() {
        let present =
            annotations(&[("public-ip-overwrite", "here"), ("node-public-ipv6", "1.2.3.4")]);
        let faults: Vec<String> = present.faults().iter().map(ToString::to_string).collect();
        assert_eq!(
            faults,
            [
                r#"annotation flannel.alpha.coreos.com/public-ip-overwrite is "here", but must be an IPv4 address"#,
                r#"annotation flannel.alpha.coreos.com/node-public-ipv6 is "1.2.3.4", but must be an IPv6 address"#,
            ]
        );
        assert_eq!(present.public_ips(), Vec::<IpAddr>::new());
        let present =
            annotations(&[("public-ipv6-overwrite", "fe80::1"), ("node-public-ip", "127.0.0.1")]);
        let faults: Vec<String> = present.faults().iter().map(ToString::to_string).collect();
        assert_eq!(
            faults,
            [
                "annotation flannel.alpha.coreos.com/node-public-ip is 127.0.0.1, but must be an address of a node",
                "annotation flannel.alpha.coreos.com/public-ipv6-overwrite is fe80::1, but must be an address of a node",
            ]
        );
        assert_eq!(present.public_ips(), Vec::<IpAddr>::new());
        let lines =
            wanted(&attributes("host-gw", &[("1.1.1.1", None)]), &[("public-ip-overwrite", "x")]);
        assert!(lines.contains(&"public-ip 1.1.1.1".to_owned()), "{lines:?}");
    }

    #[test]
    fn operators_choose_the_public_ips_of_a_node() {
        let present = [("node-public-ip", "203.0.113.7"), ("node-public-ipv6", "2001:db8::7")];
        let ips = annotations(&present).public_ips();
        assert_eq!(ips, ["203.0.113.7", "2001:db8::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    }

    #[test]
    fn peers_read_what_is_published() {
        for (backend, vtep) in
            [("vxlan", Some(vtep())), ("host-gw", Some(vtep())), ("host-gw", None)]
        {
            let attributes = attributes(backend, &[("172.18.0.2", vtep), ("fd00::2", vtep)]);
            let mut written = annotations(&[]);
            written.values = written.missing(&attributes);
            assert!(written.is_managed());
            assert_eq!(written.missing(&attributes), BTreeMap::new());
            for (subnet, public_ip) in [("10.244.1.0/24", "172.18.0.2"), ("fd00:1::/64", "fd00::2")]
            {
                let read = written.endpoint(subnet.parse().unwrap()).unwrap().unwrap();
                assert_eq!((read.public_ip, read.vtep), (public_ip.parse().unwrap(), vtep));
                assert_eq!(read.backend.as_str(), backend);
            }
        }
    }

    #[test]
    fn fields_that_flannel_omits_are_no_error() {
        let read = endpoint(&[("public-ip", "1.1.1.1")], "10.244.1.0/24").unwrap().unwrap();
        assert_eq!((read.backend, read.vtep), (PublishedBackend::from(""), None));
        let old = [
            ("public-ip", "1.1.1.1"),
            ("backend-type", "vxlan"),
            ("backend-data", &format!(r#"{{"VtepMAC":"{VTEP}"}}"#)),
        ];
        let read = endpoint(&old, "10.244.1.0/24").unwrap().unwrap();
        assert_eq!(
            read.vtep,
            Some(Vtep { vni: None, mac: VTEP.parse().unwrap(), source: None, mixed: false })
        );
        assert_eq!(endpoint(&[("public-ip", "1.1.1.1")], "fd00:1::/64"), Ok(None));
        assert_eq!(endpoint(&[("public-ip", "0.0.0.0")], "10.244.1.0/24"), Ok(None));
    }

    #[test]
    fn an_invalid_annotation_is_named_by_its_key() {
        let vxlan =
            |data| [("public-ip", "1.1.1.1"), ("backend-type", "vxlan"), ("backend-data", data)];
        let fault = |pairs: &[(&str, &str)]| endpoint(pairs, "10.244.1.0/24").unwrap_err();
        assert_eq!(
            fault(&[("public-ip", "fd00::1")]),
            r#"annotation flannel.alpha.coreos.com/public-ip is "fd00::1", but must be an IPv4 address"#
        );
        let message = fault(&vxlan("{"));
        assert!(
            message.starts_with(
                "annotation flannel.alpha.coreos.com/backend-data is invalid: no JSON object: "
            ),
            "{message}"
        );
        let message = fault(&vxlan(r#"{"VtepMAC":"here"}"#));
        assert!(
            message.starts_with(
                "annotation flannel.alpha.coreos.com/backend-data is invalid: VtepMAC"
            ),
            "{message}"
        );
    }

    #[test]
    fn a_prefix_is_a_domain_and_an_optional_name() {
        let key =
            |text: &str| text.parse::<AnnotationPrefix>().map(|prefix| prefix.key("public-ip"));
        for (text, expected) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/public-ip"),
            ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/public-ip"),
            ("example.org/blue", "example.org/blue-public-ip"),
            ("example.org/blue-", "example.org/blue-public-ip"),
            ("a_b.c-d.0/x_1", "a_b.c-d.0/x_1-public-ip"),
        ] {
            assert_eq!(key(text), Ok(expected.to_owned()), "{text}");
        }
        for text in [
            "",
            "org",
            "org/blue",
            "Example.org",
            "example..org",
            ".org",
            "a.b/c/d",
            "a.b/C",
            "a b.c",
        ] {
            assert_eq!(key(text), Err(ALLOWED), "{text}");
        }
    }

    #[test]
    fn errors_do_not_contain_whole_annotations() {
        let long = "\u{1}\u{9b}\u{202e}x".repeat(30_000);
        let json = serde_json::json!({ "VtepMAC": long }).to_string();
        for (name, value) in
            [("public-ip", &long), ("backend-data", &long), ("backend-data", &json)]
        {
            let mut pairs = vec![("public-ip", "172.18.0.2"), ("backend-type", "vxlan")];
            pairs.push((name, value.as_str()));
            let reason = endpoint(&pairs, "10.244.1.0/24").unwrap_err();
            assert!(reason.chars().count() < 400, "{reason}");
            assert!(crate::excerpt::is_printable(&reason), "{reason:?}");
        }
    }
}
