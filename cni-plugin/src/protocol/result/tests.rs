//! The form of a result in each version of the protocol.

use super::*;

fn outcome() -> AddResult {
    let interface = |name: &str, mac: &str, sandbox: Option<&str>| Interface {
        name: name.into(),
        mac: mac.into(),
        sandbox: sandbox.map(str::to_owned),
    };
    let address = |address: &str, gateway: &str| Address {
        interface: Some(2),
        address: address.parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
    };
    let mut with_mtu = Route::to("10.244.0.0/16".parse().unwrap());
    with_mtu.mtu = Some(1400);
    let mut default = Route::to("::/0".parse().unwrap());
    default.gateway = Some("fd00::1".parse().unwrap());
    AddResult {
        interfaces: vec![
            interface("cni0", "0a:00:00:00:00:01", None),
            interface("veth1", "0a:00:00:00:00:02", None),
            interface("eth0", "0a:00:00:00:00:03", Some("/run/netns/a")),
        ],
        addresses: vec![address("10.244.7.2/24", "10.244.7.1"), address("fd00::2/64", "fd00::1")],
        routes: vec![with_mtu, default],
        dns: Dns::default(),
    }
}

fn rendered(version: Version) -> Value {
    serde_json::from_str(&outcome().render(version).unwrap()).unwrap()
}

#[test]
fn the_first_versions_have_a_section_for_each_family() {
    let expected = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.244.7.2/24", "gateway": "10.244.7.1", "routes": [{"dst": "10.244.0.0/16"}]},
        "ip6": {"ip": "fd00::2/64", "gateway": "fd00::1", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": {},
    });
    assert_eq!(rendered(Version::V0_2_0), expected);
}

#[test]
fn the_first_versions_need_an_address() {
    let nothing = AddResult::default();
    assert_eq!(nothing.render(Version::V0_1_0).unwrap_err().code, 1);
    assert!(nothing.render(Version::V0_3_0).is_ok());
}

#[test]
fn the_middle_versions_have_the_family_and_always_dns() {
    for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
        let result = rendered(version);
        assert_eq!(result["cniVersion"], version.as_str());
        assert_eq!(
            result["ips"][1],
            json!({"version": "6", "interface": 2, "address": "fd00::2/64", "gateway": "fd00::1"})
        );
        assert_eq!(result["dns"], json!({}));
        assert_eq!(result["routes"][0], json!({"dst": "10.244.0.0/16", "mtu": 1400}));
    }
}

#[test]
fn the_last_versions_omit_empty_fields() {
    for version in [Version::V1_0_0, Version::V1_1_0] {
        let result = rendered(version);
        assert_eq!(result["ips"][0].get("version"), None);
        assert_eq!(result.get("dns"), None);
        assert_eq!(result["interfaces"][0], json!({"name": "cni0", "mac": "0a:00:00:00:00:01"}));
        assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/a");
    }
}

#[test]
fn the_first_interface_is_written_though_its_index_is_zero() {
    let mut outcome = outcome();
    outcome.addresses[0].interface = Some(0);
    assert!(outcome.render(Version::V1_0_0).unwrap().contains("\"interface\": 0"));
}

#[test]
fn a_written_result_is_read_back() {
    let mut outcome = outcome();
    outcome.dns =
        Dns { nameservers: vec!["192.0.2.1".into()], domain: "a.example".into(), ..Dns::default() };
    for version in [Version::V0_4_0, Version::V1_0_0, Version::V1_1_0] {
        let json = outcome.to_json(version).unwrap();
        assert_eq!(AddResult::parse(json.as_object().unwrap()), Ok(outcome.clone()), "{version:?}");
    }
    let nonsense = json!({"ips": [{"address": "here"}]});
    assert!(AddResult::parse(nonsense.as_object().unwrap()).is_err());
    let capital = json!({"Interfaces": [{"Name": "cni0"}]});
    assert_eq!(AddResult::parse(capital.as_object().unwrap()).unwrap().interfaces[0].name, "cni0");
}

#[test]
fn resolv_conf_is_read_without_its_comments() {
    let dns = Dns::parse_resolv_conf(
        "; old\n# new\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n\
         domain example.com\nsearch a.example b.example\noptions ndots:5 edns0\nsortlist x\n\
         nameserver\n",
    );
    assert_eq!(dns.nameservers, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(dns.domain, "example.com");
    assert_eq!(dns.search, ["a.example", "b.example"]);
    assert_eq!(dns.options, ["ndots:5", "edns0"]);
    assert!(Dns::parse_resolv_conf("# nothing\n\n").is_empty());
}

fn route(json: &str) -> Result<Route, Error> {
    parse_route(&serde_json::from_str(json).unwrap())
}

#[test]
fn unset_fields_of_a_route_are_none() {
    let plain = route(r#"{"dst": "10.244.0.0/16"}"#).unwrap();
    assert_eq!(plain, Route::to("10.244.0.0/16".parse().unwrap()));
    let more = route(r#"{"Dst": "fd00::/48", "GW": "fd00::1", "priority": 7}"#).unwrap();
    assert_eq!(more.gateway, Some("fd00::1".parse().unwrap()));
    assert_eq!(more.priority, Some(7));
}

#[test]
fn a_route_without_a_network_is_refused() {
    for json in ["{}", r#"{"dst": "10.0.0.1"}"#, r#"{"dst": "here/24"}"#] {
        assert!(route(json).is_err(), "{json}");
    }
    assert!(route(r#"{"dst": "10.0.0.0/8", "gw": "there"}"#).is_err());
}

#[test]
fn every_error_is_printable_and_of_limited_length() {
    let error = Error::failed(format!("\u{9b}2J{}", "a path ".repeat(60_000)));
    let json = render_error(&error, Version::V1_1_0);
    assert!(excerpt::is_printable(json.trim_end()) && json.len() < 5000, "{json}");
}

#[test]
fn empty_details_are_omitted() {
    let report = render_error(&Error::decode("no JSON"), Version::V0_3_1);
    assert_eq!(report, "{\"cniVersion\":\"0.3.1\",\"code\":6,\"msg\":\"no JSON\"}\n");
    let report = render_error(&Error::incompatible_version("config is 9"), Version::V1_1_0);
    assert!(report.contains(r#""details":"config is 9""#));
}
