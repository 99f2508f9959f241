//! Encodes and decodes the values of leases in etcd, byte for byte as flannel writes them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::key;
use crate::model::config::BackendType;
use crate::model::json::Fields;
use crate::model::lease::{
    Endpoint, Lease, LeaseAttributes, LeaseId, Malformed, PublishedBackend, Record,
};
use crate::model::prefix::{Family, Prefix};
use crate::store::backend_data::{self, BackendData};

/// The longest value of a lease, in bytes.
pub(super) const LONGEST: usize = 64 * 1024;

/// The metadata of a key in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub created: u64,
    /// The etcd lease of the key.
    pub grant: Option<i64>,
}

/// The order of the fields is flannel's.
#[derive(Serialize)]
struct Value {
    #[serde(rename = "PublicIP")]
    public_ip: Ipv4Addr,
    #[serde(rename = "PublicIPv6")]
    public_ipv6: Option<Ipv6Addr>,
    #[serde(rename = "BackendType")]
    backend_type: BackendType,
    #[serde(rename = "BackendData", skip_serializing_if = "Option::is_none")]
    backend_data: Option<BackendData>,
    #[serde(rename = "BackendV6Data", skip_serializing_if = "Option::is_none")]
    backend_v6_data: Option<BackendData>,
}

/// The fields of one family: the public IP, and the data of the backend.
const fn field_names(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("PublicIP", "BackendData"),
        Family::V6 => ("PublicIPv6", "BackendV6Data"),
    }
}

/// The value that reserves `subnets` for the node with one of `public_ips`, until a node takes it. An
/// unspecified address is no node's.
pub fn reserve(subnets: &[Prefix], public_ips: &[IpAddr]) -> Vec<u8> {
    let public_ip = |subnet: &Prefix| {
        let family = subnet.family();
        let given = public_ips.iter().copied().find(|ip| Family::of(*ip) == family);
        (field_names(family).0, given.unwrap_or_else(|| family.unspecified()))
    };
    let fields: BTreeMap<_, _> = subnets.iter().map(public_ip).collect();
    serde_json::to_vec(&fields).unwrap_or_default()
}

/// The value that publishes `attributes`.
pub fn encode(attributes: &LeaseAttributes) -> Vec<u8> {
    let mut value = Value {
        public_ip: Ipv4Addr::UNSPECIFIED,
        public_ipv6: None,
        backend_type: attributes.backend,
        backend_data: None,
        backend_v6_data: None,
    };
    for endpoint in &attributes.endpoints {
        let data = endpoint.vtep.map(BackendData::from);
        match endpoint.public_ip {
            IpAddr::V4(ip) => (value.public_ip, value.backend_data) = (ip, data),
            IpAddr::V6(ip) => (value.public_ipv6, value.backend_v6_data) = (Some(ip), data),
        }
    }
    // The serialisation of numbers, addresses and strings cannot fail.
    serde_json::to_vec(&value).unwrap_or_default()
}

pub fn decode(id: LeaseId, value: &[u8], origin: Origin) -> Record {
    let endpoints = key::decode(&id)
        .ok_or_else(|| Malformed("its key names no subnet like 10.5.52.0-24".to_owned()))
        .and_then(|subnets| endpoints(&subnets, value, origin));
    let lease = endpoints.map(|endpoints| Lease {
        id: id.clone(),
        endpoints,
        created: origin.created,
        grant: origin.grant,
    });
    Record { id, lease }
}

fn endpoints(subnets: &[Prefix], value: &[u8], origin: Origin) -> Result<Vec<Endpoint>, Malformed> {
    if value.len() > LONGEST {
        let length = value.len();
        let reason = format!("its value has {length} bytes, but at most {LONGEST} are read");
        return Err(Malformed(reason));
    }
    let fields = Fields::parse(value)
        .map_err(|error| Malformed(format!("its value is no JSON object: {error}")))?;
    let backend = fields.str("BackendType")?.unwrap_or_default();
    let backend = PublishedBackend::from(backend.to_lowercase().as_str());
    // As in `Lease::is_vacant`.
    let is_vacant = origin.grant.is_none() && backend.as_str().is_empty();
    let endpoint = |subnet: &Prefix| {
        let family = subnet.family();
        let (ip_field, data_field) = field_names(family);
        let public_ip = public_ip(&fields, ip_field, family)?;
        if public_ip.is_unspecified() {
            return if is_vacant { Ok(None) } else { Err(missing(ip_field, family)) };
        }
        let vtep = backend_data::vtep(&backend, family, || Ok(fields.object(data_field)?))?;
        Ok(Some(Endpoint { subnet: *subnet, public_ip, backend: backend.clone(), vtep }))
    };
    let endpoints = subnets.iter().map(endpoint).filter_map(Result::transpose);
    let mut endpoints = endpoints.collect::<Result<Vec<_>, Malformed>>()?;
    // There are thousands of these, with one endpoint each, so that capacity matters.
    endpoints.shrink_to_fit();
    Ok(endpoints)
}

