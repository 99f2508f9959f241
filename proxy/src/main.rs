//! `tweed-proxy`: the command line.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::mem;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use ipnetwork::IpNetwork;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tweed_client::api::{ApiOptions, Client, Program};
use tweed_client::backoff::Backoff;
use tweed_client::random::random;
use tweed_netlink::rtnl::address;
use tweed_netlink::{Family, Monitor, Protocol, Socket};

use tweed_proxy::cluster::{Cluster, NodeAddresses};
use tweed_proxy::diff::diff;
use tweed_proxy::kernel::Kernel;
use tweed_proxy::object::{NodeObject, Object};
use tweed_proxy::reconciler::{Reconciler, counts};
use tweed_proxy::ruleset::Policy;
use tweed_proxy::watch::{self, Access, Nodes, Services, Slices, Update, Watched};

/// Programs Services of Kubernetes in nftables, in the network namespace that it runs in.
#[derive(Debug, Parser)]
#[command(name = "tweed-proxy", version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Programs the Services of the cluster, and follows all changes of them
    Run(Run),
    /// Programs the Services of a file, and nothing else
    Apply(Apply),
    /// Removes everything that tweed-proxy programmed
    Cleanup,
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    node: NodeOptions,
    /// Kubeconfig with API server and credentials; without it, the service account of the pod
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// URLs of the API servers, separated by commas: not an address that needs a proxy to work
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    kube_api_url: Vec<String>,
}

#[derive(Debug, Args)]
struct Apply {
    /// File with Services, endpoint slices, Nodes and Lists in JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    objects: PathBuf,
    #[command(flatten)]
    node: NodeOptions,
    /// Print what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// What is programmed on this node, apart from the objects of the cluster.
#[derive(Debug, Args)]
struct NodeOptions {
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
    nodeport_addresses: Vec<NodePorts>,
    /// Masquerade all connections to cluster IPs
    #[arg(long)]
    masquerade_all: bool,
    /// Bit of the packet mark by which other programs know that a packet will be masqueraded
    #[arg(long, value_name = "0..31", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..32))]
    iptables_masquerade_bit: u8,
}

/// Which addresses have node ports.
#[derive(Clone, Copy, Debug)]
enum NodePorts {
    Primary,
    Within(IpNetwork),
    None,
}

impl FromStr for NodePorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            PRIMARY => Ok(Self::Primary),
            "" => Ok(Self::None),
            network => match network.parse() {
                Ok(network) => Ok(Self::Within(network)),
                Err(error) => Err(format!("neither {PRIMARY} nor a network: {error}")),
            },
        }
    }
}

/// The value of `--nodeport-addresses` for what the Node has.
const PRIMARY: &str = "primary";

const PROGRAM: Program = Program {
    agent: concat!("tweed-proxy/", env!("CARGO_PKG_VERSION")),
    flags: "set --kubeconfig or --kube-api-url",
    permissions: "docs/guides/services.md",
};

/// Room for changes of addresses, in bytes.
const BACKLOG: usize = 64 << 10;

/// The longest time between a refused change and the next attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The time between two reports of services that are not programmed as their objects ask for it.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(10);

/// The number of changes that are programmed together, if as many are waiting.
const AT_ONCE: usize = 1000;

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Run(options) => run(&options),
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

fn run(options: &Run) -> anyhow::Result<()> {
    let filter = EnvFilter::new("warn,kube_client=off,tweed=info");
    let events = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    events.with_ansi(false).with_writer(io::stderr).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        select! {
            biased;
            _ = terminated.recv() => Ok(()),
            _ = interrupted.recv() => Ok(()),
            failed = follow(options) => failed,
        }
    })
}

