//! Go's syntax of flags, and the environment.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use tracing::Level;

use super::{NO_VARIABLES, check_refusal, options, parse, refusal};
use crate::daemon::options::{Options, Stop};

#[test]
fn a_flag_has_one_dash_or_two_and_its_value_after_equals_or_a_space() {
    for line in [
        "--etcd-prefix=/a",
        "--etcd-prefix /a",
        "-etcd-prefix=/a",
        "-etcd-prefix /a",
        "-etcd-prefix=/b --etcd-prefix=/a",
        "-ip-masq=false -etcd-prefix /a",
    ] {
        assert_eq!(options(line).etcd().prefix, "/a", "{line}");
    }
    assert_eq!(options("-etcd-prefix=/a=b").etcd().prefix, "/a=b");
    assert_eq!(options("--etcd-prefix --etcd-prefix").etcd().prefix, "--etcd-prefix");
}

#[test]
fn reading_stops_at_the_first_word_that_is_no_flag() {
    for line in ["-etcd-prefix=/a word -nonsense", "-etcd-prefix=/a -- -x", "-etcd-prefix=/a - -x"]
    {
        assert_eq!(options(line).etcd().prefix, "/a", "{line}");
    }
    // A boolean does not use the argument after it.
    assert_eq!(
        options("-iptables-forward-rules false -etcd-prefix=/a").etcd().prefix,
        "/coreos.com/network"
    );
}

#[test]
fn booleans_are_spelt_as_in_go() {
    for no in ["0", "f", "F", "false", "False", "FALSE"] {
        options(&format!("--ip-masq={no}"));
    }
    for yes in ["1", "t", "T", "true", "True", "TRUE"] {
        assert_eq!(parse(&format!("--version={yes}"), NO_VARIABLES).unwrap_err(), Stop::Version);
    }
    for neither in ["no", "tRue", ""] {
        let message = format!("--ip-masq is {neither:?}; allowed: true or false");
        check_refusal(&format!("--ip-masq={neither}"), &message);
    }
}

#[test]
fn integers_may_be_written_in_other_bases() {
    for (text, port) in
        [("8081", 8081), ("0x1F91", 8081), ("0b11", 3), ("0o17", 15), ("017", 15), ("+9", 9)]
    {
        let health = options(&format!("-healthz-ip=127.0.0.1 -healthz-port={text}")).health;
        assert_eq!(health.unwrap().to_string(), format!("127.0.0.1:{port}"), "{text}");
    }
    for text in ["65536", "0x", "08", "+-1", "0x+1", "port", ""] {
        let message = format!("--healthz-port is {text:?}; allowed: a port from 0 to 65535");
        check_refusal(&format!("--healthz-port={text}"), &message);
    }
}

#[test]
fn an_unknown_flag_is_named_and_ends_with_code_2() {
    for (line, message) in [
        ("-etcd-prefx=/a", "--etcd-prefx is not a flag of tweedd; tweedd --help lists them"),
        ("-etcd-pre=/a", "--etcd-pre is not a flag of tweedd; tweedd --help lists them"),
        ("---v", "---v is not a flag: allowed are one or two dashes and a name; see tweedd --help"),
        ("-=v", "-= is not a flag: allowed are one or two dashes and a name; see tweedd --help"),
        ("--etcd-prefix", "--etcd-prefix needs a value"),
    ] {
        check_refusal(line, message);
    }
}

#[test]
fn flags_of_older_flannel_are_reported_as_removed() {
    for flag in [
        "remote",
        "remote-keyfile",
        "remote-certfile",
        "remote-cafile",
        "listen",
        "networks",
        "subnet-dir",
        "use-multi-cluster-cidr",
    ] {
        let (message, code) = refusal(&format!("-{flag}=x"), NO_VARIABLES);
        assert!(
            message
                .starts_with(&format!("--{flag} is a flag of older flannel, which was removed: ")),
            "{message}"
        );
        assert_eq!(code, 2);
    }
}

