//! `tweedctl` as operators and scripts run it: standard output, standard error and exit code.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle};

use expect_test::expect;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tweed::daemon::{checkpoint, http};

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

/// A daemon that answers every question from a list, for as long as the value lives.
struct FakeDaemon {
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    fn answering(answers: Value) -> Self {
        Self::answering_in_turn(vec![answers])
    }

    /// Answers each question as listed at first, for the second time, …; the last one is repeated.
    fn answering_in_turn(answers: Vec<Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("subnet.sock");
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let serve = async move {
            let listener = http::bind_control(&socket).unwrap();
            ready.send(()).unwrap();
            let asked = Mutex::new(BTreeMap::<String, usize>::new());
            let next = |path: &str| {
                let mut asked = asked.lock().unwrap();
                let count = asked.entry(path.to_owned()).or_default();
                *count += 1;
                answers.get((*count).min(answers.len()) - 1).unwrap().get(path)
            };
            let route = async |path: String| match next(&path) {
                Some(answer) if answer["ready"] == false => http::json(503, answer),
                Some(answer) => http::json(200, answer),
                None => http::text(503, "the loop has ended\n"),
            };
            tokio::select! {
                () = http::serve(listener, route) => {}
                _ = stopped => {}
            }
        };
        let thread = thread::spawn(|| {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(serve);
        });
        is_ready.recv().unwrap();
        Self { folder, stop: Some(stop), thread: Some(thread) }
    }

