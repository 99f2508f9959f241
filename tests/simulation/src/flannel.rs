//! Stock flanneld, as far as its lease and its routes go, with etcd and IPv4: a node before `tweedd`
//! takes it over.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::store::etcd::{CONFIG, Etcd, LEASES};

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
}

#[derive(Debug)]
struct Network {
    backend: Backend,
    /// Its key in etcd.
    own: String,
    /// The peers of its backend that it has programmed, by their keys.
    peers: BTreeMap<String, Peer>,
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
    pub(crate) fn step(&mut self, etcd: &Etcd, machine: &Machine<'_>) {
        if !self.is_running || self.is_stopped || !etcd.health().is_writable() {
            return;
        }
        if self.network.is_none() {
            self.network = Network::begin(etcd, machine);
        }
        if let Some(network) = &mut self.network {
            network.follow(etcd, machine);
        }
    }
}

impl Network {
    /// Acquires the lease and writes the subnet file. None without a valid config.
    fn begin(etcd: &Etcd, machine: &Machine<'_>) -> Option<Self> {
        let (_, config) = etcd.texts(CONFIG).pop()?;
        let backend = backend(&serde_json::from_str(&config).ok()?)?;
        let (key, subnet) = choose(etcd, machine)?;
        let mut value = json!({
            "PublicIP": machine.address,
            "PublicIPv6": null,
            "BackendType": backend.as_str(),
        });
        if backend != Backend::HostGw {
            let mac = device(machine, subnet);
            value["BackendData"] = json!({ "VNI": VNI, "VtepMAC": mac.to_string() });
        }
        etcd.put(&key, value.to_string(), Some(TERM));
        let text = format!(
            "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET={}/{}\nFLANNEL_MTU={MTU}\nFLANNEL_IPMASQ=true\n",
            subnet.nth(1),
            subnet.prefix_len(),
        );
        fs::write(machine.subnet_file, text).ok()?;
        Some(Self { backend, own: key, peers: BTreeMap::new() })
    }

    fn follow(&mut self, etcd: &Etcd, machine: &Machine<'_>) {
        let leases = etcd.texts(LEASES);
        let peers = leases.iter().filter(|(key, _)| *key != self.own);
        let peers = peers.filter_map(|(key, value)| Some((key.clone(), self.peer(key, value)?)));
        let peers: BTreeMap<String, Peer> = peers.collect();
        for (key, peer) in &peers {
            if self.peers.get(key) != Some(peer) {
                self.add(peer, machine.kernel);
            }
        }
        // Those that have another backend now are ignored: what is programmed for them stays.
        let listed: BTreeSet<&String> = leases.iter().map(|(key, _)| key).collect();
        for (_, peer) in self.peers.iter().filter(|(key, _)| !listed.contains(key)) {
            self.remove(peer, machine.kernel);
        }
        self.peers.retain(|key, _| listed.contains(key));
        self.peers.extend(peers);
    }

    /// None if it has another backend.
    fn peer(&self, key: &str, value: &str) -> Option<Peer> {
        let value: Value = serde_json::from_str(value).ok()?;
        let mac = value.pointer("/BackendData/VtepMAC").and_then(Value::as_str);
        let is_ours = value["BackendType"] == self.backend.as_str();
        let address = value["PublicIP"].as_str()?.parse().ok()?;
        let mac = mac.and_then(|mac| mac.parse().ok());
        is_ours.then_some(Peer { subnet: subnet(key)?, address, mac })
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

/// The key and the subnet of its lease: that with its address, else that of the subnet file, else a
/// free one.
fn choose(etcd: &Etcd, machine: &Machine<'_>) -> Option<(String, Prefix)> {
    let leases = etcd.texts(LEASES);
    let address = format!("\"{}\"", machine.address);
    let mut own = leases.iter().filter(|(_, value)| value.contains(&address));
    let own = own.find_map(|(key, _)| subnet(key));
    let taken: BTreeSet<Prefix> = leases.iter().filter_map(|(key, _)| subnet(key)).collect();
    let is_free = |subnet: &Prefix| !taken.contains(subnet);
    let previous = previous_subnets(machine.subnet_file).unwrap_or_default();
    let previous = previous.into_iter().map(Prefix::from).find(is_free);
    let all = (1..=255).filter_map(|number| format!("10.244.{number}.0/24").parse().ok());
    let subnet = own.or(previous).or_else(|| all.into_iter().find(is_free))?;
    Some((format!("{LEASES}{}-{}", subnet.base(), subnet.prefix_len()), subnet))
}

/// The subnet that a key names.
fn subnet(key: &str) -> Option<Prefix> {
    key.rsplit_once('/')?.1.replace('-', "/").parse().ok()
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
