//! `tweedctl leases`: lists the leases, and reserves and releases subnets without `etcdctl`.

mod change;
mod list;
mod usage;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;

use clap::{Args, Subcommand};

use self::change::{Decision, Reservation};
use self::list::ListOptions;
use self::usage::Usage;
use super::nodes::NodeList;
use super::output::{Output, WatchFlag};
use super::store::{StoreFlags, unavailable};
use super::{Error, ExitStatus, write};
use crate::model::config::NetworkConfig;
use crate::model::lease::Lease;
use crate::model::prefix::Prefix;
use crate::store::etcd::{EtcdClusterStore, EtcdOptions};
use crate::store::operator::{LeaseContents, Swap};

const EXIT_CODES: &str = "\
list asks the daemon on this host; the others read and write etcd.

Exit codes:
  0  done, or nothing to report
  1  refused, or 90 % or more of the subnets are taken
  2  the command line is invalid
  3  no daemon answers, or the store cannot be used";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct LeasesOptions {
    #[command(subcommand)]
    command: Option<LeasesCommand>,
    #[command(flatten)]
    store: StoreFlags,
}

#[derive(Debug, Subcommand)]
enum LeasesCommand {
    /// Lists each lease, and why it is rejected, as without a subcommand
    List(ListOptions),
    /// Reserves a subnet, for one node or for none, until it is released
    ///
    /// The lease of a node becomes a reservation: it does not expire any more. With two address
    /// families, name one subnet and get the matching one of the other, or name both.
    Reserve {
        /// Subnet, as in 10.244.7.0/24
        #[arg(required = true, num_args = 1..=2, value_name = "SUBNET")]
        subnets: Vec<Prefix>,
        /// Public IP of the node; repeat it for IPv6 [default: no node]
        #[arg(long = "for", value_name = "PUBLIC_IP")]
        public_ips: Vec<IpAddr>,
    },
    /// Deletes a reservation, or the lease of a node that is gone
    Release {
        /// Subnet, as in 10.244.7.0/24
        #[arg(value_name = "SUBNET")]
        subnet: Prefix,
        /// Release the lease even if its node may still use it
        #[arg(long)]
        force: bool,
    },
    /// Counts used, reserved and free subnets
    Usage(WatchFlag),
}

/// How often a change is tried again after another client has changed leases.
const ATTEMPTS: usize = 20;

pub(super) async fn run(
    options: LeasesOptions,
    socket: &Path,
    output: Output,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let command = options.command.unwrap_or_else(|| LeasesCommand::List(ListOptions::default()));
    if let LeasesCommand::List(options) = &command {
        return options.watch.show(out, output, async || list::answer(options, socket).await).await;
    }
    if options.store.kubernetes.kube_subnet_mgr {
        let why = "Kubernetes assigns the subnets of nodes (spec.podCIDRs), not tweed: \
                   they cannot be reserved or released here";
        return Err(Error::Usage(why.to_owned()));
    }
    let store = EtcdClusterStore::new(options.store.etcd.near(socket).await?);
    match command {
        LeasesCommand::List(_) => Ok(ExitStatus::Done),
        LeasesCommand::Reserve { subnets, public_ips } => {
            let wanted = Reservation { subnets, public_ips };
            let decide =
                async |contents: &LeaseContents| wanted.decide(contents, &config(contents)?);
            write(out, output, &carry_out(&store, decide).await?)
        }
        LeasesCommand::Release { subnet, force } => {
            let decide = async |contents: &LeaseContents| {
                let nodes = NodeList::read(&store).await?;
                change::release(contents, subnet, |lease| nodes.holder(lease), force)
            };
            write(out, output, &carry_out(&store, decide).await?)
        }
        LeasesCommand::Usage(watch) => watch.show(out, output, async || usage(&store).await).await,
    }
}

/// Gives `own`, the lease of this node, back to etcd, with its report; the sentence about it.
pub(super) async fn give_back(etcd: EtcdOptions, own: &Lease) -> Result<String, Error> {
    let store = EtcdClusterStore::new(etcd);
    let decide = async |contents: &LeaseContents| change::give_back(contents, own);
    let decision = carry_out(&store, decide).await?;
    // Nothing depends on the report, and it ends with the etcd lease.
    let _ = store.forget_report(&own.id).await;
    Ok(format!("lease {}", decision.to_string().trim_end()))
}

async fn usage(store: &EtcdClusterStore) -> Result<Usage, Error> {
    let contents = read(store).await?;
    let grants: BTreeSet<i64> = contents.leases.iter().filter_map(|it| it.held.grant).collect();
    let terms = store.terms(grants).await.map_err(|away| unavailable(store, &away))?;
    Ok(Usage::new(&contents.leases, &terms, &config(&contents)?))
}

/// Decides by what the store has, and again if that has changed before the write.
async fn carry_out(
    store: &EtcdClusterStore,
    decide: impl AsyncFn(&LeaseContents) -> Result<Decision, Error>,
) -> Result<Decision, Error> {
    for _ in 0..ATTEMPTS {
        let decision = decide(&read(store).await?).await?;
        let Some(change) = &decision.change else { return Ok(decision) };
        match store.change(change).await.map_err(|away| unavailable(store, &away))? {
            Swap::Done(_) => return Ok(decision),
            Swap::Outdated => {}
        }
    }
    Err(Error::Store("leases change all the time, and nothing was written: try again".to_owned()))
}

async fn read(store: &EtcdClusterStore) -> Result<LeaseContents, Error> {
    store.read_leases().await.map_err(|away| unavailable(store, &away))
}

fn config(contents: &LeaseContents) -> Result<NetworkConfig, Error> {
    let missing = || Error::Unavailable("there is no network config in etcd".to_owned());
    let text = &contents.config.as_ref().ok_or_else(missing)?.text;
    let invalid = |why| Error::Unavailable(format!("the network config is invalid: {why}"));
    NetworkConfig::parse(text.as_bytes()).map_err(invalid)
}
