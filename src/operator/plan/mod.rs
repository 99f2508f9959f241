//! `tweedctl plan`: what a node would program. Needs no daemon, privileges or network.

mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::layout::{listed, wrap, wrap_entry};
use super::{Answer, Error};
use crate::model::config::NetworkConfig;
use crate::model::entry::{Entry, LinkName};
use crate::model::lease::{Endpoint, Lease, LeaseId, LeaseUpdate, Peers, Record};
use crate::model::node::{Firewalls, Node, Release, Sysctls, Uplink};
use crate::model::node_inputs::NodeInputs;
use crate::model::path::Fallbacks;
use crate::model::policy::{Forward, Guard, Masquerade, Policy, Preference};
use crate::model::prefix::{Family, Prefix};
use crate::plan::backend::{self, PeerPlan};
use crate::plan::desired::Desired;

#[derive(Debug, Args)]
#[command(after_help = LEASES)]
pub(super) struct PlanOptions {
    /// File with the network config, in JSON
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// File with the leases, in a format below; - is stdin
    #[arg(long, value_name = "FILE")]
    leases: PathBuf,
    /// Public IP of the node; one for each address family
    #[arg(long = "public-ip", value_name = "IP", required = true)]
    public_ips: Vec<IpAddr>,
    /// Interface of the node towards its peers
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    interface: String,
    /// MTU of that interface, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Prefix on its link [default: the /24 or /64 of the public IP]
    #[arg(long, value_name = "PREFIX")]
    on_link: Vec<Prefix>,
    /// Plan for a daemon with --ip-masq
    #[arg(long)]
    ip_masq: bool,
    /// Plan for a daemon with --iptables
    #[arg(long)]
    iptables: bool,
}

const LEASES: &str = "\
Format of the leases: a JSON object {key: value}, or the output of
  etcdctl get --prefix /coreos.com/network/subnets";

/// The entries that the node would program, and the peers that get none.
#[derive(Debug, Serialize)]
pub(super) struct NodePlan {
    backend: &'static str,
    mixed: bool,
    node: Node,
    /// Whether the link's prefix is a default.
    on_link_assumed: bool,
    own: Option<LeaseId>,
    pod_mtu: u32,
    /// In the order of programming.
    entries: Vec<String>,
    /// The same for the text output, without the rules that guard a tunnel.
    #[serde(skip)]
    shown: Vec<String>,
    without_path: Vec<Unrouted>,
}

#[derive(Debug, Serialize)]
struct Unrouted {
    lease: LeaseId,
    public_ip: Option<IpAddr>,
    reason: String,
}

pub(super) fn answer(options: &PlanOptions) -> Result<NodePlan, Error> {
    let config = read(&options.config, |text| NetworkConfig::parse(text.as_bytes()))?;
    let records = read(&options.leases, records::read_leases)?;
    plan(config, records, options)
}

