//! The bytes of subnet.env, as flanneld writes them and the CNI plugin reads them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipnetwork::IpNetwork;
use tweed_cni::subnet_env::{Malformed, SubnetEnv, SubnetEnvError, gateway, previous_subnets};

const V4: &str = "\
FLANNEL_NETWORK=10.42.0.0/16
FLANNEL_SUBNET=10.42.1.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
";
const V6: &str = "\
FLANNEL_IPV6_NETWORK=2001:cafe:42::/56
FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64
FLANNEL_MTU=1430
FLANNEL_IPMASQ=false
";
const DUAL: &str = "\
FLANNEL_NETWORK=10.42.0.0/16
FLANNEL_SUBNET=10.42.1.1/24
FLANNEL_IPV6_NETWORK=2001:cafe:42::/56
FLANNEL_IPV6_SUBNET=2001:cafe:42:1::1/64
FLANNEL_MTU=1430
FLANNEL_IPMASQ=false
";

fn prefixes(texts: &[&str]) -> Vec<IpNetwork> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn env(networks: &[&str], subnets: &[&str], mtu: u32) -> SubnetEnv {
    SubnetEnv {
        networks: prefixes(networks),
        subnets: prefixes(subnets),
        mtu,
        ip_masq: mtu == 1450,
    }
}

fn previous(text: &str) -> Vec<IpNetwork> {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("subnet.env");
    fs::write(&path, text).unwrap();
    previous_subnets(&path).unwrap()
}

fn refusal(text: &str) -> String {
    SubnetEnv::parse(text).unwrap_err().to_string()
}

#[test]
fn the_bytes_equal_flannelds() {
    let (v4, v6) =
        (("10.42.0.0/16", "10.42.1.1/24"), ("2001:cafe:42::/56", "2001:cafe:42:1::1/64"));
    assert_eq!(env(&[v4.0], &[v4.1], 1450).render(), V4);
    assert_eq!(env(&[v6.0], &[v6.1], 1430).render(), V6);
    assert_eq!(env(&[v4.0, v6.0], &[v4.1, v6.1], 1430).render(), DUAL);
    // Families have flanneld's order, whatever the order of the arguments.
    assert_eq!(env(&[v6.0, v4.0], &[v6.1, v4.1], 1430).render(), DUAL);
}

