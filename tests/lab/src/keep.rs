//! A cluster that keeps running in the background, to try things in: `up`, `exec` and `down`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write, stdout};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use serde::{Deserialize, Serialize};
use tweed_lab::cluster::{Cluster, Shape};
use tweed_lab::{Binaries, Family, PATIENCE, eventually, sandbox};

/// Where the cluster describes itself, in its own mount namespace.
const DESCRIPTION: &str = "/run/tweed-lab.json";
/// The last line of [`keep`]: the cluster runs.
const READY: &str = "ready";
/// Runs a command of a node with the node's files at their usual place.
const AT_NODE: &str = r#"mkdir -p /run/flannel; mount --bind "$1" /run/flannel; shift; exec "$@""#;

/// The cluster to start.
#[derive(Args)]
pub(crate) struct Wanted {
    /// The folder of `tweedd` and `tweedctl`; without it, the one of this program.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Nodes on one segment.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=100))]
    nodes: u8,
    /// More nodes, behind a router.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=100))]
    far: u8,
    /// Members of etcd.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    members: u8,
    /// The network config.
    #[arg(long, default_value = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#)]
    config: String,
}

/// What commands need to know of a running cluster.
#[derive(Serialize, Deserialize)]
struct Description {
    etcd: String,
    /// The folder of tweedctl.
    programs: PathBuf,
    places: Vec<Place>,
}

/// A node or a pod.
#[derive(Serialize, Deserialize)]
struct Place {
    name: String,
    namespace: String,
    address: String,
    /// The files of a node's daemon; none for a pod.
    folder: Option<PathBuf>,
}

/// The sandbox of a running cluster, in a file.
struct Record {
    path: PathBuf,
    pid: Pid,
}

/// Starts a cluster in the background; returns when all its nodes are ready.
pub(crate) fn up(name: &str) -> Result<()> {
    let folder = folder()?;
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let log = folder.join(format!("{name}.log"));
    let mut child = start(name, &folder, &log)?;
    let is_ready = follow(&mut child);
    if matches!(is_ready, Ok(true)) {
        return Ok(());
    }
    // Otherwise it would run on, though this program reports an error.
    child.kill()?;
    child.wait()?;
    fs::remove_file(path(name)?)?;
    is_ready?;
    bail!("the cluster cannot be started: {}", fs::read_to_string(&log)?.trim())
}

/// Starts the sandbox of a cluster, unless there is one.
fn start(name: &str, folder: &Path, log: &Path) -> Result<Child> {
    // Of two that start the same cluster, the second one finds the record of the first.
    let lock = File::open(folder).with_context(|| folder.display().to_string())?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    if Record::read(name)?.is_some() {
        bail!("the cluster {name:?} runs already: end it with `tweed-lab down --name {name}`");
    }
    let stderr = File::create(log).with_context(|| log.display().to_string())?;
    // The same command line: inside the sandbox, it keeps the cluster.
    let mut command = sandbox::command(std::env::args_os().skip(1))?;
    let command = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(stderr).spawn().context("starting the sandbox")?;
    if let Err(error) = Record::write(name, &child) {
        child.kill()?;
        child.wait()?;
        return Err(error);
    }
    Ok(child)
}

/// Shows what the cluster prints until it is ready; false if it ends before.
fn follow(child: &mut Child) -> Result<bool> {
    let lines = child.stdout.take().context("the sandbox has no output")?;
    for line in BufReader::new(lines).lines() {
        let line = line?;
        if line == READY {
            return Ok(true);
        }
        writeln!(stdout(), "{line}")?;
    }
    Ok(false)
}

/// Inside the sandbox: builds the cluster and keeps it until the sandbox is ended.
pub(crate) fn keep(wanted: Wanted) -> Result<()> {
    let Wanted { programs, nodes, far, members, config } = wanted;
    let programs = match programs {
        Some(folder) => fs::canonicalize(&folder).with_context(|| folder.display().to_string())?,
        None => std::env::current_exe()?.parent().context("a program without a folder")?.to_owned(),
    };
    let [tweedd, tweedctl] = ["tweedd", "tweedctl"].map(|program| programs.join(program));
    for program in [&tweedd, &tweedctl] {
        ensure!(program.exists(), "there is no {}: build it", program.display());
    }
    let shape = Shape { members: members.into(), ..Shape::of(nodes.into(), far.into()) };
    let mut cluster = Cluster::build(Binaries { tweedd, tweedctl }, shape)?;
    cluster.configure(&config)?;
    cluster.start_all()?;
    let description = describe(&cluster, programs)?;
    fs::write(DESCRIPTION, serde_json::to_vec(&description)?)?;
    let mut out = stdout();
    for Place { name, address, .. } in &description.places {
        writeln!(out, "{name:<8} {address}")?;
    }
    writeln!(out, "{READY}")?;
    loop {
        std::thread::park();
    }
}

