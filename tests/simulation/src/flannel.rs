//! Stock flanneld, as far as its lease and its routes go, with IPv4: a node before `tweedd` takes it
//! over.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Value, json};
use tweed::mac::MacAddr;
use tweed::model::entry::{
    Address, Entry, Fdb, Key, Link, LinkKind, LinkName, Neighbour, PROTOCOL_BOOT, Route, Vxlan,
};
use tweed::model::prefix::{Family, Prefix};
use tweed_cni::subnet_env::previous_subnets;
use tweed_model::ModelKernel;

use crate::act::Backend;
use crate::packets::stack::{UNDERLAY, VNI, tunnel};
use crate::store::Store;
use crate::store::etcd::{CONFIG, LEASES};
use crate::store::kubernetes::annotation;

/// An installed flanneld, whose process may run.
#[derive(Debug, Default)]
pub struct Flanneld {
    pub is_running: bool,
    /// The process is stopped by a signal.
    pub is_stopped: bool,
    /// None until it has read the network config. It reads that once.
    network: Option<Network>,
}

/// The machine that it runs on.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a ModelKernel,
    pub(crate) address: IpAddr,
    /// Of a new tunnel device.
    pub(crate) mac: MacAddr,
    pub(crate) subnet_file: &'a Path,
    pub(crate) index: usize,
    /// The file of the network config in Kubernetes.
    pub(crate) config: &'a Path,
}

#[derive(Debug)]
struct Network {
    backend: Backend,
    own: Prefix,
    /// The peers of its backend that it has programmed.
    peers: BTreeMap<Prefix, Peer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    subnet: Prefix,
    address: IpAddr,
    /// Of its tunnel device, if it has one.
    mac: Option<MacAddr>,
}

/// The term of a lease, in seconds.
const TERM: i64 = 86_400;
const MTU: u32 = 1450;

impl Flanneld {
    pub(crate) fn start(&mut self) {
        *self = Self { is_running: true, ..Self::default() };
    }

    /// What it programmed stays.
    pub(crate) fn kill(&mut self) {
        *self = Self::default();
    }

    /// Reads all leases, and programs those that have changed.
    pub(crate) fn step(&mut self, store: &Store, machine: &Machine<'_>) {
        if !self.is_running || self.is_stopped || !store.health().is_writable() {
            return;
        }
        if self.network.is_none() {
            self.network = Network::begin(store, machine);
        }
        if let Some(network) = &mut self.network {
            network.follow(&leases(store), machine.kernel);
        }
    }
}

impl Network {
    /// Acquires the lease and writes the subnet file. None without a valid config.
    fn begin(store: &Store, machine: &Machine<'_>) -> Option<Self> {
        let backend = backend(&config(store, machine)?)?;
        let own = choose(store, machine)?;
        let data = (backend != Backend::HostGw).then(|| {
            let mac = device(machine, own);
            json!({ "VNI": VNI, "VtepMAC": mac.to_string() })
        });
        publish(store, machine, (own, backend.as_str(), data));
        let (gateway, len) = (own.nth(1), own.prefix_len());
        let text = format!(
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET={gateway}/{len}\nFLANNEL_MTU={MTU}\nFLANNEL_IPMASQ=true\n"
        );
        fs::write(machine.subnet_file, text).ok()?;
        Some(Self { backend, own, peers: BTreeMap::new() })
    }

    fn follow(&mut self, leases: &BTreeMap<Prefix, Value>, kernel: &ModelKernel) {
        let peers = leases.iter().filter(|(subnet, _)| **subnet != self.own);
        let peers = peers.filter_map(|(subnet, value)| Some((*subnet, self.peer(*subnet, value)?)));
        let peers: BTreeMap<Prefix, Peer> = peers.collect();
        for (subnet, peer) in &peers {
            if self.peers.get(subnet) != Some(peer) {
                self.add(peer, kernel);
            }
        }
        // Those that have another backend now are ignored: what is programmed for them stays.
        let gone = self.peers.values().filter(|peer| !leases.contains_key(&peer.subnet));
        gone.for_each(|peer| self.remove(peer, kernel));
        self.peers.retain(|subnet, _| leases.contains_key(subnet));
        self.peers.extend(peers);
    }

    /// None if it has another backend.
    fn peer(&self, subnet: Prefix, value: &Value) -> Option<Peer> {
        let mac = value.pointer("/BackendData/VtepMAC").and_then(Value::as_str);
        let is_ours = value["BackendType"] == self.backend.as_str();
        let address = value["PublicIP"].as_str()?.parse().ok()?;
        let mac = mac.and_then(|mac| mac.parse().ok());
        is_ours.then_some(Peer { subnet, address, mac })
    }

    fn add(&self, peer: &Peer, kernel: &ModelKernel) {
        self.entries(peer).into_iter().for_each(|entry| kernel.set(entry));
    }

    fn remove(&self, peer: &Peer, kernel: &ModelKernel) {
        self.entries(peer).iter().for_each(|entry| kernel.lose(&entry.key()));
    }

