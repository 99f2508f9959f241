//! Long-lived TCP connections between pods, nodes and a machine outside the cluster.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Result};

use super::Shared;
use super::line::{Kind, Line, Outcome};
use super::progress::settle;
use super::server::echo_all;
use crate::network::address::Family;
use crate::network::namespace::Namespace;
use crate::network::pod::Pod;
use crate::node::Node;
use crate::node::services::{Proxy, Service, service_range};

/// The port of listeners on pods, nodes and the machine outside.
const PORT: u16 = 7100;
const SERVICE_PORT: u16 = 80;
const FIRST_NODE_PORT: u16 = 30_001;

/// A node with a pod, and its rules for services.
#[derive(Clone, Debug)]
pub struct Worker {
    pub node: Node,
    pub pod: Pod,
    pub proxy: Proxy,
}

/// By kind, and by the name of the node.
pub type Outcomes = BTreeMap<(Kind, String), Outcome>;

/// Open connections, each with ten exchanges per second. Dropping it ends them.
#[derive(Debug)]
pub struct Connections {
    workers: Vec<Worker>,
    pairs: Vec<(usize, usize)>,
    outside: Node,
    services: Vec<Service>,
    lines: Vec<Arc<Line>>,
    shared: Arc<Shared>,
}

impl Connections {
    /// Prepares services and listeners; no connection is open yet. `pairs` are indices of workers:
    /// connections run from the first to the second of each. `outside` is on the segment of the
    /// nodes, and has no daemon.
    pub fn prepare(
        workers: Vec<Worker>,
        pairs: impl IntoIterator<Item = (usize, usize)>,
        outside: &Node,
    ) -> Result<Self> {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let services = services(&workers)?;
        let (lines, shared) = (Vec::new(), Arc::<Shared>::default());
        let outside = outside.clone();
        let connections = Self { workers, pairs, outside, services, lines, shared };
        for Worker { node, pod, .. } in &connections.workers {
            let spaces = [node.namespace(), pod.namespace()];
            spaces.into_iter().try_for_each(|space| connections.listen(space))?;
            for family in pod.families() {
                node.route_to_services(family)?;
            }
        }
        connections.listen(connections.outside.namespace())?;
        connections.sync_services()?;
        Ok(connections)
    }

    /// Writes the rules for services on every node again, as kube-proxy does periodically.
    pub fn sync_services(&self) -> Result<()> {
        self.workers.iter().try_for_each(|it| it.node.sync_services(it.proxy, &self.services))
    }

    /// Opens one more connection of each kind and family for every pair, and waits for their first
    /// exchanges. One that cannot be opened counts as broken.
    pub fn open(&mut self) -> Result<()> {
        for (from, to) in self.pairs.clone() {
            let worker = |index| self.workers.get(index).cloned().context("no such worker");
            let (from, to) = (worker(from)?, worker(to)?);
            for family in from.pod.families() {
                for kind in Kind::ALL {
                    self.connect(kind, &from, &to, family)?;
                }
            }
        }
        self.settle()
    }

    /// The outcome of all connections since the last call.
    pub fn take(&self) -> Result<Outcomes> {
        self.settle()?;
        let mut outcomes = Outcomes::new();
        for line in &self.lines {
            line.take(outcomes.entry((line.kind, line.node.clone())).or_default());
        }
        Ok(outcomes)
    }

    /// Waits until every connection has completed an exchange that began after this call, or is
    /// broken.
    fn settle(&self) -> Result<()> {
        settle(&self.shared, self.lines.iter().map(|line| &line.progress)).context("connections")
    }

    fn connect(&mut self, kind: Kind, from: &Worker, to: &Worker, family: Family) -> Result<()> {
        let is_wanted = |service: &&Service| {
            service.name == to.node.name() && Family::of(service.pod.ip()) == family
        };
        let service = self.services.iter().find(is_wanted).context("a pod without a service")?;
        let (near, pod, outside) =
            (from.node.namespace(), from.pod.namespace(), self.outside.namespace());
        let (from_space, target) = match kind {
            Kind::OutsideToPod => {
                (outside, SocketAddr::new(from.node.address(family)?, service.node_port))
            }
            Kind::HostToPod => (near, service.pod),
            Kind::HostToService => (near, service.address),
            Kind::PodToHost => (pod, SocketAddr::new(to.node.address(family)?, PORT)),
            Kind::PodToOutside => (pod, SocketAddr::new(self.outside.address(family)?, PORT)),
        };
        let line = Arc::new(Line::new(kind, from.node.name(), target));
        self.lines.push(Arc::clone(&line));
        let shared = Arc::clone(&self.shared);
        spawn(from_space, move || line.run(&shared));
        Ok(())
    }

    fn listen(&self, space: &Namespace) -> Result<()> {
        let bind = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT));
        let listener = space.within(bind)?.with_context(|| format!("port {PORT}"))?;
        let shared = Arc::clone(&self.shared);
        spawn(space, move || drop(echo_all(&listener, &shared)));
        Ok(())
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// One per pod and family.
fn services(workers: &[Worker]) -> Result<Vec<Service>> {
    let mut services = Vec::new();
    for (number, Worker { node, pod, .. }) in (1..).zip(workers) {
        for family in pod.families() {
            let range = service_range(family).parse()?;
            let address = crate::network::address::nth(range, u32::from(number))?.ip();
            services.push(Service {
                name: node.name().to_owned(),
                address: SocketAddr::new(address, SERVICE_PORT),
                node_port: FIRST_NODE_PORT + number,
                pod: SocketAddr::new(pod.address(family)?, PORT),
            });
        }
    }
    Ok(services)
}

/// The thread ends soon after the connections are dropped.
fn spawn(space: &Namespace, work: impl FnOnce() + Send + 'static) {
    let space = space.clone();
    std::thread::spawn(move || {
        if space.enter().is_ok() {
            work();
        }
    });
}