    fn tweedctl(&self, line: &str) -> Output {
        let subnet_file = self.folder.path().join("subnet.env");
        tweedctl(&format!("{line} --subnet-file {}", subnet_file.display()))
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn status() -> Value {
    json!({
        "version": "0.1.0", "ready": true, "reasons": [], "store": "reachable",
        "backend": "vxlan", "mixed": false, "interface": "eth0", "public_ips": ["172.16.0.5"],
        "config": { "revision": 3, "pending": null, "invalid": null, "rollout": null },
        "subnets": ["10.244.1.0/24"], "mtu": 1450,
        "peers": { "direct": 0, "tunnel": 1, "left_out": 1, "set_aside": 0, "missing": 0 },
        "reachability": { "reachable": 1, "degraded": 0, "unreachable": 0, "unknown": 0 },
        "unreachable": [],
        "desired": 6, "refused": [],
        "firewall": null,
        "tables": [],
        "statistics": {
            "created": 6, "replaced": 0, "removed": 0, "dumps": 1, "overruns": 0, "edits": 0,
            "fallbacks": 0, "mac_changes": 0,
        },
        "conflicts": {},
        "guard": null,
        "computing": [],
        "probes": null,
    })
}

fn peer(subnet: &str, programmed: bool) -> Value {
    json!({
        "lease": subnet.replace('/', "-"), "family": "v4", "subnet": subnet,
        "public_ip": "172.16.0.9", "backend": "vxlan", "path": "tunnel", "reason": null,
        "programmed": programmed, "reachability": null, "probes": null,
    })
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

/// Marks secrets.
const MARK: &str = "MARKED-4711";

/// The files of an archive of gzip and tar, by name.
fn unpacked(archive: &[u8]) -> BTreeMap<String, String> {
    assert!(archive.starts_with(&[0x1f, 0x8b]), "the format of gzip");
    let deflated = archive.get(10..archive.len() - 8).unwrap();
    let data = miniz_oxide::inflate::decompress_to_vec(deflated).unwrap();
    let mut archive = tar::Archive::new(data.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let (name, mut text) = (entry.path().unwrap().display().to_string(), String::new());
        entry.read_to_string(&mut text).unwrap();
        (name.strip_prefix("tweed-sysdump/").unwrap().to_owned(), text)
    });
    entries.collect()
}

#[test]
fn a_sysdump_contains_no_secret_and_names_what_is_missing() {
    let status = json!({
        "reasons": [format!("http://root:{MARK}@10.0.0.2:2379: refused")], "probeSecret": MARK,
    });
    let event = json!({ "message": format!("--etcd-password={MARK} is refused \u{202e}") });
    let ready = json!({ "ready": true, "reasons": [format!("token: {MARK}")] });
    let daemon = FakeDaemon::answering(json!({
        "/status": status, "/readyz": ready, "/peers": [{ "Token": [MARK] }],
        "/leases": [{ "backend_data": format!(r#"{{"Password":"{MARK}"}}"#) }],
        "/events": { "events": [event] }, "/inputs": null,
        "/metrics": format!("tweed_build_info{{secret=\"{MARK}\"}} 1"),
    }));
    let folder = daemon.folder.path();
    std::fs::write(folder.join("subnet.env"), format!("ETCD_TOKEN={MARK}\n")).unwrap();
    let checkpoint = format!(r#"{{"local":{{"api_key":"{MARK}","mtu":1450}}}}"#);
    std::fs::write(folder.join("subnet.state.json"), checkpoint).unwrap();
    let file = folder.join("dump.tar.gz");
    let dump = || daemon.tweedctl(&format!("sysdump {}", file.display()));
    let output = dump();
    // The checkpoint is invalid, so nothing can be compared.
    assert_eq!(output.0, 3, "{output:?}");
    assert!(output.1.contains("dump.tar.gz"), "{output:?}");
    assert!(output.2.contains("missing: diff.txt: "), "{output:?}");
    let parts = unpacked(&std::fs::read(&file).unwrap());
    for part in ["daemon/status.json", "daemon/events.json", "daemon/metrics.txt"] {
        assert!(parts[part].contains("(removed)"), "{part}: {}", parts[part]);
    }
    assert_eq!(parts["host/subnet.env"], "ETCD_TOKEN=(removed)\n");
    assert!(parts["host/checkpoint.json"].contains(r#""mtu": 1450"#), "{parts:?}");
    assert!(parts["summary.txt"].contains("missing: diff.txt: "), "{parts:?}");
    assert!(parts.contains_key("diff.txt.missing"), "{parts:?}");
    let all = format!("{output:?}{}", parts.into_values().collect::<String>());
    assert!(!all.contains("MARKED") && !all.contains('\u{202e}'), "{all}");

    let again = dump();
    assert_eq!(again.0, 2, "{again:?}");
    assert!(again.2.contains("dump.tar.gz cannot be written: File exists"), "{again:?}");
}

#[test]
fn a_sysdump_is_written_to_standard_output_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
    command.args(["sysdump", "-", "-o", "json", "--subnet-file"]);
    let output = command.arg(folder.path().join("subnet.env")).output().unwrap();
    let (errors, parts) =
        (String::from_utf8_lossy(&output.stderr).into_owned(), unpacked(&output.stdout));
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("missing: daemon/status.json: no daemon answers on "), "{errors}");
    assert!(errors.contains(r#""file": "-""#), "{errors}");
    let reason = &parts["daemon/status.json.missing"];
    assert!(reason.starts_with("no daemon answers on "), "{reason}");
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

const LEASES: &str = r#"/coreos.com/network/subnets/10.244.1.0-24
{"PublicIP":"172.16.0.5","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:05"}}
/coreos.com/network/subnets/10.244.3.0-24
{"PublicIP":"172.17.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"0a:00:00:00:00:09"}}
/coreos.com/network/subnets/10.244.4.0-24
{"PublicIP":"172.16.0.10","PublicIPv6":null,"BackendType":"host-gw"}
"#;

#[test]
fn a_plan_needs_no_daemon() {
    let line = "plan --config config/networks/mixed.json --leases - --public-ip 172.16.0.5";
    let output = tweedctl_reading(LEASES, line);
    assert_eq!(output.0, 0, "{output:?}");
    expect![[r"
        node      172.16.0.5 on eth0, MTU 1500
        backend   vxlan, mixed; pod MTU 1450
        on link   172.16.0.0/24 (assumed; set it with --on-link)
        lease     10.244.1.0-24
        + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
            172.16.0.5 dev eth0 dstport 8472 nolearning
        + rp_filter loose dev eth0
        + rp_filter loose dev flannel.1
        + accept_ra 0 dev flannel.1
        + addr 10.244.1.0/32 dev flannel.1
        + addr 10.244.1.0/32 dev lo
        + table ip tweed-tunnel.1
        + table ip tweed.1 { chain fixed-source { type nat hook postrouting priority
            srcnat - 1;
            policy accept;
            ip daddr != 10.244.0.0/16 return;
            ip daddr 10.244.1.0/24 return;
            meta mark & 0x00004000 != 0x00004000 return;
            meta mark set meta mark & 0xffffbfff;
            snat to 10.244.1.1 fully-random;
            };
            }
        + element ip tweed-tunnel.1 renewed { udp timeout 86400s }
        + element ip tweed-tunnel.1 peers { 172.16.0.10 }
        + element ip tweed-tunnel.1 peers { 172.17.0.9 }
        + fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
        + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
        + nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
        + nexthop id 4096512016 via 172.16.0.10 dev eth0
        + route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
        + route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
    "]]
    .assert_eq(&output.1);

    let plan = tweedctl_reading(LEASES, &format!("{line} -o json")).json();
    assert_eq!(plan["own"], "10.244.1.0-24");
    assert_eq!(plan["entries"].as_array().unwrap().len(), 17);
}

#[test]
fn a_plan_from_bad_files_names_them() {
    let plan = |config: &str, leases: &str| {
        let line = format!("plan --public-ip 172.16.0.5 --config {config} --leases {leases}");
        let Output(code, out, error) = tweedctl_reading("lonely key", &line);
        assert_eq!(out, "");
        (code, error)
    };
    let (code, error) = plan("Cargo.toml", "-");
    assert!(
        code == 2
            && error.starts_with("tweedctl: Cargo.toml: the network config is not a JSON object")
    );
    let (code, error) = plan("config/networks/vxlan.json", "-");
    assert_eq!(
        (code, error.as_str()),
        (2, "tweedctl: -: key \"lonely key\" has no value on the next line\n")
    );
    let (code, error) = plan("/nowhere.json", "-");
    assert!(code == 3 && error.starts_with("tweedctl: /nowhere.json cannot be read: "), "{error}");
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
    let output = daemon.tweedctl("status --wait --timeout 700ms");
    assert_eq!(output.0, 1, "{output:?}");
    assert!(output.1.starts_with("tweedd 0.1.0: not ready\n"), "{output:?}");
    let Output(code, _, error) = tweedctl("status --wait --timeout 0.1s --socket /nowhere.sock");
    assert_eq!(code, 3);
    assert!(error.starts_with("tweedctl: no daemon answers on /nowhere.sock"), "{error}");
}

/// A program that runs until the value is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(pipes.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_result_is_shown_again_and_again() {
    let peers = |peers: &[Value]| json!({ "/peers": peers });
    let second = peer("10.244.3.0/24", true);
    let daemon = FakeDaemon::answering_in_turn(vec![peers(&[]), peers(&[second])]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
    command
        .args(["peers", "--watch=100ms", "--socket"])
        .arg(daemon.folder.path().join("subnet.sock"));
    let mut running = Running::start(&mut command);
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // A file gets no control characters.
    let row = "10.244.3.0/24  172.16.0.9  vxlan    tunnel  -     -    -     programmed";
    let rows = lines.by_ref().filter(|line| !line.starts_with("SUBNET"));
    let shown: Vec<String> = rows.take(5).collect();
    assert_eq!(shown, ["there are no peers", "", row, "", row]);
    // A daemon that ends does not end the command.
    drop(daemon);
    let mut errors = BufReader::new(running.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    for _ in 0..2 {
        let error = errors.next().unwrap();
        assert!(error.starts_with("tweedctl: no daemon answers on "), "{error}");
    }
}

/// A command of tweedctl on a terminal.
fn on_a_terminal(daemon: &FakeDaemon, line: &str) -> Command {
    let socket = daemon.folder.path().join("subnet.sock");
    let line = format!("{} {line} --socket {}", env!("CARGO_BIN_EXE_tweedctl"), socket.display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

#[test]
fn a_terminal_shows_colours_and_redraws() {
    let mut peer = peer("10.244.3.0/24", true);
    peer["reachability"] = json!({ "state": "unreachable", "cause": "peer-silent" });
    let daemon = FakeDaemon::answering(json!({ "/peers": [peer] }));
    let (red, clear) = ("\u{1b}[31m10.244.3.0/24 ", "\u{1b}[H\u{1b}[J");
    let shown = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let coloured = shown(&mut on_a_terminal(&daemon, "peers"));
    assert!(coloured.contains(red) && !coloured.contains(clear), "{coloured:?}");
    for plain in [
        on_a_terminal(&daemon, "peers").env("NO_COLOR", "1"),
        on_a_terminal(&daemon, "peers").env("TERM", "dumb"),
        &mut on_a_terminal(&daemon, "peers --color never"),
        &mut on_a_terminal(&daemon, "peers -o json"),
    ] {
        let plain = shown(plain);
        assert!(plain.contains("10.244.3.0/24") && !plain.contains('\u{1b}'), "{plain:?}");
    }
    assert!(!daemon.tweedctl("peers").1.contains('\u{1b}'));
    assert!(daemon.tweedctl("peers --color always").1.contains(red));

    let mut running = Running::start(&mut on_a_terminal(&daemon, "peers --watch=100ms"));
    let (mut terminal, mut pages) = (running.0.stdout.take().unwrap(), Vec::new());
    while String::from_utf8_lossy(&pages).matches(clear).count() < 3 {
        let mut piece = [0; 4096];
        let length = terminal.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{pages:?}");
        pages.extend(&piece[..length]);
    }
    let pages = String::from_utf8(pages).unwrap();
    let page = pages.split(clear).nth(1).unwrap();
    assert!(pages.starts_with(clear) && page.contains(red), "{pages:?}");
}

/// What bash offers for the last word of `line`.
fn completed(program: &str, line: &str) -> String {
    let Output(code, script, error) = tweedctl(&format!("completions bash {program}"));
    assert_eq!(code, 0, "{error}");
    let mut words = line.rsplit(' ');
    let (last, before) = (words.next().unwrap(), words.next().unwrap());
    let ask = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _{program} {program} {last} {before}; echo \"${{COMPREPLY[*]}}\""
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(completed("tweedctl", "tweedctl lea"), "leases");
    assert_eq!(completed("tweedctl", "tweedctl leases res"), "reserve");
    assert_eq!(completed("tweedctl", "tweedctl migrate start --can"), "--canary");
    assert_eq!(completed("tweedctl", "tweedctl status --output y"), "yaml");
    assert_eq!(completed("tweedctl", "tweedctl peers --family v"), "v4 v6");
    assert_eq!(completed("tweedd", "tweedd --iptables-r"), "--iptables-resync");
    for shell in ["zsh", "fish"] {
        assert!(tweedctl(&format!("completions {shell}")).1.contains("reserve"), "{shell}");
        let flags = tweedctl(&format!("completions {shell} tweedd")).1;
        assert!(flags.contains("ip-masq"), "{shell}");
    }
    assert_eq!(tweedctl("completions csh").0, 2);
}

/// The commands in a help.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap();
    // A description that continues on the next line is indented further.
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let Output(code, out, error) = tweedctl(&format!("man --dir {}", path.display()));
    assert_eq!((code, out.as_str()), (0, ""), "{error}");
    let page = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    let mut left = vec![String::new()];
    let mut pages = 0;
    while let Some(command) = left.pop() {
        let help = tweedctl(format!("{command} --help").trim_start()).1;
        let name = format!("tweedctl {command}").trim_end().replace(' ', "-");
        let page = page(&format!("man1/{name}.1"));
        let title = format!(".TH {name} 1 ");
        assert!(page.contains(&title) && page.contains("\n.SH SYNOPSIS\n"), "{name}: {page}");
        for subcommand in subcommands(&help) {
            let listed = format!("{name}\\-{subcommand}(1)").replace("tweedctl-", "tweedctl\\-");
            assert!(page.contains(&listed), "{listed} is not in {page}");
            left.push(format!("{command} {subcommand}").trim_start().to_owned());
        }
        pages += 1;
    }
    let written = |section: &str| std::fs::read_dir(path.join(section)).unwrap().count();
    assert!(pages > 25, "{pages}");
    assert_eq!((written("man1"), written("man8")), (pages, 1));
    let daemon = page("man8/tweedd.8");
    assert!(daemon.contains("etcd\\-endpoints") && daemon.contains(".TH tweedd 8"), "{daemon}");
    let Output(code, _, error) = tweedctl("man --dir /dev/null");
    assert_eq!(code, 2);
    assert!(error.starts_with("tweedctl: /dev/null/man1 cannot be written: "), "{error}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let ready = json!({ "ready": true, "reasons": [] });
    let daemon = FakeDaemon::answering(json!({ "/status": status(), "/readyz": ready }));
    let socket = daemon.folder.path().join("subnet.sock");
    let line = format!(
        "{} status --socket {} | true; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_tweedctl"),
        socket.display()
    );
    let shell = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!((shell.status.code(), shell.stderr), (Some(0), vec![]));
}

/// A network namespace with the entries that a daemon leaves, and an entry of another program.
fn leave_behind(folder: &Path) -> PathBuf {
    for line in [
        "link add eth0 type veth peer name eth0-peer",
        "link set eth0-peer up",
        "addr add 172.16.0.5/24 dev eth0",
        "link set eth0 up",
        "link add flannel.1 address 0a:00:00:00:00:05 mtu 1450 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning",
        "link set flannel.1 up",
        "addr add 10.244.1.0/32 dev flannel.1",
        "neigh add 10.244.3.0 lladdr 0a:00:00:00:00:09 nud permanent dev flannel.1",
        "route add 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink proto 241",
        "route add 10.244.4.0/24 via 172.16.0.99 dev eth0",
        "route add 10.244.77.0/24 via 172.16.0.1 dev eth0 proto static",
    ] {
        assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "ip {line}");
    }
    let subnet_file = folder.join("subnet.env");
    std::fs::write(&subnet_file, "FLANNEL_MTU=1450\n").unwrap();
    checkpoint::save(&folder.join("subnet.state.json"), &inputs()).unwrap();
    subnet_file
}

fn inputs() -> Value {
    let lease = |subnet: &str, public_ip: &str, backend: &str, mac: &str| {
        json!({
            "id": subnet.replace('/', "-"), "created": 1, "grant": 1,
            "endpoints": [{
                "subnet": subnet, "public_ip": public_ip, "backend": backend,
                "vtep": { "vni": 1, "mac": mac },
            }],
        })
    };
    let config = std::fs::read("config/networks/mixed.json").unwrap();
    let address = "172.16.0.5";
    json!({
        "local": {
            "config": tweed::model::config::NetworkConfig::parse(&config).unwrap(),
            "node": {
                "interface": "eth0", "mtu": 1500, "layer2": true, "on_link": ["172.16.0.0/24"],
                "uplinks": [{ "address": address, "public_ip": address, "source": address }],
            },
            "macs": { "v4": "0a:00:00:00:00:05" },
            "own": lease("10.244.1.0/24", address, "vxlan", "0a:00:00:00:00:05"),
            "strict": [],
        },
        "leases": [
            lease("10.244.3.0/24", "172.17.0.9", "vxlan", "0a:00:00:00:00:09"),
            lease("10.244.4.0/24", "172.16.0.10", "host-gw", "0a:00:00:00:00:0a"),
        ],
    })
}

#[test]
fn diff_trace_and_cleanup_work_on_a_real_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let subnet_file = leave_behind(folder.path());
    let output = |command: &str| {
        tweedctl(&format!("{command} -o json --subnet-file {}", subnet_file.display()))
    };
    let differs = output("diff");
    assert_eq!(differs.0, 1, "{differs:?}");
    let differences = differs.json()["differences"].as_array().unwrap().clone();
    let word =
        |difference: &Value, key: &str| difference[key].as_str().unwrap_or("nothing").to_owned();
    let line = |d: &Value| {
        format!("{} {}, now {}", word(d, "action"), word(d, "entry"), word(d, "present"))
    };
    let lines: Vec<String> = differences.iter().map(line).collect();
    expect![[r"
        replace accept_ra 0 dev flannel.1, now accept_ra 1 dev flannel.1
        create addr 10.244.1.0/32 dev lo, now nothing
        create table ip tweed.1 { chain fixed-source { type nat hook postrouting priority srcnat - 1; policy accept; ip daddr != 10.244.0.0/16 return; ip daddr 10.244.1.0/24 return; meta mark & 0x00004000 != 0x00004000 return; meta mark set meta mark & 0xffffbfff; snat to 10.244.1.1 fully-random; }; }, now nothing
        create fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1, now nothing
        create fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1, now nothing
        create neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1, now nothing
        replace route 10.244.4.0/24 via 172.16.0.10 dev eth0, now route 10.244.4.0/24 via 172.16.0.99 dev eth0 proto 3
        create route 10.244.4.0/32 dev flannel.1, now nothing"]].assert_eq(&without_filters(&lines));

    // No pod runs there; the forwarding entry of the first peer is missing; the route to the second
    // leads to another host.
    for (packet, code, hop) in [
        ("10.244.1.7 10.244.3.9", 5, "pod"),
        ("172.16.0.5 10.244.3.9", 5, "fdb"),
        ("172.16.0.5 10.244.4.9", 3, "neighbour"),
    ] {
        let trace = output(&format!("trace {packet}"));
        assert_eq!(trace.0, code, "{trace:?}");
        let hops = trace.json()["hops"].as_array().unwrap().clone();
        assert_eq!(hops.last().unwrap()["hop"], hop, "{trace:?}");
    }
    let Output(code, out, error) = output("trace 10.244.1.7 fd00::9");
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(error, "tweedctl: 10.244.1.7 and fd00::9 are of different address families\n");

    let listed = output("cleanup");
    assert_eq!(listed.0, 0, "{listed:?}");
    let entries: Vec<String> = serde_json::from_value(listed.json()["entries"].clone()).unwrap();
    expect![[r"
        - route 10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink
        - neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
        - addr 10.244.1.0/32 dev flannel.1
        - link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local 172.16.0.5 dev eth0 dstport 8472 nolearning"]].assert_eq(&without_filters(&entries));

    let removed = output("cleanup --yes");
    assert_eq!((removed.0, &removed.json()["outcome"]), (0, &json!("removed")), "{removed:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let ip = |line: &str| Command::new("ip").args(line.split(' ')).output().unwrap();
    assert!(!ip("link show flannel.1").status.success());
    let routes = String::from_utf8(ip("route show root 10.244.0.0/16").stdout).unwrap();
    let routes: Vec<&str> = routes.lines().map(str::trim_end).collect();
    assert_eq!(
        routes,
        [
            "10.244.4.0/24 via 172.16.0.99 dev eth0",
            "10.244.77.0/24 via 172.16.0.1 dev eth0 proto static",
        ]
    );
    assert_eq!(output("cleanup --yes").0, 0);
}

/// The reverse-path filters depend on the host of the test.
fn without_filters(lines: &[String]) -> String {
    let others = lines.iter().filter(|line| !line.contains("rp_filter")).cloned();
    others.collect::<Vec<String>>().join("\n")
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
