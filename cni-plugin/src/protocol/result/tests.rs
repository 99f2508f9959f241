//! What each version of the protocol makes of a result.

use super::*;

fn outcome() -> Outcome {
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
    Outcome {
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
fn the_first_versions_sort_everything_by_family() {
    let expected = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.244.7.2/24", "gateway": "10.244.7.1", "routes": [{"dst": "10.244.0.0/16"}]},
        "ip6": {"ip": "fd00::2/64", "gateway": "fd00::1", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": {},
    });
    assert_eq!(rendered(Version::V0_2_0), expected);
}

#[test]
fn the_first_versions_cannot_do_without_an_address() {
    let nothing = Outcome::default();
    assert_eq!(nothing.render(Version::V0_1_0).unwrap_err().code, 1);
    assert!(nothing.render(Version::V0_3_0).is_ok());
}

#[test]
fn the_middle_versions_tell_the_family_and_always_dns() {
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
fn the_last_versions_leave_out_what_is_empty() {
    for version in [Version::V1_0_0, Version::V1_1_0] {
        let result = rendered(version);
        assert_eq!(result["ips"][0].get("version"), None);
        assert_eq!(result.get("dns"), None);
        assert_eq!(result["interfaces"][0], json!({"name": "cni0", "mac": "0a:00:00:00:00:01"}));
        assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/a");
    }
}

#[test]
fn the_first_interface_is_told_though_its_place_is_zero() {
    let mut outcome = outcome();
    outcome.addresses[0].interface = Some(0);
    assert!(outcome.render(Version::V1_0_0).unwrap().contains("\"interface\": 0"));
}

#[test]
fn what_was_written_is_read_back() {
    let mut outcome = outcome();
    outcome.dns =
        Dns { nameservers: vec!["192.0.2.1".into()], domain: "a.example".into(), ..Dns::default() };
    for version in [Version::V0_4_0, Version::V1_0_0, Version::V1_1_0] {
        let map = outcome.to_json(version).unwrap();
        assert_eq!(Outcome::parse(&map), Ok(outcome.clone()), "{version}");
    }
    let nonsense = json!({"ips": [{"address": "here"}]});
    assert!(Outcome::parse(nonsense.as_object().unwrap()).is_err());
    let capital = json!({"Interfaces": [{"Name": "cni0"}]});
    assert_eq!(Outcome::parse(capital.as_object().unwrap()).unwrap().interfaces[0].name, "cni0");
}