/// Ends only for an error. What is programmed stays.
async fn follow(options: &Run) -> anyhow::Result<()> {
    let mut kernel = Kernel::open(policy(&options.node))?;
    kernel.listen()?;
    let actual = kernel.read()?;
    let cluster = Cluster::adopt(NodeAddresses::default(), actual.clone());
    let mut reconciler = Reconciler::new(kernel, cluster, actual);
    let mut inputs = Inputs::open(options)?;
    let mut warnings = Warnings::default();
    let (mut backoff, mut due) = (Backoff::up_to(LONGEST_PAUSE), None::<Instant>);
    let (mut is_ready, mut problem) = (false, None);
    loop {
        let at = [due, warnings.due].into_iter().flatten().min();
        let wake = async {
            match at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        select! {
            biased;
            damaged = reconciler.damaged() => {
                damaged?;
                info!("another program changed the table: reading it again");
            }
            event = inputs.next() => inputs.take(event?, reconciler.cluster())?,
            () = wake => {}
        }
        inputs.take_waiting(reconciler.cluster())?;
        if !inputs.are_complete() {
            continue;
        }
        let now = Instant::now();
        match reconciler.reconcile() {
            Ok(next) => {
                due = next;
                backoff.reset();
                let was_ready = mem::replace(&mut is_ready, true);
                if problem.take().is_some() || !was_ready {
                    info!("all services are programmed");
                }
                warnings.report(reconciler.cluster(), now);
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::from(error));
                if problem.as_ref() != Some(&error) {
                    warn!(error, "the table is not up to date; trying again");
                }
                problem = Some(error);
                due = Some(now + backoff.delay(random()).max(Backoff::SHORTEST));
            }
        }
    }
}

/// Where changes come from, other than the tables.
struct Inputs<'a> {
    options: &'a NodeOptions,
    services: BoxStream<'static, Update<Services>>,
    slices: BoxStream<'static, Update<Slices>>,
    nodes: BoxStream<'static, Update<Nodes>>,
    /// Changes of this host's addresses.
    addresses: Monitor,
    /// The internal addresses of the Node of this host; none before the first snapshot.
    node: Option<Vec<IpAddr>>,
    has_services: bool,
    has_slices: bool,
}

enum Input {
    Services(Update<Services>),
    Slices(Update<Slices>),
    Nodes(Update<Nodes>),
    Addresses,
}

impl<'a> Inputs<'a> {
    fn open(options: &'a Run) -> anyhow::Result<Self> {
        let Run { node: options, kubeconfig, kube_api_url } = options;
        let (urls, kubeconfig) = (kube_api_url.clone(), kubeconfig.clone());
        let api = ApiOptions { urls, kubeconfig, ..ApiOptions::default() };
        let client = Arc::new(Client::new(api, PROGRAM, Access::default()));
        let name = &options.hostname_override;
        Ok(Self {
            options,
            services: watch::services(Arc::clone(&client), name),
            slices: watch::slices(Arc::clone(&client), name),
            nodes: watch::nodes(client, name),
            addresses: Monitor::of_addresses(BACKLOG)?,
            node: None,
            has_services: false,
            has_slices: false,
        })
    }

    /// Whether all snapshots have come: before, nothing is known to be gone.
    const fn are_complete(&self) -> bool {
        self.has_services && self.has_slices && self.node.is_some()
    }

    async fn next(&mut self) -> anyhow::Result<Input> {
        let ended = || anyhow::anyhow!("a watch has ended");
        select! {
            biased;
            update = self.nodes.next() => update.map(Input::Nodes).with_context(ended),
            update = self.services.next() => update.map(Input::Services).with_context(ended),
            update = self.slices.next() => update.map(Input::Slices).with_context(ended),
            // All are read again, so that lost changes are no loss.
            _ = self.addresses.receive(|_| ()) => Ok(Input::Addresses),
        }
    }

    fn take(&mut self, input: Input, cluster: &mut Cluster) -> anyhow::Result<()> {
        match input {
            Input::Services(Update::All(services)) => {
                cluster.set_services(services);
                self.has_services = true;
            }
            Input::Services(Update::One(name, service)) => cluster.set_service(&name, service),
            Input::Slices(Update::All(slices)) => {
                cluster.set_slices(slices);
                self.has_slices = true;
            }
            Input::Slices(Update::One(name, slice)) => cluster.set_slice(&name, slice),
            Input::Nodes(update) => {
                let own = match update {
                    Update::All(nodes) => nodes.into_values().next(),
                    Update::One(_, addresses) => addresses,
                };
                if own.is_none() {
                    let name = &self.options.hostname_override;
                    warn!(node = name, "there is no such Node: see --hostname-override");
                }
                self.node = Some(own.unwrap_or_default());
                cluster.set_addresses(self.node_addresses()?);
            }
            Input::Addresses => {
                cluster.set_addresses(self.node_addresses()?);
            }
        }
        Ok(())
    }

    /// Those that need no waiting: they are programmed together.
    fn take_waiting(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(input) = self.next().now_or_never() else { break };
            self.take(input?, cluster)?;
        }
        Ok(())
    }

    fn node_addresses(&self) -> anyhow::Result<NodeAddresses> {
        node_addresses(self.options, self.node.as_deref().unwrap_or_default())
    }
}

