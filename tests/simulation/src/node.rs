//! A machine of the cluster: its disk, its kernel, and the daemon that may run on it.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::Instant;
use tweed::control::{Event, Query};
use tweed::daemon::options::{Options, StoreOptions};
use tweed::daemon::{Blocking, Daemon, Parts, checkpoint, load_checkpoint, previous};
use tweed::model::checkpoint::{Checkpoint, HostId};
use tweed::model::config::BackendType;
use tweed::model::entry::{BasePolicy, Entry, Key, LinkName, SettingKind};
use tweed::model::node::{Facts, Interface, InterfaceAddress, Lifetime, NexthopSupport, Sysctls};
use tweed::model::prefix::{Family, Prefix};
use tweed::model::status::Status;
use tweed::store::etcd::EtcdSubnetManager;
use tweed::store::kube::KubeSubnetManager;
use tweed::store::{Documents, Leases};
use tweed_model::ModelKernel;

use crate::act::{MachineId, name};
use crate::flannel::{Flanneld, Machine};
use crate::network::{Link, LinkState};
use crate::packets::stack::{Pods, Stack, UNDERLAY, address, segment_len, tunnel};
use crate::packets::walk::forwarded;
use crate::prober::{Network, probe_paths};
use crate::store::kubernetes::NAMESPACE;
use crate::store::{Store, etcd, kubernetes};

pub struct Node {
    pub index: usize,
    /// The last byte of its addresses.
    pub address: u8,
    stack: Stack,
    pub kernel: ModelKernel,
    /// To the store.
    pub link: Link,
    pub run: Option<Run>,
    /// What runs here instead of `tweedd`.
    pub flannel: Option<Flanneld>,
    disk: PathBuf,
    /// The file of the network config that Kubernetes mounts.
    config: PathBuf,
    machine: String,
    boots: u32,
    /// Why its daemons have ended by themselves.
    pub ends: Vec<String>,
    /// Whether the machine has left the cluster.
    pub has_left: bool,
    restart: Option<Instant>,
    pods: LastRead<Option<Pods>>,
    saved: LastRead<Rc<Checkpoint>>,
}

/// What was read in a file last, with its inode and the time of its last change.
type LastRead<T> = RefCell<Option<((u64, SystemTime), T)>>;

/// The file of the checkpoint.
const CHECKPOINT: &str = "state.json";
/// The keys that the checkpoint did not have at first, and where.
const NEW: [(&str, &str); 11] = [
    ("", "detours"),
    ("", "host"),
    ("/local", "leaving"),
    ("/local", "policy"),
    ("/local/config", "non_masquerade"),
    ("/local/config", "probe"),
    ("/local/config", "rollout"),
    ("/local/node", "firewalls"),
    ("/local/node", "kernel"),
    ("/local/node", "nexthops"),
    ("/local/node", "sysctls"),
];
/// The machine whose settings of links cannot be written.
const UNWRITABLE: usize = 2;
/// The machine without nexthop objects.
const OLD: usize = 3;
/// The pause after which a supervisor starts a daemon again that has ended.
const RESTART: Duration = Duration::from_secs(5);

/// What a task that has panicked leaves behind.
pub const PANICKED: &str = "panicked";

/// A running daemon.
pub struct Run {
    pub tasks: LocalSet,
    /// The process is stopped by a signal.
    pub is_stopped: bool,
    task: JoinHandle<()>,
    outlook: Rc<RefCell<Outlook>>,
}

/// What can be seen of a daemon from outside.
#[derive(Default)]
struct Outlook {
    events: Option<mpsc::Sender<Event>>,
    /// Why it has ended.
    ended: Option<String>,
}

impl Node {
    /// A machine that was never started.
    pub fn new(
        (index, address): (usize, u8),
        stack: Stack,
        link: Link,
        folder: &Path,
    ) -> io::Result<Self> {
        let name = name(index);
        let disk = folder.join(&name);
        fs::create_dir_all(&disk)?;
        Ok(Self {
            index,
            address,
            stack,
            kernel: ModelKernel::new(facts(index, address, stack)),
            link,
            run: None,
            flannel: None,
            disk,
            config: folder.join(format!("{name}.json")),
            machine: format!("machine-{}", index + 1),
            boots: 1,
            ends: Vec::new(),
            has_left: false,
            restart: None,
            pods: RefCell::default(),
            saved: RefCell::default(),
        })
    }

