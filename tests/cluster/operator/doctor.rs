//! What `tweedctl doctor` and the daemon report about the host of a node.

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tweed_lab::{Daemon, DaemonPlan, Family, Node, eventually, install};

use crate::fixture::ask::{exit_code, is_ready, tweedctl, wait_until_reachable};
use crate::fixture::cluster::{Cluster, ClusterPlan, PATIENCE, Stack, binaries};

const MIXED: &str = r#""Mixed":true,"Backend":{"Type":"host-gw"}"#;

/// Several nodes in the tunnel; a short interval results in enough probes within seconds.
const TUNNEL: &str = r#""Mixed":true,"Backend":{"Type":"vxlan"},"Probe":{"Interval":"200ms"}"#;
const DIRECT: &str = r#""Mixed":true,"Backend":{"Type":"host-gw"},"Probe":{"Interval":"200ms"}"#;

/// The exit code, and the names of the findings, which the text also contains.
fn examine(node: &Node) -> Result<(i32, Vec<String>)> {
    examine_with(node, &[])
}

fn examine_with(node: &Node, arguments: &[&str]) -> Result<(i32, Vec<String>)> {
    let plain = tweedctl(node, &[&["doctor"], arguments].concat())?;
    let (code, findings) = findings(node, arguments)?;
    ensure!(plain.status.code() == Some(code), "{plain:?} {findings:?}");
    let ids = findings.iter().map(|finding| {
        ["level", "what", "where", "why", "fix"].iter().try_for_each(|key| {
            finding[key].as_str().map(drop).with_context(|| format!("no {key} in {finding}"))
        })?;
        finding["id"].as_str().map(str::to_owned).context("no id")
    });
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let text = String::from_utf8(plain.stdout)?;
    ensure!(text.lines().all(|line| line.chars().count() <= 80), "wider than 80 columns: {text}");
    ensure!(ids.iter().all(|id| text.contains(id.as_str())), "{ids:?} in {text}");
    Ok((code, ids))
}

/// The exit code, and the findings.
fn findings(node: &Node, arguments: &[&str]) -> Result<(i32, Vec<Value>)> {
    let answer = tweedctl(node, &[&["doctor", "-o", "json"], arguments].concat())?;
    read(&answer)
}

fn read(answer: &Output) -> Result<(i32, Vec<Value>)> {
    let found: Value = serde_json::from_slice(&answer.stdout).context(format!("{answer:?}"))?;
    let findings = found["findings"].as_array().context("no list")?.clone();
    Ok((answer.status.code().context("ended by a signal")?, findings))
}

/// Waits until the doctor has this exit code and these findings.
fn wait_for(node: &Node, code: i32, ids: &[&str]) {
    let is_found = || {
        let found = examine(node)?;
        ensure!(found.0 == code && found.1 == ids, "{found:?}, not {code} {ids:?}");
        Ok(())
    };
    eventually(PATIENCE, is_found).unwrap();
}

/// What the document shows of such a finding.
fn transcript() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/doctor.md");
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
    assert_eq!(examine(&cluster.nodes[0]).unwrap(), (0, vec!["daemon-not-started".to_owned()]));
    cluster.start_daemons().unwrap();
    for node in &cluster.nodes {
        // At first, it is not known yet whether the peers answer.
        wait_for(node, 0, &[]);
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
    // As by the unit of systemd, with fewer capabilities than flanneld has.
    let bounded = ["--bounding-set=-all,+net_admin,+net_raw", "--no-new-privs"];
    let refused = here.daemon(&cluster.etcd).through("setpriv", &bounded).start().unwrap();
    assert_eq!(exit_code(&refused, PATIENCE).unwrap(), 1);
    log_contains(&refused, "flanneld manages the routes of this host").unwrap();
    log_contains(&refused, &format!("stop flanneld (process {})", flanneld.0.id())).unwrap();
    wait_for(here, 1, &["other-daemon", "daemon-not-started"]);
    let kept = tweedctl(here, &["cleanup", "--yes"]).unwrap();
    let printed = String::from_utf8_lossy(&kept.stderr).into_owned();
    assert!(kept.status.code() == Some(1) && printed.contains("would lose them"), "{printed}");

    let other = elsewhere.daemon(&cluster.etcd).start().unwrap();
    other.wait_ready().unwrap();
    drop(flanneld);
    here.daemon(&cluster.etcd).start().unwrap().wait_ready().unwrap();
}

