//! What `tweedctl doctor` and the daemon report about the host of a node.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Daemon, DaemonPlan, Node, eventually};

use crate::fixture::ask::{exit_code, is_ready, tweedctl};
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack, binaries};

const MIXED: &str = r#""Mixed":true,"Backend":{"Type":"host-gw"}"#;

/// The exit code, and the names of the findings, which the text also contains.
fn examine(node: &Node) -> Result<(i32, Vec<String>)> {
    let (plain, json) = (tweedctl(node, &["doctor"])?, tweedctl(node, &["doctor", "-o", "json"])?);
    ensure!(plain.status.code() == json.status.code(), "{plain:?} {json:?}");
    let found: Value = serde_json::from_slice(&json.stdout).context(format!("{json:?}"))?;
    let ids = found["findings"].as_array().context("no list")?.iter().map(|finding| {
        ["level", "what", "where", "why", "cure"].iter().try_for_each(|key| {
            finding[key].as_str().map(drop).with_context(|| format!("no {key} in {finding}"))
        })?;
        finding["id"].as_str().map(str::to_owned).context("no id")
    });
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let text = String::from_utf8(plain.stdout)?;
    ensure!(text.lines().all(|line| line.chars().count() <= 80), "wider than 80 columns: {text}");
    ensure!(ids.iter().all(|id| text.contains(id.as_str())), "{ids:?} in {text}");
    Ok((plain.status.code().context("ended by a signal")?, ids))
}

/// What the document shows of such a finding.
fn transcript() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/doctor.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, behind) = page.split_once("\n$ tweedctl doctor\n").unwrap();
    behind.split("```").next().unwrap().to_owned()
}

