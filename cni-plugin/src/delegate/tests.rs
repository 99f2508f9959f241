//! Expected configs of delegates, as flannel builds them.

use super::*;
use crate::protocol::request::Command;

const V4: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
                  FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
const DUAL: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\n\
                    FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:7::1/64\n\
                    FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n";

/// The config of the delegate for the config `json` and the subnet.env `env`.
fn built(json: &str, env: &str) -> Result<String, Error> {
    let config = NetworkConfig::parse(json.as_bytes(), Command::Add).unwrap();
    let delegate = build(&config, &SubnetEnv::parse(env).unwrap())?;
    Ok(Value::Object(delegate).to_string())
}

#[test]
fn the_usual_config_becomes_flannels_delegate_config() {
    let json = r#"{"cniVersion":"0.3.1","name":"cbr0","type":"flannel",
        "delegate":{"hairpinMode":true,"isDefaultGateway":true}}"#;
    assert_eq!(
        built(json, V4).unwrap(),
        r#"{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.7.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#
    );
}

#[test]
fn two_families_give_two_ranges_and_two_routes() {
    let json = r#"{"cniVersion":"1.0.0","name":"cbr0","type":"flannel"}"#;
    assert_eq!(
        built(json, DUAL).unwrap(),
        r#"{"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.244.7.0/24"}],[{"subnet":"fd00:10:244:7::/64"}]],"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#
    );
}

#[test]
fn without_a_version_the_delegate_gets_none() {
    assert_eq!(
        built(r#"{"name":"cbr0","type":"flannel","delegate":null}"#, V4).unwrap(),
        r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.7.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}"#
    );
}

#[test]
fn another_delegate_gets_no_gateway_setting() {
    let json = r#"{"name":"a","delegate":{"type":"ipvlan","master":"eth0"}}"#;
    assert_eq!(
        built(json, V4).unwrap(),
        r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.7.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"master":"eth0","mtu":1450,"name":"a","type":"ipvlan"}"#
    );
}

#[test]
fn settings_of_the_operator_take_precedence() {
    let json = r#"{"name":"a",
        "delegate":{"mtu":1400,"bridge":"mynet0","ipMasq":true,"isGateway":false}}"#;
    let delegate = built(json, V4).unwrap();
    for kept in
        [r#""mtu":1400"#, r#""bridge":"mynet0""#, r#""ipMasq":true"#, r#""isGateway":false"#]
    {
        assert!(delegate.contains(kept), "{kept} in {delegate}");
    }
}

#[test]
fn routes_of_the_operator_come_before_flannels_and_ranges_are_replaced() {
    let json = r#"{"name":"a","ipam":{"type":"my-ipam","unknown-param":"v","ranges":[],
        "routes":[{"dst":"10.96.0.0/12","mine":1},{"dst":"192.168.244.0/24","gw":"10.1.17.20"}]}}"#;
    assert_eq!(
        built(json, V4).unwrap(),
        r#"{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.7.0/24"}]],"routes":[{"dst":"10.96.0.0/12"},{"dst":"192.168.244.0/24","gw":"10.1.17.20"},{"dst":"10.244.0.0/16"}],"type":"my-ipam","unknown-param":"v"},"isGateway":true,"mtu":1450,"name":"a","type":"bridge"}"#
    );
}

#[test]
fn two_networks_give_two_routes_and_one_range() {
    let env = V4.replace("10.244.0.0/16", "10.1.0.0/16,192.168.0.0/16");
    let delegate = built(r#"{"name":"a"}"#, &env).unwrap();
    assert!(delegate.contains(r#""routes":[{"dst":"10.1.0.0/16"},{"dst":"192.168.0.0/16"}]"#));
}

#[test]
fn settings_of_the_runtime_replace_those_of_the_config() {
    let json =
        r#"{"name":"a","delegate":{"runtimeConfig":{"mac":"x"}},"runtimeConfig":{"ips":[]}}"#;
    assert!(built(json, V4).unwrap().contains(r#""runtimeConfig":{"ips":[]}"#));
}

#[test]
fn keys_that_flannel_sets_are_refused_in_the_config() {
    let refusal = |delegate: &str| {
        let json = format!(r#"{{"name":"a","delegate":{delegate}}}"#);
        let error = built(&json, V4).unwrap_err();
        (error.code, error.msg)
    };
    assert_eq!(
        refusal(r#"{"type":1}"#),
        (7, "'delegate' dictionary, if present, must have (string) 'type' field".to_owned())
    );
    assert_eq!(
        refusal(r#"{"name":"b"}"#).1,
        "'delegate' dictionary must not have 'name' field, it'll be set by flannel"
    );
    assert_eq!(
        refusal(r#"{"ipam":{}}"#).1,
        "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel"
    );
}

#[test]
fn without_subnets_location_and_name_are_known() {
    let json = r#"{"name":"cbr0","delegate":{"bridge":"br1"},"ipam":{"dataDir":"/d"}}"#;
    let config = NetworkConfig::parse(json.as_bytes(), Command::Del).unwrap();
    let delegate = build_without_subnets(&config);
    assert_eq!(
        Value::Object(delegate).to_string(),
        r#"{"bridge":"br1","ipMasq":true,"ipam":{"dataDir":"/d","type":"host-local"},"isGateway":true,"name":"cbr0","type":"bridge"}"#
    );
}