/// What `parse` finds in the file.
fn read<T, E: fmt::Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Error> {
    let (is_stdin, name) = (path == Path::new("-"), path.display());
    let text = if is_stdin { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let unread = |error| Error::Unavailable(format!("{name} cannot be read: {error}"));
    parse(&text.map_err(unread)?).map_err(|error| Error::Usage(format!("{name}: {error}")))
}

fn plan(
    config: NetworkConfig,
    records: Vec<Record>,
    options: &PlanOptions,
) -> Result<NodePlan, Error> {
    let mut leases = records.iter().filter_map(|record| record.lease.as_ref().ok());
    let is_here = |endpoint: &Endpoint| options.public_ips.contains(&endpoint.public_ip);
    let own = leases.find(|lease| lease.endpoints.iter().any(is_here)).cloned();
    let node = node(&config, own.as_ref(), options)?;
    // Nodes with names are shown by name.
    let name = own.as_ref().map(|own| own.id.to_string());
    let config = config.on_node(node.names().chain(name));
    let local = NodeInputs {
        macs: macs(own.as_ref()),
        config,
        node,
        own,
        strict: [].into(),
        leaving: [].into(),
        was_on_host_gw: false,
        policy: Policy {
            masquerade: options.ip_masq.then(Masquerade::default),
            forward: Forward::Accept,
            firewall: if options.iptables { Preference::Iptables } else { Preference::Any },
            guard: Some(Guard::default()),
            ..Policy::default()
        },
    };
    let mut peers = Peers::default();
    peers.update(LeaseUpdate::Snapshot(records));
    let desired = Desired::plan(&local, &mut peers, &Fallbacks::new());
    Ok(NodePlan {
        backend: local.config.backend.kind.as_str(),
        mixed: local.config.mixed,
        on_link_assumed: options.on_link.is_empty(),
        own: local.own.as_ref().map(|own| own.id.clone()),
        pod_mtu: backend::pod_mtu(&backend::backends(&local)).unwrap_or_default(),
        entries: desired.state().entries().map(ToString::to_string).collect(),
        shown: desired.state().entries().map(shown).collect(),
        without_path: without_path(&desired, &peers),
        node: local.node,
    })
}

fn shown(entry: &Entry) -> String {
    match entry {
        Entry::Table(table) if table.has_peers() => format!("{table:#}"),
        entry => entry.to_string(),
    }
}

fn node(config: &NetworkConfig, own: Option<&Lease>, options: &PlanOptions) -> Result<Node, Error> {
    let families: Vec<Family> = config.networks().map(Prefix::family).collect();
    let foreign = options.public_ips.iter().find(|ip| !families.contains(&Family::of(**ip)));
    if let Some(ip) = foreign {
        let family = Family::of(*ip);
        return Err(Error::Usage(format!("--public-ip {ip}: the config does not enable {family}")));
    }
    let uplink = |family| {
        let given = options.public_ips.iter().copied().find(|ip| Family::of(*ip) == family);
        let public_ip = given.or_else(|| Some(own?.endpoint(family)?.public_ip));
        let missing = || format!("the config enables {family}: add a --public-ip of that family");
        let public_ip = public_ip.ok_or_else(|| Error::Usage(missing()))?;
        Ok(Uplink { address: public_ip, public_ip, source: public_ip, others: Vec::new() })
    };
    let uplinks = families.into_iter().map(uplink).collect::<Result<Vec<_>, Error>>()?;
    let around = uplinks.iter().filter_map(|uplink| usual_link(uplink.public_ip));
    let on_link =
        if options.on_link.is_empty() { around.collect() } else { options.on_link.clone() };
    Ok(Node {
        interface: LinkName::new(options.interface.as_str()),
        mtu: options.mtu,
        layer2: true,
        nexthops: true,
        firewalls: Firewalls::default(),
        sysctls: Sysctls::default(),
        kernel: Release::default(),
        on_segment: Vec::new(),
        on_link,
        uplinks,
    })
}

/// The usual prefix of a link with this address.
fn usual_link(address: IpAddr) -> Option<Prefix> {
    let len = match Family::of(address) {
        Family::V4 => 24,
        Family::V6 => 64,
    };
    Prefix::holding(address, len)
}

/// The daemon keeps the MAC address of an existing device and publishes it.
fn macs(own: Option<&Lease>) -> BTreeMap<Family, crate::mac::MacAddr> {
    let endpoints = own.iter().flat_map(|own| &own.endpoints);
    endpoints.filter_map(|e| Some((e.subnet.family(), e.vtep?.mac))).collect()
}

fn without_path(desired: &Desired, peers: &Peers) -> Vec<Unrouted> {
    let mut all = Vec::new();
    for (id, lease_plan) in desired.peers() {
        let mut add = |endpoint: Option<&Endpoint>, reason| {
            let public_ip = endpoint.map(|endpoint| endpoint.public_ip);
            all.push(Unrouted { lease: id.clone(), public_ip, reason });
        };
        match lease_plan {
            Err(why) => {
                let first = peers.lease(id).and_then(|lease| lease.endpoints.first());
                add(first, format!("rejected: {why}"));
            }
            Ok((lease, PeerPlan { paths, .. })) => {
                for (family, path) in paths {
                    if let Err(why) = path {
                        add(lease.endpoint(*family), format!("skipped: {why}"));
                    }
                }
            }
        }
    }
    all
}

impl Answer for NodePlan {}

impl fmt::Display for NodePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.head() {
            writeln!(f, "{}", wrap(&format!("{name:10}{value}"), 10))?;
        }
        for entry in &self.shown {
            writeln!(f, "{}", wrap_entry(&format!("+ {entry}"), 4))?;
        }
        for Unrouted { lease, public_ip, reason } in &self.without_path {
            let at = public_ip.map(|ip| format!(" at {ip}")).unwrap_or_default();
            writeln!(f, "{}", wrap(&format!("  {lease}{at} {reason}"), 4))?;
        }
        Ok(())
    }
}

impl NodePlan {
    /// The inputs of the plan.
    fn head(&self) -> [(&'static str, String); 4] {
        let Node { interface, mtu, uplinks, on_link, .. } = &self.node;
        let public_ips: Vec<IpAddr> = uplinks.iter().map(|uplink| uplink.public_ip).collect();
        let mixed = if self.mixed { ", mixed" } else { "" };
        let assumed = if self.on_link_assumed { " (assumed; set it with --on-link)" } else { "" };
        let no_lease = || "none has this public IP: planned without a subnet".to_owned();
        [
            ("node", format!("{} on {interface}, MTU {mtu}", listed(&public_ips, "unknown"))),
            ("backend", format!("{}{mixed}; pod MTU {}", self.backend, self.pod_mtu)),
            ("on link", format!("{}{assumed}", listed(on_link, "nothing"))),
            ("lease", self.own.as_ref().map_or_else(no_lease, ToString::to_string)),
        ]
    }
}
