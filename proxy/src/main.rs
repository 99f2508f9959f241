//! `tweed-proxy`: the command line.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use ipnetwork::IpNetwork;
use tweed_netlink::rtnl::address;
use tweed_netlink::{Family, Protocol, Socket};

use tweed_proxy::cluster::{Cluster, NodeAddresses};
use tweed_proxy::conntrack;
use tweed_proxy::diff::diff;
use tweed_proxy::endpoints::Slice;
use tweed_proxy::kernel::Kernel;
use tweed_proxy::object::{NodeObject, Object};
use tweed_proxy::ruleset::{Count, Policy};
use tweed_proxy::service::{Service, ServiceName};
use tweed_proxy::state::{List, State};

/// Programs Services of Kubernetes in nftables, in the network namespace that it runs in.
#[derive(Debug, Parser)]
#[command(name = "tweed-proxy", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Programs the Services of a file, and nothing else
    Apply(Apply),
    /// Removes everything that tweed-proxy programmed
    Cleanup,
}

#[derive(Debug, Args)]
struct Apply {
    /// File with Services, endpoint slices, Nodes and Lists in JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    objects: PathBuf,
    /// Name of this node: its endpoints are local, and its Node has the addresses for node ports
    #[arg(long, value_name = "NAME")]
    hostname_override: String,
    /// Networks of pods, separated by commas: connections to cluster IPs from other addresses are
    /// masqueraded
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    cluster_cidr: Vec<IpNetwork>,
    /// Ranges of cluster IPs, separated by commas: packets to addresses of no service are dropped
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    service_cidr: Vec<IpNetwork>,
    /// Networks of this host's addresses that have node ports, separated by commas; primary: the
    /// first internal address of the Node in each family
    #[arg(long, value_name = "CIDRS|primary", value_delimiter = ',', default_value = PRIMARY)]
    nodeport_addresses: Vec<String>,
    /// Masquerade all connections to cluster IPs
    #[arg(long)]
    masquerade_all: bool,
    /// Bit of the packet mark by which other programs know that a packet will be masqueraded
    #[arg(long, value_name = "0..31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    iptables_masquerade_bit: u8,
    /// Print what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The value of `--nodeport-addresses` for what the Node has.
const PRIMARY: &str = "primary";

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Apply(options) => apply(&options),
        Command::Cleanup => cleanup(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tweed-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn apply(options: &Apply) -> anyhow::Result<()> {
    let objects = read(&options.objects)?;
    let policy = Policy {
        pods: options.cluster_cidr.clone(),
        services: options.service_cidr.clone(),
        masquerades_all: options.masquerade_all,
        mark: 1 << options.iptables_masquerade_bit,
    };
    let mut kernel = Kernel::open(policy)?;
    let actual = kernel.read()?;
    let mut cluster = Cluster::adopt(node_addresses(options, &objects)?, actual.clone());
    for object in &objects {
        add(&mut cluster, object, &options.hostname_override);
    }
    cluster.revise();
    for warning in cluster.warnings() {
        let _ = writeln!(io::stderr(), "{warning}");
    }
    let changes = diff(cluster.desired(), &actual);
    for family in Family::ALL {
        let chains = kernel.missing_chains(family, &counts(cluster.desired(), family))?;
        if options.dry_run {
            print(chains.iter().map(|chain| format!("+ {} {chain}", family.keyword())))?;
        } else {
            kernel.put_chains(family, &chains)?;
        }
    }
    if options.dry_run {
        return print(changes.all());
    }
    kernel.apply(&changes.first)?;
    kernel.apply(&changes.then)?;
    let frontends: BTreeSet<_> =
        changes.then.iter().map(|change| change.element().frontend()).collect();
    // On a node without any frontend, no connection was translated.
    let known = frontends.into_iter().flatten().filter(|_| !actual.frontends.is_empty());
    let stale = known.flat_map(|frontend| {
        let want = cluster.desired().frontends.get(&frontend);
        conntrack::stale(frontend, want, actual.frontends.get(&frontend))
    });
    kernel.forget(&stale.collect::<Vec<_>>())?;
    if !changes.then.is_empty() && !changes.last.is_empty() {
        pause();
    }
    Ok(kernel.apply(&changes.last)?)
}

fn print<T: fmt::Display>(lines: impl Iterator<Item = T>) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    lines.into_iter().try_for_each(|line| writeln!(output, "{line}")).context("standard output")
}

/// Until packets that were on their way have passed.
#[expect(clippy::disallowed_methods, reason = "no other task waits")]
fn pause() {
    thread::sleep(Duration::from_millis(100));
}

fn cleanup() -> anyhow::Result<()> {
    let policy = Policy { pods: Vec::new(), services: Vec::new(), masquerades_all: false, mark: 0 };
    Ok(Kernel::open(policy)?.remove()?)
}

/// All objects of a file; a list counts as its items.
fn read(path: &PathBuf) -> anyhow::Result<Vec<Object>> {
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(|| format!("{}", path.display()))?)
    };
    let mut objects = Vec::new();
    for object in serde_json::Deserializer::from_reader(BufReader::new(input)).into_iter() {
        match object.with_context(|| format!("{}: not an object of Kubernetes", path.display()))? {
            Object::List { items } => objects.extend(items),
            object => objects.push(object),
        }
    }
    Ok(objects)
}

