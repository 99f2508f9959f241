//! Flags of etcd; its password is not shown.
#![allow(clippy::unwrap_used)]

use super::{NO_VARIABLES, check_refusal, options, parse, refusal};
use crate::store::etcd::Credentials;

#[test]
fn endpoints_are_trimmed_and_get_a_scheme() {
    let spaced = |list| parse("", &[("FLANNELD_ETCD_ENDPOINTS", list)]).unwrap().etcd().endpoints;
    assert_eq!(spaced("a:2379 , https://b:2379"), ["http://a:2379", "https://b:2379"]);
    assert_eq!(spaced("[fd00::1]:2379"), ["http://[fd00::1]:2379"]);
    assert_eq!(spaced("HTTP://a:1/,http://b:1"), ["http://a:1", "http://b:1"]);
    assert_eq!(options("-etcd-cafile=/ca -etcd-endpoints=a:1").etcd().endpoints, ["https://a:1"]);
    for bad in [",", "ftp://a:1", "http://", "a b"] {
        let (message, code) = refusal("", &[("FLANNELD_ETCD_ENDPOINTS", bad)]);
        assert!(message.starts_with("FLANNELD_ETCD_ENDPOINTS is "), "{message}");
        assert!(message.ends_with("allowed: http:// or https:// with host and port"), "{message}");
        assert_eq!(code, 2);
    }
    assert_eq!(spaced("a:1,,b:1,"), ["http://a:1", "http://b:1"]);
    check_refusal(
        "-etcd-endpoints=",
        "--etcd-endpoints is \"\"; allowed: http:// or https:// with host and port",
    );
}

#[test]
fn a_ca_alone_is_enough_for_tls() {
    let etcd = options("-etcd-cafile=/ca -etcd-endpoints=https://a:1,http://b:1").etcd();
    assert_eq!((etcd.ca_file, etcd.cert_file, etcd.key_file), (Some("/ca".into()), None, None));
    let etcd = options("-etcd-certfile=/c -etcd-keyfile=/k -etcd-endpoints=https://a:1").etcd();
    assert_eq!((etcd.ca_file, etcd.cert_file), (None, Some("/c".into())));
    assert_eq!(etcd.key_file, Some("/k".into()));
}

#[test]
fn an_incomplete_pair_of_flags_is_ignored_with_a_warning() {
    for (line, message) in [
        ("-etcd-certfile=/c", "--etcd-certfile has no effect without --etcd-keyfile"),
        ("-etcd-keyfile=/k", "--etcd-keyfile has no effect without --etcd-certfile"),
        ("-etcd-username=u", "--etcd-username has no effect without --etcd-password"),
        ("-etcd-password=p", "--etcd-password has no effect without --etcd-username"),
    ] {
        let options = options(line);
        assert_eq!(
            options.warnings,
            [format!("{message}; it is ignored, as in flanneld")],
            "{line}"
        );
        let etcd = options.etcd();
        assert_eq!((etcd.cert_file, etcd.key_file, etcd.credentials), (None, None, None));
    }
    for (line, file) in [
        ("-etcd-cafile=/ca", "--etcd-cafile"),
        ("-etcd-certfile=/c -etcd-keyfile=/k", "--etcd-certfile"),
    ] {
        let options = options(&format!("{line} -etcd-endpoints=http://a:1"));
        let message = format!("{file} has no effect: --etcd-endpoints has no https:// server");
        assert_eq!(
            options.warnings,
            [format!("{message}; it is ignored, as in flanneld")],
            "{line}"
        );
        assert_eq!(options.etcd().endpoints, ["http://a:1"]);
    }
    let variable = [("FLANNELD_ETCD_USERNAME", "u")];
    let message = &parse("", &variable).unwrap().warnings[0];
    assert!(message.starts_with("FLANNELD_ETCD_USERNAME has no effect without"), "{message}");
    assert!(options("").warnings.is_empty());
}

#[test]
fn a_secret_is_sent_to_the_server_and_never_shown() {
    let options = options("-etcd-username=me -etcd-password=hunter2");
    let Credentials { user, password } = options.etcd().credentials.clone().unwrap();
    assert_eq!((user.as_str(), password.as_str()), ("me", "hunter2"));
    assert!(!format!("{options:#?}").contains("hunter2"));
    for line in [
        "-etcd-pasword=hunter2",
        "---etcd-password=hunter2",
        "-etcd-endpoints=ftp://me:hunter2@a:1",
    ] {
        let stop = parse(line, NO_VARIABLES).unwrap_err();
        assert!(!format!("{stop} {stop:?}").contains("hunter2"), "{stop:?}");
    }
    for line in ["-etcd-password=hunter2", "-etcd-endpoints=http://me:hunter2@a:1"] {
        let options = super::options(line);
        assert_eq!(options.warnings.len(), 1, "{line}");
        assert!(!format!("{options:?}").contains("hunter2"), "{options:?}");
    }
}

#[test]
fn the_flags_of_etcd_can_be_parsed_alone() {
    let given = [("etcd-endpoints", Some("http://10.0.0.2:2379".to_owned()))];
    let environment = |name: &str| (name == "FLANNELD_ETCD_PREFIX").then(|| "/here".to_owned());
    let options = crate::daemon::options::etcd_options(given, environment).unwrap();
    assert_eq!(options.endpoints, ["http://10.0.0.2:2379"]);
    assert_eq!(options.prefix, "/here");
}

#[test]
fn a_password_that_other_users_may_read_has_a_warning() {
    let warnings =
        |line: &str, variables: &[(&str, &str)]| parse(line, variables).unwrap().warnings;
    let plain = "-etcd-username=u -etcd-endpoints=http://10.0.0.1:2379";
    let message = warnings(&format!("{plain} -etcd-password=tr0ub4dor"), NO_VARIABLES);
    assert_eq!(
        message,
        [
            "any user of this host can read --etcd-password in the list of processes: \
             set FLANNELD_ETCD_PASSWORD instead",
            "the password of etcd is sent to http://10.0.0.1:2379 without encryption: use https",
        ]
    );
    let variable = [("FLANNELD_ETCD_PASSWORD", "tr0ub4dor")];
    let local = "-etcd-username=u -etcd-endpoints=http://127.0.0.1:2379";
    for line in [local, "-etcd-username=u -etcd-endpoints=https://10.0.0.1:2379"] {
        assert_eq!(warnings(line, &variable), [] as [&str; 0]);
    }
    assert_eq!(warnings("-etcd-endpoints=http://10.0.0.1:2379", NO_VARIABLES), [] as [&str; 0]);
}
