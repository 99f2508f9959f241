//! A route daemon on a node: start, stop, kill, query.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::libc::SYS_epoll_pwait;
#[cfg(target_arch = "x86_64")]
use nix::libc::SYS_epoll_wait;
use nix::sys::signal::Signal;

use crate::network::http::{self, Answer};
use crate::node::Node;
use crate::process::{Ended, Process};
use crate::stores::api_server::ApiServer;
use crate::stores::etcd::Etcd;
use crate::wait::{PATIENCE, eventually};

/// The system calls in which a daemon waits for events.
#[cfg(target_arch = "x86_64")]
const WAITING: [i64; 2] = [SYS_epoll_wait, SYS_epoll_pwait];
#[cfg(not(target_arch = "x86_64"))]
const WAITING: [i64; 1] = [SYS_epoll_pwait];

const HEALTH: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);

/// The command line: by default `tweedd` with flanneld's flags. Later arguments take precedence.
#[derive(Clone, Debug)]
pub struct DaemonPlan {
    node: Node,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl DaemonPlan {
    /// Any program that exits on SIGTERM, without arguments.
    pub fn program(node: &Node, program: impl Into<PathBuf>) -> Self {
        let (arguments, environment) = Default::default();
        Self { node: node.clone(), program: program.into(), arguments, environment }
    }

    fn tweedd(node: &Node, etcd: &Etcd) -> Self {
        Self::program(node, &node.world().binaries.tweedd)
            .argument(format!("--etcd-endpoints={}", etcd.endpoints().join(",")))
            .argument("--etcd-prefix=/coreos.com/network")
            .argument("--iface=eth0")
            .argument(format!("--subnet-file={}", node.subnet_file().display()))
            .argument(format!("--healthz-port={}", HEALTH.port()))
    }

    /// The node's name in Kubernetes is its name in the lab.
    fn kubernetes(node: &Node, server: &ApiServer, net_config: &Path) -> Self {
        Self::program(node, &node.world().binaries.tweedd)
            .argument("--kube-subnet-mgr")
            .argument(format!("--kube-api-url={}", server.url()))
            .argument(format!("--net-config-path={}", net_config.display()))
            .argument("--iface=eth0")
            .argument(format!("--subnet-file={}", node.subnet_file().display()))
            .argument(format!("--healthz-port={}", HEALTH.port()))
            .environment("NODE_NAME", node.name())
            .environment("POD_NAMESPACE", "kube-flannel")
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    #[must_use]
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The same command line for another program, such as a real flanneld.
    #[must_use]
    pub fn with_program(self, program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Runs it by another program, which gets this command line after its own arguments.
    #[must_use]
    pub fn through(mut self, program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let inner = std::mem::replace(&mut self.program, program.into());
        let outer = arguments.iter().map(OsString::from).chain([inner.into()]);
        self.arguments = outer.chain(self.arguments).collect();
        self
    }

    /// Starts it; [`Daemon::wait_ready`] waits until it is ready.
    pub fn start(self) -> Result<Daemon> {
        let process = self.run()?;
        Ok(Daemon { plan: self, process })
    }

    fn run(&self) -> Result<Process> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(k, v)| (k, v)));
        let log = format!("{}-daemon", self.node.name());
        self.node.world().start(&mut command, self.node.namespace(), &log)
    }
}

/// A daemon that has been started. Dropping the handle does not stop it; dropping the lab does.
#[derive(Debug)]
pub struct Daemon {
    plan: DaemonPlan,
    process: Process,
}

impl Node {
    /// The command line of `tweedd` on this node; add to it, then `start()`.
    pub fn daemon(&self, etcd: &Etcd) -> DaemonPlan {
        DaemonPlan::tweedd(self, etcd)
    }

    /// The same with Kubernetes as the store, and the network config in a file.
    pub fn kubernetes_daemon(&self, server: &ApiServer, net_config: &Path) -> DaemonPlan {
        DaemonPlan::kubernetes(self, server, net_config)
    }