    /// Starts the daemon.
    pub fn start(&mut self, store: &Store, network: &Rc<Network>) {
        if let Some(flannel) = &mut self.flannel {
            return flannel.start();
        }
        let (outlook, tasks) = (Rc::<RefCell<Outlook>>::default(), LocalSet::new());
        let (options, host) = (self.options(store), self.host());
        let (kernel, index) = (self.kernel.clone(), self.index);
        let (seen, network) = (Rc::clone(&outlook), Rc::clone(network));
        let task = tasks.spawn_local(async move {
            let ended = run(options, host, kernel, (index, network), &seen).await;
            seen.borrow_mut().ended =
                Some(ended.map_or_else(
                    |error| format!("{error:#}"),
                    |()| "the daemon has ended".to_owned(),
                ));
        });
        self.run = Some(Run { tasks, is_stopped: false, task, outlook });
    }

    /// Starts the daemon again if it has ended, after a pause.
    pub fn supervise(&mut self, store: &Store, network: &Rc<Network>) {
        self.run_flanneld(store);
        if self.restart.take_if(|at| *at <= Instant::now()).is_some() {
            self.start(store, network);
        }
        if let Some(reason) = self.run.as_ref().and_then(Run::ended) {
            self.kill(network);
            self.ends.push(reason);
            self.restart = Some(Instant::now() + RESTART);
        }
    }

    fn run_flanneld(&mut self, store: &Store) {
        let subnet_file = &self.subnet_file();
        let Self { address, stack, boots, index, .. } = *self;
        let Self { flannel: Some(flannel), kernel, link, config, .. } = self else { return };
        if link.state() == LinkState::Open {
            let machine = Machine { kernel, address, stack, boots, subnet_file, index, config };
            flannel.step(store, &machine);
        }
    }

    /// Kills the daemon.
    pub fn kill(&mut self, network: &Network) {
        if let Some(flannel) = &mut self.flannel {
            flannel.kill();
        }
        (self.run, self.restart) = (None, None);
        network.daemons.borrow_mut().remove(&self.index);
    }

    /// Cuts the power: the kernel forgets everything, the disk keeps what was written.
    pub fn lose_power(&mut self, network: &Network) {
        self.kill(network);
        self.kernel.reboot();
        self.boots += 1;
        // The file system in memory is empty after a boot.
        let _ = fs::remove_file(self.subnet_file());
    }

    /// The driver of its interface is loaded again: the routes on it are gone.
    pub fn recreate_interface(&self) {
        let (name, facts) = (LinkName::new(UNDERLAY), facts(self.index, self.address, self.stack));
        self.kernel.remove_interface(&name);
        for interface in facts.interfaces {
            self.kernel.add_interface(interface);
        }
        self.kernel.link_up(&name);
        self.add_foreign_route();
    }

    /// Another program makes the reverse-path filters strict, where the daemon can loosen them again.
    pub fn make_strict(&self) {
        if self.index == UNWRITABLE {
            return;
        }
        let has = |link: &LinkName| {
            let key = Key::Setting(SettingKind::ReversePath, link.clone());
            self.kernel.read_state(|state| state.get(&key).is_some())
        };
        // The filters exist for IPv4 only.
        let links = [LinkName::new(UNDERLAY), tunnel(Family::V4)];
        for link in links.iter().filter(|link| has(link)) {
            self.kernel.set(Entry::Setting(SettingKind::ReversePath.on(link)));
        }
    }

    /// Another program lets iptables-nft drop what it forwards without a rule.
    pub fn drop_forwarded(&self) {
        for family in self.stack.families() {
            self.kernel.set_policy(forwarded(*family), BasePolicy::Drop);
        }
    }