/// The daemon under the name that it has in the image, with `tweedctl` next to it.
fn installed_as_flanneld(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    install(fs::read(binaries().tweedd)?, &folder.join("flanneld"))?;
    install(fs::read(binaries().tweedctl)?, &folder.join("tweedctl"))?;
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
    // Without a socket, it is identified by its program: its ports are not reported as foreign.
    let state = node.subnet_file().with_extension("state.json");
    eventually(PATIENCE, || state.exists()).unwrap();
    let words = ["doctor", "--socket=/nowhere", "-o", "json"];
    let doctor = node.namespace().within(|| {
        let mut command = Command::new(folder.join("tweedctl"));
        command.arg("--state-file").arg(&state).args(words).output()
    });
    let (code, found) = read(&doctor.unwrap().unwrap()).unwrap();
    assert_eq!((code, found.len(), &found[0]["id"]), (1, 1, &"daemon-ended".into()), "{found:?}");
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
    wait_for(node, 1, &["other-daemon", "daemon-not-started"]);
    let refused = node.daemon(&cluster.etcd).argument("--healthz-port=0").start().unwrap();
    assert_eq!(exit_code(&refused, PATIENCE).unwrap(), 1);
    log_contains(&refused, "flanneld manages the routes of this host").unwrap();
    flanneld.stop().unwrap();
    wait_for(node, 0, &["daemon-not-started"]);
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
    assert_eq!(found["findings"][0]["id"], "daemon-not-started", "{found}");
    assert_eq!(found["findings"][1]["level"], "note", "{found}");
    assert_eq!(found["findings"][1]["id"], "forward-drop", "{found}");
    assert_eq!(found["findings"][1]["where"], "chain FORWARD of table ip filter");
    assert!(found["source"].as_str().unwrap().starts_with("flannel's defaults"), "{found}");
}

#[test]
fn a_daemon_that_is_stopped_or_does_not_run_is_a_finding() {
    let mut cluster = Cluster::start(2, &Stack::V4.config(TUNNEL)).unwrap();
    wait_for(&cluster.nodes[0], 0, &[]);
    cluster.wait_for_checkpoint(0).unwrap();
    cluster.daemons[0].freeze().unwrap();
    let (code, found) = findings(&cluster.nodes[0], &[]).unwrap();
    let pid = cluster.daemons[0].process().pid();
    assert_eq!((code, found.len()), (1, 1), "{found:?}");
    assert_eq!(found[0]["id"], "daemon-silent");
    assert_eq!(found[0]["what"], format!("tweedd (process {pid}) is stopped by a signal"));
    cluster.daemons[0].kill().unwrap();
    wait_for(&cluster.nodes[0], 1, &["daemon-ended"]);
    cluster.daemons[0].start().unwrap();
    wait_for(&cluster.nodes[0], 0, &[]);
}

#[test]
fn a_daemon_that_is_not_ready_is_a_finding() {
    let cluster = Cluster::start(0, "not JSON").unwrap();
    let node = cluster.lab.node("n1", &cluster.segment).unwrap();
    let daemon = node.daemon(&cluster.etcd).start().unwrap();
    wait_for(&node, 1, &["daemon-not-ready"]);
    drop(daemon);
}

#[test]
fn without_root_the_doctor_names_what_it_could_not_examine() {
    let cluster = Cluster::start(1, &Stack::V4.config(TUNNEL)).unwrap();
    let node = &cluster.nodes[0];
    wait_for(node, 0, &[]);
    // Another user may not reach the folder of the binaries.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("tweedctl");
    install(fs::read(binaries().tweedctl).unwrap(), &program).unwrap();
    // Nor may it ask which network a flanneld of another test is in: it sees no such process.
    let doctor = node.namespace().within(|| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "setpriv"]);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command.arg("--subnet-file").arg(node.subnet_file()).args(["doctor", "-o", "json"]);
        command.output()
    });
    let (code, found) = read(&doctor.unwrap().unwrap()).unwrap();
    assert_eq!(code, 3, "{found:?}");
    let of = |key: &str| -> Vec<&str> { found.iter().filter_map(|it| it[key].as_str()).collect() };
    assert!(of("id").iter().all(|id| *id == "not-examined"), "{found:?}");
    assert!(of("level").iter().all(|level| *level == "unknown"), "{found:?}");
    assert!(of("what").contains(&"tweedd and its peers were not examined"), "{found:?}");
    assert!(of("where").contains(&"nft list ruleset"), "{found:?}");
    assert!(!of("where").contains(&"ip link"), "links are readable: {found:?}");
}

#[test]
fn a_node_without_carrier_has_a_finding_that_names_its_link() {
    let cluster = Cluster::start(2, &Stack::V4.config(TUNNEL)).unwrap();
    let node = &cluster.nodes[0];
    wait_until_reachable(&cluster).unwrap();
    wait_for(node, 0, &[]);
    node.underlay().unplug().unwrap();
    let is_found = || {
        let (code, found) = findings(node, &[])?;
        let find = |id: &str| found.iter().find(|it| it["id"] == id).context(format!("{found:?}"));
        ensure!(code == 1 && find("underlay-down")?["where"] == "link eth0", "{code} {found:?}");
        find("peer-unreachable").map(drop)
    };
    eventually(PATIENCE, is_found).unwrap();
    node.underlay().restore().unwrap();
    wait_for(node, 0, &[]);
}