fn public_ip(fields: &Fields, name: &'static str, family: Family) -> Result<IpAddr, Malformed> {
    let text = fields.str(name)?.filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| missing(name, family))?;
    backend_data::address(name, text, family)
}

fn missing(name: &str, family: Family) -> Malformed {
    Malformed(format!("its key names an {family} subnet, but {name} is missing"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mac::MacAddr;
    use crate::model::lease::{EndpointAttributes, Vtep};

    const ORIGIN: Origin = Origin { created: 7, grant: Some(42) };

    fn vtep(mac: &str) -> Vtep {
        Vtep { vni: Some(1), mac: mac.parse().unwrap(), source: None, mixed: false }
    }

    fn attributes(backend: BackendType, endpoints: &[(&str, Option<Vtep>)]) -> LeaseAttributes {
        let endpoints = endpoints.iter().map(|(public_ip, vtep)| EndpointAttributes {
            public_ip: public_ip.parse().unwrap(),
            vtep: *vtep,
        });
        LeaseAttributes { backend, endpoints: endpoints.collect() }
    }

    fn encoded(backend: BackendType, endpoints: &[(&str, Option<Vtep>)]) -> String {
        String::from_utf8(encode(&attributes(backend, endpoints))).unwrap()
    }

    fn decoded(key: &str, value: &str) -> Result<Lease, String> {
        decode(LeaseId::new(key), value.as_bytes(), ORIGIN).lease.map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_flannels_byte_for_byte() {
        let mac = "c6:d2:32:6f:8f:44";
        assert_eq!(
            encoded(BackendType::Vxlan, &[("192.168.64.3", Some(vtep(mac)))]),
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
        );
        assert_eq!(
            encoded(BackendType::HostGw, &[("192.168.64.3", None)]),
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"host-gw"}"#
        );
        assert_eq!(
            encoded(BackendType::HostGw, &[("192.168.64.3", Some(vtep(mac)))]),
            r#"{"PublicIP":"192.168.64.3","PublicIPv6":null,"BackendType":"host-gw","BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
        );
        assert_eq!(
            encoded(
                BackendType::Vxlan,
                &[("10.0.0.4", Some(vtep(mac))), ("fd00::4", Some(vtep("0a:00:00:00:00:06")))]
            ),
            concat!(
                r#"{"PublicIP":"10.0.0.4","PublicIPv6":"fd00::4","BackendType":"vxlan","#,
                r#""BackendData":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"},"#,
                r#""BackendV6Data":{"VNI":1,"VtepMAC":"0a:00:00:00:00:06"}}"#
            )
        );
        assert_eq!(
            encoded(BackendType::Vxlan, &[("fd00::4", Some(vtep(mac)))]),
            r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::4","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}}"#
        );
    }

    #[test]
    fn old_peers_omit_vni_and_type() {
        let no_vni = r#"{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VtepMAC":"c6:d2:32:6f:8f:44"}}"#;
        let lease = decoded("10.5.52.0-24", no_vni).unwrap();
        let vtep = lease.endpoints.first().unwrap().vtep.unwrap();
        assert_eq!((vtep.vni, vtep.mac.to_string().as_str()), (None, "c6:d2:32:6f:8f:44"));

        let no_type = decoded("10.5.52.0-24", r#"{"PublicIP":"1.2.3.4"}"#).unwrap();
        assert_eq!(no_type.endpoints.first().unwrap().backend, PublishedBackend::from(""));
        assert_eq!((no_type.created, no_type.grant), (7, Some(42)));
    }

    #[test]
    fn keys_and_types_match_in_any_case() {
        let value = r#"{"publicip":"1.2.3.4","BACKENDTYPE":"VXLAN","backenddata":{"vtepmac":"c6:d2:32:6f:8f:44"},"x":1}"#;
        let lease = decoded("10.5.52.0-24", value).unwrap();
        let endpoint = lease.endpoints.first().unwrap();
        assert_eq!(endpoint.backend, BackendType::Vxlan.into());
        assert!(endpoint.vtep.is_some());
    }

    #[test]
    fn data_of_other_backends_is_ignored() {
        for (backend, data) in
            [("wireguard", r#"{"PublicKey":"x"}"#), ("udp", "7"), ("host-gw", "\"x\"")]
        {
            let value = format!(
                r#"{{"PublicIP":"1.2.3.4","BackendType":"{backend}","BackendData":{data}}}"#
            );
            assert_eq!(
                decoded("10.5.52.0-24", &value).unwrap().endpoints.first().unwrap().vtep,
                None
            );
        }
    }

    #[test]
    fn an_invalid_lease_has_a_reason() {
        let cases = [
            (
                "10.5.52.0-32",
                r#"{"PublicIP":"1.2.3.4"}"#,
                "its key names no subnet like 10.5.52.0-24",
            ),
            ("10.5.52.0-24", "[]", "its value is no JSON object: "),
            ("10.5.52.0-24", "", "its value is no JSON object: "),
            ("10.5.52.0-24", "{}", "its key names an IPv4 subnet, but PublicIP is missing"),
            (
                "10.5.52.0-24",
                r#"{"PublicIP":"0.0.0.0"}"#,
                "its key names an IPv4 subnet, but PublicIP is missing",
            ),
            (
                "10.5.52.0-24&fd00::-64",
                r#"{"PublicIP":"1.2.3.4","PublicIPv6":null}"#,
                "its key names an IPv6 subnet, but PublicIPv6 is missing",
            ),
            (
                "10.5.52.0-24",
                r#"{"PublicIP":"fd00::1"}"#,
                r#"PublicIP is "fd00::1", but must be an IPv4 address"#,
            ),
            ("10.5.52.0-24", r#"{"PublicIP":7}"#, "PublicIP is 7, but must be a string"),
            (
                "10.5.52.0-24",
                r#"{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{"VtepMAC":"x"}}"#,
                "VtepMAC: \"x\" is not a MAC address like 0a:58:0a:f4:01:02",
            ),
            (
                "10.5.52.0-24",
                r#"{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":7}"#,
                "BackendData is 7, but must be an object",
            ),
        ];
        for (key, value, reason) in cases {
            let error = decoded(key, value).unwrap_err();
            assert!(error.starts_with(reason), "{key} {value}: {error}");
        }
    }

    #[test]
    fn a_reservation_has_an_endpoint_for_each_public_ip() {
        let key = "10.5.52.0-24&fd00::-64";
        let reserved = |public_ips: &[&str], grant| {
            let id = LeaseId::new(key);
            let public_ips: Vec<IpAddr> = public_ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let value = reserve(&key::claimed(&id), &public_ips);
            decode(id, &value, Origin { created: 7, grant }).lease
        };
        for public_ips in [&[][..], &["1.2.3.4"], &["1.2.3.4", "fd00::4"]] {
            let lease = reserved(public_ips, None).unwrap();
            let shown = lease.endpoints.iter().map(|endpoint| endpoint.public_ip.to_string());
            assert_eq!(shown.collect::<Vec<_>>(), public_ips);
            assert!(lease.is_vacant());
        }
        assert!(reserved(&["1.2.3.4"], Some(42)).is_err(), "a lease with a term needs both");
        // Written over the lease of a node, this may be a mistake, and is not accepted.
        let origin = Origin { created: 7, grant: None };
        assert!(decode(LeaseId::new("10.5.52.0-24"), b"{}", origin).lease.is_err());
        let taken = encoded(BackendType::HostGw, &[("1.2.3.4", None)]);
        let taken = decode(LeaseId::new("10.5.52.0-24"), taken.as_bytes(), origin).lease.unwrap();
        assert!(!taken.is_vacant());
    }

    #[test]
    fn a_value_too_long_is_not_parsed() {
        let value = format!(r#"{{"PublicIP":"1.2.3.4","x":"{}"}}"#, "x".repeat(64 * 1024));
        let error = decoded("10.5.52.0-24", &value).unwrap_err();
        assert_eq!(
            error,
            format!("its value has {} bytes, but at most 65536 are read", value.len())
        );
    }

    #[test]
    fn a_v6_only_lease_has_one_endpoint() {
        let value = encoded(BackendType::Vxlan, &[("fd00::4", Some(vtep("c6:d2:32:6f:8f:44")))]);
        let lease = decoded("0.0.0.0-0&fd00:12:13::-64", &value).unwrap();
        let endpoint = lease.endpoints.first().unwrap();
        assert_eq!(lease.endpoints.len(), 1);
        assert_eq!(endpoint.subnet.to_string(), "fd00:12:13::/64");
        assert_eq!(endpoint.public_ip.to_string(), "fd00::4");
    }

    #[test]
    fn the_source_of_packets_is_published_next_to_the_vtep() {
        let source = Some("10.0.0.4".parse().unwrap());
        let published = Vtep { source, ..vtep("c6:d2:32:6f:8f:44") };
        let value = encoded(BackendType::Vxlan, &[("192.0.2.4", Some(published))]);
        assert!(value.contains(r#""VtepMAC":"c6:d2:32:6f:8f:44","Source":"10.0.0.4"}"#), "{value}");
        for (text, expected) in [(r#""10.0.0.4""#, source), (r#""fd00::4""#, None), ("4", None)] {
            let value = value.replace(r#""10.0.0.4""#, text);
            let lease = decoded("10.5.52.0-24", &value).unwrap();
            assert_eq!(lease.endpoints.first().unwrap().vtep.unwrap().source, expected, "{value}");
        }
    }

    #[test]
    fn a_vxlan_node_publishes_that_it_has_mixed() {
        let published = Vtep { mixed: true, ..vtep("c6:d2:32:6f:8f:44") };
        let value = encoded(BackendType::Vxlan, &[("192.0.2.4", Some(published))]);
        assert!(value.contains(r#""VtepMAC":"c6:d2:32:6f:8f:44","Mixed":true}"#), "{value}");
        for (text, expected) in [("true", true), ("false", false), ("1", false), ("{}", false)] {
            let value = value.replace("true", text);
            let lease = decoded("10.5.52.0-24", &value).unwrap();
            assert_eq!(lease.endpoints.first().unwrap().is_mixed(), expected, "{value}");
        }
    }

    prop_compose! {
        fn any_vtep(family: Family)(
            vni in proptest::option::of(0_u32..1 << 24),
            octets: [u8; 6],
            source in proptest::option::of(any::<u32>()),
            mixed: bool,
        ) -> Vtep {
            let source = source.map(|number| family.address(number.into()));
            Vtep { vni, mac: MacAddr::new(octets), source, mixed }
        }
    }

    fn any_backend() -> impl Strategy<Value = BackendType> {
        prop_oneof![Just(BackendType::Vxlan), Just(BackendType::HostGw)]
    }

    proptest! {
        #[test]
        fn peers_read_what_is_published(
            backend in any_backend(),
            v4 in 1_u32..,
            v6 in 1_u128..,
            vteps in proptest::option::of((any_vtep(Family::V4), any_vtep(Family::V6))),
            subnet: u32,
            subnet6: u128,
        ) {
            let (vtep4, vtep6) = (vteps.map(|v| v.0), vteps.map(|v| v.1));
            let subnets = [
                Prefix::holding(Family::V4.address(subnet.into()), 24).unwrap(),
                Prefix::holding(Family::V6.address(subnet6), 64).unwrap(),
            ];
            let published = LeaseAttributes {
                backend,
                endpoints: vec![
                    EndpointAttributes { public_ip: Family::V4.address(v4.into()), vtep: vtep4 },
                    EndpointAttributes { public_ip: Family::V6.address(v6), vtep: vtep6 },
                ],
            };
            let read = decode(key::encode(&subnets), &encode(&published), ORIGIN).lease.unwrap();
            let expected = published.endpoints.iter().zip(subnets).map(|(attributes, subnet)| Endpoint {
                subnet,
                public_ip: attributes.public_ip,
                backend: backend.into(),
                vtep: attributes.vtep,
            });
            prop_assert_eq!(read.endpoints, expected.collect::<Vec<_>>());
        }

        #[test]
        fn no_value_makes_the_reader_panic(bytes: Vec<u8>) {
            let record = decode(LeaseId::new("10.5.52.0-24"), &bytes, ORIGIN);
            prop_assert!(record.lease.is_err());
        }

        #[test]
        fn no_json_makes_the_reader_panic(public_ip: String, data: String, kind: String) {
            let value = serde_json::json!({
                "PublicIP": public_ip, "BackendType": kind, "BackendData": data, "BackendV6Data": {"VNI": data},
            });
            decode(LeaseId::new("10.5.52.0-24&fd00::-64"), value.to_string().as_bytes(), ORIGIN);
        }
    }

    /// A reason is one short line for any value of any field.
    fn is_short(reason: &str) -> bool {
        reason.chars().count() < 300 && crate::excerpt::is_printable(reason)
    }

    #[test]
    fn errors_do_not_contain_whole_texts() {
        let long = serde_json::Value::from("\u{1}\u{9b}\u{202e}x".repeat(8000));
        let vxlan = |data: String| {
            format!(r#"{{"PublicIP":"1.2.3.4","BackendType":"vxlan","BackendData":{data}}}"#)
        };
        for value in [
            long.to_string(),
            format!(r#"{{"PublicIP":{long}}}"#),
            format!(r#"{{"PublicIP":[{long}]}}"#),
            format!(r#"{{"PublicIP":"1.2.3.4","BackendType":[{long}]}}"#),
            vxlan(long.to_string()),
            vxlan(format!(r#"{{"VtepMAC":{long}}}"#)),
            vxlan(format!(r#"{{"VtepMAC":[{long}]}}"#)),
            vxlan(format!(r#"{{"VtepMAC":"02:00:00:00:00:01","VNI":{long}}}"#)),
        ] {
            let reason = decoded("10.5.52.0-24", &value).unwrap_err();
            assert!(is_short(&reason), "{reason}");
        }
    }
}