    /// The address by which the node is named.
    pub fn first_address(&self) -> IpAddr {
        address(self.stack.first(), self.address)
    }

    /// Gives the machine other addresses.
    pub fn set_address(&mut self, last: u8) {
        self.address = last;
        self.assign_addresses();
    }

    /// The interface is up again, with its addresses: the kernel removes those of IPv6 from an
    /// interface that goes down.
    pub fn plug_in(&self) {
        self.kernel.link_up(&LinkName::new(UNDERLAY));
        self.assign_addresses();
        self.add_foreign_route();
    }

    /// DHCP gives it none any more.
    pub fn lose_addresses(&self) {
        let underlay = LinkName::new(UNDERLAY);
        self.kernel.change_interface(&underlay, |eth0| eth0.addresses.clear());
    }

    pub fn change_mtu(&self, mtu: u32) {
        self.kernel.change_interface(&LinkName::new(UNDERLAY), |eth0| eth0.mtu = mtu);
    }

    fn assign_addresses(&self) {
        self.kernel.change_interface(&LinkName::new(UNDERLAY), |eth0| {
            eth0.addresses = addresses(self.address, self.stack);
        });
    }

    /// Another program adds a route, which must stay.
    pub fn add_foreign_route(&self) {
        if let Some(route) = self.stack.foreign_route() {
            self.kernel.set_silently(Entry::Route(route));
        }
    }

