//! `tweedctl ipam check` on stores with remains of crashes and of other programs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use expect_test::expect;
use serde_json::Value;
use tempfile::TempDir;

/// A node with one network, whose runtime knows one container.
struct Node(TempDir);

impl Node {
    fn with(records: &[(&str, &str)]) -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(node.0.path().join("networks/cbr0")).unwrap();
        fs::create_dir_all(node.0.path().join("results")).unwrap();
        for (name, content) in
            [("lock", ""), ("last_reserved_ip.0", "10.0.0.2")].iter().chain(records)
        {
            let path = node.0.path().join("networks/cbr0").join(name);
            fs::write(&path, content).unwrap();
            // As the plugin creates them.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1600)).unwrap();
        }
        let cached = r#"{"kind": "cniCacheV1", "containerId": "known", "ifName": "eth0",
            "networkName": "cbr0", "result": {"ips": [{"address": "10.0.0.2/24"}]}}"#;
        fs::write(node.0.path().join("results/cbr0-known-eth0"), cached).unwrap();
        node
    }

    /// Exit code, standard output and standard error.
    fn check(&self, more: &[&str]) -> (i32, String, String) {
        let place = |name| self.0.path().join(name);
        let output = Command::new(env!("CARGO_BIN_EXE_tweedctl"))
            .args(["ipam", "check"])
            .arg("--data-dir")
            .arg(place("networks"))
            .arg("--results-dir")
            .arg(place("results"))
            .arg("--records-dir")
            .arg(place("flannel"))
            .args(more)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn has(&self, name: &str) -> bool {
        self.0.path().join("networks/cbr0").join(name).exists()
    }
}

const KNOWN: (&str, &str) = ("10.0.0.2", "known\r\neth0");

#[test]
fn a_store_without_a_fault_has_no_findings() {
    let node = Node::with(&[KNOWN]);
    let (code, out, _) = node.check(&["--sees-all"]);
    assert_eq!((code, out.as_str()), (0, "cbr0: 1 held, 0 dead, 0 freed, 0 unclear or foreign\n"));
}

#[test]
fn every_fault_is_named_with_its_reason_and_only_dead_records_are_freed() {
    let node = Node::with(&[
        KNOWN,
        ("10.0.0.3", "new\r\neth0"),
        ("10.0.0.4", ""),
        ("10.0.0.5", "the printer's own"),
        ("10.0.0.6", "known\r\neth0"),
    ]);
    let (code, out, err) = node.check(&["--sees-all"]);
    assert_eq!((code, err.as_str()), (1, ""));
    expect![[r"
        NETWORK  ADDRESS   FOUND         OUTCOME
        cbr0     10.0.0.3  leaked        stays
            eth0 of container new: the runtime does not know its container, and no
              namespace has the address, but it is not older than ten minutes
        cbr0     10.0.0.4  half-written  --repair frees it
            the file has no content, after a crash or a power failure
        cbr0     10.0.0.5  foreign       stays
            it does not name the container that holds it
        cbr0     10.0.0.6  double        stays
            eth0 of container known: the runtime lists 10.0.0.2 for its owner
        cbr0: 1 held, 1 dead, 0 freed, 3 unclear or foreign
    "]]
    .assert_eq(&out);

    let (code, out, _) = node.check(&["--sees-all", "--repair", "-o", "json"]);
    assert_eq!(code, 0);
    let answer: Value = serde_json::from_str(&out).unwrap();
    let records = answer["networks"][0]["records"].as_array().unwrap();
    let freed = records.iter().filter(|record| record["freed"] == true);
    let freed: Vec<_> = freed.map(|record| record["address"].as_str().unwrap()).collect();
    assert_eq!(freed, ["10.0.0.4"]);
    assert!(!node.has("10.0.0.4"));
    assert!(["10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.6"].iter().all(|name| node.has(name)));
}

#[test]
fn records_written_by_hand_are_named_and_kept() {
    let node = Node::with(&[KNOWN, ("10.0.0.5", "printer"), ("10.0.0.6", "")]);
    let by_hand = node.0.path().join("networks/cbr0/10.0.0.6");
    fs::set_permissions(by_hand, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, out, _) = node.check(&["--sees-all", "--repair"]);
    assert_eq!(code, 0);
    expect![[r#"
        NETWORK  ADDRESS   FOUND    OUTCOME
        cbr0     10.0.0.5  foreign  stays
            container printer: it names "printer", which is not a container ID
        cbr0     10.0.0.6  foreign  stays
            it does not name the container that holds it
        cbr0: 1 held, 0 dead, 0 freed, 2 unclear or foreign
    "#]]
    .assert_eq(&out);
    assert!(["10.0.0.5", "10.0.0.6"].iter().all(|name| node.has(name)));
}

#[test]
fn records_of_attachments_are_checked_against_traces_of_their_containers() {
    let node = Node::with(&[KNOWN]);
    fs::create_dir(node.0.path().join("flannel")).unwrap();
    for name in ["known:eth0", "gone:eth0", "gone-too"] {
        fs::write(node.0.path().join("flannel").join(name), r#"{"name":"cbr0"}"#).unwrap();
    }
    let (code, out, _) = node.check(&["--sees-all"]);
    assert_eq!(code, 0);
    expect![[r"
        RECORD     FOUND   OUTCOME
        gone:eth0  leaked  stays
            eth0 of container gone: the runtime does not know its container, which has
              neither address nor link, but it is not older than ten minutes
        gone-too   leaked  stays
            container gone-too: the runtime does not know its container, which has
              neither address nor link, but it is not older than ten minutes
        cbr0: 1 held, 0 dead, 0 freed, 0 unclear or foreign
        records of attachments: 1 held, 0 dead, 0 freed, 2 unclear or foreign
    "]]
    .assert_eq(&out);
    let (_, out, _) = node.check(&["--sees-all", "-o", "json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["attachments"]["records"][0]["file"], "gone:eth0");
    assert_eq!(answer["attachments"]["records"][0]["provenDead"], false);
}

#[test]
fn in_a_container_nothing_is_repaired_without_sees_all() {
    let node = Node::with(&[("10.0.0.4", "")]);
    let (code, out, _) = node.check(&[]);
    assert_eq!(code, 1);
    assert!(out.contains("are not visible"), "{out}");
    let (code, _, err) = node.check(&["--repair"]);
    assert_eq!(code, 1);
    assert!(err.contains("--sees-all"), "{err}");
    assert!(node.has("10.0.0.4"));
}

#[test]
fn without_a_store_the_check_fails() {
    let node = Node::with(&[]);
    let (code, _, err) = node.check(&["--network", "other"]);
    assert_eq!(code, 3);
    assert!(err.contains("no network other has a store"), "{err}");
    fs::remove_dir_all(node.0.path().join("networks")).unwrap();
    assert_eq!(node.check(&[]).0, 3);
}
