//! The parts of a sysdump, each read on its own: one that fails does not affect the others.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::process::Command;
use tokio::time::timeout;

use super::SysdumpOptions;
use crate::excerpt;
use crate::kernel::Kernel;
use crate::model::entry::Entry;
use crate::operator::doctor::DoctorOptions;
use crate::operator::node::{self, Files};
use crate::operator::nodes::evidence::ClusterNode;
use crate::operator::nodes::{self, NodeList};
use crate::operator::store::StoreFlags;
use crate::operator::{Answer, Error, diff, doctor};
use crate::store::operator::{StoreContents, Written};

/// A file of the archive, or why it is missing.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) need: Need,
    pub(super) content: Result<String, String>,
}

/// Whether an archive without this part is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Required,
    /// Programs and files that a host may lack, or that repeat other parts.
    Optional,
}

/// A program that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the control socket serves.
const ANSWERS: [(&str, &str); 7] = [
    ("daemon/status.json", "/status"),
    ("daemon/readiness.json", "/readyz"),
    ("daemon/peers.json", "/peers"),
    ("daemon/leases.json", "/leases"),
    ("daemon/events.json", "/events"),
    ("daemon/inputs.json", "/inputs"),
    ("daemon/metrics.txt", "/metrics"),
];

const PROGRAMS: [(&str, Need, &str); 14] = [
    ("kernel/links.txt", Need::Required, "ip -details -statistics link show"),
    ("kernel/addresses.txt", Need::Required, "ip address show"),
    ("kernel/routes.txt", Need::Required, "ip -4 -details route show table all"),
    ("kernel/routes6.txt", Need::Required, "ip -6 -details route show table all"),
    ("kernel/nexthops.txt", Need::Required, "ip nexthop show"),
    ("kernel/rules.txt", Need::Required, "ip -4 rule show"),
    ("kernel/rules6.txt", Need::Required, "ip -6 rule show"),
    ("kernel/neighbours.txt", Need::Required, "ip neighbour show"),
    ("kernel/fdb.txt", Need::Required, "bridge fdb show"),
    ("kernel/nftables.txt", Need::Optional, "nft list ruleset"),
    ("kernel/iptables.txt", Need::Optional, "iptables-save"),
    ("kernel/ip6tables.txt", Need::Optional, "ip6tables-save"),
    // Not all of `net`: it has keys of TCP.
    (
        "host/sysctls.txt",
        Need::Optional,
        "sysctl --ignore net.ipv4.ip_forward net.ipv4.conf net.ipv6.conf net.bridge",
    ),
    (
        "host/log.txt",
        Need::Optional,
        "journalctl --unit=tweedd --lines=2000 --no-pager --output=short-iso",
    ),
];

/// All parts, unredacted.
pub(super) async fn gather<K: Kernel>(
    files: &Files,
    options: &SysdumpOptions,
    open: &impl Fn() -> Result<K, Error>,
) -> Vec<Part> {
    let versions = Ok::<_, String>(versions());
    let mut parts = vec![Part::new("host/versions.txt", Need::Required, versions)];
    for (name, path) in ANSWERS {
        let content = node::text(&files.socket(), path).await;
        parts.push(Part::new(name, Need::Required, content));
    }
    parts.extend(views(files, open).await);
    let of_host = [
        ("host/subnet.env", files.subnet_file.as_path()),
        ("host/checkpoint.json", &files.state_file()),
        ("host/os-release.txt", Path::new("/etc/os-release")),
    ];
    for (name, path) in of_host {
        let content = fs::read_to_string(path);
        let content = content.map_err(|error| format!("{}: {error}", path.display()));
        parts.push(Part::new(name, Need::Optional, content));
    }
    for (name, need, command) in PROGRAMS {
        parts.push(Part::new(name, need, output(command).await));
    }
    if options.all {
        parts.extend(of_cluster(&options.store, &files.socket()).await);
    }
    parts
}