    /// Installs the machine again.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn reinstall(&mut self) -> io::Result<()> {
        self.machine.push('+');
        self.wipe()
    }

    /// Puts a copy of the disk of `original` into this machine.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn copy(&mut self, original: &Self, id: MachineId) -> io::Result<()> {
        if id == MachineId::Kept {
            self.machine.clone_from(&original.machine);
        }
        for (file, text) in original.back_up()? {
            if let Some(name) = file.file_name().filter(|_| file != original.subnet_file()) {
                fs::write(self.disk.join(name), text)?;
            }
        }
        Ok(())
    }

    /// Copies the disk.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn back_up(&self) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
        let files = fs::read_dir(&self.disk)?.map(|file| file.map(|file| file.path()));
        let files: Vec<PathBuf> = files.collect::<io::Result<_>>()?;
        let files = files.into_iter().filter(|file| file.is_file());
        files.map(|file| Ok((file.clone(), fs::read(file)?))).collect()
    }

    /// Puts a copy of the disk back.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn restore(&self, backup: &[(PathBuf, Vec<u8>)]) -> io::Result<()> {
        self.wipe()?;
        backup.iter().try_for_each(|(file, text)| fs::write(file, text))
    }

    /// Removes from the checkpoint what older daemons did not write. On a full disk, it stays.
    pub fn age_checkpoint(&self) {
        let path = self.disk.join(CHECKPOINT);
        let Ok(Some(mut saved)) = checkpoint::load::<Value>(&path) else { return };
        for (place, key) in NEW {
            saved.pointer_mut(place).and_then(Value::as_object_mut).map(|it| it.remove(key));
        }
        let _ = checkpoint::save(&path, &saved);
    }

    /// The disk is full, or no longer full: a folder has the name of the file in which the daemon
    /// writes its next checkpoint.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn set_full(&self, is_full: bool) -> io::Result<()> {
        let obstacle = self.disk.join(format!(".{CHECKPOINT}.tmp"));
        match (is_full, obstacle.is_dir()) {
            (true, false) => fs::create_dir(obstacle),
            (false, true) => fs::remove_dir(obstacle),
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Empties the disk.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn wipe(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.disk)?;
        fs::create_dir_all(&self.disk)
    }

    /// The subnets of its pods, by the file that the CNI plugin reads.
    pub fn pods(&self) -> Option<Pods> {
        let read = |file: &Path| {
            let subnets = tweed_cni::subnet_env::previous_subnets(file).ok()?;
            Some(Pods::new(subnets.into_iter().map(Prefix::from)))
        };
        read_changed(&self.pods, &self.subnet_file(), read)?
    }

    /// A part of the name of the lease of its pods.
    pub fn lease_name(&self) -> Option<String> {
        self.pods().map(Pods::name)
    }

    /// What it has saved.
    pub fn checkpoint(&self) -> Option<Rc<Checkpoint>> {
        let read = |file: &Path| checkpoint::load(file).ok().flatten().map(Rc::new);
        read_changed(&self.saved, &self.disk.join(CHECKPOINT), read)
    }

    /// The backend that it has applied; none without a checkpoint.
    pub fn backend(&self) -> Option<BackendType> {
        Some(self.checkpoint()?.local.config.backend.kind)
    }

    /// Whether the config that it has applied has `DirectRouting`; none without a checkpoint.
    pub fn routes_directly(&self) -> Option<bool> {
        Some(self.checkpoint()?.local.config.backend.tunnel.direct_routing)
    }

    /// Whether the config that it has applied has `Mixed`, and so has the one that it applies when it
    /// starts in Kubernetes; not without a checkpoint.
    pub fn is_mixed(&self) -> bool {
        let is_mixed = |text: &str| text.contains(r#""Mixed":true"#);
        let will_be = fs::read_to_string(&self.config).map_or(true, |text| is_mixed(&text));
        will_be && self.checkpoint().is_some_and(|checkpoint| checkpoint.local.config.mixed)
    }

    /// Whether its checkpoint has a lease.
    pub fn remembers(&self) -> bool {
        self.checkpoint().is_some_and(|checkpoint| checkpoint.local.own.is_some())
    }

    /// Whether its checkpoint names its machine. Those of older daemons do not.
    pub fn names_its_machine(&self) -> bool {
        self.checkpoint().is_some_and(|checkpoint| checkpoint.host.machine.is_some())
    }

    /// Whether its disk names no subnet.
    pub fn is_empty(&self) -> bool {
        self.pods().is_none() && !self.remembers()
    }

    /// Whether its kernel has the rules of tweed that translate addresses.
    pub fn has_rules(&self, family: Family) -> bool {
        let is_it = |entry: &Entry| match entry {
            Entry::Table(table) => table.name.family == family && !table.has_peers(),
            _ => false,
        };
        self.kernel.read_state(|state| state.entries().any(is_it))
    }

    /// Whether its daemon runs, or flanneld.
    pub fn is_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.is_stopped)
            || self.flannel.as_ref().is_some_and(|it| it.is_running && !it.is_stopped)
    }

    fn subnet_file(&self) -> PathBuf {
        self.disk.join("subnet.env")
    }

    fn host(&self) -> HostId {
        let boot = format!("boot-{}-{}", self.machine, self.boots);
        HostId { machine: Some(self.machine.clone()), boot: Some(boot) }
    }

    /// A kubelet writes the network config into its file.
    ///
    /// # Errors
    /// The disk of the simulating machine.
    pub fn mount(&self, config: Option<&str>) -> io::Result<()> {
        match config {
            Some(config) => fs::write(&self.config, config),
            None if self.config.exists() => fs::remove_file(&self.config),
            None => Ok(()),
        }
    }

    fn options(&self, store: &Store) -> Options {
        let mut flags = vec![
            "--iface=eth0".to_owned(),
            "--ip-masq".to_owned(),
            "--healthz-port=0".to_owned(),
            format!("--subnet-file={}", self.subnet_file().display()),
            format!("--state-file={}", self.disk.join(CHECKPOINT).display()),
        ];
        flags.extend(match store {
            Store::Etcd(_) => vec![format!("--etcd-endpoints={}", etcd::SERVER)],
            Store::Kubernetes(_) => vec![
                "--kube-subnet-mgr".to_owned(),
                format!("--kube-api-url={}", kubernetes::SERVER),
                format!("--net-config-path={}", self.config.display()),
            ],
        });
        let environment = |variable: &str| match variable {
            "NODE_NAME" => Some(name(self.index)),
            "POD_NAMESPACE" => Some(NAMESPACE.to_owned()),
            _ => None,
        };
        let options = Options::parse(flags, environment);
        let Ok(mut options) = options else { unreachable!("these flags are valid") };
        store.connect(&mut options.store, &self.link);
        options
    }
}

