//! Stock flanneld, as far as its lease and its routes go: a node before `tweedd` takes it over.

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
use crate::packets::stack::{Pods, Stack, UNDERLAY, VNI, address, subnet, tunnel};
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
    /// The last byte of its addresses.
    pub(crate) address: u8,
    pub(crate) stack: Stack,
    /// How often it has booted: new tunnel devices have other MAC addresses than before.
    pub(crate) boots: u32,
    pub(crate) subnet_file: &'a Path,
    pub(crate) index: usize,
    /// The file of the network config in Kubernetes.
    pub(crate) config: &'a Path,
}

#[derive(Debug)]
struct Network {
    backend: Backend,
    own: Pods,
    /// The peers of its backend that it has programmed, by their subnets of each family.
    peers: BTreeMap<Prefix, Peer>,
}

/// What a lease has of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    subnet: Prefix,
    backend: String,
    address: IpAddr,
    /// Of its tunnel device, if it has one.
    mac: Option<MacAddr>,
}

/// The term of a lease, in seconds.
const TERM: i64 = 86_400;
/// Of the tunnel devices of both families.
const MTU: u32 = 1450;

impl Machine<'_> {
    /// The MAC address of a new tunnel device.
    fn new_mac(&self, family: Family) -> MacAddr {
        let family = u8::from(family == Family::V6);
        let [.., boot] = self.boots.to_be_bytes();
        let [.., index] = self.index.to_be_bytes();
        MacAddr::new([0x0e, 0xf1, family, 0, boot, index])
    }
}

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
        publish(store, machine, own, backend);
        fs::write(machine.subnet_file, subnet_file(own)).ok()?;
        Some(Self { backend, own, peers: BTreeMap::new() })
    }

    fn follow(&mut self, leases: &BTreeMap<Prefix, Peer>, kernel: &ModelKernel) {
        let (own, backend) = (self.own, self.backend);
        let is_peer = |peer: &Peer| own.all().all(|own| own != peer.subnet);
        let peers = leases.iter().filter(|(_, peer)| is_peer(peer));
        let peers = peers.filter(|(_, peer)| peer.backend == backend.as_str());
        let peers: BTreeMap<Prefix, Peer> = peers.map(|(at, it)| (*at, it.clone())).collect();
        for (subnet, peer) in &peers {
            if self.peers.get(subnet) != Some(peer) {
                for entry in entries(backend, peer) {
                    kernel.set(entry);
                }
            }
        }
        // Those that have another backend now are ignored: what is programmed for them stays.
        for gone in self.peers.values().filter(|peer| !leases.contains_key(&peer.subnet)) {
            for entry in entries(backend, gone) {
                kernel.lose(&entry.key());
            }
        }
        self.peers.retain(|subnet, _| leases.contains_key(subnet));
        self.peers.extend(peers);
    }
}

