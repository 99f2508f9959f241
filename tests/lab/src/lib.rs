//! A cluster of network namespaces in one machine: nodes, pods, etcd, daemons, faults and probes.
//!
//! ```no_run
//! use std::time::Duration;
//! use tweed_lab::{Binaries, Family, Lab, Path, eventually};
//!
//! fn a_deleted_route_comes_back(binaries: Binaries) -> anyhow::Result<()> {
//!     let lab = Lab::new(binaries)?;
//!     let etcd = lab.etcd()?;
//!     etcd.put("/coreos.com/network/config", r#"{"Network":"10.244.0.0/16"}"#)?;
//!     let segment = lab.segment("10.99.1.0/24")?;
//!     let (left, right) = (lab.node("left", &segment)?, lab.node("right", &segment)?);
//!     for node in [&left, &right] {
//!         node.daemon(&etcd).start()?.wait_ready()?;
//!     }
//!     let (near, far) = (left.pod()?, right.pod()?);
//!     near.ping(far.address(Family::V4)?, 56)?;
//!
//!     let subnet = right.subnet_env()?.subnets()[0];
//!     left.ip(format!("route del {subnet}"))?;
//!     let repaired = eventually(Duration::from_secs(1), || {
//!         left.path_to(subnet).map(|path| path == Path::Tunnel)
//!     })?;
//!     println!("back after {repaired:?}");
//!     Ok(())
//! }
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

pub mod cluster;
mod config;
mod kernel;
mod network;
mod node;
mod process;
pub mod sandbox;
mod stores;
pub mod storm;
mod traffic;
mod wait;
mod world;

use std::path::PathBuf;
use std::sync::Arc;

use std::process::Command;

use anyhow::Result;

pub use nix::sys::signal::Signal;

pub use config::{Backend, Stack};
pub use kernel::facts::{Fdb, Link, Neighbour, Path, Route, Vxlan};
pub use kernel::matrix::{Matrix, Ping, pairs, paths, wait_for_paths};
pub use kernel::monitor::{Change, Monitor};
pub use kernel::snapshot::Snapshot;
pub use network::address::{Address, Family};
pub use network::http::Answer;
pub use network::namespace::Namespace;
pub use network::pod::Pod;
pub use network::router::Router;
pub use network::segment::{Segment, SegmentPlan};
pub use network::wire::Wire;
pub use node::daemon::{Daemon, DaemonPlan};
pub use node::faults::Files;
pub use node::flannel::Flannel;
pub use node::host::Host;
pub use node::runtime::{
    Container, ContainerPlan, Containerd, GREETING, IMAGE, Image, Podman, Runtime, add_program,
};
pub use node::services::{Proxy, Service};
pub use node::subnet_env::SubnetEnv;
pub use node::{Node, NodePlan, ReversePath};
pub use process::{Ended, Process, install, peak_kib};
pub use stores::api_server::{ApiBody, ApiServer, Asked, Backup, Faults, Gone, Lists, Page};
pub use stores::etcd::{Entry, Etcd, EtcdPlan, Member};
pub use traffic::probe::{Count, Pair, PairReport, Probe, ProbePlan, Report, Stage, overruns_at};
pub use traffic::{
    Connections, FlowCounts, Flows, Kind, Outcome, Outcomes, Tally, Traffic, Worker, source_seen,
};
pub use wait::{Condition, PATIENCE, eventually, is_silence, listen, lock};

use world::World;

/// The programs under test, by path.
#[derive(Clone, Debug, Default)]
pub struct Binaries {
    pub tweedd: PathBuf,
    pub tweedctl: PathBuf,
}

/// A cluster. When it is dropped, its processes are killed and its namespaces deleted.
///
/// If it is dropped in a panic, the last log lines of its processes are shown; if the environment
/// variable `TWEED_LAB_LOGS` names a folder, all logs are copied there.
///
/// Several may exist in one process. A handle must not outlive its lab.
#[derive(Debug)]
pub struct Lab {
    world: Arc<World>,
    management: Segment,
}

impl Lab {
    pub fn new(binaries: Binaries) -> Result<Self> {
        let world = Arc::new(World::create(binaries)?);
        let switch = world.namespace("mgmt")?;
        let management = Segment::build(&SegmentPlan::new("172.31.0.0/16"), switch)?;
        Ok(Self { world, management })
    }

    /// A lab that cannot start daemons.
    pub fn bare() -> Result<Self> {
        Self::new(Binaries::default())
    }

    /// `lab.segment("10.99.1.0/24")`, or a [`SegmentPlan`] for more options.
    pub fn segment(&self, plan: impl Into<SegmentPlan>) -> Result<Segment> {
        let switch = self.world.namespace(&format!("switch{}", self.world.number()))?;
        Segment::build(&plan.into(), switch)
    }

    /// A router with a device on each segment; the first one of a segment is the gateway of its
    /// nodes.
    pub fn router(&self, name: &str, segments: &[&Segment]) -> Result<Router> {
        Router::build(self.world.namespace(name)?, segments)
    }

    /// A node on a segment, with a connection to etcd.
    pub fn node(&self, name: &str, segment: &Segment) -> Result<Node> {
        self.node_with(&NodePlan::new(name, segment))
    }

    pub fn node_with(&self, plan: &NodePlan) -> Result<Node> {
        Node::build(&self.world, plan, &self.management)
    }

    /// A namespace with only a loopback device.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        self.world.namespace(name)
    }

    /// One member, ready to serve.
    pub fn etcd(&self) -> Result<Etcd> {
        self.etcd_with(&EtcdPlan::new(1))
    }

    /// Three members, ready to serve.
    pub fn etcd_cluster(&self) -> Result<Etcd> {
        self.etcd_with(&EtcdPlan::new(3).patient())
    }

    pub fn etcd_with(&self, plan: &EtcdPlan) -> Result<Etcd> {
        Etcd::build(&self.world, &self.management, plan)
    }

    /// An API server of Kubernetes without nodes.
    pub fn api_server(&self) -> Result<ApiServer> {
        ApiServer::build(&self.world, &self.management)
    }

    /// Starts a program in the namespace of `node`; its output goes to a log with this name.
    pub fn start_on(
        &self,
        node: &Node,
        name: &str,
        program: &std::path::Path,
        arguments: &[&str],
    ) -> Result<Process> {
        self.world.start(Command::new(program).args(arguments), node.namespace(), name)
    }

    /// The folder of logs and nodes' files; tests may add other files, which are deleted with the
    /// lab.
    pub fn folder(&self) -> &std::path::Path {
        &self.world.folder
    }

    /// All pods, in the order of their start.
    pub fn pods(&self) -> Vec<Pod> {
        self.world.pods()
    }

    /// Every ordered pair of pods on different nodes that both have addresses of `family`.
    pub fn pairs(&self, family: Family) -> Vec<Pair> {
        let mut pods = self.pods();
        pods.retain(|pod| pod.families().contains(&family));
        let pairs = pods.iter().flat_map(|from| pods.iter().map(move |to| (from, to)));
        let apart = pairs.filter(|(from, to)| from.node() != to.node());
        apart.map(|(from, to)| Pair { from: from.clone(), to: to.clone(), family }).collect()
    }

    /// A stream of `rate` packets per second for each pair; [`ProbePlan`] has more options.
    pub fn probe(&self, pairs: &[Pair], rate: u32) -> Result<Probe> {
        ProbePlan::new(pairs, rate).start()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.world.last_words());
        }
        if let Err(error) = self.world.clear() {
            eprintln!("clearing the lab away: {error:#}");
        }
    }
}