    /// `tweedctl` in the node, whether a daemon runs or not, for tests of its exit codes.
    pub fn tweedctl(&self, arguments: &[&str]) -> Result<Output> {
        let socket = format!("--socket={}", self.subnet_file().with_extension("sock").display());
        let arguments = [&[socket.as_str()], arguments].concat();
        self.namespace().output(&self.world().binaries.tweedctl, &arguments)
    }
}

impl Daemon {
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The log of all runs of this daemon.
    pub fn log(&self) -> Result<String> {
        self.process.log()
    }

    /// SIGTERM and wait.
    pub fn stop(&self) -> Result<Ended> {
        self.process.stop(PATIENCE)
    }

    /// SIGKILL and wait.
    pub fn kill(&self) -> Result<Ended> {
        self.process.kill()
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), with the same arguments.
    pub fn start(&mut self) -> Result<()> {
        ensure!(!self.process.is_running(), "the daemon of {} runs", self.plan.node.name());
        self.process = self.plan.run()?;
        Ok(())
    }

    /// Stop, start, and wait until it is ready; returns the time from start to ready.
    pub fn restart(&mut self) -> Result<Duration> {
        self.stop()?;
        self.start()?;
        self.wait_ready()
    }

    /// Waits until `/readyz` answers 200; fails at once if the daemon has exited.
    pub fn wait_ready(&self) -> Result<Duration> {
        let name = self.plan.node.name();
        let waited = self.plan.node.namespace().within(|| {
            eventually(PATIENCE, || {
                if !self.process.is_running() {
                    return Ok(());
                }
                let answer = http::get(HEALTH, "/readyz")?;
                ensure!(answer.status == 200, "/readyz: {} {}", answer.status, answer.body);
                Ok(())
            })
        })?;
        let words = || format!("its last words:\n{}", self.process.last_words());
        ensure!(self.process.is_running(), "the daemon of {name} has ended, {}", words());
        waited.with_context(|| format!("the daemon of {name} is not ready, {}", words()))
    }

    /// GET on the health port, from inside the node: `/healthz`, `/readyz`, `/metrics`.
    ///
    /// A daemon that repairs thousands of entries on a busy machine answers late.
    pub fn get(&self, path: &str) -> Result<Answer> {
        let node = &self.plan.node;
        let ask = || http::get_within(PATIENCE, HEALTH, path);
        node.namespace().within(ask)?.with_context(|| format!("in {}", node.name()))
    }

    /// Resident memory at present.
    pub fn resident_kib(&self) -> Result<u64> {
        self.process.resident_kib()
    }

    /// SIGSTOP: its sockets stay open, but it does not run.
    pub fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)
    }

    /// As [`Self::freeze`], while it waits for something to do.
    pub fn freeze_idle(&self) -> Result<()> {
        let call = format!("/proc/{}/syscall", self.process.pid());
        eventually(PATIENCE, || {
            self.freeze()?;
            let call = std::fs::read_to_string(&call)?;
            let number = call.split(' ').next().and_then(|number| number.parse().ok());
            if number.is_none_or(|number| !WAITING.contains(&number)) {
                self.thaw()?;
                bail!("the daemon is in the middle of its work: {call}");
            }
            Ok(())
        })?;
        Ok(())
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::SIGCONT)
    }

    /// `tweedctl` in the node, against this daemon: `daemon.ctl(&["peers", "-o", "json"])`.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.plan.node.tweedctl(arguments)?;
        let (stdout, stderr) = (String::from_utf8(stdout)?, String::from_utf8_lossy(&stderr));
        // With a degraded or an unreachable peer, the answer is complete, too.
        let is_answer = status.success() || status.code() == Some(5);
        ensure!(is_answer, "tweedctl {arguments:?}: {status}: {stdout}{stderr}");
        Ok(stdout)
    }
}
