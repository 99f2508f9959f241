//! A cluster of machines, whose daemons run in virtual time.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep_until};
use tweed::model::config::BackendType;
use tweed::model::prefix::Family;

use crate::act::{Backend, Config, Order, name};
use crate::flannel::Flanneld;
use crate::network::{Link, LinkState, SHORT};
use crate::node::Node;
use crate::operator::Operators;
use crate::packets::stack::Stack;
use crate::packets::walk::{Arrival, Host, Lost};
use crate::prober::Network;
use crate::store::etcd::{CONFIG, LEASES};
use crate::store::{Health, Store, StoreKind};

/// What a cluster is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The number of nodes at first.
    pub nodes: usize,
    pub store: StoreKind,
    pub stack: Stack,
    /// The backend of the stock flanneld on the first nodes, if they do not begin with `tweedd`.
    pub flannel: Option<Backend>,
    /// Whether messages between the store and some nodes take long.
    pub is_wide: bool,
}

impl Setup {
    /// The config of a new cluster.
    pub fn config(self) -> Config {
        self.flannel.map_or(Config::Mixed(Backend::Vxlan), Config::Finished)
    }

    /// That of a cluster whose config is invalid at the end of the faults, or not that of all nodes.
    pub fn last_config(self) -> Config {
        Config::Mixed(self.flannel.unwrap_or(Backend::Vxlan))
    }
}

pub struct Cluster {
    pub setup: Setup,
    pub store: Store,
    pub network: Rc<Network>,
    pub nodes: Vec<Node>,
    operators: Operators,
    begun: Instant,
    folder: TempDir,
    /// The last network config in Kubernetes, and the nodes whose kubelets write it into a file later.
    mounted: Option<String>,
    unwritten: Vec<(Instant, usize)>,
    /// The next heartbeats of kubelets.
    heartbeat: Instant,
    /// The last network config that was parsed; none if it is invalid.
    parsed: RefCell<(String, Option<Value>)>,
}

/// Within this time, one kubelet after the other writes a changed config.
const MOUNTS: Duration = Duration::from_millis(7500);
/// The time between two heartbeats of a kubelet.
const HEARTBEAT: Duration = Duration::from_secs(10);

