//! Configs as networks, runtimes and flannel write them.

use std::path::Path;

use super::*;

fn parse(json: &str) -> Result<Config, Error> {
    Config::parse(&serde_json::from_str(json).unwrap(), None)
}

fn ipam(ipam: &str) -> Result<Config, Error> {
    parse(&format!(r#"{{"cniVersion": "0.3.1", "name": "net", "ipam": {ipam}}}"#))
}

fn sets(config: &Config) -> Vec<String> {
    config.range_sets.iter().map(RangeSet::to_string).collect()
}

fn refusal(config: Result<Config, Error>) -> String {
    let error = config.unwrap_err();
    assert_eq!(error.code, 7);
    error.msg
}

#[test]
fn flannels_config_is_read() {
    let config = parse(
        r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":
        [[{"subnet":"10.244.7.0/24"}],[{"subnet":"fd00:10:244:7::/64"}]],
        "routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"name":"cbr0","type":"bridge"}"#,
    )
    .unwrap();
    assert_eq!(config.location.directory(), Path::new("/var/lib/cni/networks/cbr0"));
    assert_eq!(
        sets(&config),
        ["10.244.7.1-10.244.7.254", "fd00:10:244:7::1-fd00:10:244:7:ffff:ffff:ffff:ffff"]
    );
    assert_eq!(config.routes, [Route::to("10.244.0.0/16".parse().unwrap())]);
    assert_eq!((config.requested, config.resolv_conf), (vec![], None));
}

#[test]
fn the_flat_form_precedes_ranges_and_the_runtimes_ranges_precede_both() {
    let config = parse(
        r#"{"cniVersion": "1.0.0", "name": "net",
        "runtimeConfig": {"IPRanges": [[{"Subnet": "10.3.0.0/24"}]]},
        "ipam": {"Subnet": "10.1.0.0/24", "RangeStart": "10.1.0.9", "gateway": "10.1.0.254",
                 "ranges": [[{"subnet": "10.2.0.0/30"}, {"subnet": "10.2.1.0/30"}]],
                 "dataDir": "/tmp/store", "resolvConf": "/etc/resolv.conf"}}"#,
    )
    .unwrap();
    assert_eq!(
        sets(&config),
        ["10.3.0.1-10.3.0.254", "10.1.0.9-10.1.0.254", "10.2.0.1-10.2.0.2,10.2.1.1-10.2.1.2"]
    );
    assert_eq!(config.location.directory(), Path::new("/tmp/store/net"));
    assert_eq!(config.resolv_conf, Some("/etc/resolv.conf".into()));
}

#[test]
fn requested_addresses_add_up() {
    let json = r#"{"cniVersion": "1.0.0", "name": "net", "ipam": {"subnet": "10.0.0.0/24"},
        "args": {"cni": {"ips": ["10.0.0.3/24", "fd00::3"]}},
        "runtimeConfig": {"ips": ["10.0.0.4/24", "10.0.0.2"]}}"#;
    let config = Config::parse(&serde_json::from_str(json).unwrap(), Some("10.0.0.2")).unwrap();
    let expected = ["10.0.0.2", "10.0.0.3", "fd00::3", "10.0.0.4"];
    assert_eq!(config.requested, expected.map(|text| text.parse::<IpAddr>().unwrap()));
    for wrong in ["10.0.0", "10.0.0.2/33", "10.0.0.2/", "no"] {
        assert!(Config::parse(&serde_json::from_str(json).unwrap(), Some(wrong)).is_err());
    }
}

#[test]
fn invalid_configs_are_refused_with_host_locals_errors() {
    assert_eq!(refusal(parse(r#"{"name": "net"}"#)), "IPAM config missing 'ipam' key");
    assert_eq!(refusal(ipam("{}")), "no IP ranges specified");
    assert_eq!(refusal(ipam(r#"{"ranges": [[]]}"#)), "invalid range set 0: empty range set");
    assert_eq!(
        refusal(ipam(r#"{"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}"#)),
        "invalid range set 0: mixed address families"
    );
    assert_eq!(
        refusal(ipam(r#"{"subnet": "10.0.0.0/24", "ranges": [[{"subnet": "10.0.0.0/25"}]]}"#)),
        "range set 0 overlaps with 1"
    );
    for wrong in [r#"{"ranges": {}}"#, r#"{"ranges": [{}]}"#, r#"{"ranges": [[7]]}"#] {
        assert!(ipam(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn old_versions_allow_one_address_of_each_family() {
    let two = r#"{"subnet": "10.0.0.0/24", "ranges": [[{"subnet": "10.1.0.0/24"}]]}"#;
    let both = r#"{"subnet": "10.0.0.0/24", "ranges": [[{"subnet": "fd00::/64"}]]}"#;
    let with = |version: &str, ipam: &str| {
        parse(&format!(r#"{{"cniVersion": "{version}", "name": "net", "ipam": {ipam}}}"#))
    };
    for version in ["", "0.1.0", "0.2.0"] {
        assert!(refusal(with(version, two)).contains("more than 1 address per family"));
        assert!(with(version, both).is_ok());
    }
    assert!(with("0.3.0", two).is_ok());
}

#[test]
fn the_name_of_a_network_cannot_redirect_the_store() {
    for name in ["", ".", "..", "a/b", "/a", "a/", "./a"] {
        let config =
            parse(&format!(r#"{{"name": "{name}", "ipam": {{"subnet": "10.0.0.0/24"}}}}"#));
        assert!(refusal(config).contains("not a file name"), "{name}");
    }
}
