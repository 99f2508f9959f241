//! `tweed-proxy`: the command line.

mod metrics;
mod options;
mod run;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, bail};
use clap::Parser;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use tokio::time::Instant;
use tweed_netlink::Family;

use options::{Apply, Command, NodeOptions, Options};
use tweed_proxy::kernel::{Kernel, Lacking};
use tweed_proxy::objects::object::{Document, NodeObject, Object};
use tweed_proxy::objects::service::Service;
use tweed_proxy::objects::watch::{Services, Slices, Watched};
use tweed_proxy::plan::cluster::Cluster;
use tweed_proxy::plan::diff::diff;
use tweed_proxy::plan::ruleset::{Policy, TABLE};
use tweed_proxy::reconciler::{Left, Reconciler, Undeleted, counts};
use tweed_proxy::state::State;

const OWN_NAMESPACE: &str = "/proc/self/ns/net";

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Command::Run(options) => lock().and_then(|_lock| run::run(&options)),
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

/// At most one process writes the tables of a network namespace: a file for each namespace, which is
/// unlocked when its process has ended. A name of a socket there would need no file, but any user could
/// take it.
fn lock() -> anyhow::Result<Flock<File>> {
    let namespace = fs::metadata(OWN_NAMESPACE).context(OWN_NAMESPACE)?.ino();
    let path = format!("/run/tweed-proxy-{namespace}.lock");
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| path.clone())?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => {
            let what = "another tweed-proxy writes the tables of this network namespace";
            anyhow!("{what}: stop it first")
        }
        errno => anyhow::Error::from(errno).context(path),
    })
}

fn apply(options: &Apply) -> anyhow::Result<()> {
    let objects = read(&options.objects)?;
    // Before the table is read: another process may still change it.
    let _lock = (!options.dry_run).then(lock).transpose()?;
    let mut kernel = Kernel::open(options.node.policy())?;
    let actual = kernel.read()?;
    let internal = internal_addresses(&objects, &options.node)?;
    let addresses = options.node.addresses(&internal)?;
    let mut cluster = Cluster::adopt(addresses, options.node.affinity(), actual.clone());
    for object in &objects {
        add(&mut cluster, object, &options.node.hostname_override);
    }
    cluster.revise();
    for warning in cluster.warnings() {
        let _ = writeln!(io::stderr(), "{warning}");
    }
    if options.dry_run {
        print(damage(&mut kernel, cluster.desired())?.iter())?;
        return print(diff(cluster.desired(), &actual).all());
    }
    let mut reconciler = Reconciler::new(kernel, cluster, actual);
    loop {
        let Left { due, refused, undeleted } = reconciler.reconcile()?;
        match (due, refused) {
            (_, Some(error)) => return Err(error.into()),
            (Some(due), None) => pause_until(due),
            (None, None) => {
                if let Some(Undeleted { reason, .. }) = undeleted {
                    let what = "cannot delete UDP connections to former endpoints";
                    let _ = writeln!(io::stderr(), "{what}: {reason}");
                }
                return Ok(());
            }
        }
    }
}

/// What would be changed, apart from elements of known forms.
fn damage(kernel: &mut Kernel, desired: &State) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for family in Family::ALL {
        let Lacking { chains, is_unusable } = kernel.lacking(family, &counts(desired, family))?;
        let family = family.keyword();
        if is_unusable {
            lines.push(format!(
                "- {family} table {TABLE}: another one replaces it, with all elements"
            ));
        }
        lines.extend(chains.iter().map(|chain| format!("+ {family} {chain}")));
    }
    let foreign = kernel.foreign().map(|(family, set, number)| {
        format!("- {} {set}: elements of another program: {number}", family.keyword())
    });
    lines.extend(foreign);
    Ok(lines)
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
    let _lock = lock()?;
    Ok(Kernel::open(Policy::default())?.remove()?)
}

/// All objects of a file. Without any, as after a command in front of a pipe that failed, all services
/// would be removed.
fn read(path: &PathBuf) -> anyhow::Result<Vec<Object>> {
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).with_context(|| format!("{}", path.display()))?)
    };
    let mut objects = Vec::new();
    for document in serde_json::Deserializer::from_reader(BufReader::new(input)).into_iter() {
        let what = || format!("{}: not an object of Kubernetes", path.display());
        let document: Document = document.with_context(what)?;
        objects.extend(document.objects());
    }
    if objects.is_empty() {
        let what = "no Service, EndpointSlice or Node: nothing was changed";
        bail!("{}: {what}; `tweed-proxy cleanup` removes the tables", path.display());
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
        Object::Node(_) => {}
    }
}

/// Those of this node. Without any, all node ports would be removed.
fn internal_addresses(objects: &[Object], options: &NodeOptions) -> anyhow::Result<Vec<IpAddr>> {
    let name = &options.hostname_override;
    let nodes = objects.iter().filter_map(|object| match object {
        Object::Node(node) => Some(node).filter(|node| node.metadata.name == *name),
        Object::Service(_) | Object::EndpointSlice(_) => None,
    });
    let internal: Vec<IpAddr> = nodes.flat_map(NodeObject::internal_addresses).collect();
    let is_served = |it: &Service| options.affinity().serves(it);
    let has_node_ports = objects.iter().any(|object| match object {
        Object::Service(service) => Services::read(service, name)
            .1
            .is_some_and(|service| service.has_node_ports() && is_served(&service)),
        Object::EndpointSlice(_) | Object::Node(_) => false,
    });
    if internal.is_empty() && has_node_ports && options.has_primary_node_ports() {
        bail!(
            "there is no Node {name} with an internal address for node ports: see \
             --hostname-override and --nodeport-addresses"
        );
    }
    Ok(internal)
}
