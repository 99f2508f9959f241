//! The notation of hosts, leases and kernel entries in tests.

#![allow(dead_code, unused_imports, reason = "each test binary uses some of it")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod chain;
mod entry;
mod table;

pub(crate) use entry::entry;

use std::net::IpAddr;

use tweed::daemon::options::Options;
use tweed::mac::MacAddr;
use tweed::model::config::BackendType;
use tweed::model::config::NetworkConfig;
use tweed::model::entry::LinkName;
use tweed::model::lease::{Endpoint, Lease, LeaseId, Malformed, PublishedBackend, Record, Vtep};
use tweed::model::node::{Facts, Interface, InterfaceAddress, InterfaceOptions, Lifetime, Node};
use tweed::model::node_inputs::NodeInputs;
use tweed::model::policy::Policy;
use tweed::model::prefix::{Family, Prefix};

pub(crate) fn prefix(text: &str) -> Prefix {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// A MAC address that identifies its owner: `02:00` and the last four octets of the address.
pub(crate) fn mac_of(address: IpAddr) -> MacAddr {
    let number = tweed::model::prefix::number(address);
    let [.., a, b, c, d] = number.to_be_bytes();
    let family = u8::from(address.is_ipv6()) * 6;
    MacAddr::new([2, family, a, b, c, d])
}

/// A lease: `10.244.3.0/24@172.16.0.9 [SUBNET6@ADDRESS6] [BACKEND] [vtep|no-vtep] [mac=MAC]
/// [vni=N|none] [source=ADDRESS] [created=N]`. The backend is vxlan if none is named; a vxlan node has a VTEP.
pub(crate) fn lease(text: &str) -> Lease {
    let words: Vec<&str> = text.split_whitespace().collect();
    let named = words.iter().find(|word| !word.contains(['@', '=']) && !word.ends_with("vtep"));
    let backend = PublishedBackend::from(named.copied().unwrap_or("vxlan"));
    let endpoint = |word: &&str| {
        let (subnet, public_ip) = word.split_once('@')?;
        let public_ip = public_ip.parse().unwrap();
        let vtep = vtep(&words, &backend, public_ip);
        Some(Endpoint { subnet: prefix(subnet), public_ip, backend: backend.clone(), vtep })
    };
    let endpoints: Vec<Endpoint> = words.iter().filter_map(endpoint).collect();
    let created = value(&words, "created").map_or(10, |created| created.parse().unwrap());
    let subnets: Vec<Prefix> = endpoints.iter().map(|endpoint| endpoint.subnet).collect();
    Lease { id: lease_id(&subnets), endpoints, created, grant: Some(1) }
}

fn vtep(words: &[&str], backend: &PublishedBackend, public_ip: IpAddr) -> Option<Vtep> {
    let is_usual = *backend == BackendType::Vxlan.into() && !words.contains(&"no-vtep");
    let is_told = words.contains(&"vtep") || value(words, "mac").is_some();
    let vni = match value(words, "vni") {
        Some("none") => None,
        given => Some(given.map_or(1, |vni| vni.parse().unwrap())),
    };
    let mac = value(words, "mac").map_or(mac_of(public_ip), |mac| mac.parse().unwrap());
    let source = value(words, "source").map(|source| source.parse().unwrap());
    let mixed = words.contains(&"mixed");
    (is_usual || is_told).then_some(Vtep { vni, mac, source, mixed })
}

fn value<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The name of the lease of these subnets in the store.
pub(crate) fn lease_id(subnets: &[Prefix]) -> LeaseId {
    let keys = subnets.iter().map(|subnet| format!("{}-{}", subnet.base(), subnet.prefix_len()));
    LeaseId::new(keys.collect::<Vec<_>>().join("&"))
}

pub(crate) fn record(lease: Lease) -> Record {
    Record { id: lease.id.clone(), lease: Ok(lease) }
}

pub(crate) fn malformed(id: LeaseId, why: &str) -> Record {
    Record { id, lease: Err(Malformed(why.to_owned())) }
}

/// An interface: `eth0 172.16.0.5/24 [ADDRESS6/LEN] [mtu=N] [no-layer2] [down]`.
pub(crate) fn interface(text: &str) -> Interface {
    let words: Vec<&str> = text.split_whitespace().collect();
    let address = |word: &&str| {
        let (address, len) = word.split_once('/')?;
        Some(InterfaceAddress {
            address: address.parse().unwrap(),
            prefix_len: len.parse().unwrap(),
            usable: true,
            lifetime: Lifetime::Permanent,
        })
    };
    Interface {
        name: LinkName::new(*words.first().unwrap()),
        mtu: value(&words, "mtu").map_or(1500, |mtu| mtu.parse().unwrap()),
        up: !words.contains(&"down"),
        layer2: !words.contains(&"no-layer2"),
        addresses: words.iter().filter_map(address).collect(),
    }
}

/// A host with these interfaces; its default routes leave by the first.
pub(crate) fn host(interfaces: &[&str]) -> Facts {
    let interfaces: Vec<Interface> = interfaces.iter().map(|text| interface(text)).collect();
    let default = interfaces.first().map(|interface| interface.name.clone());
    let default_routes = Family::ALL.map(|family| (family, default.clone())).to_vec();
    Facts { interfaces, default_routes, ..Facts::default() }
}

/// The options for these flags of the daemon: `--ip-masq --public-ip=203.0.113.9`.
pub(crate) fn options(flags: &str) -> Options {
    Options::parse(flags.split_whitespace(), |_| None).unwrap()
}

/// The policy for these flags: `--ip-masq --iptables-forward-rules=false`.
pub(crate) fn policy(flags: &str) -> Policy {
    options(flags).control.policy
}

pub(crate) fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json.as_bytes()).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// A node with the interface `eth0`, holding the lease of `own` (`10.244.1.0/24 fd00:1::/64`).
pub(crate) fn local(json: &str, eth0: &str, own: &str) -> NodeInputs {
    let config = config(json);
    let families: Vec<Family> = config.networks().map(Prefix::family).collect();
    let facts = host(&[eth0]);
    let node = Node::select(&facts, &InterfaceOptions::default(), &families).unwrap();
    let macs = node.uplinks.iter().map(|uplink| (uplink.family(), mac_of(uplink.public_ip)));
    let macs = macs.collect();
    let mut local = NodeInputs {
        config,
        node,
        macs,
        own: None,
        strict: [].into(),
        leaving: [].into(),
        was_on_host_gw: false,
        policy: Policy::default(),
    };
    local.own = (!own.is_empty()).then(|| own_lease(&local, own));
    local
}

fn own_lease(local: &NodeInputs, own: &str) -> Lease {
    let subnets: Vec<Prefix> = own.split_whitespace().map(prefix).collect();
    let endpoints = local.attributes().published_for(subnets.iter().copied());
    Lease { id: lease_id(&subnets), endpoints, created: 1, grant: Some(1) }
}
