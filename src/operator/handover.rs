//! `tweedctl handover`: gives a node back to flanneld, with all entries that its packets need.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tweed_cni::subnet_env::SubnetEnv;

use super::cleanup::{self, Owned, RemovalOutcome, RemovalReport};
use super::layout::counted;
use super::node::{self, Files};
use super::store::Etcd;
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::lease::LeaseId;
use crate::model::prefix::Prefix;
use crate::plan::diff::{Op, handover_ops};
use crate::plan::masquerade;
use crate::store::etcd::{EtcdClusterStore, EtcdOptions, key};

#[derive(Debug, Args)]
#[command(after_help = CONDITIONS)]
pub(super) struct HandoverOptions {
    /// Only list the changes
    #[arg(long)]
    dry_run: bool,
    /// Network of the pods, if neither checkpoint nor subnet file has it
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// VNI of the tunnel, if there is no checkpoint
    #[arg(long, value_name = "N", default_value_t = 1)]
    vni: u32,
    #[command(flatten)]
    etcd: Etcd,
}

const CONDITIONS: &str = "\
Stop tweedd first. Device, addresses, neighbours, forwarding entries, subnet
file and lease stay; no packet is lost. The command can be repeated.";

/// The entries and files that flanneld does not use, and the node's report.
#[derive(Serialize)]
pub(super) struct Handover {
    #[serde(flatten)]
    removal: RemovalReport,
    /// The result of removing the node's report from the store; none if no report was expected.
    report: Option<String>,
}

pub(super) async fn answer(
    files: &Files,
    options: &HandoverOptions,
    mut kernel: impl Kernel,
) -> Result<Handover, Error> {
    if !options.dry_run {
        cleanup::refuse_next_to_daemon(&files.socket(), "stop it first").await?;
    }
    let etcd = options.etcd.options()?;
    // After an earlier handover, only the subnet file is left.
    let otherwise = Owned::of_subnet_file(&files.subnet_file, options.vni);
    let owned = Owned::find(files, &options.networks, options.vni, otherwise).await?;
    let owned = owned.without_flannels();
    let actual = node::dump(&mut kernel, &owned.scope).await?;
    let ops = handover_ops(&owned.remaining, &actual, &owned.scope);
    let unused = cleanup::existing([files.socket()].into_iter().chain(files.state_files()));
    let mut removal = RemovalReport::new(owned.source, &ops, unused);
    let mut report = None;
    if !options.dry_run {
        removal.outcome = carry_out(&mut kernel, ops, &removal.files).await?;
        if let Some(own) = owned.lease.filter(|_| removal.outcome == RemovalOutcome::Removed) {
            report = Some(forget_report(etcd, &own.id).await);
        }
    }
    Ok(Handover { removal, report })
}

impl Owned {
    /// None if the file does not name a network.
    fn of_subnet_file(file: &Path, vni: u32) -> Option<Self> {
        let networks = SubnetEnv::read(file).ok()?.networks;
        let networks: Vec<Prefix> = networks.into_iter().map(Into::into).collect();
        let source = format!("read from {}", file.display());
        (!networks.is_empty()).then(|| Self { source, ..Self::named(&networks, vni) })
    }

    /// Without the tables and chains that flanneld maintains itself.
    fn without_flannels(mut self) -> Self {
        let flannels: Vec<_> = masquerade::flannels_tables().collect();
        self.scope.tables.retain(|table| !flannels.contains(table));
        self.scope.chains.retain(|chain| !chain.base.is_flannels());
        self
    }
}

/// The kernel removes the routes of a removed nexthop object, so an object is removed only once no
/// route refers to it.
async fn carry_out(
    kernel: &mut impl Kernel,
    ops: Vec<Op>,
    files: &[PathBuf],
) -> Result<RemovalOutcome, Error> {
    let (removals, puts): (Vec<Op>, Vec<Op>) =
        ops.into_iter().partition(|op| matches!(op, Op::Remove(_)));
    let outcome = cleanup::remove(kernel, puts, &[]).await?;
    if matches!(outcome, RemovalOutcome::Refused(_)) {
        return Ok(outcome);
    }
    cleanup::remove(kernel, removals, files).await
}

/// A failure is harmless: nothing depends on the report, and the daemon's etcd lease expires.
async fn forget_report(etcd: EtcdOptions, lease: &LeaseId) -> String {
    if key::decode(lease).is_none() {
        return format!("the report of {lease} is a ConfigMap: delete it with kubectl");
    }
    let prefix = etcd.prefix.clone();
    match EtcdClusterStore::new(etcd).forget_report(lease).await {
        Ok(true) => format!("the report of {lease} is removed from etcd"),
        Ok(false) => format!(
            "etcd has no report of {lease} below {prefix}: if the network has another prefix, name it \
             with --etcd-prefix"
        ),
        Err(away) => format!(
            "the report of {lease} stays in etcd until its lease ends, within a day: {away}; \
             name the servers with --etcd-endpoints"
        ),
    }
}

impl Answer for Handover {
    fn exit_status(&self) -> ExitStatus {
        self.removal.exit_status()
    }
}

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemovalReport { entries, files, outcome, .. } = &self.removal;
        let changes =
            format!("{} and {}", counted(entries.len(), "change"), counted(files.len(), "file"));
        let summary = match outcome {
            RemovalOutcome::Listed => {
                format!("{changes} are needed to hand this node over; nothing was changed")
            }
            RemovalOutcome::Removed => format!("handed over with {changes}: start flanneld"),
            RemovalOutcome::Refused(refused) => {
                format!("{changes}, of which {} refused: run the command again", refused.len())
            }
        };
        self.removal.write(f, &summary, self.report.as_deref())
    }
}