/// Which services are not programmed as their objects ask for it.
#[derive(Default)]
struct Warnings {
    known: BTreeSet<String>,
    /// When there may be others.
    due: Option<Instant>,
    /// No earlier than this.
    next: Option<Instant>,
}

impl Warnings {
    /// Logs those that are new.
    fn report(&mut self, cluster: &Cluster, now: Instant) {
        if let Some(next) = self.next.filter(|next| *next > now) {
            self.due = Some(next);
            return;
        }
        let found: BTreeSet<String> = cluster.warnings().into_iter().collect();
        found.difference(&self.known).for_each(|warning| warn!("{warning}"));
        *self = Self { known: found, due: None, next: Some(now + BETWEEN_WARNINGS) };
    }
}

fn apply(options: &Apply) -> anyhow::Result<()> {
    let objects = read(&options.objects)?;
    let mut kernel = Kernel::open(policy(&options.node))?;
    let actual = kernel.read()?;
    let internal = internal_addresses(&objects, &options.node.hostname_override);
    let addresses = node_addresses(&options.node, &internal)?;
    let mut cluster = Cluster::adopt(addresses, actual.clone());
    for object in &objects {
        add(&mut cluster, object, &options.node.hostname_override);
    }
    cluster.revise();
    for warning in cluster.warnings() {
        let _ = writeln!(io::stderr(), "{warning}");
    }
    if options.dry_run {
        for family in Family::ALL {
            let chains = kernel.missing_chains(family, &counts(cluster.desired(), family))?;
            print(chains.iter().map(|chain| format!("+ {} {chain}", family.keyword())))?;
        }
        return print(diff(cluster.desired(), &actual).all());
    }
    let mut reconciler = Reconciler::new(kernel, cluster, actual);
    while let Some(due) = reconciler.reconcile()? {
        pause_until(due);
    }
    Ok(())
}

fn policy(options: &NodeOptions) -> Policy {
    Policy {
        pods: options.cluster_cidr.clone(),
        services: options.service_cidr.clone(),
        masquerades_all: options.masquerade_all,
        mark: 1 << options.iptables_masquerade_bit,
    }
}

fn print<T: fmt::Display>(lines: impl Iterator<Item = T>) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    lines.into_iter().try_for_each(|line| writeln!(output, "{line}")).context("standard output")
}

#[expect(clippy::disallowed_methods, reason = "no other task waits")]
fn pause_until(due: Instant) {
    thread::sleep(due.saturating_duration_since(Instant::now()));
}

fn cleanup() -> anyhow::Result<()> {
    Ok(Kernel::open(Policy::default())?.remove()?)
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
            let (name, service) = Services::read(service, node);
            cluster.set_service(&name, service);
        }
        Object::EndpointSlice(slice) => {
            let (name, slice) = Slices::read(slice, node);
            cluster.set_slice(&name, slice);
        }
        Object::Node(_) | Object::List { .. } | Object::Other => {}
    }
}

/// `internal`: the internal addresses of the Node.
fn node_addresses(options: &NodeOptions, internal: &[IpAddr]) -> anyhow::Result<NodeAddresses> {
    let first = |family| internal.iter().find(|address| Family::of(**address) == family).copied();
    let primary: Vec<IpAddr> = Family::ALL.into_iter().filter_map(first).collect();
    let mut for_node_ports = Vec::new();
    for which in &options.nodeport_addresses {
        match which {
            NodePorts::Primary => for_node_ports.extend(&primary),
            NodePorts::Within(network) => for_node_ports.extend(own_addresses(network)?),
            NodePorts::None => {}
        }
    }
    for_node_ports.sort_unstable();
    for_node_ports.dedup();
    Ok(NodeAddresses { primary, for_node_ports })
}

/// Those of this host in this network.
fn own_addresses(network: &IpNetwork) -> anyhow::Result<Vec<IpAddr>> {
    let mut socket = Socket::open(Protocol::Route).context("opening netlink")?;
    let all = socket.list(&address::list(), address::read).context("listing addresses")?;
    let all = all.into_iter().map(|one| one.network.ip());
    // The kernel drops packets to its loopback that come from elsewhere.
    Ok(all.filter(|one| !one.is_loopback() && network.contains(*one)).collect())
}

fn internal_addresses(objects: &[Object], name: &str) -> Vec<IpAddr> {
    let nodes = objects.iter().filter_map(|object| match object {
        Object::Node(node) => Some(node).filter(|node| node.metadata.name == name),
        _ => None,
    });
    nodes.flat_map(NodeObject::internal_addresses).collect()
}