/// Reads a file, unless it is as it was when it was read last.
fn read_changed<T: Clone>(
    last: &LastRead<T>,
    file: &Path,
    read: impl FnOnce(&Path) -> Option<T>,
) -> Option<T> {
    let metadata = fs::metadata(file).ok()?;
    let version = (metadata.ino(), metadata.modified().ok()?);
    let mut last = last.borrow_mut();
    if last.as_ref().is_none_or(|(before, _)| *before != version) {
        *last = read(file).map(|content| (version, content));
    }
    last.as_ref().map(|(_, content)| content.clone())
}

impl Run {
    /// Why the daemon has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        let ended = self.outlook.borrow().ended.clone();
        ended.or_else(|| self.task.is_finished().then(|| PANICKED.to_owned()))
    }

    /// The status of the daemon; none if it does not answer.
    pub fn status(&self) -> impl Future<Output = Option<Status>> + use<> {
        let events = self.outlook.borrow().events.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            events?.send(Event::Query(Query::Status(reply))).await.ok()?;
            answer.await.ok()
        }
    }
}

async fn run(
    options: Options,
    host: HostId,
    kernel: ModelKernel,
    network: (usize, Rc<Network>),
    outlook: &RefCell<Outlook>,
) -> anyhow::Result<()> {
    let remembered = load_checkpoint(&options, &host);
    let blocking = Blocking::Inline;
    match options.store.clone() {
        StoreOptions::Etcd(etcd) => {
            let before = previous(&options, remembered.as_ref());
            let manager = EtcdSubnetManager::new(etcd, before, options.lease);
            let parts = Parts { options, host, manager, kernel, remembered, blocking };
            run_parts(parts, network, outlook).await
        }
        StoreOptions::Kube(kube) => {
            let before = remembered.as_ref().map(Checkpoint::granted_subnets);
            let manager = KubeSubnetManager::with_previous(kube, before.unwrap_or_default());
            let parts = Parts { options, host, manager, kernel, remembered, blocking };
            run_parts(parts, network, outlook).await
        }
    }
}

async fn run_parts<S: Leases + Documents + 'static>(
    parts: Parts<S, ModelKernel>,
    (index, network): (usize, Rc<Network>),
    outlook: &RefCell<Outlook>,
) -> anyhow::Result<()> {
    let daemon = Daemon::start(parts).await?;
    outlook.borrow_mut().events = Some(daemon.events());
    let probes = probe_paths(network, index, daemon.manager(), daemon.events());
    tokio::select! {
        biased;
        ended = daemon.ended() => ended,
        _ = probes => anyhow::bail!("the probes have ended"),
    }
}

/// Every second machine has strict reverse-path filters. The settings of the links of one cannot be
/// written, as in an unprivileged pod, and the kernel of one has no nexthop objects.
fn facts(index: usize, last: u8, stack: Stack) -> Facts {
    let (name, addresses) = (LinkName::new(UNDERLAY), addresses(last, stack));
    let eth0 = Interface { name: name.clone(), mtu: 1500, up: true, layer2: true, addresses };
    let families = stack.families().iter();
    let default_routes = families.map(|family| (*family, Some(name.clone()))).collect();
    let makes_strict = index % 2 == 1;
    let sysctls = if index == UNWRITABLE { Sysctls::ReadOnly } else { Sysctls::Writable };
    let nexthops = if index == OLD { NexthopSupport::Unsupported } else { NexthopSupport::Usable };
    let interfaces = vec![eth0];
    Facts { interfaces, default_routes, makes_strict, sysctls, nexthops, ..Facts::default() }
}

fn addresses(last: u8, stack: Stack) -> Vec<InterfaceAddress> {
    let lifetime = Lifetime::Permanent;
    let one = |family: &Family| InterfaceAddress {
        address: address(*family, last),
        prefix_len: segment_len(*family),
        usable: true,
        lifetime,
    };
    stack.families().iter().map(one).collect()
}