fn describe(cluster: &Cluster, programs: PathBuf) -> Result<Description> {
    let mut places = Vec::new();
    for node in cluster.nodes() {
        places.push(Place {
            name: node.name().to_owned(),
            namespace: node.namespace().name().to_owned(),
            address: node.address(Family::V4)?.to_string(),
            folder: Some(node.folder()),
        });
    }
    for pod in cluster.pods() {
        places.push(Place {
            name: format!("pod-{}", pod.label()),
            namespace: pod.namespace().name().to_owned(),
            address: pod.address(Family::V4)?.to_string(),
            folder: None,
        });
    }
    Ok(Description { etcd: cluster.etcd.endpoints().join(","), programs, places })
}

/// Replaces this program by a command in a node or pod of a running cluster.
pub(crate) fn exec(name: &str, place: &str, command: &[String]) -> Result<()> {
    let record = Record::read(name)?;
    let Some(Record { pid, .. }) = record else {
        bail!("no cluster {name:?} runs: start one with `tweed-lab up`");
    };
    let inside = child_of(pid)?;
    let file = PathBuf::from(format!("/proc/{inside}/root{DESCRIPTION}"));
    let text = fs::read(&file).with_context(|| format!("the cluster {name:?} is not ready yet"))?;
    let Description { etcd, programs, places } = serde_json::from_slice(&text)?;
    let Some(found) = places.iter().find(|it| it.name == place) else {
        let names: Vec<_> = places.iter().map(|it| it.name.as_str()).collect();
        bail!("the cluster has no {place:?}; it has {}", names.join(", "));
    };
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--target={inside}"));
    if !Uid::effective().is_root() {
        enter.args(["--user", "--preserve-credentials"]);
    }
    enter.args(["--mount", "--net", "--pid", "ip", "netns", "exec", &found.namespace]);
    if let Some(folder) = &found.folder {
        enter.args(["sh", "-euc", AT_NODE, "sh"]).arg(folder);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    enter.args(command).env("PATH", format!("{}:{path}", programs.display()));
    enter.env("ETCDCTL_ENDPOINTS", &etcd).env("FLANNELD_ETCD_ENDPOINTS", &etcd);
    enter.env("ETCDCTL_API", "3");
    Err(enter.exec()).context("entering the cluster by nsenter")
}

/// Ends a cluster, whatever its state is.
pub(crate) fn down(name: &str) -> Result<()> {
    let Some(Record { path, pid }) = Record::read(name)? else {
        bail!("no cluster {name:?} runs");
    };
    // The sandbox kills all that was started in it.
    kill(pid, Signal::SIGKILL)?;
    eventually(PATIENCE, || {
        ensure!(Record::read(name)?.is_none(), "the sandbox {pid} does not end");
        Ok(())
    })?;
    for file in [path.with_extension("log"), path] {
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

impl Record {
    /// None if the sandbox has ended, or its number is that of another process now.
    fn read(name: &str) -> Result<Option<Self>> {
        let path = path(name)?;
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(path.display().to_string()),
        };
        let (pid, started) = text.trim().split_once(' ').context(path.display().to_string())?;
        let pid = pid.parse().with_context(|| path.display().to_string())?;
        let is_same = start_of(pid).is_some_and(|it| it == started);
        Ok(is_same.then_some(Self { path, pid: Pid::from_raw(pid) }))
    }

    fn write(name: &str, child: &Child) -> Result<()> {
        let (path, pid) = (path(name)?, i32::try_from(child.id())?);
        let started = start_of(pid).context("the sandbox has ended at once")?;
        fs::write(&path, format!("{pid} {started}\n")).with_context(|| path.display().to_string())
    }
}

/// Only this user can write there: `down` kills the process that a file names.
fn folder() -> Result<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = own.or_else(|| Uid::effective().is_root().then(|| PathBuf::from("/run")));
    Ok(own.context("XDG_RUNTIME_DIR is not set")?.join("tweed-lab"))
}

fn path(name: &str) -> Result<PathBuf> {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '-';
    ensure!(
        !name.is_empty() && name.chars().all(is_plain),
        "a name has only letters, digits and -"
    );
    Ok(folder()?.join(name))
}

/// When a process started, in ticks since the boot; none if it has ended.
fn start_of(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain spaces.
    let mut fields = text.rsplit_once(") ")?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(18).map(str::to_owned)
}

/// The first process inside the sandbox.
fn child_of(pid: Pid) -> Result<u32> {
    let file = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(Path::new(&file)).with_context(|| file.clone())?;
    let first = text.split_whitespace().next().context("the cluster is starting")?;
    Ok(first.parse()?)
}
