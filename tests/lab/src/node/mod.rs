//! A node: a namespace on a segment, with its own wire to the management network.

pub(crate) mod daemon;
pub(crate) mod faults;
pub(crate) mod flannel;
pub(crate) mod host;
mod pod;
pub(crate) mod runtime;
pub(crate) mod services;
pub(crate) mod subnet_env;

use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use ipnetwork::IpNetwork;

use crate::network::address::Family;
use crate::network::namespace::Namespace;
use crate::network::pod::Pod;
use crate::network::router::forward;
use crate::network::segment::Segment;
use crate::network::wire::Wire;
use crate::node::subnet_env::SubnetEnv;
use crate::wait::lock;
use crate::world::World;

/// `rp_filter` of every device of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReversePath {
    Off,
    Strict,
    Loose,
}

/// The plan of a node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    pub name: String,
    pub segment: Segment,
    pub reverse_path: ReversePath,
}

impl NodePlan {
    pub fn new(name: &str, segment: &Segment) -> Self {
        let (name, segment) = (name.to_owned(), segment.clone());
        Self { name, segment, reverse_path: ReversePath::Off }
    }

    #[must_use]
    pub fn reverse_path(mut self, reverse_path: ReversePath) -> Self {
        self.reverse_path = reverse_path;
        self
    }
}

/// A running node: `eth0` on its segment, `mgmt0` towards etcd. A cheap handle.
#[derive(Clone, Debug)]
pub struct Node {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    namespace: Namespace,
    world: Arc<World>,
    underlay: Wire,
    management: Wire,
    pods: Mutex<u32>,
}

impl Node {
    pub(crate) fn build(world: &Arc<World>, plan: &NodePlan, management: &Segment) -> Result<Self> {
        let namespace = world.namespace(&plan.name)?;
        forward(&namespace)?;
        set_reverse_path(&namespace, plan.reverse_path)?;
        let underlay = plan.segment.join_routed(&namespace, "eth0")?;
        let management = management.join(&namespace, "mgmt0")?;
        let (name, world, pods) = (plan.name.clone(), Arc::clone(world), Mutex::new(0));
        let inner = Inner { name, namespace, world, underlay, management, pods };
        let node = Self { inner: Arc::new(inner) };
        let folder = node.folder();
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        Ok(node)
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    /// `ip(8)` in the node: `node.ip("route del 10.244.3.0/24")`.
    pub fn ip(&self, arguments: impl Display) -> Result<String> {
        self.namespace().ip(&arguments.to_string())
    }

    /// Makes the kernel resolve every neighbour of the uplink again. The entries stay: the kernel
    /// drops a packet that has looked up an entry which is then removed.
    pub fn forget_neighbours(&self) -> Result<()> {
        let neighbours = self.ip("neigh show dev eth0")?;
        for address in neighbours.lines().filter_map(|line| line.split_whitespace().next()) {
            // The kernel may have removed it meanwhile.
            drop(self.ip(format!("neigh change {address} dev eth0 nud none")));
        }
        Ok(())
    }

    /// `bridge(8)` in the node.
    pub fn bridge(&self, arguments: impl Display) -> Result<String> {
        self.namespace().bridge(&arguments.to_string())
    }

    /// The cable of `eth0`.
    pub fn underlay(&self) -> &Wire {
        &self.inner.underlay
    }

    /// The cable of `mgmt0`: if it is cut, the node loses only etcd.
    pub fn management(&self) -> &Wire {
        &self.inner.management
    }

    /// The present address of `eth0`, which identifies the node to its peers.
    pub fn address(&self, family: Family) -> Result<IpAddr> {
        Ok(self.underlay_address(family)?.ip())
    }

    /// Like [`address`](Self::address), with the length of the prefix.
    pub(crate) fn underlay_address(&self, family: Family) -> Result<IpNetwork> {
        let global = self.addresses("eth0")?.into_iter().filter(|it| it.scope == "global");
        let mut addresses = global.map(|it| it.address);
        let found = addresses.find(|address| Family::of(address.ip()) == family);
        found.with_context(|| format!("{} has no {family:?} address", self.name()))
    }

    /// Joins an additional segment, without a default route.
    pub fn connect(&self, device: &str, segment: &Segment) -> Result<Wire> {
        segment.join(self.namespace(), device)
    }

    /// The folder of `subnet.env` and the daemon's other files.
    pub fn folder(&self) -> PathBuf {
        self.world().folder.join(self.name())
    }

    pub fn subnet_file(&self) -> PathBuf {
        self.folder().join("subnet.env")
    }

    /// The file that the daemon wrote.
    pub fn subnet_env(&self) -> Result<SubnetEnv> {
        read(&self.subnet_file())
    }

    /// The node's subnet of a family, by `subnet.env`.
    pub fn subnet(&self, family: Family) -> Result<IpNetwork> {
        let found = self.subnet_env()?.subnet(family);
        found.with_context(|| format!("{} has no {family:?} subnet", self.name()))
    }

    /// Starts a pod in the subnet of `subnet.env`, which must exist.
    pub fn pod(&self) -> Result<Pod> {
        self.pod_in(&self.subnet_env()?)
    }

    /// Starts a pod without a daemon's `subnet.env`.
    pub fn pod_in(&self, env: &SubnetEnv) -> Result<Pod> {
        let mut pods = lock(&self.inner.pods);
        let pod = pod::build(self, env, *pods + 1)?;
        *pods += 1;
        self.world().add_pod(&pod);
        Ok(pod)
    }

    pub(crate) fn world(&self) -> &World {
        &self.inner.world
    }
}

fn set_reverse_path(namespace: &Namespace, reverse_path: ReversePath) -> Result<()> {
    let value = match reverse_path {
        ReversePath::Off => "0",
        ReversePath::Strict => "1",
        ReversePath::Loose => "2",
    };
    namespace.set_sysctl("net.ipv4.conf.all.rp_filter", value)?;
    namespace.set_sysctl("net.ipv4.conf.default.rp_filter", value)
}

fn read(path: &Path) -> Result<SubnetEnv> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.parse().with_context(|| path.display().to_string())
}
