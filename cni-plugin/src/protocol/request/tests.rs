//! Which environments are accepted, and the errors for the others.

use super::*;

const EVERYTHING: &[(&str, &str)] = &[
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/run/netns/a"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "IgnoreUnknown=1"),
    ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
];

/// Everything that a runtime sets, but for `changes`.
fn request(changes: &[(&str, &str)]) -> Result<Option<Request>, Error> {
    let pick = |name: &str| {
        let all = changes.iter().chain(EVERYTHING);
        all.into_iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    Request::parse(pick)
}

fn refusal(changes: &[(&str, &str)]) -> (u32, String) {
    let error = request(changes).unwrap_err();
    (error.code, error.msg)
}

#[test]
fn an_add_has_all_variables() {
    let request = request(&[]).unwrap().unwrap();
    let attachment = Attachment { container_id: "c1".into(), interface: "eth0".into() };
    assert_eq!(request.verb, Verb::Add(Sandbox { attachment, netns: "/run/netns/a".into() }));
    assert_eq!(request.path, [PathBuf::from("/opt/cni/bin"), "/usr/lib/cni".into()]);
    assert_eq!(request.netns_rule, NetnsRule::Foreign);
}

#[test]
fn without_a_command_there_is_no_request() {
    assert_eq!(Request::parse(|_| None), Ok(None));
    assert_eq!(request(&[("CNI_COMMAND", "")]), Ok(None));
}

#[test]
fn all_missing_names_are_listed_together() {
    let nothing = |command: &'static str| {
        [
            ("CNI_CONTAINERID", ""),
            ("CNI_NETNS", ""),
            ("CNI_IFNAME", ""),
            ("CNI_PATH", ""),
            ("CNI_COMMAND", command),
        ]
    };
    let missing = |command| refusal(&nothing(command));
    let all = "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing";
    assert_eq!(missing("ADD"), (4, all.to_owned()));
    assert_eq!(missing("CHECK"), (4, all.to_owned()));
    let fewer = "required env variables [CNI_CONTAINERID,CNI_IFNAME,CNI_PATH] missing";
    assert_eq!(missing("DEL"), (4, fewer.to_owned()));
    assert_eq!(missing("GC"), (4, "required env variables [CNI_PATH] missing".to_owned()));
    assert!(request(&nothing("VERSION")).is_ok());
}

#[test]
fn a_del_may_lack_a_namespace() {
    let request = request(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", "")]).unwrap().unwrap();
    assert!(matches!(request.verb, Verb::Del { netns: None, .. }));
}

#[test]
fn an_unknown_command_is_named() {
    assert_eq!(refusal(&[("CNI_COMMAND", "ATTACH")]), (4, "unknown CNI_COMMAND: ATTACH".into()));
}

#[test]
fn malformed_names_are_refused() {
    for id in ["-a", "a/b", "../x", "a b", "ä"] {
        assert_eq!(refusal(&[("CNI_CONTAINERID", id)]).0, 4, "{id}");
    }
    for name in ["sixteencharacter", ".", "..", "a/b", "a:b", "a b"] {
        assert_eq!(refusal(&[("CNI_IFNAME", name)]).0, 4, "{name}");
    }
    assert!(request(&[("CNI_IFNAME", "fifteen-letters")]).is_ok());
}

#[test]
fn a_name_with_control_characters_is_not_added_and_may_be_deleted() {
    for name in ["eth\u{1}", "eth\u{1b}[2J", "\u{202e}0hte", "eth\u{fffd}"] {
        for command in ["ADD", "CHECK"] {
            let (code, text) = refusal(&[("CNI_COMMAND", command), ("CNI_IFNAME", name)]);
            assert_eq!(code, 4, "{name:?}");
            assert!(crate::excerpt::is_printable(&text), "{text}");
        }
        assert!(request(&[("CNI_COMMAND", "DEL"), ("CNI_IFNAME", name)]).is_ok(), "{name:?}");
    }
}

#[test]
fn names_that_a_command_does_not_need_are_not_checked() {
    assert!(request(&[("CNI_COMMAND", "STATUS"), ("CNI_CONTAINERID", "a/b")]).is_ok());
}

#[test]
fn names_of_networks_are_names_of_directories() {
    assert!(check_network_name("cbr0").is_ok());
    assert_eq!(check_network_name("").unwrap_err().msg, "missing network name");
    for name in ["../cbr0", ".cbr0", "a b"] {
        assert_eq!(check_network_name(name).unwrap_err().code, 7, "{name}");
    }
}

#[test]
fn the_plugins_namespace_is_allowed_only_with_an_override() {
    for (text, rule) in
        [("1", NetnsRule::Any), ("TRUE", NetnsRule::Any), ("yes", NetnsRule::Foreign)]
    {
        let request = request(&[("CNI_NETNS_OVERRIDE", text)]).unwrap().unwrap();
        assert_eq!(request.netns_rule, rule, "{text}");
    }
}

fn argument(arguments: &str, key: &str) -> Result<Option<String>, Error> {
    let request = request(&[("CNI_ARGS", arguments)])?.unwrap();
    request.argument(key).map(|found| found.map(str::to_owned))
}

#[test]
fn a_value_is_found_under_its_key() {
    let arguments = "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=0a:58:0a:f4:07:02";
    assert_eq!(argument(arguments, "MAC"), Ok(Some("0a:58:0a:f4:07:02".to_owned())));
    assert_eq!(argument(arguments, "mac"), Ok(None));
    assert_eq!(argument("", "MAC"), Ok(None));
}

#[test]
fn an_invalid_pair_is_named() {
    for arguments in ["MAC", "A=1;", "A=b=c"] {
        assert_eq!(argument(arguments, "X").unwrap_err().code, 4, "{arguments}");
    }
}