impl Cluster {
    /// Machines that are switched on, without daemons, next to an empty store.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn new(setup: Setup) -> io::Result<Self> {
        let Setup { nodes, store, stack, flannel, .. } = setup;
        let folder = tempfile::Builder::new().prefix("tweed-simulation").tempdir_in(in_memory())?;
        let mut cluster = Self {
            setup,
            store: Store::new(store, stack),
            network: Rc::default(),
            nodes: Vec::new(),
            operators: Operators::default(),
            begun: Instant::now(),
            folder,
            mounted: None,
            unwritten: Vec::new(),
            heartbeat: Instant::now() + HEARTBEAT,
            parsed: RefCell::default(),
        };
        for _ in 0..nodes {
            cluster.add()?;
        }
        for node in cluster.nodes.iter_mut().filter(|_| flannel.is_some()) {
            node.flannel = Some(Flanneld::default());
        }
        Ok(cluster)
    }

    /// Adds a machine, without a daemon.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn add(&mut self) -> io::Result<()> {
        let index = self.nodes.len();
        let mut addresses = (1..).map_while(|last| u8::try_from(last).ok());
        let free = addresses
            .find(|last| self.is_free(*last))
            .ok_or_else(|| io::Error::other("no address is free"))?;
        let link = Link::new(if self.setup.is_wide { latency() } else { SHORT });
        let node = Node::new((index, free), self.setup.stack, link, self.folder.path())?;
        node.add_foreign_route();
        node.mount(self.mounted.as_deref())?;
        if let Store::Kubernetes(kubernetes) = &self.store {
            kubernetes.add_node(index, index + 1);
        }
        let (kernel, address) = (node.kernel.clone(), node.address);
        let host = Host { kernel, address, is_up: true, pods: None };
        self.network.segment.borrow_mut().hosts.push(host);
        self.nodes.push(node);
        Ok(())
    }

    /// Gives two machines, which are then switched off, the address of the other one. One that has left
    /// has none.
    pub fn swap_addresses(&mut self, one: usize, other: usize) {
        if [one, other].iter().any(|index| self.nodes[*index].has_left) {
            return;
        }
        let (first, second) = (self.nodes[one].address, self.nodes[other].address);
        for (index, address) in [(one, second), (other, first)] {
            self.nodes[index].set_address(address);
            self.network.segment.borrow_mut().hosts[index].address = address;
        }
    }

    /// Whether DHCP may give this address to a machine: the last one that had it has left, or has another.
    fn is_free(&self, last: u8) -> bool {
        self.nodes.iter().all(|node| node.has_left || node.address != last)
    }

    /// Gives a running machine another address, unless one has it.
    pub fn readdress(&mut self, index: usize, last: u8) {
        if self.is_free(last) {
            self.nodes[index].set_address(last);
            self.nodes[index].add_foreign_route();
            self.network.segment.borrow_mut().hosts[index].address = last;
        }
    }

    pub fn start(&mut self, index: usize) {
        if let Some(node) = self.nodes.get_mut(index).filter(|node| !node.has_left) {
            node.start(&self.store, &self.network);
        }
    }

    /// Kills the daemon of a node.
    pub fn kill(&mut self, index: usize) {
        self.nodes[index].kill(&self.network);
    }

    /// `tweedd` replaces flanneld on a node, if that runs there.
    pub fn take_over(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        if node.flannel.take_if(|flannel| flannel.is_running).is_some() {
            node.start(&self.store, &self.network);
        }
    }

    /// Writes or deletes the network config.
    pub fn configure(&mut self, config: Config) {
        self.write(config.text(self.setup.stack));
    }

    /// Writes the same network config, with one more space: a kubelet sees no equal text.
    pub fn write_again(&mut self) {
        self.write(self.config().map(|text| text + " "));
    }

    /// As `etcdctl` or `kubectl` does.
    fn write(&mut self, text: Option<String>) {
        let Store::Etcd(etcd) = &self.store else {
            if let (Store::Kubernetes(kubernetes), true) =
                (&self.store, self.store.health().is_writable())
            {
                kubernetes.set_config(text.as_deref());
                self.notice_config();
            }
            return;
        };
        match text {
            Some(text) => etcd.put(CONFIG, text, None),
            None => etcd.delete(CONFIG),
        }
    }

    /// An operator runs a command of `tweedctl migrate`.
    pub fn migrate(&self, order: Order) {
        self.operators.run(&self.store, order);
    }

    /// Whether a command has panicked.
    pub fn has_panicked(&self) -> bool {
        self.operators.have_panicked()
    }

    /// The results of the commands that have ended since the last call.
    pub fn take_ended_commands(&self) -> Vec<String> {
        self.operators.take_ended()
    }

    /// Operators end all commands.
    pub fn end_commands(&mut self) {
        self.operators = Operators::default();
    }

    /// Kubelets notice a changed config, and write it into files later.
    fn notice_config(&mut self) {
        let Store::Kubernetes(kubernetes) = &self.store else { return };
        let config = kubernetes.config();
        if self.mounted != config {
            self.mounted = config;
            let (now, nodes) = (Instant::now(), self.nodes.len());
            let count = u32::try_from(nodes).unwrap_or(u32::MAX);
            let times = (0..count).map(|index| now + MOUNTS * index / count);
            self.unwritten = times.zip(0..nodes).collect();
        }
    }

    /// Kubelets report the states of their Nodes.
    fn send_heartbeats(&mut self) {
        let Store::Kubernetes(kubernetes) = &self.store else { return };
        if Instant::now() < self.heartbeat || !self.store.health().is_writable() {
            return;
        }
        self.heartbeat = Instant::now() + HEARTBEAT;
        let segment = self.network.segment.borrow();
        let is_up =
            |node: &&Node| segment.hosts[node.index].is_up && node.link.state() == LinkState::Open;
        for node in self.nodes.iter().filter(is_up) {
            kubernetes.heartbeat(node.index, self.begun.elapsed());
        }
    }

    /// Kubelets write the network config into files.
    fn mount(&mut self) -> io::Result<()> {
        let (nodes, is_up) = (&self.nodes, self.store.health() == Health::Up);
        let is_due = |(at, index): &mut (Instant, usize)| {
            *at <= Instant::now() && is_up && nodes[*index].link.state() == LinkState::Open
        };
        let due: Vec<(Instant, usize)> = self.unwritten.extract_if(.., is_due).collect();
        due.iter().try_for_each(|(_, index)| nodes[*index].mount(self.mounted.as_deref()))
    }

    /// The network config; none if there is none.
    pub fn config(&self) -> Option<String> {
        match &self.store {
            Store::Etcd(etcd) => Some(etcd.texts(CONFIG).pop()?.1),
            Store::Kubernetes(kubernetes) => kubernetes.config(),
        }
    }

    /// Whether a key of the network config, by its JSON pointer, is true; none without a valid config.
    fn is_on(&self, key: &str) -> Option<bool> {
        let (text, mut parsed) = (self.config()?, self.parsed.borrow_mut());
        if parsed.0 != text {
            let is_valid = !Config::is_malformed(&text, self.setup.stack);
            let config = is_valid.then(|| serde_json::from_str(&text).ok()).flatten();
            *parsed = (text.clone(), config);
        }
        Some(parsed.1.as_ref()?.pointer(key).is_some_and(|value| value == true))
    }

    /// Whether each node can read a valid network config.
    pub fn is_configured(&self) -> bool {
        self.is_mixed().is_some() && self.unwritten.is_empty()
    }

    /// Whether the network config has another network, by the mistake of an operator.
    pub fn has_other_network(&self) -> bool {
        self.config().is_some_and(|text| Config::is_of_other_network(&text))
    }

    /// Whether a node takes its own lease for that of another machine when it starts: the lease has
    /// neither its address nor that of its checkpoint, and these two differ.
    pub fn mistakes_its_lease(&self, node: &Node) -> bool {
        let Some(own) = node.checkpoint().and_then(|it| it.local.own.clone()) else { return false };
        let saved = own.endpoints.iter().map(|endpoint| endpoint.public_ip);
        let (saved, present): (Vec<IpAddr>, _) = (saved.collect(), node.first_address());
        let is_unknown = |value: &str| {
            let mut known = saved.iter().chain([&present]);
            !known.any(|address| value.contains(&format!("\"{address}\"")))
        };
        let mut leases = self.leases().into_iter();
        !saved.contains(&present)
            && leases.any(|(key, value)| key.ends_with(own.id.as_str()) && is_unknown(&value))
    }

    /// Whether the network config has `Mixed`; none without a valid one.
    pub fn is_mixed(&self) -> Option<bool> {
        self.is_on("/Mixed")
    }

    /// Whether all nodes have the same backend.
    pub fn is_uniform(&self) -> bool {
        let mut direct = self.nodes.iter().filter_map(Node::routes_directly);
        let first = direct.next();
        let leases = self.leases();
        all_have(&leases, Backend::HostGw)
            || all_have(&leases, Backend::Vxlan) && direct.all(|it| Some(it) == first)
    }

    /// The nodes that, without `Mixed`, have no path to another one: that has another backend, and its
    /// lease does not show that it has `Mixed`, or they differ in `DirectRouting`.
    pub fn cut_off(&self) -> Vec<usize> {
        let (mut direct, leases) =
            (self.nodes.iter().filter_map(Node::routes_directly), self.leases());
        let first = direct.next();
        let differ = direct.any(|it| Some(it) != first);
        let is_unlike = |own: BackendType, value: &str| {
            let sign = if own == BackendType::HostGw { "Mixed" } else { "VtepMAC" };
            !value.contains(&format!("\"{}\"", own.as_str())) && !value.contains(sign)
        };
        let is_cut_off = |node: &&Node| {
            let lacks = |own| leases.iter().any(|(_, value)| is_unlike(own, value));
            differ || node.backend().is_none_or(lacks)
        };
        let without = self.nodes.iter().filter(|node| !node.is_mixed());
        without.filter(is_cut_off).map(|node| node.index).collect()
    }

    /// Whether all nodes have the backend of the network config.
    pub fn follows_config(&self) -> bool {
        let is_direct = self.has_direct_routing();
        let follows = |node: &Node| node.routes_directly().is_none_or(|it| it == is_direct);
        self.has_only(Backend::HostGw)
            || self.has_only(Backend::Vxlan) && self.nodes.iter().all(follows)
    }

    /// Whether the network config has `DirectRouting`.
    pub fn has_direct_routing(&self) -> bool {
        self.is_on("/Backend/DirectRouting") == Some(true)
    }

    /// Whether the network config and all leases have this backend.
    pub fn has_only(&self, backend: Backend) -> bool {
        all_have(&self.stored(), backend)
    }

    /// The virtual time since the cluster exists.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Lets `time` pass. Whenever a kernel has changed, `look` examines the cluster; what it finds
    /// first is returned.
    pub async fn pass<T>(
        &mut self,
        time: Duration,
        mut look: impl FnMut(&Self) -> Option<T>,
    ) -> Option<T> {
        let mut end = pin!(sleep_until(Instant::now() + time));
        if let Store::Etcd(etcd) = &self.store {
            etcd.end_leases();
        }
        self.notice_config();
        self.send_heartbeats();
        // The disk of the simulating machine is there.
        let _ = self.mount();
        self.nodes.iter_mut().for_each(|node| node.supervise(&self.store, &self.network));
        let mut found = look(self);
        poll_fn(|context| {
            for index in 0..self.nodes.len() {
                if self.run_one(index, context) && found.is_none() {
                    found = look(self);
                }
            }
            let _ = self.operators.poll(context);
            end.as_mut().poll(context)
        })
        .await;
        found
    }

    /// Runs the daemon of one node as far as it gets; returns whether its kernel has changed.
    fn run_one(&mut self, index: usize, context: &mut Context<'_>) -> bool {
        let Some(node) = self.nodes.get_mut(index) else { return false };
        let before = node.kernel.changes();
        let _logged = tracing::error_span!("node", name = name(index)).entered();
        if let Some(run) = node.run.as_mut().filter(|run| !run.is_stopped) {
            let _ = Pin::new(&mut run.tasks).poll(context);
        }
        node.kernel.changes() != before
    }

    /// Runs the daemons until `future` is ready.
    pub async fn answer<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(|context| {
            for index in 0..self.nodes.len() {
                self.run_one(index, context);
            }
            future.as_mut().poll(context)
        })
        .await
    }

    /// An operator deletes the lease of a node, whose daemon may run.
    pub fn delete_lease(&self, index: usize) {
        let etcd = match &self.store {
            Store::Etcd(etcd) => etcd,
            Store::Kubernetes(kubernetes) if self.store.health().is_writable() => {
                return kubernetes.remove_annotations(index);
            }
            Store::Kubernetes(_) => return,
        };
        if let Some(key) = self.lease_key(index) {
            etcd.delete(&key);
        }
    }

    /// Takes the term away from the lease of a node, as `tweedctl leases reserve` does.
    pub fn reserve_lease(&self, index: usize) {
        let lease = self.nodes.get(index).and_then(|node| self.leases_of(node).next());
        if let (Store::Etcd(etcd), Some((key, value))) = (&self.store, lease) {
            etcd.put(&key, value, None);
        }
    }

    /// The etcd lease of a node ends.
    pub fn expire_lease(&self, index: usize) {
        if let (Store::Etcd(etcd), Some(key)) = (&self.store, self.lease_key(index)) {
            etcd.expire(&key);
        }
    }

    fn lease_key(&self, index: usize) -> Option<String> {
        let node = self.nodes.get(index)?;
        self.leases_of(node).next().map(|(key, _)| key)
    }

    /// A machine leaves the cluster: its operator deletes what the store has of it. Returns whether the
    /// store allows that.
    pub fn leave(&mut self, index: usize) -> bool {
        if !self.store.health().is_writable() {
            return false;
        }
        match &self.store {
            Store::Kubernetes(kubernetes) => kubernetes.delete_node(index),
            Store::Etcd(_) => self.delete_lease(index),
        }
        self.nodes[index].has_left = true;
        true
    }

    /// The Node of a machine is deleted, if the API server can be reached. Its pods end.
    pub fn deregister(&mut self, index: usize) {
        let Store::Kubernetes(kubernetes) = &self.store else { return };
        if self.store.health().is_writable() {
            kubernetes.delete_node(index);
            self.network.segment.borrow_mut().hosts[index].pods = None;
        }
    }

    /// A machine without a Node gets one, with the subnet of this number.
    pub fn register(&self, index: usize, number: usize) {
        let Store::Kubernetes(kubernetes) = &self.store else { return };
        let may_write = self.store.health().is_writable() && !self.nodes[index].has_left;
        if may_write && kubernetes.node(index).is_none() {
            kubernetes.add_node(index, number);
        }
    }

    /// Whether each machine is known to Kubernetes.
    pub fn is_registered(&self) -> bool {
        let Store::Kubernetes(kubernetes) = &self.store else { return true };
        self.members().all(|node| kubernetes.node(node.index).is_some())
    }

    /// The machines that belong to the cluster.
    pub fn members(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.has_left)
    }

    /// The keys of all leases with their values.
    pub fn leases(&self) -> Vec<(String, String)> {
        match &self.store {
            Store::Etcd(etcd) => etcd.texts(LEASES),
            Store::Kubernetes(kubernetes) => kubernetes.leases(),
        }
    }

    /// The leases and the network config.
    pub fn stored(&self) -> Vec<(String, String)> {
        let config = self.config().map(|value| (String::new(), value));
        self.leases().into_iter().chain(config).collect()
    }

    /// The leases with the address of a node. In Kubernetes, only its own Node: a backup may restore
    /// that of a machine that has left, with the address that this one has now.
    pub fn leases_of(&self, node: &Node) -> impl Iterator<Item = (String, String)> + use<> {
        let address = format!("\"{}\"", node.first_address());
        let leases = match &self.store {
            Store::Etcd(_) => self.leases(),
            Store::Kubernetes(kubernetes) => kubernetes.lease(node.index).into_iter().collect(),
        };
        leases.into_iter().filter(move |(_, value)| value.contains(&address))
    }

    /// Whether the subnet of a node is leased to its address.
    pub fn holds_lease(&self, node: &Node) -> bool {
        let name = node.lease_name();
        name.is_some_and(|name| self.leases_of(node).any(|(key, _)| key.contains(&name)))
    }

    /// Reads from the disks where the pods of each host are.
    pub fn look_for_pods(&self) {
        let mut segment = self.network.segment.borrow_mut();
        for (node, host) in self.nodes.iter().zip(&mut segment.hosts) {
            host.pods = node.pods().or(host.pods);
        }
    }

    /// How packets of pods get from one host to another.
    ///
    /// # Errors
    /// Where they are lost.
    pub fn send(&self, from: usize, to: usize, family: Family) -> Result<Arrival, Lost> {
        self.network.segment.borrow().pod_to_pod((from, to), family)
    }
}

fn all_have(stored: &[(String, String)], backend: Backend) -> bool {
    let name = format!("\"{}\"", backend.as_str());
    stored.iter().all(|(_, value)| value.contains(&name))
}

/// Half of the links are short.
fn latency() -> Duration {
    match tweed::random::random::<f64>() {
        ..0.5 => SHORT,
        ..0.9 => SHORT * 20,
        _ => SHORT * 150,
    }
}

/// A file system in memory, where there is one.
fn in_memory() -> std::path::PathBuf {
    let shm = std::path::PathBuf::from("/dev/shm");
    if shm.is_dir() { shm } else { std::env::temp_dir() }
}