#[test]
fn the_environment_is_used_for_flags_that_are_not_given() {
    let variables = [
        ("FLANNELD_ETCD_PREFIX", "/env"),
        ("FLANNELD_IFACE", "eth0,eth1"),
        ("FLANNELD_V", "4"),
        ("FLANNELD_MAX_WITHDRAW", "7"),
        ("FLANNELD_PUBLIC_IP", "1.2.3.4"),
        ("FLANNELD_SUBNET_FILE", ""),
        ("FLANNELD_VERSION", "true"),
        ("FLANNELD_HELP", "true"),
    ];
    let options = parse("", &variables).unwrap();
    assert_eq!((options.etcd().prefix.as_str(), options.control.max_withdraw), ("/env", 7));
    assert_eq!(options.control.interface.names, ["eth0,eth1"]);
    assert_eq!(options.verbosity, Level::DEBUG);
    assert_eq!(options.subnet_file.to_str(), Some("/run/flannel/subnet.env"));

    let options = parse("-etcd-prefix=/flag -iface=eth2 -public-ip=", &variables).unwrap();
    assert_eq!(options.etcd().prefix, "/flag");
    assert_eq!(options.control.interface.names, ["eth2"]);
    assert_eq!(options.control.interface.public_ip, None);
}

#[test]
fn an_invalid_variable_is_named_in_the_error() {
    assert_eq!(
        refusal("", &[("FLANNELD_HEALTHZ_PORT", "70000")]),
        ("FLANNELD_HEALTHZ_PORT is \"70000\"; allowed: a port from 0 to 65535".to_owned(), 2)
    );
    assert!(parse("-healthz-port=1", &[("FLANNELD_HEALTHZ_PORT", "70000")]).is_ok());
}

#[test]
fn a_variable_that_gos_parser_rejects_is_ignored_with_a_warning() {
    for (name, value, expected) in [
        ("FLANNELD_HEALTHZ_PORT", "x", "a number"),
        ("FLANNELD_V", "loud", "a number"),
        ("FLANNELD_SUBNET_LEASE_RENEW_MARGIN", "1h", "a number"),
        ("FLANNELD_IP_MASQ", "yes", "true or false"),
        ("FLANNELD_KUBE_SUBNET_MGR", "maybe", "true or false"),
    ] {
        let options = parse("", &[(name, value)]).unwrap();
        let message =
            format!("{name} is {value:?}; allowed: {expected}; it is ignored, as in flanneld");
        assert_eq!(options.warnings, [message]);
        assert_eq!((options.health, options.control.policy.masquerade), (None, None));
    }
}

#[test]
fn version_and_help_are_no_errors() {
    assert_eq!(
        refusal("--version", NO_VARIABLES),
        (format!("tweedd {}", env!("CARGO_PKG_VERSION")), 0)
    );
    assert_eq!(refusal("-version -healthz-port=1", &[("FLANNELD_V", "x")]).1, 0);
    assert!(parse("--version=false", NO_VARIABLES).is_ok());
    for line in ["--help", "-help", "-h", "--h", "-v=1 -help -nonsense"] {
        let (message, code) = refusal(line, NO_VARIABLES);
        assert!(message.contains("tweedd [--flag=value]...") && code == 0, "{message}");
    }
}

#[test]
fn help_lists_each_flag() {
    let help = refusal("--help", NO_VARIABLES).0;
    for flag in "etcd-endpoints etcd-prefix etcd-keyfile etcd-certfile etcd-cafile etcd-username etcd-password iface \
                 iface-regex iface-can-reach subnet-file public-ip public-ipv6 subnet-lease-renew-margin ip-masq \
                 ip-masq-fully-random-disable kube-subnet-mgr kube-api-url kube-annotation-prefix kubeconfig-file \
                 net-config-path set-node-network-unavailable version healthz-ip healthz-port iptables-resync \
                 iptables-forward-rules ip-blackhole-route v vmodule log_backtrace_at help max-withdraw state-file \
                 control-socket config-reload iptables-masquerade-bit metrics-ip metrics-port log-format"
        .split_whitespace()
    {
        let listed = help.lines().any(|line| line.contains("--") && line.split([' ', '[', ',']).any(|word| word == format!("--{flag}")));
        assert!(listed, "{flag}");
    }
}

#[test]
fn an_argument_that_is_not_utf_8_is_rejected() {
    let words =
        [&b"-etcd-password"[..], b"hunter2\xff"].map(|word| OsString::from_vec(word.to_vec()));
    let stop = Options::parse(words, |_| None).unwrap_err();
    assert_eq!((stop.to_string().as_str(), stop.exit_code()), ("argument 2 is not UTF-8", 2));
}