#[test]
fn a_written_file_is_read_back() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("flannel/subnet.env");
    for text in [V4, V6, DUAL] {
        let env = SubnetEnv::parse(text).unwrap();
        env.write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(SubnetEnv::read(&path).unwrap(), env);
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn networks_may_be_a_list() {
    let text = V4.replace("10.42.0.0/16", "10.42.3.0/16,192.168.0.0/16,10.42.0.0/16");
    let env = SubnetEnv::parse(&text).unwrap();
    assert_eq!(env.networks, prefixes(&["10.42.0.0/16", "192.168.0.0/16"]));
    assert!(env.render().starts_with("FLANNEL_NETWORK=10.42.0.0/16,192.168.0.0/16\n"));
}

#[test]
fn carriage_returns_and_unknown_keys_are_ignored_and_the_last_of_equal_keys_counts() {
    let text = format!("FOO\nBAR=1\nFLANNEL_MTU=9000\n{V4}").replace('\n', "\r\n");
    assert_eq!(SubnetEnv::parse(&text), SubnetEnv::parse(V4));
}

#[test]
fn masquerading_is_on_only_for_the_text_true() {
    for word in ["True", "1", "", "yes"] {
        let text = V4.replace("=true", &format!("={word}"));
        assert!(!SubnetEnv::parse(&text).unwrap().ip_masq, "{word}");
    }
}

#[test]
fn all_missing_keys_are_named_at_once() {
    assert_eq!(
        refusal(""),
        "missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, \
         FLANNEL_MTU, FLANNEL_IPMASQ"
    );
    assert_eq!(refusal(&V4.replace("FLANNEL_MTU", "MTU")), "missing FLANNEL_MTU");
    assert_eq!(
        refusal(&V6.replace("FLANNEL_IPV6_SUBNET", "X")),
        "missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"
    );
}

#[test]
fn a_bad_value_is_named_with_its_line() {
    for (from, to, expected) in [
        ("=1450", "=\"1450\"", r#"line 3: FLANNEL_MTU is "\"1450\"", not a number of bytes"#),
        (
            "10.42.1.1/24",
            "10.42.1.1",
            r#"line 2: FLANNEL_SUBNET is "10.42.1.1", not an IPv4 prefix"#,
        ),
        ("1.1/24", "1.1/33", r#"line 2: FLANNEL_SUBNET is "10.42.1.1/33", not an IPv4 prefix"#),
        ("1.1/24", "1.1/+24", r#"line 2: FLANNEL_SUBNET is "10.42.1.1/+24", not an IPv4 prefix"#),
        ("0.0/16", "0.0/16,", r#"line 1: FLANNEL_NETWORK is "10.42.0.0/16,", not an IPv4 prefix"#),
        (
            "10.42.0.0/16",
            "fd00::/8",
            r#"line 1: FLANNEL_NETWORK is "fd00::/8", not an IPv4 prefix"#,
        ),
        ("MTU=1450", "MTU", "line 3: FLANNEL_MTU has no value"),
    ] {
        assert_eq!(refusal(&V4.replace(from, to)), expected);
    }
}

#[test]
fn the_gateway_is_the_first_address() {
    for (subnet, expected) in [
        ("10.42.1.0/24", "10.42.1.1/24"),
        ("10.42.1.77/24", "10.42.1.1/24"),
        ("2001:cafe:42:1::/64", "2001:cafe:42:1::1/64"),
        ("255.255.255.255/32", "255.255.255.255/32"),
    ] {
        assert_eq!(gateway(subnet.parse().unwrap()).to_string(), expected);
    }
}

#[test]
fn the_previous_subnets_are_base_addresses_of_both_families() {
    assert_eq!(previous(DUAL), prefixes(&["10.42.1.0/24", "2001:cafe:42:1::/64"]));
    assert_eq!(previous(V6), prefixes(&["2001:cafe:42:1::/64"]));
}

#[test]
fn the_previous_subnets_are_read_as_a_shell_would() {
    let quoted = "# ours\n export FLANNEL_SUBNET = \"10.42.1.1/24\"\nnonsense\n";
    assert_eq!(previous(quoted), prefixes(&["10.42.1.0/24"]));
    let twice = "FLANNEL_SUBNET=10.42.9.1/24\nFLANNEL_SUBNET='10.42.1.1/24'\n";
    assert_eq!(previous(twice), prefixes(&["10.42.1.0/24"]));
}

#[test]
fn invalid_previous_subnets_are_skipped_and_several_count_as_none() {
    assert_eq!(previous("FLANNEL_SUBNET=x,10.42.1.1/24\n"), prefixes(&["10.42.1.0/24"]));
    assert_eq!(previous("FLANNEL_SUBNET=10.42.1.1/24,10.42.2.1/24\n"), []);
    assert_eq!(previous("FLANNEL_SUBNET=10.42.1.1\nFLANNEL_IPV6_SUBNET=10.42.1.1/24\n"), []);
    assert_eq!(previous("\u{0}\u{fffd}"), []);
}

#[test]
fn an_absent_file_has_no_subnets_and_the_usual_error() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("subnet.env");
    assert_eq!(previous_subnets(&path).unwrap(), []);
    let error = SubnetEnv::read(&path).unwrap_err();
    assert!(error.to_string().ends_with("/subnet.env: no such file or directory"), "{error}");
}

#[test]
fn a_malformed_file_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("subnet.env");
    fs::write(&path, "FLANNEL_MTU").unwrap();
    match SubnetEnv::read(&path).unwrap_err() {
        SubnetEnvError::Malformed { path: named, source } => {
            assert_eq!(named, path);
            assert_eq!(source, Malformed::NoValue { line: 1, key: "FLANNEL_MTU" });
        }
        other => panic!("{other}"),
    }
    assert!(previous_subnets(home.path()).unwrap_err().to_string().starts_with("reading "));
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let home = tempfile::tempdir().unwrap();
    let error = SubnetEnv::parse(V4).unwrap().write(home.path()).unwrap_err();
    assert!(error.to_string().starts_with(&home.path().display().to_string()), "{error}");
}
