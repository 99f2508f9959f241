//! One member of etcd: a process in a namespace, and its data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use crate::network::http::{self, Answer};
use crate::network::namespace::Namespace;
use crate::network::segment::Segment;
use crate::network::wire::Wire;
use crate::process::Process;
use crate::wait::PATIENCE;
use crate::world::World;

/// A member, running or not.
#[derive(Debug)]
pub struct Member {
    name: String,
    namespace: Namespace,
    wire: Wire,
    address: IpAddr,
    world: Arc<World>,
    founding: String,
    arguments: Vec<String>,
    user: Option<String>,
    state: State,
}

#[derive(Debug)]
enum State {
    Down,
    Up(Process),
    Frozen(Process),
}

impl Member {
    pub(super) fn build(world: &Arc<World>, segment: &Segment, name: String) -> Result<Self> {
        let namespace = world.namespace(&name)?;
        let wire = segment.join(&namespace, "eth0")?;
        let address = wire.addresses.first().context("the management network is empty")?.ip();
        let (founding, arguments, user) = Default::default();
        let (world, state) = (Arc::clone(world), State::Down);
        Ok(Self { name, namespace, wire, address, world, founding, arguments, user, state })
    }

    /// Starts a member of a new cluster.
    pub(super) fn found(&mut self, peers: &str, arguments: &[String]) -> Result<()> {
        peers.clone_into(&mut self.founding);
        arguments.clone_into(&mut self.arguments);
        self.start()
    }

    pub(super) fn log_in(&mut self, user: &str) {
        self.user = Some(user.to_owned());
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// If it is cut, the member is disconnected from nodes and other members.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}:2379", self.address)
    }

    pub(super) fn peer(&self) -> String {
        format!("{}=http://{}:2380", self.name, self.address)
    }

    /// Running and not frozen.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// The process, if it runs.
    pub fn process(&self) -> Option<&Process> {
        match &self.state {
            State::Down => None,
            State::Up(process) | State::Frozen(process) => Some(process),
        }
    }

    /// Starts a stopped member with its old data. Does not wait until it serves.
    pub fn start(&mut self) -> Result<()> {
        ensure!(matches!(self.state, State::Down), "{} runs already", self.name);
        let process = self.world.start(&mut self.command(), &self.namespace, &self.name)?;
        self.state = State::Up(process);
        Ok(())
    }

    /// SIGTERM and wait.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(process) = self.process() {
            process.stop(PATIENCE)?;
        }
        self.state = State::Down;
        Ok(())
    }

    /// SIGKILL and wait.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(process) = self.process() {
            process.kill()?;
        }
        self.state = State::Down;
        Ok(())
    }

    /// SIGSTOP: connections stay open, but no request is answered.
    pub fn freeze(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Down) {
            State::Up(process) => {
                process.signal(Signal::SIGSTOP)?;
                State::Frozen(process)
            }
            other => other,
        };
        Ok(())
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Down) {
            State::Frozen(process) => {
                process.signal(Signal::SIGCONT)?;
                State::Up(process)
            }
            other => other,
        };
        Ok(())
    }

    /// Deletes the data of a stopped member.
    pub(super) fn forget(&mut self) -> Result<()> {
        let data = self.data();
        std::fs::remove_dir_all(&data).with_context(|| data.display().to_string())
    }

    /// GET on its client port: `/metrics`, `/version`.
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.namespace.within(|| http::get((self.address, 2379).into(), path))?
    }

    /// Ok once the member serves reads that need a quorum.
    pub(super) fn healthy(&self) -> Result<()> {
        let answer = self.get("/health")?;
        ensure!(answer.status == 200, "{}: {} {}", self.name, answer.status, answer.body);
        Ok(())
    }

    /// `etcdctl` with this member only.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let common = self.etcdctl_flags();
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        self.namespace.run("etcdctl", &[&common, arguments].concat())
    }

    pub(super) fn etcdctl_flags(&self) -> Vec<String> {
        let endpoint = format!("--endpoints={}", self.endpoint());
        let user = self.user.iter().map(|user| format!("--user={user}"));
        let patience = ["--dial-timeout=60s", "--command-timeout=60s"].map(str::to_owned);
        [endpoint].into_iter().chain(patience).chain(user).collect()
    }

    fn data(&self) -> PathBuf {
        self.world.folder.join(&self.name)
    }

    fn command(&self) -> Command {
        let (client, peer) = (self.endpoint(), format!("http://{}:2380", self.address));
        let mut command = Command::new("etcd");
        command.args(["--name", &self.name, "--data-dir"]).arg(self.data());
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &self.founding, "--logger", "zap"]);
        command.args(&self.arguments);
        command
    }
}