#[test]
fn peers_behind_a_filtered_port_are_named_with_the_port() {
    for (config, filter, id, words) in [
        (TUNNEL, "udp dport 8472", "peer-unreachable", ["2 of 2 peers are unreachable", "8472"]),
        (DIRECT, "udp dport 8475", "peer-degraded", ["2 of 2 peers are degraded", "8475"]),
    ] {
        let cluster = Cluster::start(3, &Stack::V4.config(config)).unwrap();
        let node = &cluster.nodes[0];
        wait_until_reachable(&cluster).unwrap();
        wait_for(node, 0, &[]);
        cluster.segment.filter(filter).unwrap();
        let subnet = cluster.subnet(1, Family::V4).unwrap().to_string();
        let [count, port] = words;
        let are_named = || {
            let (_, found) = findings(node, &[])?;
            let text = |key: &str| found.first().and_then(|it| it[key].as_str()).unwrap_or("");
            let what = text("what");
            let has_port = text("where").contains(port) && text("fix").contains(port);
            ensure!(what.starts_with(count) && what.contains(&subnet) && has_port, "{found:?}");
            Ok(())
        };
        // The peers fail one after the other.
        eventually(PATIENCE, are_named).unwrap();
        wait_for(node, 5, &[id]);
        cluster.segment.unfilter().unwrap();
        wait_for(node, 0, &[]);
    }
}

/// A config of another plugin, next to that of tweed's plugin.
fn rival_config(etc: &Path) -> Result<()> {
    let folder = etc.join("cni/net.d");
    fs::create_dir_all(&folder)?;
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/config/cni/10-flannel.conflist");
    fs::copy(own, folder.join("10-flannel.conflist"))?;
    let rival = r#"{"name":"k8s","plugins":[{"type":"calico"},{"type":"portmap"}]}"#;
    fs::write(folder.join("10-calico.conflist"), rival).context("writing the config")
}

#[test]
fn another_cni_config_and_a_missing_plugin_are_findings() {
    let cluster = Cluster::start(1, &Stack::V4.config(TUNNEL)).unwrap();
    let (node, root) = (&cluster.nodes[0], tempfile::tempdir().unwrap());
    wait_for(node, 0, &[]);
    rival_config(&root.path().join("etc")).unwrap();
    let plugins = root.path().join("opt/cni/bin");
    fs::create_dir_all(&plugins).unwrap();
    let install = |plugin: &str| symlink("/bin/true", plugins.join(plugin)).unwrap();
    ["flannel", "loopback"].into_iter().for_each(install);
    let words = ["--root", root.path().to_str().unwrap()];
    let (code, found) = findings(node, &words).unwrap();
    let places: Vec<_> = found.iter().filter_map(|it| it["where"].as_str()).collect();
    assert_eq!(
        (code, places),
        (1, vec!["/etc/cni/net.d/10-calico.conflist", "/opt/cni/bin/portmap"]),
        "{found:?}"
    );
    install("portmap");
    let other = vec!["other-cni-config".to_owned()];
    assert_eq!(examine_with(node, &words).unwrap(), (1, other));
    fs::remove_file(root.path().join("etc/cni/net.d/10-calico.conflist")).unwrap();
    assert_eq!(examine_with(node, &words).unwrap(), (0, vec![]));
}

/// Uses a copy of `/etc` in the folder `$1` with the files of `$2`, then runs the remaining
/// arguments.
const OTHER_ETC: &str = r#"
    cp -a /etc "$1/etc"
    cp -r "$2/." "$1/etc"
    mount --bind "$1/etc" /etc
    shift 2
    exec "$@"
"#;

#[test]
fn the_daemon_logs_another_cni_config_at_its_start() {
    let cluster = ClusterPlan::new(1, &Stack::V4.config(TUNNEL)).build().unwrap();
    let (node, files) = (&cluster.nodes[0], tempfile::tempdir().unwrap());
    let (copy, etc) = (files.path().join("copy"), files.path().join("files"));
    fs::create_dir(&copy).unwrap();
    rival_config(&etc).unwrap();
    let folders = [copy, etc].map(|folder| folder.display().to_string());
    let words = ["--mount", "sh", "-euc", OTHER_ETC, "sh", &folders[0], &folders[1]];
    let daemon = node.daemon(&cluster.etcd).through("unshare", &words).start().unwrap();
    let words = "runtimes use 10-calico.conflist";
    eventually(PATIENCE, || log_contains(&daemon, words)).unwrap();
    assert_eq!(daemon.log().unwrap().matches(words).count(), 1);
}