/// What `tweedctl` itself finds on this host, also without the daemon.
async fn views<K: Kernel>(files: &Files, open: &impl Fn() -> Result<K, Error>) -> Vec<Part> {
    let differences = async { diff::answer(files, open()?).await };
    let findings = doctor::answer(files, &DoctorOptions::default(), open()).await;
    let inputs = node::read_inputs(files).await.map_err(Error::from);
    let config = inputs.as_ref().map(|inputs| &inputs.checkpoint.local.config);
    let config = config.map_err(ToString::to_string).and_then(|config| json(&config));
    let entries = async {
        let state = node::dump(&mut open()?, &inputs?.scope()).await?;
        let line = |entry: &Entry| format!("{entry}\n");
        Ok::<_, Error>(state.entries().map(line).collect::<String>())
    };
    let mut parts = vec![
        Part::new("config.json", Need::Required, config),
        Part::new("kernel/entries.txt", Need::Required, entries.await),
    ];
    parts.extend(both("diff", &differences.await));
    parts.extend(both("doctor", &Ok(findings)));
    parts
}

async fn of_cluster(flags: &StoreFlags, socket: &Path) -> Vec<Part> {
    match flags.open(socket).await {
        Ok(store) => of_store(nodes::read(&store).await),
        Err(error) => vec![Part::new("store/reports.json", Need::Required, Err(error))],
    }
}

fn of_store(contents: Result<StoreContents, Error>) -> Vec<Part> {
    let part = |name, content| Part::new(name, Need::Required, content);
    let list = |nodes: &Result<NodeList, Error>| Vec::from(both("nodes", nodes));
    match contents {
        Ok(StoreContents { config, records, reports }) => {
            let config = config.map(|Written { text, .. }| text);
            let leases: Vec<_> = records.iter().filter_map(|it| it.lease.as_ref().ok()).collect();
            let of_nodes: Vec<_> = reports.iter().map(|stored| &stored.report).collect();
            let stored = [
                part("store/config.json", config.ok_or_else(|| "it is missing".to_owned())),
                part("store/leases.json", json(&leases)),
                part("store/reports.json", json(&of_nodes)),
            ];
            let nodes = NodeList::new(&ClusterNode::all(records, reports), Timestamp::now());
            list(&Ok(nodes)).into_iter().chain(stored).collect()
        }
        Err(error) => {
            let reports = part("store/reports.json", Err(error.to_string()));
            list(&Err(error)).into_iter().chain([reports]).collect()
        }
    }
}

impl Part {
    fn new(name: &str, need: Need, content: Result<String, impl ToString>) -> Self {
        let content = content.map_err(|error| excerpt::sentence(&error.to_string()));
        Self { name: name.to_owned(), need, content }
    }
}

/// An answer as text and as JSON.
fn both(name: &str, answer: &Result<impl Answer, Error>) -> [Part; 2] {
    let answer = answer.as_ref().map_err(ToString::to_string);
    let text = answer.clone().map(ToString::to_string);
    [
        Part::new(&format!("{name}.txt"), Need::Required, text),
        Part::new(&format!("{name}.json"), Need::Required, answer.and_then(json)),
    ]
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

fn versions() -> String {
    let kernel = fs::read_to_string("/proc/version");
    let kernel = kernel.unwrap_or_else(|error| format!("unknown kernel: {error}\n"));
    format!("tweedctl {}\n{kernel}", env!("CARGO_PKG_VERSION"))
}

/// The output of `command`, if its program is installed.
async fn output(command: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(TIMEOUT, command.output()).await;
    let ended = ended.map_err(|_| format!("it did not end within {} s", TIMEOUT.as_secs()))?;
    let Output { status, stdout, stderr } = ended.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "the program is not installed".to_owned(),
        _ => error.to_string(),
    })?;
    if status.success() {
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    } else {
        Err(format!("{status}: {}", String::from_utf8_lossy(&stderr).trim()))
    }
}
