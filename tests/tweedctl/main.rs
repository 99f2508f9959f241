//! `tweedctl` as operators and scripts run it: standard output, standard error and exit code.

#![allow(clippy::unwrap_used)]

mod fake_daemon;
mod kernel;
mod plan;
mod sysdump;
mod terminal;

use std::io::Write;
use std::process::{Command, Stdio};

use expect_test::expect;
use serde_json::{Value, json};

use fake_daemon::{FakeDaemon, peer, status};

/// The result of a command: exit code, standard output, standard error.
#[derive(Debug)]
struct Output(i32, String, String);

impl Output {
    fn json(&self) -> Value {
        serde_json::from_str(&self.1).unwrap()
    }
}

fn tweedctl(line: &str) -> Output {
    tweedctl_reading("", line)
}

fn tweedctl_reading(input: &str, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
    command.args(line.split(' ')).current_dir(env!("CARGO_MANIFEST_DIR"));
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = pipes.spawn().unwrap();
    // A command that fails early reads nothing; its exit code shows that.
    drop(running.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = running.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Output(output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_exit_code_of_status_reports_readiness() {
    let ready = json!({ "ready": true, "reasons": [] });
    let daemon = FakeDaemon::answering(json!({ "/status": status(), "/readyz": ready }));
    let output = daemon.tweedctl("status");
    assert_eq!(output.0, 0, "{output:?}");
    assert!(output.1.starts_with("tweedd 0.1.0: ready\n"), "{output:?}");
    assert_eq!(daemon.tweedctl("status -o json").json(), status());

    let unready = json!({ "ready": false, "reasons": ["the subnet file is not written"] });
    let daemon = FakeDaemon::answering(json!({ "/status": status(), "/readyz": unready }));
    let output = daemon.tweedctl("status");
    assert_eq!(output.0, 1);
    let expected = "tweedd 0.1.0: not ready\n  the subnet file is not written\n";
    assert!(output.1.starts_with(expected), "{output:?}");
    assert_eq!(daemon.tweedctl("status -o json").json()["ready"], false);
}

#[test]
fn the_exit_code_of_peers_reports_whether_all_are_programmed() {
    let peers = json!([peer("10.244.3.0/24", true)]);
    let daemon = FakeDaemon::answering(json!({ "/peers": peers }));
    let output = daemon.tweedctl("peers");
    assert_eq!(output.0, 0, "{output:?}");
    expect![[r"
        SUBNET         PUBLIC IP   BACKEND  PATH    LOSS  RTT  SEEN  STATE
        10.244.3.0/24  172.16.0.9  vxlan    tunnel  -     -    -     programmed
    "]]
    .assert_eq(&output.1);
    assert_eq!(daemon.tweedctl("peers --output=json").json(), peers);

    let peers = json!([peer("10.244.3.0/24", true), peer("10.244.4.0/24", false)]);
    assert_eq!(FakeDaemon::answering(json!({ "/peers": peers })).tweedctl("peers").0, 1);
}

#[test]
fn an_unreachable_peer_has_an_exit_code_of_its_own() {
    let mut peer = peer("10.244.3.0/24", true);
    peer["reachability"] =
        json!({ "state": "unreachable", "cause": "peer-silent", "since_ms": 48_870 });
    let mut status = status();
    status["reachability"]["unreachable"] = 1.into();
    status["unreachable"] = json!(["10.244.3.0/24 (172.16.0.9)"]);
    let ready = json!({ "ready": true, "reasons": [] });
    let answers = json!({ "/peers": [peer], "/status": status, "/readyz": ready });
    let daemon = FakeDaemon::answering(answers);
    for command in ["status", "peers"] {
        assert_eq!(daemon.tweedctl(command).0, 5, "{command}");
        assert_eq!(daemon.tweedctl(&format!("{command} -o json")).0, 5, "{command}");
    }
    assert_eq!(daemon.tweedctl("peers -o json").json(), json!([peer]));
    let shown = daemon.tweedctl("peers").1;
    assert!(shown.contains("unreachable for 48 s: no probe and no ping"), "{shown}");
}

#[test]
fn leases_are_shown_as_the_store_has_them() {
    let lease = json!({
        "id": "10.244.1.0-24", "created": 7, "grant": null,
        "endpoints": [{
            "subnet": "10.244.1.0/24", "public_ip": "172.16.0.5", "backend": "host-gw",
            "vtep": null,
        }],
        "own": true, "reservation": true, "reason": null,
    });
    let daemon = FakeDaemon::answering(json!({ "/leases": [lease] }));
    let output = daemon.tweedctl("leases");
    assert_eq!(output.0, 0, "{output:?}");
    expect![[r"
        SUBNET         PUBLIC IP   BACKEND  VTEP  KIND
        10.244.1.0/24  172.16.0.5  host-gw  -     own, reserved
    "]]
    .assert_eq(&output.1);
    assert_eq!(daemon.tweedctl("leases -o json").json(), json!([lease]));
}

#[test]
fn events_are_shown_as_paragraphs_and_as_lines_of_json() {
    let event = json!({
        "sequence": 7, "time": "2026-11-23T10:00:07.25Z", "kind": "peer-added",
        "lease": "n7", "peer": "10.244.3.0/24 (172.16.0.9)", "message": "peer added, path: tunnel",
    });
    let page = json!({ "started": "2026-11-23T10:00:00Z", "events": [event] });
    let daemon = FakeDaemon::answering(json!({ "/events/0": page }));
    let output = daemon.tweedctl("events");
    assert_eq!(output.0, 0, "{output:?}");
    expect![[r"
        2026-11-23T10:00:07Z  peer-added         n7 10.244.3.0/24 (172.16.0.9): peer
                              added, path: tunnel
    "]]
    .assert_eq(&output.1);
    let output = daemon.tweedctl("events -o json");
    assert_eq!((output.1.lines().count(), output.json()), (1, event));
}

#[test]
fn without_a_daemon_one_sentence_names_the_fix() {
    for command in ["status", "peers", "leases", "events", "events --follow"] {
        let Output(code, out, error) =
            tweedctl(&format!("{command} --control-socket /nowhere.sock"));
        assert_eq!((code, out.as_str()), (3, ""));
        let expected = "tweedctl: no daemon answers on /nowhere.sock: \
                        start tweedd, or name its socket with --socket\n";
        assert_eq!(error, expected);
    }
}

#[test]
fn a_daemon_that_cannot_answer_is_quoted() {
    let Output(code, _, error) = FakeDaemon::answering(json!({})).tweedctl("status");
    assert_eq!(code, 3);
    assert!(error.ends_with("failed: /status returned 503: the loop has ended\n"), "{error}");
    let Output(code, _, error) = FakeDaemon::answering(json!({ "/status": 7 })).tweedctl("status");
    assert_eq!(code, 3);
    assert!(error.contains("/status is in the format of another version: invalid type"), "{error}");
}

#[test]
fn a_wrong_command_line_is_bad_usage() {
    let many = ["status --wait --watch", "status --timeout 2s", "peers --family v5"];
    for line in many.into_iter().chain([
        "",
        "frobnicate",
        "status --nonsense",
        "plan",
        "status -o xml",
        "status --watch=2",
        "status --watch=0s",
    ]) {
        assert_eq!(tweedctl(line).0, 2, "{line}");
    }
    let help = tweedctl("--help");
    assert_eq!(help.0, 0);
    assert!(help.1.contains("Exit codes:\n  0  success"), "{help:?}");
}

#[test]
fn leases_are_listed_by_default_and_kubernetes_has_none_to_reserve() {
    let daemon = FakeDaemon::answering(json!({ "/leases": [] }));
    for line in ["leases", "leases list"] {
        let Output(code, out, error) = daemon.tweedctl(line);
        assert_eq!((code, out.as_str()), (0, "there are no leases\n"), "{error}");
    }
    for line in ["reserve 10.244.7.0/24", "release 10.244.7.0/24", "usage"] {
        let Output(code, out, error) = tweedctl(&format!("leases {line} --kube-subnet-mgr"));
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(error.starts_with("tweedctl: Kubernetes assigns the subnets of nodes"), "{error}");
    }
    let Output(code, _, error) = tweedctl("leases usage --etcd-endpoints http://127.0.0.1:9");
    assert!(code == 3 && error.contains("--etcd-endpoints"), "{error}");
}

#[test]
fn yaml_has_what_json_has() {
    let peers = json!([peer("10.244.3.0/24", true), peer("10.244.4.0/24", false)]);
    let daemon = FakeDaemon::answering(json!({ "/peers": peers }));
    let Output(code, yaml, error) = daemon.tweedctl("peers -o yaml");
    assert_eq!(code, 1, "{error}");
    assert!(yaml.contains("\n  public_ip: 172.16.0.9\n"), "{yaml}");
    let read: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, daemon.tweedctl("peers -o json").json());
}

#[test]
fn status_waits_until_the_node_is_ready() {
    let answers =
        |ready| json!({ "/status": status(), "/readyz": { "ready": ready, "reasons": [] } });
    let daemon = FakeDaemon::answering_in_turn(vec![answers(false), answers(false), answers(true)]);
    assert_eq!(daemon.tweedctl("status").0, 1);
    let output = daemon.tweedctl("status --wait");
    assert_eq!(output.0, 0, "{output:?}");
    assert!(output.1.starts_with("tweedd 0.1.0: ready\n"), "{output:?}");

    // The last state at the end of the time.
    let daemon = FakeDaemon::answering(answers(false));
    let output = daemon.tweedctl("status --wait --timeout 10s");
    assert_eq!(output.0, 1, "{output:?}");
    assert!(output.1.starts_with("tweedd 0.1.0: not ready\n"), "{output:?}");
    let Output(code, _, error) = tweedctl("status --wait --timeout 0.1s --socket /nowhere.sock");
    assert_eq!(code, 3);
    assert!(error.starts_with("tweedctl: no daemon answers on /nowhere.sock"), "{error}");
}

#[test]
fn a_store_that_is_unreachable_has_no_nodes() {
    let Output(code, out, error) = tweedctl("nodes --etcd-endpoints http://127.0.0.1:9");
    assert_eq!((code, out.as_str()), (3, ""), "{error}");
    assert!(error.starts_with("tweedctl: etcd at http://127.0.0.1:9: "), "{error}");
    assert!(error.ends_with(": name the servers with --etcd-endpoints\n"), "{error}");
    let Output(code, ..) = tweedctl("nodes --etcd-endpoints ftp://127.0.0.1");
    assert_eq!(code, 2);
}

#[test]
fn connectivity_needs_a_store_or_a_daemon() {
    let line = "connectivity test --etcd-endpoints http://127.0.0.1:9";
    let Output(code, out, error) = tweedctl(&format!("{line} --socket /nowhere.sock"));
    assert_eq!((code, out.as_str()), (3, ""), "{error}");
    assert!(error.starts_with("tweedctl: etcd at http://127.0.0.1:9: "), "{error}");
    assert!(error.ends_with("; and no daemon answers on /nowhere.sock\n"), "{error}");

    let mut peer = peer("10.244.3.0/24", true);
    peer["reachability"] = json!({ "state": "unreachable", "cause": "peer-silent" });
    let daemon = FakeDaemon::answering(json!({ "/peers": [peer], "/leases": [] }));
    let output = daemon.tweedctl(line);
    assert_eq!(output.0, 5, "{output:?}");
    assert!(output.1.contains("only the results of this node are shown: etcd at"), "{output:?}");
    assert!(output.1.ends_with("\n1 pair: 1 unreachable\n"), "{output:?}");
}