    /// In the order in which flannel adds them.
    fn entries(&self, peer: &Peer) -> Vec<Entry> {
        let Peer { subnet, address, mac } = peer.clone();
        let route = |route: Route| Entry::Route(Route { protocol: PROTOCOL_BOOT, ..route });
        match (self.backend, mac) {
            (Backend::Vxlan, Some(mac)) => {
                let (link, gateway) = (tunnel(Family::V4), subnet.base());
                let neighbour =
                    Neighbour { link: link.clone(), address: gateway, mac, permanent: true };
                let fdb = Fdb { link: link.clone(), mac, destination: address };
                let route = route(Route::via(subnet, gateway, link).onlink());
                vec![Entry::Neighbour(neighbour), Entry::Fdb(fdb), route]
            }
            (Backend::Vxlan, None) => Vec::new(),
            (Backend::DirectRouting | Backend::HostGw, _) => {
                vec![route(Route::via(subnet, address, LinkName::new(UNDERLAY)))]
            }
        }
    }
}

/// The backend of a network config.
fn backend(config: &Value) -> Option<Backend> {
    let is_direct = config.pointer("/Backend/DirectRouting") == Some(&Value::Bool(true));
    match config.pointer("/Backend/Type")?.as_str()? {
        "vxlan" if is_direct => Some(Backend::DirectRouting),
        "vxlan" => Some(Backend::Vxlan),
        "host-gw" => Some(Backend::HostGw),
        _ => None,
    }
}

fn config(store: &Store, machine: &Machine<'_>) -> Option<Value> {
    let text = match store {
        Store::Etcd(etcd) => etcd.texts(CONFIG).pop()?.1,
        Store::Kubernetes(_) => fs::read_to_string(machine.config).ok()?,
    };
    serde_json::from_str(&text).ok()
}

/// All leases, each as its value in etcd.
fn leases(store: &Store) -> BTreeMap<Prefix, Value> {
    match store {
        Store::Etcd(etcd) => {
            let lease = |(key, value): &(String, String)| {
                let subnet = key.rsplit_once('/')?.1.replace('-', "/").parse().ok()?;
                Some((subnet, serde_json::from_str(value).ok()?))
            };
            etcd.texts(LEASES).iter().filter_map(lease).collect()
        }
        Store::Kubernetes(kubernetes) => {
            let lease = |node: &Value| {
                let subnet = node.pointer("/spec/podCIDR")?.as_str()?.parse().ok()?;
                let of = |key| annotation(node, key)?.as_str();
                let data: Option<Value> =
                    of("backend-data").and_then(|data| serde_json::from_str(data).ok());
                let value = json!({
                    "PublicIP": of("public-ip")?,
                    "BackendType": of("backend-type")?,
                    "BackendData": data,
                });
                Some((subnet, value))
            };
            kubernetes.nodes().iter().filter_map(lease).collect()
        }
    }
}

/// In etcd the subnet of the lease with its address, else that of the subnet file, else a free one; in
/// Kubernetes that of its Node.
fn choose(store: &Store, machine: &Machine<'_>) -> Option<Prefix> {
    if let Store::Kubernetes(kubernetes) = store {
        let node = kubernetes.node(machine.index)?;
        return node.pointer("/spec/podCIDR")?.as_str()?.parse().ok();
    }
    let (leases, address) = (leases(store), machine.address.to_string());
    let own = leases.iter().find(|(_, value)| value["PublicIP"] == address.as_str());
    let own = own.map(|(subnet, _)| *subnet);
    let is_free = |subnet: &Prefix| !leases.contains_key(subnet);
    let previous = previous_subnets(machine.subnet_file).unwrap_or_default();
    let previous = previous.into_iter().map(Prefix::from).find(is_free);
    let mut all = (1..=255).filter_map(|number| format!("10.244.{number}.0/24").parse().ok());
    own.or(previous).or_else(|| all.find(is_free))
}

fn publish(
    store: &Store,
    machine: &Machine<'_>,
    (subnet, backend, data): (Prefix, &str, Option<Value>),
) {
    let address = machine.address.to_string();
    match store {
        Store::Etcd(etcd) => {
            let mut value =
                json!({ "PublicIP": address, "PublicIPv6": null, "BackendType": backend });
            if let Some(data) = data {
                value["BackendData"] = data;
            }
            let key = format!("{LEASES}{}-{}", subnet.base(), subnet.prefix_len());
            etcd.put(&key, value.to_string(), Some(TERM));
        }
        Store::Kubernetes(kubernetes) => {
            let data = data.unwrap_or_default().to_string();
            let annotations = [
                ("public-ip", address.as_str()),
                ("backend-type", backend),
                ("backend-data", &data),
                ("kube-subnet-manager", "true"),
            ];
            for (key, value) in annotations {
                kubernetes.annotate(machine.index, key, value);
            }
        }
    }
}

/// Creates the tunnel device, unless there is one; returns its MAC address.
fn device(machine: &Machine<'_>, subnet: Prefix) -> MacAddr {
    let (name, kernel) = (tunnel(Family::V4), machine.kernel);
    let found = kernel.read_state(|state| match state.get(&Key::Link(name.clone())) {
        Some(Entry::Link(link)) => Some(link.mac),
        _ => None,
    });
    if found.is_none() {
        let vxlan = Vxlan {
            vni: VNI,
            underlay: Some(LinkName::new(UNDERLAY)),
            local: Some(machine.address),
            port: 8472,
            learning: false,
            gbp: false,
            group: None,
            l2miss: false,
        };
        let kind = LinkKind::Vxlan(Box::new(vxlan));
        let (name, mac) = (name.clone(), machine.mac);
        kernel.set(Entry::Link(Link { name, kind, mtu: MTU, mac, up: true }));
    }
    kernel.set(Entry::Address(Address { link: name, address: subnet.base(), prefix_len: 32 }));
    found.unwrap_or(machine.mac)
}