fn add(cluster: &mut Cluster, object: &Object, node: &str) {
    match object {
        Object::Service(service) => {
            let name = ServiceName::of(&service.metadata.namespace, &service.metadata.name);
            cluster.set_service(&name, Service::of(service));
        }
        Object::EndpointSlice(slice) => {
            if let Some((service, part)) = Slice::of(slice, node) {
                cluster.set_slice(&service, &slice.metadata.name, Some(part));
            }
        }
        Object::Node(_) | Object::List { .. } | Object::Other => {}
    }
}

fn node_addresses(options: &Apply, objects: &[Object]) -> anyhow::Result<NodeAddresses> {
    let primary = primary(objects, &options.hostname_override);
    let words = &options.nodeport_addresses;
    let for_node_ports = if words.iter().any(|word| word == PRIMARY) {
        primary.clone()
    } else {
        own_addresses(words)?
    };
    Ok(NodeAddresses { primary, for_node_ports })
}

/// Those of this host in these networks.
fn own_addresses(networks: &[String]) -> anyhow::Result<Vec<IpAddr>> {
    let parse = |word: &String| {
        word.parse().with_context(|| format!("--nodeport-addresses: {word:?} is no network"))
    };
    let networks = networks.iter().filter(|word| !word.is_empty()).map(parse);
    let networks: Vec<IpNetwork> = networks.collect::<anyhow::Result<_>>()?;
    let mut socket = Socket::open(Protocol::Route).context("opening netlink")?;
    let all = socket.list(&address::list(), address::read).context("listing addresses")?;
    let all = all.into_iter().map(|one| one.network.ip());
    let of_networks = |one: &IpAddr| networks.iter().any(|network| network.contains(*one));
    // The kernel drops packets to its loopback that come from elsewhere.
    Ok(all.filter(|one| !one.is_loopback() && of_networks(one)).collect())
}

/// The first internal address of each family.
fn primary(objects: &[Object], name: &str) -> Vec<IpAddr> {
    let nodes = objects.iter().filter_map(|object| match object {
        Object::Node(node) => Some(node).filter(|node| node.metadata.name == name),
        _ => None,
    });
    let all: Vec<IpAddr> = nodes.flat_map(NodeObject::internal_addresses).collect();
    let first = |family| all.iter().find(|address| Family::of(**address) == family).copied();
    Family::ALL.into_iter().filter_map(first).collect()
}

/// The numbers of endpoints that frontends have, the most frequent first.
fn counts(state: &State, family: Family) -> Vec<Count> {
    let mut found = BTreeMap::<Count, usize>::new();
    let of_family = state.frontends.iter().filter(|(one, _)| Family::of(one.address) == family);
    for (_, entry) in of_family {
        for list in List::ALL {
            for count in &entry.list(list).counts {
                *found.entry((list, *count)).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<Count> = found.keys().copied().collect();
    counts.sort_by_key(|count| Reverse(found.get(count)));
    counts
}