/// Lines are broken elsewhere if a path is longer.
fn words_of(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn log_contains(daemon: &Daemon, word: &str) -> Result<()> {
    let log = daemon.log()?;
    ensure!(log.contains(word), "no {word} in {log}");
    Ok(())
}

/// A process called flanneld in the network of `node`, until it is dropped.
struct Flanneld(Child);

impl Flanneld {
    fn start(cluster: &Cluster, node: &Node) -> Result<Self> {
        let program = cluster.lab.folder().join("flanneld");
        let sleep = Command::new("which").arg("sleep").output()?;
        symlink(String::from_utf8(sleep.stdout)?.trim(), &program)?;
        let mut command = Command::new(program);
        command.arg("600").stdin(Stdio::null());
        let started = Self(node.namespace().within(|| command.spawn())??);
        let comm = format!("/proc/{}/comm", started.0.id());
        // The process gets its name a moment after its start.
        eventually(PATIENCE, || fs::read_to_string(&comm).is_ok_and(|it| it == "flanneld\n"))?;
        Ok(started)
    }
}

impl Drop for Flanneld {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_clean_node_has_no_findings_before_and_after_its_start() {
    let mut cluster =
        ClusterPlan::new(2, &Stack::Dual.config(MIXED)).stack(Stack::Dual).build().unwrap();
    assert_eq!(examine(&cluster.nodes[0]).unwrap(), (0, vec![]));
    cluster.start_daemons().unwrap();
    for (node, daemon) in cluster.nodes.iter().zip(&cluster.daemons) {
        eventually(PATIENCE, || is_ready(daemon)).unwrap();
        assert_eq!(examine(node).unwrap(), (0, vec![]));
    }
}

#[test]
fn findings_are_reported_by_the_doctor_and_logged_once() {
    let mut cluster = ClusterPlan::new(1, &Stack::V4.config(MIXED)).build().unwrap();
    let namespace = cluster.nodes[0].namespace().clone();
    namespace.set_sysctl("net.ipv4.ip_forward", "0").unwrap();
    cluster.start_daemons().unwrap();
    let daemon = &cluster.daemons[0];
    eventually(PATIENCE, || log_contains(daemon, "this host does not forward IPv4")).unwrap();
    assert_eq!(daemon.log().unwrap().matches("forwarding-off").count(), 1);
    eventually(PATIENCE, || is_ready(daemon)).unwrap();

    let found = vec!["forwarding-off".to_owned()];
    assert_eq!(examine(&cluster.nodes[0]).unwrap(), (1, found));
    let printed = tweedctl(&cluster.nodes[0], &["doctor"]).unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();
    let socket = cluster.nodes[0].subnet_file().with_extension("sock");
    let printed = printed.replace(&socket.display().to_string(), "/run/flannel/subnet.sock");
    assert_eq!(words_of(&printed), words_of(&transcript()));
    namespace.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    assert_eq!(examine(&cluster.nodes[0]).unwrap(), (0, vec![]));
}

#[test]
fn next_to_flanneld_the_daemon_does_not_start() {
    let cluster = ClusterPlan::new(2, &Stack::V4.config(MIXED)).build().unwrap();
    let [here, elsewhere] = [&cluster.nodes[0], &cluster.nodes[1]];
    let flanneld = Flanneld::start(&cluster, here).unwrap();
    let refused = here.daemon(&cluster.etcd).start().unwrap();
    assert_eq!(exit_code(&refused, PATIENCE).unwrap(), 1);
    log_contains(&refused, "flanneld manages the routes of this host").unwrap();
    log_contains(&refused, &format!("stop flanneld (process {})", flanneld.0.id())).unwrap();
    assert_eq!(examine(here).unwrap(), (1, vec!["other-daemon".to_owned()]));

    let other = elsewhere.daemon(&cluster.etcd).start().unwrap();
    other.wait_ready().unwrap();
    drop(flanneld);
    here.daemon(&cluster.etcd).start().unwrap().wait_ready().unwrap();
}

/// The daemon under the name that it has in the image, with `tweedctl` next to it.
fn installed_as_flanneld(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    fs::copy(binaries().tweedd, folder.join("flanneld"))?;
    fs::copy(binaries().tweedctl, folder.join("tweedctl"))?;
    symlink("flanneld", folder.join("tweedd")).context("linking tweedd")
}

#[test]
fn tweedd_under_any_name_is_not_reported_as_flanneld() {
    let mut cluster = ClusterPlan::new(1, &Stack::V4.config(MIXED)).build().unwrap();
    let folder = cluster.lab.folder().join("image");
    installed_as_flanneld(&folder).unwrap();
    let node = &cluster.nodes[0];
    let instead = format!("shift; exec {}/flanneld \"$@\"", folder.display());
    let plan = node.daemon(&cluster.etcd).through("sh", &["-c", &instead, "sh"]);
    cluster.daemons.push(plan.start().unwrap());
    cluster.daemons[0].wait_ready().unwrap();
    let comm = fs::read_to_string(format!("/proc/{}/comm", cluster.daemons[0].process().pid()));
    assert_eq!(comm.unwrap(), "flanneld\n");
    eventually(PATIENCE, || is_ready(&cluster.daemons[0])).unwrap();
    // It is identified by the socket that it listens on.
    assert_eq!(examine(node).unwrap(), (0, vec![]));
    // Without a socket, it is identified by its program; its ports are not reported as foreign.
    let state = node.subnet_file().with_extension("state.json");
    eventually(PATIENCE, || state.exists()).unwrap();
    let words = ["doctor", "--socket=/nowhere", "-o", "json"];
    let doctor = node.namespace().within(|| {
        let mut command = Command::new(folder.join("tweedctl"));
        command.arg("--state-file").arg(&state).args(words).output()
    });
    let doctor = doctor.unwrap().unwrap();
    let found: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(found["findings"], serde_json::json!([]), "{found}");
}

/// Serves flanneld's health endpoint, from a process with another name.
const HEALTHY: &str = r#"
import http.server
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"flanneld is running")
http.server.HTTPServer(("0.0.0.0", 8081), Health).serve_forever()
"#;

#[test]
fn a_flanneld_whose_process_cannot_be_seen_is_found_by_its_health() {
    let cluster = ClusterPlan::new(1, &Stack::V4.config(MIXED)).build().unwrap();
    let node = &cluster.nodes[0];
    let flanneld = DaemonPlan::program(node, "python3").argument("-c").argument(HEALTHY);
    let flanneld = flanneld.start().unwrap();
    let found = (1, vec!["other-daemon".to_owned()]);
    eventually(PATIENCE, || {
        let seen = examine(node)?;
        ensure!(seen == found, "{seen:?}");
        Ok(())
    })
    .unwrap();
    let refused = node.daemon(&cluster.etcd).argument("--healthz-port=0").start().unwrap();
    assert_eq!(exit_code(&refused, PATIENCE).unwrap(), 1);
    log_contains(&refused, "flanneld manages the routes of this host").unwrap();
    flanneld.stop().unwrap();
    assert_eq!(examine(node).unwrap(), (0, vec![]));
}

#[test]
fn before_the_first_start_a_firewall_is_checked_for_the_given_network() {
    let cluster = ClusterPlan::new(1, &Stack::V4.config(MIXED)).build().unwrap();
    let node = &cluster.nodes[0];
    node.namespace().run("iptables-nft", &["-P", "FORWARD", "DROP"]).unwrap();
    let words = ["doctor", "--network", "10.244.0.0/16", "-o", "json"];
    let answer = tweedctl(node, &words).unwrap();
    let found: Value = serde_json::from_slice(&answer.stdout).unwrap();
    // The daemon itself adds rules that accept packets of pods.
    assert_eq!(answer.status.code(), Some(0));
    assert_eq!(found["findings"][0]["level"], "note", "{found}");
    assert_eq!(found["findings"][0]["id"], "forward-drop", "{found}");
    assert_eq!(found["findings"][0]["where"], "chain FORWARD of table ip filter");
    assert!(found["source"].as_str().unwrap().starts_with("flannel's defaults"), "{found}");
}