/// What is programmed for a peer, in the order in which flannel adds it.
fn entries(backend: Backend, peer: &Peer) -> Vec<Entry> {
    let Peer { subnet, address, mac, .. } = peer.clone();
    let route = |route: Route| Entry::Route(Route { protocol: PROTOCOL_BOOT, ..route });
    match (backend, mac) {
        (Backend::Vxlan, Some(mac)) => {
            let (link, gateway) = (tunnel(subnet.family()), subnet.base());
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

fn subnet_file(own: Pods) -> String {
    let of_family = |subnet: Prefix| {
        let (gateway, len) = (subnet.gateway(), subnet.prefix_len());
        match subnet.family() {
            Family::V4 => {
                format!("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET={gateway}/{len}\n")
            }
            Family::V6 => {
                format!("FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET={gateway}/{len}\n")
            }
        }
    };
    let subnets: String = own.all().map(of_family).collect();
    format!("{subnets}FLANNEL_MTU={MTU}\nFLANNEL_IPMASQ=true\n")
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

/// All leases, by their subnets of each family.
fn leases(store: &Store) -> BTreeMap<Prefix, Peer> {
    let mut all = BTreeMap::new();
    let mut add = |pods: Pods, of: &dyn Fn(&str) -> Option<Value>| {
        all.extend(pods.all().filter_map(|subnet| Some((subnet, peer(subnet, of)?))));
    };
    match store {
        Store::Etcd(etcd) => {
            for (key, value) in etcd.texts(LEASES) {
                let value = serde_json::from_str::<Value>(&value).unwrap_or_default();
                if let Some(pods) = pods_of_key(&key) {
                    add(pods, &|name| value.get(name).cloned());
                }
            }
        }
        Store::Kubernetes(kubernetes) => {
            for node in kubernetes.nodes() {
                let of = |name: &str| {
                    let text = annotation(&node, annotation_of(name)?)?.as_str()?;
                    let is_json = name.ends_with("Data");
                    if is_json { serde_json::from_str(text).ok() } else { Some(json!(text)) }
                };
                if let Some(pods) = pods_of_node(&node) {
                    add(pods, &of);
                }
            }
        }
    }
    all
}

/// By the fields that a lease has in etcd.
fn peer(subnet: Prefix, of: &dyn Fn(&str) -> Option<Value>) -> Option<Peer> {
    let (address, data) = fields(subnet.family());
    let address = of(address)?.as_str()?.parse().ok()?;
    let backend = of("BackendType")?.as_str()?.to_owned();
    let mac = of(data).and_then(|data| data.get("VtepMAC")?.as_str()?.parse().ok());
    Some(Peer { subnet, backend, address, mac })
}

/// The fields of a lease in etcd that have the address of the node, and the data of its backend.
const fn fields(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("PublicIP", "BackendData"),
        Family::V6 => ("PublicIPv6", "BackendV6Data"),
    }
}

/// The annotation of a Node for a field of a lease in etcd.
fn annotation_of(field: &str) -> Option<&'static str> {
    Some(match field {
        "PublicIP" => "public-ip",
        "PublicIPv6" => "public-ipv6",
        "BackendType" => "backend-type",
        "BackendData" => "backend-data",
        "BackendV6Data" => "backend-v6-data",
        _ => return None,
    })
}

fn pods_of_key(key: &str) -> Option<Pods> {
    let subnets = key.rsplit_once('/')?.1.split('&');
    Pods::new(subnets.filter_map(|subnet| subnet.replace('-', "/").parse().ok()))
}

fn pods_of_node(node: &Value) -> Option<Pods> {
    let subnets = node.pointer("/spec/podCIDRs")?.as_array()?.iter();
    Pods::new(subnets.filter_map(|subnet| subnet.as_str()?.parse().ok()))
}

/// In etcd the subnets of the lease with its address, else those of the subnet file, else free ones; in
/// Kubernetes those of its Node.
fn choose(store: &Store, machine: &Machine<'_>) -> Option<Pods> {
    let etcd = match store {
        Store::Kubernetes(kubernetes) => return pods_of_node(&kubernetes.node(machine.index)?),
        Store::Etcd(etcd) => etcd,
    };
    let (leases, first) = (leases(store), machine.stack.first());
    let is_own = |pods: &Pods| {
        let own = pods.of(first).and_then(|subnet| leases.get(&subnet));
        own.is_some_and(|own| own.address == address(first, machine.address))
    };
    let all = etcd.texts(LEASES);
    let own = all.iter().filter_map(|(key, _)| pods_of_key(key)).find(is_own);
    let is_free = |subnet: &Prefix| !leases.contains_key(subnet);
    let previous = previous_subnets(machine.subnet_file).unwrap_or_default();
    let previous = Pods::new(previous.into_iter().map(Prefix::from));
    let previous = previous.filter(|pods| pods.all().all(|subnet| is_free(&subnet)));
    let free = || {
        let of_family =
            |family: &Family| (1..=255).filter_map(|number| subnet(*family, number)).find(is_free);
        Pods::new(machine.stack.families().iter().filter_map(of_family))
    };
    own.or(previous).or_else(free)
}

fn publish(store: &Store, machine: &Machine<'_>, own: Pods, backend: Backend) {
    let mut lease =
        json!({ "PublicIP": null, "PublicIPv6": null, "BackendType": backend.as_str() });
    for subnet in own.all() {
        let (address_of, data_of) = fields(subnet.family());
        lease[address_of] = json!(address(subnet.family(), machine.address));
        if backend != Backend::HostGw {
            let mac = device(machine, subnet);
            lease[data_of] = json!({ "VNI": VNI, "VtepMAC": mac.to_string() });
        }
    }
    if own.of(Family::V4).is_none() && backend == Backend::HostGw {
        lease["PublicIP"] = json!(Family::V4.unspecified());
    }
    match store {
        Store::Etcd(etcd) => {
            etcd.put(&format!("{LEASES}{}", key_of(own)), lease.to_string(), Some(TERM));
        }
        Store::Kubernetes(kubernetes) => {
            for (field, value) in lease.as_object().into_iter().flatten() {
                let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
                if let Some(key) = annotation_of(field).filter(|_| !value.is_null()) {
                    kubernetes.annotate(machine.index, key, &text);
                }
            }
            kubernetes.annotate(machine.index, "kube-subnet-manager", "true");
        }
    }
}

fn key_of(own: Pods) -> String {
    let parts: Vec<String> =
        own.all().map(|subnet| format!("{}-{}", subnet.base(), subnet.prefix_len())).collect();
    parts.join("&")
}

/// Creates the tunnel device, unless there is one; returns its MAC address.
fn device(machine: &Machine<'_>, subnet: Prefix) -> MacAddr {
    let (family, kernel) = (subnet.family(), machine.kernel);
    let (name, local) = (tunnel(family), Some(address(family, machine.address)));
    let found = kernel.read_state(|state| match state.get(&Key::Link(name.clone())) {
        Some(Entry::Link(link)) => Some(link.mac),
        _ => None,
    });
    let mac = found.unwrap_or_else(|| machine.new_mac(family));
    if found.is_none() {
        let vxlan = Vxlan {
            vni: VNI,
            underlay: Some(LinkName::new(UNDERLAY)),
            local,
            port: 8472,
            learning: false,
            gbp: false,
            group: None,
            l2miss: false,
        };
        let kind = LinkKind::Vxlan(Box::new(vxlan));
        kernel.set(Entry::Link(Link { name: name.clone(), kind, mtu: MTU, mac, up: true }));
    }
    let (address, prefix_len) = (subnet.base(), family.width());
    kernel.set(Entry::Address(Address { link: name, address, prefix_len }));
    mac
}
